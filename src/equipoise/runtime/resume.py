"""Resume a long job: a locked folder, a state file, and arrays filled part by part.

A state file is a sealed JSON document, replaced in one step. It describes the job that it belongs
to, so that a folder is never resumed with other data or settings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from equipoise.data.storage import Fields, check_seal, parse, sealed
from equipoise.errors import DataError, FileFormatError
from equipoise.runtime.locks import locked_folder

STATE = "neighbourhood.json"
LONGEST = 200  # characters of a value in a message

T = TypeVar("T")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder and lock it; the system drops the lock of a process that dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be used: {error.strerror}") from error
    with locked_folder(folder, f"{folder} is in use by another process; give another folder"):
        yield


def first_difference(recorded: Any, current: Any, name: str = "") -> str:
    """Say where two JSON values first differ, as "its values.l2 is [1.0], not [2.0]"."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        for key in [*recorded, *current]:
            inner = f"{name}.{key}" if name else key
            if key not in current:
                return f"its {inner} is {_short(recorded[key])}, and here there is none"
            if key not in recorded:
                return f"its {inner} is not there, and here it is {_short(current[key])}"
            if recorded[key] != current[key]:
                return first_difference(recorded[key], current[key], inner)
    if isinstance(recorded, list) and isinstance(current, list) and len(recorded) == len(current):
        place = next(place for place, entry in enumerate(recorded) if entry != current[place])
        if isinstance(recorded[place], dict):
            return first_difference(recorded[place], current[place], f"{name}[{place}]")
    return f"its {name} is {_short(recorded)}, not {_short(current)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def read_state(
    file: Path, job: dict[str, Any], remedy: str, read: Callable[[Fields], T]
) -> T | None:
    """Return what `read` makes of a state file; None where the file does not exist.

    Raises `FileFormatError` with the remedy for a damaged file, and `DataError` for a file that
    belongs to another job.
    """
    if not file.exists():
        return None
    try:
        state = parse(file.read_bytes())
        recorded = dict(state.group("problem"))
        if recorded == job:
            result = read(state)
            check_seal(state)
            return result
    except (OSError, FileFormatError) as error:
        raise FileFormatError(f"{file} is damaged: {error}; {remedy}") from error
    raise DataError(
        f"{file.parent} holds another fit: {first_difference(recorded, job)}; give another "
        "scratch folder, or delete the files of that fit"
    )


def write_state(file: Path, job: dict[str, Any], **state: Any) -> None:
    """Replace the state file of a job in one step, after its content is on the disk."""
    new_file = file.with_name(f"{file.name}.new")
    write_file(new_file, json.dumps(sealed({"problem": job, **state})).encode())
    os.replace(new_file, file)


def write_file(file: Path, content: bytes | memoryview) -> None:
    """Write a file and wait until it is on the disk."""
    try:
        with file.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        raise write_error(file, error) from error


def write_error(file: Path, error: OSError) -> DataError:
    """Return the error for a file that could not be written."""
    return DataError(
        f"could not write {file}: {error.strerror or error}; "
        "make room and fit again with the same scratch folder to resume"
    )


class Journal:
    """Arrays by name, and the parts of them that are done.

    The arrays are files of a folder, which may be temporary; without a folder they are in memory
    and nothing is recorded. `problem` has JSON values that identify what is solved; a folder of
    another problem is refused.
    """

    def __init__(
        self,
        folder: Path | None = None,
        problem: dict[str, Any] | None = None,
        *,
        temporary: bool = False,
    ) -> None:
        self._folder, self._problem, self._temporary = folder, problem or {}, temporary
        self._resources, self._mutex = ExitStack(), Lock()
        self._done: dict[str, list[int]] = {}
        self._earlier_arrays: list[str] = []  # of the run that is resumed
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._temporary:
                self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="equipoise-")))
            if self._folder is not None:
                stack.enter_context(locked(self._folder))
                state = read_state(
                    self._folder / STATE, self._problem, "remove it to start again", _read
                )
                self._done, self._earlier_arrays = state or ({}, [])
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._arrays.clear()
        self._resources.close()

    def array(self, name: str, size: int, dtype: str) -> npt.NDArray[Any]:
        """Return an array; with a folder, as an earlier run left it."""
        if self._folder is None:
            return np.zeros(size, dtype)
        file = self._folder / f"neighbourhood-{name}.npy"
        is_new = name not in self._earlier_arrays
        shape = (max(size, 1),)  # an empty file cannot be mapped
        try:
            array = np.lib.format.open_memmap(
                file,
                mode="w+" if is_new else "r+",
                dtype=np.dtype(dtype) if is_new else None,
                shape=shape if is_new else None,
            )
        except FileNotFoundError as error:
            raise FileFormatError(
                f"{file} is missing; remove {STATE} beside it to start again"
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(
                f"{file} cannot be used: {error}; give another scratch folder"
            ) from error
        if array.shape != shape or array.dtype != np.dtype(dtype):
            raise FileFormatError(f"{file} is damaged; remove {STATE} beside it to start again")
        self._arrays[name] = array
        return np.asarray(array)[:size]

    def has(self, stage: str, part: int) -> bool:
        """Whether this part is done."""
        return part in self._done.get(stage, ())

    def add(self, stage: str, part: int) -> None:
        """Record that a part is done, once its numbers are on the disk."""
        if self._folder is None or self._temporary:
            return
        with self._mutex:
            for array in self._arrays.values():
                array.flush()  # type: ignore[attr-defined]
            self._done.setdefault(stage, []).append(part)
            arrays = sorted({*self._earlier_arrays, *self._arrays})
            write_state(self._folder / STATE, self._problem, arrays=arrays, done=self._done)

    def clear(self) -> None:
        """Remove the files after the solve."""
        if self._folder is not None:
            for file in [self._folder / STATE, *self._folder.glob("neighbourhood-*.npy")]:
                file.unlink(missing_ok=True)


def _read(state: Fields) -> tuple[dict[str, list[int]], list[str]]:
    done = state.group("done")
    return {stage: done.wholes(stage) for stage in done}, state.texts("arrays")
