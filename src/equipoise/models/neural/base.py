"""Recall and NDCG computed where the model trains, so that early stopping waits for no transfer.

The lists of a fitted model come from the ranker and their metrics from `equipoise.evaluate`; this
is the quick look in between. It differs from them in the order of equal scores only.

The loop that trains a neural model: epochs, early stopping, checkpoints.

What the neural models share: settings of the training, fitting, saving.
"""

from __future__ import annotations

import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from equipoise.checks import number as check_number
from equipoise.errors import (
    DataError,
    FileFormatError,
    MissingExtraError,
    NotFittedError,
    SettingError,
    SolveError,
)
from equipoise.ids import Unknown
from equipoise.interactions import Interactions
from equipoise.machine import count
from equipoise.manifest import Fields
from equipoise.matrix import Csr, cell_keys
from equipoise.models.base import Recommender
from equipoise.models.recommendations import Explanation
from equipoise.ranking.terms import Term
from equipoise.solve.torch_backend import Tensor, find_device, load_torch, send
from equipoise.split.parts import Part
from equipoise.storage import MANIFEST, Stored, check_ours, load_directory, write_directory

K = 20  # length of the lists


SCORES = 1 << 28  # bytes of scores worked on at a time

Scorer = Callable[[int, int], Tensor]  # scores of the people from a row to another


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """A sparse matrix on the device, whose rows are asked for as dense batches."""

    indptr: Tensor
    indices: Tensor
    values: Tensor
    n_items: int

    @classmethod
    def of(cls, matrix: Csr, device: Any) -> DeviceRows:
        """Copy a matrix to the device."""
        indptr, indices = (
            send(part.astype(np.int64), device) for part in (matrix.indptr, matrix.indices)
        )
        values = send(matrix.data.astype(np.float32), device)
        return cls(indptr, indices, values, matrix.shape[1])

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def entries(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of the row, from 0, and the place of each stored pair."""
        torch = load_torch()
        starts = self.indptr[rows]
        sizes = self.indptr[rows + 1] - starts
        row = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), sizes)
        before = sizes.cumsum(0) - sizes
        place = torch.arange(len(row), device=rows.device) + (starts - before)[row]
        return row, place

    def dense(self, rows: Tensor) -> Tensor:
        """Return these rows, zeros included."""
        row, place = self.entries(rows)
        out = self.values.new_zeros(len(rows), self.n_items)
        out[row, self.indices[place]] = self.values[place]
        return out


class Judge:
    """A part of a split on the device.

    Parameters
    ----------
    part
        The people, over the items of `train`.
    train
        Training data; `users` are the positions of the people there, -1 for strangers.
    device
        A torch device.
    """

    def __init__(self, part: Part, train: Interactions, device: Any) -> None:
        torch = load_torch()
        history = part.history.with_items(train.item_index)
        target = part.target.with_items(train.item_index).matrix
        self.users = train.user_index.positions(history.users, unknown="skip")
        self.history = DeviceRows.of(history.matrix, device)
        self._targets = send(np.sort(cell_keys(target)).astype(np.int64), device)
        size = send(np.diff(target.indptr).astype(np.int64), device)
        gain = 1 / torch.log2(torch.arange(2, K + 2, device=device, dtype=torch.float64))
        capped = size.clamp(max=K)
        self._gain, self._ideal = gain, gain.cumsum(0)[capped - 1]
        self._wanted = size if part.protocol == "weak" else capped

    def __call__(self, scorer: Scorer) -> tuple[float, float]:
        """Return mean recall and NDCG at 20; in the weak protocol recall divides by all targets.

        Every person of a part has a target.
        """
        torch = load_torch()
        n_users, n_items = len(self.history), self.history.n_items
        total = torch.zeros(2, dtype=torch.float64, device=self._gain.device)
        step = max(1, SCORES // (4 * n_items))
        for low in range(0, n_users, step):
            high = min(low + step, n_users)
            rows = torch.arange(low, high, device=total.device)
            scores = scorer(low, high)
            seen, place = self.history.entries(rows)
            scores[seen, self.history.indices[place]] = -torch.inf
            best = scores.topk(min(K, n_items), dim=1).indices
            keys = best + rows[:, None] * n_items
            at = torch.searchsorted(self._targets, keys).clamp(max=len(self._targets) - 1)
            hits = (self._targets[at] == keys).double()
            total[0] += (hits.sum(1) / self._wanted[low:high]).sum()
            found = hits @ self._gain[: hits.shape[1]]
            total[1] += (found / self._ideal[low:high]).sum()
        recall, ndcg = (total / n_users).tolist()
        return recall, ndcg


logger = logging.getLogger(__name__)

KIND = "equipoise-training"


VERSION = 1


MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}  # of Adam, by our name and torch's


def neural_torch() -> Any:
    """Return the module torch, or say which extra brings it."""
    try:
        return load_torch()
    except MissingExtraError as error:
        raise MissingExtraError(
            "neural models need torch; install it with: pip install 'equipoise[neural]'"
        ) from error


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave; handed to `progress`.

    Parameters
    ----------
    epoch, epochs
        Number of this epoch, from 1, and of all that were asked for.
    loss
        Mean over the batches.
    recall, ndcg
        At 20 on the validation part, where this epoch was judged.
    best
        The epoch with the best NDCG so far; None without a validation part.
    seconds
        Since training began or was resumed.
    """

    epoch: int
    epochs: int
    loss: float
    recall: float | None
    ndcg: float | None
    best: int | None
    seconds: float


Progress = Callable[[Epoch], Any]


class Task(Protocol):
    """A model in training: its parameters and what becomes of them."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What is learned, by name; leaves of the graph of torch."""

    def batches(self, generator: Any) -> Iterator[Any]:
        """Draw the batches of an epoch."""

    def loss(self, batch: Any, update: int, generator: Any) -> Tensor:
        """Return the loss of a batch; `update` counts the batches of all epochs from 0."""

    def scorer(self, judge: Judge) -> Scorer:
        """Return a function that scores all items for rows of the judge's people."""


@dataclass(frozen=True)
class Course:
    """How long to train and when to look.

    Parameters
    ----------
    epochs
        At most this many.
    evaluate_every
        Epochs between two looks at the validation part; the last epoch is always judged.
    patience
        Looks without a better NDCG before training stops; None never stops it.
    learning_rate
        Of Adam.
    checkpoint
        Directory for the state of training; None keeps none.
    checkpoint_every
        Epochs between two checkpoints.
    identity
        Settings, data and device, which a checkpoint must share to be resumed from.
    """

    epochs: int
    evaluate_every: int
    patience: int | None
    learning_rate: float
    checkpoint: Path | None = None
    checkpoint_every: int = 10
    identity: dict[str, Any] = field(default_factory=dict)


class Training:
    """The state of a run: parameters, Adam's moments, random numbers and the best epoch so far."""

    def __init__(self, task: Task, course: Course, judge: Judge | None, generator: Any) -> None:
        torch = neural_torch()
        self.task, self.course, self.judge, self.generator = task, course, judge, generator
        parameters = list(task.parameters.values())
        self.optimizer = torch.optim.Adam(parameters, lr=course.learning_rate, fused=True)
        self.epoch = self.update = self.best_epoch = self.without_gain = 0
        self.best: dict[str, Tensor] = {}
        self.history: list[dict[str, Any]] = []

    @property
    def over(self) -> bool:
        """Whether all epochs are done or nothing was gained for too long."""
        patience = self.course.patience
        stuck = patience is not None and self.without_gain >= patience
        return self.epoch >= self.course.epochs or stuck

    def run(self, progress: Progress | None) -> None:
        """Train to the end and put the best epoch's parameters in place; without a judge the last.

        Training also ends where `progress` returns True.
        """
        began = time.perf_counter()
        ended = False
        while not self.over and not ended:
            loss = self._epoch()
            if not np.isfinite(loss):
                raise SolveError(
                    f"the loss of epoch {self.epoch} is not a number; lower learning_rate"
                )
            due = self.epoch % self.course.evaluate_every == 0 or self.epoch == self.course.epochs
            recall, ndcg = self._look() if due and self.judge is not None else (None, None)
            self.history.append(
                {"epoch": self.epoch, "loss": loss, "recall": recall, "ndcg": ndcg}
            )
            if self.course.checkpoint and (
                self.over or self.epoch % self.course.checkpoint_every == 0
            ):
                self.save(self.course.checkpoint)
            seconds = time.perf_counter() - began
            best = self.best_epoch or None
            said = Epoch(self.epoch, self.course.epochs, loss, recall, ndcg, best, seconds)
            logger.info("%s", said)
            ended = progress is not None and progress(said) is True
        torch = neural_torch()
        with torch.no_grad():
            for name, tensor in self.best.items():
                self.task.parameters[name].copy_(tensor)

    def _epoch(self) -> float:
        torch = neural_torch()
        total, batches = torch.zeros((), device=self.generator.device), 0
        for batch in self.task.batches(self.generator):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.task.loss(batch, self.update, self.generator)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()  # stays on the device: reading it would wait for each batch
            self.update, batches = self.update + 1, batches + 1
        self.epoch += 1
        return float(total) / batches

    def _look(self) -> tuple[float, float]:
        torch = neural_torch()
        assert self.judge is not None
        with torch.no_grad():
            recall, ndcg = self.judge(self.task.scorer(self.judge))
        earlier = [seen["ndcg"] for seen in self.history if seen["ndcg"] is not None]
        if earlier and ndcg <= max(earlier):
            self.without_gain += 1
        else:
            self.without_gain, self.best_epoch = 0, self.epoch
            self.best = {name: each.detach().clone() for name, each in self._parameters()}
        return recall, ndcg

    def _parameters(self) -> list[tuple[str, Tensor]]:
        return list(self.task.parameters.items())

    def save(self, path: Path) -> None:
        """Write all that the next epoch depends on, atomically."""
        tensors = {f"best_{name}": tensor for name, tensor in self.best.items()}
        for name, parameter in self._parameters():
            tensors[f"now_{name}"] = parameter.detach()
            for ours, theirs in MOMENTS.items():
                tensors[f"{ours}_{name}"] = self.optimizer.state[parameter][theirs]
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        arrays["random"] = self.generator.get_state().numpy()
        numbers = ("epoch", "update", "best_epoch", "without_gain", "history")
        meta = {**{name: getattr(self, name) for name in numbers}, **self.course.identity}
        write_directory(path, KIND, VERSION, meta, arrays, {}, self._arrays)

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Take up the state of a checkpoint of the same settings, data and device."""
        stored = load_directory(path, KIND, VERSION, _checked, verify=True)
        for name, mine in self.course.identity.items():
            theirs = stored.meta.get(name)
            if theirs != mine:
                raise DataError(
                    f"the checkpoint {path} has other {name} ({theirs!r}, not {mine!r}); remove "
                    "it, choose another path, or fit with resume=False"
                )
        try:
            self._take(stored)
        except (FileFormatError, RuntimeError) as error:
            raise FileFormatError(f"the checkpoint {path} is damaged: {error}") from error
        logger.info("resumed after epoch %d from %s", self.epoch, path)

    def _arrays(self, stored: Stored) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a checkpoint, which must be those of these parameters."""
        roles = ["now", *MOMENTS, *(["best"] if _checked(stored).meta["best_epoch"] else [])]
        return {
            f"{role}_{name}": stored.finite(f"{role}_{name}", tuple(parameter.shape), sizes=(4,))
            for role in roles
            for name, parameter in self._parameters()
        }

    def _take(self, stored: Stored) -> None:
        torch = neural_torch()
        device = self.generator.device
        found = {name: send(each, device) for name, each in self._arrays(stored).items()}
        size = (self.generator.get_state().numel(),)
        random = stored.array("random", size, "u", sizes=(1,))
        self.generator.set_state(torch.from_numpy(np.array(random)))
        for name in ("epoch", "update", "best_epoch", "without_gain"):
            setattr(self, name, stored.meta.whole(name))
        self.history = training_record(stored.meta)
        for name, parameter in self._parameters():
            state = {"step": torch.tensor(float(self.update), device=device)}
            state |= {theirs: found[f"{ours}_{name}"] for ours, theirs in MOMENTS.items()}
            self.optimizer.state[parameter] = state
            with torch.no_grad():
                parameter.copy_(found[f"now_{name}"])
        if self.best_epoch:
            self.best = {name: found[f"best_{name}"] for name, _ in self._parameters()}


def _checked(stored: Stored) -> Stored:
    """Return a checkpoint whose numbers make sense."""
    epoch = stored.meta.whole("epoch")
    stored.meta.whole("best_epoch", most=epoch)
    for name in ("update", "without_gain"):
        stored.meta.whole(name, most=2**53)
    training_record(stored.meta)
    return stored


def training_record(fields: Fields) -> list[dict[str, Any]]:
    """Return the loss of each epoch, with recall and NDCG where it was judged."""
    record = fields.groups("history")
    for entry in record:
        entry.whole("epoch", least=1)
        entry.number("loss")
        for name in ("recall", "ndcg"):
            if entry.get(name, name) is not None:
                entry.number(name, least=0)
    return [dict(entry) for entry in record]


def has_checkpoint(path: Path) -> bool:
    """Whether there is something to resume from; a path that cannot hold a checkpoint is refused.

    Epochs later, when the first one is written, is too late to learn that.
    """
    check_ours(path, KIND)
    return (path / MANIFEST).is_file()


@contextmanager
def torch_threads() -> Iterator[None]:
    """Let torch use no more threads than are in force, inside the block."""
    torch = neural_torch()
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, count()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_array(tensor: Tensor) -> npt.NDArray[np.float32]:
    """Copy a tensor to the host."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)


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

    def _fit(
        self,
        data: Interactions,
        *,
        valid: Part | None,
        device: str,
        progress: Progress | None,
        checkpoint: str | os.PathLike[str] | None,
        checkpoint_every: int,
        resume: bool,
    ) -> None:
        # On a processor the same seed and number of threads give the same bits, and a run that was
        # resumed gives those of one that was never interrupted. On a card sums are taken in an
        # order that changes from run to run, and so do the last digits.
        if not data.n_interactions:
            raise DataError("fit needs at least one interaction")
        check_count("checkpoint_every", checkpoint_every)
        torch = neural_torch()
        found = find_device(device)
        with torch_threads():
            judge = None if valid is None else self._judge(valid, data, found)
            generator = torch.Generator(found).manual_seed(self.seed)
            task = self._task(data, generator)
            course = Course(
                epochs=self.epochs,
                evaluate_every=self.evaluate_every,
                patience=self.patience,
                learning_rate=self.learning_rate,
                checkpoint=None if checkpoint is None else Path(checkpoint),
                checkpoint_every=checkpoint_every,
                identity={
                    "settings": self.settings(),
                    "data": data.fingerprint,
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
        self._take(data, arrays, kept, training.history)

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
