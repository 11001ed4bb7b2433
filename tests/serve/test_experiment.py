"""Clicks on the lists of an experiment, and what chance explains of their difference."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import call
from tests.serve.conftest import Serve
from tests.serve.test_store import event

from equipoise.errors import DataError
from equipoise.evaluation.resampling import permutation_test
from equipoise.serve import experiment
from equipoise.serve.config import Experiment
from equipoise.serve.experiment import (
    RunningComparison,
    check_shares,
    clicked_lists,
    compare_clicks,
)
from equipoise.serve.state import assign
from equipoise.serve.store import Store


def shown(number: int, user: str, model: str, time: float, *items: str) -> dict[str, Any]:
    facts = {"id": f"l{number}", "experiment": "dial", "version": "v"}
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
    arms = Experiment(name="dial", models=dict.fromkeys(rates, 1.0))
    writes, clicks = [], []
    for number in range(users):
        user = f"u{number}"
        model = assign(arms, user)
        writes.append(store.record(shown(number, user, model, 100.0, "tea", "milk")))
        if rng.random() < rates[model]:
            clicks.append(event(number, user, "tea", time=150.0))
    for future in [store.submit(write) for write in writes]:
        future.result()
    store.do(store.add(clicks))


def test_a_clear_difference_is_found_and_none_is_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    store = Store(url)
    fill(store, {"a": 0.2, "b": 0.5})
    result = compare_clicks(store, "dial", 3600)
    (test,) = result["tests"]
    assert test["p_adjusted"] < 0.01
    assert test["low"] > 0
    assert 0.2 < test["difference"] < 0.4
    assert sum(model["users"] for model in result["models"]) == 600
    store.close()
    done = call("experiment", "dial", "--store", url, "--json")
    assert json.loads(done.stdout)["tests"] == result["tests"]
    assert test["verdict"] == "b is clicked more often than a"
    text = call("experiment", "dial", "--store", url, "--share", "a=1", "--share", "b=1").stdout
    assert "b against a" in text
    assert "the numbers of users match the shares" in text
    same = Store(f"sqlite:///{tmp_path}/y.db")
    fill(same, {"a": 0.3, "b": 0.3})
    (test,) = compare_clicks(same, "dial", 3600)["tests"]
    assert test["p_adjusted"] > 0.05
    assert "no difference found" in test["verdict"]
    with pytest.raises(DataError, match="no lists"):
        compare_clicks(same, "other", 3600)
    same.close()


def test_users_keep_their_model_when_shares_stay() -> None:
    experiment = Experiment(name="dial", models={"a": 1, "b": 1, "c": 2})
    dealt = [assign(experiment, f"u{n}") for n in range(2000)]
    shares = [dealt.count(name) / 2000 for name in "abc"]
    assert shares == pytest.approx([0.25, 0.25, 0.5], abs=0.035)
    renamed = Experiment(name="other", models=experiment.models)
    assert dealt != [assign(renamed, f"u{n}") for n in range(2000)]


def skewed_rates(rng: np.random.Generator, users: int) -> np.ndarray[Any, Any]:
    """Return click rates of users: most have none, a few have many."""
    lists = rng.integers(1, 6, users)
    inclination = np.where(rng.random(users) < 0.9, 0.0, rng.beta(2, 1, users))
    rates: np.ndarray[Any, Any] = rng.binomial(lists, inclination) / lists
    return rates


@pytest.mark.parametrize("users", [60, 400, 2000])
@pytest.mark.parametrize("share", [0.5, 0.1, 0.03])
def test_without_an_effect_one_is_seldom_found(share: float, users: int) -> None:
    rng, simulations = np.random.default_rng(5), 400
    rejected = 0
    for simulation in range(simulations):
        rates, in_second = skewed_rates(rng, users), rng.random(users) < share
        p, low, high = permutation_test(rates[~in_second], rates[in_second], 199, simulation)
        assert (p <= 0.05) == (not low <= 0 <= high)
        rejected += p <= 0.05
    error = np.sqrt(0.05 * 0.95 / simulations)
    assert rejected / simulations < 0.05 + 4 * error


@pytest.mark.parametrize(("share", "users"), [(0.5, 400), (0.1, 1000)])
def test_a_real_effect_is_found_and_lies_in_the_interval(share: float, users: int) -> None:
    rng, simulations = np.random.default_rng(6), 200
    n_detected = covered = 0
    for simulation in range(simulations):
        in_second = rng.random(users) < share
        rates = (rng.random(users) < np.where(in_second, 0.35, 0.2)).astype(np.float64)
        p, low, high = permutation_test(rates[~in_second], rates[in_second], 199, simulation)
        n_detected += p <= 0.05
        covered += low <= 0.15 <= high
    assert n_detected / simulations > 0.8
    assert covered / simulations > 0.95 - 4 * np.sqrt(0.05 * 0.95 / simulations)


def test_permutations_agree_with_all_of_them_counted() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, 4, 9) / 3
    second = values[6:]

    def t(chosen: np.ndarray[Any, Any], left: np.ndarray[Any, Any]) -> float:
        error = chosen.var(ddof=1) / len(chosen) + left.var(ddof=1) / len(left)
        return abs(chosen.mean() - left.mean()) / np.sqrt(max(error, 1e-30))

    dealings = [
        t(values[list(picked)], np.delete(values, picked))
        for picked in itertools.combinations(range(9), 3)
    ]
    observed = t(second, values[:6])
    exact = np.mean([statistic >= observed - 1e-9 for statistic in dealings])
    p, _, _ = permutation_test(values[:6], second, 40_000, 3)
    assert p == pytest.approx(exact, abs=0.015)  # 6 standard errors of 40,000 draws
    assert permutation_test(np.zeros(9), np.zeros(4), 99, 0)[0] == 1
    assert permutation_test([0.5], [0.1, 0.2], 99, 0) == (1.0, -np.inf, np.inf)


def test_an_arm_that_is_too_small_says_so(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/x.db")
    for number in range(40):
        model = "b" if number < 3 else "a"
        store.do(store.record(shown(number, f"u{number}", model, 100.0, "tea")))
    store.do(store.add([event(n, f"u{n}", "tea", time=150.0) for n in range(3)]))
    result = compare_clicks(store, "dial", 3600, {"a": 0.9, "b": 0.1})
    assert result["tests"][0]["verdict"].startswith("too few users to tell: b has 3")
    assert result["shares"]["verdict"] == "the numbers of users match the shares"
    lost = compare_clicks(store, "dial", 3600, {"a": 0.5, "b": 0.5})["shares"]
    assert lost["p"] < 1e-6
    assert "a 37, b 3, expected a 20, b 20" in lost["verdict"]
    # an arm that never answered counts as well
    silent = compare_clicks(store, "dial", 3600, {"a": 0.6, "b": 0.1, "c": 0.3})
    assert [model["users"] for model in silent["models"]] == [37, 3, 0]
    assert "do not match the shares" in silent["shares"]["verdict"]
    assert "c has 0" in silent["tests"][1]["verdict"]
    store.close()


def test_users_who_saw_two_models_are_left_out(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/x.db")
    for number, (user, model) in enumerate([("ann", "a"), ("bob", "b"), ("ann", "b")]):
        store.do(store.record(shown(number, user, model, 100.0, "tea")))
    result = compare_clicks(store, "dial", 3600)
    assert [model["users"] for model in result["models"]] == [0, 1]
    assert result["switched_users"] == 1
    store.close()


def test_a_false_alarm_about_the_shares_is_rare() -> None:
    rng, simulations = np.random.default_rng(7), 2000
    shares = {"a": 0.9, "b": 0.07, "c": 0.03}
    users = rng.multinomial(300, list(shares.values()), simulations)
    alarms = sum(
        check_shares(dict(zip(shares, counts.tolist(), strict=True)), [shares])["p"] < 0.05
        for counts in users
    )
    assert alarms / simulations < 0.05 + 4 * np.sqrt(0.05 * 0.95 / simulations)


def test_the_service_records_the_shares_of_its_experiment(served: Serve) -> None:
    settings = [{"name": "dial", "models": {"default": 0.9, "plain": 0.1}}]
    api = served(experiments=settings)
    for number in range(100):
        assert api.get(f"/v1/recommend/u{number}?k=2").status_code == 200
    api.state.store.do(lambda _: None)  # lists are recorded behind the answer
    shares = compare_clicks(api.state.store, "dial", 3600)["shares"]
    assert shares["expected"] == pytest.approx({"default": 0.9, "plain": 0.1})
    assert shares["verdict"] == "the numbers of users match the shares"
    settings[0]["models"] = {"default": 0.5, "plain": 0.5}
    other = served(experiments=settings)
    changed = compare_clicks(other.state.store, "dial", 3600)["shares"]
    assert "shares were changed" in changed["verdict"]


def test_a_service_compares_its_experiment_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"sqlite:///{tmp_path}/x.db")
    assert RunningComparison(store).of(None)["how"] == "No experiment is running."
    comparison = RunningComparison(store)
    assert comparison.of("dial")["how"] == "It has no lists yet."
    fill(store, {"a": 0.1, "b": 0.5})
    assert comparison.of("dial")["models"] == []  # it is less than a minute old
    monkeypatch.setattr(experiment, "SHOWN_FOR", 0.0)
    assert comparison.of("dial") == compare_clicks(store, "dial", 86_400.0)
    monkeypatch.setattr(experiment, "MOST_LISTS", 599)
    assert "600 lists are too many" in comparison.of("dial")["how"]
    store.close()


def test_an_operator_reads_the_comparison(served: Serve) -> None:
    api = served(experiments=[{"name": "dial", "models": {"default": 0.5, "plain": 0.5}}])
    for number in range(30):
        assert api.get(f"/v1/recommend/u{number}?k=2").status_code == 200
    api.state.store.do(lambda _: None)  # lists are recorded behind the answer
    answer = api.get("/v1/admin/experiment").json()
    assert answer["experiment"] == "dial"
    assert sum(model["users"] for model in answer["models"]) == 30
    assert "too few" in answer["tests"][0]["verdict"]
    assert answer["shares"]["verdict"] == "the numbers of users match the shares"
