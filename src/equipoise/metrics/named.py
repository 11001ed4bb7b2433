"""Metrics by name: which exist and what each means.

A name is a base metric, with the name of a slice in front unless it is over everything: "ndcg",
"head_ndcg", "active_recall".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from equipoise.errors import SettingError
from equipoise.metrics import accuracy
from equipoise.metrics.accuracy import Floats, Hits

ACCURACY: dict[str, Callable[[Hits, int], Floats]] = {
    "recall_capped": accuracy.recall,
    "recall_full": accuracy.recall_full,
    "ndcg": accuracy.ndcg,
    "mrr": accuracy.reciprocal_rank,
    "map": accuracy.average_precision,
    "precision": accuracy.precision,
    "hit": accuracy.hit_rate,
}
UNBIASED = {"recall": accuracy.unbiased_recall, "ndcg": accuracy.unbiased_ndcg}
PER_LIST = ("popularity", "novelty", "lift", "diversity")
AGGREGATE = ("coverage", "gini")
ITEM_SLICES = ("head", "tail")
USER_SLICES = ("active", "inactive")

FORMULAS = {
    "recall_capped": "hits among the first k / min(k, number of targets)",
    "recall_full": "hits among the first k / number of targets",
    "ndcg": "sum over hits of 1/log2(rank + 1) / the same sum for min(k, targets) hits in front",
    "mrr": "1 / rank of the first hit, 0 if none is among the first k",
    "map": "sum over hits of the precision at their rank / min(k, number of targets)",
    "precision": "hits among the first k / k",
    "hit": "1 if at least one of the first k is a target, else 0",
    "popularity": "mean training interactions of the first k items",
    "novelty": "mean of -log2(item's share of all training interactions) over the first k items",
    "lift": "(mean training interactions of the first k - of the history) / of the history",
    "diversity": "mean of 1 - cosine of item vectors over all pairs among the first k",
    "coverage": "share of the catalogue that stands in at least one list of k",
    "gini": "Gini index of how often each item of the catalogue is shown among the first k",
}
SLICES = {
    "head": "hits and targets only among the 20% of items with most training interactions",
    "tail": "hits and targets only among the 80% of items with fewest training interactions",
    "unbiased": "hits weighted by 1/rho, rho = max((count / largest count)^0.5, 0.01), and "
    "divided by min(k, targets) times the mean of 1/rho over the targets",
    "active": "the 20% of users with the longest histories",
    "inactive": "the 80% of users with the shortest histories",
}


@dataclass(frozen=True)
class Named:
    """One metric: a base such as "ndcg" over a slice such as "head" ("all" for everything)."""

    slice: str
    base: str

    @property
    def name(self) -> str:
        """The name in results, without the cut-off."""
        return self.base if self.slice == "all" else f"{self.slice}_{self.base}"

    def at(self, k: int) -> str:
        """Return the name in results at a cut-off, such as "head_ndcg@20"."""
        return f"{self.name}@{k}"

    def definition(self, recall_form: str) -> str:
        """Say in words what is computed; "recall" stands for `recall_form`."""
        base = recall_form if self.base == "recall" else self.base
        if self.slice == "unbiased":
            base = "recall_capped" if self.base == "recall" else self.base
        if self.slice == "all":
            return FORMULAS[base]
        group = f"hits and targets only among the items of group {self.slice!r}"
        return f"{FORMULAS[base]}; {SLICES.get(self.slice, group)}"


def known(groups: Iterable[str] = ()) -> dict[str, Named]:
    """Every metric by its name, with these extra groups of items."""
    bases = ["recall", *ACCURACY]
    out = [Named("all", base) for base in (*bases, *PER_LIST, *AGGREGATE)]
    out += [Named(part, base) for part in (*ITEM_SLICES, *groups) for base in bases]
    out += [Named("unbiased", base) for base in UNBIASED]
    out += [Named(part, base) for part in USER_SLICES for base in (*bases, *PER_LIST)]
    return {named.name: named for named in out}


def default(groups: Iterable[str] = ()) -> list[Named]:
    """What `evaluate` reports unless told otherwise."""
    main = ["recall", "ndcg", "mrr", "map", "precision", "hit"]
    out = [Named("all", base) for base in main]
    slices = [*ITEM_SLICES, *groups, "unbiased", *USER_SLICES]
    out += [Named(part, base) for part in slices for base in ("recall", "ndcg")]
    return out + [Named("all", base) for base in (*AGGREGATE, "popularity", "novelty", "lift")]


def look_up(names: Sequence[str] | str | None, groups: Iterable[str] = ()) -> list[Named]:
    """Look the names up; an unknown one is an error with the nearest name."""
    groups = list(groups)
    if names is None:
        return default(groups)
    everything = known(groups)
    listed = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    if not listed:
        raise SettingError("metrics is empty; leave it out for the usual ones")
    for name in listed:
        if name not in everything:
            bare = str(name).partition("@")[0]
            hint = nearest(name, everything)
            if bare in everything:
                hint = f"write {bare!r} and give the cut-off as k"
            raise SettingError(f"unknown metric {name!r}; {hint}")
    return [everything[name] for name in listed]


def at_cutoff(name: str) -> tuple[Named, int]:
    """Look up a metric with its cut-off.

    >>> at_cutoff("tail_ndcg@20")
    (Named(slice='tail', base='ndcg'), 20)
    """
    match = re.fullmatch(r"(\w+)@(\d+)", name) if isinstance(name, str) else None
    if match is None or int(match[2]) < 1:
        raise SettingError(f"a metric must look like 'ndcg@20', got {name!r}")
    everything = known()
    if match[1] not in everything:
        raise SettingError(f"unknown metric {name!r}; {nearest(match[1], everything)}")
    return everything[match[1]], int(match[2])


def nearest(name: object, names: Iterable[str]) -> str:
    """Return the end of a sentence that names what was probably meant."""
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(names))}"
