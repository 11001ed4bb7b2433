"""Linear autoencoders: LAE, EASE, RLAE and their denoising forms.

With P = (X^T W X + L)^-1 every family is B = I - P diag(s), and only the vector s differs. One
solve for P serves every family, diagonal bound and alpha.
"""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from equipoise.automatic import Auto, penalty_numbers
from equipoise.checks import check_penalty, count, fraction
from equipoise.data.interactions import Interactions
from equipoise.data.signals import HISTORY_SETTINGS, SETTINGS
from equipoise.data.storage import Fields, Stored
from equipoise.errors import FileFormatError, SettingError, TooBigError
from equipoise.models.answering import on_snapshot
from equipoise.models.base import Recommender, SearchSpace, atomic, names_fit_options
from equipoise.models.features import Features
from equipoise.models.inverse import Inverse
from equipoise.models.lowpass import Companion, LowPass
from equipoise.models.new_items import (
    ALPHA,
    Columns,
    ItemFeatures,
    new_columns,
)
from equipoise.models.saving import restore_lowpass, restore_normalizer
from equipoise.models.settings import EXPONENTS, FIELDS, PARTS
from equipoise.models.updating import update_linear
from equipoise.models.vectors import sampled_users
from equipoise.normalize import DAN, NoNorm, Normalizer, as_normalizer, weights_of_users
from equipoise.ranking.terms import Known, Term
from equipoise.runtime.machine import free_memory, gigabytes, limited
from equipoise.solve.engine import Solved, Solver, Solving, System
from equipoise.solve.planning import Size, SolveOptions, plan_fit

Vector = npt.NDArray[np.float64]
STEPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


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
    _solve_settings: ClassVar[tuple[str, ...]] = (
        *(name for name in SETTINGS if name not in HISTORY_SETTINGS),
        *("beta", "dropout", "l2", "feature_strength"),
    )
    _in_ranges: ClassVar[bool] = True
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
    features: Features | None = None

    solution_: Inverse = field(init=False, repr=False)
    diagonal_: Vector = field(init=False, repr=False)
    penalty_: Vector = field(init=False, repr=False)
    normalizer_: Normalizer = field(init=False, repr=False)
    l2_: float = field(init=False, repr=False)
    dropout_: float = field(init=False, repr=False)
    residual_: float = field(init=False, repr=False)
    companion_: Companion | None = field(init=False, repr=False)
    item_features_: ItemFeatures | None = field(init=False, repr=False, default=None)
    _new_columns: Columns | None = field(init=False, repr=False, default=None)
    loss_: dict[str, float] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_penalty(self.l2, self.dropout)
        self.normalizer = as_normalizer(self.normalizer)
        if not isinstance(self.lowpass, LowPass | None):
            raise SettingError(f"lowpass must be a LowPass or None, got {self.lowpass!r}")
        if not isinstance(self.features, Features | None):
            raise SettingError(f"features must be Features or None, got {self.features!r}")

    @abstractmethod
    def _column_scale(self, diagonal: Vector, penalty: Vector) -> Vector:
        """Return s of B = I - P diag(s)."""

    @names_fit_options
    def fit(
        self,
        interactions: Any,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        engine: str = "auto",
        memory: str | float | None = None,
        scratch: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        refine: bool = False,
        precision: str = "auto",
        neighbours: int | str | None = None,
        progress: Callable[[Any], Any] | None = None,
    ) -> Self:
        """Fit the model to interactions and return self.

        Parameters
        ----------
        interactions, threads
            As for `Recommender.fit`.
        device
            "cpu", or a GPU such as "cuda" or "cuda:1"; the model then ranks on the GPU too,
            except that the neighbourhood engine only solves there.
        dtype
            "float32", or "float64" for ill-conditioned systems.
        engine
            "dense" in memory, "dual" through a system of users x users, "tiled" on disk, "gpu";
            "auto" takes the GPU if `device` names one, else the fastest engine that fits into
            memory. These are exact. "neighbourhood" predicts each item from a few others:
            approximate, for catalogues too large for the exact engines, and never chosen by
            "auto".
        memory
            Memory budget such as "6GB", of the machine or of the GPU; default: all free memory.
        scratch
            Folder for the tiles and the result of the tiled engine; default: a temporary one. An
            interrupted fit resumes from it, and the model needs it as long as it lives. The
            neighbourhood engine keeps its progress there until it is done.
        refine
            Improve the solve by one Newton step, at about four times its cost.
        precision
            How a GPU multiplies float32: "auto" uses pairs of half-precision numbers on tensor
            cores if there are any, as accurate as "float32" and about three times as fast.
        neighbours
            Neighbourhood engine: number of neighbours of each item, 50 to 400, or a time limit of
            the fit such as "2m". Default: 200, or as many as fit into memory.
        progress
            Called after each step of the tiled or the neighbourhood engine with its
            `SolveProgress`.
        """
        options = SolveOptions(
            device=device,
            dtype=dtype,
            engine=engine,
            memory=memory,
            scratch=scratch,
            threads=threads,
            refine=refine,
            precision=precision,
            neighbours=neighbours,
            progress=progress,
        )
        return self._fit_model(interactions, options)

    def _fit(self, data: Interactions, options: SolveOptions) -> None:
        if data.signed and self.lowpass is not None:
            raise SettingError("a lowpass companion takes no negative values; use returns='net'")
        require_strength([self], options.engine)
        if self.features is not None:
            self.features.require_map(options.engine)
        normalizer = self.normalizer.resolve(data)
        numbers = self._numbers(data, normalizer)
        self.item_features_ = self._fit_features(data, normalizer, numbers)
        self._solve(data, normalizer, numbers, options)

    def _features_of(self, data: Interactions) -> ItemFeatures | None:
        """Return the features of weighed data, with a number for their weight."""
        normalizer = self.normalizer.resolve(data)
        return self._fit_features(data, normalizer, self._numbers(data, normalizer))

    def _fit_features(
        self, data: Interactions, normalizer: Normalizer, numbers: tuple[float, float]
    ) -> ItemFeatures | None:
        """Return the features of the data, with a number for their weight; None without any."""
        if self.features is None:
            return None
        fitted = ItemFeatures.of(self.features, data)
        if self.features.strength != "auto":
            return fitted
        from equipoise.models.feature_choice import choose_weight

        weight, figures = choose_weight(self, data, fitted.rows, normalizer, numbers)
        return replaced(fitted, settings=replaced(self.features, strength=weight), figures=figures)

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
        signals = self.signals
        if signals != fitted.signals and not (signals and signals.same_training(fitted.signals)):
            raise SettingError("reuse needs the same signals, because the solve depends on them")
        self._raw_data = fitted.data_
        normalizer = self.normalizer.resolve(data)
        numbers = self._numbers(data, normalizer)
        self.item_features_ = self._reused_features(fitted, data)
        penalty = self._penalty(data, normalizer, *numbers)
        weights = normalizer.user_weights(data)
        same_weights = np.array_equal(weights, fitted.normalizer_.user_weights(data))
        if not (same_weights and np.array_equal(penalty, fitted.penalty_)):
            raise SettingError("reuse needs the same l2, dropout and user weights (beta)")
        solved = Solved(fitted.inverse_, fitted.diagonal_, fitted.residual_)
        self._take(data, normalizer, numbers, penalty, solved)
        self._fit_trend()
        self._list_new_items()
        return self

    def _reused_features(
        self, fitted: LinearAutoencoder, data: Interactions
    ) -> ItemFeatures | None:
        """Return the features of a model that shares the solve of another one."""
        features, fitted_features = self.features, fitted.item_features_
        solved_weight = (
            0.0 if fitted_features is None else float(fitted_features.settings.strength)
        )
        if features is None:
            if solved_weight:
                raise SettingError(
                    "reuse needs the same features, because the solve depends on them"
                )
            return None
        weight = solved_weight if features.strength == "auto" else float(features.strength)
        again = ItemFeatures.of(replaced(features, strength=weight), data)
        if weight != solved_weight or (
            fitted_features is not None and weight and not again.same_rows(fitted_features)
        ):
            raise SettingError("reuse needs the same features, because the solve depends on them")
        return again

    @atomic
    def to(self, device: str) -> Self:
        """Move the inverse to the memory of the host ("cpu") or of a GPU, and return self."""
        self.interactions_ = self._fitted
        self.solution_ = self.solution_.to(device)
        return self

    @classmethod
    def _shared_fit(
        cls,
        models: Sequence[Any],
        data: Interactions,
        **options: Any,
    ) -> Callable[[Sequence[Any]], None]:
        """Return a function that fits models by one solve and keeps the Gram matrix between calls.

        The fitted models share one matrix and are valid until the next call.
        """
        run, rank = SolveOptions(**options), max(model._lowpass_rank for model in models)
        # the last solver, its features and its signals
        solvers: list[tuple[Any, Solver, ItemFeatures | None]] = []

        def fit(models: Sequence[Any]) -> None:
            require_strength(models, run.engine)
            signals = models[0].signals
            with limited(run.threads):
                if not solvers or solvers[0][0] != signals:
                    solvers.clear()  # frees its memory first
                    weighed = models[0]._weighed(data)
                    features = models[0].features
                    fitted = None if features is None else ItemFeatures.of(features, weighed)
                    rows = None if fitted is None else fitted.rows
                    solver = Solver(weighed, run, lowpass_rank=rank, features=rows)
                    solvers.append((signals, solver, fitted))
                _, solver, fitted = solvers[0]
                fit_together(models, solver, data, fitted)

        return fit

    @classmethod
    def _fit_seconds(cls, data: Interactions, **options: Any) -> float:
        run = SolveOptions(**options)
        return plan_fit(Size.of(data, run.dtype), run).seconds

    @classmethod
    def _prototype(cls) -> Self:
        """Return the model with a `DAN`, so that `tune` searches alpha and beta."""
        return cls(normalizer=DAN())

    def _tunable(self) -> list[str]:
        """Return the names of the settings that `tune` can vary, those of parts included."""
        names = [name for name in EXPONENTS if hasattr(self.normalizer, name)]
        names += [name for name in ("l2", "dropout", "diag_bound") if hasattr(self, name)]
        for part in ("lowpass", "features"):
            names += [n for n in PARTS[part] if hasattr(getattr(self, part), FIELDS.get(n, n))]
        return [*names, *self._shared_settings()]

    def _search_start(self, data: Interactions) -> dict[str, Any]:
        data = self._weighed(data)
        normalizer = self.normalizer.resolve(data)
        l2, dropout = self._numbers(data, normalizer)
        beta = {"beta": normalizer.exponents()[1]} if hasattr(normalizer, "beta") else {}
        return {"l2": l2, "dropout": dropout, **beta, **self._shared_settings()}

    def _search_point(self) -> dict[str, Any]:
        settings = self.settings(resolved=True)
        if self.features is not None:
            # "auto" is chosen by the last fit, not by the search
            settings["features"] = {"feature_strength": self.features.strength}
        for part in PARTS:
            settings |= settings.pop(part, None) or {}
        point = {name: settings[name] for name in self._tunable()}
        numbers = {
            name: float(point[name])
            for name in point
            if name not in (*SETTINGS, *PARTS["trend"]) and point[name] != "auto"
        }
        return {"family": type(self).__name__, **point, **numbers}

    @on_snapshot
    def _terms(self, alpha: float | None = None) -> list[Term]:
        """Return W = D_I^alpha (I - P diag(s)) D_I^-alpha without its diagonal, and the companion.

        `alpha` changes W only; the companion has its own exponent.
        """
        _ = self._fitted
        terms: list[Term] = [self.solution_.term(*self.scales(alpha))]
        if self.companion_ is not None and self.companion_.settings.strength != 0:
            terms.append(self.companion_.term)
        columns = self._new_columns
        if columns is None or self._wider is None:
            return terms
        return [*(Known(term, columns.term.mixtures) for term in terms), columns.term]

    @on_snapshot
    def scales(self, alpha: float | None = None) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return vectors a and b with W_ij = a_i P_ij b_j off the diagonal."""
        _ = self._fitted
        source, target = self.normalizer_.item_scales(self._fitted.item_counts, alpha)
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
        needed = 2 * self._fitted.n_items**2 * self.solution_.dtype.itemsize
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
        system = self._system(data, self.normalizer_, self.penalty_)
        return self.solution_.audit(system, count("targets", targets))

    def _system(self, data: Interactions, normalizer: Normalizer, penalty: Vector) -> System:
        """Return the linear system of these data, with the features of the model."""
        weights, fitted = normalizer.user_weights(data), self.item_features_
        if fitted is None:
            return System(data, weights, penalty)
        return System(data, weights, penalty, fitted.rows, float(fitted.settings.strength))

    @property
    def features_(self) -> Features | None:
        """The settings of features, with numbers in place of "auto"; None without any."""
        return None if self.item_features_ is None else self.item_features_.settings

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
        keep = min(count("keep", keep), max(self._fitted.n_items - 1, 1))
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
        fitted = self.item_features_
        state |= {} if fitted is None else {"features": fitted.state()}
        arrays = {"diagonal": self.diagonal_, "penalty": self.penalty_}
        arrays |= self.solution_.arrays()
        arrays |= {} if self.companion_ is None else self.companion_.arrays()
        arrays |= {} if fitted is None else fitted.arrays()
        return state | self.solution_.state(), arrays

    def _restore(self, state: Fields, stored: Stored) -> None:
        data, n_items = self.interactions_, self.interactions_.n_items
        normalizer = restore_normalizer(state, data)
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
        if self.features is not None:
            self.item_features_ = ItemFeatures.restored(state.group("features"), stored, n_items)
        inverse = Inverse.restored(
            state, stored, n_items, lambda: self._system(data, normalizer, penalty)
        ).matrix
        lowpass = restore_lowpass(state, self.lowpass)
        companion = None if lowpass is None else lowpass.restored(data, stored)
        solved = Solved(inverse, diagonal, state.number("residual", least=0))
        self._take(data, normalizer, numbers, penalty, solved, companion)
        self.loss_ = None if loss is None else {name: loss.number(name) for name in loss}
        if not all(np.isfinite(scale).all() for scale in self.scales()):
            raise FileFormatError("its diagonal or penalty is out of proportion")

    def _list_new_items(self) -> None:
        """Choose the map of new items where it is "auto", and make their columns."""
        previous, self._new_columns, self._wider = self._new_columns, None, None
        fitted = self.item_features_
        if fitted is None:
            return
        data = self._fitted
        if fitted.is_open:
            from equipoise.models.feature_choice import choose_map

            settings, figures = choose_map(self)
            fitted = fitted.with_map(settings, data, figures)
        if fitted.needs_columns:
            fitted = fitted.with_columns(self.solution_, self.scales(ALPHA))
        self.item_features_ = fitted
        served = data.with_new_items()
        new = np.flatnonzero(served.item_counts == 0)
        if not len(new):
            return
        rows = fitted.map_vocabulary.encode(_rows_of(served.catalogue, new), len(new))
        columns = new_columns(self, served, new, rows, previous)
        self._new_columns, self._wider = columns, served
        if self.trend_ is not None:
            self.trend_ = replaced(self.trend_, mixtures=columns.term.mixtures)

    @property
    def _usable_counts(self) -> npt.NDArray[np.int64]:
        columns = self._new_columns
        return self.item_counts_ if columns is None else columns.usable_counts

    def _shared_attributes(
        self, items: Sequence[int], target: int
    ) -> list[list[tuple[str, str]]] | None:
        columns, fitted = self._new_columns, self.item_features_
        if columns is None or fitted is None:
            return None
        return columns.shared_attributes(fitted.vocabulary, items, target)

    @atomic
    def add_items(self, items: Any, *, id: str | None = None) -> Self:
        """Add items that nobody has used yet, and return self; the next list may have them.

        Attributes of items that the model has already are replaced where the table has a value:
        those of a new item change its scores at once, those of a known item at the next update or
        fit. `update` with events makes a new item a known one.

        Parameters
        ----------
        items
            A frame or a dictionary of columns: the ids, and attributes with the names of those in
            the catalogue of the training data.
        id
            Column of the ids, if it has no common name.

        Examples
        --------
        >>> import equipoise as eq
        >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("bob", "jam")])
        >>> kinds = {"item": ["tea", "milk", "jam"], "kind": ["drink", "drink", "spread"]}
        >>> data = data.with_catalogue(kinds)
        >>> model = eq.EASE(l2=1.0, features=eq.Features(strength=0)).fit(data)
        >>> model.add_items({"item": ["cocoa"], "kind": ["drink"]}).item_index_.values.tolist()
        ['jam', 'milk', 'tea', 'cocoa']
        """
        _ = self._fitted
        if self.item_features_ is None:
            raise SettingError(
                f"this {type(self).__name__} has no features to describe new items by; fit it "
                "with features=eq.Features()"
            )
        weighed, raw = self.interactions_, self.data_
        self._raw_data = raw.with_items_described(items, id=id)
        self.interactions_ = (
            self._raw_data
            if weighed is raw
            else weighed.with_known_items(self._raw_data.known_items)
        )
        self._list_new_items()
        return self

    @on_snapshot
    def without_new_items(self) -> Self:
        """Return a copy that ranks the items of the training data only, by the solve alone."""
        plain = copy.copy(self)
        plain._new_columns = plain._wider = None
        if plain.trend_ is not None:
            plain.trend_ = replaced(plain.trend_, mixtures=None)
        return plain

    def _numbers(self, data: Interactions, normalizer: Normalizer) -> tuple[float, float]:
        """Return l2 and dropout, with numbers in place of "auto"."""
        if "auto" not in (self.l2, self.dropout):
            return float(self.l2), float(self.dropout)
        return penalty_numbers(self.l2, self.dropout, data, normalizer.user_weights)

    def _penalty(
        self, data: Interactions, normalizer: Normalizer, l2: float, dropout: float
    ) -> Vector:
        # L = l2 I + p/(1-p) D_I; D_I is the diagonal of X^T X, the raw counts where X is 0/1
        odds = dropout / (1 - dropout)
        penalty = l2 * normalizer.penalty_scale(data.n_items) + odds * data.item_squares
        # an item without users has an empty row; any positive penalty gives it weights of 0
        return np.where(penalty > 0, penalty, 1.0)

    def _solve(
        self,
        data: Interactions,
        normalizer: Normalizer,
        numbers: tuple[float, float],
        options: SolveOptions,
    ) -> None:
        """Fit with a resolved normalizer, and with numbers for l2 and dropout."""
        penalty = self._penalty(data, normalizer, *numbers)
        weights = normalizer.user_weights(data)
        system = self._system(data, normalizer, penalty)
        rows = system.features if system.has_features else None
        rank = self._lowpass_rank
        solver = Solver(data, options, lowpass_rank=rank, keep_gram=False, features=rows)
        solved = solver.solve(weights, penalty, system.feature_weight)
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
        self._wider = None
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


def _rows_of(catalogue: Any, positions: npt.NDArray[np.int64]) -> Any:
    """Return rows of a catalogue; None without one."""
    return None if catalogue is None else catalogue[positions]


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
    models: Sequence[LinearAutoencoder],
    solver: Solving,
    raw_data: Interactions | None = None,
    features: ItemFeatures | None = None,
) -> None:
    """Fit models that share l2, dropout, user weights, features and signals by one solve.

    `raw_data` are the data of the solver before the signals weighed them, `features` those that
    the solver has. The models rank known items only.
    """
    first, data = models[0], solver.train
    normalizer = first.normalizer.resolve(data)
    numbers = first._numbers(data, normalizer)
    penalty = first._penalty(data, normalizer, *numbers)
    fitted = None
    if features is not None and first.features is not None:
        # "auto" was chosen with the features, or will be by the last fit of a search
        chosen = [first.features.strength, features.settings.strength]
        number = next((weight for weight in chosen if weight != "auto"), 0.0)
        fitted = replaced(features, settings=replaced(first.features, strength=number))
    weight = 0.0 if fitted is None else float(fitted.settings.strength)
    solved = solver.solve(weights_of_users(data, normalizer), penalty, weight)
    companions: dict[LowPass | None, Companion | None] = {None: None}
    for model in models:
        # a companion depends on its settings alone
        companion = companions.get(model.lowpass)
        model._raw_data = data if raw_data is None else raw_data
        model.item_features_ = fitted
        model._take(data, model.normalizer.resolve(data), numbers, penalty, solved, companion)
        model._fit_trend()
        companions[model.lowpass] = model.companion_


def _overlap(model: LinearAutoencoder, reduced: LinearAutoencoder) -> float:
    """Return the mean overlap of the top 20 of sampled training users."""
    data = model.data_  # not weighed yet: `rank` does that
    users = data.rows(sampled_users(data))
    return model.rank(users, 20).overlap(reduced.rank(users, 20))


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
