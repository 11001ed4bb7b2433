"""Every kind of bad input: an error with the place and the remedy, or rows skipped and counted."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import textwrap
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.errors import DataError, EquipoiseError, SettingError

GOOD = (
    b"user_id,item_id,rating,ts\nann,tea,5,1700000000\nbob,milk,4,1700000100\n"
    b"cleo,tea,3,1700000200\n"
)


def write(folder: Path, data: bytes, name: str = "events.csv") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def refusal(source: Any, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        eq.read(source, **settings)
    return str(caught.value)


def skipped(source: Any, caplog: pytest.LogCaptureFixture, **settings: Any) -> eq.Interactions:
    """Read with on_bad="skip"; the note must also be a logged warning."""
    caplog.clear()
    data = eq.read(source, on_bad="skip", **settings)
    (note,) = [note for note in data.notes if note.startswith("skipped")]
    assert any(note in record.getMessage() for record in caplog.records)
    return data


def test_a_missing_file_is_named_with_a_neighbour(tmp_path):
    write(tmp_path, GOOD, "events.csv.gz.bak")
    message = refusal(tmp_path / "events.csv")
    assert f"there is no file {tmp_path / 'events.csv'}" in message
    assert "did you mean 'events.csv.gz.bak'?" in message
    assert "no file matches" in refusal(tmp_path / "part-*.csv")


COLUMNS = "the columns are 'user_id', 'item_id', 'rating', 'ts'"


@pytest.mark.parametrize(
    ("content", "settings", "expected"),
    [
        (b"\n\n\n", {}, ["holds only blank lines"]),
        (b"user_id,item_id\n", {}, ["events.csv has no rows"]),
        (GOOD, {"item": "itm_id"}, ["no column 'itm_id'; did you mean 'item_id'?", COLUMNS]),
        (b"userr,thing\na,b\nc,d\n", {}, ["the user; perhaps user='userr'; pass user='...'"]),
        (b"userr,thing\na,b\nc,d\n", {}, ["the columns are 'userr', 'thing'"]),
        (
            b"user,user_id,item\na,1,x\nb,2,y\n",
            {},
            ["'user' and 'user_id' could both be the user; pass user='...'"],
        ),
        (b"user,item\na,x\nb,y\n", {"min_rating": 4}, ["no column looks like the rating"]),
        (GOOD, {"separator": ";"}, ["separator=';'", "separated by commas, so leave it out"]),
        (b"user_id\nann\nbob\n", {}, ["has one column, 'user_id'; pass separator="]),
        (b'user,item\n"an\nn",tea\nbob,milk\n\ncleo\n', {}, ["line 6: the record has 1 fields"]),
        (
            GOOD + "dan,1,5,170000030\u00e9".encode()[:-1],
            {},
            ["line 5: the record is not UTF-8"],
        ),
        (
            GOOD + b'"dan,tea,5,1700000300\neve,tea,5,1\n',
            {},
            ["events.csv, line 5: a quotation mark is never closed"],
        ),
        (
            b"user,item,date\na,x,2024-01-31\nb,y,2024-02-31\n",
            {},
            ["line 3: column 'date' ('2024-02-31') is not a time"],
        ),
        (GOOD, {"min_rating": 6}, ["events.csv: no usable row is left; lower min_rating=6"]),
        (b"user,item\n,tea\n,milk\n", {"on_bad": "skip"}, ["no usable row is left"]),
        (b"user,item\nann\nbob\n", {"on_bad": "skip"}, ["no row is left after the bad ones"]),
        (b"PK\x03\x04abc", {}, ["a zip archive or an Excel workbook"]),
    ],
)
def test_an_unreadable_kind_of_file_is_refused(tmp_path, content, settings, expected):
    message = refusal(write(tmp_path, content), **settings)
    for part in expected:
        assert part in message


def packed(kind: str) -> bytes:
    stream = io.BytesIO()
    if kind == "parquet":
        pl.DataFrame({"user": range(500), "item": range(500)}).write_parquet(stream)
    else:
        np.savez_compressed(stream, users=np.arange(50), items=np.arange(50))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", b"", "a.csv is empty; it needs at least one row"),
        ("a.jsonl", b"", "a.jsonl is empty; it needs at least one row"),
        ("a.parquet", b"", "a.parquet is empty; it needs at least one row"),
        ("a.npz", b"", "a.npz is empty; it needs at least one row"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "a.csv.gz is empty"),
        (
            "a.csv.gz",
            gzip.compress(GOOD * 50, mtime=0)[:-20],
            "a truncated or damaged gzip file; fetch it",
        ),
        (
            "a.parquet",
            packed("parquet")[:-30],
            "is not a complete Parquet file; write or fetch it",
        ),
        (
            "a.parquet",
            packed("parquet")[:8] + bytes(392) + packed("parquet")[400:],
            "a.parquet is not a complete Parquet file",
        ),
        ("a.npz", packed("npz")[:-40], "a.npz is not a complete .npz file; fetch it again"),
        (
            "a.jsonl",
            b'{"user":"1","item":2}\n\n{"user":1,"item":3}\n',
            "a.jsonl, line 3: column 'user' holds the number 1 here and text else",
        ),
    ],
)
def test_an_empty_or_damaged_file_is_refused(tmp_path, name, content, expected):
    assert expected in refusal(write(tmp_path, content, name))


@pytest.mark.parametrize(
    ("source", "settings", "expected"),
    [
        (5, {}, ["cannot read a int; give a path, a frame"]),
        (["ann", "bob"], {}, ["the first row is 'ann'"]),
        ([], {}, ["the list is empty"]),
        (
            [(1, "tea"), ("bob", "tea")],
            {},
            ["column 'user', row 2: 'bob' is of type str, earlier", "int", "integers or all text"],
        ),
        (
            pd.DataFrame({"user": pd.Series([1, "bob"], dtype=object), "item": [1, 2]}),
            {},
            ["column 'user', row 2: 'bob' is of type str"],
        ),
        ([(1, 2), (1, 2, 3)], {}, ["the list, row 2: (1, 2, 3) should have 2 values"]),
        ({"user": [1, 2], "item": [1]}, {}, ["different lengths"]),
        (
            pd.DataFrame({"user": pd.Series(["a", np.nan], dtype=object), "item": [1, 2]}),
            {},
            ["row 2: column 'user' is an empty user id"],
        ),
        (pl.DataFrame({"user": [], "item": []}), {}, ["the frame has no rows"]),
        (
            pl.DataFrame({"user": ["a", None, "b"], "item": [1, 2, 3]}),
            {},
            ["the frame, row 2: column 'user' is an empty user id"],
        ),
        (
            pl.DataFrame({"user": pl.Series([1, 2**63], dtype=pl.UInt64), "item": [1, 2]}),
            {},
            ["is a user id beyond 2^63; give the ids as text"],
        ),
        *(
            (
                pl.DataFrame({"user": pl.Series([None, None], dtype=kind), "item": [1, 2]}),
                {},
                ["user ids must be integers or text; convert it"],
            )
            for kind in (pl.Boolean, pl.Date, pl.Binary)
        ),
        (
            pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": [True, False]}),
            {},
            ["column 'time' holds Boolean, not times"],
        ),
        *(
            (
                [("a", "x", 3e38), ("b", "x", 1.0), ("a", "x", 3e38), ("b", "y", 1.0)],
                {"on_bad": on_bad},
                ["the weights of user 'a' and item 'x' add up to 6e+38"],
            )
            for on_bad in ("error", "skip")
        ),
        (np.eye(2), {"users": ["a"]}, ["users= has 1 ids for 2 users"]),
        (np.eye(2), {"users": "ab"}, ["users= has 1 ids for 2 users"]),
        (np.eye(2), {"items": 7}, ["items= has 1 ids for 2 items"]),
    ],
)
def test_an_unreadable_kind_of_object_is_refused(source, settings, expected):
    message = refusal(source, **settings)
    for part in expected:
        assert part in message


RATED = {"min_rating": 1}
WEIGHTED = {"weight": "rating"}


@pytest.mark.parametrize(
    ("row", "settings", "expected", "note"),
    [
        (b"dan,salt,5", {}, "the record has 3 fields where 4 are", "has the wrong number of"),
        (b"dan,salt,5,17,9", {}, "the record has 5 fields where 4 are", "has the wrong number of"),
        (b"d\x00n,tea,5,17", {}, "the record holds a NUL byte; remove it", "holds a NUL byte"),
        (b'"dan",te"a,5,17', {}, "the record holds a stray quotation mark", "stray quotation"),
        *(
            (
                blank + b",tea,5,17",
                {},
                "is an empty user id; fill it",
                "1 where 'user_id' is an empty user id",
            )
            for blank in (b"", b'""', b"   ")
        ),
        *(
            (f"dan,tea,{value},17".encode(), settings, f"{reason} {role}", f"{reason} {role}")
            for role, settings in (("rating", RATED), ("weight", WEIGHTED))
            for value, reason in (
                ("NaN", "is not a finite"),
                ("inf", "is not a finite"),
                ("", "has no"),
                ("five", "is not a finite"),
            )
        ),
        (b"dan,tea,-1,17", RATED, "is a negative rating", "is a negative rating"),
        (b"dan,tea,1e39,17", WEIGHTED, "(1e+39) is a weight beyond 3e38", "beyond 3e38"),
        (b"dan,tea,1e-50,17", WEIGHTED, "(1e-50) is a weight below 1e-45", "below 1e-45"),
        (b"dan,tea,5,yesterday", {}, "is not a time; use seconds", "is not a time"),
        (b"dan,tea,5,-5", {}, "ISO dates, or pass time=False", "is a negative time"),
        (b"dan,tea,5,inf", {}, "is not a time", "is not a time"),
        (b"dan,tea,5,", {}, "has no time; fill it or pass time=False", "has no time"),
    ],
)
def test_a_bad_row_is_refused_by_line_or_skipped_and_counted(
    tmp_path, caplog, row, settings, expected, note
):
    path = write(tmp_path, GOOD + row + b"\n")
    message = refusal(path, **settings)
    assert "events.csv, line 5: " in message
    assert expected in message
    assert "on_bad='skip'" in message
    data = skipped(path, caplog, **settings)
    assert data.users.tolist() == ["ann", "bob", "cleo"]
    (counted,) = [line for line in data.notes if line.startswith("skipped 1 bad row: 1 where ")]
    assert note in counted


def test_what_is_not_used_is_not_checked(tmp_path):
    path = write(tmp_path, GOOD + b"dan,tea,1e39,yesterday\n")
    assert eq.read(path, time=False).times is None
    assert eq.read(path, time=False, min_rating=0).n_users == 4  # a rating only filters


def test_bytes_that_are_not_utf8_are_refused_or_skipped_or_decoded(tmp_path, caplog):
    path = write(tmp_path, GOOD + "zoé,tea,5,1700000300\n".encode("latin-1"))
    message = refusal(path)
    assert "events.csv, line 5: the record is not UTF-8" in message
    assert "encoding='latin-1'" in message
    assert "1 where the record is not UTF-8" in skipped(path, caplog).notes[-1]
    assert "zoé" in eq.read(path, encoding="latin-1").users


def test_utf16_is_recognised(tmp_path):
    path = write(tmp_path, GOOD.decode().encode("utf-16"))
    assert "is UTF-16; save it as UTF-8 or pass encoding='utf-16'" in refusal(path)
    assert eq.read(path, encoding="utf-16").n_users == 3


@pytest.mark.parametrize("name", ["events.csv", "events.csv.gz"])
def test_a_byte_order_mark_is_accepted(tmp_path, name):
    data = b"\xef\xbb\xbf" + GOOD
    path = write(tmp_path, gzip.compress(data) if name.endswith("gz") else data, name)
    assert eq.read(path, user="user_id").users.tolist() == ["ann", "bob", "cleo"]


def test_quotation_marks_that_enclose_nothing_are_text(tmp_path):
    path = write(tmp_path, b'user,item\nann,5" pipe\nbob,tea\n')
    assert eq.read(path).items.tolist() == ['5" pipe', "tea"]


def test_pickled_arrays_are_never_loaded(tmp_path):
    path = tmp_path / "train.npz"
    np.savez(path, users=np.array([object()], dtype=object), items=np.array([1]))
    assert "is not a complete .npz file" in refusal(path)


def test_a_missing_integer_id_is_refused_or_skipped(tmp_path, caplog):
    path = write(tmp_path, b"user,item\n1,10\n2,\n3,11\n")
    assert "line 3: column 'item' is an empty item id" in refusal(path)
    data = skipped(path, caplog)
    assert data.users.tolist() == [1, 3]
    assert data.items.dtype == np.int64


def test_exact_integers_in_a_float_column_are_accepted_with_a_note():
    data = eq.read(pl.DataFrame({"user": [1.0, 2.0**53 - 1], "item": [7, 8]}))
    assert data.users.tolist() == [1, 2**53 - 1]
    assert "user ids 'user' were floats without fractions, now integers" in data.notes


def test_integers_beyond_2_53_in_a_float_column_are_refused_or_skipped(caplog):
    frame = pl.DataFrame({"user": [1.0, 2.0**53, 3.0], "item": [7, 8, 8]})
    message = refusal(frame)
    assert "the frame, row 2: column 'user' (9007199254740992.0)" in message
    assert "beyond 2^53" in message
    assert skipped(frame, caplog).users.tolist() == [1, 3]


def test_fractions_are_not_ids(tmp_path, caplog):
    path = write(tmp_path, b"user,item\n1.0,10\n2.5,10\n3.0,11\n")
    assert "line 3: column 'user' (2.5) is not a whole number, so not a user id" in refusal(path)
    assert skipped(path, caplog).users.tolist() == [1, 3]


def test_integers_beyond_2_63_stay_text_in_a_text_file(tmp_path):
    path = write(tmp_path, b"user,item\n12345678901234567890,10\n3,11\n")
    assert eq.read(path).users.tolist() == ["12345678901234567890", "3"]


def test_the_least_and_the_largest_weight_are_kept():
    data = eq.read([(1, 1, 1e-45), (2, 2, 3.4e38)])
    assert (data.matrix.data > 0).all()
    assert np.isfinite(data.matrix.data).all()


cells = st.tuples(
    st.sampled_from(["a", "b", "", " "]),
    st.sampled_from(["x", "y", ""]),
    st.sampled_from(["1", "0", "-1", "", "nan", "1e39", "1e-50", "few", "2.5"]),
    st.sampled_from(["1700000000", "1700000000000", "-5", "", "soon"]),
    st.sampled_from(["", "", "", ",more", "\x00"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(cells, max_size=10), st.sampled_from([None, 0, 2]))
def test_every_row_is_kept_or_left_out_exactly_once(tmp_path_factory, rows, min_rating):
    path = tmp_path_factory.mktemp("rows") / "events.csv"
    lines = [f"good{n},{n},3,1700000000" for n in range(11)]
    # The number of the row makes every user another one, so that no pair is merged.
    lines += [
        f"{user}{n if user.strip() else ''},{item},{weight},{time}{tail}"
        for n, (user, item, weight, time, tail) in enumerate(rows)
    ]
    path.write_text("user,item,weight,time\n" + "\n".join(lines) + "\n")
    rating = {} if min_rating is None else {"rating": "weight", "min_rating": min_rating}
    data = eq.read(path, weight="weight", on_bad="skip", **rating)
    counts = [
        next(int(word) for word in note.split() if word.isdigit())
        for note in data.notes
        if note.startswith("skipped") or "rating below" in note or "with weight 0" in note
    ]
    # a weight of -1 is a return: an event that leaves no pair
    assert data.to_frame(events=True).height + sum(counts) == len(lines)


def test_an_unused_rating_column_is_not_judged(tmp_path):
    path = write(tmp_path, GOOD + b"dan,tea,-1,1700000300\n")
    data = eq.read(path)
    assert data.n_users == 4
    assert "column 'rating' is not used; min_rating= filters by it, weight= keeps it" in data.notes


@pytest.mark.parametrize(
    ("rows", "axis"), [([(1, 5), (1, 6)], "user"), ([(1, 5), (2, 5)], "item")]
)
def test_one_user_or_one_item_is_read_with_a_warning(caplog, rows, axis):
    data = eq.read(rows)
    assert data.n_interactions == 2
    assert any(f"there is only one {axis}, " in note for note in data.notes)
    assert f"{axis}= names another column" in caplog.text


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix, sp.coo_array])
def test_a_matrix_with_a_wrong_value_is_refused_or_skipped(caplog, value, form):
    matrix = form(np.array([[1.0, 1.0], [0.0, 1.0], [1.0, value]]))
    message = refusal(matrix)
    assert "the matrix, row 2, column 1" in message
    assert "finite and >= 0" in message
    data = skipped(matrix, caplog)
    assert data.n_interactions == 4
    assert "skipped 1 cells that are NaN, infinite or negative" in data.notes


@pytest.mark.parametrize("value", [1e39, 1e-50])
def test_a_matrix_with_a_weight_that_single_precision_loses_is_refused_or_skipped(caplog, value):
    matrix = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, value]])
    assert "the matrix, row 2, column 1: " in refusal(matrix)
    assert "between 1e-45 and 3e38" in refusal(matrix)
    data = skipped(matrix, caplog)
    assert data.n_interactions == 4
    assert "skipped 1 cells that are not between 1e-45 and 3e38" in data.notes
    assert eq.read(matrix, min_rating=0).n_interactions == 5  # a rating only filters


@pytest.mark.parametrize(
    ("cells", "who"),
    [([[1, 1], [0, 0], [1, 0]], "user 20 has no items"), ([[1, 0]] * 3, "item 'milk' has no")],
)
def test_users_and_items_without_interactions_are_refused_or_left_out(caplog, cells, who):
    ids = {"users": [10, 20, 30], "items": ["tea", "milk"]}
    message = refusal(sp.csr_array(np.array(cells)), **ids)
    assert who in message
    assert "on_bad='skip'" in message
    data = eq.read(sp.csr_array(np.array(cells)), on_bad="skip", **ids)
    assert data.item_counts.min() > 0
    assert data.user_counts.min() > 0
    assert "left out 1" in caplog.text


def test_a_json_line_that_cannot_be_parsed_is_refused_or_skipped(tmp_path, caplog):
    text = b'{"user":1,"item":2}\n{"user":2,\n{"user":3,"item":4}\n'
    path = write(tmp_path, text, "events.jsonl")
    assert "events.jsonl, line 2: the line is not a JSON object" in refusal(path)
    data = skipped(path, caplog)
    assert data.users.tolist() == [1, 3]


def test_invalid_settings_are_refused():
    pairs = [(1, 2), (2, 3)]
    for wrong in (
        {"on_bad": "ignore"},
        {"format": "xls"},
        {"min_rating": float("nan")},
        {"separator": "ab"},
        {"encoding": "klingon"},
        {"gap": "soon"},
        {"users": [1, 2]},
        {"session": "user", "gap": 5},
    ):
        with pytest.raises(SettingError):
            eq.read([(1, 2, 1, 5), (2, 3, 1, 6)] if "gap" in wrong else pairs, **wrong)


FULL_DISK = """
    import resource, signal, sys
    import equipoise as eq
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    data = eq.read([(user, item) for user in range(300) for item in range(40)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        data.save(sys.argv[1])
    except eq.EquipoiseError as error:
        print(error)
"""


@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, existing):
    target = tmp_path / "saved"
    old = eq.read([("ann", "tea"), ("bob", "milk")])
    if existing:
        old.save(target)
    before = sorted(os.listdir(target)) if existing else []
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"could not write {target}" in done.stdout
    assert "nothing was changed" in done.stdout
    if existing:
        assert sorted(os.listdir(target)) == before
        assert eq.read(target).fingerprint == old.fingerprint
    else:
        assert not target.exists()


PAIRS = {"user": [1, 1, 2], "item": [10, 11, 10]}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"user": 1}, "column 'user' must be a list of values, got 1; a table is such as"),
        ({"user": "ann", "item": ["tea"]}, "column 'user' must be a list of values, got 'ann'"),
        ({"user": {1, 2}, "item": {1, 2}}, "column 'user' must be a list of values"),
        ({"ann": {"tea": 1}}, "column 'ann' must be a list of values"),
        ({"user": [1, 2], "item": np.ones((2, 2))}, "item ids must be integers or text; convert"),
        ({"ann": ["tea"], "bob": ["tea", "milk"]}, "or give a list of \\(user, item\\) pairs"),
        ({**PAIRS, "user": [b"a", b"b", b"c"]}, "values of type bytes, such as b'a'; convert"),
        (
            {**PAIRS, "event": [[1], [2], [3]]},
            "holds List.Int64., the type of an event must be text or a number",
        ),
        (pl.DataFrame({**PAIRS, "event": [["a"]] * 3}), "type of an event must be text or a nu"),
        (pl.DataFrame({**PAIRS, "event": [b"\xff"] * 3}), "holds Binary, the type of an event"),
        ([("\ud800", 2), ("b", 3)], "'.ud800', which is not valid Unicode; correct it"),
        (pd.DataFrame({"user": [1j, 2j], "item": [1, 2]}), "values of type complex, such as"),
        (((1, 2) for _ in range(3)), "cannot read a generator; .*; list\\(...\\) makes one"),
        ({(1, 2), (3, 4)}, "cannot read a set; .*; list\\(...\\) makes one"),
        (sp.coo_array(np.array([1, 0, 2])), "must be two-dimensional .*, got shape \\(3,\\)"),
        (np.ones((2, 2)) * 1j, "must hold numbers, got complex128"),
        (np.array([["a", "b"]]), "must hold numbers, got <U1; give pairs as a list"),
        ("", "the path is empty; give the path of a file or a folder"),
        ("x" * 5000, "cannot be read: File name too long; check the path"),
        ("a\0b.csv", "cannot be read: embedded null byte; check the path"),
        ("https://example.org/a.csv", "is an address, and eq.read reads local files; download it"),
        (10**400 * np.ones(1, object), "must be two-dimensional"),
        ([(1, 2, 10**400), (1, 3, 0.5)], "holds a number beyond 1e308; scale it"),
    ],
)
def test_odd_sources_are_refused_with_a_remedy(source, message):
    with pytest.raises(DataError, match=message):
        eq.read(source)


@pytest.mark.parametrize("wrong", [1.5, [], ["user"], ("a", "b"), {}, b"x", object(), np.ones(1)])
@pytest.mark.parametrize("name", sorted(set(signature(eq.read).parameters) - {"source"}))
def test_parameters_of_a_wrong_type_are_errors_that_name_them(name, wrong):
    frame = pl.DataFrame({**PAIRS, "rating": [1, 2, 3], "time": [1, 2, 3]})
    if name in ("gap", "min_rating") and wrong == 1.5:
        return  # a number is what they are
    # a list of text may be the paths of the tables of a catalogue
    with pytest.raises(EquipoiseError, match=f"{name}|cannot read|values|there is no file"):
        eq.read(frame, **{name: wrong})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("header", False),
        ("header", True),
        ("separator", ","),
        ("quote", "'"),
        ("sheet", "a"),
        ("format", "csv"),
    ],
)
def test_settings_of_files_are_refused_for_objects(name, value):
    for source in (pl.DataFrame(PAIRS), [(1, 2), (2, 3)], np.eye(3)):
        with pytest.raises(SettingError, match="does not apply to an object in memory; leave it"):
            eq.read(source, **{name: value})


def test_a_position_may_be_of_numpy():
    assert eq.read(pl.DataFrame(PAIRS), user=np.int64(1), item=np.int8(0)).matrix.shape == (2, 2)


def test_records_of_a_wrong_length_are_refused_even_if_their_number_of_separators_adds_up(
    tmp_path,
):
    path = write(tmp_path, b"user,item,a,b\nann,tea,x,y\nbob,tea,x\ncy,milk,x,y,z\ndan,milk,x,y\n")
    assert "events.csv, line 3: the record has 3 fields where 4 are expected" in refusal(path)
