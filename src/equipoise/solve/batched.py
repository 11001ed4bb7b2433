"""The small systems of the neighbourhood engine on a GPU, many targets at a time.

The strongest entries of the rows of A are on the GPU. For a batch of targets a map from items to
places in their supports gathers the entries of all members into the systems, which are factored
together. Missing entries of A can make a system indefinite; `small_systems` solves these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.matrix import segments
from equipoise.errors import TooBigError
from equipoise.runtime.kernels import Offsets, Positions
from equipoise.runtime.machine import gigabytes
from equipoise.solve.torch_backend import (
    find_device,
    free_memory,
    full_precision,
    load_torch,
    send,
)

ENTRIES = 1 << 28  # entries of rows that are scanned together, at most
ENTRY_BYTES = 40
SHARE = 0.5  # of the free memory that a batch may take


def require_room(
    device: str, n_items: int, neighbours: int, row_entries: int, itemsize: int
) -> None:
    """Raise `TooBigError` where the GPU has no room for the entries and a batch of one target."""
    entries = n_items * (row_entries * (4 + itemsize) + 12 + 2 * itemsize)
    batch = int(_target_bytes(n_items, neighbours + 1, row_entries, itemsize) / SHARE)
    needed, free = entries + batch, free_memory(device)
    if needed > free:
        raise TooBigError(
            f"{n_items:,} items with {neighbours:,} neighbours need {gigabytes(needed)} of "
            f"{device} and {gigabytes(free)} is free; take fewer neighbours or device='cpu'"
        )


def _target_bytes(n_items: int, widest: int, longest: int, itemsize: int) -> int:
    return ENTRY_BYTES * widest * longest + 4 * n_items + 3 * itemsize * widest**2


class Batches:
    """The strongest entries of A on a GPU, and the systems that are made of them there.

    The arrays are those of `neighbourhood.Lists`, and the diagonal and the penalty of A in the
    precision of the solve. The device "cpu" runs the same steps without a GPU.
    """

    def __init__(
        self,
        starts: Offsets,
        lengths: Positions,
        n_foreign: Positions,
        items: Positions,
        values: npt.NDArray[Any],
        diagonal: npt.NDArray[Any],
        penalty: npt.NDArray[Any],
        device: str,
    ) -> None:
        self._torch, self._device = load_torch(), find_device(device)
        self._n_items, self._longest = len(lengths), max(int(lengths.max(initial=0)), 1)
        # item n fills the free places of a support: it has no entries, and a pivot of 1
        self._starts, self._lengths = send(starts, self._device), self._send_padded(lengths, 0)
        self._n_foreign = self._send_padded(n_foreign, 0)
        self._diagonal, self._penalty = (
            self._send_padded(diagonal, 1),
            self._send_padded(penalty, 0),
        )
        self._items, self._values = (
            self._torch.from_numpy(array if len(array) else np.zeros(1, array.dtype)).to(
                self._device
            )
            for array in (items, values)
        )

    def _send_padded(self, vector: npt.NDArray[Any], last: int) -> Any:
        return send(np.append(vector, np.array(last, vector.dtype)), self._device)

    def size(self, widest: int) -> int:
        """Return how many systems of this size fit into memory at a time."""
        itemsize = self._values.element_size()
        target_bytes = _target_bytes(self._n_items, widest, self._longest, itemsize)
        entries = widest * self._longest
        if self._device.type != "cuda":
            return max(1, (ENTRIES >> 8) // entries)
        room = int(SHARE * free_memory(str(self._device)))
        return max(1, min(room // target_bytes, ENTRIES // entries))

    def solve(
        self, targets: Positions, starts: Offsets, lengths: Positions, supports: Positions
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Solve A_NN x = e_j; N of target j is supports[starts[j]:][:lengths[j]], and j itself.

        Returns x of the members of the supports, one support after the other; x of the targets;
        and whether each system was solved. The numbers of an unsolved system mean nothing.
        """
        torch = self._torch
        sizes = lengths[targets].astype(np.int64)
        places, _ = segments(starts[targets], sizes)
        filled = np.arange(sizes.max(initial=0) + 1) < sizes[:, None]
        members = np.full(filled.shape, self._n_items, np.int64)
        members[filled] = supports[places]
        members[:, -1] = targets
        with full_precision():
            N = send(members, self._device)
            A = self._systems(N)
            L, fault = torch.linalg.cholesky_ex(A)
            del A
            pivots = L.diagonal(dim1=1, dim2=2)
            diagonal, penalty = self._diagonal[N], self._penalty[N]
            rounding = N.shape[1] * torch.finfo(L.dtype).eps * diagonal
            is_solved = (fault == 0) & (pivots**2 >= penalty - rounding).all(1)
            right = torch.zeros((*N.shape, 1), dtype=L.dtype, device=self._device)
            right[:, -1, 0] = 1 / pivots[:, -1]
            x = torch.linalg.solve_triangular(L.mT, right, upper=True)[..., 0]
            is_solved &= x.isfinite().all(1)
        solution = x.cpu().numpy()
        return solution[filled], solution[:, -1].astype(np.float64), is_solved.cpu().numpy()

    def _systems(self, N: Any) -> Any:
        """Return A_NN for each row of N."""
        torch = self._torch
        n_targets, widest = N.shape
        place = torch.full(
            (n_targets, self._n_items + 1), -1, dtype=torch.int32, device=self._device
        )
        order = torch.arange(widest, dtype=torch.int32, device=self._device)
        place.scatter_(1, N, order.expand(n_targets, -1))
        steps = torch.arange(self._longest, device=self._device)
        entry = self._starts[N][..., None] + steps
        first = self._n_foreign[N]
        first[:, -1] = 0  # all entries of the target's own row count
        inside = (steps >= first[..., None]) & (steps < self._lengths[N][..., None])
        item = self._items[entry.clamp_(max=len(self._items) - 1)]
        item.masked_fill_(~inside, self._n_items)  # lists may be shorter than their space
        other = place.gather(1, item.flatten(1).long()).view(item.shape)
        target, row, at = torch.nonzero(inside & (other >= 0), as_tuple=True)
        column, value = other[target, row, at].long(), self._values[entry[target, row, at]]
        A = torch.zeros((n_targets, widest, widest), dtype=value.dtype, device=self._device)
        A[target, row, column] = value
        A[target, column, row] = value
        A.diagonal(dim1=1, dim2=2).copy_(self._diagonal[N])
        return A
