"""Time a fresh process: `equipoise --help`, loading a model, the first and second lists.

    python benchmarks/startup.py [--items 5000] [--rounds 10] [--before ../src] [--model DIR]

Prints a Markdown table of the fewest seconds and processor seconds of all rounds; with `--before`
both source trees take turns. Kernels come from the cache of numba, modules from bytecode, as in
an installation; the first round fills both. `--model` uses a saved model instead of fitting one.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "src"
STEPS = ("load", "first recommend", "second recommend")
ASK = """
import sys, time
def now(): return time.perf_counter(), time.process_time()
marks = [now()]
import equipoise as eq
model = eq.load(sys.argv[1])
user = model.interactions_.users[5]
marks.append(now())
for _ in range(2):
    model.recommend([user], k=20)
    marks.append(now())
for before, after in zip(marks, marks[1:]):
    print(after[0] - before[0], after[1] - before[1])
"""
FIT = """
import sys
import numpy as np, scipy.sparse as sp
import equipoise as eq
n, rng = int(sys.argv[2]), np.random.default_rng(0)
users, items = np.repeat(np.arange(n // 2), 20), rng.integers(0, n, n // 2 * 20)
ones = np.ones(len(users), np.float32)
data = eq.read(sp.csr_array((ones, (users, items)), (n // 2, n)), on_bad="skip")
eq.EASE(l2=100.0, dropout=0.2, normalizer=eq.DAN(alpha=0.2, beta=0.3)).fit(data).save(sys.argv[1])
"""


def python(tree: Path, bytecode: str, *words: str) -> tuple[str, float, float]:
    """Run Python with a source tree; return its output, seconds and processor seconds."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *words]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, seconds, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--model")
    options = parser.parse_args()
    trees = {"now": HERE} | ({"before": options.before} if options.before else {})
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bytecode, model = f"{folder}/bytecode", options.model or f"{folder}/model"
        if not options.model:
            python(HERE, bytecode, "-c", FIT, model, str(options.items))
        for _ in range(options.rounds):
            for name, tree in trees.items():
                _, *spent = python(tree, bytecode, "-m", "equipoise", "--help")
                times.setdefault(("equipoise --help", name), []).append((spent[0], spent[1]))
                lines = python(tree, bytecode, "-c", ASK, model)[0].splitlines()
                for step, line in zip(STEPS, lines, strict=True):
                    seconds, processor = map(float, line.split())
                    times.setdefault((step, name), []).append((seconds, processor))
    print(f"{options.model or f'{options.items:,} items'}, the least of {options.rounds} rounds\n")
    print("| step | tree | s | processor s |\n|---|---|---|---|")
    for (step, name), spent in times.items():
        seconds, processor = (min(column) for column in zip(*spent, strict=True))
        print(f"| {step} | {name} | {seconds:.3f} | {processor:.3f} |")


if __name__ == "__main__":
    main()
