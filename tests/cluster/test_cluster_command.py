"""The commands with `--cluster` do what they do without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise import cluster
from equipoise.cli.app import app


def answer(*args: object) -> Any:
    done = CliRunner().invoke(app, [*map(str, args), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two parts, a split and a model of it."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(3)
    (folder / "events").mkdir()
    for number in range(2):
        frame = pl.DataFrame(
            {
                "user": [f"u{each}" for each in rng.integers(0, 50, 300)],
                "item": rng.zipf(1.5, 300).clip(1, 15),
            }
        )
        frame.write_csv(folder / "events" / f"part-{number}.csv")
    answer("split", folder / "events", folder / "split", "--valid", 0.2, "--test", 0.2)
    answer("fit", folder / "split", folder / "model", "--l2", 5)
    return folder


@pytest.fixture
def there(client: Any) -> tuple[str, str]:
    return "--cluster", client.scheduler.address


def test_stats_fit_and_split(shop, there, tmp_path):
    here = answer("stats", shop / "events", "--min-user", 5)[0]
    found = answer("stats", shop / "events", "--min-user", 5, *there)[0]
    for name in ("homophily", "homophily_low", "homophily_high"):
        assert found.pop(name) == pytest.approx(here.pop(name), rel=1e-12)
    assert found == here
    for command, extra in (("fit", ("--l2", 5)), ("split", ("--seed", 1))):
        names = ("data_fingerprint", "residual") if command == "fit" else ("fingerprint",)
        facts = [
            answer(command, shop / "events", tmp_path / f"{command}{at}", *extra, *where)
            for at, where in enumerate([(), there])
        ]
        assert [facts[0][name] for name in names] == [facts[1][name] for name in names]


def test_a_fit_that_outgrows_the_memory_is_solved_by_the_workers(shop, there, tmp_path):
    call = ("fit", shop / "events", tmp_path / "model", "--l2", 5, "--memory", "1000")
    found = answer(*call, *there)
    assert found["items"] == 15
    assert found["residual"] < 1e-4


def test_a_fit_by_the_workers_takes_no_option_that_it_would_ignore(shop, there, tmp_path):
    large = ("fit", shop / "events", tmp_path / "model", "--memory", "1000", *there)
    near = (*large[:3], "--l2", 5, "--engine", "neighbourhood", *there)
    for call, word in (
        ((*large, "--trials", 3), "--prefer, --trials and --budget"),
        ((*large, "--l2", 5, "--threads", 1), "does not support --threads"),
        ((*near, "--refine"), "does not support --refine"),
        ((*near, "--memory", "6GB"), "does not support --memory"),
    ):
        done = CliRunner().invoke(app, [*map(str, call)])
        assert done.exit_code == 2
        assert word in done.stderr
    done = CliRunner().invoke(app, [*map(str, large)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "fitting once with automatic settings" in done.stderr


def test_a_saved_split_is_read_here_and_fitted_there(shop, there, tmp_path):
    near = ("--l2", 5, "--engine", "neighbourhood", "--neighbours", 4)
    found = answer("fit", shop / "split", tmp_path / "there", *near, *there)
    wanted = answer("fit", shop / "split", tmp_path / "here", *near)
    assert found["data_fingerprint"] == wanted["data_fingerprint"]
    assert found["audit"] == pytest.approx(wanted["audit"], abs=1e-6)
    assert answer("stats", shop / "split", *there) == answer("stats", shop / "split")


def test_neighbourhoods_are_solved_for_by_the_workers(shop, there, tmp_path):
    near = ("--l2", 5, "--engine", "neighbourhood", "--neighbours", 4)
    answer("fit", shop / "events", tmp_path / "here", *near)
    answer("fit", shop / "events", tmp_path / "there", *near, *there)
    found, wanted = (eq.load(tmp_path / each).inverse_ for each in ("there", "here"))
    assert np.array_equal(found.indices, wanted.indices)
    assert np.array_equal(found.data, wanted.data)


def test_evaluate(shop, there):
    call = ("evaluate", shop / "model", shop / "split", "-k", 5)
    here, found = answer(*call), answer(*call, *there)
    assert found["table"] == here["table"]


def test_tune(shop, there, tmp_path, monkeypatch):
    asked, tune = [], cluster.tune
    monkeypatch.setattr(
        cluster, "tune", lambda *given, **how: asked.append(how["client"]) or tune(*given, **how)
    )
    call = ("--family", "ease", "--trials", 3)
    here = answer("tune", shop / "split", tmp_path / "here", *call)
    found = answer("tune", shop / "split", tmp_path / "there", *call, *there)
    assert asked == [there[1]]
    assert found["best"] == here["best"]
    assert (found["solves"], found["points"]) == (here["solves"], here["points"])


def test_recommend(shop, there, tmp_path):
    call = ("recommend", shop / "model", "--all", "-k", 5)
    here = answer(*call, "--out", tmp_path / "lists.parquet")
    found = answer(*call, "--out", tmp_path / "lists", *there)
    assert found["users"] == here["users"]
    lists = pl.read_parquet(tmp_path / "lists" / "*.parquet")
    assert lists.equals(pl.read_parquet(tmp_path / "lists.parquet"))
    done = CliRunner().invoke(app, [*map(str, call[:2]), "--user", "u1", *there])
    assert done.exit_code == 2
    assert "give it with --out" in done.stderr


def test_a_cluster_that_is_not_there_is_a_sentence(shop, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.workers.SECONDS", 1)
    done = CliRunner().invoke(
        app, ["stats", str(shop / "events"), "--cluster", "tcp://127.0.0.1:9"]
    )
    assert done.exit_code == 1
    assert "no scheduler answers at tcp://127.0.0.1:9" in done.stderr
