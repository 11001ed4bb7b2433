"""Training of neural models: epochs, early stopping, checkpoints and exact resume.

A model provides a `Task`: parameters, batches, a loss and scores. `Training` runs it,
`DeviceMetrics` evaluates it on a validation part, and `NeuralModel` keeps the result as plain
arrays, so that a fitted model ranks without torch.
"""

from __future__ import annotations

import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from equipoise import checks
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.split.parts import Part
from equipoise.data.storage import (
    MANIFEST,
    Fields,
    Stored,
    check_ours,
    load_directory,
    write_directory,
)
from equipoise.errors import (
    DataError,
    FileFormatError,
    MissingExtraError,
    SettingError,
    SolveError,
)
from equipoise.evaluation import metrics
from equipoise.models.base import Recommender, names_fit_options
from equipoise.ranking.terms import Adder, DerivedTerm, LowRank, Rows
from equipoise.runtime.kernels import Floats
from equipoise.runtime.machine import count
from equipoise.runtime.resume import first_difference
from equipoise.solve.planning import SolveOptions
from equipoise.solve.torch_backend import Tensor, find_device, load_torch, send

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Scorer = Callable[[Tensor], Tensor]  # rows of a part -> scores of all items

K = 20  # length of the lists that early stopping evaluates
SCORES = 1 << 28  # bytes of scores that are processed at a time
KIND = "equipoise-training"
VERSION = 1
COUNTERS = ("epoch", "update", "best_epoch", "without_gain")
MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}  # of Adam: names in a checkpoint, in torch


class DeviceRows:
    """A sparse matrix on the device, read as batches of dense rows."""

    def __init__(self, matrix: Csr, device: Any) -> None:
        self.indptr, self.indices = (
            send(part.astype(np.int64), device) for part in (matrix.indptr, matrix.indices)
        )
        self.values = send(matrix.data.astype(np.float32), device)
        self.n_items = matrix.shape[1]

    def entries(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for each stored entry of these rows, the number of its row and its position."""
        torch = load_torch()
        starts = self.indptr[rows]
        sizes = self.indptr[rows + 1] - starts
        row = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), sizes)
        before = sizes.cumsum(0) - sizes
        return row, torch.arange(len(row), device=rows.device) + (starts - before)[row]

    def dense(self, rows: Tensor) -> Tensor:
        """Return these rows as a dense tensor."""
        row, place = self.entries(rows)
        out = self.values.new_zeros(len(rows), self.n_items)
        out[row, self.indices[place]] = self.values[place]
        return out


class DeviceMetrics:
    """Recall and NDCG at 20 on a part of a split, computed on the device.

    The formulas are those of `equipoise.evaluate`; only ties may be ordered differently. `users`
    are the positions of the users in `train`, -1 for unknown ones.
    """

    def __init__(self, part: Part, train: Interactions, device: Any) -> None:
        history = part.history.with_items(train.item_index)
        self.users = train.user_index.positions(history.users, unknown="skip")
        self.history = DeviceRows(history.matrix, device)
        self._target = part.target.with_items(train.item_index).matrix
        self._hides_seen = part.hides_seen
        self._recall = metrics.recall_full if part.protocol == "weak" else metrics.recall

    def __call__(self, scorer: Scorer) -> tuple[float, float]:
        """Return the means over all users."""
        torch, seen = load_torch(), self.history
        users = torch.arange(len(self.users), device=seen.indptr.device)
        lists = []
        for rows in users.split(max(1, SCORES // (4 * seen.n_items))):
            scores = scorer(rows)
            if self._hides_seen:
                row, place = seen.entries(rows)
                scores[row, seen.indices[place]] = -torch.inf
            lists.append(scores.topk(min(K, seen.n_items), dim=1).indices)
        hits = metrics.find_hits(torch.cat(lists).cpu().numpy(), self._target)
        return float(self._recall(hits, K).mean()), float(metrics.ndcg(hits, K).mean())


@dataclass(frozen=True)
class Epoch:
    """The state of training after an epoch, an argument of `progress`."""

    epoch: int  # from 1
    epochs: int  # at most
    loss: float  # mean over the batches
    recall: float | None  # at 20 on the validation part; None where it was not evaluated
    ndcg: float | None
    best: int | None  # the epoch with the best NDCG so far; None without a validation part
    seconds: float  # since training began or was resumed


class Task(Protocol):
    """A model in training."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The tensors to learn, by name; leaves of torch's graph."""

    def batches(self, generator: Any) -> Iterator[Any]:
        """Draw the batches of an epoch."""

    def loss(self, batch: Any, update: int, generator: Any) -> Tensor:
        """Return the loss of a batch; `update` counts the batches of all epochs from 0."""

    def scorer(self, metrics: DeviceMetrics) -> Scorer:
        """Return a function that scores all items for rows of the validation part."""


class Training:
    """A run of training, with all the state that its next epoch depends on.

    Without `metrics` the last epoch is kept. A checkpoint is resumed only if it has the same
    `identity`: settings, data and device.
    """

    def __init__(
        self,
        model: NeuralModel,
        task: Task,
        metrics: DeviceMetrics | None,
        generator: Any,
        identity: dict[str, Any],
    ) -> None:
        self.model, self.task, self.metrics = model, task, metrics
        self.generator, self.identity = generator, identity
        self.optimizer = load_torch().optim.Adam(
            list(task.parameters.values()), lr=model.learning_rate, fused=True
        )
        self.epoch = self.update = self.best_epoch = self.without_gain = 0
        self.best: dict[str, Tensor] = {}
        self.history: list[dict[str, Any]] = []

    @property
    def over(self) -> bool:
        """Whether all epochs are done, or NDCG has not improved for `patience` evaluations."""
        patience = self.model.patience
        stuck = patience is not None and self.without_gain >= patience
        return self.epoch >= self.model.epochs or stuck

    def run(
        self, progress: Callable[[Epoch], Any] | None, checkpoint: Path | None, every: int
    ) -> None:
        """Train to the end, or until `progress` returns True; then restore the best parameters."""
        began, model = time.perf_counter(), self.model
        stopped = False
        while not self.over and not stopped:
            loss = self._epoch()
            if not np.isfinite(loss):
                raise SolveError(
                    f"the loss of epoch {self.epoch} is not a number; lower learning_rate"
                )
            due = self.epoch % model.evaluate_every == 0 or self.epoch == model.epochs
            recall, ndcg = self._evaluate() if due and self.metrics else (None, None)
            entry: dict[str, Any] = {"epoch": self.epoch, "loss": loss}
            entry |= {"recall": recall, "ndcg": ndcg}
            self.history.append(entry)
            if checkpoint and (self.over or self.epoch % every == 0):
                self.save(checkpoint)
            best, seconds = self.best_epoch or None, time.perf_counter() - began
            done = Epoch(**entry, epochs=model.epochs, best=best, seconds=seconds)
            logger.info("%s", done)
            stopped = progress is not None and progress(done) is True
        with load_torch().no_grad():
            for name, tensor in self.best.items():
                self.task.parameters[name].copy_(tensor)

    def _epoch(self) -> float:
        total, batches = load_torch().zeros((), device=self.generator.device), 0
        for batch in self.task.batches(self.generator):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.task.loss(batch, self.update, self.generator)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()  # stays on the device: reading it would wait for each batch
            self.update, batches = self.update + 1, batches + 1
        self.epoch += 1
        return float(total) / batches

    def _evaluate(self) -> tuple[float, float]:
        assert self.metrics is not None
        with load_torch().no_grad():
            recall, ndcg = self.metrics(self.task.scorer(self.metrics))
        earlier = [entry["ndcg"] for entry in self.history if entry["ndcg"] is not None]
        if earlier and ndcg <= max(earlier):
            self.without_gain += 1
        else:
            self.without_gain, self.best_epoch = 0, self.epoch
            parameters = self.task.parameters.items()
            self.best = {name: tensor.detach().clone() for name, tensor in parameters}
        return recall, ndcg

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        tensors = {f"best_{name}": tensor for name, tensor in self.best.items()}
        for name, parameter in self.task.parameters.items():
            tensors[f"now_{name}"] = parameter.detach()
            for moment, key in MOMENTS.items():
                tensors[f"{moment}_{name}"] = self.optimizer.state[parameter][key]
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        arrays["random"] = self.generator.get_state().numpy()
        meta = {name: getattr(self, name) for name in (*COUNTERS, "history")}
        write_directory(path, KIND, VERSION, meta | self.identity, arrays, {}, self._checked)

    def resume(self, path: Path) -> None:
        """Resume from a checkpoint of the same settings, data and device."""
        stored = load_directory(path, KIND, VERSION, lambda stored: stored, verify=True)
        saved = {name: stored.meta.get(name) for name in self.identity}
        if saved != self.identity:
            raise DataError(
                f"the checkpoint {path} belongs to another fit: "
                f"{first_difference(saved, self.identity)}; remove it, choose another path, or "
                "fit with resume=False"
            )
        try:
            self._restore(stored, self._checked(stored))
        except (FileFormatError, RuntimeError) as error:
            raise FileFormatError(f"the checkpoint {path} is damaged: {error}") from error
        logger.info("resumed after epoch %d from %s", self.epoch, path)

    def _checked(self, stored: Stored) -> dict[str, Array]:
        """Return the arrays of a checkpoint, checked."""
        meta = stored.meta
        meta.whole_number("best_epoch", most=meta.whole_number("epoch"))
        for name in ("update", "without_gain"):
            meta.whole_number(name, most=2**53)
        training_history(meta)
        roles = ["now", *MOMENTS, *(["best"] if meta["best_epoch"] else [])]
        return {
            f"{role}_{name}": stored.finite(f"{role}_{name}", tuple(parameter.shape), sizes=(4,))
            for role in roles
            for name, parameter in self.task.parameters.items()
        }

    def _restore(self, stored: Stored, arrays: dict[str, Array]) -> None:
        torch, device = load_torch(), self.generator.device
        random = stored.array("random", tuple(self.generator.get_state().shape), "u", sizes=(1,))
        self.generator.set_state(torch.from_numpy(np.array(random)))
        for name in COUNTERS:
            setattr(self, name, stored.meta[name])
        self.history = training_history(stored.meta)
        tensors = {name: send(array, device) for name, array in arrays.items()}
        for name, parameter in self.task.parameters.items():
            state = {"step": torch.tensor(float(self.update), device=device)}
            state |= {key: tensors[f"{moment}_{name}"] for moment, key in MOMENTS.items()}
            self.optimizer.state[parameter] = state
            with torch.no_grad():
                parameter.copy_(tensors[f"now_{name}"])
            if self.best_epoch:
                self.best[name] = tensors[f"best_{name}"]


def training_history(fields: Fields) -> list[dict[str, Any]]:
    """Return the loss of each epoch, with recall and NDCG if it was evaluated; checked."""
    entries = fields.groups("history")
    for entry in entries:
        entry.whole_number("epoch", least=1)
        entry.number("loss")
        for name in ("recall", "ndcg"):
            if entry.get(name, name) is not None:
                entry.number(name, least=0)
    return [dict(entry) for entry in entries]


@contextmanager
def torch_threads() -> Iterator[None]:
    """Limit the threads of torch to those of `fit`."""
    torch = load_torch()
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, count()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, eq=False)
class VectorTerm(DerivedTerm):
    """Scores ``vectors(rows) @ right * target``, with the right factor and target of a term.

    `vectors` must give a history the same bits whatever the other rows are.
    """

    term: LowRank
    vectors: Callable[[Rows], Floats]

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        return self.term.product(self.vectors(rows))


def as_array(tensor: Tensor) -> npt.NDArray[np.float32]:
    """Copy a tensor to the host."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(SolveOptions):
    """The options of `NeuralModel.fit`."""

    valid: Any = None
    checkpoint: Path | None = None
    checkpoint_every: int = 10
    resume: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.valid, Part | None):
            kind = type(self.valid).__name__
            raise SettingError(f"valid must be a part of a split, as split.valid, got {kind}")
        checks.count("checkpoint_every", self.checkpoint_every)


@dataclass(kw_only=True, eq=False)
class NeuralModel(Recommender):
    """Base of the neural models: a subclass provides a training task, and terms of its result.

    Parameters
    ----------
    learning_rate
        Step size of Adam, 1e-4 to 1e-2.
    batch_size
        Interactions (of MultVAE: users) per update.
    epochs
        Largest number of passes over the data.
    evaluate_every
        Epochs between two evaluations on the validation part; the last epoch is always evaluated.
    patience
        Evaluations without a better NDCG@20 before training stops; None never stops it.
    seed
        Seed of all random numbers.

    Attributes
    ----------
    epoch_
        The epoch of the final parameters.
    history_
        Loss of each epoch, with recall and NDCG at 20 if it was evaluated.
    """

    explains: ClassVar[bool] = False

    learning_rate: float = 1e-3
    batch_size: int = 2048
    epochs: int = 100
    evaluate_every: int = 5
    patience: int | None = 10
    seed: int = 0

    epoch_: int = field(init=False, repr=False)
    history_: list[dict[str, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "evaluate_every"):
            checks.count(name, getattr(self, name))
        if self.patience is not None:
            checks.count("patience", self.patience)
        checks.count("seed", self.seed, least=0)
        checks.positive("learning_rate", self.learning_rate)

    def _refit_options(self) -> SolveOptions:
        kind = type(self).__name__
        raise SettingError(
            f"{kind} cannot be updated: training starts from random numbers and would give "
            "another model; fit it again on the new data"
        )

    @names_fit_options
    def fit(
        self,
        interactions: Any,
        *,
        device: str = "cpu",
        threads: int | None = None,
        progress: Callable[[Epoch], Any] | None = None,
        valid: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 10,
        resume: bool = True,
    ) -> Self:
        """Fit the model to interactions and return self.

        Parameters
        ----------
        interactions, threads
            As for `Recommender.fit`.
        device
            "cpu", or a GPU such as "cuda" or "cuda:1".
        progress
            Called after each epoch with its `Epoch`; training ends if it returns True.
        valid
            A part of a split for early stopping on NDCG@20; the best epoch is kept. Without it,
            the last epoch is kept.
        checkpoint, checkpoint_every
            Directory for the state of training, and the epochs between two saves.
        resume
            Resume from an existing checkpoint; False starts anew and replaces it.
        """
        options = TrainingOptions(
            device=device,
            threads=threads,
            progress=progress,
            valid=valid,
            checkpoint=None if checkpoint is None else checks.path("checkpoint", checkpoint),
            checkpoint_every=checkpoint_every,
            resume=resume,
        )
        return self._fit_model(interactions, options)

    def _fit(self, data: Interactions, options: TrainingOptions) -> None:
        # On a CPU the same seed and number of threads give the same bits, also after a resume. On
        # a GPU the order of sums, and with it the last digits, changes from run to run.
        if not data.n_interactions:
            raise DataError("fit needs at least one interaction; the data have none")
        valid, path = options.valid, options.checkpoint
        if path:
            check_ours(path, KIND)  # fails before training, not at the first checkpoint
        try:
            torch = load_torch()
        except MissingExtraError as error:
            raise MissingExtraError(
                "neural models need torch; install it with `pip install 'equipoise[neural]'`"
            ) from error
        torch_device = find_device(options.device)
        identity = {
            "settings": self.settings(),
            "data": data.fingerprint,
            "validation": None if valid is None else valid.fingerprint,
            "device": torch_device.type,
        }
        with torch_threads():
            metrics = None if valid is None else self._metrics(valid, data, torch_device)
            generator = torch.Generator(torch_device).manual_seed(self.seed)
            task = self._task(data, generator)
            training = Training(self, task, metrics, generator, identity)
            if path and options.resume and (path / MANIFEST).is_file():
                training.resume(path)
            training.run(options.progress, path, options.checkpoint_every)
            with torch.no_grad():
                arrays = self._learned(task)
        self.epoch_, self.history_ = training.best_epoch or training.epoch, training.history
        self._keep(data, arrays)

    @abstractmethod
    def _task(self, interactions: Interactions, generator: Any) -> Task:
        """Return the task with initial parameters."""

    def _learned(self, task: Any) -> dict[str, Array]:
        """Return the arrays of a trained task that scoring needs."""
        return {name: as_array(tensor) for name, tensor in task.parameters.items()}

    def _metrics(self, valid: Part, interactions: Interactions, device: Any) -> DeviceMetrics:
        if self.signals is not None:
            items = interactions.item_index
            history, target = (side.with_items(items) for side in (valid.history, valid.target))
            background = self.signals.background(self._raw_data)
            rows = self.signals.values(history._own_events, len(items), background)
            valid = replace(
                valid, history=history._replace(matrix=rows, signed=True), target=target
            )
        return DeviceMetrics(valid, interactions, device)

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"epoch": self.epoch_, "history": self.history_}, super()._state()[1]

    def _restore(self, state: Fields, stored: Stored) -> None:
        self.epoch_, self.history_ = state.whole_number("epoch"), training_history(state)
        super()._restore(state, stored)
        if any(array.dtype != "float32" for array in self.arrays_.values()):
            raise FileFormatError("its arrays are not float32")
