"""Tables in many files: folders, patterns, columns that folders name, Delta and Iceberg tables.

A folder ``event=buy`` gives the rows below it a column "event" (as Hive and Spark write them). The
folder of a Delta or Iceberg table also holds files that are no longer part of the table, so the
files are those that the table itself lists.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import polars as pl

from equipoise.data.readers.delimited import whole_numbers
from equipoise.data.readers.files import table_files
from equipoise.data.tables import Source, Table
from equipoise.errors import DataError, MissingExtraError

Constants = Mapping[str, str | None]  # columns with one value in all rows of a file

NULL = "__HIVE_DEFAULT_PARTITION__"
DELTA, ICEBERG = "_delta_log", "metadata"
VECTORS, MAPPING = "deletionVectors", "columnMapping"  # features of Delta tables
ICEBERG_FILE = re.compile(r"v?(\d+)(-[0-9a-f-]+)?(\.gz)?\.metadata\.json")


@dataclass(frozen=True)
class TableFile:
    """A file of a table, by path or address, and its constant columns."""

    name: str
    constants: Constants = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The path of a local file."""
        return Path(self.name)


def part_files(path: str) -> list[TableFile] | None:
    """Return the files of a folder or a pattern; None for the path of a file."""
    place = Path(path)
    if place.is_dir():
        files = folder_files(place)
        missing = f"{place} is a folder without Parquet, CSV or JSON lines files"
        missing += "; give the path of a file"
    elif not place.exists() and glob.has_magic(path):
        files = _matching(place)
        missing = f"no file matches {path}; check the pattern"
    else:
        return None
    if not files:
        raise DataError(missing)
    return files


def folder_files(folder: Path) -> list[TableFile]:
    """Return the files of the table in a folder."""
    if (folder / DELTA).is_dir():
        return delta_files(str(folder))
    if (folder / ICEBERG).is_dir():
        names = [file.name for file in (folder / ICEBERG).iterdir()]
        current = iceberg_metadata(names)
        if current is not None:
            return iceberg_files(str(folder), str(folder / ICEBERG / current))
    names = [
        os.path.join(place, name)[len(str(folder)) + 1 :]
        for place, _, files in os.walk(folder)
        for name in files
        if os.path.isfile(os.path.join(place, name))
    ]
    names.sort(key=lambda name: name.split(os.sep))
    return [
        TableFile(os.path.join(folder, name), folder_constants(name))
        for name in table_files(names, str(folder))
    ]


def _matching(pattern: Path) -> list[TableFile]:
    """Return the files that match a pattern, and those of matching folders.

    Existing parent folders are taken literally.
    """
    root = next(folder for folder in pattern.parents if folder.is_dir())
    relative = str(pattern.relative_to(root))
    names = sorted(glob.glob(relative, root_dir=root, recursive=True))
    names = [name for name in names if not os.path.basename(name).startswith((".", "_"))] or names
    files = [TableFile(str(root / n), folder_constants(n)) for n in names if (root / n).is_file()]
    if files:
        return files
    return [
        replace(file, constants={**folder_constants(f"{name}/"), **file.constants})
        for name in names
        for file in folder_files(root / name)
    ]


def folder_constants(name: str) -> dict[str, str | None]:
    """Return the columns that the folders of a relative path name.

    >>> folder_constants("event=buy/day=2026-01-31/part-0.parquet")
    {'event': 'buy', 'day': '2026-01-31'}
    """
    folders = name.replace("\\", "/").split("/")[:-1]
    pairs = (folder.split("=", 1) for folder in folders if "=" in folder[1:])
    return {unquote(key): None if value == NULL else unquote(value) for key, value in pairs}


def with_constants(source: Source, constants: Sequence[Constants]) -> Source:
    """Add the constant columns of each file; columns within the files take precedence."""
    names = dict.fromkeys(chain.from_iterable(constants))
    added = [name for name in names if name not in source.columns]
    if not added:
        return source

    def load(columns: list[str], ids: Collection[str]) -> Table:
        inner = [name for name in columns if name not in added] or list(source.columns[:1])
        table = source.loader(inner, [name for name in ids if name in inner])
        assert table.heights is not None
        heights = table.heights()
        file_of_row = np.repeat(np.arange(len(heights)), heights)

        def written(name: str) -> pl.Series:
            if name in added:
                values = [file.get(name) for file in constants]
                return pl.Series(name, values, pl.String).gather(file_of_row)
            return table.frame[name] if table.written is None else table.written(name)

        new = [whole_numbers(written(name)) for name in columns if name in added]
        return replace(table, frame=table.frame.with_columns(new).select(columns), written=written)

    return replace(source, columns=(*source.columns, *added), loader=load)


def delta_files(table: str, storage_options: Mapping[str, Any] | None = None) -> list[TableFile]:
    """Return the current files of a Delta table, by path or address."""
    try:
        import deltalake
    except ImportError as error:
        raise MissingExtraError(_needs(table, "Delta", "deltalake", "delta")) from error
    settings = object_store_options(storage_options)
    try:
        opened = deltalake.DeltaTable(table, storage_options=settings or None)
        features = opened.protocol().reader_features or []
        marked = len(pl.DataFrame(opened.deletion_vectors())) if VECTORS in features else 0
        actions = pl.DataFrame(opened.get_add_actions(flatten=True))
        partitions = opened.metadata().partition_columns
    except (deltalake.exceptions.DeltaError, OSError) as error:
        raise DataError(f"the Delta table {table} cannot be read: {error}") from error
    problem = None
    if marked:
        problem = f"marks deleted rows of {marked:,} files (deletion vectors)"
        remedy = "REORG TABLE ... APPLY (PURGE) rewrites these"
    elif MAPPING in features:
        problem = "maps names of columns to others in its files"
        remedy = "copy it to one without columnMapping"
    if problem:
        raise DataError(
            f"the Delta table {table} {problem}, which is not read; {remedy}, or pass a frame of "
            "the rows"
        )
    files = []
    for action in actions.sort("path").iter_rows(named=True):
        path, values = action["path"], {name: action[f"partition.{name}"] for name in partitions}
        constants = {key: None if value is None else str(value) for key, value in values.items()}
        is_absolute = "://" in path or path.startswith("/")
        name = path if is_absolute else f"{table.rstrip('/')}/{path}"
        files.append(TableFile(_plain_address(name), constants))
    return files


def _plain_address(name: str) -> str:
    """Return the path of a local file, or its address for fsspec."""
    return re.sub("^s3[an]://", "s3://", name.removeprefix("file://"))


def object_store_options(storage_options: Mapping[str, Any] | None) -> dict[str, str]:
    """Return options of s3fs by the names that deltalake uses; others are passed on."""
    options = dict(storage_options or {})
    client = options.pop("client_kwargs", {})
    known = {
        "key": "AWS_ACCESS_KEY_ID",
        "secret": "AWS_SECRET_ACCESS_KEY",
        "token": "AWS_SESSION_TOKEN",
        "endpoint_url": "AWS_ENDPOINT_URL",
        "region_name": "AWS_REGION",
    }
    settings = {known.get(name, name): str(value) for name, value in {**options, **client}.items()}
    if settings.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        settings["AWS_ALLOW_HTTP"] = "true"
    return settings


def iceberg_metadata(names: Iterable[str]) -> str | None:
    """Return the newest metadata file among the names in a folder, or None."""
    numbered = [(int(match[1]), name) for name in names if (match := ICEBERG_FILE.fullmatch(name))]
    return max(numbered)[1] if numbered else None


def iceberg_files(
    table: str, metadata: str, storage_options: Mapping[str, Any] | None = None
) -> list[TableFile]:
    """Return the current files of the Iceberg table that a metadata file describes."""
    try:
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise MissingExtraError(_needs(table, "Iceberg", "pyiceberg", "iceberg")) from error
    try:
        opened = StaticTable.from_metadata(metadata, _file_io_options(storage_options))
        names: dict[int, set[str]] = {}
        for schema in opened.schemas().values():
            for column in schema.fields:
                names.setdefault(column.field_id, set()).add(column.name)
        scan = sorted(opened.scan().plan_files(), key=lambda task: str(task.file.file_path))
    except (LookupError, OSError, ValueError) as error:
        raise DataError(f"the Iceberg table {table} cannot be read: {error}") from error
    problem = None
    if any(task.delete_files for task in scan):
        problem = "has deleted rows in files of their own (merge on read)"
    elif any(len(known) > 1 for known in names.values()):
        problem = "has renamed columns"
    if problem:
        raise DataError(
            f"the Iceberg table {table} {problem}, which is not read; rewrite its data files "
            "(CALL system.rewrite_data_files), or pass a frame: table.scan().to_arrow()"
        )
    return [TableFile(_plain_address(task.file.file_path)) for task in scan]


def _file_io_options(storage_options: Mapping[str, Any] | None) -> dict[str, str]:
    """Return options of s3fs by the names that pyiceberg uses."""
    known = {
        "AWS_ACCESS_KEY_ID": "s3.access-key-id",
        "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
        "AWS_SESSION_TOKEN": "s3.session-token",
        "AWS_ENDPOINT_URL": "s3.endpoint",
        "AWS_REGION": "s3.region",
    }
    settings = object_store_options(storage_options)
    return {known.get(name, name): value for name, value in settings.items()}


def _needs(table: str, kind: str, package: str, extra: str) -> str:
    return (
        f"{table} is a table of {kind}, whose folder also holds deleted rows; to read it, install "
        f"{package} with `pip install 'equipoise[{extra}]'`, or pass a frame of the table"
    )
