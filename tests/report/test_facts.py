"""What a report says is what the library says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError, UnknownIdError
from equipoise.report.facts import collect, concentration
from equipoise.report.page import glance
from equipoise.report.users import LISTED, rows_of_users, sample_rows

QUICK: dict[str, Any] = {"k": 5, "sample": 2, "bootstrap": 0}


@pytest.fixture(scope="module")
def split(synthetic: Interactions) -> eq.split.Split:
    return eq.split.strong(synthetic, valid=0.1, test=0.2, seed=0)


def test_facts_are_plain_values(facts: dict[str, Any]) -> None:
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_statistics_are_those_of_the_train_part(
    facts: dict[str, Any], split: eq.split.Split, labelled: Interactions
) -> None:
    collected = eq.describe(split.train)
    assert facts["data"]["gini_items"] == collected.gini_items
    assert facts["data"]["homophily"] == collected.homophily
    assert facts["data"]["whole"]["n_interactions"] == labelled.n_interactions
    resolved = eq.DAN().resolve(split.train)
    assert (facts["data"]["alpha"], facts["data"]["beta"]) == resolved.exponents()[:2]


def test_numbers_of_the_yardsticks_equal_an_evaluation(
    facts: dict[str, Any], split: eq.split.Split
) -> None:
    result = eq.evaluate(eq.Popularity().fit(split.train), split.test, k=10, bootstrap=0)
    popular = facts["models"][0]
    assert popular["accuracy"]["ndcg"]["tail"]["value"] == result["tail_ndcg@10"]
    assert popular["beyond"]["coverage"] == result["coverage@10"]
    names = [model["name"] for model in facts["models"]]
    assert names == ["Popularity", "Item-kNN", "EASE", "EASE + DAN"]


def test_the_dial_at_the_models_own_alpha_gives_the_models_own_numbers(
    facts: dict[str, Any],
) -> None:
    fitted_row = facts["dial"]["rows"][facts["dial"]["own"]]
    main = facts["models"][-1]
    assert fitted_row["ndcg"] == main["accuracy"]["ndcg"]["all"]["value"]
    assert fitted_row["coverage"] == main["beyond"]["coverage"]
    alphas = [row["alpha"] for row in facts["dial"]["rows"]]
    assert alphas == sorted(alphas)
    assert facts["data"]["alpha"] in alphas
    assert facts["dial"]["rows"][-1]["popularity"] < facts["dial"]["rows"][0]["popularity"]


def test_a_given_model_fitted_on_the_train_part_is_reported_as_it_is(
    split: eq.split.Split,
) -> None:
    model = eq.EASE(l2=7.0, dropout=0.0, normalizer=eq.ItemNorm(0.25)).fit(split.train)
    collected = collect(split, model=model, **QUICK)
    result = eq.evaluate(model, split.test, k=5, bootstrap=0)
    assert collected["models"][-1]["name"] == "Your model, EASE + ItemNorm"
    assert collected["models"][-1]["accuracy"]["ndcg"]["all"]["value"] == result["ndcg@5"]
    assert collected["dial"]["rows"][collected["dial"]["own"]]["alpha"] == 0.25
    lists = collected["users"][0]["lists"][collected["dial"]["own"]]
    user = collected["users"][0]["user"]
    history = split.test.history.history(user)
    assert [row["item"] for row in lists] == [
        str(item) for item in model.recommend([history], LISTED).items[0]
    ]


def test_a_model_that_saw_other_users_is_fitted_anew(
    split: eq.split.Split, synthetic: Interactions
) -> None:
    model = eq.EASE(l2=7.0, dropout=0.0).fit(synthetic)
    collected = collect(split, model=model, **QUICK)
    fresh = eq.EASE(l2=7.0, dropout=0.0).fit(split.train)
    result = eq.evaluate(fresh, split.test, k=5, bootstrap=0)
    assert collected["models"][-1]["accuracy"]["ndcg"]["all"]["value"] == result["ndcg@5"]
    assert "refitted on the train part" in collected["choices"][-1]
    assert model.data_fingerprint_ == synthetic.fingerprint


def test_a_model_without_a_dial_is_reported_without_one(split: eq.split.Split) -> None:
    collected = collect(split, model=eq.ItemKNN(neighbours=5).fit(split.train), **QUICK)
    assert collected["dial"] is None
    assert [len(user["lists"]) for user in collected["users"]] == [1, 1]


def visits() -> eq.split.Split:
    """Sessions of four clicks, cut."""
    clicks = {"visit": np.repeat(np.arange(60), 4), "item": np.arange(240) * 7 % 13 % 9}
    data = eq.read(pl.DataFrame(clicks | {"time": np.arange(240)}), session="visit", time="time")
    return eq.split.sessions(data, test=0.2)


def test_a_model_that_cannot_explain_is_reported_without_reasons() -> None:
    cut = visits()
    collected = collect(cut, model=eq.VSKNN().fit(cut.train), **QUICK)
    assert collected["users"]
    assert all(row["why"] == [] for user in collected["users"] for row in user["lists"][0])


def test_reasons_of_a_session_are_those_of_its_order() -> None:
    cut = visits()
    model = eq.SLIST(l2=1.0).fit(cut.train)
    for user in collect(cut, model=model, **QUICK)["users"]:
        history = cut.test.history.history(user["user"])
        for row in user["lists"][0]:
            why = model.explain(history, int(row["item"]))
            pairs = zip(why.sources, why.contributions, strict=True)
            ranked = sorted((pair for pair in pairs if pair[1] > 0), key=lambda pair: -pair[1])
            assert row["why"] == [str(source) for source, _ in ranked[:2]]


def test_a_split_of_pairs_is_reported_too(synthetic: Interactions) -> None:
    collected = collect(eq.split.weak(synthetic), **QUICK)
    assert collected["provenance"]["protocol"] == "weak"
    assert "without a search" in collected["choices"][0]
    assert collected["data"]["whole"] is None


def test_the_same_seed_gives_the_same_report(synthetic: Interactions) -> None:
    one, other = (collect(synthetic, **QUICK) for _ in range(2))
    for part in ("data", "dial", "users", "training_curve"):
        assert one[part] == other[part]


def test_users_can_be_named(split: eq.split.Split) -> None:
    user = split.test.history.users[3]
    collected = collect(split, users=[user], **QUICK)
    assert [user["user"] for user in collected["users"]] == [user]
    with pytest.raises(UnknownIdError, match="the test part has no user 'zoe'"):
        collect(split, users=["zoe"], **QUICK)


def test_a_text_names_one_user_of_a_report(split: eq.split.Split) -> None:
    user = split.test.history.users[3]
    assert rows_of_users(split.test, user) == [3]


def test_sample_users_differ_in_activity(split: eq.split.Split) -> None:
    rows = sample_rows(split.test, 6, seed=0)
    counts = split.test.history.user_counts[rows]
    assert len(set(rows)) == 6
    assert (np.diff(counts) >= 0).all()
    assert counts[-1] > 2 * counts[0]
    assert sample_rows(split.test, 0, seed=0) == []
    with pytest.raises(SettingError, match="must be >= 0"):
        sample_rows(split.test, -1, seed=0)


def test_histories_start_with_what_came_last(synthetic: Interactions) -> None:
    times = np.arange(synthetic.n_interactions)[::-1].astype(np.int64)
    timed = Interactions(synthetic.matrix, synthetic.users, synthetic.items, times=times)
    collected = collect(timed, **QUICK)
    user = collected["users"][0]
    stored = [str(item) for item in reversed(timed.history(user["user"]))]
    shown = [row["item"] for row in user["history"]]
    assert shown == [item for item in stored if item in shown]


def test_reasons_come_from_the_history(facts: dict[str, Any]) -> None:
    for user in facts["users"]:
        if user["more"]:
            continue
        known = {row["title"] for row in user["history"]}
        reasons = [row["why"] for listed in user["lists"] for row in listed]
        assert all(set(why) <= known for why in reasons)
        assert any(reasons)


def test_the_curve_of_concentration_holds_hand_made_shares() -> None:
    curve = concentration(np.array([1, 0, 3, 0]))
    at = dict(zip(curve["items"], curve["held"], strict=True))
    assert at[0.25] == 0.75
    assert at[1.0] == 1.0
    assert concentration(np.zeros(3, np.int64))["held"][-1] == 0


def test_the_glance_names_a_difference_only_where_there_is_one(facts: dict[str, Any]) -> None:
    test = {**facts["tests"][0], "p_adjusted": 0.5}
    assert "no clear difference" in glance({**facts, "tests": [test]})[0]
    worse = {**test, "p_adjusted": 0.01, "difference": -0.02}
    assert "clearly worse" in glance({**facts, "tests": [worse]})[0]


def test_settings_are_shown_with_their_automatic_values(split: eq.split.Split) -> None:
    model = eq.EDLAE(normalizer=eq.DAN()).fit(split.train)
    words = model.summary()
    assert "auto" not in words
    assert f"l2={model.l2_:.4g}" in words


def test_a_model_with_figures_of_its_own_has_them_in_the_report(split: eq.split.Split) -> None:
    model = eq.tune(eq.EASE, split.train, grid={"l2": [5.0, 50.0]}, users=40).model
    choices = collect(split, model=model, **QUICK)["choices"]
    value = model.estimate_["values"]["ndcg@20"]["value"]
    (estimate,) = [sentence for sentence in choices if "by leave-one-out" in sentence]
    assert f"ndcg@20 {value:.4f}" in estimate
