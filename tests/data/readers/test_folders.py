"""Tables in folders: columns named by folders, Delta and Iceberg tables with deleted rows."""

from __future__ import annotations

import base64
import json
import string
import struct
import sys
from pathlib import Path

import polars as pl
import pytest

import equipoise as eq

EVENTS = pl.DataFrame(
    {
        "user": [1, 1, 2, 2, 3, 3, 4, 4],
        "item": ["a", "b", "a", "c", "b", "c", "a", "d"],
        "event": ["buy", "view"] * 4,
    }
)


def write_by_event(folder: Path, kind: str = "parquet") -> Path:
    """Write the events to a folder for each event, without this column, as Hive does."""
    for (event,), rows in EVENTS.group_by("event", maintain_order=True):
        place = folder / f"event={event}"
        place.mkdir(parents=True)
        write = {"parquet": "write_parquet", "csv": "write_csv", "jsonl": "write_ndjson"}[kind]
        getattr(rows.drop("event"), write)(place / f"part-0.{kind}")
    return folder


def typed_pairs(data: eq.Interactions) -> list[tuple[object, ...]]:
    return sorted(data.to_frame(events=True).select("user", "item", "type").rows())


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("pattern", ["", "event=*", "event=*/*"])
def test_a_folder_names_a_column_of_the_files_below(tmp_path, kind, pattern):
    folder = write_by_event(tmp_path / "data", kind)
    data = eq.read(folder / pattern)
    assert typed_pairs(data) == sorted(EVENTS.rows())
    assert "read 2 parts" in data.notes


def test_a_folder_may_name_the_user_or_the_time(tmp_path):
    for user, day in ((10, "2026-01-02"), (9, "2026-01-01")):
        place = tmp_path / "data" / f"user={user}" / f"day={day}"
        place.mkdir(parents=True)
        pl.DataFrame({"item": [1, 2]}).write_parquet(place / "part.parquet")
    data = eq.read(tmp_path / "data")
    assert data.users.tolist() == [9, 10]
    assert data.to_frame(events=True)["time"].to_list() == [1767225600.0] * 2 + [1767312000.0] * 2
    assert eq.read(tmp_path / "data", ids="text").users.tolist() == ["10", "9"]


def test_a_column_of_the_file_precedes_that_of_the_folder(tmp_path):
    place = tmp_path / "data" / "event=buy"
    place.mkdir(parents=True)
    EVENTS.write_parquet(place / "part.parquet")
    assert typed_pairs(eq.read(tmp_path / "data")) == sorted(EVENTS.rows())


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_column_of_some_files_that_is_not_needed_is_left_out(tmp_path, kind):
    write = {"parquet": pl.DataFrame.write_parquet, "csv": pl.DataFrame.write_csv}[kind]
    write(EVENTS[:4], tmp_path / f"a.{kind}")
    write(EVENTS[4:].with_columns(price=pl.lit(2.5)), tmp_path / f"b.{kind}")
    assert typed_pairs(eq.read(tmp_path)) == sorted(EVENTS.rows())
    with pytest.raises(eq.DataError, match="parts need the same columns"):
        eq.read(tmp_path, weight="price")
    write(EVENTS[4:].with_columns(date=pl.lit("2026-01-01")), tmp_path / f"b.{kind}")
    with pytest.raises(eq.DataError, match="parts need the same columns"):
        eq.read(tmp_path)
    assert typed_pairs(eq.read(tmp_path, time=False)) == sorted(EVENTS.rows())


@pytest.mark.parametrize("partition", [None, ["event"]])
def test_deleted_rows_of_a_delta_table_are_not_read(tmp_path, partition):
    deltalake = pytest.importorskip("deltalake")
    table = tmp_path / "table"
    for rows in (EVENTS[:4], EVENTS[4:]):
        deltalake.write_deltalake(table, rows, mode="append", partition_by=partition)
    deltalake.DeltaTable(table).delete("user = 3")
    data = eq.read(table)
    assert typed_pairs(data) == sorted(EVENTS.filter(pl.col("user") != 3).rows())
    deltalake.DeltaTable(table).delete()
    with pytest.raises(eq.DataError, match="is a folder without"):
        eq.read(table)


def mark_deleted(table: Path, row: int) -> None:
    """Add a commit to a Delta table of one file that marks a row of it as deleted.

    The marks are a 64-bit roaring bitmap in Z85, within the log ("storageType": "i").
    """
    bits = pytest.importorskip("pyroaring").BitMap([row]).serialize()
    marks = struct.pack("<iqi", 1681511377, 1, 0) + bits
    marks += bytes(-len(marks) % 4)
    digits = string.digits + string.ascii_uppercase + string.ascii_lowercase
    z85 = string.digits + string.ascii_lowercase + string.ascii_uppercase
    alphabets = digits + "!#$%&()*+-;<=>?@^_`{|}~", z85 + ".-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(marks).decode().translate(str.maketrans(*alphabets))
    (log,) = (table / "_delta_log").glob("*.json")
    add = json.loads(log.read_text().splitlines()[-1])["add"]
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(marks)}
    add = {name: value for name, value in add.items() if value is not None}
    add["deletionVector"] = {**vector, "cardinality": 1}
    lines = json.dumps({"remove": remove}), json.dumps({"add": add})
    (table / "_delta_log" / f"{1:020}.json").write_text("\n".join(lines) + "\n")


def test_a_delta_table_with_marked_rows_is_refused(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    options = {"delta.enableDeletionVectors": "true"}
    deltalake.write_deltalake(tmp_path / "table", EVENTS, configuration=options)
    assert typed_pairs(eq.read(tmp_path / "table")) == sorted(EVENTS.rows())
    mark_deleted(tmp_path / "table", 1)
    with pytest.raises(eq.DataError, match=r"marks deleted rows of 1 files .*REORG TABLE"):
        eq.read(tmp_path / "table")


def test_deleted_rows_of_an_iceberg_table_are_not_read(tmp_path):
    catalog = pytest.importorskip("pyiceberg.catalog.sql")
    books = catalog.SqlCatalog("local", uri="sqlite://", warehouse=f"file://{tmp_path}")
    books.create_namespace("shop")
    table = books.create_table("shop.events", schema=EVENTS.to_arrow().schema)
    for rows in (EVENTS[:4], EVENTS[4:]):
        table.append(rows.to_arrow().cast(table.schema().as_arrow()))
    table.delete("user == 3")
    folder = table.location().removeprefix("file://")
    expected = sorted(EVENTS.filter(pl.col("user") != 3).rows())
    assert typed_pairs(eq.read(folder)) == expected
    with table.update_schema() as change:
        change.rename_column("event", "action")
    with pytest.raises(eq.DataError, match=r"has renamed columns.*rewrite its data files"):
        eq.read(folder)


@pytest.mark.parametrize(
    ("kind", "package"), [("_delta_log", "deltalake"), ("metadata", "pyiceberg")]
)
def test_without_their_package_such_tables_are_refused(tmp_path, monkeypatch, kind, package):
    EVENTS.write_parquet(tmp_path / "part.parquet")
    (tmp_path / kind).mkdir()
    (tmp_path / kind / "00001-0a.metadata.json").write_text("{}")
    for module in (package, f"{package}.table", f"{package}.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(eq.MissingExtraError, match=f"install {package} with"):
        eq.read(tmp_path)
