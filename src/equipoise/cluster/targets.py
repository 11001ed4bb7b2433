"""Where workers write lists: a folder that all machines share, or an address for fsspec."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.checks import is_address
from equipoise.checks import path as checked_path
from equipoise.data.remote import (
    make_folder,
    open_filesystem,
    read_remote,
    remote_names,
    translate_remote,
)
from equipoise.errors import DataError

PATIENCE = 10  # seconds until a file that another machine wrote appears in a shared folder
SHOWN = 5  # hosts that a message names


@dataclass(frozen=True)
class Target:
    """A folder of files, each of which appears when it is complete."""

    place: str  # absolute path, or address without the last /

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Target:
        """Return the target of a path or an address."""
        if is_address(folder):
            return cls(os.fspath(folder).rstrip("/"))
        return cls(str(checked_path("folder", folder).absolute()))

    def __str__(self) -> str:
        return self.place

    @property
    def is_remote(self) -> bool:
        """Whether fsspec opens it."""
        return is_address(self.place)

    def names(self) -> set[str]:
        """Return the names of the files, of none if there is no folder."""
        if self.is_remote:
            return set(remote_names(self.place))
        folder = Path(self.place)
        return {file.name for file in folder.iterdir()} if folder.is_dir() else set()

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        if self.is_remote:
            return read_remote(f"{self.place}/{name}")
        file = Path(self.place, name)
        return file.read_bytes() if file.exists() else None

    def write(self, name: str, make: Callable[[str], object]) -> str:
        """Write a file, unless it exists; return the name of this machine.

        `make` gets the path to write; for a local folder it writes atomically itself.
        """
        if not self.is_remote:
            file = Path(self.place, name)
            if not file.exists():
                make(str(file))
            return socket.gethostname()
        system, root = open_filesystem(self.place)
        with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
            copy = Path(folder) / name
            with translate_remote(f"{self.place}/{name} cannot be read"):
                exists = system.exists(f"{root}/{name}")
            if not exists:
                make(str(copy))
                with translate_remote(f"{self.place}/{name} cannot be written"):
                    make_folder(system, root)
                    system.put_file(str(copy), f"{root}/{name}")
        return socket.gethostname()

    def require(self, names: Iterable[str], hosts: Iterable[str]) -> None:
        """Raise if files that workers on these hosts wrote do not appear here."""
        expected, patience = set(names), time.monotonic() + PATIENCE
        while missing := expected - self.names():
            if time.monotonic() > patience:
                break
            time.sleep(0.2)
        if not missing:
            return
        known = sorted(set(hosts))
        shown = ", ".join(known[:SHOWN]) + (", ..." if len(known) > SHOWN else "")
        raise DataError(
            f"{len(missing):,} of {len(expected):,} files that the workers wrote are not in "
            f"{self.place} as {socket.gethostname()} sees it; workers wrote on {shown}. Give a "
            "folder that all machines share, or an address such as s3://bucket/lists, and remove "
            "the folder on these machines"
        )

    def remove_unfinished(self, is_unfinished: Callable[[str], bool]) -> None:
        """Remove the files of workers that were lost while they wrote."""
        if not self.is_remote:
            for file in Path(self.place).iterdir():
                if is_unfinished(file.name):
                    file.unlink(missing_ok=True)


def write_bytes(content: bytes) -> Callable[[str], Any]:
    """Return a function for `Target.write` that writes the content at once."""

    def write(path: str) -> None:
        temporary = Path(f"{path}.{os.getpid()}")
        temporary.write_bytes(content)
        os.replace(temporary, path)

    return write
