"""Clicks on the lists of an experiment, and what chance explains of their difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import call
from tests.serve.test_store import event

from equipoise.errors import DataError
from equipoise.serve.config import Experiment
from equipoise.serve.experiment import clicked_lists, compare_clicks
from equipoise.serve.state import assign
from equipoise.serve.store import Store


def shown(number: int, user: str, model: str, time: float, *items: str) -> dict[str, Any]:
    facts = {"tenant": "default", "id": f"l{number}", "experiment": "dial", "version": "v"}
    return {**facts, "user": user, "model": model, "time": time, "items": json.dumps(items)}


def test_a_click_belongs_to_the_latest_list_with_the_item() -> None:
    lists = [
        ("l1", "ann", "a", 100.0, '["tea", "milk"]'),
        ("l2", "ann", "a", 200.0, '["tea"]'),
        ("l3", "bob", "b", 100.0, '["tea"]'),
    ]
    cases: list[tuple[tuple[str, str, float, str | None], set[str]]] = [
        (("ann", "tea", 250.0, None), {"l2"}),
        (("ann", "milk", 250.0, None), {"l1"}),
        (("ann", "tea", 150.0, None), {"l1"}),
        (("ann", "tea", 250.0, "l1"), {"l1"}),
        (("ann", "tea", 250.0, "l3"), set()),  # another user's list
        (("ann", "tea", 50.0, None), set()),  # before any list
        (("ann", "milk", 1200.0, None), set()),  # too late
        (("bob", "rice", 150.0, None), set()),
    ]
    for click, expected in cases:
        assert clicked_lists(lists, [click], 1000.0) == expected, click


def fill(store: Store, rates: dict[str, float], users: int = 600) -> None:
    rng = np.random.default_rng(3)
    experiment = Experiment(name="dial", models=dict.fromkeys(rates, 1.0))
    writes, clicks = [], []
    for number in range(users):
        user = f"u{number}"
        model = assign(experiment, user)
        writes.append(store.record(shown(number, user, model, 100.0, "tea", "milk")))
        if rng.random() < rates[model]:
            clicks.append(event(number, user, "tea", time=150.0))
    for future in [store.submit(write) for write in writes]:
        future.result()
    store.do(store.add("default", clicks))


def test_a_clear_difference_is_found_and_none_is_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    store = Store(url)
    fill(store, {"a": 0.2, "b": 0.5})
    found = compare_clicks(store, "default", "dial", 3600)
    (test,) = found["tests"]
    assert test["p_adjusted"] < 0.01
    assert test["low"] > 0
    assert 0.2 < test["difference"] < 0.4
    assert sum(each["users"] for each in found["models"]) == 600
    store.close()
    done = call("experiment", "dial", "--store", url, "--json")
    assert json.loads(done.stdout)["tests"] == found["tests"]
    assert "b against a" in call("experiment", "dial", "--store", url).stdout
    same = Store(f"sqlite:///{tmp_path}/y.db")
    fill(same, {"a": 0.3, "b": 0.3})
    assert compare_clicks(same, "default", "dial", 3600)["tests"][0]["p_adjusted"] > 0.05
    with pytest.raises(DataError, match="no lists"):
        compare_clicks(same, "default", "other", 3600)
    same.close()


def test_users_keep_their_model_when_shares_stay() -> None:
    experiment = Experiment(name="dial", models={"a": 1, "b": 1, "c": 2})
    dealt = [assign(experiment, f"u{n}") for n in range(2000)]
    shares = [dealt.count(name) / 2000 for name in "abc"]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.035)
    renamed = Experiment(name="other", models=experiment.models)
    assert dealt != [assign(renamed, f"u{n}") for n in range(2000)]
