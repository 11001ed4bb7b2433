"""A folder of parts is the same table as one file that holds all of its rows."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
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
@given(rows=rows, header=st.booleans(), told=st.booleans(), data=st.data())
def test_parts_of_a_csv_give_the_same_interactions_as_the_whole(
    tmp_path_factory, rows, header, told, data
):
    root = tmp_path_factory.mktemp("csv")
    folder = root / "parts"
    folder.mkdir()
    table = [quoted(list(row)) for row in rows]
    whole = [list(HEADER), *table] if header else table
    (root / "whole.csv").write_text("".join(",".join(row) + "\n" for row in whole))
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
        options = {**columns, "header": header if told else None, "on_bad": on_bad}
        assert outcome(folder, **options) == outcome(root / "whole.csv", **options)


def test_decimals_in_one_part_and_words_in_another_stay_as_they_are_written(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1.10,x\n1.1,y\n")
    (tmp_path / "b.csv").write_text("user,item\nann,x\n")
    assert eq.read(tmp_path).users.tolist() == ["1.1", "1.10", "ann"]


def test_whole_decimals_in_one_part_are_the_integers_of_another(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1.0,x\n2.0,y\n")
    (tmp_path / "b.csv").write_text("user,item\n1,y\n")
    assert eq.read(tmp_path).users.tolist() == [1, 2]


def test_csv_parts_may_have_their_columns_in_another_order(tmp_path):
    (tmp_path / "a.csv").write_text("user,item,time\n1,x,5\n")
    (tmp_path / "b.csv").write_text("time,item,user\n6,y,2\n")
    data = eq.read(tmp_path)
    assert data.users.tolist() == [1, 2]
    assert data.items.tolist() == ["x", "y"]
    assert data.times.tolist() == [5, 6]


def test_parquet_parts_may_have_their_columns_in_another_order(tmp_path):
    pl.DataFrame({"user": [1], "item": ["x"]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"item": ["y"], "user": [2]}).write_parquet(tmp_path / "b.parquet")
    assert eq.read(tmp_path).users.tolist() == [1, 2]


def test_a_part_that_starts_with_words_is_data_where_the_first_has_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("1,x,5\n2,y,4\n")
    (tmp_path / "b.csv").write_text("3,x,\n4,y,3\n")
    (tmp_path / "c.csv").write_text("ann,x,5\n")
    assert eq.read(tmp_path).users.tolist() == ["1", "2", "3", "4", "ann"]


def test_a_part_that_starts_with_a_bad_record_is_skipped_over_like_any_other(tmp_path):
    (tmp_path / "a.csv").write_text("1,10,5\n2,20,4\n")
    (tmp_path / "b.csv").write_text("3\n3,10,5\n")
    with pytest.raises(DataError, match=r"b\.csv, line 1: the record has 1 fields"):
        eq.read(tmp_path)
    assert eq.read(tmp_path, on_bad="skip").users.tolist() == [1, 2, 3]


def test_parts_without_rows_add_nothing(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n")
    (tmp_path / "b.csv").write_text("user,item\n1,x\n2,y\n")
    (tmp_path / "c.csv").write_text("")
    (tmp_path / "d.csv").write_text("\n\n")
    data = eq.read(tmp_path)
    assert data.users.tolist() == [1, 2]
    assert "2 of 4 parts are empty" in data.notes


def test_a_folder_of_empty_parts_is_refused(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=r"all 2 parts of .* are empty"):
        eq.read(tmp_path)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("user,item\n")
    with pytest.raises(DataError, match="has a header but no rows"):
        eq.read(tmp_path)


def test_a_quotation_mark_means_the_same_in_every_part(tmp_path):
    (tmp_path / "a.csv").write_text('user,item\n1,5" pipe\n')
    (tmp_path / "b.csv").write_text('user,item\n2,"tea, green"\n')
    with pytest.raises(DataError, match=r"a\.csv, line 2: .* stray quotation mark"):
        eq.read(tmp_path)


def test_packed_and_plain_parts_go_together(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1.10,x\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"item,user\ny,ann\n"))
    assert eq.read(tmp_path).users.tolist() == ["1.10", "ann"]


def test_the_line_of_a_bad_row_is_that_of_its_part(tmp_path):
    (tmp_path / "a.csv").write_text("user,item,plays\n1,x,1\n\n2,y,1\n")
    (tmp_path / "b.csv").write_text("plays,user,item\n1,3,x\nmany,4,y\n")
    with pytest.raises(DataError, match=r"b\.csv, line 3: column 'plays' \('many'\)"):
        eq.read(tmp_path, weight="plays")


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


def test_ids_of_mixed_types_in_json_parts_name_the_file_and_its_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"user":"1","item":2}\n\n')
    (tmp_path / "b.jsonl").write_text('{"user":"2","item":2}\n{"user":1,"item":3}\n')
    with pytest.raises(DataError, match=r"b\.jsonl, line 2: column 'user' holds the number 1"):
        eq.read(tmp_path)


@pytest.mark.parametrize("kind", [pl.Int32, pl.UInt64, pl.UInt8])
def test_parquet_parts_may_have_integers_of_other_sizes(tmp_path, kind):
    pl.DataFrame({"user": [1, 2], "item": [1, 2]}).write_parquet(tmp_path / "a.parquet")
    users = pl.Series("user", [2, 3], dtype=kind)
    pl.DataFrame({"user": users, "item": [1, 2]}).write_parquet(tmp_path / "b.parquet")
    data = eq.read(tmp_path)
    assert data.users.tolist() == [1, 2, 3]
    assert data.users.dtype == np.int64


def test_an_id_beyond_2_63_in_a_parquet_part_is_refused_by_its_row(tmp_path):
    pl.DataFrame({"user": [1, 2], "item": [1, 2]}).write_parquet(tmp_path / "a.parquet")
    users = pl.Series("user", [3, 2**63], dtype=pl.UInt64)
    pl.DataFrame({"user": users, "item": [1, 2]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet, row 2: .* beyond 2\^63"):
        eq.read(tmp_path)


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


def test_types_that_disagree_between_parquet_parts_are_refused_by_file(tmp_path):
    pl.DataFrame({"user": [1, 2], "item": [1, 2], "ts": [1, 2]}).write_parquet(
        tmp_path / "a.parquet"
    )
    pl.DataFrame({"user": [1, 2], "item": [1, 2], "ts": ["1", "2"]}).write_parquet(
        tmp_path / "b.parquet"
    )
    with pytest.raises(DataError) as caught:
        eq.read(tmp_path)
    assert "column 'ts' holds Int64" in str(caught.value)
    assert "a.parquet" in str(caught.value)
    assert "String in" in str(caught.value)
    assert "b.parquet" in str(caught.value)


def test_a_pattern_that_names_files_of_several_kinds_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1,2\n")
    pl.DataFrame({"user": [1], "item": [1]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"a\.csv and .*b\.parquet are of different kinds"):
        eq.read(tmp_path / "*")
