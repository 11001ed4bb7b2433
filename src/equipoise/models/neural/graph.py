"""Triples of a person, an item and an item the person has not used, drawn on the device.

Products with the graph of people and items, and the contrast of two smoothed tables.

Scores of users who have numbers of their own: found by position, else by their histories.

LightGCN and XSimGCL: tables of vectors of people and items, smoothed over the graph.

With A = D_U^-1/2 X D_I^-1/2 and H = [[0, A], [A^T, 0]], a table E of vectors, people before items,
is smoothed by products with H. The score of a person and an item is the product of their vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions
from equipoise.matrix import Csr, entry_rows
from equipoise.models.filters import check_factors, check_weight
from equipoise.models.neural.base import (
    Array,
    Judge,
    NeuralModel,
    Scorer,
    as_array,
    check_count,
    check_positive,
)
from equipoise.ranking.terms import Adder, LowRank, Rows, Term
from equipoise.solve.torch_backend import Tensor, load_torch, send, sparse_rows
from equipoise.split.parts import Part
from equipoise.svd import normalised

Triples = tuple[Tensor, Tensor, Tensor]


class Sampler:
    """Draws the triples of a whole epoch at once.

    The r-th item that a person has not used is r plus the number of used items i_k (ascending,
    k from 0) with i_k - k <= r, which one search finds: no draw is ever rejected. People who used
    every item are left out.

    Parameters
    ----------
    matrix
        Users x items; stored pairs are the interactions.
    device
        A torch device.
    """

    def __init__(self, matrix: Csr, device: Any) -> None:
        matrix = matrix.copy()
        matrix.sort_indices()
        self.n_items = matrix.shape[1]
        sizes = np.diff(matrix.indptr).astype(np.int64)
        usable = (sizes > 0) & (sizes < self.n_items)
        if not usable.any():
            raise DataError("everybody used every item; there is nothing to tell apart")
        row = entry_rows(matrix).astype(np.int64)
        rank = np.arange(len(row)) - matrix.indptr[row]
        keys = row * (self.n_items + 1) + matrix.indices - rank
        self.starts, self.items, self._keys, self._sizes, self._rows, self._people, self._pairs = (
            send(part.astype(np.int64), device)
            for part in (
                matrix.indptr[:-1],
                matrix.indices,
                keys,
                sizes,
                row,
                np.flatnonzero(usable),
                np.flatnonzero(usable[row]),
            )
        )

    def by_person(self, batch: int, generator: Any) -> Iterator[Triples]:
        """Draw as many triples as there are interactions: a person, then one of the items."""
        count = len(self._pairs)
        users = self._people[self._below(len(self._people), count, generator)]
        places = self.starts[users] + self._below(self._sizes[users], count, generator)
        return self._batches(users, places, batch, generator)

    def by_interaction(self, batch: int, generator: Any) -> Iterator[Triples]:
        """Go through all interactions in random order."""
        torch = load_torch()
        count = len(self._pairs)
        order = torch.randperm(count, generator=generator, device=generator.device)
        places = self._pairs[order]
        return self._batches(self._rows[places], places, batch, generator)

    def unused(self, users: Tensor, generator: Any) -> Tensor:
        """Draw an item that the person has not used, evenly among those."""
        torch = load_torch()
        chosen = self._below(self.n_items - self._sizes[users], len(users), generator)
        keys = users * (self.n_items + 1) + chosen
        before = torch.searchsorted(self._keys, keys, right=True) - self.starts[users]
        return chosen + before

    def _batches(
        self, users: Tensor, places: Tensor, batch: int, generator: Any
    ) -> Iterator[Triples]:
        triples = (users, self.items[places], self.unused(users, generator))
        return zip(*(part.split(batch) for part in triples), strict=True)

    def _below(self, limit: Any, count: int, generator: Any) -> Tensor:
        """Draw whole numbers from 0 to limit - 1."""
        torch = load_torch()
        device = generator.device
        share = torch.rand(count, generator=generator, device=device, dtype=torch.float64)
        return (share * limit).long()


Map = Callable[[Tensor], Tensor]


def device_graph(interactions: Interactions, device: Any) -> Tensor:
    """Return H = [[0, A], [A^T, 0]], A = D_U^-1/2 X D_I^-1/2, as a sparse matrix on the device."""
    A = normalised(interactions, 0.5, 0.5).astype(np.float32)
    H = sp.csr_array(sp.block_array([[None, A], [A.T, None]]))
    H.sort_indices()
    indptr, indices, data = (send(part, device) for part in (H.indptr, H.indices, H.data))
    return sparse_rows(indptr, indices, data, H.shape)


def smooth(graph: Tensor, table: Tensor) -> Tensor:
    """Return H E."""
    return _symmetric()(table, lambda part: graph @ part)


def mean_of_powers(graph: Tensor, table: Tensor, layers: int) -> Tensor:
    """Return the mean of E, H E, ..., H^layers E."""

    def mean(part: Tensor) -> Tensor:
        # E + H (E + H (E + ...)): no layer has to be kept
        total = part
        for _ in range(layers):
            total = part + graph @ total
        return total / (layers + 1)

    return _symmetric()(table, mean)


@lru_cache(maxsize=1)
def _symmetric() -> Any:
    """Return a function that applies a symmetric linear map, whose gradient is the map itself.

    Left to itself, torch transposes the sparse matrix for each gradient.
    """
    torch = load_torch()

    def forward(context: Any, table: Tensor, apply: Map) -> Tensor:
        context.map = apply
        return apply(table)

    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.map(gradient.contiguous()), None

    steps = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("SymmetricMap", (torch.autograd.Function,), steps)
    return made.apply


def take(table: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a table; on a processor their gradients are summed in a fixed order."""
    torch = load_torch()
    if table.device.type == "cpu":
        return torch.nn.functional.embedding(rows, table)
    return table.index_select(0, rows)


def contrast(table: Tensor, view: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """Return the mean cross-entropy of finding a row of `table` among those of `view`, by cosine.

    Each of the rows counts once. Those that come again are masked and not taken out: how many
    there are is known to the device only, and asking would stop it.
    """
    torch = load_torch()
    rows = rows.sort().values
    again = torch.zeros_like(rows, dtype=torch.bool)
    again[1:] = rows[1:] == rows[:-1]
    one, two = (torch.nn.functional.normalize(take(part, rows), dim=1) for part in (table, view))
    logits = (one @ two.T / temperature).masked_fill(again[None, :], -torch.inf)
    answers = (one * two).sum(1) / temperature
    losses = (logits.logsumexp(1) - answers).masked_fill(again, 0)
    return losses.sum() / (~again).sum()


SEVERAL = -2


class KnownUsers:
    """The users a model was fitted on.

    A row that comes with a user's position is that user, if it is the history the model was fitted
    on. A bare history is the one user who has it; shared by several it is nobody's.

    Parameters
    ----------
    model
        Name of the model, for errors.
    X
        Training data, users x items.
    alike
        Whether users with equal histories have equal scores, so that any of them will do.
    """

    def __init__(self, model: str, X: Csr, *, alike: bool = False) -> None:
        self.model = model
        self._keys = [
            _key(X.indices[start:stop], X.data[start:stop])
            for start, stop in pairwise(X.indptr.tolist())
        ]
        self._places: dict[bytes, int] = {}
        for place, key in enumerate(self._keys):
            known = self._places.setdefault(key, place)
            if known != place and not alike:
                self._places[key] = SEVERAL

    def places(self, rows: Rows) -> list[int]:
        """Return the position of the user of each row, -1 for an empty history."""
        asked = [-1] * len(rows) if rows.users is None else rows.users.tolist()
        ends = pairwise(rows.indptr.tolist())
        return [
            self._place(_key(rows.indices[start:stop], rows.values[start:stop]), place)
            for place, (start, stop) in zip(asked, ends, strict=True)
        ]

    def _place(self, key: bytes, asked: int) -> int:
        if not key:
            return -1
        if asked >= 0 and self._keys[asked] == key:
            return asked
        place = self._places.get(key, -1)
        if place == SEVERAL:
            raise DataError(
                f"several users of {self.model} have this history, and vectors of their own; ask "
                "for one of them by id, or take a model that ranks for any history"
            )
        if place < 0:
            raise DataError(
                f"{self.model} ranks only the users it was fitted on, by the histories it was "
                "fitted on; fit it with these histories, or take a model without this limit"
            )
        return place


@dataclass(frozen=True, eq=False)
class PeopleTerm(Term):
    """Scores a user's vector times the vectors of the items.

    Parameters
    ----------
    known
        The users who have a vector.
    vectors
        Their vectors, one row per user.
    low
        Its right factor holds the vectors of the items.
    """

    known: KnownUsers
    vectors: Array
    low: LowRank

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
        """The vector."""
        return self.low.held

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        places = np.array(self.known.places(rows), np.int64)
        hidden = np.zeros((len(rows), self.vectors.shape[1]), self.dtype)
        hidden[places >= 0] = self.vectors[places[places >= 0]]
        return self.low.product(hidden)


def _key(indices: Array, values: Array) -> bytes:
    return np.asarray(indices, np.int32).tobytes() + np.asarray(values, np.float32).tobytes()


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
