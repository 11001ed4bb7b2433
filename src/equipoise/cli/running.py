"""Options that say how a fit is to run."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from equipoise.cli.output import note, working
from equipoise.cli.recipe import describe, option

if TYPE_CHECKING:
    from equipoise.interactions import Interactions
    from equipoise.models import Recommender


class Engine(StrEnum):
    """Exact engines."""

    auto = "auto"
    dense = "dense"
    tiled = "tiled"
    gpu = "gpu"


class DType(StrEnum):
    """Precisions."""

    float32 = "float32"
    float64 = "float64"


@dataclass(frozen=True)
class Where:
    """Where and how precisely to solve; as for `equipoise.plan`."""

    dtype: Annotated[DType, option("Precision of the solve.", panel="Run")] = DType.float32
    engine: Annotated[Engine, option("Where the solve runs.", panel="Run")] = Engine.auto
    device: Annotated[str, option("cpu, or a card such as cuda.", panel="Run")] = "cpu"
    memory: Annotated[str | None, option("Budget, such as 6GB.", panel="Run")] = None
    scratch: Annotated[
        Path | None, option("Folder for the tiled engine; a fit goes on from there.", panel="Run")
    ] = None

    def where(self) -> dict[str, Any]:
        """Return these options for a plan or a fit."""
        return {
            "dtype": self.dtype.value,
            "engine": self.engine.value,
            "device": self.device,
            "memory": self.memory,
            "scratch": self.scratch,
        }


@dataclass(frozen=True)
class Run(Where):
    """How a fit is to run; as for `LinearAutoencoder.fit`."""

    threads: Annotated[int | None, option("At most this many.", panel="Run")] = None
    refine: Annotated[bool, option("Refine the solve (four times the cost).", panel="Run")] = False

    def fit(self, model: Recommender, data: Interactions) -> Recommender:
        """Fit with a progress line whose estimate comes from `equipoise.plan`."""
        from equipoise.models import LinearAutoencoder
        from equipoise.solve.plan import plan

        if not isinstance(model, LinearAutoencoder):
            options = {"device": self.device, "threads": self.threads}
            known = inspect.signature(model.fit).parameters
            with working(f"fitting {type(model).__name__}"):
                fit: Any = model.fit
                fitted: Recommender = fit(data, **{k: v for k, v in options.items() if k in known})
                return fitted
        cost = plan(data, **self.where())
        with working(f"fitting {describe(model)} on {data.n_items:,} items", cost.seconds) as say:
            model.fit(
                data,
                refine=self.refine,
                threads=self.threads,
                progress=lambda progress: say(progress.step, progress.steps),
                **self.where(),
            )
        if "auto" in str(model.settings()):
            note(f"chosen from the data: {describe(model)}")
        return model
