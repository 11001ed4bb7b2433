"""Scores and top-k lists on a GPU, equal to those of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.matrix import Csr
from equipoise.ranking.ranker import Job, Ranked, constant_scores, score, sum_dtype
from equipoise.ranking.terms import Adder, Rows, ScaledTerm, Term
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.torch_backend import Tensor, load_torch, send

SCORES = 256 << 20  # bytes of scores worked on at a time


def rank_on_device(job: Job) -> tuple[Ranked, npt.NDArray[np.int64]]:
    """Return the lists, and the rows with NaN scores, as `Job.rank` does."""
    scorer = _Scorer(job.terms)
    n_users, n_items = job.history.shape
    ranked = Ranked.empty(n_users, job.k, scorer.dtype)
    barred = send(np.flatnonzero(~job.allowed), scorer.device)
    boost = job.boost
    scales = [] if boost is None else [scorer.send(array) for array in (boost.factor, boost.bonus)]
    bad = []
    step = max(1, SCORES // (scorer.dtype.itemsize * max(n_items, 1)))
    for low in range(0, n_users, step):
        rows, part = np.arange(low, min(low + step, n_users)), slice(low, low + step)
        batch = scorer.scores(job.history[part])
        if scales:
            factor, bonus = scales
            batch = scorer.torch.where(batch > 0, batch * factor, batch / factor) + bonus
        for matrix in job.hidden:
            batch[scorer.cells(matrix[part])] = -np.inf
        if len(barred):
            batch[:, barred] = -np.inf
        for only in job.only:
            hidden = scorer.torch.ones_like(batch, dtype=scorer.torch.bool)
            hidden[scorer.cells(only.pairs[part])] = False
            if only.users is not None:
                hidden &= send(only.users[part], scorer.device)[:, None]
            batch.masked_fill_(hidden, -np.inf)
        values, positions = (part.cpu().numpy() for part in best_of_rows(batch, job.k))
        bad.append(rows[np.isnan(values[:, 0])])
        listed = values > -np.inf
        items, scores = np.where(listed, positions, -1), np.where(listed, values, np.nan)
        ranked.put(rows, Ranked(items, scores, listed.sum(axis=1)))
    return ranked, np.concatenate([*bad, np.empty(0, np.int64)])


@dataclass(frozen=True, eq=False)
class OnDevice(ScaledTerm):
    """A term whose matrix is on a device: (x * source) @ matrix * target.

    The diagonal of the matrix decides whether an item of the history adds to its own score.
    """

    matrix: DeviceMatrix
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]

    rank_job = staticmethod(rank_on_device)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.matrix.dtype

    @property
    def buffer_size(self) -> int:
        """The number of scores of a user."""
        return self.n_items

    def factors(self) -> tuple[Any, Any, Any, Any]:
        """Return the matrix and the scales; there is no second factor."""
        return self.matrix.values, None, self.source, self.target

    def adder(self, rows: Rows) -> Adder:
        """Return a function that copies this term's scores to the host and adds them."""
        part = _Scorer([self]).sums(rows.indptr, rows.indices, rows.values)
        scores = part.cpu().numpy()

        def add(block: npt.NDArray[Any], low: int) -> None:
            block += scores[:, low : low + block.shape[1]]

        return add


class _Scorer:
    """Sends terms to the device once, and scores batches there."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.torch, self.dtype = load_torch(), sum_dtype(terms)
        factors = [(term, term.factors()) for term in terms]
        # terms that are on the device already come first
        here = sorted((f for _, f in factors if f is not None), key=lambda f: f[1] is not None)
        self.device = here[0][0].device
        self._here = [tuple(map(self.send, parts)) for parts in here]
        others = [term for term, parts in factors if parts is None]
        self._host = [term for term in others if term.constant is None]
        self._constant: Tensor | None = None
        if len(self._host) < len(others):
            self._constant = self.send(constant_scores(others, len(here[0][3])))

    def scores(self, history: Csr) -> Tensor:
        """Return the scores of all items for these histories."""
        total = self.sums(history.indptr, history.indices, history.data)
        if self._host:
            total.add_(self.send(score(self._host, history)))
        return total

    def sums(
        self, indptr: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any]
    ) -> Tensor:
        """Return the scores of the terms on the device."""
        starts, places = (send(part.astype(np.int64), self.device) for part in (indptr, indices))
        weights = self.send(values)
        total = None
        for matrix, right, source, target in self._here:
            # sums run in the order of the history, as on the host
            part = self.torch.nn.functional.embedding_bag(
                places,
                matrix,
                starts,
                mode="sum",
                per_sample_weights=(weights * source[places]).to(matrix.dtype),
                include_last_offset=True,
            )
            part = (part if right is None else part @ right).mul_(target)
            if total is None and self._constant is not None:
                part = part.add_(self._constant)  # first, as on the host
            total = part if total is None else total.add_(part)
        return total

    def send(self, array: Any) -> Tensor:
        """Return an array on the device in the precision of the sums; a tensor as it is."""
        if not isinstance(array, np.ndarray):
            return array
        return send(array, self.device, getattr(self.torch, self.dtype.name))

    def cells(self, matrix: Csr) -> tuple[Tensor, ...]:
        """Return rows and columns of the stored pairs on the device."""
        return tuple(send(part.astype(np.int64), self.device) for part in matrix.tocoo().coords)


def best_of_rows(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best scores of each row and their positions; NaN comes first."""
    width = min(k + 1, scores.shape[1])
    values, places = load_torch().topk(scores, width, dim=1)
    if width > k:
        # `topk` returns any of several equal scores: choose the lowest positions of the last score
        tied = (values[:, k - 1] == values[:, k]) & (values[:, k] > -np.inf)
        values, places = values[:, :k].contiguous(), places[:, :k].contiguous()
        if tied.any():
            places[tied] = _lowest(scores[tied], values[tied, k - 1 :], k)
            values[tied] = scores[tied].gather(1, places[tied])
    places, order = places.sort(dim=1)
    values = values.gather(1, order)
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


def _lowest(scores: Tensor, border: Tensor, k: int) -> Tensor:
    """Return k positions per row: scores above the border, then the first equal to it."""
    torch = load_torch()
    above, equal = scores > border, scores == border
    missing = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= missing))
    return torch.nonzero(chosen)[:, 1].reshape(-1, k)
