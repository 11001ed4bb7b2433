"""Finished solves on disk, so that a search that was killed continues where it was.

A text file with one JSON document per line: first what the search is, then a line for every
process that worked on it and one for every finished solve with all that was read off it, or with
the reason why it failed. A line is
written and synced in one go; what a kill left of the last line is dropped. So a solve is either
there with everything, or not at all. Nothing is written before the file is known to be this
search, and one process at a time holds its lock.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from equipoise.checks import path as checked_path
from equipoise.data.storage import LARGEST, SEAL, Fields, check_seal, parse, sealed
from equipoise.errors import DataError, FileFormatError, SettingError

logger = logging.getLogger(__name__)

KIND = "equipoise-tuning"
VERSION = 2
MARK = json.dumps({"format": KIND})[:-1].encode()  # what every storage begins with
FAR = 1 << 40  # a byte that no storage reaches
LONGEST = 200  # characters of a value in a message


def key_of(outer: dict[str, Any]) -> str:
    """Return what tells one solve from another; 10 and 10.0 are the same setting."""
    same = {name: float(value) if type(value) is int else value for name, value in outer.items()}
    return json.dumps(same, sort_keys=True)


class Ledger:
    """Solves by their settings, in the order they were made; a context that holds the file.

    Parameters
    ----------
    path
        The file; None keeps everything in memory.
    search
        What a file must agree with to be continued: "data", the fingerprint of what was searched
        on, and everything else that a solve or the choice of the best depends on; every point has
        its "metrics" and belongs to one of its "models".
    resume
        Whether to continue a file that exists; otherwise it is refused.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, search: Mapping[str, Any], *, resume: bool
    ) -> None:
        self._kinds: dict[str, type] = {}
        self._names: dict[int, Collection[str]] = {}
        self.path = None if path is None else checked_path("storage", path)
        header = {"format": KIND, "version": VERSION, **search}
        self._header: dict[str, Any] = json.loads(json.dumps(header))
        self.solves: dict[str, dict[str, Any]] = {}
        self._stream: io.FileIO | None = None
        if self.path is None:
            return
        self._created = not self.path.exists()
        if not (self._created or resume):
            raise SettingError(f"{self.path} exists; resume it or choose another storage")
        self._stream = _hold(self.path)
        try:
            self._take_up(self._stream)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; one that was made here and holds no solve is removed."""
        if self._stream is None or self.path is None:
            return
        if self._created and not self.solves:
            with suppress(OSError):
                self.path.unlink()
        self._stream.close()

    def add(self, outer: dict[str, Any], solved: dict[str, Any]) -> None:
        """Keep a finished solve; on disk once this returns."""
        self.solves[key_of(outer)] = solved
        if self._stream is not None:
            self._append(self._stream, {"outer": outer, **solved})

    def _append(self, stream: io.FileIO, *documents: Any) -> None:
        try:
            lines = "".join(json.dumps(sealed(each)) + "\n" for each in documents)
        except ValueError as error:
            raise DataError(f"could not write {self.path}: a metric is no number") from error
        left = memoryview(lines.encode())
        try:
            while left:
                left = left[stream.write(left) :]
            os.fsync(stream.fileno())
        except OSError as error:
            raise DataError(f"could not write {self.path}: {error.strerror}") from error

    def _take_up(self, stream: io.FileIO) -> None:
        """Check all of the file; only then drop a line that was cut short, and sign."""
        try:
            stream.seek(0)
            whole = self._read(stream)
            if whole < stream.tell():
                logger.info("%s: dropped a line that was cut short", self.path)
                stream.truncate(whole)
        except OSError as error:
            raise FileFormatError(f"{self.path} cannot be read: {error.strerror}") from error
        signed = {"process": os.getpid(), "host": socket.gethostname()}
        self._append(stream, *([] if whole else [self._header]), signed)

    def _read(self, stream: io.FileIO) -> int:
        """Take the solves of the file and return how many of its bytes are whole lines."""
        foreign = FileFormatError(
            f"{self.path} is not the storage of a search; choose another path"
        )
        content = stream.read(len(MARK))
        if not MARK.startswith(content):
            raise foreign  # however large it is, no more of it is read
        content += stream.readall()
        whole = content.rfind(b"\n") + 1
        if not whole:
            if not json.dumps(sealed(self._header)).encode().startswith(content):
                raise foreign
            return 0
        for number, line in enumerate(content[:whole].split(b"\n")[:-1], start=1):
            try:
                document = parse(line)
                if number > 1:
                    self._take(document)
                check_seal(document)
            except FileFormatError as error:
                where = f"{self.path} is damaged in line {number}"
                raise FileFormatError(f"{where}: {error}") from error
            if number == 1:
                self._check(document)
        return whole

    def _take(self, document: Fields) -> None:
        if "process" in document:
            document.whole("process")
            document.text("host")
            return
        outer, points = document.group("outer"), document.groups("points")
        seconds = document.number("seconds", least=0)
        if "failed" in document and not points:
            failed: dict[str, Any] = {"failed": document.text("failed"), "outer": dict(outer)}
            self.solves[key_of(outer)] = {"points": [], "seconds": seconds, **failed}
            return
        if not points:
            raise FileFormatError("a solve has no points")
        for point in points:
            point.text("family")
            which = point.whole("prototype", most=len(self._header.get("models", [None])) - 1)
            for name in self._header.get("metrics", ()):
                point.number(name)
            if not outer.keys() <= point.keys():
                raise FileFormatError("a point lacks the settings of its solve")
            if self._names.setdefault(which, point.keys()) != point.keys():
                raise FileFormatError("a point has other settings than those before it")
            for name, value in point.items():
                self._check_kind(name, value)
        self.solves[key_of(outer)] = {"points": list(map(dict, points)), "seconds": seconds}

    def _check_kind(self, name: str, value: Any) -> None:
        """Refuse a value of another kind than before: all points stand in one table."""
        number = type(value) in (int, float) and abs(value) <= LARGEST
        kind = float if number else type(value)
        if value is not None and self._kinds.setdefault(name, kind) is not kind:
            raise FileFormatError(f"{name!r} is of another kind than before, {kind.__name__}")

    def _check(self, document: Fields) -> None:
        found = {name: value for name, value in document.items() if name != SEAL}
        if found.get("version") != VERSION:
            raise FileFormatError(f"{self.path} is of another version; choose another storage")
        if found.get("data") != self._header.get("data"):
            raise DataError(
                f"{self.path} belongs to other data ({found.get('data')}, not "
                f"{self._header.get('data')}); choose another storage, or the split it was made "
                "with"
            )
        if found != self._header:
            raise SettingError(
                f"{self.path} belongs to another search: its {_difference(found, self._header)}; "
                "choose another storage, or tune with what it was made with"
            )


def _difference(theirs: Any, mine: Any, name: str = "") -> str:
    """Say where two JSON values differ first, such as "values.l2 is [1.0], not [2.0]"."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in [*theirs, *mine]:
            inner = f"{name}.{key}" if name else key
            if key not in mine:
                return f"{inner} is {_short(theirs[key])}, and here there is none"
            if key not in theirs:
                return f"{inner} is not there, and here it is {_short(mine[key])}"
            if theirs[key] != mine[key]:
                return _difference(theirs[key], mine[key], inner)
    if isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        pairs = enumerate(zip(theirs, mine, strict=True))
        place = next(place for place, (one, other) in pairs if one != other)
        if isinstance(theirs[place], dict):
            return _difference(theirs[place], mine[place], f"{name}[{place}]")
    return f"{name} is {_short(theirs)}, not {_short(mine)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _hold(path: Path) -> io.FileIO:
    """Open a file for reading and appending, and lock it; nothing in it is changed."""
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "not a plain file"
        raise DataError(f"could not write {path}: it is {what}; give the path of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            stream = path.open("a+b", buffering=0)
            if not _lock(stream.fileno()):
                with stream:
                    raise DataError(
                        f"{path} is in use by {_holder(stream)}; wait for it to end, or choose "
                        "another storage"
                    )
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                    return stream
            stream.close()  # the process that held it has removed it
    except OSError as error:
        raise DataError(f"could not write {path}: {error.strerror}") from error


def _lock(handle: int) -> bool:
    """Lock a file unless another process has; the system drops the lock with the process."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, FAR, os.SEEK_SET)  # locked bytes cannot be read by others
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # some network file systems have no locks
        logger.debug("the storage of a search cannot be locked here")
    return True


def _holder(stream: io.FileIO) -> str:
    """Name the last process that signed a file."""
    stream.seek(0)
    for line in reversed(stream.readall().splitlines()):
        with suppress(FileFormatError):  # a line that is being written
            document = parse(line)
            if "process" in document:
                return f"process {document['process']} on {document.get('host')}"
    return "another process"
