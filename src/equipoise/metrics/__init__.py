"""Metrics of ranked lists: pure functions, one value per user out, NaN where undefined.

`find_hits` compares lists with targets once; every accuracy metric is a short formula on what it
found, at any cut-off k and for any group of items:

>>> import numpy as np, scipy.sparse as sp
>>> from equipoise import metrics
>>> lists = np.array([[2, 0, 1], [1, 2, -1]])  # item positions, best first, padded with -1
>>> target = sp.csr_array([[1, 0, 0, 1], [0, 1, 0, 0]])
>>> hits = metrics.find_hits(lists, target)
>>> metrics.recall(hits, 2)
array([0.5, 1. ])
>>> metrics.recall(hits.within([True, False, False, True]), 2)
array([0.5, nan])
"""

from equipoise.metrics.accuracy import (
    Hits,
    average_precision,
    find_hits,
    hit_rate,
    join_hits,
    ndcg,
    precision,
    propensities,
    recall,
    recall_full,
    reciprocal_rank,
    unbiased_ndcg,
    unbiased_recall,
)
from equipoise.metrics.beyond_accuracy import (
    coverage,
    diversity,
    exposure,
    exposure_gini,
    head_items,
    list_mean,
    popularity_lift,
    row_mean,
    self_information,
    unit_rows,
)

__all__ = [
    "Hits",
    "average_precision",
    "coverage",
    "diversity",
    "exposure",
    "exposure_gini",
    "find_hits",
    "head_items",
    "hit_rate",
    "join_hits",
    "list_mean",
    "ndcg",
    "popularity_lift",
    "precision",
    "propensities",
    "recall",
    "recall_full",
    "reciprocal_rank",
    "row_mean",
    "self_information",
    "unbiased_ndcg",
    "unbiased_recall",
    "unit_rows",
]
