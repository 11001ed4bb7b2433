"""Processes made by fork: all works, or is refused at once; nothing waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

SCRIPT = """
import os, signal, sys, warnings
from functools import partial

warnings.simplefilter("ignore")  # of a fork beside threads
import polars as pl
import equipoise as eq
from equipoise.runtime import machine

folder, used_before = sys.argv[1], sys.argv[2] == "used"
machine.POLARS_STARTS = 30.0 if not used_before else 3.0
events = [(f"u{n % 40}", f"i{n * n % 23}", 1.0, 1e9 + n) for n in range(400)]
catalogue = {f"i{n}": f"title {n}" for n in range(23)}

def prepare():
    data = eq.read(events, catalogue=catalogue)
    model = eq.EASE().fit(data)
    model.save(f"{folder}/model")
    split = eq.split.strong(data, seed=0)
    result = eq.evaluate(eq.EASE().fit(split.train), split.test)
    return data, model, split, result

def calls(data, model, split, result):
    return {
        "read": partial(eq.read, events),
        "load": partial(eq.load, f"{folder}/model"),
        "save": partial(model.save, f"{folder}/other"),
        "recommend_to": partial(model.recommend_to, f"{folder}/lists.parquet"),
        "evaluate": partial(eq.evaluate, model, split.test),
        "show": partial(str, result),
        "union": partial(data.union, data),
        "rules": partial(
            model.recommend, ["u1"], rules=eq.Rules(exclude=pl.col("title") == "title 1")
        ),
        "fit": partial(eq.EASE().fit, data),
        "recommend": partial(model.recommend, ["u1"], k=3),
        "filter": partial(data.filter, min_user=2),
    }

objects = prepare() if used_before else ()
child = os.fork()
if child == 0:
    signal.alarm(60)
    code = 1
    try:
        for name, call in calls(*(objects or prepare())).items():
            try:
                call()
                print(name, "done")
            except eq.EquipoiseError as error:
                print(name, type(error).__name__, "spawn" in str(error))
        sys.stdout.flush()
        code = 0
    finally:
        os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def outcomes(folder: Path, before: str) -> dict[str, str]:
    """Return what each call of a forked process came to."""
    words = [sys.executable, "-c", SCRIPT, str(folder), before]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


def test_a_fork_after_polars_was_used_is_refused(tmp_path: Path) -> None:
    results = outcomes(tmp_path, "used")
    refused = ("read", "load", "save", "recommend_to", "evaluate", "show", "union", "rules")
    assert {name: results[name] for name in refused} == dict.fromkeys(refused, "ForkError True")
    assert {results[name] for name in ("fit", "recommend", "filter")} == {"done"}


def test_a_fork_before_anything_was_read_can_do_everything(tmp_path: Path) -> None:
    assert set(outcomes(tmp_path, "fresh").values()) == {"done"}
