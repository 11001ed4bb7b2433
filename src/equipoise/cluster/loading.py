"""What a worker does with the files of a part: fetch what is needed, read and check the rows.

Of a large or remote Parquet file only the footer and the needed columns are fetched, and of a
share of a file only its row groups or lines.
"""

from __future__ import annotations

import errno
import gzip
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.cluster.planning import Reading, Slice
from equipoise.cluster.workers import task
from equipoise.data.columns import Columns, choose_columns
from equipoise.data.readers import parts_source
from equipoise.data.readers.build import Rows, factorize, usable_rows
from equipoise.data.readers.delimited import delimited_source
from equipoise.data.readers.files import (
    GZIP,
    NEWLINE,
    SAMPLE,
    UTF8_BOM,
    ParquetFile,
    broken_parquet,
    is_blank,
    kind_of_name,
    parquet_source,
    table_kind,
)
from equipoise.data.readers.files import contents as local_contents
from equipoise.data.readers.folders import TableFile, with_constants
from equipoise.data.remote import open_filesystem, translate_remote
from equipoise.data.tables import Source, object_source
from equipoise.errors import DataError, EquipoiseError, MissingExtraError

AXES = ("users", "items")
SMALL = 1 << 20  # bytes of a remote file that is fetched as it is
MAGIC = b"PAR1"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)

Codes = npt.NDArray[np.int32]


@dataclass
class Part:
    """Rows of the table on a worker.

    In `rows`, users and items are the sorted distinct ids; `codes` has the place of each row's id
    among them, by axis. `rows` is None if there are only blank files. A share of a text file may
    have an `error`, or be `torn` where a quoted field continues after a line: its file has to be
    read by one task.
    """

    name: str
    kind: str = ""
    columns: tuple[str, ...] = ()
    chosen: Columns | None = None
    files: tuple[int, int] = (0, 0)  # number of files that begin here, and not blank ones
    n_rows: int = 0
    rows: Rows | None = None
    codes: dict[str, Codes] | None = None
    users: pl.Series = field(default_factory=pl.Series)  # of a summary: a sample
    error: EquipoiseError | None = None
    torn: bool = False

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
def load_frame(name: str, frame: Any, reading: Reading) -> Part:
    """Return a part of a frame; errors name it."""
    return _part_of(object_source(frame, name), "frame", reading)


@task
def load_part(slices: Sequence[Slice], reading: Reading) -> Part:
    """Read some files, or a share of one; errors name the file."""
    first = slices[0]
    if kind_of_name(first.file.name, reading.options) == "parquet":
        return _load_parquet(slices, reading)
    with _temporary_folder() as folder:
        if first.shares > 1:
            return _load_lines(first, folder, reading)
        files = _local_files([entry.file for entry in slices], folder, reading)
        names = {copy.name: entry.file.name for copy, entry in zip(files, slices, strict=True)}
        full = [file for file in files if not file.path.is_file() or not is_blank(file.path)]
        with _renamed(names):
            if not full:
                return Part(first.file.name, files=(len(slices), 0))
            source = parts_source(full[0].name, full, reading.options)
            part = _part_of(source, table_kind(full[0].path, reading.options), reading)
        return replace(part, name=names[part.name], files=(len(slices), len(full)))


def _part_of(source: Source, kind: str, reading: Reading) -> Part:
    columns = choose_columns(source, reading.options)
    rows = usable_rows(source, columns, reading.options)
    part = Part(source.name, kind, source.columns, columns, n_rows=len(rows.users), rows=rows)
    if part.n_rows:
        for axis in AXES:
            part = part.encode(axis, part.ids(axis))
    return part


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Give a folder for copies of files; a full disk is a clear error."""
    try:
        with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
            yield Path(folder)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise DataError(
            f"the disk of a worker is full: {tempfile.gettempdir()} has no room for copies of "
            "files; set TMPDIR of the workers to a folder on a larger disk"
        ) from error


@contextmanager
def _renamed(names: dict[str, str]) -> Iterator[None]:
    """Name files instead of their copies in errors."""
    try:
        yield
    except EquipoiseError as error:
        text = str(error)
        for copy, name in names.items():
            text = text.replace(copy, name)
        raise type(error)(text) from None


def _local_files(files: Sequence[TableFile], folder: Path, reading: Reading) -> list[TableFile]:
    """Return the files with copies of remote ones in the folder."""
    remote = [file for file in files if "://" in file.name]
    if not remote:
        return list(files)
    system = open_filesystem(remote[0].name, reading.storage)[0]
    sources, copies = [], []
    for number, file in enumerate(remote):
        sources.append(system._strip_protocol(file.name))
        (folder / str(number)).mkdir()
        copies.append(str(folder / str(number) / file.name.rsplit("/", 1)[-1]))
    with translate_remote_or_full_disk(f"{remote[0].name} cannot be fetched"):
        system.get(sources, copies)
    places = dict(zip((file.name for file in remote), copies, strict=True))
    return [replace(file, name=places.get(file.name, file.name)) for file in files]


@contextmanager
def translate_remote_or_full_disk(action: str) -> Iterator[None]:
    """As `translate_remote`, but a full disk here stays an `OSError`."""
    try:
        with translate_remote(action):
            yield
    except DataError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in FULL_DISK:
            raise cause from None
        raise


def _load_parquet(slices: Sequence[Slice], reading: Reading) -> Part:
    """Read Parquet files, or a share of one."""
    small = [entry for entry in slices if entry.shares == 1 and entry.size <= SMALL]
    contents = _fetch_all([entry.file.name for entry in small], reading)
    full = [entry for entry in slices if contents.get(entry.file.name, MAGIC).strip()]
    counts = sum(s.number == 0 for s in slices), sum(s.number == 0 for s in full)
    name = slices[0].file.name
    if not full:
        return Part(name, files=counts)
    opened = [_open_parquet(entry, contents.get(entry.file.name), reading) for entry in full]
    source = parquet_source(name, opened, reading.options)
    source = with_constants(source, [entry.file.constants for entry in full])
    return replace(_part_of(source, "parquet", reading), files=counts)


def _open_parquet(entry: Slice, data: bytes | None, reading: Reading) -> Any:
    """Open a file by its content, where it was fetched, or from where it is."""
    name = entry.file.name
    if data is not None and data.startswith(MAGIC):
        return ParquetFile(name, data)
    if "://" not in name and entry.shares == 1:
        return ParquetFile(name, local_contents(Path(name)))
    if data is not None and data.startswith(GZIP):
        return ParquetFile(name, gzip.decompress(data))
    return RangedParquet(entry, reading)


def _fetch_all(names: Sequence[str], reading: Reading) -> dict[str, bytes]:
    """Return the content of files by name; remote ones are fetched at the same time."""
    if not names or "://" not in names[0]:
        with translate_remote(f"{names[0]} cannot be read" if names else ""):
            return {name: Path(name).read_bytes() for name in names}
    system = open_filesystem(names[0], reading.storage)[0]
    paths = [system._strip_protocol(name) for name in names]
    with translate_remote(f"{names[0]} cannot be fetched"):
        fetched = system.cat(paths)
    if isinstance(fetched, bytes):  # of a single path
        return {names[0]: fetched}
    return {name: fetched[path] for name, path in zip(names, paths, strict=True)}


class RangedParquet:
    """A Parquet file, or a share of its row groups, of which only needed columns are fetched."""

    def __init__(self, entry: Slice, reading: Reading) -> None:
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise MissingExtraError(
                "a cluster needs pyarrow for Parquet files; install it with `pip install "
                "'equipoise[cluster]'`"
            ) from error
        self.schema = None
        self._errors = (pyarrow.ArrowException, OSError)
        self.name, self._entry = entry.file.name, entry
        file = _open_binary(self.name, reading) if "://" in self.name else self.name
        self._file = self._guarded(lambda: parquet.ParquetFile(file, pre_buffer=True))
        self.columns = tuple(self._file.schema_arrow.names)
        metadata = self._file.metadata
        self.n_rows = metadata.num_rows
        sizes = [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
        starts = np.cumsum([0, *sizes])[:-1]
        share = starts * entry.shares // max(self.n_rows, 1)
        self._groups = np.flatnonzero(share == entry.number).tolist()
        self.first_row = int(starts[self._groups[0]]) if self._groups else 0

    def read(self, names: list[str]) -> pl.DataFrame:
        """Return these columns."""
        table = self._guarded(lambda: self._file.read_row_groups(self._groups, names))
        frame: pl.DataFrame = pl.from_arrow(table)  # type: ignore[assignment]
        return frame.select(names)

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except self._errors as error:
            raise broken_parquet(self.name, error) from error


def _open_binary(name: str, reading: Reading) -> Any:
    """Open a file; each read of a remote one is one request."""
    if "://" not in name:
        return open(name, "rb")
    system, path = open_filesystem(name, reading.storage)
    with translate_remote(f"{name} cannot be fetched"):
        return system.open(path, "rb", cache_type="none")


def _load_lines(entry: Slice, folder: Path, reading: Reading) -> Part:
    """Read a share of the lines of a text file."""
    lines = _LinesOf(entry, reading)
    name = entry.file.name
    counts = (1, 1) if entry.number == 0 else (0, 0)
    part = Part(name, files=counts)
    if entry.number and (lines.sample.startswith(GZIP) or NEWLINE not in lines.sample):
        return part  # the first share is the file
    kind = kind_of_name(name, reading.options)
    if kind == "text" and _is_torn(lines.data, reading.options.quote):
        return replace(part, torn=True)
    copy = folder / name.rsplit("/", 1)[-1]
    try:
        with _renamed({str(copy): name}):
            data, options, n_added = lines.data, reading.options, 0
            if entry.number and kind == "text":
                copy.write_bytes(lines.sample[: lines.sample.rfind(NEWLINE) + 1])
                head = delimited_source(copy, options)
                options = replace(options, header=head.named)
                if head.named:
                    header = lines.sample.removeprefix(UTF8_BOM).lstrip().split(NEWLINE, 1)[0]
                    data, n_added = header + NEWLINE + data, 1
            copy.write_bytes(data)
            if is_blank(copy):
                return part
            shifted = replace(reading, options=options)
            source = parts_source(str(copy), [replace(entry.file, name=str(copy))], options)
            return replace(_part_of(source, kind or "text", shifted), name=name, files=counts)
    except EquipoiseError as error:
        return replace(part, error=_shift_lines(error, name, lines, n_added))


def _shift_lines(
    error: EquipoiseError, name: str, lines: _LinesOf, n_added: int
) -> EquipoiseError:
    """Return an error that counts lines from the start of the file."""

    def shift(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) + lines.n_before - n_added}"

    text = re.sub(f"({re.escape(name)}, line )([0-9]+)", shift, str(error))
    return type(error)(text)


class _LinesOf:
    """The lines of a file that begin within a share of its bytes."""

    def __init__(self, entry: Slice, reading: Reading) -> None:
        name = entry.file.name
        self._low = entry.size * entry.number // entry.shares
        high = entry.size * (entry.number + 1) // entry.shares
        self._name, self._reading = name, reading
        with _open_binary(name, reading) as stream, translate_remote(f"{name} cannot be fetched"):
            self.sample = stream.read(SAMPLE)
            if entry.number == 0 and NEWLINE not in self.sample:
                self.data = self.sample + stream.read()
                return
            start = max(self._low - 1, 0)  # a line begins after the end of another
            stream.seek(start)
            data = stream.read(high - start)
            while not data.endswith(NEWLINE):
                more = stream.read(SAMPLE)
                if not more:
                    break
                end = more.find(NEWLINE) + 1
                data += more[:end] if end else more
            if entry.number:
                self._low = start + data.find(NEWLINE) + 1
                data = data[data.find(NEWLINE) + 1 :]
            self.data = data

    @cached_property
    def n_before(self) -> int:
        """Number of lines before these."""
        count, left = 0, self._low
        with _open_binary(self._name, self._reading) as stream:
            while left > 0:
                block = stream.read(min(left, 1 << 24))
                count, left = count + block.count(NEWLINE), left - len(block)
        return count


def _is_torn(data: bytes, quote: str | None) -> bool:
    """Whether a line has an odd number of quotation marks, so that a field may continue."""
    mark = b'"' if quote is None else quote.encode()
    if not mark or mark not in data:
        return False
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == NEWLINE[0])
    line = np.searchsorted(ends, np.flatnonzero(text == mark[0]))
    return bool((np.bincount(line) % 2).any())


@task
def summarize(part: Part, n_sampled: int) -> Part:
    """Return a part without its rows: notes, counts, kinds of ids, types and sampled users."""
    rows = part.rows
    if rows is None:
        return part
    users = rows.users.alias("id")
    sample = users.gather_every(max(-(-len(users) // n_sampled), 1)) if part.n_rows else users
    empty = replace(
        rows,
        users=rows.users.clear(),
        items=rows.items.clear(),
        weights=None if rows.weights is None else rows.weights[:0],
        times=None if rows.times is None else rows.times[:0],
        types=None if rows.types is None else rows.types.unique(),
    )
    return replace(part, rows=empty, codes=None, users=sample)
