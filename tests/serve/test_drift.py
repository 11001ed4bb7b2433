"""Drift: nothing while nothing changes, and figures that rise with what is made to change."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.serve.conftest import Api
from tests.serve.test_store import event

from equipoise.serve.drift import (
    FEWEST,
    GROUPS,
    DriftMetrics,
    latest_events,
    measure,
    popularity_groups,
    stability_index,
)
from equipoise.serve.telemetry import Telemetry


def add_events(api: Api, users: list[str], item_ids: list[object]) -> None:
    rows = [
        event(f"{user}-{n}", user, str(item)) for n, item in enumerate(item_ids) for user in users
    ]
    api.state.store.do(api.state.store.add(rows))


def test_groups_have_about_the_same_number_of_users() -> None:
    rng = np.random.default_rng(1)
    counts = np.sort(rng.zipf(1.7, 2000).clip(max=400))[::-1]
    groups = popularity_groups(counts)
    assert groups.tolist() == sorted(groups.tolist())
    sums = np.bincount(groups, counts, GROUPS)
    assert abs(sums / counts.sum() - 1 / GROUPS).max() < 400 / counts.sum() + 0.001


def test_the_index_is_0_without_a_shift_and_large_with_one() -> None:
    rng = np.random.default_rng(2)
    expected = np.full(GROUPS, 1000)
    index = [
        stability_index(expected, np.bincount(rng.integers(0, GROUPS, 1000), minlength=GROUPS))
        for _ in range(100)
    ]
    assert np.mean(index) == pytest.approx((GROUPS - 1) / 1000, rel=0.3)  # chance alone
    shifted = np.bincount(rng.integers(0, GROUPS // 2, 1000), minlength=GROUPS)
    assert stability_index(expected, shifted) > 1


def test_unknown_ids_a_shift_and_other_lists_show(api: Api) -> None:
    served = api.state.models["default"]
    nothing = measure(api.state, served, latest_events(api.state.store))
    assert nothing.events == 0
    assert nothing.overlap is None
    known = [str(user) for user in served.users.values[:20].tolist()]
    probabilities = served.counts / served.counts.sum()
    rng = np.random.default_rng(3)
    usual = rng.choice(served.ids, 15, p=probabilities).tolist()
    add_events(api, known, usual)
    steady = measure(api.state, served, latest_events(api.state.store))
    assert (steady.unknown_items, steady.unknown_users) == (0.0, 0.0)
    assert steady.popularity is not None
    assert steady.overlap is not None
    tail = [served.ids[place] for place in served.order[-15:]]
    add_events(api, [f"new {n}" for n in range(20)], [*tail, *(f"new {n}" for n in range(15))])
    moved = measure(api.state, served, latest_events(api.state.store))
    assert moved.unknown_items == pytest.approx(300 / 900)
    assert moved.unknown_users == 0.5
    assert moved.popularity is not None
    assert moved.popularity > 0.25 > 0
    assert moved.popularity > steady.popularity


def test_lists_are_those_of_the_fit_until_something_happens(api: Api) -> None:
    served = api.state.models["default"]
    seen = [("u5", "nothing that counts", 1.0)]
    assert measure(api.state, served, seen).overlap == 1.0
    add_events(api, ["u5"], served.ids[:20])
    overlap = measure(api.state, served, seen).overlap
    assert overlap is not None
    assert overlap < 1.0


def test_the_figures_are_metrics(api: Api) -> None:
    metrics = DriftMetrics(api.telemetry)
    add_events(api, ["u5"], [3, "unheard of"])
    metrics.update(api.state, api.state.models.values())
    text = api.get("/metrics").text
    assert 'equipoise_drift_unknown_share{kind="item",model="default"} 0.5' in text
    assert 'equipoise_drift_events{model="plain"} 2.0' in text
    line = next(row for row in text.splitlines() if row.startswith("equipoise_drift_popularity{"))
    assert math.isnan(float(line.split()[-1]))  # of fewer events than needed
    view = api.get("/v1/admin/overview").json()
    assert view["drift_events"] == {"default": 2.0, "plain": 2.0}
    assert view["drift_unknown"]["default item"] == 0.5
    assert view["drift_popularity"] == {"default": None, "plain": None}
    assert view["drift_overlap"].keys() == {"default", "plain"}
    assert FEWEST > 2


def test_one_worker_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    first, second = DriftMetrics(Telemetry()), DriftMetrics(Telemetry())
    assert first.is_ours()
    assert first.is_ours()
    assert not second.is_ours()
