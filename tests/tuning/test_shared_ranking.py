"""Lists of many models that share a solve are those of each model alone."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.matrix import entry_rows
from equipoise.data.split import Split
from equipoise.ranking import terms
from equipoise.tuning import criterion
from equipoise.tuning.criterion import rank_together


@pytest.mark.parametrize("engine", ["dense", "dual"])
def test_lists_ranked_together_are_those_of_the_model(
    split: Split, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criterion, "BLOCK", 7)
    monkeypatch.setattr(criterion, "TILE", 400)  # so that there are many tiles
    settings = {"l2": 3.0, "dropout": 0.3}
    first = eq.EASE(**settings, normalizer=eq.DAN(0.2, 0.1)).fit(split.train, engine=engine)
    unfitted = [eq.LAE(**settings, normalizer=eq.DAN(alpha, 0.1)) for alpha in (0.2, 0.4)]
    models = [first, *(model.reuse(first) for model in unfitted)]
    for seen in (True, False):
        lists = rank_together(models, split.valid.history, 15, exclude_seen=seen)
        for model, model_lists in zip(models, lists, strict=True):
            alone = model.rank(split.valid.history, 15, exclude_seen=seen)
            np.testing.assert_array_equal(model_lists, alone.items)


def test_lists_ranked_together_for_an_empty_history_are_those_of_the_model(split: Split) -> None:
    model = eq.EASE(l2=3.0, normalizer=eq.DAN(0.2, 0.1)).fit(split.train)
    history = split.valid.history.rows([0, 1, 2, 3])
    history = history.entries(np.isin(entry_rows(history.matrix), [1, 3]))
    (lists,) = rank_together([model], history, 15)
    np.testing.assert_array_equal(lists, model.rank(history, 15).items)
    best = np.argsort(-split.train.item_counts, kind="stable")[:15]
    np.testing.assert_array_equal(lists[0], best)


@pytest.mark.parametrize("engine", ["dense", "dual"])
def test_models_with_different_trends_are_ranked_as_alone(engine: str) -> None:
    rng = np.random.default_rng(0)
    rows = [
        (f"u{rng.integers(40)}", f"i{rng.zipf(1.5) % 30}", 1.0, float(time)) for time in range(900)
    ]
    data = eq.read(rows)
    trends = [
        None,
        eq.Trend(half_life=50.0),
        eq.Trend(half_life=400.0, form="add"),
        eq.Trend(half_life=5.0, power=0.0, share=2.0),
    ]
    first = eq.EASE(l2=3.0, dropout=0.2).fit(data, engine=engine)
    models = [eq.EASE(l2=3.0, dropout=0.2, trend=trend).reuse(first) for trend in trends]
    history = data.rows(np.arange(12))
    history = history.entries(np.isin(entry_rows(history.matrix), np.arange(9)))
    assert (history.user_counts == 0).any()  # ranked by what is popular, lately with a trend
    lists = rank_together(models, history, 10)
    for model, model_lists in zip(models, lists, strict=True):
        np.testing.assert_array_equal(model_lists, model.rank(history, 10).items)


def test_models_of_one_solve_share_their_sums(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = eq.EASE(l2=3.0, normalizer=eq.DAN(0.2, 0.1)).fit(split.train, engine="dual")
    bounds = [eq.RLAE(l2=3.0, normalizer=eq.DAN(0.2, 0.1), diag_bound=x) for x in (0.1, 0.5)]
    calls = []
    adder = terms.Dual.adder
    monkeypatch.setattr(terms.Dual, "adder", lambda *args: (calls.append(1), adder(*args))[1])
    rank_together([first, *(model.reuse(first) for model in bounds)], split.valid.history, 15)
    together = len(calls)
    first.rank(split.valid.history, 15)
    assert together == len(calls) - together
