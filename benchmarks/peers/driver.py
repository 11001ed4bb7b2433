"""Fit and rank with one model of one library, inside the environment of that library.

    python benchmarks/peers/driver.py JOB.json

The job file names the model, the settings to time (without them, every setting of the search is
tried), the training matrix, the users to rank for and the output files. Existing output files are
not computed again. Requires only numpy and scipy in addition to the library.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from adapters import MODELS, Model

ROUNDS, ENOUGH = 3, 5.0  # at most 3 fits, and no further one after 5 seconds in total


def memory(name: str) -> int:
    """Return a field of /proc/self/status in bytes: VmRSS (now) or VmHWM (peak since `reset`)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def reset() -> int:
    """Reset the recorded peak memory; return the memory in use."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def warm_up(model: Model, settings: dict[str, Any]) -> None:
    """Fit and rank on tiny data, so that everything is imported and compiled."""
    rng = np.random.default_rng(0)
    tiny = sp.csr_matrix((rng.random((200, 60)) < 0.2).astype(np.float32))
    small = {name: min(value, 8) if name in SIZES else value for name, value in settings.items()}
    model.fit(model.prepare(tiny), **small)(np.arange(100), 10)


SIZES = ("factors", "n_components", "embedding_size", "k", "K", "top_k", "neighbours")


def measured(model: Model, prepared: Any, before: int, users: np.ndarray, settings: Any) -> Any:
    """Return lists, times and peak memory of one setting; memory is relative to `before`."""
    fits: list[float] = []
    peak, rank = 0, None
    while len(fits) < ROUNDS and sum(fits) < ENOUGH:
        rank = None
        reset()
        start = time.perf_counter()
        rank = model.fit(prepared, **settings)
        fits.append(time.perf_counter() - start)
        peak = max(peak, memory("VmHWM") - before)
    assert rank is not None
    start = time.perf_counter()
    lists = rank(users, 20)
    seconds = time.perf_counter() - start
    return lists, {"fit_s": min(fits), "fits": fits, "peak_bytes": peak, "rank_s": seconds}


def main(job: dict[str, Any]) -> None:
    (model,) = (candidate for candidate in MODELS if candidate.key == job["model"])
    train = sp.load_npz(job["train"]).tocsr()
    users = np.load(job["users"])
    if "ways" not in job:
        prepared = model.prepare(train)
        for number, settings in enumerate(model.grid):
            out = Path(f"{job['out']}-{number}.npy")
            if not out.exists():
                save(out, model.fit(prepared, **settings)(users, 20))
        return
    ways = {
        way: (out, settings)
        for way, settings in job["ways"].items()
        if not (out := Path(f"{job['out']}-{way}.figures.json")).exists()
    }
    for _, settings in ways.values():
        warm_up(model, settings)
    prepared = model.prepare(train)
    before = reset()
    for way, (out, settings) in ways.items():
        lists, figures = measured(model, prepared, before, users, settings)
        save(Path(f"{job['out']}-{way}.npy"), lists)
        if model.peer != "equipoise":
            figures["version"] = version(model.peer.lower())
        out.write_text(json.dumps(figures))


def save(file: Path, lists: np.ndarray) -> None:
    """Write lists atomically, so that an interrupted job leaves no partial file."""
    part = file.with_name(f"part-{file.name}")
    np.save(part, lists)
    part.replace(file)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
