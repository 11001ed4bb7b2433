"""Metrics of ranked lists on the validation part, without what `evaluate` adds for reports."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise import metrics as formulas
from equipoise.errors import DataError, SettingError
from equipoise.metrics.named import (
    ACCURACY,
    AGGREGATE,
    USER_SLICES,
    Named,
    Observed,
    known,
    nearest,
    per_user,
)
from equipoise.split.parts import Part

LOWER_IS_BETTER = ("gini", "popularity", "lift")


class Objective:
    """One number to be made large (or small): a metric with its cut-off, such as "ndcg@20".

    Parameters
    ----------
    name
        A metric of `evaluate`, "@" and the length of the lists.
    """

    def __init__(self, name: str) -> None:
        match = re.fullmatch(r"(\w+)@(\d+)", name) if isinstance(name, str) else None
        offered = known()
        if match is None or int(match[2]) < 1:
            raise SettingError(f"a metric must look like 'ndcg@20', got {name!r}")
        if match[1] not in offered:
            raise SettingError(f"unknown metric {name!r}; {nearest(match[1], offered)}")
        self.name = name
        self.named: Named = offered[match[1]]
        self.k = int(match[2])
        base = self.named.base
        if base == "diversity" or self.named.slice in USER_SLICES:
            raise SettingError(f"{name!r} cannot be tuned for; use one over all users and items")
        self.sign = -1.0 if base in LOWER_IS_BETTER else 1.0

    def __repr__(self) -> str:
        return f"Objective({self.name!r})"


class Judge:
    """Computes objectives of ranked lists on one part; what does not depend on lists is kept.

    Parameters
    ----------
    part
        The validation part.
    counts
        Training interactions of each item.
    objectives
        What to compute.
    """

    def __init__(self, part: Part, counts: npt.NDArray[Any], objectives: list[Objective]) -> None:
        self.part = part
        self.counts = counts
        self.objectives = objectives
        self.depth = max(each.k for each in objectives)
        self.exclude_seen = part.protocol != "session"
        self.recall_form = "recall_full" if part.protocol == "weak" else "recall_capped"
        head = formulas.head_items(counts)
        self.groups = {"head": head, "tail": ~head}
        self.rho = formulas.propensities(counts)
        for each in objectives:
            group = self.groups.get(each.named.slice)
            if group is not None and not group[part.target.matrix.indices].any():
                raise DataError(f"no target of the valid part is in the {each.named.slice}")

    def measure(self, lists: npt.NDArray[np.int32]) -> dict[str, float]:
        """Return each objective's value, equal to that of `evaluate`."""
        hits = formulas.find_hits(lists, self.part.target.matrix)
        out = {}
        for each in self.objectives:
            base = each.named.base
            if base in ("coverage", "gini"):
                shown = formulas.exposure(lists, each.k, len(self.counts))
                summary = {"coverage": formulas.coverage, "gini": formulas.exposure_gini}
                out[each.name] = float(summary[base](shown))
                continue
            seen = Observed(hits, self.groups, {}, self.rho, self._per_list(each, lists))
            values = per_user(seen, [each.named], [each.k], self.recall_form)[each.name]
            out[each.name] = float(values[~np.isnan(values)].mean())
        return out

    def _per_list(
        self, each: Objective, lists: npt.NDArray[np.int32]
    ) -> dict[str, npt.NDArray[np.float64]]:
        base = each.named.base
        if base in (*ACCURACY, "recall", *AGGREGATE):
            return {}
        if base == "novelty":
            surprise = formulas.self_information(self.counts)
            return {base: formulas.list_mean(lists, surprise, [each.k])}
        listed = formulas.list_mean(lists, self.counts, [each.k])
        if base == "popularity":
            return {base: listed}
        chosen = formulas.row_mean(self.part.history.matrix, self.counts)
        return {base: formulas.popularity_lift(listed[:, 0], chosen)[:, None]}
