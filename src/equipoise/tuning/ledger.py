"""Storage of finished solves, so that an interrupted search continues where it stopped.

A file of JSON lines: first the description of the search, then a line for every process that
worked on it and one for every finished solve, with all its points or the reason why it failed. A
line is written and synced as one; a last line that an interruption cut short is dropped. Nothing
is written before the file is known to belong to this search, and one process at a time holds its
lock.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from equipoise.checks import path as checked_path
from equipoise.data.storage import LARGEST, SEAL, Fields, check_seal, parse, sealed
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.runtime.locks import try_lock
from equipoise.runtime.resume import first_difference
from equipoise.tuning.space import key_of

logger = logging.getLogger(__name__)

KIND = "equipoise-tuning"
VERSION = 2
MARK = json.dumps({"format": KIND})[:-1].encode()  # the first bytes of every storage


class Ledger:
    """Finished solves by their settings, in the order they were made; a context manager.

    The file is continued if `resume` is set and its header equals `search`: the fingerprint of the
    data and everything else that a solve or the choice of the best depends on.
    """

    def __init__(
        self, path: str | os.PathLike[str], search: Mapping[str, Any], *, resume: bool
    ) -> None:
        self._types: dict[str, type] = {}  # of the values in each column of the points
        self._columns: dict[int, Collection[str]] = {}  # of the points of each prototype
        self.path = checked_path("storage", path)
        header = {"format": KIND, "version": VERSION, **search}
        self._header: dict[str, Any] = json.loads(json.dumps(header))
        self.solves: dict[str, dict[str, Any]] = {}
        self._created = not self.path.exists()
        if not (self._created or resume):
            raise SettingError(f"{self.path} exists; resume it or choose another storage")
        self._stream = _open_locked(self.path)
        try:
            self._load()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file; delete it if this ledger created it and it has no solves."""
        if self._created and not self.solves:
            with suppress(OSError):
                self.path.unlink()
        self._stream.close()

    def add(self, outer: dict[str, Any], solved: dict[str, Any]) -> None:
        """Store a finished solve; it is on disk once this returns."""
        self.solves[key_of(outer)] = solved
        self._append({"outer": outer, **solved})

    def _append(self, *documents: Any) -> None:
        try:
            lines = "".join(json.dumps(sealed(document)) + "\n" for document in documents)
        except ValueError as error:
            raise DataError(f"could not write {self.path}: a metric is not a number") from error
        remaining = memoryview(lines.encode())
        try:
            while remaining:
                remaining = remaining[self._stream.write(remaining) :]
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise DataError(f"could not write {self.path}: {error.strerror}") from error

    def _load(self) -> None:
        """Check the file; only then drop a line that was cut short, and add this process."""
        stream = self._stream
        try:
            stream.seek(0)
            n_bytes = self._read()
            if n_bytes < stream.tell():
                logger.info("%s: dropped a line that was cut short", self.path)
                stream.truncate(n_bytes)
        except OSError as error:
            raise FileFormatError(f"{self.path} cannot be read: {error.strerror}") from error
        process = {"process": os.getpid(), "host": socket.gethostname()}
        self._append(*([] if n_bytes else [self._header]), process)

    def _read(self) -> int:
        """Read the solves of the file; return the number of bytes in complete lines."""
        foreign = FileFormatError(
            f"{self.path} is not the storage of a search; choose another path"
        )
        content = self._stream.read(len(MARK))
        if not MARK.startswith(content):
            raise foreign  # a foreign file may be large: read no more of it
        content += self._stream.readall()
        n_bytes = content.rfind(b"\n") + 1
        if not n_bytes and not json.dumps(sealed(self._header)).encode().startswith(content):
            raise foreign
        for number, line in enumerate(content[:n_bytes].split(b"\n")[:-1], start=1):
            try:
                document = parse(line)
                if number > 1:
                    self._read_solve(document)
                check_seal(document)
            except FileFormatError as error:
                raise FileFormatError(
                    f"{self.path} is damaged in line {number}: {error}"
                ) from error
            if number == 1:
                self._check_header(document)
        return n_bytes

    def _read_solve(self, document: Fields) -> None:
        if "process" in document:
            return
        outer, points = document.group("outer"), document.groups("points")
        solved: dict[str, Any] = {
            "points": list(map(dict, points)),
            "seconds": document.number("seconds", least=0),
        }
        if not points:
            solved |= {"failed": document.text("failed"), "outer": dict(outer)}
        for point in points:
            point.text("family")
            last = len(self._header.get("models", [None])) - 1
            prototype = point.whole_number("prototype", most=last)
            for name in self._header.get("metrics", ()):
                point.number(name)
            if not outer.keys() <= point.keys():
                raise FileFormatError("a point lacks the settings of its solve")
            if self._columns.setdefault(prototype, point.keys()) != point.keys():
                raise FileFormatError("a point has other settings than those before it")
            for name, value in point.items():
                self._check_type(name, value)
        self.solves[key_of(outer)] = solved

    def _check_type(self, name: str, value: Any) -> None:
        """Refuse a value of another type than before: all points become one table."""
        is_number = type(value) in (int, float) and abs(value) <= LARGEST
        kind = float if is_number else type(value)
        if value is not None and self._types.setdefault(name, kind) is not kind:
            raise FileFormatError(f"{name!r} is of another type than before, {kind.__name__}")

    def _check_header(self, document: Fields) -> None:
        header = {name: value for name, value in document.items() if name != SEAL}
        if header.get("version") != VERSION:
            raise FileFormatError(f"{self.path} is of another version; choose another storage")
        if header.get("data") != self._header.get("data"):
            raise DataError(
                f"{self.path} belongs to other data ({header.get('data')}, not "
                f"{self._header.get('data')}); choose another storage, or the split it was made "
                "with"
            )
        if header != self._header:
            raise SettingError(
                f"{self.path} belongs to another search: "
                f"{first_difference(header, self._header)}; choose another storage, or call tune "
                "as it was called for this one"
            )


def _open_locked(path: Path) -> io.FileIO:
    """Open a file for reading and appending, and lock it; its content is not changed."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not a plain file"
        raise DataError(f"could not write {path}: it is {kind}; give the path of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            stream = path.open("a+b", buffering=0)
            if try_lock(stream.fileno()) is False:
                with stream:
                    raise DataError(
                        f"{path} is in use by {_last_process(stream)}; wait for it to end, or "
                        "choose another storage"
                    )
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                    return stream
            stream.close()  # the previous process has deleted the file: create it again
    except OSError as error:
        raise DataError(f"could not write {path}: {error.strerror}") from error


def _last_process(stream: io.FileIO) -> str:
    """Return the process and host of the last process line in a file."""
    stream.seek(0)
    for line in reversed(stream.readall().splitlines()):
        with suppress(FileFormatError):  # a line that is being written
            document = parse(line)
            if "process" in document:
                return f"process {document['process']} on {document.get('host')}"
    return "another process"
