"""Smoke test of an installation without extras: run it with the Python that has equipoise.

Reads a table, fits, evaluates, recommends with rules, saves, loads, updates and tunes a model, and
runs the command line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl

import equipoise as eq


def library(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [(f"u{u}", f"i{i}") for u, i in np.argwhere(rng.random((80, 20)) < 0.3).tolist()]
    data = eq.read(rows)
    split = eq.split.strong(data, valid=0.2, test=0.2, seed=0)
    model = eq.EDLAE(normalizer=eq.DAN()).fit(split.train)
    result = eq.evaluate(model, split.test, k=5)
    assert 0 < result["ndcg@5"] < 1
    assert "<table>" in result._repr_html_()
    lists = model.recommend(split.test.history, k=5, rules=eq.Rules(exclude=["i0"]))
    assert all(len(row) == 5 and "i0" not in row for row in lists.items)
    written = model.recommend(split.test.history, k=5).to_frame()
    readers = {"csv": pl.read_csv, "jsonl": pl.read_ndjson, "parquet": pl.read_parquet}
    for suffix, reader in readers.items():  # written in several batches
        path = folder / f"lists.{suffix}"
        assert (
            model.recommend_to(path, split.test.history, k=5, batch_size=3) == split.test.n_users
        )
        assert reader(path)["item"].to_list() == written["item"].to_list()
        lists_read = eq.read(path, user="user", item="item", rating=False, time=False)
        assert lists_read.n_interactions == written.height
    model.save(folder / "model")
    again = eq.load(folder / "model")
    assert again.recommend([["i1", "i2"]], k=3).items == model.recommend([["i1", "i2"]], k=3).items
    again.update(eq.read([("new", "i1"), ("new", "i3")]), removed=str(split.train.users[0]))
    assert "new" in again.data_.users
    assert eq.tune(eq.EASE, split, grid={"l2": [5, 50]}, metric="ndcg@5", objectives=[]).solves
    for name in eq.__all__:
        getattr(eq, name)
    table = folder / "events.csv"
    table.write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in rows), encoding="utf-8")


def command(folder: Path) -> None:
    program = str(Path(sys.executable).with_name("equipoise"))
    for args in (
        ["--version"],
        ["doctor", "--json"],
        ["stats", "events.csv", "--json"],
        ["fit", "events.csv", "fitted", "--model", "ease", "--l2", "20"],
        ["recommend", "fitted", "--history", "i1,i2", "-k", "3", "--why"],
    ):
        subprocess.run([program, *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    assert "src" not in Path(eq.__file__).parts, "equipoise is imported from src: install it first"
    with tempfile.TemporaryDirectory() as temporary:
        library(Path(temporary))
        command(Path(temporary))
    names = ("numpy", "scipy", "polars", "numba")
    print(f"equipoise {eq.__version__} works on Python {sys.version.split()[0]} with", end=" ")
    print(", ".join(f"{name} {version(name)}" for name in names))
