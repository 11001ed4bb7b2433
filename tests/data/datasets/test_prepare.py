"""Recipes on small files of the original formats, written here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from equipoise.data import datasets
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError


def write(file: Path, lines: Iterable[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def core(n: int = 10) -> list[tuple[int, int]]:
    """Return n users x n items, all pairs, and a chain of stragglers that falls off step by step.

    User 100 has n items only as long as item 200 counts, which has one user.
    """
    block = [(user, item) for user in range(n) for item in range(50, 50 + n)]
    return [*block, *((100, item) for item in range(50, 50 + n - 1)), (100, 200)]


def test_movielens_20m_keeps_good_ratings_of_users_with_five(tmp_path: Path) -> None:
    movies = (10, 20, 30, 40, 50)
    ratings = [f"{user},{movie},4.0,{1000 + movie}" for user in (1, 3) for movie in movies]
    ratings += [f"2,{movie},5.0,2000" for movie in (10, 20, 30, 40)] + ["2,50,3.5,2000"]
    write(tmp_path / "ratings.csv", ["userId,movieId,rating,timestamp", *ratings])
    titles = [f'{movie},"Film, The {movie} (1999)",Comedy|Drama' for movie in movies]
    write(tmp_path / "movies.csv", ["movieId,title,genres", *titles])
    data = datasets.load("ml-20m", path=tmp_path)
    assert data.users.tolist() == [1, 3]
    assert data.items.tolist() == [10, 20, 30, 40, 50]
    assert data.matrix.data.tolist() == [1.0] * 10
    assert data.label(10) == "Film, The 10 (1999)"
    assert data.catalogue is not None
    assert data.catalogue["genres"][0].to_list() == ["Comedy", "Drama"]
    assert data.times is not None
    assert data.times.tolist() == [1010, 1020, 1030, 1040, 1050] * 2


def netflix_lines(movies: Iterable[int]) -> list[str]:
    lines = []
    for movie in movies:
        lines += [f"{movie}:", "7,5,2005-09-06", "8,3,2004-01-01"]
        lines += ["9,4,2000-01-01"] if movie < 5 else []
    return lines


@pytest.mark.parametrize("layout", ["combined", "original"])
def test_netflix_keeps_good_ratings_of_users_with_five(tmp_path: Path, layout: str) -> None:
    if layout == "combined":
        write(tmp_path / "combined_data_1.txt", netflix_lines([1, 2, 3]))
        write(tmp_path / "combined_data_2.txt", netflix_lines([4, 5]))
        titles = tmp_path / "movie_titles.csv"
    else:
        for movie in range(1, 6):
            write(tmp_path / f"training_set/mv_{movie:07}.txt", netflix_lines([movie]))
        titles = tmp_path / "movie_titles.txt"
    lines = ["1,2003,Dinosaur Planet", "2,NULL,Amélie, encore"]
    titles.write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))
    data = datasets.load("netflix", path=tmp_path)
    assert data.users.tolist() == [7]
    assert data.items.tolist() == [1, 2, 3, 4, 5]
    assert data.times is not None
    assert set(data.times.tolist()) == {1125964800.0}
    assert [data.label(item) for item in (1, 2, 3)] == ["Dinosaur Planet", "Amélie, encore", "3"]


def test_netflix_in_a_folder_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    write(tmp_path / "n1/combined_data_1.txt", netflix_lines(range(2, 7)))
    write(tmp_path / "n[1]/combined_data_1.txt", netflix_lines(range(1, 6)))
    data = datasets.load("netflix", path=tmp_path / "n[1]")
    assert data.items.tolist() == [1, 2, 3, 4, 5]
    assert data.catalogue is None


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_million_songs_filters_songs_then_users_in_one_pass(tmp_path: Path, ending: str) -> None:
    # 200 users with 20 songs; song 0 gets its 200th user from someone with too few songs.
    pairs = [(user, song) for user in range(200) for song in range(20) if (user, song) != (0, 0)]
    pairs += [(0, 20), (500, 0)] + [(user, 20) for user in range(1, 200)]
    pairs += [(user, 30) for user in range(199)]
    text = "".join(f"u{user:039}\tSO{song:016}\t{1 + song}\n" for user, song in pairs)
    file = tmp_path / f"train_triplets.txt{ending}"
    file.write_bytes(gzip.compress(text.encode()) if ending else text.encode())
    data = datasets.load("msd", path=tmp_path)
    assert (data.n_users, data.n_items) == (200, 21)
    assert data.item_counts[data.item_index.positions([f"SO{0:016}"])[0]] == 199
    assert set(data.matrix.data.tolist()) == {1.0}
    assert data.times is None


def test_million_songs_with_nothing_left_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "train_triplets.txt", ["u\ts\t1", "v\tt\t3"])
    with pytest.raises(DataError, match="no user with 20 songs that 200 users know"):
        datasets.load("msd", path=tmp_path)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_gowalla_is_the_ten_core_of_check_ins(tmp_path: Path, ending: str) -> None:
    lines = [f"{user}\t2010-10-19T23:55:27Z\t30.2\t-97.7\t{item}" for user, item in core()]
    lines += ["0\t2010-10-17T01:48:53Z\t30.2\t-97.7\t50"]  # the same place again
    text = "".join(f"{line}\n" for line in lines).encode()
    file = tmp_path / f"loc-gowalla_totalCheckins.txt{ending}"
    file.write_bytes(gzip.compress(text) if ending else text)
    data = datasets.load("gowalla", path=file)
    assert data.users.tolist() == list(range(10))
    assert data.items.tolist() == list(range(50, 60))
    assert data.n_interactions == 100
    assert any("10-core" in note for note in data.notes)
    assert set(data.matrix.data.tolist()) == {1.0}
    assert data.times is not None
    assert data.times.max() == 1287532527.0


@pytest.mark.parametrize("file", ["yelp_academic_dataset_review.json", "review.json"])
def test_yelp_is_the_ten_core_of_reviews(tmp_path: Path, file: str) -> None:
    reviews = [
        {
            "review_id": f"r{place}",
            "user_id": f"u{user}",
            "business_id": f"b{item}",
            "stars": 1.0,
            "date": "2018-07-07 22:09:11",
            "text": 'so "good", \n really',
        }
        for place, (user, item) in enumerate(core())
    ]
    write(tmp_path / file, [json.dumps(review) for review in reviews])
    data = datasets.load("yelp2018", path=tmp_path)
    assert data.matrix.shape == (10, 10)
    assert sorted(data.users) == sorted(f"u{user}" for user in range(10))
    assert data.times is not None
    assert set(data.times.tolist()) == {1531001351.0}


def test_amazon_book_is_the_ten_core_of_ratings(tmp_path: Path) -> None:
    # Book numbers keep their leading zeros.
    lines = [f"AH{user},{item:010},1.0,1360627200" for user, item in core()]
    write(tmp_path / "ratings_Books.csv", lines)
    data = datasets.load("amazon-book", path=tmp_path)
    assert data.matrix.shape == (10, 10)
    assert sorted(data.items) == [f"{item:010}" for item in range(50, 60)]
    assert data.n_interactions == 100


@pytest.mark.parametrize("name", ["gowalla", "yelp2018", "amazon-book"])
def test_lightgcn_folder_gives_both_parts_unfiltered(tmp_path: Path, name: str) -> None:
    write(tmp_path / "train.txt", ["0 0 1 2", "1 2 3", "2 4"])
    write(tmp_path / "test.txt", ["0 4", "1 0 1", "2 "])
    data = datasets.load(name, path=tmp_path)
    assert data.users.tolist() == [0, 1, 2]
    assert [data.history(user) for user in (0, 1, 2)] == [[0, 1, 2, 4], [0, 1, 2, 3], [4]]


def test_movielens_can_be_read_from_the_folder_of_grouplens(tmp_path: Path) -> None:
    lines = ["196\t242\t3\t881250949", "186\t242\t5\t891717742", "22\t302\t4\t891717742"]
    write(tmp_path / "u.data", lines)
    titles = {242: "Kolya (1996)", 302: "L.A. Confidential (1997)"}
    genres = "|".join("0" * 19)
    write(
        tmp_path / "u.item", [f"{n}|{t}|24-Jan-1997||http://x|{genres}" for n, t in titles.items()]
    )
    data = datasets.load("movielens-100k", path=tmp_path, min_rating=4)
    assert sorted(data.users.tolist()) == [22, 186]
    assert data.label(242) == "Kolya (1996)"


# Session -> items in order. Items 7 and 8 have 5 events each. Without session 5, a single event,
# item 8 is rare; without item 8, session 4 is a single event. Item 7 stays: there is one pass.
EVENTS = {1: [7, 9, 7], 2: [9, 7, 8], 3: [8, 9, 9, 8], 4: [7, 8], 5: [8], 6: [9, 7, 9]}
PREPARED = {1: [7, 9, 7], 2: [9, 7], 3: [9, 9], 6: [9, 7, 9]}


def histories(data: Interactions) -> dict[object, list[object]]:
    return {user: data.history(user) for user in data.users.tolist()}


@pytest.mark.parametrize("header", [["sessionId;userId;itemId;timeframe;eventdate"], []])
def test_diginetica_orders_views_by_the_time_within_the_session(
    tmp_path: Path, header: list[str]
) -> None:
    lines = [
        f"{session};NA;{item};{1500 * place};2016-05-09"
        for session, items in EVENTS.items()
        for place, item in reversed(list(enumerate(items)))
    ]
    folder = tmp_path / "d[1]"  # a name, not a pattern
    write(folder / "train-item-views.csv", header + lines)
    data = datasets.load("diginetica", path=folder)
    assert histories(data) == PREPARED
    assert data.items.tolist() == [7, 9]
    assert data.times is not None
    assert (data.times.min(), data.times.max()) == (1462752000.0, 1462752003.0)


def test_diginetica_session_past_midnight_keeps_its_order(tmp_path: Path) -> None:
    lines = [f"1;NA;8;{300_000 + place};2016-05-10" for place in range(5)]
    lines += [f"1;NA;7;{60_000 * place};2016-05-09" for place in range(5)]
    lines += ["2;NA;7;1;2016-05-09", "2;NA;8;0;2016-05-09"]
    write(tmp_path / "train-item-views.csv", lines)
    sessions = histories(datasets.load("diginetica", path=tmp_path))
    assert sessions == {1: [7] * 5 + [8] * 5, 2: [8, 7]}


def test_yoochoose_keeps_repeats_and_drops_rare_items(tmp_path: Path) -> None:
    lines = [
        f"{session},2014-04-0{session}T10:51:0{place}.277Z,{item},0"
        for session, items in EVENTS.items()
        for place, item in enumerate(items)
    ]
    write(tmp_path / "yoochoose-clicks.dat", lines)
    data = datasets.load("yoochoose", path=tmp_path)
    assert histories(data) == PREPARED
    assert data.matrix.nnz == 2 + 2 + 1 + 2
    assert (data.matrix.data > 0).all()
    assert data.times is not None
    assert data.times.min() == 1396349461.277  # 2014-04-01T10:51:01.277Z, item 9 of session 1
    assert any("events dropped" in note for note in data.notes)


def test_retailrocket_cuts_views_into_sessions_after_half_an_hour(tmp_path: Path) -> None:
    minute = 60_000
    lines = ["timestamp,visitorid,event,itemid,transactionid"]
    begin = 1_433_221_332_117
    # Visitor 5: two views, exactly 30 minutes, a view, 30 minutes and 1 ms, two views.
    for after, item in ((0, 7), (1, 8), (31, 7)):
        lines.append(f"{begin + after * minute},5,view,{item},")
    for after, item in ((61, 8), (62, 7)):
        lines.append(f"{begin + after * minute + 1},5,view,{item},")
    for visitor in (6, 7, 8):
        lines.append(f"{begin},{visitor},view,7,")
        lines.append(f"{begin + 1},{visitor},addtocart,7,")
        lines.append(f"{begin + 2},{visitor},transaction,7,3")
        lines.append(f"{begin + minute},{visitor},view,8,")
    write(tmp_path / "events.csv", lines)
    sessions = sorted(histories(datasets.load("retailrocket", path=tmp_path)).values())
    assert sessions == [[7, 8], [7, 8], [7, 8], [7, 8, 7], [8, 7]]


@pytest.mark.parametrize(
    ("name", "file", "line"),
    [
        ("diginetica", "train-item-views.csv", "{0};NA;{0};0;2016-05-09"),
        ("retailrocket", "events.csv", "1433221332117,{0},view,{0},"),
        ("yoochoose", "yoochoose-clicks.dat", "{0},2014-04-07T10:51:09.277Z,{0},0"),
    ],
)
def test_sessions_of_one_event_leave_nothing(
    tmp_path: Path, name: str, file: str, line: str
) -> None:
    write(tmp_path / file, [line.format(1), line.format(2)])
    with pytest.raises(DataError, match="no session has two events"):
        datasets.load(name, path=tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "line", "message"),
    [
        ("diginetica", "train-item-views.csv", "1;NA;x;0;2016-05-09", "is not the expected file"),
        ("diginetica", "train-item-views.csv", "1;NA;7;0", "line 2: date is empty"),
        ("diginetica", "train-item-views.csv", "1;NA;7;0;9 May", "does not look like %Y-%m-%d"),
        ("retailrocket", "events.csv", "1433221332117,5", "line 2: event is empty"),
        ("retailrocket", "events.csv", "noon,5,view,7,", "is not the expected file"),
        ("netflix", "combined_data_1.txt", "7,five,2005-09-06", "is not a file of Netflix"),
    ],
)
def test_malformed_line_is_an_error_that_names_the_file(
    tmp_path: Path, name: str, file: str, line: str, message: str
) -> None:
    views = {"diginetica": "1;NA;7;0;2016-05-09", "retailrocket": "1433221332117,5,view,7,"}
    write(tmp_path / file, [views.get(name, "1:"), line])
    with pytest.raises(DataError, match=message) as caught:
        datasets.load(name, path=tmp_path)
    assert file in str(caught.value)
