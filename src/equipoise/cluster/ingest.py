"""`read`: tables that workers read become blocks of users that workers hold.

A worker reads and checks each part with the readers of the library. Item ids are merged in a tree.
Users are cut into ranges of sorted ids with about equally many rows; the rows of every part are
distributed to these ranges, and each range becomes a block of the matrix. Positions follow from
sorted ids and ranges from numbers of rows, so neither depends on how the rows were cut into parts
or on the number of workers.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import getitem, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import count
from equipoise.cluster.loading import AXES, Part, load_frame, load_part, summarize
from equipoise.cluster.partitioned import Partitioned, offsets_of
from equipoise.cluster.planning import Reading, Slice, find_files, only_tables, plan_parts
from equipoise.cluster.workers import (
    connect,
    fetch,
    reduce_tree,
    send,
    smallest_memory,
    submit,
    submit_each,
    task,
)
from equipoise.data.catalogue import read_catalogue
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.read_options import TABLES, ReadOptions
from equipoise.data.readers import open_catalogue
from equipoise.data.readers.build import (
    Log,
    Rows,
    check_sums,
    cut_note,
    cut_sessions,
    factorize,
    gathered,
    in_sessions,
    lone_note,
    repeat_notes,
    type_codes,
    type_names,
)
from equipoise.data.readers.files import as_type, check_one_kind, part_notes
from equipoise.data.readers.folders import TableFile
from equipoise.data.remote import StorageOptions, local_copy
from equipoise.data.tables import check_one_schema, reasons_text
from equipoise.errors import DataError, SettingError

BLOCK_ROWS = 4_000_000  # rows of a block, unless that makes too many blocks
MAX_BLOCKS = 128
RUN_MEMORY = 80  # bytes that distributing a row takes
PROCESS_MEMORY = 300e6  # bytes of a worker without data
PART_SAMPLE, MAX_SAMPLE = 512, 16_384  # sampled users of a part, and of all parts

THE_FRAME = "the frame"

# The part of a block: its sorted users, and its rows, which refer to these by place
Piece = tuple[pl.Series, Log]


def read(
    source: Any,
    *,
    client: Any = "local",
    block_rows: int | None = None,
    storage_options: StorageOptions | None = None,
    shared: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Partitioned:
    """Read interactions into the memory of workers; only item ids and counts come here.

    Parameters
    ----------
    source
        Files of one table: a folder, a pattern such as ``events/part-*.parquet`` or
        ``events/day=2026-01-*``, a URL that fsspec knows such as ``s3://bucket/events``, or a list
        of those; Parquet, CSV, JSON lines and Excel; the folder of a Delta or Iceberg table.
        Workers must be able to open them; a relative path starts from the folder of this process.
        Or a frame of Dask or Spark. Research formats and saved data are for `equipoise.read`.
    client
        A `distributed.Client`, the address of a scheduler, or "local" for the processors of this
        machine.
    block_rows
        Rows of the table in a block of users; a worker needs memory for a few parts and a few
        blocks at a time. By default 4 million, or more where that makes over 128 blocks.
    storage_options
        Options of fsspec for URLs, such as ``{"anon": True}`` for s3; they go to the workers
        through the scheduler.
    shared
        For a Spark frame: the folder or URL below which Spark writes its rows as Parquet files for
        the workers. They have to stay as long as the data are used.
    **options
        As for `equipoise.read`; `catalogue` may be a URL.

    Notes
    -----
    Ids, positions, events and `notes` are those of `equipoise.read` on the same files in the same
    order. Without times the order of a user's events is that of the files.
    """
    if block_rows is not None:
        count("block_rows", block_rows)
    catalogue = options.pop("catalogue", None)
    reading = Reading(ReadOptions(**options), storage_options)
    settings = reading.options
    settings.refuse(("users", "items"), "a table")
    if settings.format not in (None, *TABLES):
        raise SettingError(only_tables(f"format={settings.format!r}"))
    if hasattr(source, "mapInArrow"):
        source = _write_spark_frame(source, shared)
    with local_copy(catalogue, storage_options) as local_catalogue:
        settings = open_catalogue(settings, local_catalogue)
        client = connect(client)
        if hasattr(source, "to_delayed"):
            frames, name = client.compute(source.to_delayed()), THE_FRAME
            parts = [
                submit(client, load_frame, f"partition {number + 1} of the frame", frame, reading)
                for number, frame in enumerate(frames)
            ]
            summaries = fetch(client, submit_each(client, summarize, parts, PART_SAMPLE))
        else:
            is_path = isinstance(source, (str, os.PathLike))
            name = os.fspath(source) if is_path else "the list of files"
            files = find_files(source, reading)
            if is_path and [file.name for file, _ in files] == [os.path.abspath(name)]:
                name = files[0][0].name
            parts, summaries = _load_files(client, files, reading)
        return _build_data(client, parts, summaries, name, settings, block_rows)


def _write_spark_frame(frame: Any, shared: str | os.PathLike[str] | None) -> str:
    """Let Spark write a frame to a new folder below `shared`; return the folder."""
    if shared is None:
        raise SettingError(
            "Spark writes its frames to files that the workers read; give a folder or URL that "
            "both see with shared="
        )
    folder = f"{os.fspath(shared).rstrip('/')}/equipoise-{secrets.token_hex(6)}"
    # the Hadoop name of the protocol; a path without one may belong to HDFS
    spark_folder = re.sub("^s3://", "s3a://", folder)
    if "://" not in folder:
        spark_folder = f"file://{os.path.abspath(folder)}"
    frame.write.parquet(spark_folder)
    return folder


def _load_files(
    client: Any, files: list[tuple[TableFile, int]], reading: Reading
) -> tuple[list[Any], list[Part]]:
    """Return the parts of files, and their summaries."""
    n_threads = list(client.nthreads().values()) or [1]
    memory = smallest_memory(client) / max(n_threads)
    plan = plan_parts(files, reading, memory, sum(n_threads))
    sent = send(client, reading)
    parts = [submit(client, load_part, slices, sent) for slices in plan]
    summaries: list[Part] = fetch(client, submit_each(client, summarize, parts, PART_SAMPLE))
    torn = {summary.name for summary in summaries if summary.torn}
    if torn:  # fields continue after a line, so one task has to read the file
        numbers = [
            number
            for number, slices in enumerate(plan)
            if slices[0].file.name not in torn or slices[0].number == 0
        ]
        replaced = [number for number in numbers if plan[number][0].file.name in torn]
        for number in replaced:
            entry = plan[number][0]
            parts[number] = submit(client, load_part, [Slice(entry.file, entry.size)], sent)
        again = fetch(
            client,
            submit_each(client, summarize, [parts[number] for number in replaced], PART_SAMPLE),
        )
        for number, summary in zip(replaced, again, strict=True):
            summaries[number] = summary
        parts = [parts[number] for number in numbers]
        summaries = [summaries[number] for number in numbers]
    for summary in summaries:
        if summary.error is not None:
            raise summary.error
    return parts, summaries


def _build_data(
    client: Any,
    parts: list[Any],
    summaries: list[Part],
    name: str,
    options: ReadOptions,
    block_rows: int | None,
) -> Partitioned:
    """Return the data of the parts of one table."""
    readable = [summary for summary in summaries if summary.rows is not None]
    read_notes: list[str] = []
    if name != THE_FRAME:
        n_files, n_full = np.sum([summary.files for summary in summaries], axis=0).tolist()
        read_notes = part_notes(name, n_files, n_full)
    if name == summaries[0].name:  # a single file
        read_notes = []
    _check_alike(readable)
    # the kinds of columns are those of a part with usable rows
    table = _merge_summaries(sorted(readable, key=lambda summary: not summary.n_rows))
    n_rows = sum(summary.n_rows for summary in readable)
    table.require_rows(n_rows, name, options)
    filled = [number for number, summary in enumerate(summaries) if summary.n_rows]
    parts, summaries = [parts[number] for number in filled], [summaries[n] for n in filled]
    parts = _unify_ids(client, parts, summaries)
    table.notes[table.n_column_notes : table.n_column_notes] = read_notes
    notes = table.all_notes(name, options)
    block_rows = block_rows or max(BLOCK_ROWS, -(-n_rows // MAX_BLOCKS))
    n_blocks = -(-n_rows // block_rows)
    runs = _make_runs(client, parts, [summary.n_rows for summary in summaries], n_blocks)
    bounds = _block_bounds(client, runs, summaries, n_rows, n_blocks)
    blocks, items, sizes = _build_blocks(client, runs, bounds, table, options)
    n_users, n_values, repeats, returned = sizes.sum(axis=0).tolist()
    weighted = table.weights is not None
    if options.gap is not None:
        notes.append(cut_note(n_users, options.gap))
    notes += repeat_notes(n_rows, n_values, repeats, weighted, returned)
    data = Partitioned(client, blocks, items, sizes[:, 0], n_values, name=name)
    if n_users == 1:
        notes += lone_note(name, "user", data.gather().users)
    notes += lone_note(name, "item", items)
    data.known_items = read_catalogue(IdIndex(items, "item"), options, notes)
    data.notes = tuple(notes)
    return data


def _make_runs(
    client: Any, parts: list[Any], rows: list[int], n_blocks: int
) -> list[dict[int, Any]]:
    """Return groups of parts, by number, that are distributed to blocks together.

    A group is distributed as one piece for each block, and each piece is a task: groups are so
    many that all tasks of `read` are at most four for each part and block, and more only where a
    worker has little memory. Parts of a group are on the same worker, as far as possible.
    """
    n_parts, n_workers = len(parts), max(len(client.nthreads()), 1)
    n_runs = max((2 * n_parts + n_blocks - 2) // (n_blocks + 5), 1)
    if n_runs > n_workers:
        n_runs -= n_runs % n_workers
    room = max(smallest_memory(client) - PROCESS_MEMORY, PROCESS_MEMORY / 4)
    n_runs = min(max(n_runs, math.ceil(sum(rows) * RUN_MEMORY / room)), n_parts)
    holders = client.who_has(parts)
    workers = [min(holders.get(part.key) or [""]) for part in parts]
    order = sorted(range(n_parts), key=lambda number: (workers[number], number))
    before = offsets_of([rows[number] for number in order])[:-1]
    runs: dict[int, dict[int, Any]] = {}
    for number, start in zip(order, before.tolist(), strict=True):
        runs.setdefault(start * n_runs // sum(rows), {})[number] = parts[number]
    return list(runs.values())


def _build_blocks(
    client: Any,
    runs: list[dict[int, Any]],
    bounds: pl.Series,
    table: Rows,
    options: ReadOptions,
) -> tuple[list[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Distribute the rows to ranges of users; return blocks, item ids and sizes of blocks."""
    options = replace(options, catalogue=None)
    types = type_names(table.types, table.type_column)
    items = reduce_tree(
        client, merge_ids, [submit(client, items_of, list(run.values())) for run in runs]
    )
    cut_runs = [submit(client, cut_run, run, items, bounds, types) for run in runs]
    built = []
    for number in range(len(bounds) + 1):
        pieces = submit_each(client, getitem, cut_runs, number)
        built.append(submit(client, build_block, pieces, items, options, types))
    del cut_runs
    sizes = np.array(fetch(client, submit_each(client, getitem, built, 1)), np.int64)
    columns = (table.weights, table.times, table.types)
    has_columns = any(column is not None for column in columns)
    # events say no more than the matrix
    without_events = not (has_columns or sizes[:, 2].any() or in_sessions(options))
    blocks = submit_each(client, take_block, built, without_events)
    return blocks, fetch(client, items).to_numpy(), sizes


def _block_bounds(
    client: Any, runs: list[dict[int, Any]], summaries: list[Part], n_rows: int, n_blocks: int
) -> pl.Series:
    """Return the first user of each block but the first; blocks have about as many rows each.

    A sample of users locates each bound between two of them; then the rows of all users
    between these two are counted. So no machine ever holds the ids of all users.
    """
    if n_blocks == 1:
        return pl.Series(dtype=pl.Int64)
    sample = pl.concat(summary.users for summary in summaries).unique().sort()
    sample = sample.gather_every(-(-len(sample) // MAX_SAMPLE))
    parts = [list(run.values()) for run in runs]
    below = fetch(client, submit_each(client, count_rows_below, parts, sample))
    rows_below = np.sum(below, axis=0)
    # a block begins at the first user with at least so many rows below
    thresholds = [-(-number * n_rows // n_blocks) for number in range(1, n_blocks)]
    places = np.searchsorted(rows_below, thresholds)
    counts = submit_each(client, count_rows_between, parts, sample, np.unique(places))
    users = pl.concat(fetch(client, counts)).group_by("id").agg(pl.col("rows").sum()).sort("id")
    running = offsets_of(users["rows"].to_numpy())
    bounds = []
    for threshold, place in zip(thresholds, places.tolist(), strict=True):
        low, high = _range_between(users["id"], sample, place)
        rows = threshold - rows_below[place - 1] + running[low]
        first = low + int(np.searchsorted(running[low:high], rows))
        if first < high:
            bounds.append(users["id"][first])
        elif place < len(sample):
            bounds.append(sample[place])
    return pl.Series(bounds, dtype=sample.dtype).unique(maintain_order=True)


def _unify_ids(client: Any, parts: list[Any], summaries: list[Part]) -> list[Any]:
    """Convert ids that are integers in some parts and text in others to one kind.

    The sampled users of the summaries too.
    """
    for axis in AXES:
        dtypes = [summary.ids(axis).dtype for summary in summaries]
        if len(set(dtypes)) > 1:
            common = _common_dtype(axis, summaries, dtypes)
            parts = [
                part if dtype == common else submit(client, cast_ids, part, axis, common)
                for part, dtype in zip(parts, dtypes, strict=True)
            ]
            if axis == "users":
                for summary in summaries:
                    summary.users = as_type(summary.users, common, summary.name)
    return parts


def _common_dtype(axis: str, summaries: list[Part], dtypes: list[Any]) -> Any:
    """Return the kind of ids that the readers of the library choose."""
    if summaries[0].kind == "jsonl":
        numbers, texts = (summaries[dtypes.index(kind)].name for kind in (pl.Int64, pl.String))
        raise DataError(
            f"the {axis.removesuffix('s')} ids are numbers in {numbers} and text in {texts}; use "
            "one kind of ids, or pass ids='text'"
        )
    return pl.String() if summaries[0].kind == "text" else dtypes[0]


def _check_alike(summaries: list[Part]) -> None:
    """Refuse parts that differ in kind, in the columns that are used or in the kind of times."""
    names = [summary.name for summary in summaries]
    check_one_kind(names, [summary.kind for summary in summaries])
    first = summaries[0]
    assert first.chosen is not None
    for summary in summaries:
        assert summary.chosen is not None
        if summary.chosen.by_role() != first.chosen.by_role():
            check_one_schema([first.name, summary.name], [first.columns, summary.columns])
            raise DataError(
                f"{first.name} and {summary.name} have the same columns, but other ones look like "
                "the user, item, time or type; name the columns to use"
            )
    time_notes: dict[str, str] = {}
    for summary in summaries:
        assert summary.rows is not None
        notes = (note for note in summary.rows.notes if note.startswith("times "))
        time_notes |= dict.fromkeys(notes, summary.name)
    if len(time_notes) > 1:
        kinds = " but ".join(f"{note} in {name}" for note, name in list(time_notes.items())[:2])
        raise DataError(f"{kinds}; parts need times of one kind, pass time_unit= or time_format=")


def _merge_summaries(summaries: Sequence[Part]) -> Rows:
    """Return the notes and counts of all parts together."""
    first, *later = (summary.rows for summary in summaries if summary.rows is not None)
    table = replace(first, notes=list(first.notes), skipped=first.skipped.copy())
    for rows in later:
        table.notes = list(dict.fromkeys([*table.notes, *rows.notes]))
        table.skipped.update(rows.skipped)
        table.height += rows.height
        table.rated, table.low = table.rated + rows.rated, table.low + rows.low
        table.idle += rows.idle
        if table.types is not None and rows.types is not None:
            table.types = pl.concat([table.types, rows.types]).unique()
    table.reasons = reasons_text(table.skipped)
    return table


@task
def cast_ids(part: Part, axis: str, dtype: Any) -> Part:
    """Convert the ids of a part; text that is no integer is refused."""
    return part.encode(axis, as_type(part.ids(axis), dtype, part.name))


@task
def count_rows_below(parts: list[Part], sample: pl.Series) -> npt.NDArray[np.int64]:
    """Return how many rows of some parts have users below each user of the sample."""
    below = np.zeros(len(sample), np.int64)
    for part in parts:
        places = part.ids("users").search_sorted(sample, side="left").to_numpy()
        below += offsets_of(part.rows_of_users())[places]
    return below


def _range_between(ids: pl.Series, sample: pl.Series, place: int) -> tuple[int, int]:
    """Return the range of sorted ids from ``sample[place - 1]`` to before ``sample[place]``."""
    low = ids.search_sorted(sample[place - 1], side="left")
    return low, ids.search_sorted(sample[place], side="left") if place < len(sample) else len(ids)


@task
def count_rows_between(
    parts: list[Part], sample: pl.Series, places: npt.NDArray[np.int64]
) -> pl.DataFrame:
    """Return the users between sampled ones, before each of these places, with rows."""
    pieces = []
    for part in parts:
        users = pl.DataFrame({"id": part.ids("users"), "rows": part.rows_of_users()})
        ranges = [_range_between(users["id"], sample, place) for place in places.tolist()]
        pieces += [users[low:high] for low, high in ranges]
    return pl.concat(pieces).group_by("id").agg(pl.col("rows").sum())


@task
def items_of(parts: list[Part]) -> pl.Series:
    """Return the items of some parts, distinct and sorted."""
    return pl.concat([part.ids("items") for part in parts]).unique().sort()


@task
def merge_ids(ids: list[pl.Series]) -> pl.Series:
    """Return all ids, distinct and sorted."""
    return pl.concat(ids).unique().sort()


@task
def cut_run(
    run: dict[int, Part], items: pl.Series, bounds: pl.Series, event_types: tuple[str, ...]
) -> list[dict[int, Piece]]:
    """Return for each block its pieces of these parts, by number of the part."""
    cut = {number: _cut_part(part, items, bounds, event_types) for number, part in run.items()}
    return [
        {number: pieces[block] for number, pieces in cut.items() if len(pieces[block][1].items)}
        for block in range(len(bounds) + 1)
    ]


def _cut_part(
    part: Part, items: pl.Series, bounds: pl.Series, event_types: tuple[str, ...]
) -> list[Piece]:
    """Cut the rows of a part into pieces, one for each block, in their order."""
    assert part.rows is not None
    assert part.codes is not None
    rows, user_codes = part.rows, part.codes["users"]
    positions = items.to_frame("id").with_row_index("position")
    part_items = rows.items.alias("id").to_frame()
    joined = part_items.join(positions, on="id", how="left", maintain_order="left")
    item_positions = joined["position"].cast(pl.Int32).to_numpy()[part.codes["items"]]
    types = type_codes(rows.types, event_types)
    starts = rows.users.search_sorted(bounds, side="left").to_list() if len(bounds) else []
    edges = np.array([0, *starts, len(rows.users)])
    sizes = np.diff(edges)
    # NumPy sorts integers of up to 16 bits in linear time
    small = np.min_scalar_type(len(sizes))
    block = np.repeat(np.arange(len(sizes), dtype=small), sizes)[user_codes]
    order = np.argsort(block, kind="stable")
    ends = offsets_of(np.bincount(block, minlength=len(sizes)))
    pieces = []
    for number, (low, high) in enumerate(pairwise(edges)):
        chosen = order[ends[number] : ends[number + 1]]
        log = Log(
            user_codes[chosen] - np.int32(low),
            item_positions[chosen],
            None if rows.weights is None else rows.weights[chosen],
            None if rows.times is None else rows.times[chosen],
            None if types is None else types[chosen],
        )
        pieces.append((rows.users[low:high], log))
    return pieces


@task
def build_block(
    pieces_of_runs: list[dict[int, Piece]],
    items: pl.Series,
    options: ReadOptions,
    event_types: tuple[str, ...],
) -> tuple[Interactions, tuple[int, int, int, int]]:
    """Return the matrix of a range of users, whose items are known by position.

    Also return numbers of users, of values, of rows that repeat a pair, and of returns.
    """
    numbered = [piece for pieces in pieces_of_runs for piece in pieces.items()]
    pieces = [piece for _, piece in sorted(numbered, key=itemgetter(0))]
    places, user_ids = factorize(pl.concat([users for users, _ in pieces]))
    starts = offsets_of([len(users) for users, _ in pieces])[:-1]
    rows = [places[start + log.users] for start, (_, log) in zip(starts, pieces, strict=True)]
    columns: list[Any] = [
        None if parts[0] is None else np.concatenate(parts)
        for parts in zip(*(log[1:] for _, log in pieces), strict=True)
    ]
    log = Log(np.concatenate(rows), *columns)
    if options.gap is not None and log.times is not None:
        sessions, user_ids = cut_sessions(log.users, log.times, user_ids, options.gap)
        log = log._replace(users=sessions)
    shape = (len(user_ids), len(items))
    matrix, events, repeats = gathered(log, shape, in_sessions(options), event_types, always=True)
    if log.weights is not None:
        check_sums(matrix, log, (user_ids, items.to_numpy()))
    returned = 0 if log.weights is None else int((log.weights < 0).sum())
    data = Interactions(matrix, user_ids, events=events)
    return data, (data.n_users, matrix.nnz, repeats, returned)


@task
def take_block(built: tuple[Interactions, Any], without_events: bool) -> Interactions:
    """Return the block of `build_block`, with or without its events."""
    block = built[0]
    if without_events:
        return Interactions(block.matrix, block.user_index, block.item_index)
    return block
