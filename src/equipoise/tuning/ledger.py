"""Finished solves on disk, so that a search that was killed goes on where it was.

A text file with one JSON document per line: first what the search is, then one line for every
finished solve with all that was read off it. A line is written and synced in one go; what a kill
left of the last line is dropped. So a solve is either there with everything, or not at all.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.manifest import LARGEST, Fields, check_seal, parse, sealed

logger = logging.getLogger(__name__)

KIND = "equipoise-tuning"
VERSION = 1
START = f'{{"format": "{KIND}"'.encode()  # of every storage

Solved = dict[str, Any]


def key_of(outer: dict[str, Any]) -> str:
    """Return what tells one solve from another."""
    return json.dumps(outer, sort_keys=True)


class Ledger:
    """Solves by their settings, in the order they were made.

    Parameters
    ----------
    path
        The file; None keeps everything in memory.
    data
        Fingerprint of the data that were searched on.
    search
        What else must agree: models, metrics and what is read off a solve.
    resume
        Whether to go on with a file that exists; otherwise it is refused.
    metrics
        What every point of a file must have measured.
    models
        Number of models that points may belong to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        data: str,
        search: Any,
        *,
        resume: bool,
        metrics: Collection[str] = (),
        models: int = 1,
    ) -> None:
        self.metrics, self.models = metrics, models
        self._kinds: dict[str, type] = {}
        self.path = None if path is None else Path(path)
        self.header = {"format": KIND, "version": VERSION, "data": data, "search": search}
        self.header = json.loads(json.dumps(self.header))
        self.solves: dict[str, Solved] = {}
        self._begun = False
        if self.path is None:
            return
        if self.path.exists():
            if not resume:
                raise SettingError(f"{self.path} exists; resume it or choose another storage")
            self._read()
        else:
            self._make_room()

    @property
    def points(self) -> list[dict[str, Any]]:
        """Everything that was read off, in order."""
        return [point for solved in self.solves.values() for point in solved["points"]]

    def add(self, outer: dict[str, Any], solved: Solved) -> None:
        """Keep a finished solve; on disk once this returns."""
        self.solves[key_of(outer)] = solved
        if self.path is not None:
            first = [] if self._begun else [self.header]
            self._append(*first, {"outer": outer, **solved})
            self._begun = True

    def _append(self, *documents: Any) -> None:
        assert self.path is not None
        try:
            lines = "".join(json.dumps(sealed(document)) + "\n" for document in documents)
        except ValueError as error:
            raise DataError(f"could not write {self.path}: a metric is no number") from error
        try:
            with self.path.open("ab") as stream:
                stream.write(lines.encode())
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise DataError(f"could not write {self.path}: {error.strerror}") from error

    def _make_room(self) -> None:
        """Make the folder now: an hour of solves later is too late to learn that it cannot be."""
        assert self.path is not None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"could not write {self.path}: {error.strerror}") from error
        if not os.access(self.path.parent, os.W_OK):
            raise DataError(f"could not write {self.path}: the folder is not writable")

    def _read(self) -> None:
        assert self.path is not None
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise FileFormatError(f"{self.path} cannot be read: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1]
        if not whole and content[: len(START)] != START[: len(content)]:
            raise FileFormatError(f"{self.path} is not the storage of a search; choose another")
        for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
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
        self._begun = bool(whole)
        if len(whole) < len(content):
            logger.info("%s: dropped a line that was cut short", self.path)
            os.truncate(self.path, len(whole))

    def _take(self, document: Fields) -> None:
        outer, points = document.group("outer"), document.groups("points")
        if not points:
            raise FileFormatError("a solve has no points")
        for point in points:
            point.text("family")
            point.whole("prototype", most=self.models - 1)
            for name in self.metrics:
                point.number(name)
            if not outer.keys() <= point.keys():
                raise FileFormatError("a point lacks the settings of its solve")
            for name, value in point.items():
                self._check_kind(name, value)
        seconds = document.number("seconds", least=0)
        self.solves[key_of(outer)] = {"points": list(map(dict, points)), "seconds": seconds}

    def _check_kind(self, name: str, value: Any) -> None:
        """Refuse a value of another kind than before: all points stand in one table."""
        number = type(value) in (int, float) and abs(value) <= LARGEST
        kind = float if number else type(value)
        if value is not None and self._kinds.setdefault(name, kind) is not kind:
            raise FileFormatError(f"{name!r} is of another kind than before, {kind.__name__}")

    def _check(self, found: dict[str, Any]) -> None:
        if found.get("format") != KIND:
            raise FileFormatError(f"{self.path} is not the storage of a search; choose another")
        if found.get("version") != VERSION:
            raise FileFormatError(f"{self.path} is of another version; choose another storage")
        if found.get("data") != self.header["data"]:
            raise DataError(
                f"{self.path} belongs to other data ({found.get('data')}, not "
                f"{self.header['data']}); choose another storage, or the split it was made with"
            )
        if found.get("search") != self.header["search"]:
            raise SettingError(
                f"{self.path} belongs to a search with other models, metrics or values; choose "
                "another storage"
            )
