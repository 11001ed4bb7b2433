"""Scores and top-k lists on the device, equal to those of `equipoise.ranking.ranker`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, SettingError, SolveError
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.torch_backend import Tensor, load_torch, send

if TYPE_CHECKING:
    from equipoise.matrix import Csr
    from equipoise.ranking.ranker import Ranked

SCORES = 256 << 20  # bytes of scores worked on at a time


Lists = tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.int32]]


@dataclass(frozen=True, eq=False)
class OnDevice:
    """A term of the scoring matrix whose matrix is on a device: (x * source) @ matrix * target.

    An item of the history adds nothing to its own score.
    """

    matrix: DeviceMatrix
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return self.matrix.dtype

    @property
    def held(self) -> int:
        """All scores of a user."""
        return self.n_items

    def adder(self, rows: Any) -> Any:
        """Return a function that adds this term's scores, brought to the host, to a block."""
        part = _Scorer([self], self.n_items).sums(rows.indptr, rows.indices, rows.values)
        scores = part.cpu().numpy()

        def add(block: npt.NDArray[Any], low: int) -> None:
            block += scores[:, low : low + block.shape[1]]

        return add


def top_k(
    terms: Sequence[Any],
    history: Csr,
    k: int,
    *,
    users: npt.NDArray[np.int64] | None = None,
    threads: int | None = None,
    **options: Any,
) -> Ranked:
    """Return the best items as `rank.top_k` does, on the device where a term lives on one."""
    from equipoise.ranking import ranker

    if any(isinstance(term, OnDevice) for term in terms):
        return ranker.Ranked(*device_top_k(terms, history, k, **options))
    return ranker.top_k(terms, history, k, users=users, threads=threads, **options)


def device_top_k(
    terms: Sequence[Any],
    history: Csr,
    k: int,
    *,
    exclude_seen: bool = True,
    exclude: Csr | None = None,
    candidates: npt.NDArray[np.bool_] | None = None,
) -> Lists:
    """Return items, scores and lengths of lists; parameters and results as of `rank.top_k`."""
    if k < 1:
        raise SettingError(f"k must be >= 1, got {k}")
    if exclude is not None and exclude.shape != history.shape:
        raise DataError(f"exclude must have shape {history.shape}, got {exclude.shape}")
    scorer = _Scorer(terms, history.shape[1])
    n_users, n_items = history.shape
    k = min(k, n_items)
    items = np.full((n_users, k), -1, np.int32)
    scores = np.full((n_users, k), np.nan, scorer.dtype)
    lengths = np.zeros(n_users, np.int32)
    barred = None if candidates is None else send(np.flatnonzero(~candidates), scorer.device)
    hidden = [part for part in (history if exclude_seen else None, exclude) if part is not None]
    step = max(1, SCORES // (scorer.dtype.itemsize * max(n_items, 1)))
    for low in range(0, n_users, step):
        rows = slice(low, min(low + step, n_users))
        batch = scorer.scores(history[rows])
        for matrix in hidden:
            batch[_cells(matrix[rows], scorer.device)] = -np.inf
        if barred is not None:
            batch[:, barred] = -np.inf
        values, places = _best(batch, k)
        found = values.cpu().numpy()
        _refuse_nan(np.isnan(found[:, 0]), low)
        listed = found > -np.inf
        items[rows] = np.where(listed, places.cpu().numpy(), -1)
        scores[rows] = np.where(listed, found, np.nan)
        lengths[rows] = listed.sum(axis=1)
    return items, scores, lengths


class _Scorer:
    """Terms sent to the device once, and the scores of batches."""

    def __init__(self, terms: Sequence[Any], n_items: int) -> None:
        for term in terms:
            if term.n_items != n_items:
                raise DataError(f"the history has {n_items} items, the model has {term.n_items}")
        self.torch = load_torch()
        self.dtype = np.result_type(*(term.dtype for term in terms))
        mine = [term for term in terms if isinstance(term, OnDevice)]
        others = [term for term in terms if not isinstance(term, OnDevice)]
        self.device = mine[0].matrix.values.device
        self._mine: list[tuple[Tensor, ...]] = [
            (term.matrix.values, None, self._send(term.source), self._send(term.target))
            for term in mine
        ]
        self._host = [term for term in others if not _is_low_rank(term)]
        for term in others:
            if _is_low_rank(term):
                parts = (term.left, term.right, term.source, term.target)
                self._mine.append(tuple(self._send(part) for part in parts))

    def scores(self, history: Csr) -> Tensor:
        """Return the scores of all items for some histories."""
        if not history.has_canonical_format:
            history = history.copy()
            history.sum_duplicates()
        total = self.sums(history.indptr, history.indices, history.data)
        if self._host:
            from equipoise.ranking import ranker

            total.add_(self._send(ranker.score(self._host, history)))
        return total

    def sums(
        self, indptr: npt.NDArray[Any], indices: npt.NDArray[Any], values: npt.NDArray[Any]
    ) -> Tensor:
        """Return the scores of the terms on the device."""
        starts, places = (send(part.astype(np.int64), self.device) for part in (indptr, indices))
        weights = self._send(values)
        parts = []
        for matrix, right, source, target in self._mine:
            # each score is summed item by item in the order of the history, as on the host
            part = self.torch.nn.functional.embedding_bag(
                places,
                matrix,
                starts,
                mode="sum",
                per_sample_weights=(weights * source[places]).to(matrix.dtype),
                include_last_offset=True,
            )
            if right is not None:
                part = part @ right
            parts.append(part.mul_(target))
        for part in parts[1:]:
            parts[0].add_(part)
        return parts[0]

    def _send(self, array: npt.NDArray[Any]) -> Tensor:
        return send(array, self.device, getattr(self.torch, self.dtype.name))


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of each row, equal ones by position; NaN comes first."""
    torch = load_torch()
    width = min(k + 1, scores.shape[1])
    values, places = torch.topk(scores, width, dim=1)
    if width > k:
        # `topk` takes any of several equal scores; those at the border are chosen anew
        tied = (values[:, k - 1] == values[:, k]) & (values[:, k] > -np.inf)
        values, places = values[:, :k].contiguous(), places[:, :k].contiguous()
        if tied.any():
            places[tied] = _lowest(scores[tied], values[tied, k - 1 :], k)
            values[tied] = scores[tied].gather(1, places[tied])
    places, order = places.sort(dim=1)
    values = values.gather(1, order)
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


def _is_low_rank(term: Any) -> bool:
    from equipoise.ranking.terms import LowRank

    return isinstance(term, LowRank)


def _lowest(scores: Tensor, border: Tensor, k: int) -> Tensor:
    """Return k positions: the scores above the border, and the first of those that equal it."""
    torch = load_torch()
    above, equal = scores > border, scores == border
    missing = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= missing))
    return torch.nonzero(chosen)[:, 1].reshape(-1, k)


def _cells(matrix: Csr, device: Any) -> tuple[Tensor, Tensor]:
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return send(rows, device), send(matrix.indices.astype(np.int64), device)


def _refuse_nan(wrong: npt.NDArray[np.bool_], first: int) -> None:
    if wrong.any():
        raise SolveError(
            f"row {first + int(np.argmax(wrong))} of the histories has scores that are not "
            "numbers; the model holds NaN or infinite values: fit it again with a larger l2 or "
            "in float64"
        )
