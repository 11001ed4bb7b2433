"""LightGCN and XSimGCL: embeddings of users and items, propagated over the interaction graph.

With A = D_U^-1/2 X D_I^-1/2 and H = [[0, A], [A^T, 0]], a table E of embeddings, users before
items, is propagated by products with H. A score is the inner product of a user's and an item's
row. Both models learn from triples of a user, an item of the user and another item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from equipoise import checks
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr, entry_rows
from equipoise.data.split.parts import Part
from equipoise.errors import DataError
from equipoise.models.base import SearchSpace
from equipoise.models.histories import KnownUsers
from equipoise.models.neural.base import (
    Array,
    DeviceMetrics,
    NeuralModel,
    Scorer,
    VectorTerm,
    as_array,
)
from equipoise.ranking.terms import LowRank, Rows, Term
from equipoise.runtime.kernels import Floats
from equipoise.solve.svd import normalised
from equipoise.solve.torch_backend import Tensor, load_torch, send, sparse_rows

Triples = tuple[Tensor, Tensor, Tensor]


class TripleSampler:
    """Draws all triples of an epoch at once, on the device.

    The r-th item that a user has not used is r plus the number of used items i_k (ascending, k
    from 0) with i_k - k <= r. One binary search finds it, so no draw is rejected. Users who have
    used every item are left out.
    """

    def __init__(self, matrix: Csr, device: Any) -> None:
        matrix = matrix.copy()
        matrix.sort_indices()
        self.n_items = matrix.shape[1]
        sizes = np.diff(matrix.indptr).astype(np.int64)
        usable = (sizes > 0) & (sizes < self.n_items)
        if not usable.any():
            raise DataError("all users used every item; there are no negative examples")
        row = entry_rows(matrix).astype(np.int64)
        order = np.arange(len(row)) - matrix.indptr[row]
        keys = row * (self.n_items + 1) + matrix.indices - order

        def on_device(part: Array) -> Tensor:
            return send(part.astype(np.int64), device)

        self._starts, self._items = on_device(matrix.indptr[:-1]), on_device(matrix.indices)
        self._keys, self._sizes, self._rows = on_device(keys), on_device(sizes), on_device(row)
        self._users = on_device(np.flatnonzero(usable))
        self._pairs = on_device(np.flatnonzero(usable[row]))

    def by_user(self, batch_size: int, generator: Any) -> Iterator[Triples]:
        """Draw as many triples as interactions: users uniformly, then an item of each."""
        count = len(self._pairs)
        users = self._users[self._below(len(self._users), count, generator)]
        places = self._starts[users] + self._below(self._sizes[users], count, generator)
        return self._batches(users, places, batch_size, generator)

    def by_interaction(self, batch_size: int, generator: Any) -> Iterator[Triples]:
        """Go through all interactions in random order."""
        shuffled = load_torch().randperm(
            len(self._pairs), generator=generator, device=generator.device
        )
        places = self._pairs[shuffled]
        return self._batches(self._rows[places], places, batch_size, generator)

    def _batches(
        self, users: Tensor, places: Tensor, batch_size: int, generator: Any
    ) -> Iterator[Triples]:
        """Add to each pair an item that the user has not used, drawn uniformly."""
        chosen = self._below(self.n_items - self._sizes[users], len(users), generator)
        keys = users * (self.n_items + 1) + chosen
        before = load_torch().searchsorted(self._keys, keys, right=True) - self._starts[users]
        triples = (users, self._items[places], chosen + before)
        return zip(*(part.split(batch_size) for part in triples), strict=True)

    def _below(self, limit: Any, count: int, generator: Any) -> Tensor:
        """Draw integers from 0 to limit - 1."""
        torch, device = load_torch(), generator.device
        share = torch.rand(count, generator=generator, device=device, dtype=torch.float64)
        return (share * limit).long()


def device_graph(interactions: Interactions, device: Any) -> Tensor:
    """Return H = [[0, A], [A^T, 0]], A = D_U^-1/2 X D_I^-1/2, as a sparse matrix on the device."""
    A = normalised(interactions, 0.5, 0.5).astype(np.float32)
    H = sp.csr_array(sp.block_array([[None, A], [A.T, None]]))
    H.sort_indices()
    indptr, indices, data = (send(part, device) for part in (H.indptr, H.indices, H.data))
    return sparse_rows(indptr, indices, data, H.shape)


def propagate(graph: Tensor, table: Tensor) -> Tensor:
    """Return H E."""
    return _symmetric()(table, lambda part: graph @ part)


def mean_of_layers(graph: Tensor, table: Tensor, layers: int) -> Tensor:
    """Return the mean of E, H E, ..., H^layers E."""

    def mean(part: Tensor) -> Tensor:
        # E + H (E + H (E + ...)): needs no storage for the layers
        total = part
        for _ in range(layers):
            total = part + graph @ total
        return total / (layers + 1)

    return _symmetric()(table, mean)


@lru_cache(maxsize=1)
def _symmetric() -> Any:
    """Return a function that applies a symmetric linear map, whose gradient is the map itself.

    Otherwise torch would transpose the sparse matrix for each gradient.
    """

    def forward(context: Any, table: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
        context.map = apply
        return apply(table)

    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.map(gradient.contiguous()), None

    steps = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type("SymmetricMap", (load_torch().autograd.Function,), steps)
    return function.apply


def gather(table: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a table; on a CPU their gradients are summed in a fixed order."""
    if table.device.type == "cpu":
        return load_torch().nn.functional.embedding(rows, table)
    return table.index_select(0, rows)


def contrastive_loss(table: Tensor, view: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Return the mean cross-entropy of finding a row of `table` among those of `view`, by cosine.

    Each distinct row counts once. Repeated ones are masked, not removed: their number is known to
    the device only, and reading it would wait for the device.
    """
    torch = load_torch()
    rows = rows.sort().values
    again = torch.zeros_like(rows, dtype=torch.bool)
    again[1:] = rows[1:] == rows[:-1]
    one, two = (torch.nn.functional.normalize(gather(part, rows), dim=1) for part in (table, view))
    logits = (one @ two.T / temperature).masked_fill(again[None, :], -torch.inf)
    answers = (one * two).sum(1) / temperature
    losses = (logits.logsumexp(1) - answers).masked_fill(again, 0)
    return losses.sum() / (~again).sum()


def user_vectors(known: KnownUsers, vectors: Array, rows: Rows) -> Floats:
    """Return the vector of the user of each row; zeros for an empty history."""
    places = np.array(known.places(rows), np.int64)
    out = np.zeros((len(rows), vectors.shape[1]), np.float32)
    out[places >= 0] = vectors[places[places >= 0]]
    return out


@dataclass(kw_only=True, eq=False)
class GraphEmbedding(NeuralModel):
    """Base of `LightGCN` and `XSimGCL`: embeddings of the users and items of the data."""

    fold_in: ClassVar[bool] = False
    _alike: ClassVar[bool] = False  # whether users with equal histories have equal vectors

    n_factors: int = 64
    layers: int = 3
    l2: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("n_factors", self.n_factors)
        checks.count("layers", self.layers)
        checks.non_negative("l2", self.l2)

    def _metrics(self, valid: Part, interactions: Interactions, device: Any) -> DeviceMetrics:
        metrics = super()._metrics(valid, interactions, device)
        if (metrics.users < 0).any():
            unknown = valid.history.users.tolist()[int(np.argmin(metrics.users))]
            raise DataError(
                f"user {unknown!r} of {valid.name} is not in the training data, and "
                f"{type(self).__name__} has vectors only for users who are; use a weak split"
            )
        return metrics

    def _learned(self, task: GraphTask) -> dict[str, Array]:
        table = task.embeddings()
        return {"users": as_array(table[: task.n_users]), "items": as_array(table[task.n_users :])}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        m, n = self.interactions_.matrix.shape
        return {"users": (m, self.n_factors), "items": (n, self.n_factors)}

    def _make(self, interactions: Interactions, arrays: dict[str, Any]) -> list[Term]:
        known = KnownUsers(type(self).__name__, interactions.matrix, alike=self._alike)
        items = np.ascontiguousarray(arrays["items"])
        ones = np.ones(len(items), np.float32)
        low = LowRank(items, np.ascontiguousarray(items.T), ones, ones)
        return [VectorTerm(low, partial(user_vectors, known, np.asarray(arrays["users"])))]


@dataclass(kw_only=True, eq=False)
class LightGCN(GraphEmbedding):
    """Light graph convolution (He et al., SIGIR 2020).

    E = (E_0 + H E_0 + ... + H^layers E_0) / (layers + 1). Minimises, over triples of a user u, an
    item i of the user and another item j, softplus(e_u.e_j - e_u.e_i) plus `l2` times half the
    squared rows of the triple in E_0, which is learned. An epoch has as many triples as
    interactions; users are drawn uniformly, whatever their number of items.

    Only training users can be ranked. A bare history that several of them share is an error: pass
    user ids.

    Parameters
    ----------
    n_factors
        Length of an embedding.
    layers
        Number of products with H, 1 to 4.
    l2
        Penalty on the embeddings of a batch, 1e-5 to 1e-3.
    learning_rate, batch_size, epochs, evaluate_every, patience, seed
        Settings of the training; see `NeuralModel`.
    """

    search_space: ClassVar[SearchSpace] = {
        "learning_rate": (5e-4, 1e-3, 4e-3),
        "l2": (1e-5, 1e-4, 1e-3),
        "layers": (1, 2, 3, 4),
        "n_factors": (64, 128),
    }

    epochs: int = 1000
    evaluate_every: int = 10

    def _task(self, interactions: Interactions, generator: Any) -> LightGCNTask:
        size = (sum(interactions.matrix.shape), self.n_factors)
        first = load_torch().randn(size, generator=generator, device=generator.device) * 0.1
        return LightGCNTask(self, interactions, first)


@dataclass(kw_only=True, eq=False)
class XSimGCL(GraphEmbedding):
    """Extremely simple graph contrastive learning (Yu et al., TKDE 2024).

    E_l = H E_l-1 + eps sign(H E_l-1) N, where the rows of N are random directions; E is the mean
    of E_1 to E_layers, and C = E_view. Minimises -log(1e-5 + sigmoid(e_u.e_i - e_u.e_j)) over
    triples, plus `strength` times the contrastive loss: the cross-entropy of
    softmax(cos(E_u, C_v) / temperature) with v = u as the answer, over the users of a batch and
    over its items. Scores have no noise.

    Only training users can be ranked. Users with the same history have the same vector, which
    does not depend on their rows of E_0.

    Parameters
    ----------
    n_factors
        Length of an embedding.
    layers
        Number of products with H, 2 or 3.
    l2
        Penalty on the embeddings of a batch; it is not squared and has hardly any effect.
    strength
        lambda, the weight of the contrastive loss, 0.01 to 0.5.
    noise
        eps, the length of the noise, 0.05 to 0.2.
    temperature
        tau, 0.1 to 0.2.
    view
        l*, the layer that is contrasted with the mean, from 1.
    learning_rate, batch_size, epochs, evaluate_every, patience, seed
        Settings of the training; see `NeuralModel`.
    """

    _alike: ClassVar[bool] = True
    search_space: ClassVar[SearchSpace] = {
        "strength": (0.05, 0.1, 0.2),
        "noise": (0.05, 0.1, 0.2),
        "temperature": (0.1, 0.15, 0.2),
        "layers": (2, 3),
        "learning_rate": (5e-4, 1e-3),
    }

    strength: float = 0.2
    noise: float = 0.2
    temperature: float = 0.15
    view: int = 1
    epochs: int = 50
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.non_negative("strength", self.strength)
        checks.non_negative("noise", self.noise)
        checks.positive("temperature", self.temperature)
        checks.count("view", self.view, most=self.layers)

    def _task(self, interactions: Interactions, generator: Any) -> XSimGCLTask:
        torch = load_torch()
        parts = []
        for count in interactions.matrix.shape:
            bound = (6 / (count + self.n_factors)) ** 0.5  # Xavier
            size = (count, self.n_factors)
            part = torch.rand(size, generator=generator, device=generator.device)
            parts.append((2 * part - 1) * bound)
        return XSimGCLTask(self, interactions, torch.cat(parts))


class GraphTask(ABC):
    """An embedding table in training, on the device of its first values."""

    def __init__(self, model: Any, interactions: Interactions, first: Tensor) -> None:
        self.model, self.n_users = model, interactions.n_users
        self.graph = device_graph(interactions, first.device)
        self.table = first.requires_grad_()  # E_0
        self.parameters = {"table": self.table}
        self.sampler = TripleSampler(interactions.matrix, first.device)

    @abstractmethod
    def embeddings(self) -> Tensor:
        """Return E without noise."""

    def scorer(self, metrics: DeviceMetrics) -> Scorer:
        """Return a function that scores all items for rows of the validation part."""
        table = self.embeddings()
        users = table[send(metrics.users, table.device)]
        return lambda rows: users[rows] @ table[self.n_users :].T


class LightGCNTask(GraphTask):
    """LightGCN in training."""

    def batches(self, generator: Any) -> Iterator[Triples]:
        """Draw the triples of an epoch, users uniformly."""
        return self.sampler.by_user(self.model.batch_size, generator)

    def embeddings(self) -> Tensor:
        """Return the mean of all layers, the first included."""
        return mean_of_layers(self.graph, self.table, self.model.layers)

    def loss(self, batch: Triples, update: int, generator: Any) -> Tensor:
        """Return the loss of a batch of triples."""
        torch = load_torch()
        users, used, unused = batch
        rows = torch.cat([users, used + self.n_users, unused + self.n_users])
        user, good, bad = gather(self.embeddings(), rows).chunk(3)
        ranking = torch.nn.functional.softplus((user * (bad - good)).sum(1)).mean()
        penalty = gather(self.table, rows).square().sum() / (2 * len(users))
        return ranking + self.model.l2 * penalty


class XSimGCLTask(GraphTask):
    """XSimGCL in training."""

    def batches(self, generator: Any) -> Iterator[Triples]:
        """Draw the triples of an epoch, one for each interaction."""
        return self.sampler.by_interaction(self.model.batch_size, generator)

    def embeddings(self) -> Tensor:
        """Return the mean of all layers but the first."""
        return self.layers(None)[0]

    def layers(self, generator: Any) -> tuple[Tensor, Tensor]:
        """Return E and C, with noise where a generator is given."""
        torch = load_torch()
        state, total, view = self.table, 0, None
        for layer in range(1, self.model.layers + 1):
            state = propagate(self.graph, state)
            if generator is not None and self.model.noise:
                noise = torch.rand(state.shape, generator=generator, device=state.device)
                noise = torch.nn.functional.normalize(noise, dim=1)
                state = state + self.model.noise * state.detach().sign() * noise
            total = total + state
            view = state if layer == self.model.view else view
        return total / self.model.layers, view

    def loss(self, batch: Triples, update: int, generator: Any) -> Tensor:
        """Return the loss of a batch of triples."""
        torch, model = load_torch(), self.model
        users, used, unused = batch
        table, view = self.layers(generator)
        used, unused = used + self.n_users, unused + self.n_users
        user, good, bad = gather(table, torch.cat([users, used, unused])).chunk(3)
        right = torch.sigmoid((user * (good - bad)).sum(1))
        loss = -(1e-5 + right).log().mean()
        loss = loss + model.l2 * (user.norm() + good.norm()) / len(users)
        if model.strength:
            contrasts = [
                contrastive_loss(table, view, rows, model.temperature) for rows in (users, used)
            ]
            loss = loss + model.strength * (contrasts[0] + contrasts[1])
        return loss
