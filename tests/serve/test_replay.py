"""Off-policy estimates in simulations with a known truth, and through the service."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.cli.conftest import call
from tests.serve.conftest import Api, Serve
from tests.serve.test_api import items

import equipoise as eq
from equipoise.errors import DataError
from equipoise.serve.exploring import Explorer
from equipoise.serve.replay import DEEPEST, METHODS, Log, evaluate_log, rank_bin, replay
from equipoise.serve.state import Served
from equipoise.serve.store import Event, lists

ITEMS, K, POOL = 30, 4, 12
THETA = np.array([1.0, 0.7, 0.5, 0.4])
BINS = np.array([rank_bin(rank) for rank in range(ITEMS)])


class Shop:
    """Users whose clicks follow known probabilities, and two rankings for each of them."""

    def __init__(self, n_users: int, seed: int, *, target_noise: float = 0.3) -> None:
        rng = np.random.default_rng(seed)
        taste = rng.beta(1, 6, (n_users, ITEMS))
        self.relevance = taste
        ranking = np.argsort(-(taste + rng.normal(0, 0.15, taste.shape)), axis=1)
        self.ranking = ranking
        # the target reorders the pool, so that each of its items could have been sent
        pool = ranking[:, :POOL]
        noisy = np.take_along_axis(taste, pool, 1) + rng.normal(0, target_noise, pool.shape) * 0.1
        self.target_order = np.take_along_axis(pool, np.argsort(-noisy, axis=1), 1)

    def truth(self, order: npt.NDArray[np.int64]) -> float:
        """Return the expected clicks per list."""
        chosen = np.take_along_axis(self.relevance, order[:, :K], 1)
        return float((chosen * THETA).sum(axis=1).mean())

    def log(self, share: float, seed: int, lists_per_user: int = 2) -> Log:
        """Return lists that are drawn as the service draws them, and clicks on them."""
        rng = np.random.default_rng(seed)
        users = np.repeat(np.arange(len(self.ranking)), lists_per_user)
        ranked, target = self.ranking[users][:, :K], self.target_order[users][:, :K]
        pools = self.ranking[users][:, :POOL]
        drawn = np.take_along_axis(pools, rng.random(pools.shape).argsort(axis=1), 1)[:, :K]
        is_random = rng.random(len(users)) < share
        shown = np.where(is_random[:, None], drawn, ranked)
        chance = np.take_along_axis(self.relevance[users], shown, 1) * THETA
        ranks = np.full(self.ranking.shape, ITEMS - 1)
        np.put_along_axis(ranks, self.target_order, np.arange(self.target_order.shape[1]), 1)
        ranks = ranks[users]

        def bins(chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return BINS[np.take_along_axis(ranks, chosen, 1)]

        return Log(
            users,
            shown,
            ranked,
            target,
            share / POOL + (1 - share) * (shown == ranked),
            rng.random(chance.shape) < chance,
            bins(shown),
            bins(ranked),
            bins(target),
        )


def by_method(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {row["method"]: row for row in result["estimates"]}


def test_estimates_are_unbiased_and_intervals_hold_the_truth() -> None:
    shop = Shop(600, seed=1)
    truth = shop.truth(shop.target_order)
    difference = truth - shop.truth(shop.ranking)
    assert difference > 0.1
    repetitions = 150
    values: dict[str, list[float]] = {method: [] for method in METHODS}
    holds = {method: np.zeros(2) for method in METHODS}
    for repetition in range(repetitions):
        rows = by_method(evaluate_log(shop.log(0.3, seed=100 + repetition)))
        for method, row in rows.items():
            values[method].append(row["value"])
            holds[method] += [
                row["low"] <= truth <= row["high"],
                row["difference_low"] <= difference <= row["difference_high"],
            ]
    spreads = {method: float(np.std(sample)) for method, sample in values.items()}
    for method, sample in values.items():
        error = spreads[method] / np.sqrt(repetitions)
        # the self-normalised estimate has a bias of the order of 1 / lists
        allowed = 3.5 * error + (0.01 * truth if method == "snips" else 0.0)
        assert abs(np.mean(sample) - truth) < allowed, method
        assert (holds[method] / repetitions >= 0.91).all(), (method, holds)
    assert spreads["dr"] < spreads["ips"]
    assert spreads["snips"] < spreads["ips"]


def test_without_a_difference_few_experiments_find_one() -> None:
    shop = Shop(400, seed=2)
    order = shop.ranking[:, :POOL].copy()
    order[:, :K] = order[:, [1, 0, 2, 3]]  # two items change places, which THETA tells apart
    shop.relevance[:] = shop.relevance.mean()
    shop.target_order = order
    assert shop.truth(order) == pytest.approx(shop.truth(shop.ranking))
    rejected = np.zeros(len(METHODS))
    for repetition in range(100):
        rows = by_method(evaluate_log(shop.log(0.5, seed=repetition)))
        rejected += [
            not row["difference_low"] <= 0 <= row["difference_high"] for row in rows.values()
        ]
    assert (rejected <= 11).all()  # of 100, at a level of 5%


def test_a_verdict_says_what_the_lists_can_tell() -> None:
    shop = Shop(4000, seed=1, target_noise=0.0)
    result = evaluate_log(shop.log(0.5, seed=1, lists_per_user=3))
    assert result["verdict"] == "more clicks per list than the ranking that was served"
    assert result["possible"]["low"] < 1 < result["possible"]["high"]
    assert result["lists"] == 12_000
    assert 0 < result["agreement"] < 1
    few = evaluate_log(Shop(50, seed=1).log(0.1, seed=1))
    assert few["verdict"].startswith("too few clicks to tell")
    best = shop.target_order
    shop.target_order = shop.ranking[:, :POOL]  # what was served
    same = evaluate_log(shop.log(0.5, seed=1))
    assert same["verdict"].startswith("the lists are those that were ranked")
    assert all(row["difference"] == 0 for row in same["estimates"])
    shop.target_order = best.copy()
    shop.target_order[:, 1:4] = shop.ranking[:, POOL : POOL + 3]  # items outside of the pool
    assert "could not be sent there" in evaluate_log(shop.log(0.5, 1, 3))["verdict"]


def test_a_share_of_the_lists_is_random_and_logged(served: Serve) -> None:
    api = served(explore=0.4, explore_pool=12)
    ranking = items(served().get("/v1/recommend/u5?k=12"))
    for _ in range(150):
        shown = items(api.get("/v1/recommend/u5?k=3"))
        assert set(shown) <= set(ranking)
    for body in ({"user": "u5", "offset": 2}, {"user": "u5", "rules": {"pin": [3]}}):
        answers = {str(items(api.post("/v1/recommend", {"k": 3, **body}))) for _ in range(20)}
        assert len(answers) == 1
    api.state.store.do(lambda _: None)  # what was submitted before is written
    rows = api.state.store.query(lambda c: c.execute(lists.select()).all())
    entries = [(json.loads(row._mapping["items"]), json.loads(row.exploration)) for row in rows]
    assert len(entries) == 150
    random = [entry for _, entry in entries if "ranked" in entry]
    assert 0.25 < len(random) / len(entries) < 0.55
    for shown, entry in entries:
        ranked = entry.get("ranked", shown)
        assert [int(item) for item in ranked] == ranking[:3]
        at_random = 0.4 / 12
        expected = [
            at_random + 0.6 * (item == best) for item, best in zip(shown, ranked, strict=True)
        ]
        assert entry["propensities"] == pytest.approx(expected)
        assert (entry["share"], entry["pool"], entry["query"]) == (0.4, 12, {"k": 3})


def test_draws_have_the_probabilities_that_are_logged() -> None:
    from equipoise.serve.exploring import propensities
    from equipoise.serve.state import Listed

    explorer = Explorer(0.5, 6)
    listed = Listed(np.arange(6), np.zeros(6), "model")
    n, counts = 20_000, np.zeros((3, 6))
    for _ in range(n):
        counts[np.arange(3), explorer.draw(listed, 3).listed.places] += 1
    for rank in range(3):
        for item in range(6):
            (expected,) = propensities([item], [rank], 0.5, 6)
            error = np.sqrt(expected * (1 - expected) / n)
            assert abs(counts[rank, item] / n - expected) < 4.5 * error


def chance_of(item: int, rank: int) -> float:
    """Return the probability of a click on an item of the shop at a rank."""
    return float((0.1 + 0.6 * (item % 7 == 3)) / (1 + 0.3 * rank))


@pytest.fixture
def explored(served: Serve, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Return a service with two logged lists per user, and clicks on them."""
    generator = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda *seed: generator(*(seed or (11,))))
    api = served(explore=0.5, explore_pool=20)
    rng = generator(4)
    clicks: list[Event] = []
    for user in [f"u{n}" for n in range(300)] * 2:
        answer = api.get(f"/v1/recommend/{user}?k=4").json()
        for row in answer["items"]:
            if rng.random() < chance_of(int(row["item"]), row["rank"] - 1):
                name = f"c{len(clicks)}"
                about = (user, row["item"], "view", 1.0)
                clicks.append(Event(name, *about, time.time() + 60, answer["list_id"]))
    api.state.store.do(api.state.store.add(clicks))
    return api


def test_another_model_and_other_rules_are_replayed(explored: Api, saved: Path) -> None:
    store, model = explored.state.store, eq.load(saved / "plain")
    users = [f"u{n}" for n in range(300)]

    def truth(rules: Any = None) -> float:
        listed = model.recommend(users, k=4, rules=rules).items
        return float(np.mean([sum(map(chance_of, row, range(4))) for row in listed]))

    plain = Served.open("plain", str(saved / "plain"))
    result = replay(store, plain, within=86_400)
    assert result["lists"] == 600
    assert result["notes"][0].startswith("the data of the model have no times")
    for row in result["estimates"]:
        assert row["low"] <= truth() <= row["high"], row
    rules = eq.Rules(exclude={"kind": "salt"})
    other = replay(store, plain, within=86_400, rules=rules)
    for row in other["estimates"]:
        assert row["low"] <= truth(rules) * other["possible"]["value"] * 1.2, row
    same = replay(store, Served.open("dan", str(saved / "dan")), within=86_400)
    assert same["agreement"] == 1
    assert same["ranking"] == {
        name: same["estimates"][0][name] for name in ("value", "low", "high")
    }


def test_lists_before_the_last_event_of_a_model_are_left_out(served: Serve, trended: Path) -> None:
    api = served(models={"default": str(trended)}, explore=0.5, explore_pool=10)
    store, model = api.state.store, Served.open("m", str(trended))
    last = float(model.model.data_.events.times.max())  # type: ignore[union-attr]
    entry = json.dumps({"share": 0.5, "pool": 10, "propensities": [0.55], "query": {"k": 1}})
    for number, when in enumerate((last - 5, last + 5)):
        row = {"experiment": "", "user": "u1", "model": "m", "version": "v", "time": when}
        store.do(
            store.record({**row, "id": str(number), "items": '["item 3"]', "exploration": entry})
        )
    assert replay(store, model, within=60)["left_out"] == 1
    store.do(lambda c: c.execute(lists.delete().where(lists.c.time > last)))
    with pytest.raises(DataError, match="no logged lists after the last event"):
        replay(store, model, within=60)


def test_ranks_are_told_apart_by_their_logarithm() -> None:
    bins = [rank_bin(rank) for rank in range(DEEPEST + 1)]
    assert bins == sorted(bins)
    assert max(bins) == 19


def test_the_command_prints_the_estimates_and_the_verdict(explored: Api, saved: Path) -> None:
    url = str(explored.state.store.address)
    done = call("replay", saved / "plain", "--store", url, "--alpha", 0.5)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("600 lists of 300 users, ")
    for title in METHODS.values():
        assert title in done.stdout
    report = json.loads(call("replay", saved / "plain", "--store", url, "--json").stdout)
    assert report["lists"] == 600
