"""Checksums of saved files: all of a small file, samples of a large one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.errors import FileFormatError

SMALL = 16 << 20  # files up to this size are hashed whole at every load
BLOCK = 4096


def describe_file(file: Path) -> dict[str, Any]:
    """Name, size and checksums of a file, for the manifest."""
    size = file.stat().st_size
    entry = {"file": file.name, "bytes": size, "sha256": _digest(file)}
    if size > SMALL:
        entry["sample"] = _sample_digest(file, size)
    return entry


def check_file(file: Path, entry: dict[str, Any], *, verify: bool) -> None:
    """Refuse a file that differs from its description; ``verify`` hashes large files whole."""
    size = file.stat().st_size
    if size != entry.get("bytes"):
        raise FileFormatError(f"{file} has {size:,} bytes, the manifest says {entry.get('bytes')}")
    if verify or size <= SMALL:
        sound = _digest(file) == entry.get("sha256")
    else:
        sound = _sample_digest(file, size) == entry.get("sample")
    if not sound:
        raise FileFormatError(f"{file} was changed after it was saved: its checksum differs")


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sample_digest(file: Path, size: int) -> str:
    """Hash both ends and 62 blocks spread evenly over the file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        for place in np.linspace(0, size - BLOCK, 64).astype(np.int64):
            stream.seek(int(place))
            digest.update(stream.read(BLOCK))
    return digest.hexdigest()
