"""Compare equipoise with other libraries on the same data: `make bench`.

    python benchmarks/bench.py [--data FOLDER] [--folder .bench] [--sets movielens-1m ...]
        [--peers implicit ...] [--stages environments prepare search measure table] [--limit 300]
        [--memory 12]

An interrupted stage continues where it stopped. The stages are:

environments
    create a virtual environment for each library (`peers/environments.py`);
prepare
    split the data by hiding pairs of every user (`eq.split.weak`, seed 0), since half of the
    libraries cannot rank for a user outside the training data; all models use the same train part;
search
    try at most six settings per model and choose the one with the best NDCG@20 on 1,000 users of
    the valid part. Times are not measured, so other work may run at the same time. The search of a
    model ends at `--limit` seconds, and the table says how many settings were tried;
measure
    time each model with its defaults and with the chosen settings, alone on the machine: the
    fastest of up to three fits, their peak memory, and the time of lists of 20 for up to 3,000
    users. Converting the data for a library, imports and compilation are not counted;
table
    evaluate all lists with `eq.evaluate` and write benchmarks/results/peers.csv, the plots and
    peers.md. Rows of peers.csv that this run did not measure stay unchanged.

The address space of a process is limited to `--memory` GB; beyond that it fails, and the table
shows the error. `gowalla` has its 5,000 most used items; `gowalla-all` (not a default of `--sets`)
has all 40,981, for models that do not invert an items x items matrix. The lower bound ("floor") of
a fit is n^3 operations, the cost of a Cholesky factor and the inverse from it, at the speed of a
single-precision matrix product on this machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse as sp
from peers.adapters import MODELS, Model
from peers.environments import ENVIRONMENTS, make_all, python_of
from peers.table import write
from real import SHARED, most_used, sources

import equipoise as eq

HERE = Path(__file__).resolve().parent
# number of most used items, 0 for all
SETS = {"movielens-1m": 0, "online-retail": 0, "gowalla": 5_000, "gowalla-all": 0}
STAGES = ("environments", "prepare", "search", "measure", "table")
WAYS = ("default", "searched")
USERS, VALID_USERS = 3_000, 1_000
METRICS = ("ndcg", "tail_ndcg", "coverage")


class Bench:
    """One benchmark run: its folders, data sets and libraries."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, options.folder.resolve()
        self.environments = self.folder / "env"
        self.models = [model for model in MODELS if model.peer in ("equipoise", *options.peers)]

    def cells(self, name: str) -> Iterator[Model]:
        """Yield the models to measure on a data set whose library is installed."""
        for model in self.models:
            there = model.peer == "equipoise" or python_of(self.environments, model.peer).exists()
            if there and not (model.inverts and name == "gowalla-all"):
                yield model

    def prepare(self, name: str) -> None:
        """Write the split, the training matrix and the users of the valid and test parts."""
        folder = self.folder / name
        if (folder / "users-test.npy").exists():
            return
        data = sources(self.options.data)[name.removesuffix("-all")]()
        data = most_used(data, SETS[name]) if SETS[name] else data.filter(min_user=3)
        pairs = eq.Interactions((data.matrix > 0).astype(np.float32))
        split = eq.split.weak(pairs, valid=0.1, test=0.2, seed=0)
        folder.mkdir(parents=True, exist_ok=True)
        split.save(folder / "split")
        sp.save_npz(folder / "train.npz", sp.csr_matrix(split.train.matrix))
        for part, most in ((split.valid, VALID_USERS), (split.test, USERS)):
            assert part is not None
            users = part.history.users
            drawn = np.random.default_rng(0).permutation(len(users))[:most]
            np.save(folder / f"users-{part.name}.npy", np.sort(users[drawn]))

    def run(self, name: str, model: Model, part: str, out: Path, **more: Any) -> str:
        """Run a job in the model's environment; return its error, "" on success."""
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = self.folder / name
        files = {"train": folder / "train.npz", "users": folder / f"users-{part}.npy", "out": out}
        job = out.with_name(out.name + ".job.json")
        paths = {key: str(path) for key, path in files.items()}
        job.write_text(json.dumps({"model": model.key, **paths, **more}), encoding="utf-8")
        ours = model.peer == "equipoise"
        python = sys.executable if ours else str(python_of(self.environments, model.peer))
        command = [python, str(HERE / "peers" / "driver.py"), str(job)]
        environment = {**os.environ, "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
        if not ours:
            environment.pop("PYTHONPATH", None)
        process_options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": folder}
        most = int(self.options.memory * 1e9)
        process_options["preexec_fn"] = lambda: resource.setrlimit(
            resource.RLIMIT_AS, (most, most)
        )
        try:
            done = subprocess.run(
                command, timeout=self.options.limit, env=environment, **process_options
            )
        except subprocess.TimeoutExpired:
            return f"over {self.options.limit} s"
        return done.stderr.strip().splitlines()[-1][:200] if done.returncode else ""

    def search(self, name: str, model: Model) -> None:
        """Choose the settings of a model on the valid part."""
        out = self.folder / name / "search" / model.key
        chosen = out.with_name(out.name + ".json")
        if chosen.exists() or not model.grid:
            return
        start = time.perf_counter()
        error = self.run(name, model, "valid", out)
        tried = []
        for number, settings in enumerate(model.grid):
            lists = out.with_name(f"{out.name}-{number}.npy")
            if lists.exists():
                tried.append((self.judge(name, "valid", lists)["ndcg"], settings))
        choice: dict[str, Any] = {"error": error, "tried": tried}
        if tried:
            choice["settings"] = max(tried, key=lambda trial: trial[0])[1]
        if error:
            choice["note"] = f"{len(tried)} of {len(model.grid)} settings tried: {error}"
        chosen.write_text(json.dumps(choice, indent=1), encoding="utf-8")
        seconds = time.perf_counter() - start
        print(
            f"{name}, {model.key}: {seconds:.0f} s, {choice.get('settings')} {error}", flush=True
        )

    def judge(self, name: str, part: str, lists: Path) -> dict[str, float]:
        """Return the metrics of lists of items that a library wrote."""
        split, users, items = self.split(name), self.users(name, part), np.load(lists)
        side = split.valid if part == "valid" else split.test
        assert side is not None
        has_user = np.isin(side.history.users, users)
        judged_part = eq.split.Part(
            side.history.rows(has_user), side.target.rows(has_user), "weak", part
        )
        ranks = np.tile(np.arange(1, items.shape[1] + 1), len(items))
        user = np.repeat(users, items.shape[1])
        frame = pl.DataFrame({"user": user, "item": items.ravel(), "rank": ranks})
        frame = frame.filter(pl.col("item") >= 0)
        result = eq.evaluate(frame, judged_part, train=split.train, metrics=METRICS, bootstrap=0)
        return {metric: result[f"{metric}@20"] for metric in METRICS}

    def split(self, name: str) -> eq.Split:
        """Return the split of a data set."""
        return eq.Split.load(self.folder / name / "split")

    def users(self, name: str, part: str) -> np.ndarray:
        """Return the users to rank for."""
        return np.load(self.folder / name / f"users-{part}.npy")

    def measure(self, name: str, model: Model) -> None:
        """Time and evaluate a model with its defaults and with the settings of the search."""
        out = self.folder / name / "measured" / model.key
        ways: dict[str, Any] = {"default": {}}
        search = self.folder / name / "search" / f"{model.key}.json"
        choice = json.loads(search.read_text(encoding="utf-8")) if search.exists() else {}
        ways |= {"searched": choice["settings"]} if "settings" in choice else {}
        done = {way: out.with_name(f"{model.key}-{way}.json") for way in WAYS}
        ways = {way: settings for way, settings in ways.items() if not done[way].exists()}
        if "note" in choice and "settings" not in choice and not done["searched"].exists():
            none = {"settings": {}, "date": f"{datetime.date.today()}", "error": choice["note"]}
            done["searched"].write_text(json.dumps(none, indent=1), encoding="utf-8")
        if not ways:
            return
        error = self.run(name, model, "test", out, ways=ways)
        for way, settings in ways.items():
            row: dict[str, Any] = {"settings": settings, "date": f"{datetime.date.today()}"}
            if way == "searched" and "note" in choice:
                row["note"] = choice["note"]
            figures = out.with_name(f"{model.key}-{way}.figures.json")
            if figures.exists():
                row |= json.loads(figures.read_text())
                row |= self.judge(name, "test", out.with_name(f"{model.key}-{way}.npy"))
            else:
                row["error"] = error
            done[way].write_text(json.dumps(row, indent=1), encoding="utf-8")
            shown = {
                key: round(figure, 4) for key, figure in row.items() if isinstance(figure, float)
            }
            print(f"{name}, {model.key}, {way}: {shown} {row.get('error', '')}", flush=True)

    def floor(self, name: str) -> None:
        """Measure the speed of a matrix product, once for each data set."""
        out = self.folder / name / "measured" / "floor.json"
        if out.exists():
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        n = 3_000
        a, times = np.random.default_rng(0).random((n, n), np.float32), []
        for _ in range(6):
            start = time.perf_counter()
            a @ a
            times.append(time.perf_counter() - start)
        rate = 2 * n**3 / min(times)
        items = self.split(name).train.n_items
        out.write_text(json.dumps({"gflops": rate / 1e9, "seconds": items**3 / rate}))

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield a row of the table for each measured model, by default or searched settings."""
        file = self.folder / name / "measured" / "floor.json"
        if not file.exists():
            return
        floor = json.loads(file.read_text())["seconds"]
        train = self.split(name).train
        for model in self.models:
            for way in WAYS:
                done = self.folder / name / "measured" / f"{model.key}-{way}.json"
                if not done.exists():
                    continue
                row = json.loads(done.read_text(encoding="utf-8"))
                version = row.pop("version", eq.__version__)
                sizes = {"users": train.n_users, "items": train.n_items, "floor_s": floor}
                yield {
                    "data": name,
                    **sizes,
                    "pairs": train.n_interactions,
                    "lists": len(self.users(name, "test")),
                    "library": model.peer,
                    "version": version,
                    "model": model.name,
                    "way": way,
                    **row,
                }


def machine() -> str:
    """Return processor, cores, memory and Python version as text."""
    names = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{names[0]}, {os.cpu_count()} cores, {size:.0f} GB, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED, help="folder that has gowalla/weak")
    parser.add_argument("--folder", type=Path, default=Path(".bench"))
    parser.add_argument("--sets", nargs="+", default=list(SETS)[:3], choices=list(SETS))
    names = list(ENVIRONMENTS)
    parser.add_argument("--peers", nargs="*", default=names, choices=names)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    parser.add_argument("--limit", type=int, default=300, help="seconds for a model")
    parser.add_argument("--memory", type=float, default=12, help="GB for a process")
    bench = Bench(options := parser.parse_args())
    if "environments" in options.stages:
        for name, error in make_all(bench.environments, options.peers).items():
            print(f"{name}: {error or 'ready'}", flush=True)
    for stage in ("prepare", "search", "measure"):
        for name in options.sets if stage in options.stages else ():
            if stage == "prepare":
                bench.prepare(name)
                continue
            if stage == "measure":
                bench.floor(name)
            for model in bench.cells(name):
                if stage == "search":
                    bench.search(name, model)
                else:
                    bench.measure(name, model)
    if "table" in options.stages:
        errors = {
            name: file.read_text(encoding="utf-8")
            for name in ENVIRONMENTS
            if (file := bench.environments / f"{name}.error").exists()
        }
        rows = [row for name in options.sets for row in bench.rows(name)]
        write(HERE / "results", rows, errors, machine())


if __name__ == "__main__":
    main()
