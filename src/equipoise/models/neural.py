"""What the neural models share: settings of the training, fitting, saving."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt

from equipoise.errors import DataError, FileFormatError, NotFittedError, SettingError
from equipoise.ids import Unknown
from equipoise.interactions import Interactions
from equipoise.manifest import Fields
from equipoise.models.base import Recommender, at_once
from equipoise.models.neural_judging import Judge
from equipoise.models.neural_training import (
    Course,
    Progress,
    Task,
    Training,
    has_checkpoint,
    neural_torch,
    torch_threads,
    training_record,
)
from equipoise.models.recommendations import Explanation
from equipoise.normalize import check_number
from equipoise.solve.card import find_device
from equipoise.split.parts import Part
from equipoise.storage import Stored
from equipoise.terms import Term
from equipoise.threads import limited

Array = npt.NDArray[Any]


@dataclass(kw_only=True, eq=False)
class NeuralModel(Recommender):
    """Base of the neural models: a subclass makes a training task and terms of what it learned.

    Parameters
    ----------
    learning_rate
        Of Adam, 1e-4 to 1e-2.
    batch
        Interactions (of MultVAE: people) per update.
    epochs
        Passes over the data, at most.
    evaluate_every
        Epochs between two looks at the validation part.
    patience
        Looks without a better NDCG@20 before training stops; None never stops it.
    seed
        Of all random numbers.

    Attributes
    ----------
    arrays_
        What was learned, by name; saved with the model.
    epoch_
        The epoch whose parameters were kept.
    history_
        Loss of each epoch, with recall and NDCG at 20 where it was judged.
    """

    learning_rate: float = 1e-3
    batch: int = 2048
    epochs: int = 100
    evaluate_every: int = 5
    patience: int | None = 10
    seed: int = 0

    arrays_: dict[str, Any] = field(init=False, repr=False)
    epoch_: int = field(init=False, repr=False)
    history_: list[dict[str, Any]] = field(init=False, repr=False)
    _built: list[Term] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "evaluate_every"):
            check_count(name, getattr(self, name))
        if self.patience is not None:
            check_count("patience", self.patience)
        check_count("seed", self.seed, least=0)
        check_positive("learning_rate", self.learning_rate)

    @at_once
    def fit(
        self,
        interactions: Interactions,
        *,
        valid: Part | None = None,
        device: str = "cpu",
        threads: int | None = None,
        progress: Progress | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 10,
        resume: bool = True,
    ) -> Self:
        """Train the model and return self.

        On a processor the same seed and number of threads give the same bits, and a run that was
        resumed gives those of one that was never interrupted. On a card sums are taken in an order
        that changes from run to run, and so do the last digits.

        Parameters
        ----------
        interactions
            Training data.
        valid
            A part of a split to stop on: the epoch with the best NDCG@20 is kept. Without it, the
            last epoch is.
        device
            "cpu", or a card such as "cuda".
        threads
            Number of threads; None uses all.
        progress
            Called with an `Epoch` after each epoch; training ends where it returns True.
        checkpoint
            Directory to keep the state of training in.
        checkpoint_every
            Epochs between two checkpoints.
        resume
            Go on from the checkpoint where there is one; False starts anew and replaces it.
        """
        if not isinstance(interactions, Interactions):
            raise DataError("fit needs Interactions; make them with eq.read(...)")
        if not interactions.n_interactions:
            raise DataError("fit needs at least one interaction")
        check_count("checkpoint_every", checkpoint_every)
        torch = neural_torch()
        found = find_device(device)
        with limited(threads), torch_threads(threads):
            judge = None if valid is None else self._judge(valid, interactions, found)
            generator = torch.Generator(found).manual_seed(self.seed)
            task = self._task(interactions, generator)
            course = Course(
                epochs=self.epochs,
                evaluate_every=self.evaluate_every,
                patience=self.patience,
                learning_rate=self.learning_rate,
                checkpoint=None if checkpoint is None else Path(checkpoint),
                checkpoint_every=checkpoint_every,
                identity={
                    "settings": self.settings(),
                    "data": interactions.fingerprint,
                    "validation": None if valid is None else valid.fingerprint,
                    "device": found.type,
                },
            )
            training = Training(task, course, judge, generator)
            if course.checkpoint and has_checkpoint(course.checkpoint) and resume:
                training.resume(course.checkpoint)
            training.run(progress)
            with torch.no_grad():
                arrays = self._learned(task)
        kept = training.best_epoch or training.epoch
        self._take(interactions, arrays, kept, training.history)
        return self

    def terms(self, alpha: float | None = None) -> list[Term]:
        """Return the terms of the scores; there is no popularity dial, so `alpha` must be None."""
        if alpha is not None:
            raise SettingError(f"{type(self).__name__} has no popularity dial; leave alpha out")
        if not hasattr(self, "_built"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self._built

    def explain(
        self,
        history: Any,
        item: Any,
        *,
        alpha: float | None = None,
        unknown: Unknown = "error",
    ) -> Explanation:
        """Refuse: a score of these models is not a sum over the items of the history."""
        raise DataError(
            f"{type(self).__name__} cannot explain a score, which is not a sum over the items of "
            "the history; take a linear model for that"
        )

    @abstractmethod
    def _task(self, interactions: Interactions, generator: Any) -> Task:
        """Return the task with its first parameters drawn."""

    @abstractmethod
    def _learned(self, task: Any) -> dict[str, Array]:
        """Return what scoring needs of a trained task."""

    @abstractmethod
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of what `_learned` gives, for `load` to check."""

    @abstractmethod
    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        """Return the terms."""

    def _judge(self, valid: Part, interactions: Interactions, device: Any) -> Judge:
        return Judge(valid, interactions, device)

    def _take(
        self,
        interactions: Interactions,
        arrays: dict[str, Any],
        epoch: int,
        history: list[dict[str, Any]],
    ) -> None:
        self._built = self._make(interactions, arrays)
        self.interactions_, self.arrays_ = interactions, arrays
        self.epoch_, self.history_ = epoch, history

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"epoch": self.epoch_, "history": self.history_}, self.arrays_

    def _restore(self, state: Fields, stored: Stored) -> None:
        epoch, history = state.whole("epoch"), training_record(state)
        arrays = {name: stored.finite(name, shape) for name, shape in self._shapes().items()}
        if any(array.dtype != "float32" for array in arrays.values()):
            raise FileFormatError("its arrays are not float32")
        self._take(self.interactions_, arrays, epoch, history)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse what cannot be a number of things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name} must be a whole number >= {least}, got {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Refuse what is not a positive number."""
    if check_number(name, value) <= 0:
        raise SettingError(f"{name} must be > 0, got {value}")
