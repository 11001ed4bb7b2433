"""`read`: tables that workers read become blocks of users that workers hold.

A worker reads and checks each part with the readers of the library. Item ids are merged in a tree.
Users are cut into ranges of sorted ids with about equally many rows; the rows of every part are
distributed to these ranges, and each range becomes a block of the matrix. Positions follow from
sorted ids and ranges from numbers of rows, so neither depends on how the rows were cut into parts
or on the number of workers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter, getitem
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import count
from equipoise.cluster.partitioned import Partitioned, fetch_sum, offsets_of
from equipoise.cluster.workers import connect, fetch, reduce_tree, submit, submit_each, task
from equipoise.data.interactions import KIND as SAVED
from equipoise.data.interactions import Interactions
from equipoise.data.readers import (
    check_one_kind,
    part_files,
    part_notes,
    table_files,
    table_kind,
    table_source,
    with_labels,
)
from equipoise.data.readers.build import (
    Log,
    Rows,
    check_sums,
    cut_note,
    cut_sessions,
    factorize,
    gathered,
    in_sessions,
    item_labels,
    lone_note,
    repeat_notes,
    type_codes,
    type_names,
    usable_rows,
)
from equipoise.data.readers.columns import choose_columns
from equipoise.data.readers.files import as_type, is_blank
from equipoise.data.readers.frames import object_source
from equipoise.data.readers.options import (
    TABLES,
    ReadOptions,
    Source,
    check_one_schema,
    reasons_text,
)
from equipoise.data.readers.research import recognised
from equipoise.data.split.parts import KIND as SPLIT
from equipoise.data.storage import is_directory_of
from equipoise.errors import DataError, EquipoiseError, SettingError

BLOCK_ROWS = 4_000_000  # rows of a block, unless that makes too many blocks
MAX_BLOCKS = 128  # each part is cut into as many pieces, which are tasks of their own
PART_SAMPLE, MAX_SAMPLE = 512, 16_384  # sampled users of a part, and of all parts
AXES = ("users", "items")
FSSPEC_ERRORS = (ImportError, OSError, ValueError)  # no such protocol, no such file

Codes = npt.NDArray[np.int32]
# The part of a block: its sorted users, and its rows, which refer to these by place
Piece = tuple[pl.Series, Log]


def read(
    source: Any, *, client: Any = "local", block_rows: int | None = None, **options: Any
) -> Partitioned:
    """Read interactions into the memory of workers; only item ids and counts come here.

    Parameters
    ----------
    source
        Files of one schema: a folder, a pattern such as ``events/part-*.parquet``, a URL that
        fsspec knows such as ``s3://bucket/part-*.parquet``, or a list of those; Parquet, CSV,
        JSON lines and Excel. Each file is a part, which workers must be able to open; a relative
        path starts from the folder of this process. Or a Dask DataFrame. Research formats and
        saved data are for `equipoise.read`.
    client
        A `distributed.Client`, the address of a scheduler, or "local" for the processors of this
        machine.
    block_rows
        Rows of the table in a block of users; a worker needs memory for a few parts and a few
        blocks at a time. By default 4 million, or more where that makes over 128 blocks.
    **options
        As for `equipoise.read`.

    Notes
    -----
    Ids, positions, events and `notes` are those of `equipoise.read` on the same files in the same
    order. Without times the order of a user's events is that of the parts.
    """
    if block_rows is not None:
        count("block_rows", block_rows)
    labels = options.pop("labels", None)
    settings = part_settings = ReadOptions(**options)
    settings.refuse(("users", "items"), "a table")
    if settings.format not in (None, *TABLES):
        raise SettingError(_only_tables(f"format={settings.format!r}"))
    settings = with_labels(settings, labels)
    client = connect(client)
    if hasattr(source, "to_delayed"):
        frames, name = client.compute(source.to_delayed()), "the frame"
        names = [f"partition {number + 1} of the frame" for number in range(len(frames))]
    else:
        names = _list_files(source, settings)
        frames = [None] * len(names)
        name = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the list of files"
    parts = [
        submit(client, load_part, part_name, frame, part_settings)
        for part_name, frame in zip(names, frames, strict=True)
    ]
    return _build_data(client, parts, name, settings, block_rows)


def _list_files(source: Any, options: ReadOptions) -> list[str]:
    """Return the files of a path, a pattern, a URL or a list of them."""
    if not isinstance(source, (str, os.PathLike)):
        if not isinstance(source, Iterable):
            raise DataError(
                f"cannot read a {type(source).__name__} on a cluster; give files, a pattern or a "
                "Dask DataFrame"
            )
        return [file for entry in source for file in _list_files(entry, options)]
    text = os.fspath(source)
    if "://" in text:
        return _list_remote_files(text)
    path = Path(text).absolute()  # workers have working folders of their own
    if any(is_directory_of(path, kind) for kind in (SAVED, SPLIT)):
        raise DataError(_only_tables(f"{text}, which the library saved,"))
    if options.format is None and recognised(path) is not None:
        raise DataError(_only_tables(f"{text}, a research format ({recognised(path)}),"))
    files = part_files(str(path))
    return list(map(str, [path] if files is None else files))


def _only_tables(source: str) -> str:
    return (
        f"{source} is not read by workers, which read tables; give it to equipoise.read, without "
        "a cluster, or name a table with format='csv'"
    )


def _list_remote_files(url: str) -> list[str]:
    import fsspec  # a dependency of Dask

    try:
        system, path = fsspec.core.url_to_fs(url)
        is_folder = system.isdir(path)
        names = sorted(system.find(path) if is_folder else system.glob(path))
    except FSSPEC_ERRORS as error:
        raise DataError(f"{url} cannot be listed: {error}; check the address") from error
    if is_folder:
        prefix = path.rstrip("/") + "/"
        relative = [name.removeprefix(prefix) for name in names]
        names = [prefix + name for name in table_files(relative, url)]
    if not names:
        raise DataError(f"no table matches {url}; check the pattern")
    return [str(system.unstrip_protocol(name)) for name in names]


@dataclass
class Part:
    """One part of the table on a worker.

    In `rows`, users and items are the sorted distinct ids; `codes` has the place of each row's id
    among them, by axis. `rows` is None for a blank file.
    """

    name: str
    kind: str
    columns: tuple[str, ...] = ()
    n_rows: int = 0
    rows: Rows | None = None
    codes: dict[str, Codes] | None = None

    def ids(self, axis: str) -> pl.Series:
        """Return the ids of "users" or "items"."""
        ids: pl.Series = getattr(self.rows, axis)
        return ids

    def encode(self, axis: str, ids: pl.Series) -> Part:
        """Return the part with distinct `ids` sorted, in place of one id per row or code."""
        assert self.rows is not None
        codes, distinct = factorize(ids)
        previous = self.codes or {}
        if axis in previous:
            codes = codes[previous[axis]]
        changed = {axis: pl.Series(ids.name, distinct, dtype=ids.dtype)}
        rows = replace(self.rows, **changed)  # type: ignore[arg-type]
        return replace(self, rows=rows, codes={**previous, axis: codes})

    def rows_of_users(self) -> npt.NDArray[np.int64]:
        """Return the number of rows of each user."""
        assert self.codes is not None
        return np.bincount(self.codes["users"], minlength=len(self.ids("users")))


@task
def load_part(name: str, frame: Any, options: ReadOptions) -> Part:
    """Read one file or frame; errors name it."""
    if frame is not None:
        return _load_source(object_source(frame, name), "frame", options)
    if "://" not in name:
        return _load_file(name, options)
    import fsspec

    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        copy = str(Path(folder) / name.rsplit("/", 1)[-1])
        try:
            system, path = fsspec.core.url_to_fs(name)
            system.get_file(path, copy)
        except FSSPEC_ERRORS as error:
            raise DataError(f"{name} cannot be fetched: {error}; check the address") from error
        try:
            return replace(_load_file(copy, options), name=name)
        except EquipoiseError as error:
            raise type(error)(str(error).replace(copy, name)) from None


def _load_file(name: str, options: ReadOptions) -> Part:
    path = Path(name)
    if path.is_file() and is_blank(path):
        return Part(name, "")
    return _load_source(table_source(path, options), table_kind(path, options), options)


def _load_source(source: Source, kind: str, options: ReadOptions) -> Part:
    rows = usable_rows(source, choose_columns(source, options), options)
    part = Part(source.name, kind, source.columns, len(rows.users), rows)
    if part.n_rows:
        for axis in AXES:
            part = part.encode(axis, part.ids(axis))
    return part


@task
def summarize(part: Part) -> Part:
    """Return a part without its rows: notes, counts, kinds of ids and names of types."""
    rows = part.rows
    if rows is None:
        return part
    empty = replace(
        rows,
        users=rows.users.clear(),
        items=rows.items.clear(),
        weights=None if rows.weights is None else rows.weights[:0],
        times=None if rows.times is None else rows.times[:0],
        types=None if rows.types is None else rows.types.unique(),
    )
    return replace(part, rows=empty, codes=None)


def _build_data(
    client: Any, parts: list[Any], name: str, options: ReadOptions, block_rows: int | None
) -> Partitioned:
    """Return the data of the parts of one table."""
    summaries: list[Part] = fetch(client, submit_each(client, summarize, parts))
    readable = [summary for summary in summaries if summary.rows is not None]
    read_notes = part_notes(name, len(summaries), len(readable))
    _check_alike(readable)
    # the kinds of columns are those of a part with usable rows
    table = _merge_summaries(sorted(readable, key=lambda summary: not summary.n_rows))
    n_rows = sum(summary.n_rows for summary in readable)
    table.require_some(n_rows, name, options)
    filled = [number for number, summary in enumerate(summaries) if summary.n_rows]
    parts = [parts[number] for number in filled]
    parts = _unify_ids(client, parts, [summaries[number] for number in filled])
    if readable[0].kind != "frame":
        table.notes[table.found : table.found] = read_notes
    notes = table.said(name, options)
    block_rows = block_rows or max(BLOCK_ROWS, -(-n_rows // MAX_BLOCKS))
    bounds = _block_bounds(client, parts, n_rows, -(-n_rows // block_rows))
    blocks, items, sizes = _build_blocks(client, parts, bounds, table, options)
    n_users, n_values, repeats, returned = sizes.sum(axis=0).tolist()
    weighted = table.weights is not None
    has_columns = weighted or table.times is not None or table.types is not None
    if not (has_columns or repeats or in_sessions(options)):
        blocks = submit_each(client, drop_events, blocks)
    if options.gap is not None:
        notes.append(cut_note(n_users, options.gap))
    notes += repeat_notes(n_rows, n_values, repeats, weighted, returned)
    data = Partitioned(client, blocks, items, sizes[:, 0], n_values, name=name)
    if n_users == 1:
        notes += lone_note(name, "user", data.gather().users)
    notes += lone_note(name, "item", items)
    data.labels = item_labels(items, options, notes)
    data.notes = tuple(notes)
    return data


def _build_blocks(
    client: Any, parts: list[Any], bounds: pl.Series, table: Rows, options: ReadOptions
) -> tuple[list[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Distribute the rows to ranges of users; return blocks, item ids and sizes of blocks."""
    options = replace(options, labels=None)
    types = type_names(table.types, table.type_column)
    part_items = submit_each(client, attrgetter("rows.items"), parts)
    items = reduce_tree(client, merge_ids, part_items)
    cut_parts = submit_each(client, cut_part, parts, items, bounds, types)
    built = []
    for number in range(len(bounds) + 1):
        pieces = submit_each(client, getitem, cut_parts, number)
        built.append(submit(client, build_block, pieces, items, options, types))
    sizes = fetch(client, submit_each(client, getitem, built, 1))
    blocks = submit_each(client, getitem, built, 0)
    return blocks, fetch(client, items).to_numpy(), np.array(sizes, np.int64)


def _block_bounds(client: Any, parts: list[Any], n_rows: int, n_blocks: int) -> pl.Series:
    """Return the first user of each block but the first; blocks have about as many rows each.

    A sample of users locates each bound between two of them; then the rows of all users
    between these two are counted. So no machine ever holds the ids of all users.
    """
    if n_blocks == 1:
        return pl.Series(dtype=pl.Int64)
    sample = pl.concat(fetch(client, submit_each(client, sample_users, parts))).unique().sort()
    sample = sample.gather_every(-(-len(sample) // MAX_SAMPLE))
    rows_below = fetch_sum(client, submit_each(client, count_rows_below, parts, sample))
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
    """Convert ids that are integers in some parts and text in others to one kind."""
    for axis in AXES:
        dtypes = [summary.ids(axis).dtype for summary in summaries]
        if len(set(dtypes)) > 1:
            common = _common_dtype(axis, summaries, dtypes)
            parts = [
                part if dtype == common else submit(client, cast_ids, part, axis, common)
                for part, dtype in zip(parts, dtypes, strict=True)
            ]
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
    """Refuse parts that differ in kind, in columns or in the kind of times."""
    names = [summary.name for summary in summaries]
    check_one_kind(names, [summary.kind for summary in summaries])
    check_one_schema(names, [summary.columns for summary in summaries])
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
def sample_users(part: Part) -> pl.Series:
    """Return users of a part at equal distances, from the first one on."""
    users = part.ids("users").alias("id")
    return users.gather_every(-(-len(users) // PART_SAMPLE))


@task
def count_rows_below(part: Part, sample: pl.Series) -> npt.NDArray[np.int64]:
    """Return how many rows of a part have users below each user of the sample."""
    places = part.ids("users").search_sorted(sample, side="left").to_numpy()
    return np.asarray(offsets_of(part.rows_of_users())[places])


def _range_between(ids: pl.Series, sample: pl.Series, place: int) -> tuple[int, int]:
    """Return the range of sorted ids from ``sample[place - 1]`` to before ``sample[place]``."""
    low = ids.search_sorted(sample[place - 1], side="left")
    return low, ids.search_sorted(sample[place], side="left") if place < len(sample) else len(ids)


@task
def count_rows_between(
    part: Part, sample: pl.Series, places: npt.NDArray[np.int64]
) -> pl.DataFrame:
    """Return the users of a part between sampled ones, before each of these places, with rows."""
    users = pl.DataFrame({"id": part.ids("users"), "rows": part.rows_of_users()})
    ranges = [_range_between(users["id"], sample, place) for place in places.tolist()]
    return pl.concat([users[low:high] for low, high in ranges])


@task
def merge_ids(ids: list[pl.Series]) -> pl.Series:
    """Return all ids, distinct and sorted."""
    return pl.concat(ids).unique().sort()


@task
def cut_part(
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
    pieces: list[Piece], items: pl.Series, options: ReadOptions, event_types: tuple[str, ...]
) -> tuple[Interactions, tuple[int, int, int, int]]:
    """Return the matrix of a range of users, whose items are known by position.

    Also return numbers of users, of values, of rows that repeat a pair, and of returns.
    """
    pieces = [(users, log) for users, log in pieces if len(log.items)]
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
def drop_events(block: Interactions) -> Interactions:
    """Return a block without its events, which say no more than the matrix."""
    return Interactions(block.matrix, block.user_index, block.item_index)
