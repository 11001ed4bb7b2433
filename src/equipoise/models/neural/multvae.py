"""MultVAE: a variational autoencoder with a multinomial likelihood."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from equipoise import checks
from equipoise.data.interactions import Interactions
from equipoise.models.base import SearchSpace
from equipoise.models.neural.base import (
    Array,
    DeviceMetrics,
    DeviceRows,
    NeuralModel,
    Scorer,
    VectorTerm,
)
from equipoise.ranking.terms import Constant, LowRank, Rows, Term
from equipoise.runtime.kernels import Floats
from equipoise.solve.torch_backend import Tensor, load_torch

BIAS = 1e-3  # deviation of the first biases


@dataclass(kw_only=True, eq=False)
class MultVAE(NeuralModel):
    """Variational autoencoder with a multinomial likelihood (Liang et al., WWW 2018).

    A history of unit length, with a share `dropout` of its items left out in training, is encoded
    by n -> hidden (tanh) -> mean and log-variance of z, `latent` numbers each; z is drawn in
    training and is the mean in use, and is decoded by latent -> hidden (tanh) -> n. Minimises, per
    user, -sum_i x_i log softmax(scores)_i + B KL(z || normal), where B rises evenly from 0 to
    `beta` over the first share `annealing` of all updates.

    Ranks for any history, also those of new users.

    Parameters
    ----------
    hidden, latent
        Widths of the layers.
    dropout
        Share of a history's items left out in training, 0 to 0.8.
    beta
        Largest weight of the divergence, 0.1 to 1.
    annealing
        Share of all updates until B reaches `beta`; 0 starts with `beta`. The authors count
        200,000 updates, which small data never reach, so here it is a share.
    learning_rate, batch_size, epochs, evaluate_every, patience, seed
        Settings of the training; see `NeuralModel`. A batch holds users.
    """

    search_space: ClassVar[SearchSpace] = {
        "beta": (0.2, 0.5, 1.0),
        "annealing": (0.0, 0.8),
        "dropout": (0.3, 0.5, 0.7),
        "learning_rate": (5e-4, 1e-3, 2e-3),
        "latent": (100, 200),
    }

    hidden: int = 600
    latent: int = 200
    dropout: float = 0.5
    beta: float = 0.2
    annealing: float = 0.8
    batch_size: int = 500
    epochs: int = 200
    evaluate_every: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("hidden", self.hidden)
        checks.count("latent", self.latent)
        checks.non_negative("beta", self.beta)
        checks.fraction("dropout", self.dropout, one=False)
        checks.fraction("annealing", self.annealing)

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

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for name, size in self._layers(self.interactions_.n_items).items():
            shapes[name], shapes[f"{name}_bias"] = size, size[1:]
        return shapes

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        ones = np.ones(interactions.n_items, np.float32)
        low = LowRank(arrays["read"], arrays["write"], ones, ones)
        plain = {name: np.asarray(array) for name, array in arrays.items()}  # not memory-mapped
        plain["encode"] = np.ascontiguousarray(plain["encode"][:, : self.latent])
        plain["encode_bias"] = plain["encode_bias"][: self.latent]
        return [Constant(plain["write_bias"]), VectorTerm(low, partial(decoded, plain, low))]


class MultVAETask:
    """MultVAE in training, on the device of its parameters."""

    def __init__(
        self, model: MultVAE, interactions: Interactions, parameters: dict[str, Tensor]
    ) -> None:
        self.model, self.parameters = model, parameters
        self.device = parameters["read"].device
        self.data = DeviceRows(interactions.matrix, self.device)
        self.users = (self.data.indptr.diff() > 0).nonzero()[:, 0]
        updates = model.epochs * -(-len(self.users) // model.batch_size)
        self.rise = max(model.annealing * updates, 1e-9)

    def batches(self, generator: Any) -> Iterator[Tensor]:
        """Divide the users with items into batches."""
        order = load_torch().randperm(len(self.users), generator=generator, device=self.device)
        batches: Iterator[Tensor] = iter(self.users[order].split(self.model.batch_size))
        return batches

    def weight(self, update: int) -> float:
        """Return B, the weight of the divergence."""
        return self.model.beta * min(1.0, update / self.rise)

    def loss(self, batch: Tensor, update: int, generator: Any) -> Tensor:
        """Return the loss of a batch of users."""
        torch = load_torch()
        x = self.data.dense(batch)
        row, place = self.data.entries(batch)
        keep = 1 - self.model.dropout
        stays = torch.rand(len(row), generator=generator, device=self.device) < keep
        seen = torch.nn.functional.normalize(x, dim=1)
        seen[row, self.data.indices[place]] *= stays / keep
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

    def scorer(self, metrics: DeviceMetrics) -> Scorer:
        """Return a function that scores all items for rows of the validation part."""
        normalize = load_torch().nn.functional.normalize
        return lambda rows: self.decode(
            self.encode(normalize(metrics.history.dense(rows), dim=1))[0]
        )

    def _layer(self, x: Tensor, name: str) -> Tensor:
        return load_torch().addmm(self.parameters[f"{name}_bias"], x, self.parameters[name])


def decoded(arrays: dict[str, Array], low: LowRank, rows: Rows) -> Floats:
    """Return the last hidden layer of the decoder for the mean of z, without torch.

    All products are summed in a fixed order, so scores of a history do not depend on other rows.
    """
    hidden = np.tanh(low.hidden(_unit_rows(rows)) + arrays["read_bias"])
    z = _product(hidden, arrays["encode"]) + arrays["encode_bias"]
    return np.tanh(_product(z, arrays["decode"]) + arrays["decode_bias"])


def _unit_rows(rows: Rows) -> Rows:
    """Return histories scaled to length 1."""
    sizes = np.diff(rows.indptr)
    owner = np.repeat(np.arange(len(rows)), sizes)
    squares = rows.values.astype(np.float64) ** 2
    length = np.sqrt(np.bincount(owner, squares, len(rows)))[owner]
    return Rows(rows.indptr, rows.indices, (rows.values / length).astype(np.float32))


def _product(left: Floats, right: Floats) -> Floats:
    """Return left @ right; the bits of a row do not depend on other rows."""
    ones = np.ones(right.shape[1], right.dtype)
    out = np.zeros((len(left), right.shape[1]), right.dtype)
    # the left factor of the term is not used
    LowRank(right.T.copy(), right, ones, ones).product(left)(out, 0)
    return out
