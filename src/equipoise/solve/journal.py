"""Arrays that a solve fills part by part, in memory or in files that a later try goes on with."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from equipoise.data.storage import check_seal, parse, sealed
from equipoise.errors import DataError, FileFormatError
from equipoise.solve.tiled import locked

STATE = "neighbourhood.json"


class Journal:
    """Arrays by name, and the parts of them that are done.

    Parameters
    ----------
    folder
        Where the arrays are files; None keeps them in memory, and forgets what is done.
    problem
        What is solved, as plain values; a folder that holds another problem is refused.
    temporary
        Whether the folder goes with the journal.
    """

    def __init__(
        self,
        folder: Path | None = None,
        problem: dict[str, Any] | None = None,
        *,
        temporary: bool = False,
    ) -> None:
        self._folder, self._problem = folder, problem or {}
        self._temporary, self._mutex = temporary, Lock()
        self._done: dict[str, list[int]] = {}
        self._known: list[str] = []  # arrays that an earlier try had begun
        self._files: dict[str, npt.NDArray[Any]] = {}

    def __enter__(self) -> Self:
        if self._folder is not None:
            self._held = locked(self._folder)
            self._held.__enter__()
            try:
                self._done, self._known = self._read()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()
        if self._folder is not None:
            self._held.__exit__(None, None, None)
            if self._temporary:
                shutil.rmtree(self._folder, ignore_errors=True)

    def array(self, name: str, size: int, dtype: str) -> npt.NDArray[Any]:
        """Return room for an array; with a folder, as an earlier try left it."""
        if self._folder is None:
            return (
                np.zeros(size, dtype) if name in ("lengths", "diagonal") else np.empty(size, dtype)
            )
        file = self._folder / f"neighbourhood-{name}.npy"
        fresh = name not in self._known
        shape = (max(size, 1),)  # an empty file cannot be mapped
        try:
            found = np.lib.format.open_memmap(
                file,
                mode="w+" if fresh else "r+",
                dtype=np.dtype(dtype) if fresh else None,
                shape=shape if fresh else None,
            )
        except FileNotFoundError as error:
            raise FileFormatError(
                f"{file} is gone; remove {STATE} beside it to start anew"
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(
                f"{file} cannot be used: {error}; give another scratch folder"
            ) from error
        if found.shape != shape or found.dtype != np.dtype(dtype):
            raise FileFormatError(f"{file} is damaged; remove {STATE} beside it to start anew")
        self._files[name] = found
        return np.asarray(found)[:size]

    def taken(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array that stays when the files go."""
        return array if self._folder is None else np.array(array)

    def has(self, stage: str, part: int) -> bool:
        """Whether this part is done."""
        return part in self._done.get(stage, ())

    def add(self, stage: str, part: int) -> None:
        """Note that a part is done, once its numbers are on the disk."""
        if self._folder is None:
            return
        with self._mutex:
            for array in self._files.values():
                array.flush()  # type: ignore[attr-defined]
            self._done.setdefault(stage, []).append(part)
            fresh = self._folder / f"{STATE}.new"
            with fresh.open("w") as stream:
                arrays = sorted({*self._known, *self._files})
                state = {"problem": self._problem, "arrays": arrays, "done": self._done}
                json.dump(sealed(state), stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(fresh, self._folder / STATE)

    def clear(self) -> None:
        """Remove the files: the solve has its result."""
        if self._folder is None:
            return
        for file in [self._folder / STATE, *self._folder.glob("neighbourhood-*.npy")]:
            file.unlink(missing_ok=True)

    def _read(self) -> tuple[dict[str, list[int]], list[str]]:
        assert self._folder is not None
        file = self._folder / STATE
        if not file.exists():
            return {}, []
        try:
            state = parse(file.read_bytes())
            check_seal(state)
            done = state.group("done")
            found = {name: done.wholes(name) for name in done}
            arrays, problem = state.texts("arrays"), dict(state.group("problem"))
        except (OSError, FileFormatError) as error:
            raise FileFormatError(
                f"{file} is damaged: {error}; remove it to start anew"
            ) from error
        if problem != self._problem:
            raise DataError(
                f"{self._folder} holds another solve that was cut short; give another scratch "
                "folder, or empty it"
            )
        return found, arrays
