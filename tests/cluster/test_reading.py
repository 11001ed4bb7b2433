"""Reading planned from file sizes: merged and shared files, columns of folders, lake tables."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.cluster import ingest, planning
from equipoise.cluster.loading import RangedParquet, load_part
from equipoise.cluster.planning import Reading, Slice, find_files, plan_parts
from equipoise.data.read_options import ReadOptions
from equipoise.data.readers.folders import TableFile

PLAIN = Reading(ReadOptions())


def events(n_rows: int = 900, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user": rng.integers(0, 60, n_rows),
            "item": [f"i{number}" for number in rng.integers(0, 40, n_rows)],
            "ts": rng.integers(1_600_000_000, 1_700_000_000, n_rows),
        }
    )


def write_parts(folder: Path, frame: pl.DataFrame, cuts: list[int]) -> Path:
    folder.mkdir()
    for number, (low, high) in enumerate(pairwise([0, *cuts, frame.height])):
        frame[low:high].write_parquet(folder / f"part-{number:03d}.parquet")
    return folder


def plan(source: Any, reading: Reading = PLAIN, memory: float = 1e12) -> list[list[Slice]]:
    return plan_parts(find_files(source, reading), reading, memory, 2)


def is_same(data: eq.Interactions, expected: eq.Interactions) -> bool:
    return data.fingerprint == expected.fingerprint and data.notes == expected.notes


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a task read about 200 rows."""
    for name, value in {"PART_ROWS": 200, "LEAST_ROWS": 200, "FILE_ROWS": 20}.items():
        monkeypatch.setattr(planning, name, value)


def test_small_files_are_merged(client, tmp_path, small_parts):
    folder = write_parts(tmp_path / "data", events(), list(range(30, 900, 30)))
    assert [len(slices) for slices in plan(folder)] == [4] * 7 + [2]
    data = eq.cluster.read(folder, client=client, block_rows=300)
    assert is_same(data.gather(), eq.read(folder))


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_large_files_are_shared_out(client, tmp_path, small_parts, monkeypatch, kind):
    monkeypatch.setitem(planning.BYTES_PER_ROW, "text", 20.0)
    file = tmp_path / f"events.{kind}"
    write = {
        "parquet": lambda: events().write_parquet(file, row_group_size=100),
        "csv": lambda: events().write_csv(file),
        "jsonl": lambda: events().write_ndjson(file),
    }
    write[kind]()
    assert len(plan(file)) > 2
    data = eq.cluster.read(file, client=client, block_rows=300).gather()
    assert is_same(data, eq.read(file))


def test_parts_are_smaller_for_workers_with_little_memory():
    files = [
        (TableFile("of 3 million rows.parquet"), int(3e6 * planning.BYTES_PER_ROW["parquet"]))
    ]
    assert len(plan_parts(files, PLAIN, memory=1e12, threads=1)) == 3
    assert len(plan_parts(files, PLAIN, memory=100e6, threads=1)) == 15


def test_each_row_group_is_in_one_share(tmp_path):
    file = tmp_path / "events.parquet"
    events().write_parquet(file, row_group_size=70)
    for shares in (1, 2, 5, 40):
        slices = [Slice(TableFile(str(file)), 0, number, shares) for number in range(shares)]
        frames = [RangedParquet(entry, PLAIN).read(["ts", "user"]) for entry in slices]
        assert pl.concat(frames).equals(events().select("ts", "user"))


@pytest.mark.parametrize("n_shares", [2, 7, 100])
@pytest.mark.parametrize("ending", ["\n", ""])
@pytest.mark.parametrize("header", [True, False])
def test_each_line_is_in_one_share(tmp_path, n_shares, ending, header):
    text = events(50).write_csv(include_header=header)
    file = tmp_path / "events.csv"
    file.write_text(text.removesuffix("\n") + ending)
    columns = {} if header else {"user": 0, "item": 1, "time": 2, "header": False}
    reading = Reading(ReadOptions(**columns))
    size = file.stat().st_size
    parts = [
        load_part([Slice(TableFile(str(file)), size, number, n_shares)], reading)
        for number in range(n_shares)
    ]
    assert sum(part.n_rows for part in parts) == 50
    times = [time for part in parts if part.n_rows for time in part.rows.times.tolist()]
    assert times == events(50)["ts"].to_list()
    assert sum(part.files[0] for part in parts) == 1


def test_a_bad_row_in_a_share_is_named_by_its_line(client, tmp_path, small_parts, monkeypatch):
    monkeypatch.setitem(planning.BYTES_PER_ROW, "text", 20.0)
    file = tmp_path / "events.csv"
    lines = events().write_csv().splitlines()
    lines[700] = ",i1,1600000000"
    file.write_text("\n".join(lines))
    assert len(plan(file)) > 3
    with pytest.raises(eq.DataError) as here:
        eq.read(file)
    with pytest.raises(eq.DataError) as there:
        eq.cluster.read(file, client=client)
    assert str(there.value) == str(here.value)
    assert "events.csv, line 701" in str(there.value)


def test_a_field_of_several_lines_is_not_torn(client, tmp_path, small_parts, monkeypatch):
    monkeypatch.setitem(planning.BYTES_PER_ROW, "text", 20.0)
    file = tmp_path / "events.csv"
    note = 'a "note"\nof two lines, 1\n2,i3,1600000000\n'
    frame = events().with_columns(note=pl.when(pl.col("user") < 20).then(pl.lit(note)))
    frame.write_csv(file)
    assert len(plan(file)) > 3
    data = eq.cluster.read(file, client=client, block_rows=300).gather()
    assert data.fingerprint == eq.read(file).fingerprint


def test_tasks_are_at_most_four_for_each_part_and_block(client, tmp_path, monkeypatch):
    folder = write_parts(tmp_path / "data", events(2000), list(range(50, 2000, 50)))
    parts, blocks, submitted = [], [], []
    monkeypatch.setattr(
        ingest, "plan_parts", lambda *args: parts.extend(plan_parts(*args)) or parts
    )
    submit = client.submit
    monkeypatch.setattr(
        client, "submit", lambda *args, **options: submitted.append(1) or submit(*args, **options)
    )
    data = eq.cluster.read(folder, client=client, block_rows=100)
    blocks = data.blocks
    assert (len(parts), len(blocks)) == (40, 20)
    assert len(submitted) <= 4 * (len(parts) + len(blocks))
    assert data.gather().fingerprint == eq.read(folder).fingerprint


def test_folders_name_columns(client, tmp_path):
    for number, event in enumerate(["view", "buy"]):
        (tmp_path / "data" / f"event={event}").mkdir(parents=True)
        frame = events(100, seed=number)
        frame.write_parquet(tmp_path / "data" / f"event={event}" / "part.parquet")
    expected = eq.read(tmp_path / "data")
    assert expected.events.type_names == ("buy", "view")
    for source in (
        tmp_path / "data",
        f"file://{tmp_path}/data",
        f"file://{tmp_path}/data/event=*",
    ):
        assert eq.cluster.read(source, client=client).gather().fingerprint == expected.fingerprint


def test_deleted_rows_of_lake_tables_are_not_read(client, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    table = tmp_path / "table"
    frame = events(200).with_columns(event=pl.lit("buy"))
    deltalake.write_deltalake(table, frame, partition_by=["event"])
    deltalake.DeltaTable(table).delete("user < 30")
    other_parts = eq.read(frame.filter(pl.col("user") >= 30))
    for source in (table, f"file://{table}"):
        data = eq.cluster.read(source, client=client).gather()
        assert data.fingerprint == other_parts.fingerprint == eq.read(table).fingerprint


def test_a_full_disk_is_a_clear_error(monkeypatch, tmp_path):
    file = tmp_path / "events.csv"
    events().write_csv(file)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    entry = Slice(TableFile(str(file)), file.stat().st_size, 0, 2)
    with pytest.raises(eq.DataError, match=r"the disk of a worker is full.*set TMPDIR"):
        load_part([entry], PLAIN)
