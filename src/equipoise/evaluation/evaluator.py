"""Evaluate a model on a part of a split: one pass over the users, all metrics at all cut-offs.

`evaluate` ranks every user once and measures the lists; `ListMetrics` gives the same numbers for
existing lists, as `tune` needs them.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

import equipoise
from equipoise.checks import count, cutoff, flag, function
from equipoise.data.ids import IdIndex, as_list, some
from equipoise.data.interactions import Interactions
from equipoise.data.split.parts import Part, identity
from equipoise.errors import DataError, NotFittedError, SettingError, UnknownIdError
from equipoise.evaluation import metrics as formulas
from equipoise.evaluation.given_lists import GivenLists
from equipoise.evaluation.metrics import (
    ACCURACY,
    AGGREGATE,
    ITEM_SLICES,
    OF_NEW_ITEMS,
    UNBIASED,
    USER_SLICES,
    Floats,
    Lists,
    Named,
    Vectors,
    at_cutoff,
    known,
    look_up,
)
from equipoise.evaluation.resampling import bootstrap_interval
from equipoise.evaluation.results import SCHEMA, Result
from equipoise.ranking.rules import Rules, RulesLike, as_rules
from equipoise.runtime.machine import check_polars, limited

Flags = npt.NDArray[np.bool_]
Exposure = dict[int, npt.NDArray[np.int64]]  # number of lists that show each item, by cut-off
Summary = tuple[tuple[Named, int], tuple[float, int]]  # metric, cut-off; value, number of users

log = logging.getLogger(__name__)


class Rankable(Protocol):
    """The attributes of a fitted model that `evaluate` needs."""

    item_index_: IdIndex  # the model's items
    item_counts_: npt.NDArray[Any]  # training interactions of each item
    data_fingerprint_: str  # of the training data

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> Any:
        """Return `items`, positions of the k best of each row padded with -1, and `scores`."""

    def settings(self) -> dict[str, Any]:
        """Return "name" and the hyper-parameters as plain values."""


@dataclass(frozen=True)
class GivenPart:
    """A part made from (history, target)."""

    history: Interactions
    target: Interactions
    protocol: str = "given"
    name: str = "test"


def evaluate(
    model: Rankable | Any,
    part: Part | GivenPart | tuple[Interactions, Interactions],
    k: int | Iterable[int] = 20,
    *,
    rules: RulesLike | None = None,
    alpha: float | None = None,
    train: Interactions | None = None,
    metrics: Sequence[str] | str | None = None,
    groups: Mapping[str, Any] | None = None,
    item_vectors: Any = None,
    exclude_seen: bool | None = None,
    batch_size: int = 4096,
    bootstrap: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    tuned_on_test: bool = False,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Rank every user of a part once and compute all metrics at all cut-offs from the lists.

    "recall@k" divides hits by min(k, targets), in the weak protocol by the number of targets, as
    results published under it do; "recall_capped" and "recall_full" are one form in any protocol.
    Every definition is in `Result.definitions` and in docs/metrics.md. A user with an empty
    history is evaluated on the list of `recommend`, which is ranked by popularity.

    Parameters
    ----------
    model
        A fitted model, or any object with the attributes of `Rankable`. Or the lists of another
        system: a frame or the path of a file with columns user, item, and rank or score.
    part
        ``split.test``, ``split.valid``, or a pair (history, target) with the same users.
    k
        One or more cut-offs.
    rules, alpha
        As for `Recommender.recommend`.
    train
        For lists of another system: its training data, whose counts define head and tail,
        popularity and novelty. Without it metrics that need counts are left out.
    metrics
        Names without cut-off. Default: recall, ndcg, mrr, map, precision and hit; recall and ndcg
        by slice; coverage, gini, popularity, novelty, lift; where a target is an item that nobody
        used in training, recall and ndcg of "new" and "known" items apart, and "new_share". A name
        may have a slice: "tail_mrr", "active_map". "diversity" needs `item_vectors`.
    groups
        More groups of items by name, each a mask over the items of the part or a list of ids.
    item_vectors
        For "diversity": the training `Interactions` (an item's vector is its column), or a row per
        item of the model.
    exclude_seen
        Exclude items of the history from the lists. Default: yes, except for sessions and for
        parts whose `repeats` are "all" or "again".
    batch_size
        Users ranked at a time; does not change the numbers.
    bootstrap
        Resamples for the 95% intervals; 0 for none.
    seed
        Seed of the resamples.
    threads
        Maximum number of threads (default: all).
    tuned_on_test
        Whether settings were chosen on this part; the result is then labelled.
    name
        Name of the model in tables (default: its `label`, or the name of its class).
    progress
        Called after every batch with the number of finished users and of all users.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.Interactions(np.random.default_rng(0).random((60, 20)) < 0.3)
    >>> split = eq.split.strong(data, valid=0, test=0.2)
    >>> result = eq.evaluate(eq.Popularity().fit(split.train), split.test, k=[5, 10])
    >>> result["recall@5"] < result["recall@10"] <= 1
    True
    >>> result.definitions["recall"]
    'hits among the first k / min(k, number of targets)'
    """
    check_polars()
    checked = checked_part(part)
    count("batch_size", batch_size)
    function("progress", progress)
    if groups is not None and not isinstance(groups, Mapping):
        raise SettingError(f"groups must map names to items, got {type(groups).__name__}")
    if exclude_seen is not None:
        exclude_seen = flag("exclude_seen", exclude_seen)
    if name is not None and not isinstance(name, str):
        raise SettingError(f"name must be a string, got {name!r}")
    named_metrics = look_up(metrics, groups or ())
    if not hasattr(model, "settings"):
        if rules is not None or alpha is not None:
            raise SettingError("rules and alpha are for models; lists are evaluated as given")
        name = name or "lists"
        model = GivenLists(model, checked, train, exclude_seen)
        named_metrics = model.measurable(named_metrics, chosen=metrics is not None)
        exclude_seen = model.hides_seen
    elif metrics is None and finds_new_items(model, checked.target):
        named_metrics = [*named_metrics, *OF_NEW_ITEMS]
    question = Question(
        model,
        checked,
        k,
        named_metrics,
        rules=rules,
        alpha=alpha,
        groups=groups,
        item_vectors=item_vectors,
        exclude_seen=exclude_seen,
        bootstrap=bootstrap,
        seed=seed,
    )
    history, target = _align(checked, question.items)
    seconds = {"rank": 0.0}
    batches = _rank_batches(question, model, history, batch_size, seconds, progress)
    with limited(threads):
        started = time.perf_counter()
        per_user, exposure = question.metrics(history, target).per_user(batches)
        seconds["metrics"] = time.perf_counter() - started - seconds["rank"]
        return question.result(
            model,
            history.user_index,
            per_user,
            exposure,
            part=checked.name,
            fingerprint=identity(checked.target),
            name=name or str(getattr(model, "label", type(model).__name__)),
            tuned_on_test=tuned_on_test,
            seconds=seconds,
        )


def finds_new_items(model: Any, target: Interactions) -> bool:
    """Whether a target is an item that nobody used in the training data of the model."""
    counts, items = getattr(model, "item_counts_", None), getattr(model, "item_index_", None)
    if counts is None or items is None:
        return False
    places = items.positions(target.items[target.item_counts > 0], unknown="skip")
    return bool((np.asarray(counts)[places[places >= 0]] == 0).any())


class Question:
    """All settings of an evaluation that do not depend on its users, checked; as `evaluate`."""

    def __init__(
        self,
        model: Any,
        part: Any,
        k: int | Iterable[int],
        named_metrics: Sequence[Named],
        *,
        rules: RulesLike | None = None,
        alpha: float | None = None,
        groups: Mapping[str, Any] | None = None,
        item_vectors: Any = None,
        exclude_seen: bool | None = None,
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        self.items, self.counts = _model_items(model), model.item_counts_
        self.ks, self.named_metrics = as_cutoffs(k), named_metrics
        self.protocol, self.repeats = part.protocol, str(getattr(part, "repeats", "new"))
        checked_rules = None if rules is None else as_rules(rules)
        if exclude_seen is None:
            exclude_seen = self.repeats == "new" and part.protocol != "session"
            if checked_rules is not None and checked_rules.seen is not None:
                exclude_seen = checked_rules.seen == "exclude"
        self.exclude_seen = exclude_seen
        options: dict[str, Any] = {"rules": checked_rules, "alpha": alpha}
        self.rank_options = {key: value for key, value in options.items() if value is not None}
        self.groups = _group_flags(groups or {}, part.target.items, self.items)
        needs_units = any(named.base == "diversity" for named in named_metrics)
        self.units = _units(item_vectors, self.items) if needs_units else None
        self.bootstrap, self.seed = count("bootstrap", bootstrap, 0), count("seed", seed, 0)

    def metrics(
        self, history: Interactions, target: Interactions, active: Flags | None = None
    ) -> ListMetrics:
        """Return the metrics for these users; `active` as for `ListMetrics`."""
        return ListMetrics(
            history,
            target,
            self.counts,
            list(product(self.named_metrics, self.ks)),
            protocol=self.protocol,
            groups=self.groups,
            active=active,
            units=self.units,
        )

    def lists(self, model: Any, rows: Interactions) -> Lists:
        """Return the checked lists of these users."""
        depth = min(self.ks[-1], len(self.items))
        ranked = model.rank(rows, depth, exclude_seen=self.exclude_seen, **self.rank_options)
        return _checked_lists(ranked, rows, depth, len(self.items))

    def result(
        self,
        model: Any,
        users: IdIndex,
        per_user: Mapping[str, Floats],
        exposure: Exposure,
        *,
        seconds: dict[str, float],
        **facts: Any,
    ) -> Result:
        """Return the result from the values of all users."""
        started = time.perf_counter()
        intervals = _intervals(per_user, self.bootstrap, self.seed)
        seconds["bootstrap"] = time.perf_counter() - started
        log.info("evaluated %d users in %.1f s", len(users), sum(seconds.values()))
        metrics = product(self.named_metrics, self.ks)
        rows = [
            (named.base, k, named.slice, value, *intervals.get(named.at(k), (None, None)), size)
            for (named, k), (value, size) in summaries(metrics, per_user, exposure, len(users))
        ]
        table = pl.DataFrame(rows, schema=SCHEMA, orient="row")
        series = [pl.Series(name, values) for name, values in per_user.items()]
        options = {
            name: value.settings() if isinstance(value, Rules) else float(value)
            for name, value in self.rank_options.items()
        }
        columns = pl.DataFrame([users.to_series().alias("user"), *series])
        form = recall_form(self.protocol)
        return Result(
            table=table.with_columns(pl.col("value", "low", "high").fill_nan(None)),
            per_user=columns.with_columns(pl.col(pl.Float64).fill_nan(None)),
            k=self.ks,
            protocol=self.protocol,
            data_fingerprint=model.data_fingerprint_,
            n_users=len(users),
            n_items=len(self.items),
            exclude_seen=self.exclude_seen,
            settings={**model.settings(), **options},
            definitions={named.name: named.definition(form) for named in self.named_metrics},
            bootstrap=self.bootstrap,
            seed=self.seed,
            seconds=seconds,
            version=equipoise.__version__,
            repeats=self.repeats,
            **facts,
        )


def recall_form(protocol: str) -> str:
    """Return the form of "recall" in a protocol."""
    return "recall_full" if protocol == "weak" else "recall_capped"


def summaries(
    metrics: Iterable[tuple[Named, int]],
    per_user: Mapping[str, Floats],
    exposure: Exposure,
    n_users: int,
) -> Iterator[Summary]:
    """Yield each metric and cut-off with its value and the number of users behind it."""
    aggregate = {"coverage": formulas.coverage, "gini": formulas.exposure_gini}
    for named, k in metrics:
        if named.base in AGGREGATE:
            yield (named, k), (aggregate[named.base](exposure[k]), n_users)
        else:
            values = per_user[named.at(k)]
            defined = values[~np.isnan(values)]
            mean = float(defined.mean()) if len(defined) else math.nan
            yield (named, k), (mean, len(defined))


def active_users(users: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Flags:
    """Flag the fifth of users with the longest histories; ties go to the smaller id."""
    by_id = np.argsort(users, kind="stable")
    active = np.empty(len(users), bool)
    active[by_id] = formulas.head_items(counts[by_id])
    return active


class ListMetrics:
    """Metrics of ranked lists on one part; precomputes what does not depend on the lists.

    `counts` are the training interactions of each item, `groups` flags over the items besides
    "head" and "tail", `active` flags of the users with the longest histories (default: those
    among these users), `units` item vectors for "diversity".
    """

    def __init__(
        self,
        history: Interactions,
        target: Interactions,
        counts: npt.NDArray[Any],
        metrics: Sequence[tuple[Named, int]],
        *,
        protocol: str,
        groups: Mapping[str, Flags] | None = None,
        active: Flags | None = None,
        units: Vectors | None = None,
    ) -> None:
        self.history, self.target, self.counts, self.metrics = history, target, counts, metrics
        self.recall_form = recall_form(protocol)
        self.bases = {named.base for named, _ in metrics}
        self.ks = sorted({k for _, k in metrics})
        head = formulas.head_items(counts)
        known = np.asarray(counts) > 0
        slices = {"head": head, "tail": ~head, "new": ~known, "known": known}
        self.groups: dict[str, Flags] = {**slices, **(groups or {})}
        self.units, self._active_flags = units, active

    @classmethod
    def of(
        cls, part: Part | GivenPart, counts: npt.NDArray[Any], names: Iterable[str]
    ) -> ListMetrics:
        """Prepare metrics such as "ndcg@20" on a part; raise if one has no targets."""
        metrics = [at_cutoff(name) for name in names]
        out = cls(part.history, part.target, counts, metrics, protocol=part.protocol)
        for named, _ in metrics:
            group = out.groups.get(named.slice)
            if group is not None and not group[part.target.matrix.indices].any():
                problem = f"no target of the {part.name} part is in the {named.slice}"
                raise DataError(f"{problem}; choose another metric")
        return out

    def measure(self, lists: Lists) -> dict[str, float]:
        """Return the value of each metric on the lists of all users, as `evaluate` does."""
        return self.means(*self.per_user([lists]))

    def means(self, per_user: Mapping[str, Floats], exposure: Exposure) -> dict[str, float]:
        """Return the value of each metric, from what `per_user` returns."""
        means = summaries(self.metrics, per_user, exposure, self.target.n_users)
        return {named.at(k): value for (named, k), (value, _) in means}

    def per_user(self, batches: Iterable[Lists]) -> tuple[dict[str, Floats], Exposure]:
        """Return values per user by name, and exposures for aggregate metrics.

        `batches` are the lists of all users, in consecutive groups.
        """
        hits: list[formulas.Hits] = []
        means: dict[str, list[Floats]] = defaultdict(list)
        n_items = len(self.counts)
        shown_at = {k for named, k in self.metrics if named.base in AGGREGATE}
        exposure = {k: np.zeros(n_items, np.int64) for k in shown_at}
        start, matrix = 0, self.target.matrix
        for lists in batches:
            stop = start + len(lists)
            rows = matrix if len(lists) == matrix.shape[0] else matrix[start:stop]
            start = stop
            hits.append(formulas.find_hits(lists, rows))
            for k in exposure:
                exposure[k] += formulas.exposure(lists, k, n_items)
            if self.bases & {"popularity", "lift"}:
                means["popularity"].append(formulas.list_mean(lists, self.counts, self.ks))
            if "new_share" in self.bases:
                is_new = np.asarray(self.counts) == 0
                means["new_share"].append(formulas.list_mean(lists, is_new, self.ks))
            if "novelty" in self.bases:
                means["novelty"].append(formulas.list_mean(lists, self._surprise, self.ks))
            if self.units is not None:
                columns = [formulas.diversity(lists, self.units, k) for k in self.ks]
                means["diversity"].append(np.stack(columns, axis=1))
        per_list = {name: np.concatenate(parts) for name, parts in means.items()}
        if "lift" in self.bases:
            in_history = formulas.row_mean(self.history.matrix, self.counts)
            per_list["lift"] = formulas.popularity_lift(
                per_list["popularity"], in_history[:, None]
            )
        return self._values(formulas.join_hits(hits, self.target.matrix), per_list), exposure

    def _values(self, hits: formulas.Hits, per_list: Mapping[str, Floats]) -> dict[str, Floats]:
        of_slice = {"all": hits, "unbiased": hits, **dict.fromkeys(USER_SLICES, hits)}
        out: dict[str, Floats] = {}
        for named, k in self.metrics:
            if named.base in AGGREGATE:
                continue
            if named.slice not in of_slice:
                of_slice[named.slice] = hits.within(self.groups[named.slice])
            base = self.recall_form if named.base == "recall" else named.base
            if named.slice == "unbiased":
                values = UNBIASED[named.base](hits, k, self._propensities)
            elif base in per_list:
                values = per_list[base][:, self.ks.index(k)]
            else:
                values = ACCURACY[base](of_slice[named.slice], k)
            if named.slice in USER_SLICES:
                values = np.where(self._active == (named.slice == "active"), values, np.nan)
            out[named.at(k)] = values
        return out

    @cached_property
    def _propensities(self) -> Floats:
        return formulas.propensities(self.counts)

    @cached_property
    def _surprise(self) -> Floats:
        return formulas.self_information(self.counts)

    @cached_property
    def _active(self) -> Flags:
        """Flags of the users with the longest histories."""
        if self._active_flags is not None:
            return self._active_flags
        return active_users(self.history.users, self.history.user_counts)


def as_cutoffs(k: int | Iterable[int]) -> tuple[int, ...]:
    """Return the cut-offs in ascending order, each once."""
    listed = list(k) if isinstance(k, Iterable) and not isinstance(k, (str, bytes)) else [k]
    if not listed:
        raise SettingError("k is empty; give at least one cut-off")
    return tuple(sorted({cutoff("k", value) for value in listed}))


def checked_part(part: Any) -> Part | GivenPart:
    """Return a part with histories and targets of the same users, or raise."""
    if isinstance(part, tuple):
        if len(part) != 2 or not all(isinstance(side, Interactions) for side in part):
            raise SettingError("a pair must be (history, target), both Interactions")
        part = GivenPart(*part)
    if not all(hasattr(part, name) for name in ("history", "target", "protocol", "name")):
        kind = type(part).__name__
        raise SettingError(f"evaluate needs split.test, split.valid or a pair, got {kind}")
    checked: Part | GivenPart = part
    history, target = checked.history, checked.target
    if not history.user_index.same_as(target.user_index):
        raise DataError(
            f"history ({history.n_users} users) and target ({target.n_users} users) must hold the "
            "same users in the same order; select them from both by id"
        )
    if not history.n_users:
        raise DataError("the part has no users; make a larger one")
    untested = target.users[target.user_counts == 0]
    if len(untested):
        raise DataError(
            f"{len(untested):,} of {target.n_users:,} users have no target ({some(untested)}); "
            "keep the others with .rows(target.user_counts > 0) on history and target"
        )
    return checked


def _model_items(model: Rankable) -> IdIndex:
    """Return the model's items; raise if the model is not fitted."""
    try:
        items = model.item_index_
    except NotFittedError:
        raise
    except AttributeError as error:
        raise NotFittedError(
            f"{type(model).__name__} has no item_index_; evaluate needs a fitted model"
        ) from error
    if len(model.item_counts_) != len(items):
        raise DataError(f"the model has {len(model.item_counts_)} counts for {len(items)} items")
    return items


def _align(part: Part | GivenPart, items: IdIndex) -> tuple[Interactions, Interactions]:
    """Return history and target over the model's items; raise for unknown items."""
    for side, data in (("targets", part.target), ("histories", part.history)):
        if not data.item_index.same_as(items):
            check_known(side, data.items, data.item_counts, items)
    return part.history.with_items(items), part.target.with_items(items)


def check_known(
    side: str, items: npt.NDArray[Any], counts: npt.NDArray[Any], known: IdIndex
) -> None:
    """Raise if histories or targets have items that the model does not know."""
    used = items[counts > 0]
    missing = used[known.positions(used, unknown="skip") < 0]
    if not len(missing):
        return
    reason = f"the model does not know {len(missing):,} of {len(used):,} items"
    if len(missing) == len(used):
        reason = "the model was fitted on other items"
    raise UnknownIdError(
        f"{reason} in the {side} ({some(missing)}); fit it on the train part of the same "
        "split, or leave them out with .with_items(model.item_index_, unknown_items='skip')"
    )


def _group_flags(
    groups: Mapping[str, Any], part_items: npt.NDArray[Any], items: IdIndex
) -> dict[str, Flags]:
    """Return each group as flags over the model's items."""
    reserved = {*known(), *ITEM_SLICES, *USER_SLICES, "all", "unbiased"}
    out: dict[str, Flags] = {}
    for name, members in groups.items():
        if not isinstance(name, str) or not name.isidentifier() or name in reserved:
            raise SettingError(f"a group cannot be called {name!r}; choose another word")
        listed = as_list(members)
        if listed and all(isinstance(member, (bool, np.bool_)) for member in listed):
            if len(listed) != len(part_items):
                sizes = f"{len(listed)} flags for {len(part_items)} items"
                raise DataError(f"group {name!r} has {sizes}; give one flag per item of the part")
            places = items.positions(part_items[np.array(listed)], unknown="skip")
        else:
            places = items.positions(listed)
        out[name] = np.zeros(len(items), bool)
        out[name][places[places >= 0]] = True
    return out


def _units(vectors: Any, items: IdIndex) -> Vectors:
    """Return the item vectors, scaled to length 1."""
    if vectors is None:
        raise SettingError("diversity needs item_vectors, such as the training Interactions")
    if isinstance(vectors, Interactions):
        vectors = vectors.with_items(items, unknown_items="skip").matrix.T
    units = formulas.unit_rows(vectors)
    if units.shape[0] != len(items):
        sizes = f"{units.shape[0]} rows for {len(items)} items"
        raise DataError(f"item_vectors has {sizes}; give one each")
    return units


def _rank_batches(
    question: Question,
    model: Any,
    history: Interactions,
    batch_size: int,
    seconds: dict[str, float],
    progress: Callable[[int, int], None] | None,
) -> Iterator[Lists]:
    """Yield the lists of each batch, adding the time to ``seconds["rank"]``."""
    for start in range(0, history.n_users, batch_size):
        stop = min(start + batch_size, history.n_users)
        is_all = stop - start == history.n_users
        rows = history if is_all else history.rows(np.arange(start, stop))
        began = time.perf_counter()
        lists = question.lists(model, rows)
        seconds["rank"] += time.perf_counter() - began
        yield lists
        if progress is not None:
            progress(stop, history.n_users)


def _checked_lists(ranked: Any, rows: Interactions, depth: int, n_items: int) -> Lists:
    """Return the first `depth` of each list; raise for NaN scores and repeated items."""
    lists = np.asarray(ranked.items)[:, :depth]
    if len(lists) != rows.n_users:
        raise DataError(f"the model ranked {len(lists)} lists for {rows.n_users} users")
    is_nan = np.isnan(np.asarray(ranked.scores)[:, :depth]) & (lists >= 0)
    if is_nan.any():
        users = rows.users[is_nan.any(axis=1)]
        raise DataError(
            f"the model scores NaN for {len(users):,} users ({some(users)}); look for NaN or "
            "infinite values in its weights"
        )
    ordered = np.sort(lists, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    if twice.any() or lists.max(initial=-1) >= n_items:
        fault = f"an item twice for {some(rows.users[twice])}" if twice.any() else "unknown items"
        raise DataError(f"the model ranks {fault}; each position must occur once, below {n_items}")
    return lists


def _intervals(
    per_user: Mapping[str, Floats], bootstrap: int, seed: int
) -> dict[str, tuple[float, float]]:
    if not per_user or not bootstrap:
        return {}
    low, high = bootstrap_interval(np.stack(list(per_user.values()), axis=1), bootstrap, seed)
    return dict(zip(per_user, zip(low.tolist(), high.tolist(), strict=True), strict=True))
