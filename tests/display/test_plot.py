"""Plots are one line, draw the numbers of what they are asked for, and return their axes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import DataError, MissingExtraError, SettingError, UnknownIdError

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def split() -> eq.Split:
    draws = np.random.default_rng(0).random((120, 15)) < np.linspace(0.6, 0.1, 15)
    return eq.split.strong(eq.Interactions(draws), valid=0.2, test=0.3, seed=0)


@pytest.fixture(scope="module")
def result(split: eq.Split) -> eq.Result:
    return eq.evaluate(eq.Popularity().fit(split.train), split.test, k=(3, 5), bootstrap=50)


def dots(axes: Any) -> list[float]:
    return [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o"]


def test_popularity_is_the_curve_of_the_statistics(split: eq.Split) -> None:
    axes = eq.plot.popularity(split.train)
    drawn = axes.lines[0].get_ydata()
    assert np.array_equal(drawn, eq.describe(split.train).popularity["interactions"])


def test_a_result_draws_its_slices(result: eq.Result) -> None:
    axes = result.plot()
    assert axes.get_xlabel() == "ndcg@5"
    names = [label.get_text() for label in axes.get_yticklabels()]
    prefixes = ["" if name == "all" else f"{name}_" for name in names]
    assert dots(axes) == [result[f"{prefix}ndcg@5"] for prefix in prefixes]
    assert dots(result.plot("recall", k=3))[0] == result["recall@3"]


def test_plots_draw_into_given_axes(split: eq.Split, result: eq.Result) -> None:
    _, own_axes = pyplot.subplots()
    assert eq.plot.popularity(split.train, ax=own_axes) is own_axes
    assert result.plot(ax=own_axes) is own_axes


def test_results_are_drawn_beside_one_another(result: eq.Result) -> None:
    axes = eq.plot.results({"a": result, "b": result}, "tail_ndcg@5")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert dots(axes) == [result["tail_ndcg@5"]] * 2


def test_custom_groups_are_drawn(split: eq.Split) -> None:
    model = eq.Popularity().fit(split.train)
    groups = {"first": split.train.items[:4]}
    result = eq.evaluate(model, split.test, k=3, groups=groups, bootstrap=0)
    assert dots(eq.plot.results([result], "first_ndcg@3")) == [result["first_ndcg@3"]]


def test_a_search_draws_its_frontier(split: eq.Split) -> None:
    tuned = eq.tune(
        eq.EASE, split, grid={"l2": [2.0, 20.0]}, metric="ndcg@5", objectives="tail_ndcg@5"
    )
    axes = tuned.plot_frontier()
    assert len(axes.collections[0].get_offsets()) == tuned.trials.height
    assert len(axes.lines[0].get_xdata()) == tuned.frontier.height
    alone = eq.tune(eq.EASE, split, grid={"l2": [2.0]}, metric="ndcg@5", objectives=[])
    with pytest.raises(SettingError, match="needs two objectives"):
        alone.plot_frontier()


def test_a_missing_metric_is_named(result: eq.Result) -> None:
    with pytest.raises(UnknownIdError, match="ndcg@7"):
        result.plot(k=7)
    with pytest.raises(UnknownIdError, match="nonsense"):
        eq.plot.results([result], "nonsense@5")
    with pytest.raises(SettingError, match="at least one"):
        eq.plot.results([])


def test_an_undefined_metric_is_not_drawn(split: eq.Split) -> None:
    model = eq.Popularity().fit(split.train)
    result = eq.evaluate(model, split.test, k=3, groups={"none": []}, bootstrap=0)
    assert np.isnan(result["none_ndcg@3"])
    assert "none" not in [row.label for row in result.slices("ndcg", 3)]
    with pytest.raises(DataError, match="not defined"):
        eq.plot.results([result], "none_ndcg@3")


def test_without_matplotlib_the_remedy_is_named(
    split: eq.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"equipoise\[report\]"):
        eq.plot.popularity(split.train)
