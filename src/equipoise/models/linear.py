"""Linear autoencoders: LAE, EASE, RLAE and their denoising forms.

With P = (X^T W X + L)^-1 every family is B = I - P diag(s), and only the vector s differs. P is
solved for once; family, diagonal bound and alpha are read off it.
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
SAMPLE = 1000  # users whose lists tell what pruning costs


@dataclass(kw_only=True, eq=False)
class LinearAutoencoder(Recommender):
    """Base of the linear autoencoders; use `LAE`, `EASE` or `RLAE`.

    Attributes
    ----------
    solution_
        P in the form that its engine left it in (`equipoise.models.inverse`).
    audit_
        How far a model of the neighbourhood engine agrees with exact columns.
    inverse_
        The numbers of P, symmetric n x n; sparse after `prune`, a `HalfMatrix` after `halve`, a
        `DeviceMatrix` on a card.
    diagonal_
        Diagonal of P.
    penalty_
        Diagonal of L = l2*I + dropout/(1-dropout)*D_I, with D_I the raw item counts.
    normalizer_, l2_, dropout_, lowpass_
        These settings with their numbers, where "auto" was asked for.
    residual_
        Relative error of the solve on random vectors.
    weights_
        W, dense and without the companion; made on demand.
    companion_
        The fitted `lowpass`, None without one.
    loss_
        What `prune` or `halve` cost; None for a whole model.
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
    dropout: float | Auto | None = None
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
        how = {"device": device, "dtype": dtype, "engine": engine, "memory": memory}
        how |= {"scratch": scratch, "refine": refine, "precision": precision, "progress": progress}
        how["neighbours"] = neighbours
        if data.signed and self.lowpass is not None:
            raise SettingError("a lowpass companion takes no negative values; use returns='net'")
        require_strength([self], engine)
        normalizer = self.normalizer.resolve(data)
        self._solve(data, normalizer, self._numbers(data, normalizer), **how)

    @atomic
    def reuse(self, fitted: Any) -> Self:
        """Fit by taking the solve of another model: no cost, the inverse is shared.

        Family, `diag_bound` and alpha (and gamma) may differ; `l2`, `dropout` and the weights of
        the users must not. A pruned model has only a part of its solve left and is refused.
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
        mine, theirs = (each.user_weights(data) for each in (normalizer, fitted.normalizer_))
        if not (np.array_equal(mine, theirs) and np.array_equal(penalty, fitted.penalty_)):
            raise SettingError("reuse needs the same l2, dropout and user weights (beta)")
        solved = Solved(fitted.inverse_, fitted.diagonal_, fitted.residual_)
        self._take(data, normalizer, numbers, penalty, solved)
        return self

    @atomic
    def to(self, device: str) -> Self:
        """Move the inverse to the memory of the machine ("cpu") or of a card, and return self."""
        self.interactions_ = self._fitted
        self.solution_ = self.solution_.to(device)
        return self

    @classmethod
    def shared_fit(
        cls, models: Sequence[Any], data: Interactions, *, threads: int | None = None, **how: Any
    ) -> Callable[[Sequence[Any]], None]:
        """Return a function that fits models by one solve; Gram matrices stay between calls.

        They are valid until the next call: all share its matrix.
        """
        rank = max(each._lowpass_rank for each in models)
        solvers: list[tuple[Any, Solver]] = []  # the last one, and the signals that it is for

        def fit(models: Sequence[Any]) -> None:
            require_strength(models, how.get("engine", "auto"))
            signals = models[0].signals
            with limited(threads):
                if not solvers or solvers[0][0] != signals:
                    solvers.clear()  # its memory is needed
                    weighed = models[0]._weighed(data)
                    solvers.append((signals, Solver(weighed, lowpass_rank=rank, **how)))
                fit_together(models, solvers[0][1], data)

        return fit

    @classmethod
    def fit_seconds(cls, data: Interactions, *, threads: int | None = None, **how: Any) -> float:
        """Return what `plan` says."""
        return plan(data, **how).seconds

    @classmethod
    def prototype(cls) -> Self:
        """Return the model with a `DAN`, so that alpha and beta are searched."""
        return cls(normalizer=DAN())

    def tunable(self) -> list[str]:
        """Return the exponents that the normalizer has, l2, dropout, and those of the parts."""
        found = [name for name in EXPONENTS if hasattr(self.normalizer, name)]
        found += [name for name in ("l2", "dropout", "diag_bound") if hasattr(self, name)]
        found += [name for name in PARTS["lowpass"] if hasattr(self.lowpass, name)]
        return [*found, *self._signal_settings()]

    def search_start(self, data: Interactions) -> dict[str, Any]:
        """Return l2, dropout and beta, "auto" as numbers from the data."""
        data = self._weighed(data)
        normalizer = self.normalizer.resolve(data)
        l2, dropout = self._numbers(data, normalizer)
        beta = {"beta": normalizer.exponents()[1]} if hasattr(normalizer, "beta") else {}
        return {"l2": l2, "dropout": dropout, **beta, **self._signal_settings()}

    def search_point(self) -> dict[str, Any]:
        """Return the family and everything that is tunable, with the numbers behind "auto"."""
        settings = self.settings(resolved=True)
        for part in PARTS:
            settings |= settings.pop(part, None) or {}
        found = {name: settings[name] for name in self.tunable()}
        numbers = {name: float(found[name]) for name in found if name not in SETTINGS}
        return {"family": type(self).__name__, **found, **numbers}

    @on_snapshot
    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return W = D_I^alpha (I - P diag(s)) D_I^-alpha without its diagonal, and the companion.

        The dial turns W alone; the companion has an exponent of its own.
        """
        _ = self._fitted
        more: list[Term] = []
        if self.companion_ is not None and self.companion_.settings.strength != 0:
            more.append(self.companion_.term)
        return [self.solution_.term(*self.scales(alpha)), *more]

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
        """The numbers of P, as the engine left them."""
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
        """Agreement of a neighbourhood model with exact columns at its fit; empty for others."""
        return self.solution_.agreement

    @on_snapshot
    def audit(self, targets: int = 16) -> dict[str, float]:
        """Solve for sampled targets exactly and return how far this model agrees with that.

        Of the neighbourhood engine alone: `weights` and `scores` are mean cosines of a target's
        weights and of its scores for its users, `overlap@20` is that of the lists that follow from
        one item, `residual` what is left of the equations on the supports.

        Raises
        ------
        SolveError
            If the residual shows that the weights do not solve these equations.
        """
        data = self._fitted
        system = LinearSystem(data, self.normalizer_.user_weights(data), self.penalty_)
        return self.solution_.audit(system, count("targets", targets))

    @property
    def lowpass_(self) -> LowPass | None:
        """The companion's settings, with the number behind "auto"; None without one."""
        return None if self.companion_ is None else self.companion_.settings

    @property
    def _lowpass_rank(self) -> int:
        return 0 if self.lowpass is None else self.lowpass.rank

    @atomic
    def update(self, added: Any = None, removed: Any = None, *, replace: bool = False) -> Self:
        """Add and remove interactions; the result equals a refit.

        The new inverse is made beside the old one, so an update takes about the memory of a fit.
        It solves again where the change is large, where the memory is short or where rounding
        errors have grown beyond those of a solve.

        Parameters
        ----------
        added, removed, replace
            As for `Recommender.update`.
        """
        update_linear(self, added, removed, replace=replace)
        return self

    @on_snapshot
    def prune(self, keep: int) -> Self:
        """Return a sparse copy that keeps the `keep` strongest sources of each item.

        Its `loss_` says what that cost: `weight`, the share of squared weight left out, and
        `overlap@20`, the mean overlap of the lists of up to 1,000 training users with before.
        """
        _ = self._fitted
        self.solution_.require("prune")
        keep = min(count("keep", keep), max(len(self.item_index_) - 1, 1))
        source, target = self.scales()
        pruned = copy.copy(self)
        pruned.estimate_ = None
        pruned.solution_, squares = self.solution_.pruned(source, keep)
        weight = target.astype(np.float64) ** 2
        total, kept = (float((column * weight).sum()) for column in squares.T)
        lost = 1 - kept / total if total else 0.0
        pruned.loss_ = {"weight": lost, "overlap@20": _overlap(self, pruned)}
        return pruned

    @on_snapshot
    def halve(self) -> Self:
        """Return a copy with P in 16 bits, for serving: half the memory, disk and traffic.

        Its `loss_` has `overlap@20`, as that of `prune`. It ranks, explains and is saved like any
        model; to update or reuse it, take the full one.
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
        # older models have numbers in their settings, and only there
        found = Fields({"l2": self.l2, "dropout": self.dropout} | state, state.path)
        numbers = found.number("l2", least=0), found.number("dropout", least=0)
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
        """Return l2 and dropout, "auto" replaced by numbers from the data."""
        weights = normalizer.user_weights(data)
        return penalty_numbers(self.l2, self.dropout, data, weights)

    def _penalty(
        self, data: Interactions, normalizer: Normalizer, l2: float, dropout: float
    ) -> Vector:
        # L = l2 I + p/(1-p) D_I; D_I is the diagonal of X^T X, the raw counts where X is 0/1
        square = column_squares(data.matrix)
        odds = dropout / (1 - dropout)
        penalty = l2 * normalizer.penalty_scale(data.n_items) + odds * square
        # an item without users has an empty row; any penalty > 0 keeps it out of all scores
        return np.where(penalty > 0, penalty, 1.0)

    def _solve(
        self, data: Interactions, normalizer: Normalizer, numbers: tuple[float, float], **how: Any
    ) -> None:
        """Fit with a normalizer that has its numbers, and with l2 and dropout."""
        penalty = self._penalty(data, normalizer, *numbers)
        weights = normalizer.user_weights(data)
        solved = solve(data, weights, penalty, lowpass_rank=self._lowpass_rank, **how)
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
    """Refuse, before the solve, a strength "auto" that needs users left out of it."""
    wanted = [each.lowpass.strength for each in models if each.lowpass is not None]
    if engine == "neighbourhood" and "auto" in wanted:
        raise SettingError(
            "strength='auto' needs users left out exactly, which engine='neighbourhood' cannot; "
            "give a number, such as LowPass(strength=0.2), or tune it on a split"
        )


def fit_companion(model: LinearAutoencoder, lowpass: LowPass) -> Companion:
    """Fit the companion of a model that has its solve, with a number for its strength."""
    from equipoise.models.leaving_out import companion_strength

    if lowpass.strength == "auto":
        lowpass = replaced(lowpass, strength=companion_strength(model, lowpass))
    return lowpass.fit(model.interactions_, model.inverse_.dtype.name)


def fit_together(
    models: Sequence[LinearAutoencoder], solver: Solving, given: Interactions | None = None
) -> None:
    """Fit models that share l2, dropout, user weights and signals by one solve.

    `given` are the data of the solver before they were weighed by the signals.
    """
    first, data = models[0], solver.train
    normalizer = first.normalizer.resolve(data)
    numbers = first._numbers(data, normalizer)
    penalty = first._penalty(data, normalizer, *numbers)
    solved = solver.solve(normalizer.user_weights(data), penalty)
    companions: dict[LowPass | None, Companion | None] = {None: None}
    for model in models:
        # a companion depends on its own settings alone
        companion = companions.get(model.lowpass)
        model._raw_data = data if given is None else given
        model._take(data, model.normalizer.resolve(data), numbers, penalty, solved, companion)
        companions[model.lowpass] = model.companion_


def _overlap(model: LinearAutoencoder, reduced: LinearAutoencoder) -> float:
    data = model.data_  # as given: `rank` weighs it
    rng = np.random.default_rng(0)
    size = min(SAMPLE, data.n_users)
    users = data.rows(np.sort(rng.choice(data.n_users, size, replace=False)))
    before, after = (each.rank(users, 20).items for each in (model, reduced))
    shared = [
        len(np.intersect1d(a[a >= 0], b[b >= 0])) / int((a >= 0).sum())
        for a, b in zip(before, after, strict=True)
        if (a >= 0).any()
    ]
    # a user who has used every item has no list to lose anything from
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
        p of the denoising form (DLAE), 0 to 0.9; penalises popular items in proportion. Left
        out, it is automatic where `l2` is and 0 where `l2` is a number.
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
    """Denoising `LAE`: the same model, with a dropout unless told otherwise."""

    dropout: float | Auto | None = 0.5


@dataclass(kw_only=True, eq=False)
class EDLAE(EASE):
    """Denoising `EASE` (Steck, NeurIPS 2020): the same model, with a dropout."""

    dropout: float | Auto | None = 0.5


@dataclass(kw_only=True, eq=False)
class RDLAE(RLAE):
    """Denoising `RLAE` (Moon et al., SIGIR 2023): the same model, with a dropout."""

    dropout: float | Auto | None = 0.5
