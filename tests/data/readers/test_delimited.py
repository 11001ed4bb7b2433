"""Delimited text, JSON lines and Parquet: what is in the file is what is in the matrix."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data.readers.delimited import sniff, whole_numbers
from equipoise.errors import DataError, SettingError

ROWS = [
    ("ann", "tea", 5.0, 1_700_000_000),
    ("bob", "milk", 4.0, 1_700_000_100),
    ("cleo", "tea", 3.0, 1_700_000_200),
    ("ann", "salt", 2.0, 1_700_000_300),
]
NAMES = ("user_id", "item_id", "rating", "ts")
FRAME = pl.DataFrame(ROWS, schema=NAMES, orient="row")


def text(separator: str, header: bool = True) -> bytes:
    lines = [separator.join(NAMES)] if header else []
    lines += [separator.join(str(value) for value in row) for row in ROWS]
    return ("\n".join(lines) + "\n").encode()


def check(data: eq.Interactions) -> None:
    assert data.users.tolist() == ["ann", "bob", "cleo"]
    assert data.items.tolist() == ["milk", "salt", "tea"]
    assert data.matrix.toarray().tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 1]]
    assert data.times.tolist() == [1_700_000_300, 1_700_000_000, 1_700_000_100, 1_700_000_200]


def written(folder: Path, kind: str) -> Path:
    path = folder / f"events.{kind}"
    plain = kind.removesuffix(".gz")
    if plain == "parquet":
        FRAME.write_parquet(folder / "plain")
        data = (folder / "plain").read_bytes()
    elif plain == "jsonl":
        rows = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
        data = "\n".join(json.dumps(row) for row in rows).encode()
    else:
        data = text({"csv": ",", "tsv": "\t", "txt": ";", "psv": "|", "dat": "::"}[plain])
    path.write_bytes(gzip.compress(data) if kind.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "txt", "psv", "dat", "jsonl", "parquet"])
def test_every_kind_of_file_gives_the_same_matrix(tmp_path, kind, packed):
    check(eq.read(written(tmp_path, kind + packed)))


def test_the_call_of_the_design_works(tmp_path):
    path = str(written(tmp_path, "csv"))
    data = eq.read(path, user="user_id", item="item_id", time="ts", min_rating=4)
    assert data.users.tolist() == ["ann", "bob"]
    assert "left out 2 of 4 rows that have a rating below 4" in data.notes


def test_files_without_a_header_are_read_by_position(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(text(",", header=False))
    data = eq.read(path)
    check(data)
    assert "no header: columns taken in order as user, item, rating, time" in data.notes
    swapped = eq.read(path, user=1, item=0)
    assert swapped.users.tolist() == ["milk", "salt", "tea"]


def test_weights_become_the_matrix_and_add_up(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("user,item,plays\na,x,1.5\na,x,2\nb,x,0\nb,y,1\n")
    data = eq.read(path, weight="plays")
    assert data.matrix.toarray().tolist() == [[3.5, 0], [0, 1]]
    assert "merged 1 repeated pairs, their weights added up" in data.notes
    assert "left out 1 rows with weight 0" in data.notes


def test_repeated_pairs_count_once_and_keep_every_time():
    rows = {"user": [1, 1, 2, 1], "item": [5, 5, 6, 5], "time": [30, 50, 10, 40]}
    data = eq.read(rows)
    assert data.matrix.toarray().tolist() == [[1, 0], [0, 1]]
    assert data.times.tolist() == [50, 10]
    assert data.events.times.tolist() == [30, 40, 50, 10]
    assert "merged 2 repeated pairs" in data.notes


@pytest.mark.parametrize(
    ("cells", "ids"),
    [
        (["7", "12"], [7, 12]),
        (["7", "-12", "0"], [-12, 0, 7]),
        (["7", "007"], ["007", "7"]),
        (["7", "+7"], ["+7", "7"]),
        (["-07", "7"], ["-07", "7"]),
        (['"08"', "9"], ["08", "9"]),
        (["7", "a"], ["7", "a"]),
        ([" 7", "7"], [" 7", "7"]),
        (["1e5", "7"], ["1e5", "7"]),
        (["1.0", "2.0"], [1, 2]),
        (["x ", "x"], ["x", "x "]),
        (["NA", "null"], ["NA", "null"]),
    ],
)
def test_ids_in_text_stay_exactly_what_they_are(tmp_path, cells, ids):
    path = tmp_path / "events.csv"
    path.write_text("user,item\n" + "".join(f"{cell},{n}\n" for n, cell in enumerate(cells)))
    assert eq.read(path).users.tolist() == ids


MANY = "user,item\n" + "".join(f"{n},{n % 7}\n" for n in range(1, 2000))


@pytest.mark.parametrize("last", ["020000", "bob", " 7"])
def test_one_text_in_the_last_of_many_rows_keeps_the_column_text(tmp_path, last):
    path = tmp_path / "events.csv"
    path.write_text(f"{MANY}{last},3\n")
    data = eq.read(path)
    assert {last, "7", "1999"} <= set(data.users)
    assert data.items.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "settings", "users"),
    [
        ("user,item,zip\n1,10,00501\n2,20,10001\n", {}, [1, 2]),
        ('user,item\n"a,b","say ""hi"""\n"c\nd",tea\n', {}, ["a,b", "c\nd"]),
        ('item,user\n"a,b","say ""hi"""\n"c\nd",tea\n', {}, ['say "hi"', "tea"]),
        ("user,item\r\n1,2\r\n\r\n2,3\r\n\r\n", {}, [1, 2]),
        ("ann,tea\nbob,milk\n", {"header": False}, ["ann", "bob"]),
        ("ann;tea;3,5\nbob;milk;4,5\n", {}, ["ann", "bob"]),
        ("1,10,,1700000000\n2,20,4,1700000001\n", {}, [1, 2]),  # an empty cell tells nothing
        ("ann,tea,2024-01-31\nbob,milk,2024-02-01\n", {"user": 0, "item": 1}, ["ann", "bob"]),
        ('{"user":1,"item":2}\n{"user":2,"item":3}\n', {"format": "jsonl"}, [1, 2]),
    ],
)
def test_text_is_cut_into_records_and_fields(tmp_path, content, settings, users):
    path = tmp_path / "events.csv"
    path.write_bytes(content.encode())
    assert eq.read(path, **settings).users.tolist() == users


def test_notes_report_what_was_left_out_or_matched(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("user,item\n1,2\n\n2,3\n\n")
    notes = eq.read(str(path.with_name("event[s].csv"))).notes
    assert {"ignored 2 blank lines", "read 1 part"} <= set(notes)
    path.write_text("ann,tea\nbob,milk\n")
    with pytest.raises(DataError, match="header=False if the first line is data"):
        eq.read(path)


@pytest.mark.parametrize(
    ("name", "sample", "separator"),
    [
        ("a.txt", b"u\ti\n1\t2\n", "\t"),
        ("a.csv", b"u,title\n1,a|b;c\n2,d|e;f\n", ","),
        ("a.txt", b"u;i;v\n1;2;3,5\n2;3;4,5\n", ";"),
        ("a.dat", b"1::2::3\n2::3::4\n", "::"),
        ("a.txt", b"1 2\n2 3\n", " "),
        ("a.txt", b"alone\nhere\n", ""),
        # A name in .csv does not settle commas over semicolons.
        ("a.csv", b"1;2;3,5\n2;3;4,5\n", ";"),
        ("a.csv", b"user;item;rating\n1;2;3,5\n2;3;4\n", ";"),
        ("a.csv", b"user;item;title\n1;2;a, b\n2;3;c, d\n", ";"),
        ("a.csv", b"user,items\n1,2;3\n2,4;5\n", ","),
        ("a.csv", b"1,2;3\n2,4;5\n", ","),
        ("a.csv", b"1,a;b;c\n2,d;e;f\n", ","),
        ("a.csv", b"user,item,genres\n1,2,a;b;c\n2,3,d;e;f\n", ","),
    ],
)
def test_the_separator_is_found(name, sample, separator):
    assert sniff(name, sample) == separator


def test_a_folder_or_a_pattern_of_parts_is_one_table(tmp_path):
    folder = tmp_path / "table"
    (folder / "day=1").mkdir(parents=True)
    FRAME[:2].write_parquet(folder / "day=1" / "part-0.parquet")
    FRAME[2:].write_parquet(folder / "part-1.parquet")
    (folder / "_SUCCESS").touch()
    check(eq.read(folder))
    check(eq.read(str(folder / "**" / "*.parquet")))
    assert "read 2 parts" in eq.read(folder).notes


def test_json_lines_may_lack_fields_and_hold_nan(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(
        '{"user":1,"item":"a","r":1}\n\n{"user":2,"item":"b","r":NaN}\n{"user":2,"item":"a"}\n'
    )
    assert eq.read(path).users.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"line 4: column 'r' has no weight"):
        eq.read(path, weight="r")
    notes = eq.read(path, weight="r", on_bad="skip", user="user").notes
    reasons = "1 where 'r' has no weight; 1 where 'r' is not a finite weight"
    assert f"skipped 2 bad rows: {reasons}" in notes


def test_a_saved_directory_is_read_again(tmp_path, toy):
    toy.save(tmp_path / "saved")
    assert eq.read(tmp_path / "saved").fingerprint == toy.fingerprint
    with pytest.raises(SettingError, match="min_rating= does not apply to saved interactions"):
        eq.read(tmp_path / "saved", min_rating=3)
    with pytest.raises(SettingError, match="users= does not apply to saved interactions"):
        eq.read(tmp_path / "saved", users=range(toy.n_users))


def test_carriage_returns_within_a_line_leave_it_ragged(tmp_path):
    path = tmp_path / "events.csv"
    path.write_bytes(b"user,item\nann,tea\nbob,tea\rcy,milk\n")
    with pytest.raises(DataError, match="line 3: the record has 3 fields where 2 are expected"):
        eq.read(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("events.csv", "user,item,time\nann,tea,1\nbob,tea,2\ncy,milk,3\n"),
        ("events.csv", "1,10,5\n2,10,6\n2,20,7"),
        ("events.tsv", 'user\titem\nann\t"green\ntea"\nbob\tmilk\n'),
        ("events.jsonl", '{"user": "ann", "item": 1}\n{"user": "bob", "item": 2}\n'),
    ],
)
def test_lines_may_end_in_carriage_returns(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    expected = eq.read(tmp_path / name)
    bare = text.replace("\n", "\r").encode()
    (tmp_path / name).write_bytes(bare)
    assert eq.read(tmp_path / name).fingerprint == expected.fingerprint
    (tmp_path / name).write_bytes(bare.rstrip() + b"\rwrong\r")
    with pytest.raises(DataError, match=f"line {text.strip().count(chr(10)) + 2}:"):
        eq.read(tmp_path / name)


@pytest.mark.parametrize("text", ["user,item\nann,tea\nbob,milk\n", '1,"2"\n3,4\n', "1,2\n3,4\n"])
def test_doubled_line_ends_are_not_part_of_ids(tmp_path, text):
    path = tmp_path / "events.csv"
    path.write_text(text)
    expected = eq.read(path)
    path.write_bytes(text.replace("\n", "\r\r\n").encode())
    assert eq.read(path).fingerprint == expected.fingerprint


def test_the_order_of_rows_does_not_matter(tmp_path):
    rows = [f"u{n % 50},{n * n % 97},{n}" for n in range(500)]
    path = tmp_path / "events.csv"
    path.write_text("user,item,time\n" + "\n".join(rows))
    first = eq.read(path)
    random.Random(3).shuffle(rows)
    path.write_text("user,item,time\n" + "\n".join(rows))
    assert eq.read(path).fingerprint == first.fingerprint


ids = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(
    lambda value: value.strip() and not value.startswith("\ufeff")
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=8))
def test_any_text_survives_a_csv_file(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("csv") / "events.csv"
    frame = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    frame.write_csv(path, quote_style="always")
    data = eq.read(path, on_bad="skip")
    users = whole_numbers(frame["user"])
    expected = users if users.dtype == pl.Int64 else frame["user"]
    assert set(data.users.tolist()) == set(expected.to_list())
    assert data.n_interactions == len(set(pairs))


BRACKETS = ["r[1]", "r?", "r*", "[", "r[!x]"]


@pytest.mark.parametrize("name", BRACKETS)
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "parquet"])
def test_a_path_that_exists_is_never_a_pattern(tmp_path, name, kind):
    decoy = tmp_path / f"r1.{kind}"
    FRAME[:2].write_parquet(decoy)
    path = written(tmp_path, kind).rename(tmp_path / f"{name}.{kind}")
    check(eq.read(path))
    check(eq.read(str(path)))


@pytest.mark.parametrize("name", BRACKETS)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_folder_that_exists_is_never_a_pattern(tmp_path, name, kind):
    for folder in ("r1", name):
        (tmp_path / folder).mkdir()
    written(tmp_path / name, kind)
    FRAME[:1].write_parquet(tmp_path / "r1" / f"events.{kind}")
    check(eq.read(tmp_path / name))
    check(eq.read(str(tmp_path / name / "ev*")))


def test_a_missing_file_with_brackets_has_a_neighbour_too(tmp_path):
    (tmp_path / "r[1].csv.bak").write_text("x")
    with pytest.raises(DataError, match=r"did you mean 'r\[1\]\.csv\.bak'"):
        eq.read(tmp_path / "r[1].csv", format="npz")


@pytest.mark.parametrize("cells", [["true", "false", "true"], ["1", "0", "TRUE"]])
def test_true_and_false_are_weights_whatever_the_other_columns_hold(tmp_path, cells):
    path = tmp_path / "events.csv"
    rows = [f"{n},{n % 3},{cells[n % 3]}" for n in range(3)]
    path.write_text("user,item,liked\n" + "\n".join(rows))
    short = eq.read(path, weight="liked")
    assert short.users.tolist() == [0, 2]
    # Words after many numbers make the parser start over with text.
    late = [f"{n},{n % 3},{cells[n % 3]}" for n in range(3, 1500)]
    path.write_text("user,item,liked\n" + "\n".join([*rows, *late, "ann,1,true"]))
    assert eq.read(path, weight="liked").n_users == 1001


EUROPEAN = ["1;10;3,5", "2;20;4", "3;10;0,25", "1;20;12,75"]


@pytest.mark.parametrize("name", ["events.csv", "events.txt"])
@pytest.mark.parametrize("header", [True, False])
def test_decimal_commas_are_understood_between_semicolons(tmp_path, name, header):
    path = tmp_path / name
    path.write_text("\n".join(["user;item;rating"] * header + EUROPEAN))
    data = eq.read(path, weight="rating" if header else 2)
    assert data.matrix.toarray().tolist() == [[3.5, 12.75], [0, 4], [0.25, 0]]
    column = "rating" if header else "column 2"
    assert f"commas in {column!r} are read as decimal commas" in data.notes
    high = eq.read(path, min_rating=3.5)
    assert high.users.tolist() == [1, 2]


@pytest.mark.parametrize("year", ["2019", "nan", "1.5", "2019-01-01"])
def test_a_number_among_the_names_of_columns_does_not_make_them_data(tmp_path, year):
    path = tmp_path / "events.csv"
    path.write_text(f"user,item,{year}\na,x,3\nb,y,4\n")
    data = eq.read(path)
    assert data.users.tolist() == ["a", "b"]
    assert any("first line" in note and "header" in note for note in data.notes)


@pytest.mark.parametrize(
    "text",
    [
        "client,tea,5\nann,milk,4\n",  # a user called client, or a header with one usual name
        "kunde,artikel,2019\n1,10,3\n2,20,4\n",  # words above numbers
        "0,1\nann,tea\nbob,milk\n",  # numbers above words
    ],
)
def test_a_first_line_that_could_be_either_is_refused_until_header_settles_it(tmp_path, text):
    path = tmp_path / "events.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=r"line 1: .*pass header=True or header=False"):
        eq.read(path)
    rows = text.count("\n")
    assert eq.read(path, header=False).n_users == rows
    assert eq.read(path, header=True, user=0, item=1, on_bad="skip").n_users == rows - 1


def test_a_first_line_of_words_is_noted_as_the_header(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("ann,tea\nbob,milk\ncleo,salt\n")
    data = eq.read(path, user=0, item=1)
    (note,) = [note for note in data.notes if "header" in note]
    assert (
        note
        == "the first line, 'ann', 'tea', is taken as the header; pass header=False if it is not"
    )
