"""SolveOptions: where a fit runs, how precisely, and within which limits."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from equipoise.checks import choice, count, function, path, period
from equipoise.errors import SettingError
from equipoise.runtime.machine import MOST_THREADS, parse_memory

DTYPES = ("float32", "float64")
PRECISIONS = ("auto", "float32")


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """The run options of `fit`, `tune` and `plan`, checked; `LinearAutoencoder.fit` explains them.

    Which engines there are depends on the model, and whether a GPU exists is checked when it is
    used.
    """

    device: str = "cpu"
    dtype: str = "float32"
    engine: str = "auto"
    memory: str | float | None = None
    scratch: str | os.PathLike[str] | None = None
    threads: int | None = None
    refine: bool = False
    precision: str = "auto"
    neighbours: int | str | None = None
    progress: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        device = self.device
        if device != "cpu" and not (isinstance(device, str) and device.startswith("cuda")):
            raise SettingError(f"device must be 'cpu', 'cuda' or 'cuda:1', got {device!r}")
        choice("dtype", self.dtype, DTYPES)
        choice("precision", self.precision, PRECISIONS)
        if self.memory is not None:
            parse_memory(self.memory)
        if self.scratch is not None:
            path("scratch", self.scratch)
        if self.threads is not None:
            count("threads", self.threads, 1, MOST_THREADS)
        if isinstance(self.neighbours, str):
            period("neighbours", self.neighbours)
        elif self.neighbours is not None:
            count("neighbours", self.neighbours)
        function("progress", self.progress)

    def keywords(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as keyword arguments of `fit`."""
        defaults = {entry.name: entry.default for entry in dataclasses.fields(self)}
        return {name: value for name, value in vars(self).items() if value != defaults[name]}
