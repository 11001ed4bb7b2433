"""Linear autoencoders: LAE, EASE, RLAE and their denoising forms.

With P = (X^T W X + L)^-1 every family is B = I - P diag(s), and only the vector s differs. One
solve for P serves every family, diagonal bound and alpha.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from equipoise.automatic import Auto, check_penalty, penalty_numbers
from equipoise.checks import count, fraction
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import column_squares
from equipoise.data.signals import SETTINGS
from equipoise.data.storage import Fields, Stored
from equipoise.errors import FileFormatError, SettingError, TooBigError
from equipoise.models.base import Recommender, SearchSpace
from equipoise.models.inverse import Inverse
from equipoise.models.lowpass import Companion, LowPass
from equipoise.models.saving import restored_lowpass, restored_normalizer
from equipoise.models.settings import EXPONENTS, PARTS
from equipoise.models.snapshots import atomic, on_snapshot
from equipoise.models.updating import LinearSystem, update_linear
from equipoise.normalize import DAN, NoNorm, Normalizer, as_normalizer
from equipoise.ranking.terms import Term
from equipoise.runtime.machine import free_memory, gigabytes, limited
from equipoise.solve.engine import Solved, Solver, Solving, solve
from equipoise.solve.planning import plan

Vector = npt.NDArray[np.float64]
STEPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
SAMPLE = 1000  # users whose lists measure the loss of pruning


@dataclass(kw_only=True, eq=False)
class LinearAutoencoder(Recommender):
    """Base of the linear autoencoders; use `LAE`, `EASE` or `RLAE`.

    Attributes
    ----------
    solution_
        P as an `equipoise.models.inverse.Inverse`, whose form depends on the engine.
    audit_
        Agreement of a neighbourhood model with exact columns.
    inverse_
        The entries of P, symmetric n x n; sparse after `prune`, a `HalfMatrix` after `halve`, a
        `DeviceMatrix` on a GPU.
    diagonal_
        Diagonal of P.
    penalty_
        Diagonal of L = l2*I + dropout/(1-dropout)*D_I, with D_I the raw item counts.
    normalizer_, l2_, dropout_, lowpass_
        These settings, with numbers in place of "auto".
    residual_
        Relative error of the solve on random vectors.
    weights_
        W, dense and without the companion; made on demand.
    companion_
        The fitted `lowpass`, None without one.
    loss_
        The loss of `prune` or `halve`; None for a full model.
    """

    signed: ClassVar[bool] = True
    solve_settings: ClassVar[tuple[str, ...]] = (*SETTINGS, "beta", "dropout", "l2")
    in_ranges: ClassVar[bool] = True
    search_space: ClassVar[SearchSpace] = {
        "alpha": STEPS,
        "gamma": STEPS,
        "diag_bound": (0.0, 0.1, 0.2, 0.3, 0.5, 0.7),
        "strength": (0.0, 0.1, 0.2, 0.4),
        "exponent": (0.2, 0.5),
    }

    l2: float | Auto = "auto"
    dropout: float | Auto = 0.0
    normalizer: Normalizer = field(default_factory=NoNorm)
    lowpass: LowPass | None = None

    solution_: Inverse = field(init=False, repr=False)
    diagonal_: Vector = field(init=False, repr=False)
    penalty_: Vector = field(init=False, repr=False)
    normalizer_: Normalizer = field(init=False, repr=False)
    l2_: float = field(init=False, repr=False)
    dropout_: float = field(init=False, repr=False)
    residual_: float = field(init=False, repr=False)
    companion_: Companion | None = field(init=False, repr=False)
    loss_: dict[str, float] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_penalty(self.l2, self.dropout)
        self.normalizer = as_normalizer(self.normalizer)
        if not isinstance(self.lowpass, LowPass | None):
            raise SettingError(f"lowpass must be a LowPass or None, got {self.lowpass!r}")

    @abstractmethod
    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        """Return s of B = I - P diag(s)."""

    def _fit(
        self,
        data: Interactions,
        *,
        device: str,
        dtype: str,
        engine: str,
        memory: Any,
        scratch: Any,
        refine: bool,
        precision: str,
        neighbours: Any,
        progress: Any,
    ) -> None:
        options = {name: value for name, value in locals().items() if name in self.fit_options}
        if data.signed and self.lowpass is not None:
            raise SettingError("a lowpass companion takes no negative values; use returns='net'")
        require_strength([self], engine)
        normalizer = self.normalizer.resolve(data)
        self._solve(data, normalizer, self._numbers(data, normalizer), **options)

    @atomic
    def reuse(self, fitted: Any) -> Self:
        """Fit by sharing the solve of another model, at no cost.

        Family, `diag_bound`, alpha and gamma may differ; `l2`, `dropout` and the user weights must
        not. A pruned or halved model cannot be reused.
        """
        if not isinstance(fitted, LinearAutoencoder):
            kind = type(fitted).__name__
            raise SettingError(f"reuse needs a linear autoencoder with the solve, got {kind}")
        fitted = copy.copy(fitted)
        data = fitted._fitted
        fitted.solution_.require("reuse")
        if self.signals != fitted.signals:
            raise SettingError("reuse needs the same signals: they are in the solve")
        self._raw_data = fitted.data_
        normalizer = self.normalizer.resolve(data)
        numbers = self._numbers(data, normalizer)
        penalty = self._penalty(data, normalizer, *numbers)
        weights = normalizer.user_weights(data)
        same_weights = np.array_equal(weights, fitted.normalizer_.user_weights(data))
        if not (same_weights and np.array_equal(penalty, fitted.penalty_)):
            raise SettingError("reuse needs the same l2, dropout and user weights (beta)")
        solved = Solved(fitted.inverse_, fitted.diagonal_, fitted.residual_)
        self._take(data, normalizer, numbers, penalty, solved)
        return self

    @atomic
    def to(self, device: str) -> Self:
        """Move the inverse to the memory of the host ("cpu") or of a GPU, and return self."""
        self.interactions_ = self._fitted
        self.solution_ = self.solution_.to(device)
        return self

    @classmethod
    def shared_fit(
        cls,
        models: Sequence[Any],
        data: Interactions,
        *,
        threads: int | None = None,
        **options: Any,
    ) -> Callable[[Sequence[Any]], None]:
        """Return a function that fits models by one solve and keeps the Gram matrix between calls.

        The fitted models share one matrix and are valid until the next call.
        """
        rank = max(model._lowpass_rank for model in models)
        solvers: list[tuple[Any, Solver]] = []  # the last solver and its signals

        def fit(models: Sequence[Any]) -> None:
            require_strength(models, options.get("engine", "auto"))
            signals = models[0].signals
            with limited(threads):
                if not solvers or solvers[0][0] != signals:
                    solvers.clear()  # frees its memory first
                    weighed = models[0]._weighed(data)
                    solvers.append((signals, Solver(weighed, lowpass_rank=rank, **options)))
                fit_together(models, solvers[0][1], data)

        return fit

    @classmethod
    def fit_seconds(
        cls, data: Interactions, *, threads: int | None = None, **options: Any
    ) -> float:
        """Return the time of a fit that `plan` estimates."""
        return plan(data, **options).seconds

    @classmethod
    def prototype(cls) -> Self:
        """Return the model with a `DAN`, so that `tune` searches alpha and beta."""
        return cls(normalizer=DAN())

    def tunable(self) -> list[str]:
        """Return the names of the settings that `tune` can vary, those of parts included."""
        names = [name for name in EXPONENTS if hasattr(self.normalizer, name)]
        names += [name for name in ("l2", "dropout", "diag_bound") if hasattr(self, name)]
        names += [name for name in PARTS["lowpass"] if hasattr(self.lowpass, name)]
        return [*names, *self._signal_settings()]

    def search_start(self, data: Interactions) -> dict[str, Any]:
        """Return l2, dropout and beta, with numbers in place of "auto"."""
        data = self._weighed(data)
        normalizer = self.normalizer.resolve(data)
        l2, dropout = self._numbers(data, normalizer)
        beta = {"beta": normalizer.exponents()[1]} if hasattr(normalizer, "beta") else {}
        return {"l2": l2, "dropout": dropout, **beta, **self._signal_settings()}

    def search_point(self) -> dict[str, Any]:
        """Return the family and all tunable settings, with numbers in place of "auto"."""
        settings = self.settings(resolved=True)
        for part in PARTS:
            settings |= settings.pop(part, None) or {}
        point = {name: settings[name] for name in self.tunable()}
        numbers = {name: float(point[name]) for name in point if name not in SETTINGS}
        return {"family": type(self).__name__, **point, **numbers}

    @on_snapshot
    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return W = D_I^alpha (I - P diag(s)) D_I^-alpha without its diagonal, and the companion.

        `alpha` changes W only; the companion has its own exponent.
        """
        _ = self._fitted
        terms = [self.solution_.term(*self.scales(alpha))]
        if self.companion_ is not None and self.companion_.settings.strength != 0:
            terms.append(self.companion_.term)
        return terms

    @on_snapshot
    def scales(self, alpha: float | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return vectors a and b with W_ij = a_i P_ij b_j off the diagonal."""
        _ = self._fitted
        source, target = self.normalizer_.item_scales(self.item_counts_, alpha)
        target = -target * self._column_scale(self.diagonal_, self.penalty_)
        dtype = self.solution_.dtype
        return source.astype(dtype), target.astype(dtype)

    @property
    def inverse_(self) -> Any:
        """The entries of P, in the form that the engine returned."""
        return self.solution_.matrix

    @inverse_.setter
    def inverse_(self, matrix: Any) -> None:
        self.solution_ = Inverse.of(matrix)

    @property
    @on_snapshot
    def weights_(self) -> npt.NDArray[Any]:
        """The scoring matrix W, items x items, dense and with a zero diagonal."""
        needed = 2 * len(self.item_index_) ** 2 * self.solution_.dtype.itemsize
        if needed > free_memory():
            raise TooBigError(f"weights_ needs {gigabytes(needed)}; recommend works without it")
        source, target = self.scales()
        W = self.solution_.toarray()
        W *= source[:, None]
        W *= target
        np.fill_diagonal(W, 0)
        return W

    @property
    def audit_(self) -> dict[str, float]:
        """Agreement of a neighbourhood model with exact columns at its fit; else empty."""
        return self.solution_.agreement

    @on_snapshot
    def audit(self, targets: int = 16) -> dict[str, float]:
        """Compare a neighbourhood model with exact solutions for sampled target items.

        `weights` and `scores` are mean cosines of a target's weights and of its scores for its
        users, `overlap@20` the mean overlap of the lists of similar items, `residual` the relative
        residual of the equations on the supports.

        Raises
        ------
        SolveError
            If the weights do not solve these equations.
        """
        data = self._fitted
        system = LinearSystem(data, self.normalizer_.user_weights(data), self.penalty_)
        return self.solution_.audit(system, count("targets", targets))

    @property
    def lowpass_(self) -> LowPass | None:
        """The companion's settings, with a number in place of "auto"; None without one."""
        return None if self.companion_ is None else self.companion_.settings

    @property
    def _lowpass_rank(self) -> int:
        return 0 if self.lowpass is None else self.lowpass.rank

    @atomic
    def update(self, added: Any = None, removed: Any = None, *, replace: bool = False) -> Self:
        """Add and remove interactions; the result equals a refit.

        An update needs about the memory of a fit, since the old inverse stays until the end. It
        solves anew if the change is large, memory is short, or rounding errors have grown beyond
        those of a solve. Parameters as for `Recommender.update`.
        """
        update_linear(self, added, removed, replace=replace)
        return self

    @on_snapshot
    def prune(self, keep: int) -> Self:
        """Return a sparse copy that keeps the `keep` strongest sources of each item.

        Its `loss_` has `weight`, the share of squared weight left out, and `overlap@20`, the mean
        overlap of the lists of up to 1,000 training users before and after.
        """
        _ = self._fitted
        self.solution_.require("prune")
        keep = min(count("keep", keep), max(len(self.item_index_) - 1, 1))
        source, target = self.scales()
        pruned = copy.copy(self)
        pruned.estimate_ = None
        pruned.solution_, squares = self.solution_.pruned(source, keep)
        weight = target.astype(np.float64) ** 2
        total, remaining = (float((column * weight).sum()) for column in squares.T)
        lost = 1 - remaining / total if total else 0.0
        pruned.loss_ = {"weight": lost, "overlap@20": _overlap(self, pruned)}
        return pruned

    @on_snapshot
    def halve(self) -> Self:
        """Return a copy with P in 16 bits, for serving: half the memory, disk space and traffic.

        Its `loss_` has `overlap@20`, as for `prune`. It cannot be updated or reused; keep the full
        model for that.
        """
        _ = self._fitted
        halved = copy.copy(self)
        halved.estimate_ = None
        halved.solution_ = self.solution_.halved()
        halved.loss_ = {"overlap@20": _overlap(self, halved)}
        return halved

    def _state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        state: dict[str, Any] = {"normalizer": self.normalizer_, "residual": self.residual_}
        state |= {"l2": self.l2_, "dropout": self.dropout_}
        state |= {} if self.loss_ is None else {"loss": self.loss_}
        state |= {} if self.lowpass_ is None else {"lowpass": self.lowpass_}
        arrays = {"diagonal": self.diagonal_, "penalty": self.penalty_}
        arrays |= self.solution_.arrays()
        arrays |= {} if self.companion_ is None else self.companion_.arrays()
        return state | self.solution_.state(), arrays

    def _restore(self, state: Fields, stored: Stored) -> None:
        data, n_items = self.interactions_, len(self.item_index_)
        normalizer = restored_normalizer(state, data)
        # models of older versions have the numbers in their settings only
        fields = Fields({"l2": self.l2, "dropout": self.dropout} | state, state.path)
        numbers = fields.number("l2", least=0), fields.number("dropout", least=0)
        check_penalty(*numbers)
        diagonal, penalty = (
            np.array(stored.finite(name, (n_items,))) for name in ("diagonal", "penalty")
        )
        if not ((diagonal > 0).all() and (penalty > 0).all()):
            raise FileFormatError("its diagonal or penalty is not positive")
        loss = state.group("loss") if "loss" in state else None
        system = LinearSystem(data, normalizer.user_weights(data), penalty)
        inverse = Inverse.restored(state, stored, system).matrix
        lowpass = restored_lowpass(state, self.lowpass)
        companion = None if lowpass is None else lowpass.restored(data, stored)
        solved = Solved(inverse, diagonal, state.number("residual", least=0))
        self._take(data, normalizer, numbers, penalty, solved, companion)
        self.loss_ = None if loss is None else {name: loss.number(name) for name in loss}
        if not all(np.isfinite(scale).all() for scale in self.scales()):
            raise FileFormatError("its diagonal or penalty is out of proportion")

    def _numbers(self, data: Interactions, normalizer: Normalizer) -> tuple[float, float]:
        """Return l2 and dropout, with numbers in place of "auto"."""
        weights = normalizer.user_weights(data)
        return penalty_numbers(self.l2, self.dropout, data, weights)

    def _penalty(
        self, data: Interactions, normalizer: Normalizer, l2: float, dropout: float
    ) -> Vector:
        # L = l2 I + p/(1-p) D_I; D_I is the diagonal of X^T X, the raw counts where X is 0/1
        square = column_squares(data.matrix)
        odds = dropout / (1 - dropout)
        penalty = l2 * normalizer.penalty_scale(data.n_items) + odds * square
        # an item without users has an empty row; any positive penalty gives it weights of 0
        return np.where(penalty > 0, penalty, 1.0)

    def _solve(
        self,
        data: Interactions,
        normalizer: Normalizer,
        numbers: tuple[float, float],
        **options: Any,
    ) -> None:
        """Fit with a resolved normalizer, and with numbers for l2 and dropout."""
        penalty = self._penalty(data, normalizer, *numbers)
        weights = normalizer.user_weights(data)
        solved = solve(data, weights, penalty, lowpass_rank=self._lowpass_rank, **options)
        self._take(data, normalizer, numbers, penalty, solved)

    def _take(
        self,
        data: Interactions,
        normalizer: Normalizer,
        numbers: tuple[float, float],
        penalty: Vector,
        solved: Solved,
        companion: Companion | None = None,
    ) -> None:
        """Set the fitted state, and fit the companion if there is none yet."""
        self.companion_ = companion
        self.interactions_ = data
        self.normalizer_ = normalizer
        self.l2_, self.dropout_ = numbers
        self.inverse_, self.residual_ = solved.P, solved.residual
        self.diagonal_ = np.array(solved.diagonal, np.float64)
        self.penalty_ = penalty
        self.loss_ = None
        self.estimate_ = None
        if companion is None and self.lowpass is not None:
            self.companion_ = fit_companion(self, self.lowpass)


def require_strength(models: Sequence[LinearAutoencoder], engine: str) -> None:
    """Raise, before the solve, if a companion's strength "auto" cannot be found after it."""
    strengths = [model.lowpass.strength for model in models if model.lowpass is not None]
    if engine == "neighbourhood" and "auto" in strengths:
        raise SettingError(
            "strength='auto' needs users left out exactly, which engine='neighbourhood' cannot; "
            "give a number, such as LowPass(strength=0.2), or tune it on a split"
        )


def fit_companion(model: LinearAutoencoder, lowpass: LowPass) -> Companion:
    """Fit the companion of a solved model, with a number for its strength."""
    from equipoise.models.leaving_out import companion_strength

    if lowpass.strength == "auto":
        lowpass = replaced(lowpass, strength=companion_strength(model, lowpass))
    return lowpass.fit(model.interactions_, model.inverse_.dtype.name)


def fit_together(
    models: Sequence[LinearAutoencoder], solver: Solving, raw_data: Interactions | None = None
) -> None:
    """Fit models that share l2, dropout, user weights and signals by one solve.

    `raw_data` are the data of the solver before the signals weighed them.
    """
    first, data = models[0], solver.train
    normalizer = first.normalizer.resolve(data)
    numbers = first._numbers(data, normalizer)
    penalty = first._penalty(data, normalizer, *numbers)
    solved = solver.solve(normalizer.user_weights(data), penalty)
    companions: dict[LowPass | None, Companion | None] = {None: None}
    for model in models:
        # a companion depends on its settings alone
        companion = companions.get(model.lowpass)
        model._raw_data = data if raw_data is None else raw_data
        model._take(data, model.normalizer.resolve(data), numbers, penalty, solved, companion)
        companions[model.lowpass] = model.companion_


def _overlap(model: LinearAutoencoder, reduced: LinearAutoencoder) -> float:
    """Return the mean overlap of the top 20 of sampled training users."""
    data = model.data_  # not weighed yet: `rank` does that
    rng = np.random.default_rng(0)
    size = min(SAMPLE, data.n_users)
    users = data.rows(np.sort(rng.choice(data.n_users, size, replace=False)))
    before, after = model.rank(users, 20).items, reduced.rank(users, 20).items
    shared = [
        len(np.intersect1d(a[a >= 0], b[b >= 0])) / int((a >= 0).sum())
        for a, b in zip(before, after, strict=True)
        if (a >= 0).any()
    ]
    # users who have used every item have no list
    return float(np.mean(shared)) if shared else 1.0


@dataclass(kw_only=True, eq=False)
class LAE(LinearAutoencoder):
    """Linear autoencoder: ridge regression of the interactions on themselves.

    Minimises ||X - X B||^2 + tr(B^T L B) with L = l2*I + dropout/(1-dropout)*D_I.

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p of the denoising form (DLAE), 0 to 0.9; penalises popular items in proportion. "auto"
        takes it from the data.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`, or its name: "dan".
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "milk")])
    >>> eq.LAE(l2=1.0).fit(data).recommend([["tea"]], k=1).items
    [['milk']]
    """

    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        return penalty


@dataclass(kw_only=True, eq=False)
class EASE(LinearAutoencoder):
    """Linear autoencoder with a zero diagonal (Steck, WWW 2019).

    Minimises ||X - X B||^2 + tr(B^T L B) subject to diag(B) = 0.

    Parameters
    ----------
    l2, dropout, normalizer, lowpass
        As for `LAE`; with a dropout this is EDLAE.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "milk")])
    >>> model = eq.EASE(l2=1.0, dropout=0.2, normalizer=eq.DAN(0.2, 0.3)).fit(data)
    >>> model.recommend(["bob"], k=1).items
    [['milk']]
    """

    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        return 1 / diagonal


@dataclass(kw_only=True, eq=False)
class RLAE(LinearAutoencoder):
    """Linear autoencoder with a bounded diagonal (Moon et al., SIGIR 2023).

    Minimises ||X - X B||^2 + tr(B^T L B) subject to diag(B) <= diag_bound.

    Parameters
    ----------
    l2, dropout, normalizer, lowpass
        As for `LAE`; with a dropout this is RDLAE.
    diag_bound
        xi, between 0 (EASE) and 1 (LAE).
    """

    diag_bound: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("diag_bound", self.diag_bound)

    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        return np.maximum(penalty, (1 - self.diag_bound) / diagonal)


@dataclass(kw_only=True, eq=False)
class DLAE(LAE):
    """Denoising `LAE`: an automatic dropout by default."""

    dropout: float | Auto = "auto"


@dataclass(kw_only=True, eq=False)
class EDLAE(EASE):
    """Denoising `EASE` (Steck, NeurIPS 2020): an automatic dropout by default."""

    dropout: float | Auto = "auto"


@dataclass(kw_only=True, eq=False)
class RDLAE(RLAE):
    """Denoising `RLAE` (Moon et al., SIGIR 2023): an automatic dropout by default."""

    dropout: float | Auto = "auto"
