"""A folder of parts is the same table as one file that holds all of its rows."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.errors import DataError

HEADER = ("user", "item", "plays", "time")


def outcome(path: Path, **options: object) -> object:
    """Return what was read, or the class of the error; what is said about it may differ."""
    try:
        data = eq.read(path, **options)
    except DataError:
        return DataError
    skipped = [note.split(":")[0] for note in data.notes if note.startswith("skipped")]
    return data.fingerprint, data.users.tolist(), data.items.tolist(), skipped


def quoted(cells: list[str]) -> list[str]:
    return [f'"{cell}"' if "," in cell else cell for cell in cells]


# Cells that tempt a parser to change them, alone or beside one another.
user_cells = st.sampled_from(
    ["1", "2", "30", "1.0", "1.10", "1.1", "007", "+7", " 7", "ann", "bob", "", '"4"', "true"]
)
item_cells = st.sampled_from(["1", "2", "1.0", "2.50", "x", "y", "x,y"])
play_cells = st.sampled_from(["1", "2", "2.5", " 3", "true", "-1", "", "many", "1e39", "1e-50"])
time_cells = st.sampled_from(["1700000000", "1700000001.5", "2023-11-14", "", "0"])
rows = st.lists(st.tuples(user_cells, item_cells, play_cells, time_cells), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(rows=rows, header=st.booleans(), explicit=st.booleans(), data=st.data())
def test_parts_of_a_csv_give_the_same_interactions_as_the_whole(
    tmp_path_factory, rows, header, explicit, data
):
    # A first line of words is taken as names where nothing else is told: all parts then need them.
    assume(header or explicit or any(cell.strip('+- "')[:1].isdigit() for cell in rows[0]))
    root = tmp_path_factory.mktemp("csv")
    folder = root / "parts"
    folder.mkdir()
    table = [quoted(list(row)) for row in rows]
    all_rows = [list(HEADER), *table] if header else table
    (root / "whole.csv").write_text("".join(",".join(row) + "\n" for row in all_rows))
    bounds = st.lists(st.integers(0, len(rows)), max_size=3).map(sorted)
    cuts = [0, *data.draw(bounds, "cuts"), len(rows)]
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        order = data.draw(st.permutations(range(4)), "order") if header else range(4)
        part = [list(HEADER), *table[start:stop]] if header else table[start:stop]
        lines = (",".join(row[place] for place in order) + "\n" for row in part)
        (folder / f"part-{number}.csv").write_text("".join(lines))
    places = HEADER if header else range(4)
    columns = dict(zip(("user", "item", "weight", "time"), places, strict=True))
    for on_bad in ("error", "skip"):
        options = {**columns, "header": header if explicit else None, "on_bad": on_bad}
        assert outcome(folder, **options) == outcome(root / "whole.csv", **options)


def fill(folder: Path, files: dict[str, str | bytes | pl.DataFrame]) -> Path:
    for name, content in files.items():
        if isinstance(content, pl.DataFrame):
            content.write_parquet(folder / name)
        else:
            (folder / name).write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
    return folder


@pytest.mark.parametrize(
    ("files", "users"),
    [
        ({"a.csv": "user,item\n1,5\n2,6\n", "b.csv": "user,item\nbob,5\n"}, ["1", "2", "bob"]),
        (
            {"a.csv": "user,item\n1.10,x\n1.1,y\n", "b.csv": "user,item\nann,x\n"},
            ["1.1", "1.10", "ann"],
        ),
        ({"a.csv": "user,item\n1.0,x\n2.0,y\n", "b.csv": "user,item\n1,y\n"}, [1, 2]),
        ({"a.csv": "user,item,time\n1,x,5\n", "b.csv": "time,item,user\n6,y,2\n"}, [1, 2]),
        (
            {"a.csv": "1,x,5\n2,y,4\n", "b.csv": "3,x,\n4,y,3\n", "c.csv": "ann,x,5\n"},
            ["1", "2", "3", "4", "ann"],
        ),
        (
            {"a.csv": "user,item\n1.10,x\n", "b.csv.gz": gzip.compress(b"item,user\ny,ann\n")},
            ["1.10", "ann"],
        ),
        (
            {
                "a.parquet": pl.DataFrame({"user": [1], "item": ["x"]}),
                "b.parquet": pl.DataFrame({"item": ["y"], "user": [2]}),
            },
            [1, 2],
        ),
    ],
)
def test_ids_of_all_parts_are_of_one_type_whatever_the_order_of_columns(tmp_path, files, users):
    assert eq.read(fill(tmp_path, files)).users.tolist() == users


def test_parts_without_rows_add_nothing(tmp_path):
    parts = ["user,item\n", "user,item\n1,x\n2,y\n", "", "\n\n"]
    data = eq.read(fill(tmp_path, {f"{n}.csv": part for n, part in enumerate(parts)}))
    assert data.users.tolist() == [1, 2]
    assert "2 of 4 parts are empty" in data.notes


PAIRS = pl.DataFrame({"user": [1, 2], "item": [1, 2], "ts": [1, 2]})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.pdf": "x"}, "is a folder without Parquet, CSV or JSON lines files"),
        ({"a.csv": "user,item\n1,2\n", "b.parquet": PAIRS}, "holds files of several kinds"),
        ({"a.csv": "", "b.csv": ""}, "all 2 parts of .* are empty"),
        ({"a.csv": "user,item\n", "b.csv": "user,item\n"}, "has no rows"),
        ({"a.csv": "user,item\n1,2\n", "b.csv": "user,at\n1,2\n"}, "parts need the same columns"),
        (
            {"a.csv": "user,item\n1,5\n2,6\n", "b.csv": "user,item\n3,5\n,6\n"},
            r"b\.csv, line 3: column 'user' is an empty user id",
        ),
        (
            {"a.csv": 'user,item\n1,5" pipe\n', "b.csv": 'user,item\n2,"tea, green"\n'},
            r"a\.csv, line 2: .* stray quotation mark",
        ),
        (
            {
                "a.jsonl": '{"user":"1","item":2}\n\n',
                "b.jsonl": '{"user":"2","item":2}\n{"user":1,"item":3}\n',
            },
            r"b\.jsonl, line 2: column 'user' holds the number 1",
        ),
        (
            {"a.parquet": PAIRS, "b.parquet": PAIRS.with_columns(pl.lit("x7").alias("user"))},
            r"column 'user' of .*b\.parquet holds 'x7' where .* integers; pass ids='text'",
        ),
        (
            {"a.parquet": PAIRS, "b.parquet": PAIRS.cast({"ts": pl.String})},
            r"column 'ts' holds Int64 in .*a\.parquet and String in .*b\.parquet",
        ),
        (
            {
                "a.parquet": PAIRS,
                "b.parquet": PAIRS.with_columns(pl.Series("user", [3, 2**63], dtype=pl.UInt64)),
            },
            r"b\.parquet, row 2: .* beyond 2\^63",
        ),
    ],
)
def test_parts_of_different_tables_are_refused(tmp_path, files, message):
    with pytest.raises(DataError, match=message):
        eq.read(fill(tmp_path, files))


def test_a_pattern_that_names_files_of_several_kinds_is_refused(tmp_path):
    fill(tmp_path, {"a.csv": "user,item\n1,2\n", "b.parquet": PAIRS})
    with pytest.raises(DataError, match=r"a\.csv and .*b\.parquet are of different kinds"):
        eq.read(tmp_path / "*")


def test_the_line_of_a_bad_row_is_that_of_its_part(tmp_path):
    fill(tmp_path, {"a.csv": "user,item,plays\n1,x,1\n\n2,y,1\n"})
    fill(tmp_path, {"b.csv": "plays,user,item\n1,3,x\nmany,4,y\n"})
    with pytest.raises(DataError, match=r"b\.csv, line 3: column 'plays' \('many'\)"):
        eq.read(tmp_path, weight="plays")


def test_a_part_that_starts_with_a_bad_record_is_skipped_over_like_any_other(tmp_path):
    fill(tmp_path, {"a.csv": "1,10,5\n2,20,4\n", "b.csv": "3\n3,10,5\n"})
    with pytest.raises(DataError, match=r"b\.csv, line 1: the record has 1 fields"):
        eq.read(tmp_path)
    assert eq.read(tmp_path, on_bad="skip").users.tolist() == [1, 2, 3]


json_ids = st.sampled_from([1, 2, 2**60, 1.0, 1.5, "1", "ann", None])
json_plays = st.sampled_from([1, 2.5, -1, None, "3", "many"])


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(json_ids, st.sampled_from(["x", "y"]), json_plays), min_size=1),
    cut=st.integers(0, 8),
)
def test_parts_of_json_lines_give_the_same_interactions_as_the_whole(tmp_path_factory, rows, cut):
    root = tmp_path_factory.mktemp("json")
    folder = root / "parts"
    folder.mkdir()
    # A field without a value is left out, so that a part may lack a column of the whole.
    records = [
        {key: value for key, value in zip(HEADER, row, strict=False) if value is not None}
        for row in rows
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (root / "whole.jsonl").write_text("".join(lines))
    (folder / "a.jsonl").write_text("".join(lines[:cut]))
    (folder / "b.jsonl").write_text("".join(lines[cut:]).rstrip("\n"))
    for on_bad in ("error", "skip"):
        options = {"user": "user", "item": "item", "weight": "plays", "on_bad": on_bad}
        assert outcome(folder, **options) == outcome(root / "whole.jsonl", **options)


@pytest.mark.parametrize("kind", [pl.Int32, pl.UInt64, pl.UInt8])
def test_parquet_parts_may_have_integers_of_other_sizes(tmp_path, kind):
    pl.DataFrame({"user": [1, 2], "item": [1, 2]}).write_parquet(tmp_path / "a.parquet")
    users = pl.Series("user", [2, 3], dtype=kind)
    pl.DataFrame({"user": users, "item": [1, 2]}).write_parquet(tmp_path / "b.parquet")
    data = eq.read(tmp_path)
    assert data.users.tolist() == [1, 2, 3]
    assert data.users.dtype == np.int64


def test_parquet_parts_without_a_value_or_with_categories_go_with_the_others(tmp_path):
    kinds = [pl.String, pl.Categorical, pl.Enum(["ann", "bob"])]
    for number, kind in enumerate(kinds):
        users = pl.Series("user", ["ann", "bob"], dtype=kind)
        plays = pl.Series("plays", [None, None] if number else [1.0, 2.0])
        frame = pl.DataFrame({"user": users, "item": [number, 7], "plays": plays})
        frame.write_parquet(tmp_path / f"{number}.parquet")
    data = eq.read(tmp_path, weight="plays", on_bad="skip")
    assert data.users.tolist() == ["ann", "bob"]
    assert data.n_interactions == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_read_by_halves(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.csv")
    with pytest.raises(
        DataError, match=r"events\.csv is a pipe or a device, not a file; write it"
    ):
        eq.read(tmp_path / "events.csv")
    data = [("ann", "tea"), ("bob", "jam")]
    with pytest.raises(DataError, match="is a pipe or a device"):
        eq.read(data, catalogue=tmp_path / "events.csv")
