"""Lists of many models that share a solve are those of each model alone."""

from __future__ import annotations

import numpy as np

import equipoise as eq
from equipoise.matrix import entry_rows
from equipoise.split import Split
from equipoise.tuning.shared_ranking import rank_together


def test_lists_ranked_together_are_those_of_the_model(split: Split) -> None:
    first = eq.EASE(l2=3.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.1)).fit(split.train)
    models = [first, eq.LAE(l2=3.0, dropout=0.3, normalizer=eq.DAN(0.4, 0.1)).reuse(first)]
    for seen in (True, False):
        lists = rank_together(models, split.valid.history, 15, exclude_seen=seen)
        for model, found in zip(models, lists, strict=True):
            alone = model.rank(split.valid.history, 15, exclude_seen=seen)
            np.testing.assert_array_equal(found, alone.items)


def test_lists_ranked_together_for_an_empty_history_are_those_of_the_model(split: Split) -> None:
    model = eq.EASE(l2=3.0, normalizer=eq.DAN(0.2, 0.1)).fit(split.train)
    some = split.valid.history.rows([0, 1, 2, 3])
    history = some.entries(np.isin(entry_rows(some.matrix), [1, 3]))
    (lists,) = rank_together([model], history, 15)
    np.testing.assert_array_equal(lists, model.rank(history, 15).items)
    best = np.argsort(-split.train.item_counts, kind="stable")[:15]
    np.testing.assert_array_equal(lists[0], best)
