"""What all linear autoencoders share: the solve, the scales around it, saving.

With P = (X^T W X + L)^-1 every family is B = I - P diag(s), and only the vector s differs.

Sparse copies of a linear autoencoder, and what they lose.

The families of linear autoencoders: LAE, EASE, RLAE and their denoising forms.

Each is B = I - P diag(s) on the same P = (X^T W X + L)^-1; only the vector s differs.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, Unpack

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise import machine
from equipoise.automatic import Auto, check_penalty, penalty_numbers
from equipoise.errors import DataError, FileFormatError, SettingError, TooBigError
from equipoise.interactions import Interactions
from equipoise.kernels import compiled
from equipoise.machine import free_memory, gigabytes, limited
from equipoise.manifest import Fields
from equipoise.models.base import Recommender, at_once, on_snapshot
from equipoise.models.lowpass import Companion, LowPass, restored
from equipoise.models.saving import restored_normalizer, sparse_arrays, sparse_from
from equipoise.normalize import NoNorm, Normalizer, check_number
from equipoise.ranking.device import OnDevice
from equipoise.ranking.terms import Dense, Sparse, Term
from equipoise.solve.engine import SolveOptions, move, require_host, solve
from equipoise.solve.gpu import DeviceMatrix
from equipoise.storage import Stored

Vector = npt.NDArray[np.float64]


@dataclass(kw_only=True, eq=False)
class LinearAutoencoder(Recommender):
    """Base of the linear autoencoders; use `LAE`, `EASE` or `RLAE`.

    Attributes
    ----------
    inverse_
        P, symmetric n x n; sparse after `prune`, a `DeviceMatrix` on a card.
    diagonal_
        Diagonal of P.
    penalty_
        Diagonal of L = l2*I + dropout/(1-dropout)*D_I, with D_I the raw item counts.
    normalizer_, l2_, dropout_
        These settings with their numbers, where "auto" was asked for.
    residual_
        Relative error of the solve on random vectors.
    weights_
        W, dense and without the companion; made on demand.
    companion_
        The fitted `lowpass`, None without one.
    loss_
        What `prune` cost; None for a model that was not pruned.
    """

    l2: float | Auto = "auto"
    dropout: float | Auto | None = None
    normalizer: Normalizer = field(default_factory=NoNorm)
    lowpass: LowPass | None = None

    inverse_: Any = field(init=False, repr=False)
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
        if not isinstance(self.normalizer, Normalizer):
            raise SettingError(f"normalizer must be a Normalizer, got {self.normalizer!r}")
        if not isinstance(self.lowpass, LowPass | None):
            raise SettingError(f"lowpass must be a LowPass or None, got {self.lowpass!r}")

    @abstractmethod
    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        """Return s of B = I - P diag(s)."""

    @at_once
    def fit(
        self,
        interactions: Interactions,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int | None = None,
        **options: Unpack[SolveOptions],
    ) -> Self:
        """Fit by one solve and return self.

        Parameters
        ----------
        interactions
            Training data.
        device
            "cpu", or a card such as "cuda" or "cuda:1"; the model then ranks on the card too.
        dtype
            "float32", or "float64" for systems that are hard to solve.
        threads
            Number of threads; None uses all.
        engine
            "dense" in memory, "tiled" on disk, "gpu"; "auto", the default, takes the card where
            `device` names one, else what fits. All are exact.
        memory
            Budget such as "6GB", of the machine or of the card; all that is free if left out.
        scratch
            Folder for the tiles and the result of the tiled engine, a temporary one if left out.
            A fit that was cut short goes on from there; the model needs it as long as it lives.
        refine
            Improve the solve by one Newton step, at about four times its cost.
        tf32
            Let a card multiply in TF32: faster, with about 3 digits of a weight instead of 6.
        progress
            Function called after each step of the tiled engine, with its `SolveProgress`.
        """
        if not isinstance(interactions, Interactions):
            raise DataError("fit needs Interactions; make them with eq.read(...)")
        normalizer = self.normalizer.resolve(interactions)
        numbers = self._numbers(interactions, normalizer)
        with limited(threads):
            self._solve(interactions, normalizer, numbers, device, dtype, **options)
        return self

    @at_once
    def reuse(self, fitted: LinearAutoencoder) -> Self:
        """Fit by taking the solve of another model: no cost, the inverse is shared.

        Family, `diag_bound` and alpha (and gamma) may differ; `l2`, `dropout` and the weights of
        the users must not. A pruned model has only a part of its solve left and is refused.
        """
        fitted = copy.copy(fitted)
        data = fitted._fitted
        if fitted._is_pruned:
            raise SettingError("a pruned model cannot be reused; reuse the full one and prune it")
        normalizer = self.normalizer.resolve(data)
        theirs = fitted.normalizer_.user_weights(data)
        numbers = self._numbers(data, normalizer)
        penalty = self._penalty(data, normalizer, *numbers)
        if not np.array_equal(theirs, normalizer.user_weights(data)) or not np.array_equal(
            penalty, fitted.penalty_
        ):
            raise SettingError("reuse needs the same l2, dropout and user weights (beta)")
        self._take(data, normalizer, fitted.inverse_, penalty, fitted.residual_, fitted.diagonal_)
        self.l2_, self.dropout_ = numbers
        return self

    @at_once
    def to(self, device: str) -> Self:
        """Move the inverse to the memory of the machine ("cpu") or of a card, and return self."""
        self.interactions_ = self._fitted
        if self._is_pruned and device != "cpu":
            raise SettingError("a pruned model ranks on device='cpu'; move the full one instead")
        self.inverse_ = move(self.inverse_, device)
        return self

    @property
    def label(self) -> str:
        """The family, with the normalizer where there is one."""
        norm = type(self.normalizer).__name__
        return type(self).__name__ if norm == "NoNorm" else f"{type(self).__name__}+{norm}"

    @on_snapshot
    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return W = D_I^alpha (I - P diag(s)) D_I^-alpha without its diagonal, and the companion.

        The dial turns W alone; the companion has an exponent of its own.
        """
        source, target = self.scales(alpha)
        P = self.inverse_
        more: list[Term] = [] if self.companion_ is None else [self.companion_.term]
        if self._is_pruned:
            return [Sparse(P.data, P.indices, P.indptr, source, target), *more]
        kind: Any = OnDevice if isinstance(P, DeviceMatrix) else Dense
        return [kind(P, source, target), *more]

    @on_snapshot
    def scales(self, alpha: float | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return vectors a and b with W_ij = a_i P_ij b_j off the diagonal."""
        source, target = self.normalizer_.item_scales(self.item_counts_, alpha)
        target = -target * self._column_scale(self.diagonal_, self.penalty_)
        return source.astype(self.inverse_.dtype), target.astype(self.inverse_.dtype)

    @property
    @on_snapshot
    def weights_(self) -> npt.NDArray[Any]:
        """The scoring matrix W, items x items, dense and with a zero diagonal."""
        needed = 2 * len(self.item_index_) ** 2 * self.inverse_.dtype.itemsize
        if needed > free_memory():
            raise TooBigError(f"weights_ needs {gigabytes(needed)}; recommend works without it")
        source, target = self.scales()
        P = self.inverse_ if isinstance(self.inverse_, np.ndarray) else self.inverse_.toarray()
        W = np.asarray(source[:, None] * P * target)
        np.fill_diagonal(W, 0)
        return W

    @property
    def _is_pruned(self) -> bool:
        return bool(sp.issparse(self.inverse_))

    @property
    def _lowpass_rank(self) -> int:
        return 0 if self.lowpass is None else self.lowpass.rank

    @at_once
    def update(self, added: Interactions | None = None, removed: Any = None) -> Self:
        """Add and remove interactions; the result equals a refit.

        The new inverse is made beside the old one, so an update takes about the memory of a fit.
        It solves again where the change is large, where the memory is short or where rounding
        errors have grown beyond those of a solve.

        Parameters
        ----------
        added
            New pairs; their users and items may be new.
        removed
            Pairs to take out, or a list of user ids to forget altogether.
        """
        from equipoise.models.updating import update_linear

        require_host(self.inverse_)
        update_linear(self, added, removed)
        return self

    @on_snapshot
    def prune(self, keep: int) -> Self:
        """Return a sparse copy that keeps the `keep` strongest sources of each item.

        Its `loss_` says what that cost: `weight`, the share of squared weight left out, and
        `overlap@20`, the mean overlap of the lists of up to 1,000 training users with before.
        """
        return prune_linear(self, keep)

    def _state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        state: dict[str, Any] = {"normalizer": self.normalizer_, "residual": self.residual_}
        state |= {"l2": self.l2_, "dropout": self.dropout_}
        arrays = {"diagonal": self.diagonal_, "penalty": self.penalty_}
        if self.companion_ is not None:
            arrays |= self.companion_.arrays()
        if self._is_pruned:
            state["loss"] = self.loss_
            return state, {**arrays, **sparse_arrays(self.inverse_, "inverse")}
        return state, {**arrays, "inverse": self.inverse_}

    def _restore(self, state: Fields, stored: Stored) -> None:
        n_items = len(self.item_index_)
        self.normalizer_ = restored_normalizer(state, self.interactions_)
        self.residual_ = state.number("residual", least=0)
        # older models have numbers in their settings, and only there
        numbers = Fields({"l2": self.l2, "dropout": self.dropout} | state, state.path)
        self.l2_, self.dropout_ = numbers.number("l2", least=0), numbers.number("dropout", least=0)
        check_penalty(self.l2_, self.dropout_)
        self.diagonal_ = np.array(stored.finite("diagonal", (n_items,)))
        self.penalty_ = np.array(stored.finite("penalty", (n_items,)))
        if not ((self.diagonal_ > 0).all() and (self.penalty_ > 0).all()):
            raise FileFormatError("its diagonal or penalty is not positive")
        self.loss_ = None
        if "loss" in state:
            loss = state.group("loss")
            self.loss_ = {name: loss.number(name) for name in loss}
            self.inverse_ = sparse_from(stored, "inverse", n_items)
        else:
            self.inverse_ = stored.mapped("inverse", (n_items, n_items))
        if not all(np.isfinite(scale).all() for scale in self.scales()):
            raise FileFormatError("its diagonal or penalty is out of proportion")
        self.companion_ = None
        if self.lowpass is not None:
            self.companion_ = restored(self.lowpass, self.interactions_, stored)

    def _numbers(self, data: Interactions, normalizer: Normalizer) -> tuple[float, float]:
        """Return l2 and dropout, "auto" replaced by numbers from the data."""
        weights = normalizer.user_weights(data)
        return penalty_numbers(self.l2, self.dropout, data, weights)

    def _penalty(
        self, data: Interactions, normalizer: Normalizer, l2: float, dropout: float
    ) -> Vector:
        # L = l2 I + p/(1-p) D_I; D_I is the diagonal of X^T X, the raw counts where X is 0/1
        square = np.bincount(
            data.matrix.indices,
            weights=data.matrix.data.astype(np.float64) ** 2,
            minlength=data.n_items,
        )
        odds = dropout / (1 - dropout)
        penalty = l2 * normalizer.penalty_scale(data.n_items) + odds * square
        # an item nobody used has an empty row; any penalty > 0 keeps it out of all scores
        return np.where(penalty > 0, penalty, 1.0)

    def _solve(
        self,
        data: Interactions,
        normalizer: Normalizer,
        numbers: tuple[float, float],
        device: str,
        dtype: str,
        **options: Unpack[SolveOptions],
    ) -> None:
        """Fit with a normalizer that has its numbers, and with l2 and dropout."""
        penalty = self._penalty(data, normalizer, *numbers)
        solved = solve(
            data,
            normalizer.user_weights(data),
            penalty,
            device=device,
            dtype=dtype,
            lowpass_rank=self._lowpass_rank,
            **options,
        )
        self._take(data, normalizer, solved.P, penalty, solved.residual, solved.diagonal)
        self.l2_, self.dropout_ = numbers

    def _take(
        self,
        data: Interactions,
        normalizer: Normalizer,
        inverse: Any,
        penalty: Vector,
        residual: float,
        diagonal: Vector | None = None,
    ) -> None:
        dtype = inverse.dtype.name
        self.companion_ = None if self.lowpass is None else self.lowpass.fit(data, dtype)
        self.interactions_ = data
        self.normalizer_ = normalizer
        self.inverse_ = inverse
        # given where reading it would touch every page of a mapped file
        self.diagonal_ = np.array(inverse.diagonal() if diagonal is None else diagonal, np.float64)
        self.penalty_ = penalty
        self.residual_ = residual
        self.loss_ = None


Model = TypeVar("Model", bound=LinearAutoencoder)


SAMPLE = 1000


def prune_linear(model: Model, keep: int) -> Model:
    """Return a copy that keeps the `keep` strongest sources of each target item."""
    n_items = len(model.item_index_)
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise SettingError(f"keep must be a whole number >= 1, got {keep!r}")
    if model._is_pruned:
        raise SettingError("this model is pruned already")
    keep = min(keep, max(n_items - 1, 1))
    source, target = model.scales()
    chosen = np.empty((n_items, keep), np.int32)
    squares = np.empty((n_items, 2))
    P = np.asarray(model.inverse_)
    machine.run(lambda j: _strongest(P, source, keep, j, chosen, squares), n_items)
    # W_ij = source_i P_ij target_j: column j of the sparse matrix holds its chosen sources i
    offsets = np.arange(n_items + 1, dtype=np.int64) * keep
    values = np.take_along_axis(model.inverse_, chosen, axis=1).ravel()
    columns: Any = sp.csc_array((values, chosen.ravel(), offsets), shape=(n_items, n_items))
    pruned = copy.copy(model)
    pruned.inverse_ = columns.tocsr()
    pruned.inverse_.sort_indices()
    weight = target.astype(np.float64) ** 2
    total = float((squares[:, 0] * weight).sum())
    pruned.loss_ = {
        "weight": 1 - float((squares[:, 1] * weight).sum()) / total if total else 0.0,
        "overlap@20": _overlap(model, pruned),
    }
    return pruned


def _overlap(model: LinearAutoencoder, pruned: LinearAutoencoder) -> float:
    data = model.interactions_
    rng = np.random.default_rng(0)
    size = min(SAMPLE, data.n_users)
    people = data.rows(np.sort(rng.choice(data.n_users, size, replace=False)))
    before, after = (each.rank(people, 20).items for each in (model, pruned))
    shared = [
        len(np.intersect1d(a[a >= 0], b[b >= 0])) / int((a >= 0).sum())
        for a, b in zip(before, after, strict=True)
        if (a >= 0).any()
    ]
    # a user who has used every item has no list to lose anything from
    return float(np.mean(shared)) if shared else 1.0


@compiled
def _strongest(P: Any, source: Any, keep: int, j: int, chosen: Any, squares: Any) -> None:
    """For target j the sources i with the largest |source_i P_ij|, and sums of squares."""
    size = np.abs(P[j] * source)  # P is symmetric: column j is row j
    size[j] = -1.0
    order = np.argsort(-size, kind="mergesort")[:keep]
    chosen[j] = np.sort(order)
    size[j] = 0.0
    squares[j, 0] = (size.astype(np.float64) ** 2).sum()
    squares[j, 1] = (size[order].astype(np.float64) ** 2).sum()


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
        How users and items are weighted, such as `DAN(alpha, beta)`.
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
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p of the denoising form (EDLAE), 0 to 0.9; penalises popular items in proportion. Left
        out, it is automatic where `l2` is and 0 where `l2` is a number.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.

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
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p of the denoising form (RDLAE), 0 to 0.9; penalises popular items in proportion. Left
        out, it is automatic where `l2` is and 0 where `l2` is a number.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.
    diag_bound
        xi, between 0 (EASE) and 1 (LAE).
    """

    diag_bound: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= check_number("diag_bound", self.diag_bound) <= 1:
            raise SettingError(f"diag_bound must lie in [0, 1], got {self.diag_bound}")

    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        return np.maximum(penalty, (1 - self.diag_bound) / diagonal)


@dataclass(kw_only=True, eq=False)
class DLAE(LAE):
    """Denoising `LAE`: an LAE with `dropout`.

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p, 0 to 0.9; penalises popular items in proportion. "auto" takes it from the data.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.
    """

    dropout: float | Auto | None = 0.5


@dataclass(kw_only=True, eq=False)
class EDLAE(EASE):
    """Denoising `EASE`: an EASE with `dropout` (Steck, NeurIPS 2020).

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p, 0 to 0.9; penalises popular items in proportion. "auto" takes it from the data.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.
    """

    dropout: float | Auto | None = 0.5


@dataclass(kw_only=True, eq=False)
class RDLAE(RLAE):
    """Denoising `RLAE`: an RLAE with `dropout` (Moon et al., SIGIR 2023).

    Parameters
    ----------
    l2
        lambda, the ridge penalty, 1 to 1000s; "auto" takes it from the data.
    dropout
        p, 0 to 0.9; penalises popular items in proportion. "auto" takes it from the data.
    normalizer
        How users and items are weighted, such as `DAN(alpha, beta)`.
    lowpass
        A `LowPass` companion that adds the large-scale structure of the data; None for none.
    diag_bound
        xi, between 0 (EDLAE) and 1 (DLAE).
    """

    dropout: float | Auto | None = 0.5
