"""Recommender: the interface of every model, its capabilities, fitting and updating.

Queries (recommend, score, similar, explain) are in `answering`.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.interactions import Interactions
from equipoise.data.readers import read
from equipoise.data.signals import Signals
from equipoise.data.storage import Fields, Stored
from equipoise.data.tables import is_frame
from equipoise.errors import DataError, SettingError
from equipoise.models.answering import Answering, Method, on_snapshot
from equipoise.models.histories import Unknowns
from equipoise.models.saving import Shapes, arrays_from, arrays_to_save, model_classes, save_model
from equipoise.models.trend import (
    FittedTrend,
    Trend,
    sample_of,
    spread_of_scores,
    usual_recent_users,
)
from equipoise.models.updating import changed_data
from equipoise.models.vectors import Factors, Vectors, sampled_users
from equipoise.ranking.ranker import top_k
from equipoise.ranking.terms import Term
from equipoise.runtime.machine import limited
from equipoise.solve.planning import SolveOptions

logger = logging.getLogger(__name__)

LISTED = 20  # items of the lists that measure what vectors cost
UNEVEN = 10  # ratio of the largest weight to the median, from which `fit` suggests signals

SearchSpace = Mapping[str, tuple[Any, ...]]  # values of each setting


def atomic(method: Method) -> Method:
    """Make a method change the model completely or not at all, and return the model.

    It works on a copy, which shares all arrays and must not write into them; at the end the model
    takes the copy's attributes in one step. A method that fails leaves the model unchanged, and a
    query on another thread (`on_snapshot`) sees the model either before or after the change.
    """

    @functools.wraps(method)
    def wrapper(model: Any, /, *args: Any, **options: Any) -> Any:
        twin = copy.copy(model)
        method(twin, *args, **options)
        model.__dict__ = twin.__dict__
        return model

    return cast(Method, wrapper)


def keyword_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the keyword-only arguments of a function, sorted."""
    parameters = inspect.signature(function).parameters.values()
    return sorted(
        parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    )


def names_fit_options(fit: Method) -> Method:
    """Make `fit` name the options it has where it is called with another one."""
    supported = keyword_names(fit)

    @functools.wraps(fit)
    def wrapper(model: Any, interactions: Any, **options: Any) -> Any:
        for name in options:
            if name not in supported:
                raise SettingError(
                    f"fit() of {type(model).__name__} does not support {name}; leave it out "
                    f"(supported: {', '.join(supported)})"
                )
        return fit(model, interactions, **options)

    return cast(Method, wrapper)


@dataclass(kw_only=True, eq=False)
class Recommender(Answering):
    """Base class of all models: ranks items for a history.

    A subclass implements `_fit`, which ends in `_keep`, and `_make`, which turns the learned
    arrays into terms; a model with a popularity dial overrides `_terms`. A model can be queried
    while another thread fits or updates it: see `atomic`.

    Parameters
    ----------
    signals
        `Signals` that weigh events: those of the training data and of every history passed to
        the model. None takes the weights of the data as they are.
    trend
        A `Trend`, which makes recent popularity a prior of the scores; None for none.

    Attributes
    ----------
    interactions_
        The training data, weighed by `signals`.
    data_
        The training data as passed to `fit`.
    trend_
        The fitted trend; None without one.
    arrays_
        Learned arrays by name; saved with the model.
    estimate_
        Estimated quality on users left out of the fit, where `tune` has measured it; saved with
        the model, and None after any change of it.
    """

    interactions_: Interactions = field(init=False, repr=False)
    trend_: FittedTrend | None = field(init=False, repr=False, default=None)
    # ranks items for users without a history if there is no trend; None without times
    _recent_users: npt.NDArray[np.float64] | None = field(init=False, repr=False, default=None)
    arrays_: dict[str, Any] = field(init=False, repr=False)
    estimate_: dict[str, Any] | None = field(init=False, repr=False, default=None)
    _raw_data: Interactions = field(init=False, repr=False)
    _built: list[Term] = field(init=False, repr=False)

    # capabilities, beside those of `Answering`; no other code checks the class of a model
    signed: ClassVar[bool] = False  # supports negative feedback
    search_space: ClassVar[SearchSpace] = {}  # the values `tune` tries without a grid
    # the settings a solve depends on; models that differ in other settings share it (`reuse`)
    _solve_settings: ClassVar[tuple[str, ...]] = ()
    _in_ranges: ClassVar[bool] = False  # `tune` without a grid searches those in ranges

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known = model_classes.get(cls.__name__)
        # a user's class of the same name must not replace ours in saved models
        if known is None or not known.__module__.startswith("equipoise."):
            model_classes[cls.__name__] = cls

    @names_fit_options
    def fit(self, interactions: Any, *, threads: int | None = None) -> Self:
        """Fit the model to interactions and return self.

        A fit that fails leaves the model unchanged.

        Parameters
        ----------
        interactions
            Training data: Interactions, a frame that `eq.read` can read without options, or a
            scipy sparse matrix, users x items.
        threads
            Number of threads; None uses all.
        """
        return self._fit_model(interactions, SolveOptions(threads=threads))

    @atomic
    def _fit_model(self, interactions: Any, options: SolveOptions) -> Self:
        data = _training_data(interactions)
        if self.signals is None:
            _log_uneven_weights(data)
        with limited(options.threads):
            self._fit_raw(data, options)
        return self

    def _fit_raw(self, data: Interactions, options: SolveOptions) -> None:
        """Fit to data that the signals have not weighed yet."""
        self._raw_data, self.estimate_ = data, None
        self._fit(self._weighed(data), options)
        self._fit_trend()
        self._list_new_items()

    def _fit_trend(self) -> None:
        """Count recent users for the trend; the terms of the scores must be there."""
        self.trend_, self._recent_users = None, None
        if self.data_.time_span is not None:
            self._recent_users = usual_recent_users(self.data_)
        if self.trend is not None:
            if not isinstance(self.trend, Trend):
                raise SettingError(f"trend must be a Trend or None, got {self.trend!r}")
            spread = self._spread_of_scores() if self.trend.share else 0.0
            self.trend_ = self.trend.fit(self.data_, spread)

    def _list_new_items(self) -> None:
        """Make scores for the items without users; only models with features can."""

    def _spread_of_scores(self) -> float:
        """Return the standard deviation of the scores, without a trend, of training users."""
        users = sample_of(self._fitted)
        return spread_of_scores(self._terms(), self._history_rows(users), users)

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
    def _fit_options(cls) -> list[str]:
        return keyword_names(cls.fit)

    @abstractmethod
    def _fit(self, data: Interactions, options: Any) -> None:
        """Learn from the data, with the options that `fit` passes on.

        It may set any attribute: `fit` works on a copy that replaces the model at the end.
        """

    def _terms(self, alpha: float | None = None) -> list[Term]:
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
        old, options = self.data_.loaded("update"), self._refit_options()
        new = changed_data(old, added, removed, replace=replace)
        if new.fingerprint != old.fingerprint:
            self._fit_raw(new, options)
        return self

    def _refit_options(self) -> SolveOptions:
        """Return the options of the fit in `update`, or raise if there can be none."""
        return SolveOptions()

    def reuse(self, fitted: Any) -> Self:
        """Fit by sharing the solve of another model with the same `_solve_settings`."""
        raise SettingError(f"{type(self).__name__} cannot reuse the fit of another model; fit it")

    @classmethod
    def _shared_fit(
        cls, models: Sequence[Any], data: Interactions, **options: Any
    ) -> Callable[[Sequence[Any]], None]:
        """Return a function that fits models with equal `_solve_settings` by one solve.

        `tune` calls it once for each solve; `models` are those of the first one. The options are
        those of `fit`.
        """

        def fit(models: Sequence[Any]) -> None:
            first = models[0].fit(data, **options)
            for model in models[1:]:
                model.reuse(first)

        return fit

    @classmethod
    def _fit_seconds(cls, data: Interactions, **options: Any) -> float:
        """Return the expected time of a fit with these options, 0 if unknown."""
        return 0.0

    @on_snapshot
    def vectors(self, rank: int = 128, *, alpha: float | None = None) -> Vectors:
        """Return item and user vectors whose inner products approximate the scores.

        For a vector database or another program that searches the nearest items. Their `overlap`
        says how much of the lists is preserved.

        Parameters
        ----------
        rank
            Length of the vectors: longer ones preserve more. At most the number of items or users.
        alpha
            As for `recommend`.
        """
        terms = self._ranking_terms(alpha)
        of_history = self.explains and any(term.constant is None for term in terms)
        if not of_history or not self.fold_in or self.ordered:
            raise SettingError(
                f"{type(self).__name__} has no vectors: its scores are not a sum over the items "
                "of a history; use a linear autoencoder"
            )
        data = self._served.loaded("vectors of its users")
        history = self._history_rows(None)
        factors = Factors.of(terms, history, rank)
        sample = history[sampled_users(data)]
        exact, approximate = (top_k(part, sample, LISTED) for part in (terms, factors.terms()))

        def encode(histories: Any) -> npt.NDArray[np.float32]:
            return factors.user_vectors(self._request(histories, Unknowns()).history)

        overlap = exact.overlap(approximate)
        return Vectors(
            factors.item_frame(data.item_index),
            factors.user_frame(data.user_index, history),
            factors.rank,
            overlap,
            encode,
        )

    @on_snapshot
    def save(self, path: str | os.PathLike[str], *, data: str | None = None) -> None:
        """Write a directory (manifest, `.npy`, Parquet) that `eq.load` opens; atomic.

        A URL such as ``s3://bucket/model`` is written through fsspec, the manifest last.

        Parameters
        ----------
        path
            Folder or URL.
        data
            Where the training data go. "with": into the model, which loads them into memory.
            "beside": into Parquet files in the same folder, blocks of users that are read when
            they are needed: for users by id, `update`, leave-one-out and lists of all users.
            "none": nowhere; the model then answers histories, and all else raises
            `MissingDataError`. Default: as the model has them now, which is "with" after `fit`.
        """
        save_model(self, path, data)

    def _keep(self, data: Interactions, arrays: dict[str, Any]) -> None:
        """Set the fitted state: the data, and arrays or sparse matrices by name."""
        self._built = self._make(data, arrays)
        self.interactions_, self.arrays_ = data, arrays

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        """Return the terms of the scores; not used by a model that overrides `_terms`."""
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
    if not len(weights):
        return
    with np.errstate(over="ignore"):  # the mean of two large numbers in the middle
        largest, median = float(weights.max()), float(np.median(weights))
    if largest > UNEVEN and largest > UNEVEN * median:
        logger.info(
            "weights of pairs go up to %g and are used as they are; signals with the transform "
            "log1p or binary often rank better",
            largest,
        )
