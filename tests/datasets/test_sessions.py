"""Session data sets on small files of the original formats, written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import datasets
from equipoise.errors import DataError
from equipoise.interactions import Interactions

# Session -> items in order. Items 7 and 8 have 5 events each. Without session 5, a single event,
# item 8 is rare; without item 8, session 4 is a single event. Item 7 stays: there is one pass.
EVENTS = {1: [7, 9, 7], 2: [9, 7, 8], 3: [8, 9, 9, 8], 4: [7, 8], 5: [8], 6: [9, 7, 9]}
KEPT = {1: [7, 9, 7], 2: [9, 7], 3: [9, 9], 6: [9, 7, 9]}


def histories(data: Interactions) -> dict[object, list[object]]:
    return {user: data.history(user) for user in data.users.tolist()}


def save(file: Path, lines: list[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize("header", [["sessionId;userId;itemId;timeframe;eventdate"], []])
def test_diginetica_orders_views_by_the_time_within_the_session(
    tmp_path: Path, header: list[str]
) -> None:
    lines = [
        f"{session};NA;{item};{1500 * place};2016-05-09"
        for session, items in EVENTS.items()
        for place, item in reversed(list(enumerate(items)))
    ]
    save(tmp_path / "train-item-views.csv", header + lines)
    data = datasets.load("diginetica", path=tmp_path)
    assert histories(data) == KEPT
    assert data.items.tolist() == [7, 9]
    assert data.times is not None
    assert data.times.min() == 1462752000.0
    assert data.times.max() == 1462752003.0


def test_diginetica_in_a_folder_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    lines = [
        f"{session};NA;{item};{1500 * place};2016-05-09"
        for session, items in EVENTS.items()
        for place, item in enumerate(items)
    ]
    folder = tmp_path / "d[1]"
    folder.mkdir()
    save(folder / "train-item-views.csv", lines)
    assert histories(datasets.load("diginetica", path=folder)) == KEPT


def test_diginetica_session_past_midnight_keeps_its_order(tmp_path: Path) -> None:
    lines = [f"1;NA;8;{300_000 + place};2016-05-10" for place in range(5)]
    lines += [f"1;NA;7;{60_000 * place};2016-05-09" for place in range(5)]
    lines += ["2;NA;7;1;2016-05-09", "2;NA;8;0;2016-05-09"]
    save(tmp_path / "train-item-views.csv", lines)
    found = histories(datasets.load("diginetica", path=tmp_path))
    assert found == {1: [7] * 5 + [8] * 5, 2: [8, 7]}


def test_yoochoose_keeps_repeats_and_drops_rare_items(tmp_path: Path) -> None:
    lines = [
        f"{session},2014-04-0{session}T10:51:0{place}.277Z,{item},0"
        for session, items in EVENTS.items()
        for place, item in enumerate(items)
    ]
    save(tmp_path / "yoochoose-clicks.dat", lines)
    data = datasets.load("yoochoose", path=tmp_path)
    assert histories(data) == KEPT
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
    save(tmp_path / "events.csv", lines)
    found = sorted(histories(datasets.load("retailrocket", path=tmp_path)).values())
    assert found == [[7, 8], [7, 8], [7, 8], [7, 8, 7], [8, 7]]


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
    save(tmp_path / file, [line.format(1), line.format(2)])
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
    ],
)
def test_malformed_line_is_an_error_that_names_the_file(
    tmp_path: Path, name: str, file: str, line: str, message: str
) -> None:
    good = {"diginetica": "1;NA;7;0;2016-05-09", "retailrocket": "1433221332117,5,view,7,"}
    save(tmp_path / file, [good[name], line])
    with pytest.raises(DataError, match=message) as caught:
        datasets.load(name, path=tmp_path)
    assert file in str(caught.value)
