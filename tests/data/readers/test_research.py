"""Research formats: each from a small file laid out as the published ones."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.data.readers import read_multvae, read_strong, read_weak
from equipoise.errors import DataError, SettingError


@pytest.fixture
def movielens_100k(tmp_path):
    (tmp_path / "u.data").write_text("196\t242\t3\t881250949\n186\t302\t5\t891717742\n")
    flags = "|".join(["0", "1"] + ["0"] * 16 + ["1"])
    text = f"242|Kolya (1996)|24-Jan-1997||http://x|{flags}\n"
    text += f"302|Misérables, Les (1995)|01-Jan-1995||http://y|{'|'.join(['0'] * 19)}\n"
    (tmp_path / "u.item").write_bytes(text.encode("latin-1"))
    return tmp_path


def test_u_data_comes_with_titles_and_genres(movielens_100k):
    for source in (movielens_100k / "u.data", movielens_100k):
        data = eq.read(source)
        assert data.users.tolist() == [186, 196]
        assert data.label(302) == "Misérables, Les (1995)"
        assert data.catalogue["genres"].to_list() == [["Action", "Western"], None]
        assert data.times.tolist() == [891717742, 881250949]


def test_u_data_follows_min_rating_and_skips(movielens_100k):
    data = eq.read(movielens_100k / "u.data", min_rating=4, on_bad="skip")
    assert data.users.tolist() == [186]


def test_dat_files_come_with_titles(tmp_path):
    (tmp_path / "ratings.dat").write_text("1::1193::5::978300760\n2::661::3::978302109\n")
    titles = "661::James and the Giant Peach (1996)::Animation\n1193::Café::Drama\n"
    (tmp_path / "movies.dat").write_bytes(titles.encode("latin-1"))
    data = eq.read(tmp_path / "ratings.dat")
    assert data.label(1193) == "Café"
    assert data.catalogue.columns == ["title", "genres"]


def test_ratings_csv_finds_movies_csv_beside_it(tmp_path):
    header = "userId,movieId,rating,timestamp\n"
    (tmp_path / "ratings.csv").write_text(header + "1,31,2.5,1260759144\n2,10,4.0,835355493\n")
    titles = 'movieId,title,genres\n31,Dangerous Minds (1995),Drama\n10,"American, The",Comedy\n'
    (tmp_path / "movies.csv").write_text(titles)
    (tmp_path / "tags.csv").write_text("userId,movieId,tag,timestamp\n")
    for source in (tmp_path / "ratings.csv", tmp_path):
        data = eq.read(source)
        assert data.label(10) == "American, The"
        assert data.matrix.data.tolist() == [1, 1]


def test_a_ratings_file_with_other_columns_is_a_plain_table(tmp_path):
    (tmp_path / "ratings.csv").write_text("user,item\n1,31\n2,10\n")
    (tmp_path / "movies.csv").write_text("a,b\n1,2\n")
    assert eq.read(tmp_path / "ratings.csv").catalogue is None


def test_recbole_files_drop_their_types_and_have_titles(tmp_path):
    folder = tmp_path / "ml"
    folder.mkdir()
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (folder / "ml.inter").write_text(head + "196\t242\t3\t881250949\n186\t302\t5\t891717742\n")
    head = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    (folder / "ml.item").write_text(head + '242\tThe "K"\t1997\tDrama\n302\t"Odd\t1997\tWar\n')
    for source in (folder / "ml.inter", folder):
        data = eq.read(source, min_rating=3)
        assert data.users.tolist() == [186, 196]
        assert data.catalogue.columns == ["movie_title", "release_year", "class"]
        assert data.label(302) == '"Odd'


@pytest.fixture
def lightgcn(tmp_path):
    (tmp_path / "train.txt").write_text("0 3 5 1\n1 3\n2 1 4\n")
    (tmp_path / "test.txt").write_text("0 4\n1 \n2 6 3\n")
    return tmp_path


def test_adjacency_lists_are_recognised(lightgcn):
    data = eq.read(lightgcn / "train.txt")
    assert data.users.tolist() == [0, 1, 2]
    assert data.items.tolist() == [1, 3, 4, 5]
    assert data.history(0) == [1, 3, 5]


def test_users_without_items_in_an_adjacency_list_are_refused_or_skipped(lightgcn):
    with pytest.raises(DataError, match=r"test\.txt, line 2: user 1 has no items"):
        eq.read(lightgcn / "test.txt", format="lightgcn")
    data = eq.read(lightgcn / "test.txt", format="lightgcn", on_bad="skip")
    assert data.users.tolist() == [0, 2]
    assert any("1 where the line names a user without items" in note for note in data.notes)


def test_an_adjacency_list_with_words_is_refused_by_line(tmp_path):
    (tmp_path / "train.txt").write_text("0 3 5\n1 three\n")
    with pytest.raises(DataError, match="line 2: not a list of whole numbers"):
        eq.read(tmp_path / "train.txt", format="lightgcn")


def test_a_folder_of_adjacency_lists_is_a_weak_split(lightgcn):
    parts = read_weak(lightgcn)
    assert list(parts) == ["train", "test"]
    assert parts["test"].items.tolist() == [1, 3, 4, 5, 6]
    assert parts["test"].history(1) == []
    assert parts["train"].user_index is parts["test"].user_index
    train = eq.read(lightgcn)
    assert train.n_interactions == 6
    assert "readers.read_weak gives test too" in train.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "whole milk,rye bread,tea\ntea\n\nrye bread,tea\n",
        "whole milk;rye bread;tea\r\ntea\r\n\r\nrye bread;tea\r\n",
        "whole milk\trye bread\ttea\ntea\n\nrye bread\ttea",
        "whole milk, rye bread ,tea,\ntea,,,\n,,,\nrye bread,tea,,\n",
        '"whole milk","rye bread",tea\ntea\n\n"rye bread","tea"\n',
    ],
)
def test_each_line_of_a_file_of_baskets_is_a_user(tmp_path, text):
    (tmp_path / "baskets.csv").write_text(text, newline="")
    data = eq.read(tmp_path / "baskets.csv", format="baskets")
    assert data.users.tolist() == [1, 2, 4]
    assert data.history(1) == ["rye bread", "tea", "whole milk"]
    assert data.history(2) == ["tea"]
    assert data.history(4) == ["rye bread", "tea"]
    assert "ignored 1 of 4 lines, which have no item" in data.notes


def test_baskets_between_blanks_have_ids_as_in_any_file(tmp_path):
    path = tmp_path / "retail.dat.gz"
    path.write_bytes(gzip.compress(b"38 39  47 \n39 48\n38 39 48 170\n"))
    data = eq.read(path, format="baskets")
    assert data.items.tolist() == [38, 39, 47, 48, 170]
    assert data.history(2) == [39, 48]
    assert eq.read(path, format="baskets", ids="text").items.tolist()[0] == "170"
    path.write_bytes(gzip.compress(b"38 039 47\n39 48\n"))
    assert "039" in eq.read(path, format="baskets").items


def test_baskets_follow_the_options_of_text_files(tmp_path):
    path = tmp_path / "baskets.txt"
    path.write_bytes("café, noir^thé\nthé^'a^b'\n".encode("latin-1"))
    settings = {"separator": "^", "encoding": "latin-1", "quote": "'"}
    data = eq.read(path, format="baskets", catalogue={"thé": "Tee"}, **settings)
    assert data.items.tolist() == ["a^b", "café, noir", "thé"]
    assert data.label("thé") == "Tee"
    with pytest.raises(DataError, match=r"baskets\.txt, line 1: not UTF-8; .*encoding='latin-1'"):
        eq.read(path, format="baskets")


@pytest.mark.parametrize(
    "settings",
    [
        {"user": 0},
        {"item": "b"},
        {"time": "t"},
        {"min_rating": 3},
        {"gap": "1h"},
        {"header": True},
    ],
)
def test_options_that_baskets_cannot_follow_are_refused(tmp_path, settings):
    (tmp_path / "baskets.csv").write_text("a,b\nc\n")
    with pytest.raises(SettingError, match=f"{next(iter(settings))}= does not apply to baskets"):
        eq.read(tmp_path / "baskets.csv", format="baskets", **settings)


def test_baskets_without_items_are_refused(tmp_path):
    (tmp_path / "baskets.csv").write_text(",,\n,\n")
    with pytest.raises(DataError, match=r"baskets\.csv has no basket with items"):
        eq.read(tmp_path / "baskets.csv", format="baskets")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("words.csv", "milk,bread,tea\ntea\nbread,tea\nmilk,tea,salt,ham\n"),
        ("one.csv", "milk\ntea,bread\nbread,tea,milk\n"),
        ("pair.csv", "milk,bread\ntea\nbread,tea,milk\n7,2,3,4\n"),
        ("retail.dat", "0 1 2 3 4 5\n30 31 32\n38 39\n38\n"),
        ("three.dat", "30 31 32\n38 39\n38\n38 39 48 110\n"),
        ("retail.txt", "30 31 32\n38 39\n38 41\n38 39 48 110\n"),
        ("tabs.tsv", "milk\tbread\ttea\ntea\tsalt\nbread\ttea\tmilk\tham\n"),
    ],
)
def test_the_error_on_a_file_of_baskets_says_how_to_read_it(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(
        DataError, match="if each line is a basket of items, pass format='baskets'"
    ):
        eq.read(tmp_path / name)
    assert eq.read(tmp_path / name, format="baskets").n_users == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "user,item\n1,2,3\n4\n5,6,7,8\n",
        "a,b,c\n1,2,3\n4,5,6\n",
        "1,2,3\n4,5,6\n7,8\n",
        "",
    ],
)
def test_errors_on_other_files_do_not_speak_of_baskets(tmp_path, text):
    (tmp_path / "events.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        eq.read(tmp_path / "events.csv")
    assert "basket" not in str(caught.value)


def write_npz(folder, **parts):
    for name, (users, items) in parts.items():
        np.savez_compressed(folder / f"{name}.npz", users=users, items=items)


def test_npz_pairs_are_read(tmp_path):
    write_npz(tmp_path, pairs=([5, 5, 2], [1, 3, 1]))
    data = eq.read(tmp_path / "pairs.npz")
    assert data.users.tolist() == [2, 5]
    assert data.matrix.toarray().tolist() == [[1, 0], [1, 1]]


def test_npz_files_without_pairs_are_refused(tmp_path):
    np.savez(tmp_path / "odd.npz", a=[1])
    with pytest.raises(DataError, match="holds a; it needs the arrays users and items"):
        eq.read(tmp_path / "odd.npz")
    write_npz(tmp_path, uneven=([1, 2], [1]))
    with pytest.raises(DataError, match="need one shape"):
        eq.read(tmp_path / "uneven.npz")


def test_scipy_matrices_on_disk_are_read(tmp_path):
    sp.save_npz(tmp_path / "matrix.npz", sp.csr_array(np.array([[0, 2], [1, 0]])))
    assert eq.read(tmp_path / "matrix.npz").matrix.toarray().tolist() == [[0, 2], [1, 0]]


def test_session_npz_keeps_order_repeats_and_one_based_ids(tmp_path):
    np.savez(tmp_path / "s.npz", items=np.array([3, 1, 3, 2], np.int32), offsets=[0, 3, 4])
    data = eq.read(tmp_path / "s.npz")
    assert data.items.tolist() == [1, 2, 3]
    assert data.users.tolist() == [0, 1]
    assert data.history(0) == [3, 1, 3]


def test_session_npz_with_wrong_offsets_or_empty_sessions_is_refused(tmp_path):
    np.savez(tmp_path / "s.npz", items=[3, 1], offsets=[0, 3])
    with pytest.raises(DataError, match="offsets must rise from 0 to the number of items, 2"):
        eq.read(tmp_path / "s.npz")
    np.savez(tmp_path / "u.npz", items=[3, 1, 2], offsets=np.array([0, 2, 1, 3], np.uint64))
    with pytest.raises(DataError, match="offsets must rise from 0 to the number of items, 3"):
        eq.read(tmp_path / "u.npz")
    np.savez(tmp_path / "e.npz", items=[3, 1], offsets=[0, 1, 1, 2])
    with pytest.raises(DataError, match="session 1: the session has no items"):
        eq.read(tmp_path / "e.npz")
    assert eq.read(tmp_path / "e.npz", on_bad="skip").users.tolist() == [0, 2]


def test_strong_folders_share_items_and_align_history_with_targets(tmp_path):
    write_npz(
        tmp_path,
        train=([0, 0, 1], [0, 1, 1]),
        valid_in=([7, 8], [0, 5]),
        valid_target=([8], [1]),
        test_in=([9], [1]),
        test_target=([9], [6]),
    )
    parts = read_strong(tmp_path)
    assert list(parts) == ["train", "valid_in", "valid_target", "test_in", "test_target"]
    assert all(part.items.tolist() == [0, 1, 5, 6] for part in parts.values())
    assert parts["valid_target"].users.tolist() == [7, 8]
    assert parts["valid_target"].history(8) == [1]
    train = eq.read(tmp_path)
    assert train.matrix.toarray().tolist() == [[1, 1, 0, 0], [0, 1, 0, 0]]
    with pytest.raises(SettingError, match="min_rating= does not apply to a strong folder"):
        eq.read(tmp_path, min_rating=3)


@pytest.mark.parametrize("wrong", [np.array([1.5, 2.0]), np.array([True, False])])
def test_fractional_ids_of_an_npz_part_are_refused(tmp_path, wrong):
    np.savez(tmp_path / "train.npz", users=np.array([1, 2]), items=np.array([1, 2]))
    np.savez(tmp_path / "test.npz", users=wrong, items=np.array([1, 2]))
    with pytest.raises(DataError, match=r"column 'users'"):
        read_weak(tmp_path)


def test_npz_parts_may_have_text_ids_but_only_in_all_parts(tmp_path):
    np.savez(tmp_path / "train.npz", users=np.array([1, 2]), items=np.array(["tea", "milk"]))
    np.savez(tmp_path / "test.npz", users=np.array([1, 2]), items=np.array(["salt", "tea"]))
    parts = read_weak(tmp_path)
    assert parts["train"].items.tolist() == ["milk", "salt", "tea"]
    assert parts["test"].history(1) == ["salt"]
    np.savez(tmp_path / "test.npz", users=np.array([1, 2]), items=np.array([1, 2]))
    with pytest.raises(DataError, match="item ids are String in train and Int64 in test"):
        read_weak(tmp_path)


def test_a_strong_folder_that_lacks_a_part_is_refused(tmp_path):
    write_npz(tmp_path, train=([0], [0]))
    with pytest.raises(DataError, match=r"there is no file .*valid_in\.npz"):
        read_strong(tmp_path)


@pytest.fixture
def pro_sg(tmp_path):
    (tmp_path / "unique_sid.txt").write_text("318\n50\n7\n")
    for name, rows in {
        "train": "0,0\n0,1\n1,2\n",
        "validation_tr": "2,0\n",
        "validation_te": "2,1\n",
        "test_tr": "3,1\n3,0\n",
        "test_te": "3,2\n",
    }.items():
        (tmp_path / f"{name}.csv").write_text("uid,sid\n" + rows)
    return tmp_path


def test_multvae_folders_carry_the_raw_item_ids(pro_sg):
    parts = read_multvae(pro_sg)
    assert all(part.items.tolist() == [318, 50, 7] for part in parts.values())
    assert parts["test_in"].history(3) == [318, 50]
    assert parts["valid_target"].history(2) == [50]
    assert eq.read(pro_sg).history(0) == [318, 50]


def test_multvae_items_outside_the_list_are_refused_by_line(pro_sg):
    (pro_sg / "test_te.csv").write_text("uid,sid\n3,2\n3,3\n")
    with pytest.raises(
        DataError, match=r"test_te\.csv, line 3: column 'sid' \(3\) is not a line of"
    ):
        read_multvae(pro_sg)


@pytest.mark.data
def test_the_development_data_have_their_published_sizes(shared_data):
    weak = read_weak(shared_data / "gowalla" / "weak")
    assert weak["train"].matrix.shape == weak["test"].matrix.shape == (29858, 40981)
    assert (weak["train"].n_interactions, weak["test"].n_interactions) == (810128, 217242)
    strong = read_strong(shared_data / "gowalla" / "strong")
    assert strong["train"].n_users == 23858
    assert strong["test_in"].n_users == strong["test_target"].n_users == 3000
    sessions = eq.read(shared_data / "diginetica" / "test_sessions.npz")
    stats = json.loads((shared_data / "diginetica" / "stats.json").read_text())
    assert stats
    assert sessions.n_users == 15963
    assert len(sessions._sequences.items) == 76821
    movies = eq.read(shared_data / "ml-latest-small")
    assert movies.matrix.shape == (671, 9066)
    assert movies.n_interactions == 100004
    assert movies.label(1) == "Toy Story (1995)"
