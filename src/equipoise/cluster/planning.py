"""Find the files of a table and plan which rows each task reads, from the sizes of the files.

A task reads a part: several small files, one file, or a share of the rows of a large one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.data.interactions import KIND as SAVED
from equipoise.data.read_options import ReadOptions
from equipoise.data.readers.files import kind_of_name, recognised, table_files
from equipoise.data.readers.folders import (
    DELTA,
    ICEBERG,
    TableFile,
    delta_files,
    folder_constants,
    iceberg_files,
    iceberg_metadata,
    part_files,
)
from equipoise.data.remote import StorageOptions, open_filesystem, translate_remote
from equipoise.data.split.parts import KIND as SPLIT
from equipoise.data.storage import is_directory_of
from equipoise.errors import DataError, MissingExtraError

PART_ROWS = 1_000_000  # rows that a task reads, about
LEAST_ROWS = 100_000  # parts of fewer rows only where there is no more
FILE_ROWS = 1_000  # rows that take about the time of opening a file
ROW_MEMORY = 500  # bytes that reading a row takes at most
BYTES_PER_ROW = {"parquet": 8.0, "text": 30.0, "jsonl": 60.0, "excel": 15.0}
COMPRESSION = 4.0  # of gzipped text
SPLITTABLE = ("parquet", "text", "jsonl")
UTF8 = ("utf-8", "utf8", "utf-8-sig")


class Slice(NamedTuple):
    """A file, or one of `shares` equal shares of its rows."""

    file: TableFile
    size: int  # bytes of the file
    number: int = 0
    shares: int = 1


@dataclass(frozen=True)
class Reading:
    """How parts are read: the options of `equipoise.read`, and of fsspec."""

    options: ReadOptions
    storage: StorageOptions | None = None


def find_files(source: Any, reading: Reading) -> list[tuple[TableFile, int]]:
    """Return the files of a path, a pattern, an address or a list of them, with their sizes."""
    if not isinstance(source, (str, os.PathLike)):
        if not isinstance(source, Iterable):
            raise DataError(
                f"cannot read a {type(source).__name__} on a cluster; give files, a pattern or a "
                "Dask DataFrame"
            )
        return [file for entry in source for file in find_files(entry, reading)]
    text = os.fspath(source)
    if "://" in text:
        return _remote_files(text, reading.storage)
    path = Path(text).absolute()  # workers have working folders of their own
    if any(is_directory_of(path, kind) for kind in (SAVED, SPLIT)):
        raise DataError(only_tables(f"{text}, which the library saved,"))
    if reading.options.format is None and recognised(path) is not None:
        raise DataError(only_tables(f"{text}, a research format ({recognised(path)}),"))
    files = part_files(str(path)) or [TableFile(str(path))]
    return [(file, _local_size(file.path)) for file in files]


def _local_size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def only_tables(source: str) -> str:
    """Return the message for sources that workers do not read."""
    return (
        f"{source} is not read by workers, which read tables; give it to equipoise.read, without "
        "a cluster, or name a table with format='csv'"
    )


def _remote_files(url: str, storage: StorageOptions | None) -> list[tuple[TableFile, int]]:
    system, path = open_filesystem(url, storage)
    with translate_remote(f"{url} cannot be listed"):
        system.invalidate_cache()
        if system.isdir(path):
            files = _remote_folder(system, path, url, storage)
        else:
            matches = system.glob(path, detail=True)
            shown = {name: info for name, info in matches.items() if not _is_hidden(name)}
            matches = shown or matches
            magic = next((at for at, c in enumerate(path) if c in "*?["), len(path))
            root = path[: path.rfind("/", 0, magic) + 1]
            files = []
            for name, info in sorted(matches.items()):
                constants = folder_constants(
                    name.removeprefix(root) + "/" * (info["type"] != "file")
                )
                if info["type"] == "file":
                    files.append((TableFile(name, constants), info["size"]))
                else:
                    files += [
                        (replace(file, constants={**constants, **file.constants}), size)
                        for file, size in _remote_folder(system, name, url, storage)
                    ]
    if not files:
        raise DataError(f"no table matches {url}; check the pattern")
    return [
        (
            file if "://" in file.name else replace(file, name=system.unstrip_protocol(file.name)),
            size,
        )
        for file, size in files
    ]


def _is_hidden(name: str) -> bool:
    return name.rstrip("/").rsplit("/", 1)[-1].startswith((".", "_"))


def _remote_folder(
    system: Any, folder: str, url: str, storage: StorageOptions | None
) -> list[tuple[TableFile, int]]:
    """Return the table files below a remote folder, as paths or addresses, with their sizes."""
    prefix = folder.rstrip("/") + "/"
    infos = {
        name.removeprefix(prefix): info["size"]
        for name, info in system.find(folder, detail=True).items()
    }
    address = str(system.unstrip_protocol(folder))
    listed: list[TableFile] | None = None
    if any(name.startswith(f"{DELTA}/") for name in infos):
        listed = delta_files(address, storage)
    else:
        metadata = {name.partition("/")[2] for name in infos if name.startswith(f"{ICEBERG}/")}
        if (current := iceberg_metadata(metadata)) is not None:
            listed = iceberg_files(address, f"{address}/{ICEBERG}/{current}", storage)
    if listed is None:
        names = table_files(sorted(infos), url)
        return [(TableFile(prefix + name, folder_constants(name)), infos[name]) for name in names]
    within = [file.name.removeprefix(f"{address}/").removeprefix(prefix) for file in listed]
    return [(file, infos.get(name, 0)) for file, name in zip(listed, within, strict=True)]


def plan_parts(
    files: list[tuple[TableFile, int]], reading: Reading, memory: float, threads: int
) -> list[list[Slice]]:
    """Return the slices of each part, in the order of the files.

    `memory` is that of a thread of the smallest worker, and `threads` the number of all.
    """
    kinds = [kind_of_name(file.name, reading.options) for file, _ in files]
    rows = estimate_rows(files, kinds, reading)
    per_thread = (sum(rows) + FILE_ROWS * len(files)) / (2 * max(threads, 1))
    target = min(PART_ROWS, max(per_thread, LEAST_ROWS), max(memory / ROW_MEMORY, 1.0))
    parts: list[list[Slice]] = []
    room, previous = 0.0, None
    for (file, size), kind, n_rows in zip(files, kinds, rows, strict=True):
        shares = round(n_rows / target) if _is_splittable(file.name, kind, reading) else 1
        if shares > 1:
            parts += [[Slice(file, size, number, shares)] for number in range(shares)]
            room = 0.0
            continue
        cost = n_rows + FILE_ROWS
        if kind != previous or cost > room:
            parts.append([])
            room = target
        parts[-1].append(Slice(file, size))
        room, previous = room - cost, kind
    return parts


def _is_splittable(name: str, kind: str | None, reading: Reading) -> bool:
    if kind == "parquet":
        return not name.endswith(".gz")
    is_utf8 = reading.options.encoding.lower().replace("_", "-") in UTF8
    return kind in SPLITTABLE and not name.endswith(".gz") and is_utf8


def estimate_rows(
    files: list[tuple[TableFile, int]], kinds: list[str | None], reading: Reading
) -> list[float]:
    """Return about how many rows each file has; the first Parquet file tells for the others."""
    sizes = dict(BYTES_PER_ROW)
    largest = max(
        (
            (size, file)
            for (file, size), kind in zip(files, kinds, strict=True)
            if kind == "parquet"
        ),
        key=lambda pair: pair[0],
        default=None,
    )
    if largest is not None:
        sizes["parquet"] = _parquet_bytes_per_row(largest[1], largest[0], reading)
    return [
        size
        * (COMPRESSION if file.name.endswith(".gz") else 1.0)
        / sizes.get(kind or "text", 30.0)
        for (file, size), kind in zip(files, kinds, strict=True)
    ]


def _parquet_bytes_per_row(file: TableFile, size: int, reading: Reading) -> float:
    from equipoise.cluster.loading import RangedParquet

    try:
        opened = RangedParquet(Slice(file, size), reading)
    except (DataError, MissingExtraError):  # the worker that reads it says so
        return BYTES_PER_ROW["parquet"]
    return max(size, 1) / max(int(opened.n_rows), 1)
