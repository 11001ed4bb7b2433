"""The loop that trains a neural model: epochs, early stopping, checkpoints."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, FileFormatError, MissingExtraError, SolveError
from equipoise.manifest import Fields
from equipoise.models.neural_judging import Judge, Scorer
from equipoise.solve.card import Tensor, load_torch, send
from equipoise.storage import MANIFEST, Stored, check_ours, load_directory, write_directory

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
def torch_threads(threads: int | None) -> Iterator[None]:
    """Use at most this many threads of torch inside the block; None leaves things as they are."""
    torch = neural_torch()
    if threads is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def as_array(tensor: Tensor) -> npt.NDArray[np.float32]:
    """Copy a tensor to the host."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)
