"""`make bench`: what it compares, and what its table says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def row(library: str, model: str, way: str, **figures: Any) -> dict[str, Any]:
    sizes = {"data": "shop", "users": 50, "items": 1000, "pairs": 90, "lists": 50, "floor_s": 0.5}
    measured = {"fit_s": 1.0, "peak_bytes": 8_000_000, "rank_s": 0.2, "ndcg": 0.3}
    measured |= {"tail_ndcg": 0.1, "coverage": 0.5, "settings": {}, "date": "2026-01-01"}
    named = {"library": library, "version": "1", "model": model, "way": way}
    return sizes | named | measured | figures


def test_every_search_is_as_small_as_the_others_and_every_library_can_be_installed() -> None:
    from peers.adapters import MODELS
    from peers.environments import ENVIRONMENTS

    assert len({model.key for model in MODELS}) == len(MODELS)
    for model in MODELS:
        assert len(model.grid) <= 6
        assert model.peer == "equipoise" or model.peer in ENVIRONMENTS


def test_the_table_says_who_is_ahead_and_what_failed(tmp_path: Path) -> None:
    from peers.table import write

    rows = [
        row("equipoise", "EASE", "default"),
        row("Other", "kNN", "default", ndcg=0.4),
        row("Other", "kNN", "searched", ndcg=0.2, settings={"K": 20}),
        row("Other", "slow", "default", fit_s=None, error="over 300 s"),
    ]
    (tmp_path / "results").mkdir()
    write(tmp_path / "results", rows, {"sansa": "error\nno cholmod.h"}, "a machine")
    page = (tmp_path / "peers.md").read_text(encoding="utf-8")
    assert "- EASE (0.3000): default: Other kNN; searched: none." in page
    assert "| **equipoise** | EASE | its defaults | 1.00 | 2.0 | 8 | 0.20 | 0.3000 |" in page
    assert "over 300 s" in page
    assert "no cholmod.h" in page
    assert "K: 20" in page
    assert "| Other | 0.400 kNN / 0.200 kNN | - |" in page
    assert "| equipoise | 0.300 EASE | 1.0, 8, 0.2 |" in page
    assert "</svg>" in (tmp_path / "results" / "peers-shop.svg").read_text(encoding="utf-8")


def test_a_slower_run_shows_as_a_ratio_to_the_committed_one(tmp_path: Path) -> None:
    from peers.table import write

    results = tmp_path / "results"
    results.mkdir()
    write(results, [row("equipoise", "EASE", "default")], {}, "a machine")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a run"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    later = row("equipoise", "EASE", "default", fit_s=6.0, rank_s=0.4, floor_s=1.0)
    write(results, [later], {}, "a machine half as fast")
    page = (tmp_path / "peers.md").read_text(encoding="utf-8")
    assert "| shop | EASE | default | 3.00 | 1.00 | 1.000 |" in page


def test_what_a_run_did_not_measure_stays_in_the_table(tmp_path: Path) -> None:
    from peers.table import write

    results = tmp_path / "results"
    results.mkdir()
    write(results, [row("equipoise", "EASE", "default"), row("Other", "kNN", "default")], {}, "")
    later = [
        row("equipoise", "EASE", "default", data="films"),
        row("Other", "kNN", "default", ndcg=0.25),
        row("Other", "kNN", "searched", ndcg=0.26, settings={"K": 9}, note="1 of 6"),
    ]
    write(results, later, {}, "")
    page = (tmp_path / "peers.md").read_text(encoding="utf-8")
    assert page.index("## shop") < page.index("## films")
    assert page.count("| **equipoise** | EASE | its defaults | 1.00 |") == 2
    assert page.count("| Other | kNN | its defaults |") == 1
    assert "0.2500" in page
    assert "| Other | kNN | K: 9 (1 of 6) |" in page


def test_a_job_that_was_stopped_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    import driver

    fitted: list[int] = []

    def fit(train: Any, K: int = 0) -> Any:
        fitted.append(K)
        return lambda users, k: np.full((len(users), k), K)

    model = driver.Model("equipoise", "kNN", fit, ({"K": 1}, {"K": 2}))
    monkeypatch.setattr(driver, "MODELS", (model,))
    sp.save_npz(tmp_path / "train.npz", sp.csr_matrix(np.ones((3, 4))))
    np.save(tmp_path / "users.npy", np.arange(3))
    np.save(tmp_path / "out-0.npy", np.full((3, 20), 1))
    files = {"train": "train.npz", "users": "users.npy", "out": "out"}
    job = {"model": model.key} | {key: str(tmp_path / name) for key, name in files.items()}
    driver.main(job)
    assert fitted == [2]
    assert (np.load(tmp_path / "out-1.npy") == 2).all()


def test_the_driver_needs_no_library_but_numpy_and_scipy() -> None:
    code = "import sys; sys.path.insert(0, 'peers'); import adapters; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    assert not {"equipoise", "polars", "pandas", "torch"} & set(done.stdout.split())
