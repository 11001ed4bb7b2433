"""Recommender: the interface of every model, its capabilities, fitting and updating.

Queries (recommend, score, similar, explain) are in `answering`.
"""

from __future__ import annotations

import inspect
import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.interactions import Interactions
from equipoise.data.readers import read
from equipoise.data.readers.frames import is_frame
from equipoise.data.signals import Signals
from equipoise.data.storage import Fields, Stored
from equipoise.errors import DataError, SettingError
from equipoise.models.answering import Answering
from equipoise.models.saving import Shapes, arrays_from, arrays_to_save, models, save_model
from equipoise.models.snapshots import atomic, on_snapshot
from equipoise.models.updating import changed_data
from equipoise.ranking.terms import Term
from equipoise.runtime.machine import limited

logger = logging.getLogger(__name__)

UNEVEN = 10  # ratio of the largest weight to the median, from which `fit` suggests signals
KEYWORD = inspect.Parameter.KEYWORD_ONLY

SearchSpace = Mapping[str, tuple[Any, ...]]  # values of each setting


@dataclass(kw_only=True, eq=False)
class Recommender(Answering):
    """Base class of all models: ranks items for a history.

    A subclass implements `_fit`, which ends in `_keep`, and `_make`, which turns the learned
    arrays into terms; a model with a popularity dial overrides `terms`. A model can be queried
    while another thread fits or updates it: see `snapshots`.

    Parameters
    ----------
    signals
        `Signals` that weigh events: those of the training data and of every history passed to
        the model. None takes the weights of the data as they are.

    Attributes
    ----------
    interactions_
        The training data, weighed by `signals`.
    data_
        The training data as passed to `fit`.
    arrays_
        Learned arrays by name; saved with the model.
    estimate_
        Estimated quality on users left out of the fit, where `tune` has measured it; saved with
        the model, and None after any change of it.
    """

    interactions_: Interactions = field(init=False, repr=False)
    arrays_: dict[str, Any] = field(init=False, repr=False)
    estimate_: dict[str, Any] | None = field(init=False, repr=False, default=None)
    _raw_data: Interactions = field(init=False, repr=False)
    _built: list[Term] = field(init=False, repr=False)
    registry: ClassVar[dict[str, type[Recommender]]] = models

    # capabilities, beside `fold_in` and `explains`; no other code checks the class of a model
    fit_options: ClassVar[frozenset[str]] = frozenset()  # the options of `fit` it supports
    ordered: ClassVar[bool] = False  # a history is a session, whose order counts
    signed: ClassVar[bool] = False  # supports negative feedback
    search_space: ClassVar[SearchSpace] = {}  # the values `tune` tries without a grid
    # the settings a solve depends on; models that differ in other settings share it (`reuse`)
    solve_settings: ClassVar[tuple[str, ...]] = ()
    in_ranges: ClassVar[bool] = False  # `tune` without a grid searches `solve_settings` in ranges

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known = models.get(cls.__name__)
        # a user's class of the same name must not replace ours in saved models
        if known is None or not known.__module__.startswith("equipoise."):
            models[cls.__name__] = cls
        parameters = inspect.signature(cls._fit).parameters.values()
        cls.fit_options = frozenset(p.name for p in parameters if p.kind is KEYWORD)

    @atomic
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
        valid: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 10,
        resume: bool = True,
    ) -> Self:
        """Fit the model to interactions and return self.

        An option that a model does not support is an error. A fit that fails leaves the model
        unchanged.

        Parameters
        ----------
        interactions
            Training data: Interactions, a frame that `eq.read` can read without options, or a
            scipy sparse matrix, users x items.
        device
            "cpu", or a GPU such as "cuda" or "cuda:1"; the model then ranks on the GPU too,
            except that the neighbourhood engine only solves there.
        dtype
            "float32", or "float64" for ill-conditioned systems.
        engine
            Linear autoencoders: "dense" in memory, "dual" through a system of users x users,
            "tiled" on disk, "gpu"; "auto" takes the GPU if `device` names one, else the fastest
            engine that fits into memory. These are exact. "neighbourhood" predicts each item from
            a few others: approximate, for catalogues too large for the exact engines, and never
            chosen by "auto". Session models: "sparse" solves for an item when it is first
            clicked, "dense" for all items at once; "auto" takes the cheaper one.
        memory
            Memory budget such as "6GB", of the machine or of the GPU; default: all free memory.
        scratch
            Folder for the tiles and the result of the tiled engine; default: a temporary one. An
            interrupted fit resumes from it, and the model needs it as long as it lives. The
            neighbourhood engine keeps its progress there until it is done.
        threads
            Number of threads; None uses all.
        refine
            Improve the solve by one Newton step, at about four times its cost.
        precision
            How a GPU multiplies float32: "auto" uses pairs of half-precision numbers on tensor
            cores if there are any, as accurate as "float32" and about three times as fast.
        neighbours
            Neighbourhood engine: number of neighbours of each item, 50 to 400, or a time limit of
            the fit such as "2m". Default: 200, or as many as fit into memory.
        progress
            Called after each step of the tiled engine with its `Progress`, or after each epoch of
            a neural model with its `Epoch`; training ends if it returns True.
        valid
            Neural models: a part of a split for early stopping on NDCG@20; the best epoch is
            kept. Without it, the last epoch is kept.
        checkpoint, checkpoint_every
            Neural models: directory for the state of training, and the epochs between two saves.
        resume
            Resume from an existing checkpoint; False starts anew and replaces it.
        """
        options = {name: value for name, value in locals().items() if name in FIT_DEFAULTS}
        data, options = _training_data(interactions), self._supported_options(options)
        if self.signals is None:
            _log_uneven_weights(data)
        with limited(threads):
            self._fit_raw(data, options)
        return self

    def _fit_raw(self, data: Interactions, options: dict[str, Any]) -> None:
        """Fit to data that the signals have not weighed yet."""
        self._raw_data, self.estimate_ = data, None
        self._fit(self._weighed(data), **options)

    def _weighed(self, data: Interactions) -> Interactions:
        """Return training data with the weights that the signals give."""
        if self.signals is None:
            return data
        if not isinstance(self.signals, Signals):
            raise SettingError(f"signals must be Signals or None, got {self.signals!r}")
        if self.ordered:
            raise SettingError(
                f"{type(self).__name__} weighs clicks by their order; leave signals out, and see "
                "decay_inference and decay_time"
            )
        weighed = self.signals.apply(data)
        if weighed.signed and not self.signed:
            raise SettingError(
                f"{type(self).__name__} cannot learn from negative values; use returns='net' or "
                "a linear autoencoder"
            )
        return weighed

    @classmethod
    def _supported_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options that `_fit` takes; another one must have its default value."""
        for name, value in options.items():
            is_default = isinstance(value, Hashable) and value == FIT_DEFAULTS[name]
            if name not in cls.fit_options and not is_default:
                supported = ", ".join(sorted({*cls.fit_options, "threads"}))
                raise SettingError(
                    f"fit() of {cls.__name__} does not support {name}; leave it out (supported: "
                    f"{supported})"
                )
        return {name: value for name, value in options.items() if name in cls.fit_options}

    @abstractmethod
    def _fit(self, data: Interactions, *args: Any, **options: Any) -> None:
        """Learn from the data; its keyword arguments are the options of `fit` it supports.

        It may set any attribute: `fit` works on a copy that replaces the model at the end.
        """

    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the terms whose sum is the scoring matrix W; `alpha` sets the popularity dial.

        A model without a dial refuses any alpha.
        """
        if alpha is not None:
            raise SettingError(f"{type(self).__name__} has no popularity dial; leave alpha out")
        _ = self._fitted
        return self._built

    @property
    def alpha_(self) -> float | None:
        """The position of the popularity dial; None for a model that has none."""
        normalizer = getattr(self, "normalizer_", None)
        return None if normalizer is None else float(normalizer.exponents()[0])

    @property
    def data_fingerprint_(self) -> str:
        """Fingerprint of the training data as passed to `fit`."""
        return self.data_.fingerprint

    @atomic
    def update(self, added: Any = None, removed: Any = None, *, replace: bool = False) -> Self:
        """Add and remove interactions by a new fit on the changed data.

        Parameters
        ----------
        added
            New pairs, as Interactions or a frame; their users and items may be new.
        removed
            Pairs to remove, as Interactions or a frame; or the id of a user to remove altogether,
            or a list of such ids.
        replace
            Let the weight of an added pair replace an existing one; by default they add up, as if
            both tables had been read as one.
        """
        old, options = self.data_, self._refit_options()
        new = changed_data(old, added, removed, replace=replace)
        if new.fingerprint != old.fingerprint:
            self._fit_raw(new, options)
        return self

    def _refit_options(self) -> dict[str, Any]:
        """Return the options of the fit in `update`, or raise if there can be none."""
        return {name: FIT_DEFAULTS[name] for name in self.fit_options}

    def reuse(self, fitted: Any) -> Self:
        """Fit by sharing the solve of another model with the same `solve_settings`."""
        raise SettingError(f"{type(self).__name__} cannot reuse the fit of another model; fit it")

    @classmethod
    def shared_fit(
        cls, models: Sequence[Any], data: Interactions, **options: Any
    ) -> Callable[[Sequence[Any]], None]:
        """Return a function that fits models with equal `solve_settings` by one solve.

        `tune` calls it once for each solve; `models` are those of the first one. The options are
        those of `fit`.
        """

        def fit(models: Sequence[Any]) -> None:
            first = models[0].fit(data, **options)
            for model in models[1:]:
                model.reuse(first)

        return fit

    @classmethod
    def fit_seconds(cls, data: Interactions, **options: Any) -> float:
        """Return the expected time of a fit, 0 if unknown."""
        return 0.0

    @on_snapshot
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory (manifest, `.npy`, Parquet) that `eq.load` opens; atomic."""
        save_model(self, path)

    def _keep(self, data: Interactions, arrays: dict[str, Any]) -> None:
        """Set the fitted state: the data, and arrays or sparse matrices by name."""
        self._built = self._make(data, arrays)
        self.interactions_, self.arrays_ = data, arrays

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        """Return the terms of the scores; not used by a model that overrides `terms`."""
        return []

    def _shapes(self) -> Shapes:
        """Return names and shapes of the learned arrays, for `load` to check; see `SPARSE`."""
        return {}

    def _state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the learned state beside the data, plain values and arrays, for `save`."""
        return {}, arrays_to_save(vars(self).get("arrays_", {}))

    def _restore(self, state: Fields, stored: Stored) -> None:
        """Restore the result of `_state`; the data are in place already."""
        self._keep(self.interactions_, arrays_from(stored, self._shapes(), len(self.item_index_)))


FIT_DEFAULTS = {
    parameter.name: parameter.default
    for parameter in inspect.signature(Recommender.fit).parameters.values()
    if parameter.kind is KEYWORD and parameter.name != "threads"
}


def _training_data(source: Any) -> Interactions:
    if sp.issparse(source):
        return Interactions(source)
    if is_frame(source):
        return read(source)
    if not isinstance(source, Interactions):
        raise DataError(
            "fit needs Interactions, a frame or a scipy sparse matrix; make them with eq.read(...)"
        )
    return source


def _log_uneven_weights(data: Interactions) -> None:
    weights = data.matrix.data
    if len(weights) and weights.max() > UNEVEN and weights.max() > UNEVEN * np.median(weights):
        logger.info(
            "weights of pairs go up to %g and count as they are; signals (log1p, or binary for "
            "none) often rank better",
            weights.max(),
        )
