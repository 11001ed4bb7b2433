"""Lists of training users as if each had been left out of a solve that is on a card.

The formulas are those of `left_out.py`, for many users at once: small systems are padded to one
size and solved together in float64. A card has operations to spare, so the diagonal without a user
is computed for every item instead of bounded; rows of P are gathered where they are.
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

SMALL = 8  # arrays of the size of P[S,S] that are there at a time
WIDE = 4  # arrays of the size of the scores, beside a sum for each source


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
    """Fill in the lists of these users under every reading, as `left_out.rank_left_out` does."""
    torch = load_torch()
    device, kind = P.values.device, P.values.dtype
    offsets, k = of_user[0], items.shape[2]
    source_of, extra_of, targets, targets_after, _, _ = groups
    starts, outs, of_penalty, of_diagonal = readings
    old, limit, towards = (send(each, device, kind) for each in (diagonal, penalty, targets))
    with full_precision():
        for mine in _batches(np.diff(offsets)[users], len(P), len(sources), P.dtype.itemsize):
            some = users[mine]
            own = _Own(some, P, entries, of_user, sources, diagonal)
            growth, totals = own.sums()
            inverse = growth.add_(old).reciprocal_()
            for group, source in enumerate(source_of):
                more = None
                if extra_of[group] >= 0:
                    more = send(extra[extra_of[group], mine], device, kind)
                for each in range(starts[group], starts[group + 1]):
                    a, b = float(of_penalty[each]), float(of_diagonal[each])
                    found = torch.maximum(a * limit, b * inverse)
                    found.mul_(towards[group]).mul_(totals[:, source])
                    theirs = own.values(a, b, targets_after[group], source)
                    if more is not None:
                        found.add_(more)
                        theirs += more[own.cells]
                    found[own.cells] = theirs.masked_fill(own.shown, -np.inf)
                    values, places = (part.cpu().numpy() for part in best_of_rows(found, k))
                    bad[some] |= np.isnan(values[:, 0])
                    listed = values > -np.inf
                    items[outs[each], some] = np.where(listed, places, -1)
                    scores[outs[each], some] = np.where(listed, values, np.nan)


def _batches(
    sizes: npt.NDArray[np.int64], n_items: int, n_sources: int, itemsize: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield places of users with histories of like size, as many as there is room for."""
    order = np.argsort(-sizes, kind="stable")
    at = 0
    while at < len(order):
        small = SMALL * 8 * int(sizes[order[at]]) ** 2
        wide = (n_sources + WIDE) * n_items * itemsize
        room = max(SCORES // max(small, wide), 1)
        yield order[at : at + room]
        at += room


class _Own:
    """The items of some users, users x most items: what it takes to be without each user.

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
        indices, x_all, kept_all, odds_all, penalty_after, shown = entries
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

        # what stands beyond the items of a user has values of 0, and no effect
        x, kept, odds, v = (padded(each) for each in (x_all, kept_all, odds_all, sources))
        weight, after = (send(each[users], device)[:, None] for each in (weights, afters))
        self._items = send(indices[place].astype(np.int64), device)
        one, other = self._items[:, :, None], self._items[:, None, :]
        own = send(diagonal, device)[self._items]
        square = torch.where(one == other, own[:, :, None], P.values[one, other].double())
        z = (square @ kept[:, :, None])[:, :, 0]
        self._tau = after / (1 + after * (kept * z).sum(1, keepdim=True))
        tau = self._tau[:, :, None]
        left_in = square - tau * z[:, :, None] * z[:, None, :]
        # of w 1 1^T + diag(odds) is left, after j items: 1 / left = 1 / w + sum of 1 / odds
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
        q = q - tau * (q @ z[:, :, None]) * kept[:, None, :]
        half = half - tau * (half @ z[:, :, None]) * kept[:, None, :]
        self._weights = torch.cat([half, kept[:, None, :], q], dim=1)
        growth, self._totals = self._parts(self._weights @ square)
        self._diagonal = self._listed(own + growth)

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
        """Return the scores of the users' own items under one reading."""
        torch, device = load_torch(), self._P.values.device
        scale = torch.maximum(a * self._penalty, b / self._diagonal)
        scale = scale * send(target_after[self._entries], device)
        found = self._listed(self._totals[:, source]) * scale
        return found.to(self._P.values.dtype)

    def _parts(self, product: Tensor) -> tuple[Tensor, Tensor]:
        """Return the growth of the diagonal and the sums, of weights times rows of P."""
        size = self._weights.shape[2]
        growth = product[:, :size].square().sum(1) - self._tau.to(product) * product[:, size] ** 2
        return growth, product[:, size + 1 :]

    def _listed(self, values: Tensor) -> Tensor:
        """Return what belongs to items, one after another."""
        return values.flatten()[self._inside]
