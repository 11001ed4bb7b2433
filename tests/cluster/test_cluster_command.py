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
    outcome = CliRunner().invoke(app, [*map(str, args), "--json"], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two parts, a split and a model of it."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(3)
    (folder / "events").mkdir()
    for number in range(2):
        frame = pl.DataFrame(
            {
                "user": [f"u{number}" for number in rng.integers(0, 50, 300)],
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
    expected = answer("stats", shop / "events", "--min-user", 5)[0]
    statistics = answer("stats", shop / "events", "--min-user", 5, *there)[0]
    for name in ("homophily", "homophily_low", "homophily_high"):
        assert statistics.pop(name) == pytest.approx(expected.pop(name), rel=1e-12)
    assert statistics == expected
    for command, extra in (("fit", ("--l2", 5)), ("split", ("--seed", 1))):
        names = ("data_fingerprint", "residual") if command == "fit" else ("fingerprint",)
        facts = [
            answer(command, shop / "events", tmp_path / f"{command}{at}", *extra, *where)
            for at, where in enumerate([(), there])
        ]
        assert [facts[0][name] for name in names] == [facts[1][name] for name in names]


def test_a_fit_that_outgrows_the_memory_is_solved_by_the_workers(shop, there, tmp_path):
    call = ("fit", shop / "events", tmp_path / "model", "--l2", 5, "--memory", "1000")
    summary = answer(*call, *there)
    assert summary["items"] == 15
    assert summary["residual"] < 1e-4


def test_a_fit_by_the_workers_takes_no_option_that_it_would_ignore(shop, there, tmp_path):
    large = ("fit", shop / "events", tmp_path / "model", "--memory", "1000", *there)
    near = (*large[:3], "--l2", 5, "--engine", "neighbourhood", *there)
    for call, word in (
        ((*large, "--trials", 3), "--folds, --prefer, --trials and --budget"),
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
    options = ("--l2", 5, "--engine", "neighbourhood", "--neighbours", 4)
    summary = answer("fit", shop / "split", tmp_path / "there", *options, *there)
    expected = answer("fit", shop / "split", tmp_path / "here", *options)
    assert summary["data_fingerprint"] == expected["data_fingerprint"]
    assert summary["audit"] == pytest.approx(expected["audit"], abs=1e-6)
    assert answer("stats", shop / "split", *there) == answer("stats", shop / "split")


def test_neighbourhoods_are_solved_for_by_the_workers(shop, there, tmp_path):
    options = ("--l2", 5, "--engine", "neighbourhood", "--neighbours", 4)
    answer("fit", shop / "events", tmp_path / "here", *options)
    answer("fit", shop / "events", tmp_path / "there", *options, *there)
    inverse, expected = (eq.load(tmp_path / name).inverse_ for name in ("there", "here"))
    assert np.array_equal(inverse.indices, expected.indices)
    assert np.array_equal(inverse.data, expected.data)


def test_evaluate(shop, there):
    call = ("evaluate", shop / "model", shop / "split", "-k", 5)
    expected, result = answer(*call), answer(*call, *there)
    assert result["table"] == expected["table"]


def test_tune(shop, there, tmp_path, monkeypatch):
    clients, tune = [], cluster.tune
    monkeypatch.setattr(
        cluster,
        "tune",
        lambda *args, **options: clients.append(options["client"]) or tune(*args, **options),
    )
    call = ("--family", "ease", "--trials", 3)
    expected = answer("tune", shop / "split", tmp_path / "here", *call)
    result = answer("tune", shop / "split", tmp_path / "there", *call, *there)
    assert clients == [there[1]]
    assert result["best"] == expected["best"]
    assert (result["solves"], result["points"]) == (expected["solves"], expected["points"])


def test_recommend(shop, there, tmp_path):
    call = ("recommend", shop / "model", "--all", "-k", 5)
    expected = answer(*call, "--out", tmp_path / "lists.parquet")
    summary = answer(*call, "--out", tmp_path / "lists", *there)
    assert summary["users"] == expected["users"]
    lists = pl.read_parquet(tmp_path / "lists" / "*.parquet")
    assert lists.equals(pl.read_parquet(tmp_path / "lists.parquet"))
    done = CliRunner().invoke(app, [*map(str, call[:2]), "--user", "u1", *there])
    assert done.exit_code == 2
    assert "give it with --out" in done.stderr


def test_an_unreachable_cluster_prints_an_error(shop, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.workers.TIMEOUT", 1)
    done = CliRunner().invoke(
        app, ["stats", str(shop / "events"), "--cluster", "tcp://127.0.0.1:9"]
    )
    assert done.exit_code == 1
    assert "no scheduler answers at tcp://127.0.0.1:9" in done.stderr
