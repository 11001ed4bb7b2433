"""Measure the neighbourhood engine: accuracy on real data, time and memory on synthetic data.

    python benchmarks/neighbourhood.py real gowalla strong --neighbours 100
    python benchmarks/neighbourhood.py real yelp2018 strong --neighbours 100 --lowpass 0.4
    python benchmarks/neighbourhood.py beside gowalla strong
    python benchmarks/neighbourhood.py make --items 1000000 --data FOLDER
    python benchmarks/neighbourhood.py synthetic --items 1000000 --data FOLDER
    python benchmarks/neighbourhood.py synthetic --items 10000000 --interactions 120000000 \
        --data FOLDER --memory 20GB --scratch SCRATCH --lists 500

A fit has 128 steps: 64 sum the rows of A, 64 solve the systems. `--stop` ends the process after
that many steps, and the next run continues from the scratch folder.

Prints one JSON document with clock seconds and processor seconds. On a busy machine only the
processor seconds are comparable.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import equipoise as eq
from equipoise.solve import neighbourhood

sys.path.append(str(Path(__file__).resolve().parents[1] / "paper"))

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
METRICS = ("recall@20", "ndcg@20", "tail_ndcg@20")
# EASE+DAN as in the paper's tables; for weak splits tuned on test, like the published numbers
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("gowalla", "strong"): {"l2": 20, "dropout": 0.6, "alpha": 0.2, "beta": 0.3},
    ("yelp2018", "strong"): {"l2": 20, "dropout": 0.7, "alpha": 0.3, "beta": 0.3},
    ("gowalla", "weak"): {"l2": 5, "dropout": 0.5, "alpha": 0.0, "beta": 0.7},
    ("yelp2018", "weak"): {"l2": 30, "dropout": 0.7, "alpha": 0.3, "beta": 0.3},
}


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> dict[str, float]:
    wall, processors = (after - before for after, before in zip(clocks(), start, strict=True))
    return {"seconds": round(wall, 2), "processor_seconds": round(processors, 2)}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # GB, of this process


class Watch:
    """The most memory that the process has had without pages of files, looked up twice a second.

    The system drops pages of files when memory is short, and `peak` counts them.
    """

    def __init__(self) -> None:
        self.peak_gb = 0.0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.peak_gb = max(self.peak_gb, int(line.split()[1]) * 1024 / 1e9)
            time.sleep(0.5)


def planted(n_users: int, n_items: int, n_interactions: int, seed: int = 0) -> Any:
    """Return a synthetic users x items matrix with topics and a long tail.

    Seven of ten events are on one of the user's three topics. Popularity decreases within each
    topic and over all items; history lengths are log-normal.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(0, 1, n_users)
    lengths = np.maximum(2, np.rint(lengths * (n_interactions / lengths.sum()))).astype(np.int64)
    n_topics = max(n_items // 400, 1)
    shuffled = rng.permutation(n_items).astype(np.int32)
    parts = []
    for low in range(0, n_users, 100_000):
        batch_lengths = lengths[low : low + 100_000]
        user = np.repeat(np.arange(len(batch_lengths)), batch_lengths)
        user_topics = rng.integers(n_topics, size=(len(batch_lengths), 3))
        topic = user_topics[user, rng.integers(3, size=len(user))]
        size = (n_items - topic + n_topics - 1) // n_topics
        local = topic + n_topics * (size * rng.random(len(user)) ** 3).astype(np.int64)
        world = (n_items * rng.random(len(user)) ** 4).astype(np.int64)
        item = shuffled[np.where(rng.random(len(user)) < 0.7, local, world)]
        part = sp.csr_array(
            (np.ones(len(user), np.float32), (user, item)), shape=(len(batch_lengths), n_items)
        )
        part.sum_duplicates()
        part.data[:] = 1
        parts.append(part)
    return sp.vstack(parts, format="csr")


def real(chosen: argparse.Namespace) -> dict[str, Any]:
    from reproduce.data import find_split

    load_split = find_split(SHARED, chosen.dataset, chosen.protocol)
    if load_split is None:
        raise SystemExit(f"{SHARED / chosen.dataset} does not exist; put the data set there")
    split = load_split()
    numbers = dict(SETTINGS[chosen.dataset, chosen.protocol])
    normalizer = eq.DAN(numbers.pop("alpha"), numbers.pop("beta"))
    lowpass = None
    if chosen.lowpass:
        lowpass = eq.LowPass(rank=512, strength=chosen.lowpass, exponent=0.3)
    model = eq.EASE(**numbers, normalizer=normalizer, lowpass=lowpass)
    if chosen.kept:
        neighbourhood.ROW_ENTRIES = chosen.kept
    near = chosen.engine == "neighbourhood"
    options: dict[str, Any] = {"engine": chosen.engine}
    if near:
        options["neighbours"] = chosen.neighbours
    small = eq.Interactions(planted(300, 100, 2000))
    copy.deepcopy(model).fit(small, **options | ({"neighbours": 20} if near else {}))  # compiles
    before, start = peak(), clocks()
    model.fit(split.train, **options)
    took = since(start) | {"peak_gb": round(peak(), 2), "peak_gb_before": round(before, 2)}
    n_items = split.train.n_items
    numbers_kept = model.inverse_.data.size if near else n_items**2
    result = eq.evaluate(model, split.test, k=20)
    return {
        **{name: value for name, value in vars(chosen).items() if name != "run"},
        **took,
        "share_of_weights": numbers_kept / n_items**2,
        **{name: round(float(result[name]), 4) for name in METRICS},
        "residual": model.residual_,
        "audit": model.audit_,
    }


def beside(chosen: argparse.Namespace) -> dict[str, Any]:
    """Compare the dense and the neighbourhood engine, each in a separate process."""
    report = {}
    for engine in ("neighbourhood", "dense"):
        command = [sys.executable, __file__, "real", chosen.dataset, chosen.protocol]
        command += ["--engine", engine, "--neighbours", str(chosen.neighbours)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        report[engine] = json.loads(run.stdout)
        print(run.stdout, file=sys.stderr, flush=True)
    for name in ("seconds", "processor_seconds", "peak_gb"):
        report[f"{name}_ratio"] = report["dense"][name] / report["neighbourhood"][name]
    return report


def stored(chosen: argparse.Namespace) -> Any:
    """Return the synthetic data, stored in the folder `--data` if there is one."""
    n = chosen.items
    size = chosen.users or n, n, chosen.interactions or 30 * n
    if chosen.data is None:
        return planted(*size)
    file = chosen.data / ("planted-{}-{}-{}.npz".format(*size))
    if not file.exists():
        chosen.data.mkdir(parents=True, exist_ok=True)
        sp.save_npz(file, planted(*size), compressed=False)
    return sp.load_npz(file)


def make(chosen: argparse.Namespace) -> dict[str, Any]:
    X = stored(chosen)
    return {"users": X.shape[0], "items": X.shape[1], "interactions": X.nnz}


def synthetic(chosen: argparse.Namespace) -> dict[str, Any]:
    n = chosen.items
    data = eq.Interactions(stored(chosen))
    out: dict[str, Any] = {"items": n, "users": data.n_users, "interactions": data.n_interactions}
    out["peak_gb_before"] = round(peak(), 2)
    small = eq.Interactions(planted(300, 100, 2000))
    model = eq.EASE(l2=20.0, dropout=0.5, normalizer=eq.DAN(0.2, 0.3))
    model.fit(small, engine="neighbourhood", neighbours=20).recommend([0])  # compiles
    where = {"memory": chosen.memory, "scratch": chosen.scratch}
    near: dict[str, Any] = {"engine": "neighbourhood", "neighbours": chosen.neighbours, **where}
    plan = eq.plan(data, **near)
    out["planned_gb"] = round(plan.peak_bytes / 1e9, 2)
    out["planned_disk_gb"] = round(plan.disk_bytes / 1e9, 2)
    watch, start = Watch(), clocks()
    marks: list[dict[str, float]] = []

    def mark(state: Any) -> None:
        if chosen.stop:
            marks.append({"step": state.step, **since(start)})
            if state.step >= chosen.stop:
                out["peak_gb_without_files"] = round(watch.peak_gb, 2)
                out["peak_gb"], out["marks"] = round(peak(), 2), marks
                print(json.dumps(out), flush=True)
                os._exit(0)
        if state.step in (64, 128):
            stage = {f"{state.step}_{name}": value for name, value in since(start).items()}
            stage |= {"peak_gb": peak(), "peak_gb_without_files": watch.peak_gb}
            print(json.dumps(stage), file=sys.stderr, flush=True)

    model.fit(data, **near, progress=mark)
    out |= {f"fit_{name}": value for name, value in since(start).items()}
    out["peak_gb"] = round(peak(), 2)
    out["peak_gb_without_files"] = round(watch.peak_gb, 2)
    out["weights"] = int(model.inverse_.data.size)
    out |= {"residual": model.residual_, "audit": model.audit_}
    print(json.dumps(out), file=sys.stderr, flush=True)  # in case the process is stopped later
    users = np.random.default_rng(1).choice(data.n_users, chosen.lists, replace=False)
    start = clocks()
    model.rank(data.rows(np.sort(users)), 20)
    took = since(start)
    out["lists_per_processor_second"] = round(chosen.lists / took["processor_seconds"], 1)
    out["lists_per_second"] = round(chosen.lists / took["seconds"], 1)
    with tempfile.TemporaryDirectory() as folder:
        start = clocks()
        model.save(folder + "/model")
        out |= {f"save_{name}": value for name, value in since(start).items()}
        files = [file.stat().st_size for file in Path(folder, "model").iterdir()]
        out["disk_gb"] = round(sum(files) / 1e9, 3)
        start = clocks()
        again = eq.load(folder + "/model")
        out |= {f"load_{name}": value for name, value in since(start).items()}
        assert again.recommend([5]).items == model.recommend([5]).items
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, run in (("real", real), ("beside", beside)):
        first = commands.add_parser(name)
        first.add_argument("dataset", choices=("gowalla", "yelp2018"))
        first.add_argument("protocol", choices=("strong", "weak"))
        first.add_argument("--engine", default="neighbourhood")
        first.add_argument("--neighbours", type=int, default=100)
        first.add_argument("--kept", type=int, default=0, help="T / K; 0 for the engine's default")
        first.add_argument("--lowpass", type=float, default=0.0, help="strength of the companion")
        first.set_defaults(run=run)
    for name, run in (("synthetic", synthetic), ("make", make)):
        second = commands.add_parser(name)
        second.add_argument("--items", type=int, default=100_000)
        second.add_argument("--users", type=int, default=0)
        second.add_argument("--interactions", type=int, default=0)
        second.add_argument("--neighbours", type=int, default=100)
        second.add_argument("--memory", help="budget of the fit, such as 16GB")
        second.add_argument("--scratch", type=Path, help="folder for entries on disk")
        second.add_argument(
            "--stop", type=int, default=0, help="stop after this many of 128 steps"
        )
        second.add_argument("--lists", type=int, default=2000)
        second.add_argument("--data", type=Path, help="folder that stores the data")
        second.set_defaults(run=run)
    chosen = parser.parse_args()
    print(json.dumps(chosen.run(chosen), indent=1))


if __name__ == "__main__":
    main()
