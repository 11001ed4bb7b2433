"""Sessions as a ridge regression, and its solution C.

Every session model minimises sum_r w_r ||target_r - input_r C||^2 + tr(C^T L C). The rows r are
whole sessions (SLIS), splits of a session into past and future (SLIT), or both (SLIST). So

    M = sum_r w_r input_r^T input_r + L,   R = sum_r w_r input_r^T target_r,   C = M^-1 R.

A row whose input is a single item adds to the diagonal of M and to one row of R; such rows are
kept as these sums, the others as they are, times the root of their weight. Neither M nor R is
formed. Rows of C are solved when a session first has their item, or all of C is solved at once,
in memory or on a GPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import entry_rows, segments
from equipoise.errors import DataError, TooBigError
from equipoise.ranking.kernels import add_rows
from equipoise.ranking.terms import Adder, Rows, Term
from equipoise.runtime import machine
from equipoise.runtime.kernels import Floats, compiled
from equipoise.runtime.machine import free_memory, gigabytes
from equipoise.solve import dense, gpu
from equipoise.solve.blocked import strips
from equipoise.solve.cg import System
from equipoise.solve.gpu import DeviceMatrix

Vector = npt.NDArray[np.float64]
Direction = Literal["sr", "part", "all"]
RowNorm = Literal["l1", "l2"] | None

# The clicks in the row of click t: (shift, clicks before, clicks after) of its past around click t
# and of its future around click t + 1.
SHAPES: dict[str, tuple[tuple[int, bool, bool], tuple[int, bool, bool]]] = {
    "sr": ((0, False, False), (1, False, True)),
    "part": ((0, True, False), (1, False, True)),
    "all": ((0, True, True), (1, True, True)),
}


NEGLIGIBLE = 1e-12  # smaller decayed weights are left out: 4 digits under float32's rounding
DAY = 86400.0
ENTRY_BYTES = 40  # of a stored weight while the rows are built
DENSE_SHARE = 1 / 64  # share of nonzero inputs, of n^2, from which one dense solve is cheaper
BLOCK, DEVICE_BLOCK = 256, 1024  # rows of C that are processed at a time
CACHE_BYTES = 1 << 29  # of solved rows; the least recently used ones are dropped
CACHE_SHARE = 1 / 8  # of the free memory, if that is more


def time_weights(data: Interactions, decay: float | None) -> Vector:
    """Return exp(-(latest time - time of the session's last click) / decay), decay in days."""
    if decay is None:
        return np.ones(data.n_users)
    if data.events is None or data.events.times is None:
        raise DataError("decay_time needs times; read them with time=, or use decay_time=None")
    last = data.events.last_times
    latest = last.max(initial=-np.inf)
    # sessions without clicks have no effect
    return np.asarray(np.exp(np.where(last > -np.inf, last - latest, 0.0) / (decay * DAY)))


def past_future(
    sequences: Events, n_items: int, decay: float | None, direction: Direction = "sr"
) -> tuple[Any, Any]:
    """Return the past S and the future T of every split of every session, as CSR in float64.

    A session of L clicks has L - 1 rows. The row at click t weighs click q of the future by
    exp(-(q - t - 1) / decay), and the past by `direction`: "sr" has click t alone, "part" the
    clicks up to t by exp(-(t - q) / decay), "all" the full session on both sides by the distance
    to t and to t + 1. Repeated items add up. Time and memory are linear in the entries.

    Examples
    --------
    >>> S, T = past_future(Events(np.array([2, 0, 2], np.int32), np.array([0, 3])), 3, 1.0)
    >>> S.toarray().tolist(), T.toarray().round(3).tolist()
    ([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], [[1.0, 0.0, 0.368], [0.0, 0.0, 1.0]])
    """
    longest = int(sequences.lengths.max(initial=0))
    reach = longest if decay is None else int(np.ceil(-np.log(NEGLIGIBLE) * decay))
    reach = min(reach, longest)
    distance = np.arange(reach + 1)
    powers = np.ones(reach + 1) if decay is None else np.exp(-distance / decay)
    past, future = (
        _around(sequences, n_items, shape, reach, powers) for shape in SHAPES[direction]
    )
    return past, future


def _around(
    sequences: Events,
    n_items: int,
    shape: tuple[int, bool, bool],
    reach: int,
    powers: Vector,
) -> Any:
    """Return one side of the splits: for each click, the weighted clicks around it."""
    shift, before, after = shape
    steps = np.maximum(sequences.lengths - 1, 0)
    last = np.repeat(sequences.lengths - 1, steps)
    place = segments(np.full(len(steps), shift), steps)[0]  # of the centre within its session
    low = np.maximum(place - reach, 0) if before else place
    high = np.minimum(place + reach, last) if after else place
    offsets = np.concatenate([[0], np.cumsum(high - low + 1)])
    needed = ENTRY_BYTES * int(offsets[-1])
    if needed > free_memory():
        raise TooBigError(
            f"sessions of up to {int(sequences.lengths.max()):,} clicks have splits that need "
            f"{gigabytes(needed)}; use a smaller decay_position or cut the sessions at pauses"
        )
    columns = np.empty(offsets[-1], np.int32)
    values = np.empty(offsets[-1], np.float64)
    start = np.repeat(sequences.offsets[:-1], steps)
    _fill(sequences.items, start + low, start + place, offsets, powers, columns, values)
    matrix: Any = sp.csr_array((values, columns, offsets), shape=(len(place), n_items))
    matrix.sum_duplicates()
    return matrix


@compiled
def _fill(
    items: Any, low: Any, centre: Any, offsets: Any, powers: Any, columns: Any, values: Any
) -> None:
    for row in range(len(low)):
        for entry in range(offsets[row], offsets[row + 1]):
            click = low[row] + entry - offsets[row]
            columns[entry] = items[click]
            values[entry] = powers[abs(click - centre[row])]


def regression(
    data: Interactions,
    session_weights: Vector,
    penalty: Vector,
    *,
    mix: float,
    row_norm: RowNorm,
    decay: float | None,
    direction: Direction,
) -> System:
    """Stack whole sessions (share `mix`) and their splits (share ``1 - mix``).

    Sessions of fewer than two clicks have nothing to predict and are left out.
    """
    assert data._sequences is not None
    useful = np.flatnonzero(data._sequences.lengths >= 2)
    clicks, weight = data._sequences.take(useful), session_weights[useful]
    parts = []
    if mix > 0:
        sessions: Any = data.matrix[useful].astype(np.float64)
        sessions.data[:] = 1.0
        parts.append((_scaled(sessions, _norms(sessions, row_norm)), sessions, mix * weight))
    if mix < 1:
        past, future = past_future(clicks, data.n_items, decay, direction)
        rows = np.repeat(weight, clicks.lengths - 1)
        parts.append((_scaled(past, _norms(past, row_norm)), future, (1 - mix) * rows))
    multiple, diagonal, right = [], penalty.astype(np.float64), sp.csr_array((data.n_items,) * 2)
    for inputs, targets, weights in parts:
        single = np.diff(inputs.indptr) == 1
        item, value = inputs[single].indices, inputs[single].data
        diagonal += np.bincount(item, weights[single] * value**2, minlength=data.n_items)
        # E^T diag(weights * value) targets, where row r of E is the unit vector of item[r]
        units = (weights[single] * value, item, np.arange(len(item) + 1))
        right = right + sp.csr_array(units, (len(item), data.n_items)).T.tocsr() @ targets[single]
        root = np.sqrt(weights[~single])
        multiple.append((_scaled(inputs[~single], root), _scaled(targets[~single], root)))
    inputs, targets = (sp.vstack(side, format="csr") for side in zip(*multiple, strict=True))
    right.sort_indices()
    return System(narrow(inputs), narrow(targets), diagonal, narrow(right))


def _scaled(rows: Any, factor: Vector) -> Any:
    """Return the rows multiplied by their factors."""
    data = rows.data * factor[entry_rows(rows)]
    return sp.csr_array((data, rows.indices, rows.indptr), rows.shape)


def _norms(rows: Any, row_norm: RowNorm) -> Vector:
    """Return the factors that scale each row to norm 1."""
    if row_norm is None:
        return np.ones(rows.shape[0])
    power = 1 if row_norm == "l1" else 2
    sums = np.bincount(entry_rows(rows), rows.data**power, minlength=rows.shape[0])
    return np.asarray(np.where(sums > 0, sums, 1.0) ** (-1 / power))


def narrow(rows: Any) -> Any:
    """Return CSR with the index types that the kernels are compiled for."""
    offsets = rows.indptr.astype(np.int64, copy=False)
    columns = rows.indices.astype(np.int32, copy=False)
    out: Any = sp.csr_array(rows.shape, dtype=np.float64)
    out.data, out.indices, out.indptr = rows.data, columns, offsets
    return out


def recency(sequences: Events, n_items: int, decay: float | None) -> Any:
    """Return the weights of the clicks of each session in its scores, sessions x items.

    The last click counts 1 and the one n clicks before it exp(-n / decay); repeats add up.
    """
    lengths = sequences.lengths
    ago = np.repeat(sequences.offsets[1:], lengths) - np.arange(len(sequences.items)) - 1
    # a click long ago has hardly any weight but stays part of the history
    weight = np.ones(len(ago)) if decay is None else np.maximum(np.exp(-ago / decay), 1e-30)
    csr = (weight, sequences.items, sequences.offsets)
    rows: Any = sp.csr_array(csr, shape=(len(sequences), n_items), copy=True)
    rows.sum_duplicates()
    return rows.astype(np.float32)


def solve_all(system: System, dtype: str, device: str = "cpu") -> Any:
    """Return all of C = P R with P = M^-1 from the dense engine, in the buffer of P."""
    if device != "cpu":
        return solve_on_device(system, dtype, device)
    A, T, S = (part.astype(dtype) for part in (system.inputs, system.targets, system.right))
    C, _ = dense.Gram(A, np.ones(A.shape[0]), dtype).inverse(system.diagonal)
    _multiply(C, A, T.T.tocsr(), S.T.tocsr(), BLOCK, np.ascontiguousarray)
    return C


def solve_on_device(system: System, dtype: str, device: str) -> DeviceMatrix:
    """Return the result of `solve_all`, solved and kept on a GPU."""
    A = system.inputs
    C = gpu.Gram(A, np.ones(A.shape[0]), dtype, device).inverse(system.diagonal)[0].release()
    A, T, S = (gpu.sparse_like(part, C) for part in (A, system.targets.T, system.right.T))
    _multiply(C, A, T, S, DEVICE_BLOCK, lambda part: part.contiguous())
    return DeviceMatrix(C, zero_diagonal=False)  # an item can raise its own score


def _multiply(
    P: Any, inputs: Any, to_targets: Any, to_right: Any, block: int, copied: Callable[[Any], Any]
) -> None:
    """Replace P by P R in blocks of rows; R = inputs^T targets + right."""
    for low, high in strips((0, len(P)), block):
        columns = copied(P[low:high].T)
        P[low:high] = (to_targets @ (inputs @ columns) + to_right @ columns).T


@dataclass(eq=False)
class SolvedRows:
    """Rows of C = M^-1 R, solved on first use; the least recently used ones are dropped."""

    system: System
    dtype: str
    _cache: OrderedDict[int, npt.NDArray[Any]] = field(default_factory=OrderedDict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @cached_property
    def room(self) -> int:
        """Largest number of cached rows."""
        size = len(self.system.diagonal) * np.dtype(self.dtype).itemsize
        return max(CACHE_BYTES, int(CACHE_SHARE * free_memory())) // size

    def batches(self, history: Any) -> list[npt.NDArray[np.int64]]:
        """Divide the rows of a history into runs whose items fit into the cache."""
        runs, start = [], 0
        seen: set[int] = set()
        for row, (low, high) in enumerate(pairwise(history.indptr.tolist())):
            items = set(history.indices[low:high].tolist())
            if row > start and len(seen) + len(items - seen) > self.room:
                runs.append(np.arange(start, row))
                start, seen = row, set()
            seen |= items
        return [*runs, np.arange(start, history.shape[0])]

    def prepare(self, items: npt.NDArray[Any]) -> None:
        """Solve for the rows of these items that are not cached, in batches on all threads."""
        items = np.unique(items)
        with self._lock:
            missing = [item for item in items.tolist() if item not in self._cache]
            missing.sort(key=self.system.diagonal.__getitem__)  # similar rows take as many steps
            for item in items.tolist():
                if item in self._cache:
                    self._cache.move_to_end(item)
        threads = machine.count()
        rounds = -(-len(missing) // (self.system.lanes * threads))
        lanes = -(-len(missing) // max(rounds * threads, 1))  # no thread waits for another

        def solve(number: int) -> None:
            batch = np.array(missing[number * lanes : (number + 1) * lanes], np.int64)
            self._store(batch.tolist(), self.system.rows(batch, self.dtype))

        if missing:
            machine.run(solve, -(-len(missing) // lanes))

    def take(self, items: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the rows of these distinct items."""
        n_items = len(self.system.diagonal)
        out = np.empty((len(items), n_items), self.dtype)
        missing = []
        with self._lock:
            for place, item in enumerate(items.tolist()):
                row = self._cache.get(item)
                if row is None:
                    missing.append(place)
                else:
                    self._cache.move_to_end(item)
                    out[place] = row
        if missing:
            out[missing] = self.system.rows(items[missing], self.dtype)
            self._store(items[missing].tolist(), out[missing])
        return out

    def _store(self, items: list[int], rows: npt.NDArray[Any]) -> None:
        with self._lock:
            for item, row in zip(items[: self.room], rows, strict=False):
                self._cache[item] = row.copy()  # a view would keep its neighbours alive
            while len(self._cache) > self.room:
                self._cache.popitem(last=False)


@dataclass(frozen=True, eq=False)
class OnDemand(Term):
    """A term that scores ``(x * source) @ C * target``, the rows of C solved on demand."""

    rows: SolvedRows
    source: npt.NDArray[Any]
    target: npt.NDArray[Any]

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.target)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the sums."""
        return np.dtype(self.rows.dtype)

    @property
    def buffer_size(self) -> int:
        """A row: histories are assumed to share most of their rows."""
        return self.n_items

    def adder(self, rows: Rows) -> Adder:
        """Return a function that adds this term's scores to a block of columns."""
        items, places = np.unique(rows.indices, return_inverse=True)
        matrix = self.rows.take(items.astype(np.int64))
        weights = rows.weights(self.source, self.dtype)
        target = np.asarray(self.target, self.dtype)
        matrix.flags.writeable = target.flags.writeable = False
        indices = places.astype(np.int32)

        def add(scores: Floats, low: int) -> None:
            add_rows(scores, low, matrix, rows.indptr, indices, weights, target, False)

        return add
