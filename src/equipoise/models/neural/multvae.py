"""MultVAE: a variational autoencoder with a multinomial likelihood."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.errors import SettingError
from equipoise.interactions import Interactions
from equipoise.kernels import Floats
from equipoise.models.filters import check_weight
from equipoise.models.neural.base import (
    Array,
    DeviceRows,
    Judge,
    NeuralModel,
    Scorer,
    as_array,
    check_count,
)
from equipoise.normalize import check_number
from equipoise.ranking.terms import Adder, Constant, LowRank, Rows, Term
from equipoise.solve.torch_backend import Tensor, load_torch

BIAS = 1e-3  # deviation of the first biases


@dataclass(kw_only=True, eq=False)
class MultVAE(NeuralModel):
    """Variational autoencoder with a multinomial likelihood (Liang et al., WWW 2018).

    A history of unit length, with a share `dropout` of its items left out in training, is encoded
    by n -> hidden (tanh) -> mean and log-variance of z, `latent` numbers each; z is drawn in
    training and is the mean in use, and is decoded by latent -> hidden (tanh) -> n. Minimises, per
    person, -sum_i x_i log softmax(scores)_i + B KL(z || normal), where B rises evenly from 0 to
    `beta` over the first share `annealing` of all updates.

    Anybody with a history can be answered.

    Parameters
    ----------
    hidden, latent
        Widths of the layers.
    dropout
        Share of a history's items left out in training, 0 to 0.8.
    beta
        Largest weight of the divergence, 0.1 to 1.
    annealing
        Share of all updates that it takes to get there; 0 starts with `beta`. The authors count
        200,000 updates for 1, which small data never come near, so here the data decide.
    learning_rate, batch, epochs, evaluate_every, patience, seed
        Of the training; see `NeuralModel`. A batch holds people.
    """

    hidden: int = 600
    latent: int = 200
    dropout: float = 0.5
    beta: float = 0.2
    annealing: float = 0.8
    batch: int = 500
    epochs: int = 200
    evaluate_every: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("hidden", self.hidden)
        check_count("latent", self.latent)
        check_weight("beta", self.beta)
        if not 0 <= check_number("dropout", self.dropout) < 1:
            raise SettingError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0 <= check_number("annealing", self.annealing) <= 1:
            raise SettingError(f"annealing must be in [0, 1], got {self.annealing}")

    def _layers(self, n_items: int) -> dict[str, tuple[int, int]]:
        """Return inputs and outputs of each layer."""
        return {
            "read": (n_items, self.hidden),
            "encode": (self.hidden, 2 * self.latent),
            "decode": (self.latent, self.hidden),
            "write": (self.hidden, n_items),
        }

    def _task(self, interactions: Interactions, generator: Any) -> MultVAETask:
        torch = load_torch()
        parameters = {}
        for name, size in self._layers(interactions.n_items).items():
            bound = (6 / sum(size)) ** 0.5  # Xavier
            weight = torch.rand(size, generator=generator, device=generator.device)
            bias = torch.empty(size[1], device=generator.device)
            torch.nn.init.trunc_normal_(bias, 0, BIAS, -2 * BIAS, 2 * BIAS, generator=generator)
            parameters[name] = ((2 * weight - 1) * bound).requires_grad_()
            parameters[f"{name}_bias"] = bias.requires_grad_()
        return MultVAETask(self, interactions, parameters)

    def _learned(self, task: MultVAETask) -> dict[str, Array]:
        return {name: as_array(tensor) for name, tensor in task.parameters.items()}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, size in self._layers(self.interactions_.n_items).items():
            shapes[name], shapes[f"{name}_bias"] = size, size[1:]
        return shapes

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        return [Constant(np.asarray(arrays["write_bias"])), EncoderTerm(arrays, self.latent)]


class MultVAETask:
    """MultVAE in training, on the device of its parameters."""

    def __init__(
        self, model: MultVAE, interactions: Interactions, parameters: dict[str, Tensor]
    ) -> None:
        self.model, self.parameters = model, parameters
        self.device = parameters["read"].device
        self.data = DeviceRows.of(interactions.matrix, self.device)
        self.people = (self.data.indptr.diff() > 0).nonzero()[:, 0]
        updates = model.epochs * -(-len(self.people) // model.batch)
        self.rise = max(model.annealing * updates, 1e-9)

    def batches(self, generator: Any) -> Iterator[Tensor]:
        """Deal the people who have items into batches."""
        torch = load_torch()
        order = torch.randperm(len(self.people), generator=generator, device=self.device)
        batches: Iterator[Tensor] = iter(self.people[order].split(self.model.batch))
        return batches

    def weight(self, update: int) -> float:
        """Return B, the weight of the divergence."""
        return self.model.beta * min(1.0, update / self.rise)

    def loss(self, batch: Tensor, update: int, generator: Any) -> Tensor:
        """Return the loss of a batch of people."""
        torch = load_torch()
        x = self.data.dense(batch)
        row, place = self.data.entries(batch)
        keep = 1 - self.model.dropout
        kept = torch.rand(len(row), generator=generator, device=self.device) < keep
        seen = unit(x)
        seen[row, self.data.indices[place]] *= kept / keep
        mean, log_variance = self.encode(seen)
        noise = torch.randn(mean.shape, generator=generator, device=self.device)
        scores = self.decode(mean + noise * (log_variance / 2).exp())
        likelihood = -(x * scores.log_softmax(1)).sum(1).mean()
        spread = log_variance.exp() - log_variance + mean.square() - 1
        return likelihood + self.weight(update) * 0.5 * spread.sum(1).mean()

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of z."""
        hidden = self._layer(x, "read").tanh()
        mean, log_variance = self._layer(hidden, "encode").chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """Return the scores of all items."""
        return self._layer(self._layer(z, "decode").tanh(), "write")

    def scorer(self, judge: Judge) -> Scorer:
        """Return a function that scores all items for rows of the judge's people."""
        torch = load_torch()

        def scores(low: int, high: int) -> Tensor:
            rows = torch.arange(low, high, device=self.device)
            return self.decode(self.encode(unit(judge.history.dense(rows)))[0])

        return scores

    def _layer(self, x: Tensor, name: str) -> Tensor:
        return load_torch().addmm(self.parameters[f"{name}_bias"], x, self.parameters[name])


def unit(x: Tensor) -> Tensor:
    """Return rows scaled to length 1."""
    return load_torch().nn.functional.normalize(x, dim=1)


class EncoderTerm(Term):
    """Scores the decoded mean of an encoded history; the last bias is a term of its own.

    The products are summed in a fixed order, as the ranker wants it: a person's scores do not
    depend on who else is asked about.

    Parameters
    ----------
    arrays
        Weights and biases of the layers.
    latent
        Length of z.
    """

    def __init__(self, arrays: dict[str, Any], latent: int) -> None:
        names = ("read_bias", "encode", "encode_bias", "decode", "decode_bias")
        plain = {name: np.asarray(arrays[name]) for name in names}
        self.read_bias, self.decode_bias = plain["read_bias"], plain["decode_bias"]
        self.mean = np.ascontiguousarray(plain["encode"][:, :latent])
        self.mean_bias = plain["encode_bias"][:latent]
        self.decode = plain["decode"]
        ones = np.ones(arrays["read"].shape[0], np.float32)
        self.low = LowRank(arrays["read"], arrays["write"], ones, ones)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.low.n_items

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.low.dtype

    @property
    def held(self) -> int:
        """A hidden vector."""
        return self.low.held

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        hidden = self.low.hidden(_unit_rows(rows))
        hidden = np.tanh(hidden + self.read_bias)
        z = _product(hidden, self.mean) + self.mean_bias
        return self.low.product(np.tanh(_product(z, self.decode) + self.decode_bias))


def _unit_rows(rows: Rows) -> Rows:
    """Return histories scaled to length 1."""
    sizes = np.diff(rows.indptr)
    owner = np.repeat(np.arange(len(rows)), sizes)
    squares = rows.values.astype(np.float64) ** 2
    length = np.sqrt(np.bincount(owner, squares, len(rows)))[owner]
    return Rows(rows.indptr, rows.indices, (rows.values / length).astype(np.float32))


def _product(left: Floats, right: Floats) -> Floats:
    """Return left @ right, each row summed alike whatever the others are."""
    ones = np.ones(right.shape[1], right.dtype)
    out = np.zeros((len(left), right.shape[1]), right.dtype)
    # the left factor of the term is not used
    LowRank(right.T.copy(), right, ones, ones).product(left)(out, 0)
    return out
