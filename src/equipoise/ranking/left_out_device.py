"""Leave-one-out ranking on a GPU: lists of training users, each left out of the solution.

The formulas are those of `left_out.py`, for many users at once: small systems are padded to one
size and solved together in float64. A GPU is fast enough to compute the diagonal without a user
for every item instead of bounding it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.ranking.device import SCORES, best_of_rows
from equipoise.solve.blocked import strips
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.torch_backend import Tensor, full_precision, load_torch, send

SMALL = 8  # arrays of the size of P[S,S] in memory at a time
WIDE = 4  # arrays of the size of the scores, besides a sum for each source


def rank_left_out_on_device(
    users: npt.NDArray[np.int64],
    P: DeviceMatrix,
    entries: Any,
    of_user: Any,
    sources: npt.NDArray[Any],
    diagonal: npt.NDArray[Any],
    penalty: npt.NDArray[Any],
    groups: Any,
    readings: Any,
    extra: npt.NDArray[Any],
    items: npt.NDArray[np.int32],
    scores: npt.NDArray[Any],
    bad: npt.NDArray[np.bool_],
) -> None:
    """Fill the lists of these users for every reading, as `left_out.rank_left_out` does."""
    torch = load_torch()
    device, kind = P.values.device, P.values.dtype
    offsets, k = of_user[0], items.shape[2]
    source_of, extra_of, targets, targets_after, _, _ = groups
    starts, outs, of_penalty, of_diagonal = readings
    old, limit, towards = (send(array, device, kind) for array in (diagonal, penalty, targets))
    with full_precision():
        for batch in _batches(np.diff(offsets)[users], len(P), len(sources), P.dtype.itemsize):
            rows = users[batch]
            left_out = _LeftOutUsers(rows, P, entries, of_user, sources, diagonal)
            growth, totals = left_out.sums()
            inverse = growth.add_(old).reciprocal_()
            for group, source in enumerate(source_of):
                more = None
                if extra_of[group] >= 0:
                    more = send(extra[extra_of[group], batch], device, kind)
                for reading in range(starts[group], starts[group + 1]):
                    a, b = float(of_penalty[reading]), float(of_diagonal[reading])
                    batch_scores = torch.maximum(a * limit, b * inverse)
                    batch_scores.mul_(towards[group]).mul_(totals[:, source])
                    history_scores = left_out.values(a, b, targets_after[group], source)
                    if more is not None:
                        batch_scores.add_(more)
                        history_scores += more[left_out.cells]
                    batch_scores[left_out.cells] = history_scores.masked_fill(
                        left_out.shown, -np.inf
                    )
                    values, places = (part.cpu().numpy() for part in best_of_rows(batch_scores, k))
                    bad[rows] |= np.isnan(values[:, 0])
                    listed = values > -np.inf
                    items[outs[reading], rows] = np.where(listed, places, -1)
                    scores[outs[reading], rows] = np.where(listed, values, np.nan)


def _batches(
    sizes: npt.NDArray[np.int64], n_items: int, n_sources: int, itemsize: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield positions of users with histories of similar size, as many as fit into memory."""
    order = np.argsort(-sizes, kind="stable")
    at = 0
    while at < len(order):
        small = SMALL * 8 * int(sizes[order[at]]) ** 2
        wide = (n_sources + WIDE) * n_items * itemsize
        room = max(SCORES // max(small, wide), 1)
        yield order[at : at + room]
        at += room


class _LeftOutUsers:
    """Padded systems (users x items of a user) that remove each of these users from P.

    Attributes
    ----------
    cells
        Row and column of each item in the scores of these users.
    shown
        Whether each is in the history.
    """

    def __init__(
        self,
        users: npt.NDArray[np.int64],
        P: DeviceMatrix,
        entries: Any,
        of_user: Any,
        sources: npt.NDArray[Any],
        diagonal: npt.NDArray[Any],
    ) -> None:
        torch = load_torch()
        device = P.values.device
        offsets, weights, afters = of_user
        indices, x_all, remaining_all, odds_all, penalty_after, shown = entries
        sizes = np.diff(offsets)[users]
        place = np.arange(max(sizes.max(), 1))
        inside = place < sizes[:, None]
        place = np.where(inside, offsets[users][:, None] + place, 0)
        rows, _ = np.nonzero(inside)
        self._entries, self._inside = place[inside], send(np.flatnonzero(inside), device)
        self._P = P
        self.cells = send(rows, device), send(indices[self._entries].astype(np.int64), device)
        self.shown = send(shown[self._entries], device)
        self._penalty = send(penalty_after[self._entries], device)

        def padded(values: npt.NDArray[Any]) -> Tensor:
            return send(np.where(inside, values[..., place], 0.0), device)

        # padding has the value 0 and no effect
        x, remaining, odds, v = (
            padded(array) for array in (x_all, remaining_all, odds_all, sources)
        )
        weight, after = (send(array[users], device)[:, None] for array in (weights, afters))
        self._items = send(indices[place].astype(np.int64), device)
        one, other = self._items[:, :, None], self._items[:, None, :]
        diag = send(diagonal, device)[self._items]
        square = torch.where(one == other, diag[:, :, None], P.values[one, other].double())
        z = (square @ remaining[:, :, None])[:, :, 0]
        self._tau = after / (1 + after * (remaining * z).sum(1, keepdim=True))
        tau = self._tau[:, :, None]
        left_in = square - tau * z[:, :, None] * z[:, None, :]
        # remainder of w 1 1^T + diag(odds) after j items: 1 / left = 1 / w + sum of 1 / odds
        gone = torch.nn.functional.pad((1 / odds).cumsum(1)[:, :-1], (1, 0))
        left = 1 / (1 / weight + gone)
        pivots = (odds + left).sqrt()
        tails = torch.where(pivots > 0, left / pivots, 0.0)
        F = torch.diag_embed(pivots) + tails[:, None, :].expand_as(square).tril(-1)
        F = x[:, :, None] * F
        system = torch.eye(F.shape[1], dtype=F.dtype, device=device) - F.mT @ left_in @ F
        C, fault = torch.linalg.cholesky_ex(system)
        if bool(fault.any()):
            raise np.linalg.LinAlgError("the system without a user is not positive definite")
        half = torch.linalg.solve_triangular(C, F.mT, upper=False)
        q = v.transpose(0, 1)
        q = q + q @ left_in @ half.mT @ half
        q = q - tau * (q @ z[:, :, None]) * remaining[:, None, :]
        half = half - tau * (half @ z[:, :, None]) * remaining[:, None, :]
        self._weights = torch.cat([half, remaining[:, None, :], q], dim=1)
        growth, self._totals = self._parts(self._weights @ square)
        self._diagonal = self._without_padding(diag + growth)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return the growth of the diagonal, users x items, and users x sources x items."""
        torch, matrix = load_torch(), self._P.values
        n_users, n_rows, size = self._weights.shape
        n_sources, n_items = n_rows - size - 1, len(matrix)
        growth = torch.empty((n_users, n_items), dtype=matrix.dtype, device=matrix.device)
        totals = growth.new_empty((n_users, n_sources, n_items))
        weights = self._weights.to(matrix.dtype)
        width = max(SCORES // (n_users * (n_rows + size) * matrix.element_size()), 1)
        for low, high in strips((0, n_items), width):
            rows = matrix[:, low:high].index_select(0, self._items.flatten())
            product = weights @ rows.view(n_users, size, high - low)
            growth[:, low:high], totals[:, :, low:high] = self._parts(product)
        return growth, totals

    def values(self, a: float, b: float, target_after: npt.NDArray[Any], source: int) -> Tensor:
        """Return the scores of the users' own items for one reading."""
        torch, device = load_torch(), self._P.values.device
        scale = torch.maximum(a * self._penalty, b / self._diagonal)
        scale = scale * send(target_after[self._entries], device)
        return (self._without_padding(self._totals[:, source]) * scale).to(self._P.values.dtype)

    def _parts(self, product: Tensor) -> tuple[Tensor, Tensor]:
        """Return the growth of the diagonal and the sums, from weights times rows of P."""
        size = self._weights.shape[2]
        growth = product[:, :size].square().sum(1) - self._tau.to(product) * product[:, size] ** 2
        return growth, product[:, size + 1 :]

    def _without_padding(self, values: Tensor) -> Tensor:
        return values.flatten()[self._inside]
