"""LightGCN and XSimGCL: tables of vectors of people and items, smoothed over the graph.

With A = D_U^-1/2 X D_I^-1/2 and H = [[0, A], [A^T, 0]], a table E of vectors, people before items,
is smoothed by products with H. The score of a person and an item is the product of their vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions
from equipoise.models.filters import check_factors, check_weight
from equipoise.models.neural import Array, NeuralModel, check_count, check_positive
from equipoise.models.neural_judging import Judge, Scorer
from equipoise.models.neural_people import KnownUsers, PeopleTerm
from equipoise.models.neural_sampling import Sampler, Triples
from equipoise.models.neural_smoothing import (
    contrast,
    device_graph,
    mean_of_powers,
    smooth,
    take,
)
from equipoise.models.neural_training import as_array
from equipoise.solve.card import Tensor, load_torch, send
from equipoise.split.parts import Part
from equipoise.terms import LowRank, Term


@dataclass(kw_only=True, eq=False)
class GraphEmbedding(NeuralModel):
    """What both models share: the tables, the graph, and people they cannot answer for.

    Parameters
    ----------
    factors
        Length of the vectors.
    layers
        Number of products with H.
    l2
        Penalty on the vectors of a batch.
    """

    _alike: ClassVar[bool] = False  # whether users with equal histories have equal vectors

    factors: int = 64
    layers: int = 3
    l2: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factors(self.factors)
        check_count("layers", self.layers)
        check_weight("l2", self.l2)

    def _judge(self, valid: Part, interactions: Interactions, device: Any) -> Judge:
        judge = Judge(valid, interactions, device)
        if (judge.users < 0).any():
            stranger = valid.history.users.tolist()[int(np.argmin(judge.users))]
            raise DataError(
                f"user {stranger!r} of {valid.name} is not in the training data, and "
                f"{type(self).__name__} has vectors only for people who are; use a weak split"
            )
        return judge

    def _learned(self, task: GraphTask) -> dict[str, Array]:
        table = task.smoothed()
        return {"users": as_array(table[: task.n_users]), "items": as_array(table[task.n_users :])}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        m, n = self.interactions_.matrix.shape
        return {"users": (m, self.factors), "items": (n, self.factors)}

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        known = KnownUsers(type(self).__name__, interactions.matrix, alike=self._alike)
        items = np.ascontiguousarray(arrays["items"])
        ones = np.ones(len(items), np.float32)
        low = LowRank(items, np.ascontiguousarray(items.T), ones, ones)
        return [PeopleTerm(known, np.asarray(arrays["users"]), low)]


@dataclass(kw_only=True, eq=False)
class LightGCN(GraphEmbedding):
    """Light graph convolution (He et al., SIGIR 2020).

    E = (E_0 + H E_0 + ... + H^layers E_0) / (layers + 1). Minimises, over triples of a person u,
    an item i of the person and another item j, softplus(e_u.e_j - e_u.e_i) plus `l2` times half
    the squared vectors of the triple in E_0, which is what is learned. An epoch has as many
    triples as there are interactions; people are drawn evenly, however many items they have.

    Only the users of the training data have vectors: anybody else is refused, and so is a bare
    history that several of them share; ask for these by id.

    Parameters
    ----------
    factors
        Length of the vectors.
    layers
        Number of products with H, 1 to 4.
    l2
        Penalty on the vectors of a batch, 1e-5 to 1e-3.
    learning_rate, batch, epochs, evaluate_every, patience, seed
        Of the training; see `NeuralModel`.
    """

    epochs: int = 1000
    evaluate_every: int = 10

    def _task(self, interactions: Interactions, generator: Any) -> LightGCNTask:
        torch = load_torch()
        size = (sum(interactions.matrix.shape), self.factors)
        first = torch.randn(size, generator=generator, device=generator.device) * 0.1
        return LightGCNTask(self, interactions, first)


@dataclass(kw_only=True, eq=False)
class XSimGCL(GraphEmbedding):
    """Extremely simple graph contrastive learning (Yu et al., TKDE 2024).

    E_l = H E_l-1 + eps sign(H E_l-1) N, where the rows of N are random directions; E is the mean
    of E_1 to E_layers, and C = E_view. Minimises -log(1e-5 + sigmoid(e_u.e_i - e_u.e_j)) over
    triples, plus `strength` times the contrast: the cross-entropy of
    softmax(cos(E_u, C_v) / temperature) with v = u as the answer, over the people of a batch and
    over its items. Scores have no noise.

    Only the users of the training data have vectors: anybody else is refused. Users with the same
    history have the same vector, as their own rows of E_0 are no part of it.

    Parameters
    ----------
    factors
        Length of the vectors.
    layers
        Number of products with H, 2 or 3.
    l2
        Penalty on the vectors of a batch; it is not squared and does next to nothing.
    strength
        lambda, the weight of the contrast, 0.01 to 0.5.
    noise
        eps, the length of the noise, 0.05 to 0.2.
    temperature
        tau, 0.1 to 0.2.
    view
        l*, the layer that is contrasted with the mean, from 1.
    learning_rate, batch, epochs, evaluate_every, patience, seed
        Of the training; see `NeuralModel`.
    """

    _alike: ClassVar[bool] = True

    strength: float = 0.2
    noise: float = 0.2
    temperature: float = 0.15
    view: int = 1
    epochs: int = 50
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight("strength", self.strength)
        check_weight("noise", self.noise)
        check_positive("temperature", self.temperature)
        check_count("view", self.view)
        if self.view > self.layers:
            raise SettingError(f"view must be a layer, 1 to {self.layers}, got {self.view}")

    def _task(self, interactions: Interactions, generator: Any) -> XSimGCLTask:
        torch = load_torch()
        parts = []
        for count in interactions.matrix.shape:
            bound = (6 / (count + self.factors)) ** 0.5  # Xavier
            size = (count, self.factors)
            part = torch.rand(size, generator=generator, device=generator.device)
            parts.append((2 * part - 1) * bound)
        return XSimGCLTask(self, interactions, torch.cat(parts))


class GraphTask(ABC):
    """A table in training, on the device it is given on."""

    def __init__(self, model: Any, interactions: Interactions, first: Tensor) -> None:
        self.model = model
        self.n_users = interactions.n_users
        self.graph = device_graph(interactions, first.device)
        self.table = first.requires_grad_()
        self.sampler = Sampler(interactions.matrix, first.device)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """E_0."""
        return {"table": self.table}

    @abstractmethod
    def smoothed(self) -> Tensor:
        """Return E without noise."""

    def scorer(self, judge: Judge) -> Scorer:
        """Return a function that scores all items for rows of the judge's people."""
        table = self.smoothed()
        users = table[send(judge.users, table.device)]
        items = table[self.n_users :].T
        return lambda low, high: users[low:high] @ items


class LightGCNTask(GraphTask):
    """LightGCN in training."""

    def batches(self, generator: Any) -> Iterator[Triples]:
        """Draw the triples of an epoch, people evenly."""
        return self.sampler.by_person(self.model.batch, generator)

    def smoothed(self) -> Tensor:
        """Return the mean of all layers, the first included."""
        return mean_of_powers(self.graph, self.table, self.model.layers)

    def loss(self, batch: Triples, update: int, generator: Any) -> Tensor:
        """Return the loss of a batch of triples."""
        torch = load_torch()
        users, used, unused = batch
        rows = torch.cat([users, used + self.n_users, unused + self.n_users])
        user, good, bad = take(self.smoothed(), rows).chunk(3)
        rank = torch.nn.functional.softplus((user * (bad - good)).sum(1)).mean()
        penalty = take(self.table, rows).square().sum() / (2 * len(users))
        return rank + self.model.l2 * penalty


class XSimGCLTask(GraphTask):
    """XSimGCL in training."""

    def batches(self, generator: Any) -> Iterator[Triples]:
        """Draw the triples of an epoch, one for each interaction."""
        return self.sampler.by_interaction(self.model.batch, generator)

    def smoothed(self) -> Tensor:
        """Return the mean of all layers but the first."""
        return self.layers(None)[0]

    def layers(self, generator: Any) -> tuple[Tensor, Tensor]:
        """Return E and C, with noise where a generator is given."""
        torch = load_torch()
        state, total, view = self.table, 0, None
        for layer in range(1, self.model.layers + 1):
            state = smooth(self.graph, state)
            if generator is not None and self.model.noise:
                noise = torch.rand(state.shape, generator=generator, device=state.device)
                noise = torch.nn.functional.normalize(noise, dim=1)
                state = state + self.model.noise * state.detach().sign() * noise
            total = total + state
            view = state if layer == self.model.view else view
        return total / self.model.layers, view

    def loss(self, batch: Triples, update: int, generator: Any) -> Tensor:
        """Return the loss of a batch of triples."""
        torch = load_torch()
        users, used, unused = batch
        count = len(users)
        table, view = self.layers(generator)
        used, unused = used + self.n_users, unused + self.n_users
        user, good, bad = take(table, torch.cat([users, used, unused])).chunk(3)
        right = torch.sigmoid((user * (good - bad)).sum(1))
        loss = -(1e-5 + right).log().mean()
        loss = loss + self.model.l2 * (user.norm() + good.norm()) / count
        if self.model.strength:
            contrasts = [
                contrast(table, view, rows, self.model.temperature) for rows in (users, used)
            ]
            loss = loss + self.model.strength * (contrasts[0] + contrasts[1])
        return loss
