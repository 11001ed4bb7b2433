"""`read`: files or frames that workers read become blocks of users that workers hold.

Each part is read and checked by a worker, with the readers of the library. Ids of items are put
together in a tree; users are cut into ranges of sorted ids with about as many rows each, every
part is dealt to these ranges, and a range becomes a block of the matrix. Positions come from
sorted ids and ranges from numbers of rows, so neither depends on how the rows were cut into parts,
nor on the number of workers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import count
from equipoise.cluster.partitioned import Partitioned, total
from equipoise.cluster.workers import connect, reduced, results, submit, task
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
from equipoise.errors import DataError, EquipoiseError, MissingExtraError, SettingError

BLOCK_ROWS = 4_000_000  # of a block, unless there were too many
MOST_BLOCKS = 128  # each part is cut into as many pieces, which are tasks of their own
SAMPLES, MOST_SAMPLES = 512, 16_384  # users of a part, and of all, that blocks are cut by first
AXES = ("user", "item")
FETCHING = (ImportError, OSError, ValueError)  # of fsspec: no such protocol, no such file

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


def read(
    source: Any, *, client: Any = "local", block_rows: int | None = None, **options: Any
) -> Partitioned:
    """Read interactions that workers hold; only ids of items and counts come to this machine.

    Parameters
    ----------
    source
        Files of one schema: a folder, a pattern such as ``events/part-*.parquet``, a URL that
        fsspec knows such as ``s3://bucket/part-*.parquet``, or a list of those; Parquet, CSV,
        JSON lines and Excel. Each file is a part, and workers have to reach it; a relative path
        starts from the folder of this process. Or a Dask DataFrame. Research formats and saved
        data are for `equipoise.read`.
    client
        A `distributed.Client`, the address of a scheduler, or "local" for the processors of this
        machine.
    block_rows
        Rows of the table that a block of users is made of; a worker needs memory for a few parts
        and a few blocks at a time. Left out: 4 million, or more where that makes over 128 blocks.
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
    settings = ReadOptions(**options)
    settings.refuse(("users", "items"), "a table")
    if settings.format not in (None, *TABLES):
        raise SettingError(_only_tables(f"format={settings.format!r}"))
    on_workers = settings
    settings = with_labels(settings, labels)
    client = connect(client)
    if hasattr(source, "to_delayed"):
        frames = client.compute(source.to_delayed())
        names = [f"partition {number + 1} of the frame" for number in range(len(frames))]
        given = list(zip(names, frames, strict=True))
        ingest = _Ingest(client, "the frame", settings, block_rows)
    else:
        given = [(name, None) for name in _files(source, settings)]
        ingest = _Ingest(client, _name(source), settings, block_rows)
    return ingest.run([submit(client, load_part, *each, on_workers) for each in given])


def _name(source: Any) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the list of files"


def _files(source: Any, options: ReadOptions) -> list[str]:
    """Return the files that a path, a pattern, a URL or a list of them names."""
    if not isinstance(source, (str, os.PathLike)):
        if not isinstance(source, Iterable):
            raise DataError(
                f"cannot read a {type(source).__name__} on a cluster; give files, a pattern or a "
                "Dask DataFrame"
            )
        return [file for each in source for file in _files(each, options)]
    text = os.fspath(source)
    if "://" in text:
        return _remote_files(text)
    place = Path(text).absolute()  # workers are in folders of their own
    if any(is_directory_of(place, kind) for kind in (SAVED, SPLIT)):
        raise DataError(_only_tables(f"{text}, which the library saved,"))
    if options.format is None and recognised(place) is not None:
        raise DataError(_only_tables(f"{text}, a research format ({recognised(place)}),"))
    found = part_files(str(place))
    return list(map(str, [place] if found is None else found))


def _only_tables(what: str) -> str:
    return (
        f"{what} is not read by workers, which read tables; give it to equipoise.read, without a "
        "cluster, or name a table with format='csv'"
    )


def _remote_files(url: str) -> list[str]:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError(
            f"{url} needs fsspec; install it with `pip install 'equipoise[cluster]'`"
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(url)
        folder = system.isdir(path)
        names = sorted(system.find(path) if folder else system.glob(path))
    except FETCHING as error:
        raise DataError(f"{url} cannot be listed: {error}; check the address") from error
    if folder:
        below = path.rstrip("/") + "/"
        names = [below + name for name in table_files([n.removeprefix(below) for n in names], url)]
    if not names:
        raise DataError(f"no table matches {url}; check the pattern")
    return [str(system.unstrip_protocol(name)) for name in names]


@dataclass
class Held:
    """What a worker knows of a part.

    `rows` has the ids that occur, sorted, in place of the ids of the rows, whose places among them
    are in `codes`, which is None where no row is left; both are None for a blank file.
    """

    name: str
    kind: str
    columns: tuple[str, ...] = ()
    rows: Rows | None = None
    codes: dict[str, Codes] | None = None

    @property
    def n_rows(self) -> int:
        """Number of usable rows."""
        return 0 if self.codes is None else len(self.codes["user"])

    def ids(self, axis: str) -> pl.Series:
        """Return the sorted ids of users or items."""
        assert self.rows is not None
        return self.rows.users if axis == "user" else self.rows.items

    def with_ids(self, axis: str, ids: pl.Series, codes: Codes) -> Held:
        """Return the part with other ids."""
        assert self.rows is not None
        assert self.codes is not None
        of_users = axis == "user"
        rows = replace(self.rows, users=ids) if of_users else replace(self.rows, items=ids)
        return replace(self, rows=rows, codes={**self.codes, axis: codes})


@task
def load_part(name: str, frame: Any, options: ReadOptions) -> Held:
    """Read one file or frame; errors name it."""
    if frame is not None:
        return _held(object_source(frame, name), "frame", options)
    if "://" not in name:
        return _from_file(name, options)
    import fsspec

    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        copy = str(Path(folder) / name.rsplit("/", 1)[-1])
        try:
            system, path = fsspec.core.url_to_fs(name)
            system.get_file(path, copy)
        except FETCHING as error:
            raise DataError(f"{name} cannot be fetched: {error}; check the address") from error
        try:
            return replace(_from_file(copy, options), name=name)
        except EquipoiseError as error:
            raise type(error)(str(error).replace(copy, name)) from None


def _from_file(name: str, options: ReadOptions) -> Held:
    path = Path(name)
    if path.is_file() and is_blank(path):
        return Held(name, "")
    kind = table_kind(path, options)
    return _held(table_source(path, options), kind, options)


def _held(source: Source, kind: str, options: ReadOptions) -> Held:
    rows = usable_rows(source, choose_columns(source, options), options)
    if rows.users.is_empty():
        return Held(source.name, kind, source.columns, rows)
    held = Held(source.name, kind, source.columns, rows, {})
    for axis in AXES:
        ids = held.ids(axis)
        codes, known = factorize(ids)
        held = held.with_ids(axis, pl.Series(ids.name, known, dtype=ids.dtype), codes)
    return held


class Facts(NamedTuple):
    """What has to be known of a part before its rows are dealt."""

    name: str
    kind: str
    columns: tuple[str, ...]
    id_kinds: dict[str, Any]
    n_rows: int
    rows: Rows | None  # without rows: notes and counts


@task
def facts_of(part: Held) -> Facts:
    """Return what is to be known of a part, which is little."""
    if part.rows is None:
        return Facts(part.name, part.kind, part.columns, {}, 0, None)
    rows = part.rows
    bare = replace(
        rows,
        users=rows.users.clear(),
        items=rows.items.clear(),
        weights=None if rows.weights is None else rows.weights[:0],
        times=None if rows.times is None else rows.times[:0],
        types=None if rows.types is None else rows.types.unique(),
    )
    kinds = {axis: part.ids(axis).dtype for axis in AXES}
    return Facts(part.name, part.kind, part.columns, kinds, part.n_rows, bare)


class _Ingest:
    """What becomes of the parts of one table."""

    def __init__(
        self, client: Any, name: str, options: ReadOptions, block_rows: int | None
    ) -> None:
        self.client, self.name = client, name
        self.options, self.block_rows = options, block_rows

    def run(self, parts: list[Any]) -> Partitioned:
        """Make blocks of parts."""
        client, options = self.client, self.options
        facts: list[Facts] = results(client, [submit(client, facts_of, each) for each in parts])
        held = [each for each in facts if each.rows is not None]
        read = part_notes(self.name, len(facts), len(held))
        _check_alike(held)
        # a part of which no row is left has no say in the kinds of columns
        total = _total(sorted(held, key=lambda each: not each.n_rows))
        n_rows = sum(each.n_rows for each in held)
        total.require_some(n_rows, self.name, options)
        full = [(part, each) for part, each in zip(parts, facts, strict=True) if each.n_rows]
        parts = self._of_one_kind([part for part, _ in full], [each for _, each in full])
        if held[0].kind != "frame":
            total.notes[total.found : total.found] = read
        notes = total.said(self.name, options)
        blocks, items, sizes = self._blocks(parts, total, n_rows)
        n_users, n_values, repeats, returned = (int(each) for each in sizes.sum(axis=0))
        weighted = total.weights is not None
        columns = weighted or total.times is not None or total.types is not None
        if not (columns or repeats or in_sessions(options)):
            blocks = [submit(client, without_events, each) for each in blocks]
        if options.gap is not None:
            notes.append(cut_note(n_users, options.gap))
        notes += repeat_notes(n_rows, n_values, repeats, weighted, returned)
        data = Partitioned(client, blocks, items, sizes[:, 0], n_values, name=self.name)
        if n_users == 1:
            notes += lone_note(self.name, "user", data.gather().users)
        notes += lone_note(self.name, "item", items)
        data.labels = item_labels(items, options, notes)
        data.notes = tuple(notes)
        return data

    def _blocks(self, parts: list[Any], total: Rows, n_rows: int) -> tuple[list[Any], Any, Any]:
        """Deal the rows to ranges of users; return blocks, ids of items, and sizes."""
        client, options = self.client, replace(self.options, labels=None)
        names = type_names(total.types, total.type_column)
        items = reduced(client, merge_ids, [submit(client, items_of, part) for part in parts])
        rows = self.block_rows or max(BLOCK_ROWS, -(-n_rows // MOST_BLOCKS))
        bounds = self._bounds(parts, n_rows, -(-n_rows // rows))
        dealt = [submit(client, deal, part, items, bounds, names) for part in parts]
        built = [
            submit(
                client,
                build_block,
                [submit(client, piece_of, each, number) for each in dealt],
                items,
                options,
                names,
            )
            for number in range(len(bounds) + 1)
        ]
        sizes = results(client, [submit(client, second, each) for each in built])
        blocks = [submit(client, first, each) for each in built]
        return blocks, results(client, items).to_numpy(), np.array(sizes, np.int64)

    def _bounds(self, parts: list[Any], n_rows: int, n_blocks: int) -> pl.Series:
        """Return the first user of each block but the first; blocks have about as many rows each.

        Some users tell roughly where a block begins; of the users between two of them all rows
        are counted. So no machine ever holds the ids of all users.
        """
        client = self.client
        if n_blocks == 1:
            return pl.Series(dtype=pl.Int64)
        some = results(client, [submit(client, some_users, part) for part in parts])
        users = pl.concat(some).unique().sort()
        users = users.gather_every(-(-len(users) // MOST_SAMPLES))
        below = [submit(client, rows_below, part, users) for part in parts]
        before = results(client, reduced(client, total, below))
        # a block begins at the first user with so many rows before
        wanted = [-(-number * n_rows // n_blocks) for number in range(1, n_blocks)]
        after = np.searchsorted(before, wanted)
        between = [submit(client, users_between, part, users, np.unique(after)) for part in parts]
        near = pl.concat(results(client, between)).group_by("id").agg(pl.col("rows").sum())
        near = near.sort("id")
        counted = np.concatenate([[0], np.cumsum(near["rows"].to_numpy())])
        bounds = []
        for rows, at in zip(wanted, after.tolist(), strict=True):
            low, high = _between(near["id"], users, at)
            first = low + np.searchsorted(counted[low:high], rows - before[at - 1] + counted[low])
            if first < high:
                bounds.append(near["id"][int(first)])
            elif at < len(users):
                bounds.append(users[at])
        return pl.Series(bounds, dtype=users.dtype).unique(maintain_order=True)

    def _of_one_kind(self, parts: list[Any], facts: list[Facts]) -> list[Any]:
        """Bring ids that are integers in some parts and text in others to one kind."""
        for axis in AXES:
            kinds = [each.id_kinds[axis] for each in facts]
            if len(set(kinds)) > 1:
                kind = _common_kind(axis, facts, kinds)
                parts = [
                    part if each == kind else submit(self.client, recast, part, axis, kind)
                    for part, each in zip(parts, kinds, strict=True)
                ]
        return parts


def _common_kind(axis: str, facts: list[Facts], kinds: list[Any]) -> Any:
    """Return the kind that the readers of the library give such ids."""
    if facts[0].kind == "jsonl":
        numbers, texts = (facts[kinds.index(kind)].name for kind in (pl.Int64, pl.String))
        raise DataError(
            f"the {axis} ids are numbers in {numbers} and text in {texts}; use one kind of ids, "
            "or pass ids='text'"
        )
    return pl.String() if facts[0].kind == "text" else kinds[0]


def _check_alike(facts: list[Facts]) -> None:
    """Refuse parts of different kinds, with other columns, or with times of another kind."""
    names = [each.name for each in facts]
    check_one_kind(names, [each.kind for each in facts])
    check_one_schema(names, [each.columns for each in facts])
    seen: dict[str, str] = {}
    for each in facts:
        assert each.rows is not None
        seen |= {note: each.name for note in each.rows.notes if note.startswith("times ")}
    if len(seen) > 1:
        how = " but ".join(f"{note} in {name}" for note, name in list(seen.items())[:2])
        raise DataError(f"{how}; parts need times of one kind, pass time_unit= or time_format=")


def _total(facts: Sequence[Facts]) -> Rows:
    """Return what is to be said of all parts together."""
    rows = [each.rows for each in facts if each.rows is not None]
    total = replace(rows[0], notes=list(rows[0].notes), skipped=rows[0].skipped.copy())
    for each in rows[1:]:
        total.notes = list(dict.fromkeys([*total.notes, *each.notes]))
        total.skipped.update(each.skipped)
        total.height += each.height
        total.rated, total.low = total.rated + each.rated, total.low + each.low
        total.idle += each.idle
        if total.types is not None and each.types is not None:
            total.types = pl.concat([total.types, each.types]).unique()
    total.reasons = reasons_text(total.skipped)
    return total


@task
def recast(part: Held, axis: str, kind: Any) -> Held:
    """Bring ids to another kind; text that is no integer is refused."""
    ids = as_type(part.ids(axis), kind, part.name)
    places, known = factorize(ids)
    assert part.codes is not None
    codes = places[part.codes[axis]]
    return part.with_ids(axis, pl.Series(ids.name, known, dtype=kind), codes)


def _rows_of_users(part: Held) -> npt.NDArray[np.int64]:
    """Return the rows of each user of a part."""
    assert part.codes is not None
    return np.bincount(part.codes["user"], minlength=len(part.ids("user")))


@task
def items_of(part: Held) -> pl.Series:
    """Return the items of a part."""
    return part.ids("item").alias("id")


@task
def some_users(part: Held) -> pl.Series:
    """Return users of a part, the first one and others at equal distances."""
    users = part.ids("user").alias("id")
    return users.gather_every(-(-len(users) // SAMPLES))


@task
def rows_below(part: Held, users: pl.Series) -> npt.NDArray[np.int64]:
    """Return how many rows of a part have users below each of some."""
    counted = np.concatenate([[0], np.cumsum(_rows_of_users(part))])
    return np.asarray(counted[part.ids("user").search_sorted(users, side="left").to_numpy()])


def _between(ids: pl.Series, users: pl.Series, at: int) -> tuple[int, int]:
    """Return where the ids from one of some users up to the next one are, which is at `at`."""
    low = ids.search_sorted(users[at - 1], side="left")
    return low, ids.search_sorted(users[at], side="left") if at < len(users) else len(ids)


@task
def users_between(part: Held, users: pl.Series, after: npt.NDArray[np.int64]) -> pl.DataFrame:
    """Return all users of a part just before those at some places, and how many rows each has."""
    whole = pl.DataFrame({"id": part.ids("user"), "rows": _rows_of_users(part)})
    spans = [_between(whole["id"], users, at) for at in after.tolist()]
    return pl.concat([whole[low:high] for low, high in spans])


@task
def merge_ids(ids: list[pl.Series]) -> pl.Series:
    """Put ids together, sorted."""
    return pl.concat(ids).unique().sort()


class Piece(NamedTuple):
    """The rows of a part that belong to one block: its users, sorted, and columns of the rows."""

    users: pl.Series
    user_codes: Codes
    items: Codes
    weights: Floats | None
    times: Floats | None
    types: npt.NDArray[np.int16] | None


@task
def deal(part: Held, items: pl.Series, bounds: pl.Series, names: tuple[str, ...]) -> list[Piece]:
    """Cut the rows of a part into pieces, one for each block, in the order they come."""
    assert part.rows is not None
    assert part.codes is not None
    rows, user, item = part.rows, part.codes["user"], part.codes["item"]
    places = items.to_frame("id").with_row_index("place")
    wanted = rows.items.alias("id").to_frame()
    found = wanted.join(places, on="id", how="left", maintain_order="left")["place"]
    position = found.cast(pl.Int32).to_numpy()[item]
    types = type_codes(rows.types, names)
    starts = rows.users.search_sorted(bounds, side="left").to_list() if len(bounds) else []
    edges = np.array([0, *starts, len(rows.users)])
    sizes = np.diff(edges)
    # of 16 bits, where that is enough: NumPy sorts those in linear time
    kind = np.min_scalar_type(len(sizes))
    block = np.repeat(np.arange(len(sizes), dtype=kind), sizes)[user]
    order = np.argsort(block, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(block, minlength=len(sizes)))])
    pieces = []
    for number, (low, high) in enumerate(pairwise(edges)):
        chosen = order[ends[number] : ends[number + 1]]
        pieces.append(
            Piece(
                rows.users[low:high],
                user[chosen] - np.int32(low),
                position[chosen],
                None if rows.weights is None else rows.weights[chosen],
                None if rows.times is None else rows.times[chosen],
                None if types is None else types[chosen],
            )
        )
    return pieces


def piece_of(pieces: list[Piece], number: int) -> Piece:
    """Return the piece for a block."""
    return pieces[number]


def first(pair: tuple[Any, Any]) -> Any:
    """Return the block of `build_block`."""
    return pair[0]


def second(pair: tuple[Any, Any]) -> Any:
    """Return the numbers of `build_block`."""
    return pair[1]


@task
def build_block(
    pieces: list[Piece], items: pl.Series, options: ReadOptions, names: tuple[str, ...]
) -> tuple[Interactions, tuple[int, int, int, int]]:
    """Make the matrix of a range of users; its items are known by position.

    Also return numbers of users, of values, of rows that repeat a pair, and of returns.
    """
    pieces = [piece for piece in pieces if len(piece.items)]
    places, user_ids = factorize(pl.concat([piece.users for piece in pieces]))
    starts = np.cumsum([0, *(len(piece.users) for piece in pieces)])
    rows = np.concatenate(
        [places[start + piece.user_codes] for start, piece in zip(starts, pieces, strict=False)]
    )
    columns = {
        name: None
        if getattr(pieces[0], name) is None
        else np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ("items", "weights", "times", "types")
    }
    if options.gap is not None and columns["times"] is not None:
        rows, user_ids = cut_sessions(rows, columns["times"], user_ids, options.gap)
    log = Log(rows, **columns)  # type: ignore[arg-type]
    shape = (len(user_ids), len(items))
    made = gathered(log, shape, in_sessions(options), names, always=True)
    matrix, events, repeats = made
    if log.weights is not None:
        check_sums(matrix, log, (user_ids, items.to_numpy()))
    returned = 0 if log.weights is None else int((log.weights < 0).sum())
    data = Interactions(matrix, user_ids, events=events)
    return data, (data.n_users, matrix.nnz, repeats, returned)


@task
def without_events(block: Interactions) -> Interactions:
    """Return a block whose events say no more than its matrix."""
    return Interactions(block.matrix, block.user_index, block.item_index)
