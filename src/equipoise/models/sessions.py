"""SLIS, SLIT and SLIST: linear models of sessions.

All three are closed forms of one ridge regression (`session_solver`); they differ in its rows.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, get_args

import numpy as np
import numpy.typing as npt

from equipoise import checks
from equipoise.automatic import Auto
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.data.signals import SETTINGS
from equipoise.data.storage import Fields, Stored
from equipoise.errors import FileFormatError, SettingError, TooBigError
from equipoise.models.base import SearchSpace, atomic, names_fit_options
from equipoise.models.histories import Request
from equipoise.models.saving import restore_normalizer, sparse_arrays, sparse_from
from equipoise.models.session_base import SessionModel
from equipoise.models.session_choice import CHOSEN, choose
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
from equipoise.models.settings import EXPONENTS
from equipoise.normalize import NoNorm, Normalizer, Vector, as_normalizer
from equipoise.ranking.device import OnDevice
from equipoise.ranking.ranker import Ranked
from equipoise.ranking.terms import Dense, Sparse, Term
from equipoise.runtime.machine import free_memory, gigabytes, limited
from equipoise.solve.cg import System
from equipoise.solve.engine import move
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.planning import DTYPES, Size, SolveOptions, plan_fit

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class SessionRegression(SessionModel):
    """Base of the regressions on sessions; use `SLIS`, `SLIT` or `SLIST`.

    Attributes
    ----------
    normalizer_
        The normalizer, with numbers in place of "auto".
    chosen_
        The settings chosen from the data if l2 is "auto"; else empty.
    system_
        The sparse matrices of C = M^-1 R; None after a dense solve.
    dense_
        C, n x n, after a dense solve; else None.
    weights_
        W = D_I^alpha C D_I^-alpha, dense; computed on demand.
    """

    _solve_settings: ClassVar[tuple[str, ...]] = (
        *SETTINGS,
        *("beta", "direction", "decay_position", "decay_time", "mix", "row_norm", "dropout", "l2"),
    )

    l2: float | Auto = 10.0
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
    chosen_: dict[str, Any] = field(init=False, repr=False, default_factory=dict)
    _solved: SolvedRows = field(init=False, repr=False)
    _values: npt.NDArray[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction("dropout", self.dropout, one=False)
        checks.check_penalty(self.l2, self.dropout)
        self.normalizer = as_normalizer(self.normalizer)
        checks.choice("row_norm", self.row_norm, ("l1", "l2", None))
        self._check_decays("decay_inference", "decay_time")

    def _rows(self) -> dict[str, Any]:
        """Return `mix`, `decay` and `direction` of the regression."""
        return {"mix": 1.0, "decay": None, "direction": "sr"}

    @names_fit_options
    def fit(
        self,
        interactions: Any,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        engine: str = "auto",
        memory: str | float | None = None,
        threads: int | None = None,
    ) -> Self:
        """Fit the model to interactions with ordered events, and return self.

        Parameters
        ----------
        interactions, device, dtype, memory, threads
            As for `LinearAutoencoder.fit`.
        engine
            "sparse" solves for an item when it is first clicked, "dense" for all items at once;
            "auto" takes the cheaper one.
        """
        options = SolveOptions(
            device=device, dtype=dtype, engine=engine, memory=memory, threads=threads
        )
        return self._fit_model(interactions, options)

    def _fit(self, data: Interactions, options: SolveOptions) -> None:
        self._events(data)
        device, dtype = options.device, options.dtype
        engine = checks.choice("engine", options.engine, ("auto", "sparse", "dense"))
        self.chosen_ = choose(self, data, options) if self.l2 == "auto" else {}
        normalizer = self.normalizer.resolve(data)
        system = regression(
            data,
            normalizer.user_weights(data) * time_weights(data, self.decay_time),
            self._penalty(data, normalizer),
            row_norm=self.row_norm,
            **self._rows(),
        )
        if engine == "auto":
            # on a GPU one dense solve is cheaper, if there is anything to solve
            share = DENSE_SHARE if device == "cpu" else 0.0
            engine = "dense" if system.inputs.nnz > share * data.n_items**2 else "sparse"
        logger.info("%s engine, %s entries", engine, f"{system.inputs.nnz:,}")
        solved = None
        if engine == "dense":
            solver = "dense" if device == "cpu" else "gpu"
            plan_fit(Size.of(data, dtype), dataclasses.replace(options, engine=solver)).require()
            solved = solve_all(system, dtype, device)
        self.interactions_, self.normalizer_, self.dtype_ = data, normalizer, dtype
        self._take(system if solved is None else None, solved)

    @atomic
    def reuse(self, fitted: SessionRegression) -> Self:
        """Fit by sharing the solve of another model, at no cost; solved rows are shared.

        `decay_inference`, `repeats` and alpha may differ, nothing else.
        """
        fitted = copy.copy(fitted)
        data = fitted._fitted
        normalizer = self.normalizer.resolve(data)
        if self._solve_key(normalizer) != fitted._solve_key(fitted.normalizer_) or not (
            np.array_equal(normalizer.user_weights(data), fitted.normalizer_.user_weights(data))
        ):
            raise SettingError(
                "reuse needs the same model; only alpha, decay_inference and repeats may differ"
            )
        self._raw_data = fitted._raw_data
        self.interactions_, self.normalizer_, self.dtype_ = data, normalizer, fitted.dtype_
        self.system_, self.dense_, self.chosen_ = fitted.system_, fitted.dense_, fitted.chosen_
        if self.system_ is not None:
            self._solved, self._values = fitted._solved, fitted._values
        return self

    def _solve_key(self, normalizer: Normalizer) -> list[Any]:
        """Return everything the solve depends on, except for the data."""
        settings = [getattr(self, name, None) for name in self._solve_settings]
        return [type(self), self.signals, normalizer.exponents()[1:], *settings]

    def _tunable(self) -> list[str]:
        """Return the settings, with the exponents of the normalizer in its place."""
        names = [name for name in super()._tunable() if name != "normalizer"]
        return names + [name for name in EXPONENTS if hasattr(self.normalizer, name)]

    def _search_start(self, data: Interactions) -> dict[str, Any]:
        normalizer = self.normalizer.resolve(data)
        return {
            name: getattr(self, name, getattr(normalizer, name, None)) for name in self._tunable()
        }

    def _search_point(self) -> dict[str, Any]:
        point = {name: getattr(self.normalizer_, name, None) for name in EXPONENTS}
        point |= self.settings(resolved=True)
        return {"family": type(self).__name__, **{name: point[name] for name in self._tunable()}}

    def _take(self, system: System | None, dense: Any) -> None:
        self.system_, self.dense_ = system, dense
        if system is not None:
            self._solved = SolvedRows(system, self.dtype_)
            self._values = system.right.data.astype(self.dtype_)

    def _solve_roughly(self) -> None:
        """Solve for rows with the precision that a comparison of settings needs."""
        if self.system_ is not None:
            self._take(dataclasses.replace(self.system_, rough=True), None)

    def _chosen(self, name: str) -> Any:
        """Return a setting, as chosen from the data if l2 is "auto"."""
        return self.chosen_.get(name, getattr(self, name))

    def settings(self, *, resolved: bool = False) -> dict[str, Any]:
        """Return the name and the hyper-parameters; with `resolved`, those that were chosen."""
        settings = super().settings(resolved=resolved)
        return settings | self.chosen_ if resolved else settings

    def _vary(self, settings: Mapping[str, Any]) -> Self:
        """Return an unfitted copy with other settings, and with l2=10 in place of "auto"."""
        return super()._vary(settings if self.l2 != "auto" else {"l2": 10.0, **settings})

    def _penalty(self, data: Interactions, normalizer: Normalizer) -> Vector:
        # L = l2 I + p/(1-p) D_I
        l2, dropout = self._chosen("l2"), self._chosen("dropout")
        odds = dropout / (1 - dropout)
        penalty = l2 * normalizer.penalty_scale(data.n_items) + odds * data.item_counts
        return np.where(penalty > 0, penalty, 1.0)

    @atomic
    def to(self, device: str) -> Self:
        """Move a dense C to the memory of the host ("cpu") or of a GPU, and return self."""
        self.interactions_ = self._fitted
        if self.dense_ is not None:
            self.dense_ = move(self.dense_, device, zero_diagonal=False)
        return self

    def _terms(self, alpha: float | None = None) -> list[Term]:
        """Return W = D_I^alpha C D_I^-alpha as one term, with its diagonal."""
        _ = self._fitted
        source, target = self.normalizer_.item_scales(self.item_counts_, alpha)
        if isinstance(self.dense_, DeviceMatrix):
            return [OnDevice(self.dense_, source, target)]
        if self.dense_ is not None:
            return [Dense(self.dense_, source, target, zero_diagonal=False)]
        assert self.system_ is not None
        if self.system_.inputs.nnz:
            return [OnDemand(self._solved, source, target)]
        # M is diagonal: C is R with its rows divided, and no solve is needed
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

    def _ranked(self, terms: Sequence[Term], request: Request, k: int, **options: Any) -> Ranked:
        """Rank in batches, for which the rows of C are solved first."""
        if not isinstance(terms[0], OnDemand):
            return super()._ranked(terms, request, k, **options)
        parts = []
        with limited(options.get("threads")):
            for rows in self._solved.batches(request.history):
                batch = request.take(rows)
                self._solved.prepare(batch.history.indices)
                parts.append((rows, super()._ranked(terms, batch, k, **options)))
        return Ranked.joined(parts)

    def _refit_options(self) -> SolveOptions:
        engine = "sparse" if self.dense_ is None else "dense"
        return SolveOptions(engine=engine, dtype=self.dtype_)

    def _weigh_events(self, events: Events) -> Any:
        """Return the weights of clicks, by their distance from the last one."""
        return recency(events, self._fitted.n_items, self._chosen("decay_inference"))

    def _state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        state: dict[str, Any] = {"normalizer": self.normalizer_, "dtype": self.dtype_}
        state |= {"chosen": self.chosen_} if self.chosen_ else {}
        if self.dense_ is not None:
            return state, {"dense": self.dense_}
        assert self.system_ is not None
        arrays = {"diagonal": self.system_.diagonal}
        for name in ("inputs", "targets", "right"):
            arrays |= sparse_arrays(getattr(self.system_, name), name)
        return {**state, "rows": self.system_.inputs.shape[0]}, arrays

    def _restore(self, state: Fields, stored: Stored) -> None:
        n_items = len(self.item_index_)
        if self.interactions_._sequences is None:
            raise FileFormatError("its sessions have no events")
        self.normalizer_ = restore_normalizer(state, self.interactions_)
        self.dtype_ = state.text("dtype", DTYPES)
        self.chosen_ = _restored_choice(self, state.group("chosen")) if "chosen" in state else {}
        if (self.l2 == "auto") != bool(self.chosen_):
            raise FileFormatError("its l2 and its chosen settings contradict each other")
        if "rows" not in state:
            dense = stored.mapped("dense", (n_items, n_items))
            if dense.dtype != self.dtype_:
                raise FileFormatError(f"its matrix is {dense.dtype}, not {self.dtype_}")
            self._take(None, dense)
            return
        rows = state.whole_number("rows")
        shapes = {"inputs": rows, "targets": rows, "right": n_items}
        parts = {name: narrow(sparse_from(stored, name, n_items, n)) for name, n in shapes.items()}
        diagonal = np.array(stored.finite("diagonal", (n_items,), sizes=(8,)))
        if not (diagonal > 0).all():
            raise FileFormatError("its diagonal is not positive")
        self._take(System(parts["inputs"], parts["targets"], diagonal, parts["right"]), None)


def _restored_choice(model: SessionRegression, saved: Fields) -> dict[str, Any]:
    chosen = {
        name: saved.text(name, get_args(Direction)) if name == "direction" else saved.number(name)
        for name in saved
    }
    names = {field.name for field in dataclasses.fields(model)}
    if not {"l2", "dropout", "decay_inference"} <= chosen.keys() <= CHOSEN & names:
        raise FileFormatError(f"its chosen settings are not those of {type(model).__name__}")
    model._vary(chosen)  # checks the values
    return chosen


SEARCHED = {"l2": (1.0, 10.0, 100.0), "decay_inference": (1.0, 2.0, 4.0, 8.0, 32.0)}


@dataclass(kw_only=True, eq=False)
class SLIS(SessionRegression):
    """Recommends items of the same sessions, whatever their order.

    Minimises sum_s w_s ||x_s - n_s C||^2 + tr(C^T L C) over the sessions s: x_s has a 1 for each
    item, n_s is x_s scaled by `row_norm`, and L = l2*I + dropout/(1-dropout)*D_I. With a
    normalizer w_s = d_s^-beta for d_s distinct items, and scores use D_I^alpha C D_I^-alpha. The
    diagonal is free, so an item can raise its own score.

    Parameters
    ----------
    l2
        lambda, the ridge penalty; 1 to 100. "auto" chooses it together with `dropout`,
        `decay_inference`, and `mix`, `decay_position` and `direction` if a model has them: by
        MRR@20 in the last sessions, which are held out, with up to 16 fits.
    dropout
        p, penalises popular items in proportion; 0 to 0.9.
    normalizer
        How sessions and items are weighted, such as `DAN(alpha, beta)`, or its name: "dan".
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
class SLIT(SessionRegression):
    """Recommends items that follow one another in sessions, the next one most.

    Minimises sum_t w_t ||f_t - p_t C||^2 + tr(C^T L C) over the splits of all sessions: f_t holds
    the clicks after t, click q weighed by exp(-(q - t - 1) / decay_position), and p_t the past.
    With `direction` "sr" the past is the last click alone; then M is diagonal and no solve is
    needed.

    Parameters
    ----------
    decay_position
        d_pos, in clicks: decay of the weight with the distance; None: no decay.
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
        self._check_decays("decay_position")
        checks.choice("direction", self.direction, get_args(Direction))

    def _rows(self) -> dict[str, Any]:
        decay, direction = self._chosen("decay_position"), self._chosen("direction")
        return {"mix": 0.0, "decay": decay, "direction": direction}


@dataclass(kw_only=True, eq=False)
class SLIST(SLIT):
    """SLIS and SLIT in one closed form.

    Minimises `mix` times the objective of `SLIS` plus ``1 - mix`` times that of `SLIT`, with one
    penalty: M = a Xn^T W Xn + (1-a) Sn^T W' Sn + L and C = M^-1 (a Xn^T W X + (1-a) Sn^T W' T).

    Parameters
    ----------
    mix
        a, the share of whole sessions: 1 is SLIS, 0 is SLIT. ``l2="auto"`` chooses it too, and
        so the family.
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
        "mix": (0.0, 0.2, 0.5, 0.8, 1.0),
    }

    # ahead of V-SkNN on every set of docs/evidence-sessions.md
    l2: float | Auto = 3.0
    dropout: float = 0.5
    decay_position: float | None = 2.0
    mix: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction("mix", self.mix)

    def _rows(self) -> dict[str, Any]:
        return {**super()._rows(), "mix": self._chosen("mix")}
