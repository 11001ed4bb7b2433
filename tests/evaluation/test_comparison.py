from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from equipoise.errors import DataError, SettingError
from equipoise.evaluation.comparison import compare
from equipoise.evaluation.results import Result


def make_result(
    name: str, values: dict[str, np.ndarray], k: tuple[int, ...] = (20,), **changes: object
) -> Result:
    """Build a result from values per user."""
    n_users = len(next(iter(values.values())))
    users = pl.Series("user", [f"u{n}" for n in range(n_users)])
    rows = [
        (metric.partition("@")[0], k[0], "all", float(np.nanmean(column)), None, None, n_users)
        for metric, column in values.items()
    ]
    columns = ["metric", "k", "slice", "value", "low", "high", "n_users"]
    content: dict[str, object] = {
        "name": name,
        "table": pl.DataFrame(rows, schema=columns, orient="row"),
        "per_user": pl.DataFrame([users, *(pl.Series(n, c) for n, c in values.items())]).fill_nan(
            None
        ),
        "k": k,
        "protocol": "strong",
        "part": "test",
        "fingerprint": "aaaaaaaaaaaa",
        "data_fingerprint": "dddddddddddd",
        "n_users": n_users,
        "n_items": 9,
        "exclude_seen": True,
        "settings": {"name": name},
        "definitions": {metric.partition("@")[0]: "as ever" for metric in values},
        "tuned_on_test": False,
        "bootstrap": 0,
        "seed": 0,
        "seconds": {},
        "version": "0",
    }
    return Result(**{**content, **changes})


@pytest.fixture
def results(rng) -> list[Result]:
    base = rng.uniform(0.2, 0.7, 400)
    noise = rng.uniform(-0.1, 0.1, 200)
    noise = np.concatenate([noise, -noise])  # of mean zero, whatever was drawn
    better = base + noise + 0.05
    alike = base + noise + 0.5 * noise.std() / np.sqrt(400)  # half a standard error
    columns = {"base": base, "better": better, "alike": alike}
    return [make_result(name, {"ndcg@20": values}) for name, values in columns.items()]


def test_a_better_model_differs_significantly_and_an_equal_one_does_not(results):
    frame = compare(results).to_frame()
    assert frame["model"].to_list() == ["better", "alike"]
    assert frame["baseline"].to_list() == ["base", "base"]
    better, alike = frame.rows(named=True)
    assert better["p_adjusted"] == pytest.approx(2 / 10_001)
    assert 0 < better["low"] < better["difference"] < better["high"]
    assert alike["p_adjusted"] > 0.05
    assert alike["low"] < 0 < alike["high"]
    assert better["difference"] == pytest.approx(better["mean"] - better["baseline_mean"])
    assert better["n_users"] == 400


def test_the_paired_t_test_is_that_of_scipy(results):
    frame = compare(results, test="t", correction="none").to_frame()
    base, *models = (result.per_user["ndcg@20"].to_numpy() for result in results)
    expected = [stats.ttest_rel(other, base).pvalue for other in models]
    assert_allclose(frame["p"].to_numpy(), expected, rtol=1e-10)
    assert_allclose(frame["p_adjusted"].to_numpy(), expected, rtol=1e-10)


def test_both_tests_agree_where_users_are_many(results):
    flips, t = (compare(results, test=test).to_frame()["p"][1] for test in ("permutation", "t"))
    # 10,000 flips leave a standard error of at most 0.005; the tests differ by less.
    assert flips == pytest.approx(t, abs=0.03)


def test_all_pairs_are_tested_when_asked(results):
    frame = compare(results, pairs="all").to_frame()
    pairs = list(zip(frame["baseline"], frame["model"], strict=True))
    assert pairs == [("base", "better"), ("base", "alike"), ("better", "alike")]


def test_corrections_grow_with_the_number_of_models(results):
    p = compare(results, test="t", correction="none").to_frame()["p"].to_numpy()
    bonferroni = compare(results, test="t", correction="bonferroni").to_frame()["p_adjusted"]
    holm = compare(results, test="t").to_frame()["p_adjusted"].to_numpy()
    assert_allclose(bonferroni.to_numpy(), np.minimum(2 * p, 1))
    assert_allclose(holm, [2 * p[0], p[1]])


def test_equal_models_do_not_differ(results):
    for test in ("permutation", "t"):
        row = compare([results[0], results[0]], test=test).to_frame().row(0, named=True)
        assert (row["difference"], row["low"], row["high"], row["p"]) == (0, 0, 0, 1)
    assert compare([results[0]] * 3).to_frame()["model"].to_list() == ["base #2", "base #3"]


def test_a_constant_difference_is_certain_for_the_t_test():
    values = np.linspace(0.25, 0.5, 9)
    pair = [
        make_result("a", {"ndcg@20": np.zeros(9)}),
        make_result("b", {"ndcg@20": np.full(9, 0.5)}),
    ]
    assert compare(pair, test="t").to_frame()["p"][0] == 0
    lone = [make_result(name, {"ndcg@20": values[:1]}) for name in "ab"]
    assert compare(lone, test="t").to_frame()["p"][0] == 1


def test_users_without_a_value_on_one_side_are_left_out():
    nan = float("nan")
    first = make_result("a", {"tail_ndcg@20": np.array([0.5, nan, 0.0, 1.0])})
    second = make_result("b", {"tail_ndcg@20": np.array([1.0, 1.0, nan, 1.0])})
    row = compare([first, second], "tail_ndcg@20").to_frame().row(0, named=True)
    assert row["n_users"] == 2
    assert row["difference"] == pytest.approx(0.25)
    empty = make_result("c", {"tail_ndcg@20": np.array([nan, 0.5, nan, nan])})
    with pytest.raises(DataError, match=r"no user has a value for both 'c' and 'a'"):
        compare([first, empty], "tail_ndcg@20")


def test_names_may_be_given(results):
    frame = compare({"old": results[0], "new": results[1]}).to_frame()
    assert frame.select("model", "baseline").row(0) == ("new", "old")


def test_a_seed_makes_p_values_repeatable(results):
    one, same, other = (compare(results, seed=seed).to_frame()["p"][1] for seed in (1, 1, 2))
    assert one == same != other


def compare_odd(results, **changes):
    other = make_result("odd", **{"values": {"ndcg@20": np.ones(400)}, **changes})
    return compare([results[0], other])


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        pytest.param(
            lambda results, changes=changes: compare_odd(results, **changes),
            DataError,
            reason,
            id=name,
        )
        for name, changes, reason in (
            (
                "part",
                {"fingerprint": "bbbbbbbbbbbb"},
                "'odd' .* part bbbbbbbbbbbb, 'base' on part aaaaaaaaa",
            ),
            (
                "k",
                {"values": {"ndcg@10": np.ones(400)}, "k": (10,)},
                r"for 'ndcg@20' \(k = 10\)",
            ),
            ("definition", {"definitions": {"ndcg": "else"}}, "define 'ndcg' differently"),
            ("seen", {"exclude_seen": False}, "excludes seen items"),
            ("users", {"values": {"ndcg@20": np.ones(9)}}, "have different users"),
        )
    ]
    + [
        pytest.param(
            lambda results: compare(results, "ndgc@20"),
            DataError,
            r"did you mean 'ndcg@20'",
            id="metric",
        )
    ]
    + [
        pytest.param(
            lambda results, number=number, settings=settings: compare(
                results[:number], **settings
            ),
            SettingError,
            reason,
            id=name,
        )
        for name, number, settings, reason in (
            ("one result", 1, {}, "at least two results, got 1"),
            ("correction", 3, {"correction": "fdr"}, "correction must be 'holm', .*, got 'fdr'"),
            ("test", 3, {"test": "z"}, "test must be 'permutation' or 't', got 'z'"),
            ("pairs", 3, {"pairs": "some"}, "pairs must be 'first' or 'all'"),
            ("resamples", 3, {"resamples": 0}, "resamples must"),
        )
    ],
)
def test_results_and_settings_that_do_not_fit_are_refused(results, call, error, reason):
    with pytest.raises(error, match=reason):
        call(results)


def test_tables_say_what_was_tested(results):
    comparison = compare(results)
    text = comparison.to_markdown()
    assert text.splitlines()[0].startswith("| model | against | ndcg@20 | difference [95%] | p |")
    assert "| better | base |" in text
    assert "sign-flip permutation test per user, Holm's correction for 2 tests." in text
    assert "better against base: +0.0" in repr(comparison)


def test_a_model_tuned_on_test_is_marked_in_the_comparison(results):
    tuned = make_result("tuned", {"ndcg@20": np.ones(400)}, tuned_on_test=True)
    frame = compare([results[0], tuned]).to_frame()
    assert frame["model"].to_list() == ["tuned (tuned on test)"]
