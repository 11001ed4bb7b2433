"""What `evaluate` takes in, and the checks that refuse it with a reason.

Evaluate a model on a part of a split: one pass over the users, all metrics at all cut-offs.
"""

from __future__ import annotations

import hashlib
import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

import equipoise
from equipoise import metrics as formulas
from equipoise.errors import DataError, NotFittedError, SettingError, UnknownIdError
from equipoise.ids import SHOWN, IdIndex, as_list
from equipoise.interactions import Interactions
from equipoise.machine import limited
from equipoise.metrics.beyond_accuracy import Vectors, unit_rows
from equipoise.metrics.named import (
    AGGREGATE,
    ITEM_SLICES,
    USER_SLICES,
    Named,
    Observed,
    known,
    parse,
    per_user,
)
from equipoise.metrics.resampling import bootstrap_interval
from equipoise.results import SCHEMA, Result


class RankedLists(Protocol):
    """Ranked lists of several users."""

    @property
    def items(self) -> npt.NDArray[np.int32]:
        """Item positions (m, k), best first, padded with -1 at the end."""

    @property
    def scores(self) -> npt.NDArray[Any]:
        """Score of each item, (m, k)."""


class Rankable(Protocol):
    """What `evaluate` asks of a fitted model."""

    @property
    def item_index_(self) -> IdIndex:
        """The model's items."""

    @property
    def item_counts_(self) -> npt.NDArray[Any]:
        """Training interactions of each item."""

    @property
    def data_fingerprint_(self) -> str:
        """Of the training data."""

    def rank(self, history: Interactions, k: int, *, exclude_seen: bool = True) -> RankedLists:
        """Return the k best items of each row, as positions in the model's items.

        An empty row is ranked as the model recommends to it.
        """

    def settings(self) -> dict[str, Any]:
        """Return "name" and the hyper-parameters as plain values."""


class PartLike(Protocol):
    """A part of a split."""

    @property
    def history(self) -> Interactions:
        """What the model may see."""

    @property
    def target(self) -> Interactions:
        """What is to be found, row by row for the same users."""

    @property
    def protocol(self) -> str:
        """How it was split off, such as "strong"."""

    @property
    def name(self) -> str:
        """Which part it is, "valid" or "test"."""

    @property
    def fingerprint(self) -> str:
        """Digits that change when any pair does."""


@dataclass(frozen=True)
class Pair:
    """A part that was given as (history, target)."""

    history: Interactions
    target: Interactions
    protocol: str = "given"
    name: str = "test"

    @property
    def fingerprint(self) -> str:
        """The same twelve hex digits as those of a part that holds this pair."""
        both = f"{self.history.fingerprint} {self.target.fingerprint}"
        return hashlib.sha256(both.encode()).hexdigest()[:12]


def as_part(part: PartLike | tuple[Interactions, Interactions]) -> PartLike:
    """Return a part whose histories and targets belong to the same users."""
    if isinstance(part, tuple):
        if len(part) != 2 or not all(isinstance(side, Interactions) for side in part):
            raise SettingError("a pair must be (history, target), both Interactions")
        part = Pair(*part)
    if not all(hasattr(part, name) for name in ("history", "target", "protocol", "fingerprint")):
        kind = type(part).__name__
        raise SettingError(f"evaluate needs split.test, split.valid or a pair, got {kind}")
    history, target = part.history, part.target
    if not history.user_index.same_as(target.user_index):
        raise DataError(
            f"history ({history.n_users} users) and target ({target.n_users} users) must hold the "
            "same users in the same order; select them from both by id"
        )
    if not history.n_users:
        raise DataError("the part has no users; split off a larger one")
    bare = target.users[target.user_counts == 0]
    if len(bare):
        raise DataError(
            f"{len(bare):,} of {target.n_users:,} users have no target ({_some(bare)}); keep the "
            "others with .rows(target.user_counts > 0) on history and target"
        )
    return part


def as_cutoffs(k: int | Iterable[int]) -> tuple[int, ...]:
    """Return the cut-offs in ascending order, each once."""
    listed = list(k) if isinstance(k, Iterable) and not isinstance(k, (str, bytes)) else [k]
    if not listed:
        raise SettingError("k is empty; give at least one cut-off")
    return tuple(sorted({as_count(one, "k", 1) for one in listed}))


def as_count(value: Any, name: str, least: int) -> int:
    """Return a whole number that is at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.bool_)):
        raise SettingError(f"{name} must be a whole number, got {value!r}")
    if number < least:
        raise SettingError(f"{name} must be >= {least}, got {number}")
    return number


def model_items(model: Rankable) -> IdIndex:
    """Return the model's items; a model that is not fitted has none."""
    try:
        items = model.item_index_
    except NotFittedError:
        raise
    except AttributeError as error:
        kind = type(model).__name__
        raise NotFittedError(
            f"{kind} has no item_index_; evaluate needs a fitted model"
        ) from error
    if len(model.item_counts_) != len(items):
        raise DataError(f"the model has {len(model.item_counts_)} counts for {len(items)} items")
    return items


def align(part: PartLike, items: IdIndex) -> tuple[Interactions, Interactions]:
    """Return history and target over the model's items; unknown ones are refused."""
    for side, data in (("targets", part.target), ("histories", part.history)):
        if data.item_index.same_as(items):
            continue
        used = data.items[data.item_counts > 0]
        missing = used[items.positions(used, unknown="skip") < 0]
        if not len(missing):
            continue
        if len(missing) == len(used):
            reason = "the model was fitted on other items"
        else:
            reason = f"the model does not know {len(missing):,} of {len(used):,} items"
        raise UnknownIdError(
            f"{reason} in the {side} ({_some(missing)}); fit it on the train part of the same "
            "split, or leave them out with .with_items(model.item_index_, unknown='skip')"
        )
    return part.history.with_items(items), part.target.with_items(items)


def as_groups(
    groups: Mapping[str, Any] | None, target: Interactions, items: IdIndex
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return each group as flags over the model's items."""
    taken = {*known(), *ITEM_SLICES, *USER_SLICES, "all", "unbiased"}
    out: dict[str, npt.NDArray[np.bool_]] = {}
    for name, members in (groups or {}).items():
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise SettingError(f"a group cannot be called {name!r}; choose another word")
        listed = as_list(members)
        if listed and all(isinstance(each, (bool, np.bool_)) for each in listed):
            if len(listed) != target.n_items:
                sizes = f"{len(listed)} flags for {target.n_items} items"
                raise DataError(f"group {name!r} has {sizes}; give one flag per item of the part")
            places = items.positions(target.items[np.array(listed)], unknown="skip")
        else:
            places = items.positions(listed)
        out[name] = np.zeros(len(items), bool)
        out[name][places[places >= 0]] = True
    return out


def as_vectors(vectors: Any, items: IdIndex, bases: set[str]) -> Vectors | None:
    """Return item vectors of length 1 where diversity was asked for."""
    if "diversity" not in bases:
        return None
    if vectors is None:
        raise SettingError("diversity needs item_vectors, such as the training Interactions")
    if isinstance(vectors, Interactions):
        vectors = vectors.with_items(items, unknown="skip").matrix.T
    units = unit_rows(vectors)
    if units.shape[0] != len(items):
        raise DataError(f"item_vectors has {units.shape[0]} rows for {len(items)} items")
    return units


def checked_lists(
    ranked: RankedLists, rows: Interactions, depth: int, n_items: int
) -> npt.NDArray[np.int32]:
    """Return the first `depth` of each list; scores that are NaN have no order and are refused."""
    lists = np.asarray(ranked.items)[:, :depth]
    if len(lists) != rows.n_users:
        raise DataError(f"the model ranked {len(lists)} lists for {rows.n_users} users")
    wrong = np.isnan(np.asarray(ranked.scores)[:, :depth]) & (lists >= 0)
    if wrong.any():
        users = rows.users[wrong.any(axis=1)]
        raise DataError(
            f"the model scores NaN for {len(users):,} users ({_some(users)}), which has no order; "
            "look for NaN or infinite values in its weights"
        )
    ordered = np.sort(lists, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    if twice.any() or lists.max(initial=-1) >= n_items:
        fault = f"an item twice for {_some(rows.users[twice])}" if twice.any() else "unknown items"
        raise DataError(f"the model ranks {fault}; each position must occur once, below {n_items}")
    return lists


def _some(ids: npt.NDArray[Any]) -> str:
    named = ", ".join(repr(value) for value in ids[:SHOWN].tolist())
    return named + (", ..." if len(ids) > SHOWN else "")


__all__ = ["Rankable", "Result", "evaluate"]

Flags = npt.NDArray[np.bool_]


Floats = npt.NDArray[np.float64]


log = logging.getLogger(__name__)


def evaluate(
    model: Rankable,
    part: PartLike | tuple[Interactions, Interactions],
    k: int | Iterable[int] = 20,
    *,
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
    the numbers published under it do; "recall_capped" and "recall_full" name one form in any
    protocol. Every definition is in `Result.definitions` and in docs/metrics.md. A user with an
    empty history is judged by the list `recommend` would give, which is that of popularity.

    Parameters
    ----------
    model
        Fitted; anything with the few names of `Rankable`.
    part
        ``split.test``, ``split.valid``, or a pair (history, target) with the same users.
    k
        One or more cut-offs.
    metrics
        Names without cut-off; left out: recall, ndcg, mrr, map, precision and hit; recall and
        ndcg by slice; coverage, gini, popularity, novelty, lift. A name may carry a slice:
        "tail_mrr", "active_map". "diversity" needs `item_vectors`.
    groups
        More groups of items by name, each a mask over the items of the part or a list of ids.
    item_vectors
        For "diversity": the training `Interactions` (an item's vector is its column), or a row per
        item of the model.
    exclude_seen
        Keep items of the history out of the lists; left out: yes, except for sessions, where
        people come back to an item.
    batch_size
        Users ranked at a time; has no effect on the numbers.
    bootstrap
        Resamples behind the 95% intervals; 0 for none.
    seed
        Of the resamples.
    threads
        At most this many; all if left out.
    tuned_on_test
        Say so if settings were chosen on this part; the result is then labelled.
    name
        Of the model in tables; left out: its `label`, or the name of its class.
    progress
        Called with the number of users done and of all users after every batch.

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
    ks = as_cutoffs(k)
    given = as_part(part)
    as_count(batch_size, "batch_size", 1)
    as_count(bootstrap, "bootstrap", 0)
    wanted = parse(metrics, groups or ())
    items = model_items(model)
    history, target = align(given, items)
    if exclude_seen is None:
        exclude_seen = given.protocol != "session"
    bases = {named.base for named in wanted}
    walk = _Pass(ks, model.item_counts_, bases, as_vectors(item_vectors, items, bases))
    recall_form = "recall_full" if given.protocol == "weak" else "recall_capped"
    with limited(threads):
        walk.run(model, history, target, exclude_seen, batch_size, progress)
        started = time.perf_counter()
        seen = walk.observed(history, target, as_groups(groups, given.target, items))
        values = per_user(seen, wanted, ks, recall_form)
        walk.seconds["metrics"] += time.perf_counter() - started
        started = time.perf_counter()
        intervals = _intervals(values, bootstrap, seed)
        walk.seconds["bootstrap"] = time.perf_counter() - started
    log.info("evaluated %d users in %.1f s", history.n_users, sum(walk.seconds.values()))
    settings = model.settings()
    return Result(
        name=name or str(getattr(model, "label", type(model).__name__)),
        table=_table(wanted, ks, values, intervals, walk.exposure, history.n_users),
        per_user=_per_user_frame(history, values),
        k=ks,
        protocol=given.protocol,
        part=given.name,
        fingerprint=given.fingerprint,
        data_fingerprint=model.data_fingerprint_,
        n_users=history.n_users,
        n_items=len(items),
        exclude_seen=exclude_seen,
        settings=settings,
        definitions={named.name: named.definition(recall_form) for named in wanted},
        tuned_on_test=tuned_on_test,
        bootstrap=bootstrap,
        seed=seed,
        seconds=walk.seconds,
        version=equipoise.__version__,
    )


@dataclass
class _Pass:
    """One pass over the users in batches; keeps what the metrics need and drops the lists."""

    ks: tuple[int, ...]
    counts: npt.NDArray[Any]
    bases: set[str]
    units: Vectors | None
    hits: list[formulas.Hits] = field(default_factory=list)
    means: dict[str, list[Floats]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"rank": 0.0, "metrics": 0.0})

    def __post_init__(self) -> None:
        self.exposure = np.zeros((len(self.ks), len(self.counts)), np.int64)
        self.surprise = formulas.self_information(self.counts)

    def run(
        self,
        model: Rankable,
        history: Interactions,
        target: Interactions,
        exclude_seen: bool,
        batch_size: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        depth = min(self.ks[-1], len(self.counts))
        for start in range(0, history.n_users, batch_size):
            stop = min(start + batch_size, history.n_users)
            whole = stop - start == history.n_users
            rows = history if whole else history.rows(np.arange(start, stop))
            began = time.perf_counter()
            ranked = model.rank(rows, depth, exclude_seen=exclude_seen)
            ended = time.perf_counter()
            lists = checked_lists(ranked, rows, depth, len(self.counts))
            self._add(lists, target.matrix[start:stop])
            self.seconds["rank"] += ended - began
            self.seconds["metrics"] += time.perf_counter() - ended
            if progress is not None:
                progress(stop, history.n_users)

    def _add(self, lists: npt.NDArray[np.int32], target: Any) -> None:
        self.hits.append(formulas.find_hits(lists, target))
        if self.bases & set(AGGREGATE):
            for place, k in enumerate(self.ks):
                self.exposure[place] += formulas.exposure(lists, k, len(self.counts))
        if self.bases & {"popularity", "lift"}:
            self._keep("popularity", formulas.list_mean(lists, self.counts, self.ks))
        if "novelty" in self.bases:
            self._keep("novelty", formulas.list_mean(lists, self.surprise, self.ks))
        if self.units is not None:
            columns = [formulas.diversity(lists, self.units, k) for k in self.ks]
            self._keep("diversity", np.stack(columns, axis=1))

    def _keep(self, name: str, values: Floats) -> None:
        self.means.setdefault(name, []).append(values)

    def observed(
        self, history: Interactions, target: Interactions, groups: dict[str, Flags]
    ) -> Observed:
        per_list = {name: np.concatenate(parts) for name, parts in self.means.items()}
        if "lift" in self.bases:
            chosen = formulas.row_mean(history.matrix, self.counts)
            listed = per_list["popularity"].T
            columns = [formulas.popularity_lift(column, chosen) for column in listed]
            per_list["lift"] = np.stack(columns, axis=1)
        head = formulas.head_items(self.counts)
        return Observed(
            hits=formulas.join_hits(self.hits, target.matrix),
            groups={"head": head, "tail": ~head, **groups},
            users=_activity(history),
            rho=formulas.propensities(self.counts),
            per_list=per_list,
        )


def _activity(history: Interactions) -> dict[str, Flags]:
    """Flags of the ceil(m / 5) users with the longest histories, and of the rest.

    Ties go to the smaller id, so that the order of the rows does not matter.
    """
    by_id = np.argsort(history.users, kind="stable")
    order = by_id[np.argsort(-history.user_counts[by_id], kind="stable")]
    active = np.zeros(history.n_users, bool)
    active[order[: -(-history.n_users // 5)]] = True
    return {"active": active, "inactive": ~active}


def _intervals(
    values: Mapping[str, Floats], bootstrap: int, seed: int
) -> dict[str, tuple[float, float]]:
    if not values or not bootstrap:
        return {}
    low, high = bootstrap_interval(np.stack(list(values.values()), axis=1), bootstrap, seed)
    pairs = zip(low.tolist(), high.tolist(), strict=True)
    return dict(zip(values, pairs, strict=True))


def _table(
    wanted: Sequence[Named],
    ks: Sequence[int],
    values: Mapping[str, Floats],
    intervals: Mapping[str, tuple[float, float]],
    exposure: npt.NDArray[np.int64],
    n_users: int,
) -> pl.DataFrame:
    rows = []
    for named in wanted:
        for place, k in enumerate(ks):
            name = named.at(k)
            low, high = intervals.get(name, (None, None))
            if named.base in AGGREGATE:
                summary = {"coverage": formulas.coverage, "gini": formulas.exposure_gini}
                value, size = summary[named.base](exposure[place]), n_users
            else:
                defined = values[name][~np.isnan(values[name])]
                size = len(defined)
                value = float(defined.mean()) if size else math.nan
            rows.append((named.base, k, named.slice, value, low, high, size))
    frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    return frame.with_columns(pl.col("value", "low", "high").fill_nan(None))


def _per_user_frame(history: Interactions, values: Mapping[str, Floats]) -> pl.DataFrame:
    users = history.user_index.to_series().alias("user")
    frame = pl.DataFrame([users, *(pl.Series(name, column) for name, column in values.items())])
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))
