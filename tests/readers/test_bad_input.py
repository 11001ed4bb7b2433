"""Every kind of bad input: an error with the place and the remedy, or rows skipped and counted."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.errors import DataError, SettingError

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


@pytest.mark.parametrize("name", ["events.csv", "events.jsonl", "events.parquet", "events.npz"])
def test_an_empty_file_is_refused(tmp_path, name):
    message = refusal(write(tmp_path, b"", name))
    assert f"{name} is empty; it needs at least one row" in message


def test_an_empty_gzip_file_is_refused(tmp_path):
    message = refusal(write(tmp_path, gzip.compress(b""), "events.csv.gz"))
    assert "events.csv.gz is empty" in message


def test_a_file_of_blank_lines_is_refused(tmp_path):
    assert "holds only blank lines" in refusal(write(tmp_path, b"\n\n\n"))


def test_a_header_without_rows_is_refused(tmp_path):
    message = refusal(write(tmp_path, b"user_id,item_id\n"))
    assert "events.csv has a header but no rows" in message


def test_a_frame_without_rows_is_refused():
    frame = pl.DataFrame({"user": [], "item": []}, schema={"user": pl.Int64, "item": pl.Int64})
    assert "the frame has no rows" in refusal(frame)


def test_a_missing_column_is_named_with_the_nearest_one(tmp_path):
    message = refusal(write(tmp_path, GOOD), item="itm_id")
    assert "has no column 'itm_id'; did you mean 'item_id'?" in message
    assert "the columns are 'user_id', 'item_id', 'rating', 'ts'" in message


def test_columns_that_cannot_be_found_are_listed_with_a_guess(tmp_path):
    message = refusal(write(tmp_path, b"userr,thing\na,b\nc,d\n"))
    assert "no column looks like the user; perhaps user='userr'; pass user='...'" in message
    assert "the columns are 'userr', 'thing'" in message


def test_two_columns_for_one_role_are_refused(tmp_path):
    message = refusal(write(tmp_path, b"user,user_id,item\na,1,x\nb,2,y\n"))
    assert "'user' and 'user_id' could both be the user; pass user='...'" in message


def test_a_missing_rating_column_is_refused(tmp_path):
    message = refusal(write(tmp_path, b"user,item\na,x\nb,y\n"), min_rating=4)
    assert "no column looks like the rating" in message


def test_a_wrong_delimiter_is_refused_with_the_right_one(tmp_path):
    message = refusal(write(tmp_path, GOOD), separator=";")
    assert "asked for separator=';'" in message
    assert "separated by commas: leave it out" in message


def test_a_file_without_any_delimiter_is_refused(tmp_path):
    message = refusal(write(tmp_path, b"user_id\nann\nbob\n"))
    assert "has one column, 'user_id'; pass separator=" in message


@pytest.mark.parametrize(("row", "fields"), [(b"dan,salt,5", 3), (b"dan,salt,5,1700000300,9", 5)])
def test_a_ragged_row_is_refused_or_skipped(tmp_path, caplog, row, fields):
    path = write(tmp_path, GOOD + row + b"\n" + b"eve,salt,2,1700000400\n")
    message = refusal(path)
    assert f"events.csv, line 5: the record has {fields} fields where 4 are expected" in message
    assert "on_bad='skip'" in message
    data = skipped(path, caplog)
    assert data.users.tolist() == ["ann", "bob", "cleo", "eve"]
    assert "skipped 1 bad row: 1 where the record has the wrong number of fields" in data.notes


def test_a_ragged_line_is_counted_after_quoted_line_breaks(tmp_path):
    text = b'user,item\n"an\nn",tea\nbob,milk\n\ncleo\n'
    assert "line 6: the record has 1 fields" in refusal(write(tmp_path, text))


def test_bytes_that_are_not_utf8_are_refused_or_skipped_or_decoded(tmp_path, caplog):
    path = write(tmp_path, GOOD + "zoé,tea,5,1700000300\n".encode("latin-1"))
    message = refusal(path)
    assert "events.csv, line 5: the record is not UTF-8" in message
    assert "encoding='latin-1'" in message
    assert "1 where the record is not UTF-8" in skipped(path, caplog).notes[-1]
    assert "zoé" in eq.read(path, encoding="latin-1").users


def test_a_file_that_ends_within_a_character_is_refused(tmp_path):
    path = write(tmp_path, GOOD + "dan,1,5,170000030é".encode()[:-1])
    assert "line 5: the record is not UTF-8" in refusal(path)


def test_utf16_is_recognised(tmp_path):
    path = write(tmp_path, GOOD.decode().encode("utf-16"))
    assert "is UTF-16; save it as UTF-8 or pass encoding='utf-16'" in refusal(path)
    assert eq.read(path, encoding="utf-16").n_users == 3


@pytest.mark.parametrize("name", ["events.csv", "events.csv.gz"])
def test_a_byte_order_mark_is_accepted(tmp_path, name):
    data = b"\xef\xbb\xbf" + GOOD
    path = write(tmp_path, gzip.compress(data) if name.endswith("gz") else data, name)
    assert eq.read(path, user="user_id").users.tolist() == ["ann", "bob", "cleo"]


def test_nul_bytes_are_refused_or_skipped(tmp_path, caplog):
    path = write(tmp_path, GOOD + b"d\x00n,tea,5,1700000300\n")
    message = refusal(path)
    assert "events.csv, line 5: the record holds a NUL byte; remove it" in message
    assert skipped(path, caplog).users.tolist() == ["ann", "bob", "cleo"]


def test_a_quotation_mark_that_stays_open_is_refused(tmp_path):
    message = refusal(write(tmp_path, GOOD + b'"dan,tea,5,1700000300\neve,tea,5,1\n'))
    assert "events.csv, line 5: a quotation mark is never closed" in message


def test_a_stray_quotation_mark_among_quoted_fields_is_refused_or_skipped(tmp_path, caplog):
    path = write(tmp_path, GOOD + b'"dan",te"a,5,1700000300\n')
    assert "line 5: the record holds a stray quotation mark" in refusal(path)
    assert skipped(path, caplog).n_users == 3


def test_quotation_marks_that_enclose_nothing_are_text(tmp_path):
    path = write(tmp_path, b'user,item\nann,5" pipe\nbob,tea\n')
    assert eq.read(path).items.tolist() == ['5" pipe', "tea"]


def test_a_truncated_gzip_file_is_refused(tmp_path):
    packed = gzip.compress(GOOD * 50)
    message = refusal(write(tmp_path, packed[:-20], "events.csv.gz"))
    assert "events.csv.gz is a truncated or damaged gzip file; fetch it again" in message


def test_a_truncated_parquet_file_is_refused(tmp_path):
    path = tmp_path / "events.parquet"
    pl.DataFrame({"user": range(500), "item": range(500)}).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-30])
    assert "events.parquet is not a whole Parquet file; write or fetch it again" in refusal(path)


def test_a_parquet_file_with_damaged_pages_is_refused(tmp_path):
    path = tmp_path / "events.parquet"
    pl.DataFrame({"user": range(500), "item": range(500)}).write_parquet(path)
    data = bytearray(path.read_bytes())
    data[8:400] = bytes(392)
    path.write_bytes(bytes(data))
    assert "events.parquet is not a whole Parquet file" in refusal(path)


def test_a_truncated_npz_file_is_refused(tmp_path):
    path = tmp_path / "train.npz"
    np.savez_compressed(path, users=np.arange(50), items=np.arange(50))
    path.write_bytes(path.read_bytes()[:-40])
    assert "train.npz is not a whole .npz file; fetch it again" in refusal(path)


def test_pickled_arrays_are_never_loaded(tmp_path):
    path = tmp_path / "train.npz"
    np.savez(path, users=np.array([object()], dtype=object), items=np.array([1]))
    assert "is not a whole .npz file" in refusal(path)


@pytest.mark.parametrize("blank", [b"", b'""', b"   "])
def test_a_blank_id_is_refused_or_skipped(tmp_path, caplog, blank):
    path = write(tmp_path, GOOD + blank + b",tea,5,1700000300\n")
    message = refusal(path)
    assert "events.csv, line 5: column 'user_id'" in message
    assert "is an empty user id; fill it" in message
    data = skipped(path, caplog)
    assert data.users.tolist() == ["ann", "bob", "cleo"]
    assert "skipped 1 bad row: 1 where 'user_id' is an empty user id" in data.notes


def test_a_missing_integer_id_is_refused_or_skipped(tmp_path, caplog):
    path = write(tmp_path, b"user,item\n1,10\n2,\n3,11\n")
    assert "line 3: column 'item' is an empty item id" in refusal(path)
    data = skipped(path, caplog)
    assert data.users.tolist() == [1, 3]
    assert data.items.dtype == np.int64


def test_a_null_id_in_a_frame_is_refused_by_row():
    frame = pl.DataFrame({"user": ["a", None, "b"], "item": [1, 2, 3]})
    assert "the frame, row 2: column 'user' is an empty user id" in refusal(frame)


def test_ids_of_mixed_types_are_refused():
    message = refusal([(1, "tea"), ("bob", "tea")])
    assert "column 'user', row 2: 'bob' is of type str, earlier rows are of type int" in message
    assert "all integers or all text" in message


def test_ids_of_mixed_types_in_a_pandas_frame_are_refused():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user": pd.Series([1, "bob"], dtype=object), "item": [1, 2]})
    assert "column 'user', row 2: 'bob' is of type str" in refusal(frame)


def test_ids_of_mixed_types_in_json_lines_are_refused(tmp_path):
    path = write(tmp_path, b'{"user":"1","item":2}\n\n{"user":1,"item":3}\n', "events.jsonl")
    message = refusal(path)
    assert "events.jsonl, line 3: column 'user' holds the number 1 here and text else" in message


def test_ids_of_mixed_types_in_parquet_parts_are_refused(tmp_path):
    pl.DataFrame({"user": [1, 2], "item": [1, 2]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"user": ["1", "x"], "item": [1, 2]}).write_parquet(tmp_path / "b.parquet")
    assert "column 'user' holds Int64 in" in refusal(tmp_path)


@pytest.mark.parametrize("kind", [pl.Boolean, pl.Date, pl.Binary])
def test_ids_of_other_types_are_refused(kind):
    user = pl.Series("user", [None, None], dtype=kind)
    message = refusal(pl.DataFrame({"user": user, "item": [1, 2]}))
    assert "user ids must be integers or text; convert it" in message


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


def test_fractions_are_no_ids(tmp_path, caplog):
    path = write(tmp_path, b"user,item\n1.0,10\n2.5,10\n3.0,11\n")
    assert "line 3: column 'user' (2.5) is not a whole number, so not a user id" in refusal(path)
    assert skipped(path, caplog).users.tolist() == [1, 3]


def test_integers_beyond_2_63_are_refused_in_a_frame():
    frame = pl.DataFrame({"user": pl.Series([1, 2**63], dtype=pl.UInt64), "item": [1, 2]})
    assert "is a user id beyond 2^63; give the ids as text" in refusal(frame)


def test_integers_beyond_2_63_stay_text_in_a_text_file(tmp_path):
    path = write(tmp_path, b"user,item\n12345678901234567890,10\n3,11\n")
    assert eq.read(path).users.tolist() == ["12345678901234567890", "3"]


@pytest.mark.parametrize("role", ["rating", "weight"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("NaN", "is not a finite"),
        ("inf", "is not a finite"),
        ("-1", "is a negative"),
        ("", "has no"),
        ("five", "is not a finite"),
    ],
)
def test_a_wrong_rating_or_weight_is_refused_or_skipped(tmp_path, caplog, role, value, reason):
    path = write(tmp_path, GOOD + f"dan,tea,{value},1700000300\n".encode())
    settings = {"weight": "rating"} if role == "weight" else {"min_rating": 1}
    message = refusal(path, **settings)
    assert "events.csv, line 5: column 'rating'" in message
    assert f"{reason} {role}" in message
    assert "on_bad='skip'" in message
    data = skipped(path, caplog, **settings)
    assert data.users.tolist() == ["ann", "bob", "cleo"]
    assert f"skipped 1 bad row: 1 where 'rating' {reason} {role}" in data.notes


@pytest.mark.parametrize(
    ("value", "reason"),
    [("1e39", "is a weight beyond 3e38"), ("1e-50", "is a weight below 1e-45")],
)
def test_a_weight_that_single_precision_loses_is_refused_or_skipped(
    tmp_path, caplog, value, reason
):
    path = write(tmp_path, GOOD + f"dan,tea,{value},1700000300\n".encode())
    message = refusal(path, weight="rating")
    assert f"events.csv, line 5: column 'rating' ({float(value)!r}) {reason}" in message
    data = skipped(path, caplog, weight="rating")
    assert data.users.tolist() == ["ann", "bob", "cleo"]
    assert f"skipped 1 bad row: 1 where 'rating' {reason}" in data.notes
    assert eq.read(path, min_rating=0).n_users == 4  # a rating only filters


def test_the_least_and_the_largest_weight_are_kept():
    data = eq.read([(1, 1, 1e-45), (2, 2, 3.4e38)])
    assert (data.matrix.data > 0).all()
    assert np.isfinite(data.matrix.data).all()


@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_weights_that_add_up_beyond_single_precision_are_refused(on_bad):
    rows = [("ann", "tea", 3e38), ("bob", "tea", 1.0), ("ann", "tea", 3e38), ("bob", "milk", 1.0)]
    message = refusal(rows, on_bad=on_bad)
    assert "the weights of user 'ann' and item 'tea' add up to 6e+38" in message


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
        int(note.split()[1 if note.startswith("skipped") else 0])
        for note in data.notes
        if note.startswith("skipped") or "rating below" in note or "with weight 0" in note
    ]
    assert data.n_interactions + sum(counts) == len(lines)


def test_an_unused_rating_column_is_not_judged(tmp_path):
    path = write(tmp_path, GOOD + b"dan,tea,-1,1700000300\n")
    data = eq.read(path)
    assert data.n_users == 4
    assert "column 'rating' is not used; min_rating= filters by it, weight= keeps it" in data.notes


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("yesterday", "is not a time"),
        ("-5", "is a negative time"),
        ("inf", "is not a time"),
        ("", "has no time"),
    ],
)
def test_a_wrong_time_is_refused_or_skipped(tmp_path, caplog, value, reason):
    path = write(tmp_path, GOOD + f"dan,tea,5,{value}\n".encode())
    message = refusal(path)
    assert "events.csv, line 5: column 'ts'" in message
    assert reason in message
    assert "time=False" in message
    assert skipped(path, caplog).n_users == 3
    assert eq.read(path, time=False).times is None


def test_a_wrong_date_is_refused(tmp_path):
    path = write(tmp_path, b"user,item,date\na,x,2024-01-31\nb,y,2024-02-31\n")
    assert "line 3: column 'date' ('2024-02-31') is not a time" in refusal(path)


def test_a_column_that_cannot_be_times_is_refused():
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": [True, False]})
    assert "column 'time' holds Boolean, not times" in refusal(frame)


def test_nothing_left_after_filtering_is_refused(tmp_path):
    message = refusal(write(tmp_path, GOOD), min_rating=6)
    assert "events.csv: nothing is left of the rows; lower min_rating=6" in message


def test_nothing_left_after_skipping_is_refused(tmp_path):
    path = write(tmp_path, b"user,item\n,tea\n,milk\n")
    assert "nothing is left of the rows" in refusal(path, on_bad="skip")
    path = write(tmp_path, b"user,item\nann\nbob\n")
    assert "no row is left after the bad ones" in refusal(path, on_bad="skip")


@pytest.mark.parametrize(
    ("rows", "axis"), [([(1, 5), (1, 6)], "user"), ([(1, 5), (2, 5)], "item")]
)
def test_one_user_or_one_item_is_refused_or_kept_with_a_warning(caplog, rows, axis):
    message = refusal(rows)
    assert f"the list: there is only one {axis}" in message
    assert f"check the {axis} column" in message
    data = eq.read(rows, on_bad="skip")
    assert any(f"only one {axis}" in note for note in data.notes)
    assert f"only one {axis}" in caplog.text


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


def test_ids_that_do_not_fit_the_matrix_are_refused():
    assert "users= has 1 ids for 2 users" in refusal(np.eye(2), users=["a"])
    assert "users= has 1 ids for 2 users" in refusal(np.eye(2), users="ab")
    assert "items= has 1 ids for 2 items" in refusal(np.eye(2), items=7)


def test_a_folder_without_tables_is_refused(tmp_path):
    (tmp_path / "notes.pdf").write_bytes(b"x")
    message = refusal(tmp_path)
    assert f"{tmp_path} is a folder without Parquet, CSV or JSON lines files" in message


def test_a_folder_with_several_kinds_of_tables_is_refused(tmp_path):
    write(tmp_path, GOOD)
    pl.DataFrame({"user": [1], "item": [1]}).write_parquet(tmp_path / "a.parquet")
    assert "holds files of several kinds" in refusal(tmp_path)


def test_parts_with_different_columns_are_refused(tmp_path):
    write(tmp_path, GOOD, "a.csv")
    write(tmp_path, b"user_id,item_id\n1,2\n", "b.csv")
    assert "parts need one schema" in refusal(tmp_path)


def test_a_pattern_without_files_is_refused(tmp_path):
    assert "no file matches" in refusal(tmp_path / "part-*.csv")


def test_foreign_files_are_recognised(tmp_path):
    assert "a zip archive or an Excel workbook" in refusal(write(tmp_path, b"PK\x03\x04abc"))


def test_an_object_that_holds_no_table_is_refused():
    assert "cannot read a int; give a path, a frame" in refusal(5)
    assert "the first row is 'ann'" in refusal(["ann", "bob"])
    assert "the list is empty" in refusal([])


def test_a_json_line_that_cannot_be_parsed_is_refused_or_skipped(tmp_path, caplog):
    text = b'{"user":1,"item":2}\n{"user":2,\n{"user":3,"item":4}\n'
    path = write(tmp_path, text, "events.jsonl")
    assert "events.jsonl, line 2: the line is not a JSON object" in refusal(path)
    data = skipped(path, caplog)
    assert data.users.tolist() == [1, 3]


def test_settings_that_mean_nothing_are_refused():
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
