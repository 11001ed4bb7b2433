"""Session models: recommend the next item of a session from its clicks so far.

All three are closed forms of one ridge regression (`session_solver`); they differ in its rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, get_args

import numpy as np
import numpy.typing as npt

from equipoise import checks
from equipoise.errors import DataError, FileFormatError, SettingError, TooBigError
from equipoise.events import Events
from equipoise.ids import SHOWN, Unknown, as_list
from equipoise.interactions import Interactions
from equipoise.machine import free_memory, gigabytes
from equipoise.models.base import Recommender, SearchSpace, at_once, on_snapshot
from equipoise.models.histories import Request, parse_asked
from equipoise.models.recommendations import Recommendations
from equipoise.models.saving import restored_normalizer, sparse_arrays, sparse_from
from equipoise.models.session_solver import (
    DENSE_SHARE,
    Direction,
    OnDemand,
    RowNorm,
    SolvedRows,
    narrow,
    recency,
    regression,
    solve_all,
    time_weights,
)
from equipoise.normalize import NoNorm, Normalizer, Vector
from equipoise.ranking.device import OnDevice
from equipoise.ranking.ranker import Ranked
from equipoise.ranking.terms import Dense, Sparse, Term
from equipoise.solve.cg import System
from equipoise.solve.engine import move, plan
from equipoise.solve.gpu import DeviceMatrix
from equipoise.storage import Fields, Stored

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class SessionModel(Recommender):
    """Base of the session models; use `SLIS`, `SLIT` or `SLIST`.

    Attributes
    ----------
    normalizer_
        The normalizer with its numbers, where "auto" was asked for.
    system_
        The sparse matrices of C = M^-1 R; None after a dense solve.
    dense_
        C, n x n, after a dense solve; else None.
    weights_
        W = D_I^alpha C D_I^-alpha, dense; made on demand.
    """

    ordered: ClassVar[bool] = True

    l2: float = 10.0
    dropout: float = 0.0
    normalizer: Normalizer = field(default_factory=NoNorm)
    row_norm: RowNorm = "l1"
    decay_inference: float | None = 2.0
    decay_time: float | None = None
    repeats: bool = True

    normalizer_: Normalizer = field(init=False, repr=False)
    system_: System | None = field(init=False, repr=False)
    dense_: Any = field(init=False, repr=False)
    dtype_: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.non_negative("l2", self.l2)
        checks.fraction("dropout", self.dropout, one=False)
        if self.l2 == 0 and self.dropout == 0:
            raise SettingError("l2 and dropout must not both be 0; the solve needs a penalty")
        if not isinstance(self.normalizer, Normalizer):
            raise SettingError(f"normalizer must be a Normalizer, got {self.normalizer!r}")
        checks.choice("row_norm", self.row_norm, ("l1", "l2", None))
        if not isinstance(self.repeats, bool):
            raise SettingError(f"repeats must be True or False, got {self.repeats!r}")
        self._check_decay("decay_inference", "decay_time")

    def _check_decay(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and checks.number(name, value) <= 0:
                raise SettingError(f"{name} must be > 0, or None for no decay, got {value}")

    def _rows(self) -> dict[str, Any]:
        """Return the share of whole sessions in the objective, and how sessions are split."""
        return {"mix": 1.0, "decay": None, "direction": "sr"}

    def _fit(
        self,
        data: Interactions,
        *,
        device: str,
        engine: str,
        dtype: str,
        memory: str | float | None,
    ) -> None:
        if data.sequences is None:
            raise DataError(
                "a session model needs ordered clicks; read with session=, gap= or time="
            )
        checks.choice("engine", engine, ("auto", "sparse", "dense"))
        checks.choice("dtype", dtype, ("float32", "float64"))
        normalizer = self.normalizer.resolve(data)
        system = regression(
            data,
            normalizer.user_weights(data) * time_weights(data, self.decay_time),
            self._penalty(data, normalizer),
            row_norm=self.row_norm,
            **self._rows(),
        )
        if engine == "auto":
            # on a GPU one dense solve is cheaper, where there is something to solve
            share = DENSE_SHARE if device == "cpu" else 0.0
            engine = "dense" if system.inputs.nnz > share * data.n_items**2 else "sparse"
        logger.info("%s engine, %s entries", engine, f"{system.inputs.nnz:,}")
        solved = None
        if engine == "dense":
            where = "dense" if device == "cpu" else "gpu"
            plan(data, dtype=dtype, memory=memory, engine=where, device=device).require()
            solved = solve_all(system, dtype, device)
        self.interactions_, self.normalizer_, self.dtype_ = data, normalizer, dtype
        self._take(system if solved is None else None, solved)

    def _take(self, system: System | None, dense: Any) -> None:
        self.system_, self.dense_ = system, dense
        if system is not None:
            self._solved = SolvedRows(system, self.dtype_)
            self._values = system.right.data.astype(self.dtype_)

    def _penalty(self, data: Interactions, normalizer: Normalizer) -> Vector:
        # L = l2 I + p/(1-p) D_I, D_I from whole sessions
        odds = self.dropout / (1 - self.dropout)
        penalty = self.l2 * normalizer.penalty_scale(data.n_items) + odds * data.item_counts
        return np.where(penalty > 0, penalty, 1.0)

    @at_once
    def to(self, device: str) -> Self:
        """Move a dense C to the memory of the machine ("cpu") or of a GPU, and return self."""
        self.interactions_ = self._fitted
        if self.dense_ is not None:
            self.dense_ = move(self.dense_, device, zero_diagonal=False)
        return self

    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return W = D_I^alpha C D_I^-alpha as one term; its diagonal stays."""
        source, target = self.normalizer_.item_scales(self.item_counts_, alpha)
        if isinstance(self.dense_, DeviceMatrix):
            return [OnDevice(self.dense_, source, target)]
        if self.dense_ is not None:
            return [Dense(self.dense_, source, target, zero_diagonal=False)]
        assert self.system_ is not None
        if self.system_.inputs.nnz:
            return [OnDemand(self._solved, source, target)]
        # M is diagonal: C is R with its rows divided, and nothing is to be solved
        R, values = self.system_.right, self._values
        source = source / self.system_.diagonal
        return [Sparse(values, R.indices, R.indptr, source, target, zero_diagonal=False)]

    @property
    def weights_(self) -> npt.NDArray[Any]:
        """The scoring matrix W, items x items, dense."""
        n_items = len(self.item_index_)
        needed = 3 * n_items**2 * np.dtype(self.dtype_).itemsize
        if needed > free_memory():
            raise TooBigError(f"weights_ needs {gigabytes(needed)}; recommend works without it")
        source, target = self.normalizer_.item_scales(self.item_counts_)
        if self.dense_ is not None:
            C = move(self.dense_, "cpu")
        else:
            assert self.system_ is not None
            C = self.system_.rows(np.arange(n_items), self.dtype_)
        return np.asarray(source[:, None] * C * target, self.dtype_)

    @property
    def _hides_seen(self) -> bool:
        return not self.repeats

    def _request(self, wanted: Any, unknown: Unknown) -> Request:
        """Return session ids, lists of clicks or Interactions as rows over the model's items.

        Interactions without an order of events give their weights as they are.
        """
        train, asked = self._fitted, parse_asked(wanted, self._fitted, unknown)
        if isinstance(asked.source, Interactions):
            data = asked.source.with_items(train.item_index, unknown=unknown)
            if data.sequences is None:
                return Request(asked.users, asked.kind, data.matrix, asked.answered)
            clicks, given = data.sequences, asked.source.sequences
            assert given is not None
            _warn_of_skipped(len(given.items) - len(clicks.items), [])
        elif isinstance(asked.source, np.ndarray):
            assert train.sequences is not None
            clicks = train.sequences.take(asked.source)
        else:
            clicks = _clicks(asked.source, train, unknown)
        rows = recency(clicks, train.n_items, self.decay_inference)
        return Request(asked.users, asked.kind, rows, asked.answered)

    @on_snapshot
    def rank(
        self,
        history: Interactions,
        k: int,
        *,
        exclude_seen: bool = False,
        alpha: float | None = None,
        threads: int | None = None,
    ) -> Ranked:
        """Rank items for the rows of `history`, by position; what `evaluate` works from."""
        return super().rank(history, k, exclude_seen=exclude_seen, alpha=alpha, threads=threads)

    @on_snapshot
    def recommend(
        self,
        users_or_histories: Any = None,
        k: int = 20,
        *,
        session: Any = None,
        exclude_seen: bool | None = None,
        exclude: Any = None,
        candidates: Any = None,
        alpha: float | None = None,
        unknown: Unknown = "error",
        threads: int | None = None,
    ) -> Recommendations:
        """Return the k best next items for each session, as raw ids.

        Parameters
        ----------
        users_or_histories
            As for other models, except that the order of the clicks and their repeats count.
        session
            One session, a list of item ids in the order of the clicks; in place of the above.
        exclude_seen
            Leave out the items of the session; if not given, only where `repeats` is False.
        unknown
            Ids the model does not know are an error, or skipped with "skip": the log names them,
            and the clicks around them move together.
        k, exclude, candidates, alpha, threads
            As for other models.
        """
        if (session is None) == (users_or_histories is None):
            raise SettingError("give either session=[...] or users or histories")
        return super().recommend(
            users_or_histories if session is None else [as_list(session)],
            k,
            exclude_seen=exclude_seen,
            exclude=exclude,
            candidates=candidates,
            alpha=alpha,
            unknown=unknown,
            threads=threads,
        )

    def _state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        state = {"normalizer": self.normalizer_, "dtype": self.dtype_}
        if self.dense_ is not None:
            return state, {"dense": self.dense_}
        assert self.system_ is not None
        arrays = {"diagonal": self.system_.diagonal}
        for name in ("inputs", "targets", "right"):
            arrays |= sparse_arrays(getattr(self.system_, name), name)
        return {**state, "rows": self.system_.inputs.shape[0]}, arrays

    def _restore(self, state: Fields, stored: Stored) -> None:
        n_items = len(self.item_index_)
        if self.interactions_.sequences is None:
            raise FileFormatError("its sessions have no events")
        self.normalizer_ = restored_normalizer(state, self.interactions_)
        self.dtype_ = state.text("dtype", ("float32", "float64"))
        if "rows" not in state:
            dense = stored.mapped("dense", (n_items, n_items))
            if dense.dtype != self.dtype_:
                raise FileFormatError(f"its matrix is {dense.dtype}, not {self.dtype_}")
            self._take(None, dense)
            return
        rows = state.whole("rows")
        shapes = {"inputs": rows, "targets": rows, "right": n_items}
        parts = {name: narrow(sparse_from(stored, name, n_items, n)) for name, n in shapes.items()}
        diagonal = np.array(stored.finite("diagonal", (n_items,), sizes=(8,)))
        if not (diagonal > 0).all():
            raise FileFormatError("its diagonal is not positive")
        self._take(System(parts["inputs"], parts["targets"], diagonal, parts["right"]), None)


def _clicks(sessions: list[Any], train: Interactions, unknown: Unknown) -> Events:
    """Return the clicks of each session in their order, repeats included."""
    rows, skipped = [], []
    for listed in sessions:
        clicks = as_list(listed)
        place = train.item_index.positions(clicks, unknown=unknown)
        skipped += [clicks[at] for at in np.flatnonzero(place < 0)]
        rows.append(place[place >= 0])
    _warn_of_skipped(len(skipped), skipped)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Events(np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int32), offsets)


def _warn_of_skipped(count: int, items: list[Any]) -> None:
    if count:
        shown = ", ".join(repr(item) for item in items[:SHOWN])
        named = f": {shown}{', ...' if count > SHOWN else ''}" if items else ""
        clicks = f"{count:,} clicks on items" if count > 1 else "a click on an item"
        logger.warning("skipped %s the model does not know%s", clicks, named)


SEARCHED = {"l2": (1.0, 10.0, 100.0), "decay_inference": (1.0, 2.0, 4.0)}


@dataclass(kw_only=True, eq=False)
class SLIS(SessionModel):
    """Items that occur in the same session, whatever their order.

    Minimises sum_s w_s ||x_s - n_s C||^2 + tr(C^T L C) over the sessions s: x_s has a 1 for each
    item, n_s is x_s scaled by `row_norm`, and L = l2*I + dropout/(1-dropout)*D_I. With a
    normalizer w_s = d_s^-beta for d_s distinct items, and scores use D_I^alpha C D_I^-alpha. The
    diagonal is free, so an item can raise its own score.

    Parameters
    ----------
    l2
        lambda, the ridge penalty; 1 to 100.
    dropout
        p, penalises popular items in proportion; 0 to 0.9.
    normalizer
        How sessions and items are weighted, such as `DAN(alpha, beta)`.
    row_norm
        Inputs are scaled to sum 1 ("l1") or length 1 ("l2"), which discounts long sessions; None
        leaves them.
    decay_inference
        d_inf, in clicks: the click n before the last one counts exp(-n / d_inf); None: no decay.
    decay_time
        d_time, in days: a session this much older than the latest counts exp(-1); None: no decay.
    repeats
        Whether items of the session may be recommended again.

    References
    ----------
    Choi et al., "Session-aware Linear Item-Item Models for Session-based Recommendation", WWW
    2021.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> items = ["tea", "milk", "tea", "milk", "tea"]
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2, 2], "item": items})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.SLIS(l2=1.0).fit(data).recommend(session=["tea"], k=2).items
    [['milk', 'tea']]
    """

    search_space: ClassVar[SearchSpace] = {**SEARCHED, "dropout": (0.0, 0.3, 0.6)}


@dataclass(kw_only=True, eq=False)
class SLIT(SessionModel):
    """Items that come after one another, the next one most.

    Minimises sum_t w_t ||f_t - p_t C||^2 + tr(C^T L C) over the splits of all sessions: f_t holds
    the clicks after t, click q weighed by exp(-(q - t - 1) / decay_position), and p_t the past.
    With `direction` "sr" the past is the last click alone; then the matrix to invert is diagonal
    and nothing is solved.

    Parameters
    ----------
    decay_position
        d_pos, in clicks: how fast the weight falls with the distance; None: not at all.
    direction
        The past: "sr" the last click, "part" all clicks so far, decayed; "all" has the whole
        session on both sides, decayed by the distance to the split.
    l2, dropout, normalizer, row_norm, decay_inference, decay_time, repeats
        As for `SLIS`; the weight d_s^-beta of a session is that of all its splits.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2], "item": ["tea", "milk", "milk", "cake"]})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.SLIT(l2=1.0).fit(data).recommend(session=["tea", "milk"], k=1).items
    [['cake']]
    """

    search_space: ClassVar[SearchSpace] = {
        **SEARCHED,
        "decay_position": (0.5, 1.0, 2.0, 4.0),
    }

    decay_position: float | None = 1.0
    direction: Direction = "sr"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_decay("decay_position")
        checks.choice("direction", self.direction, get_args(Direction))

    def _rows(self) -> dict[str, Any]:
        return {"mix": 0.0, "decay": self.decay_position, "direction": self.direction}


@dataclass(kw_only=True, eq=False)
class SLIST(SLIT):
    """SLIS and SLIT in one closed form.

    Minimises `mix` times the objective of `SLIS` plus ``1 - mix`` times that of `SLIT`, with one
    penalty: M = a Xn^T W Xn + (1-a) Sn^T W' Sn + L and C = M^-1 (a Xn^T W X + (1-a) Sn^T W' T).

    Parameters
    ----------
    mix
        a, the share of whole sessions: 1 is SLIS, 0 is SLIT.
    l2, dropout, normalizer, row_norm, decay_inference, decay_time, repeats
        As for `SLIS`.
    decay_position, direction
        As for `SLIT`.

    Examples
    --------
    >>> import equipoise as eq
    >>> import polars as pl
    >>> clicks = pl.DataFrame({"visit": [1, 1, 2, 2], "item": ["tea", "milk", "milk", "cake"]})
    >>> data = eq.read(clicks, session="visit")
    >>> eq.SLIST(l2=1.0, mix=0.3).fit(data).recommend(session=["milk"], k=2).items
    [['cake', 'milk']]
    """

    search_space: ClassVar[SearchSpace] = {
        **SEARCHED,
        "decay_position": (0.5, 1.0, 2.0),
        "mix": (0.2, 0.4, 0.6, 0.8),
    }

    mix: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction("mix", self.mix)

    def _rows(self) -> dict[str, Any]:
        return {**super()._rows(), "mix": self.mix}
