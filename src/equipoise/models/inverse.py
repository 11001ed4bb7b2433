"""The inverse P of a solve in its forms, behind one interface.

A dense array, the result of `prune` or `halve`, a matrix on a GPU: each is an `Inverse`. Ranking,
saving and updating use that interface and do not depend on the form. A new form is a subclass
with the type of its matrix (`carries`) and, if it can be saved, a `kind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from equipoise.data.matrix import Csr
from equipoise.data.storage import Fields, Stored
from equipoise.errors import FileFormatError, SettingError
from equipoise.models.saving import sparse_arrays, sparse_from
from equipoise.models.updating import Change, gram_change, updated_array
from equipoise.ranking.device import OnDevice
from equipoise.ranking.ranker import score
from equipoise.ranking.terms import Dense, Dual, Sparse, Term
from equipoise.runtime import machine
from equipoise.runtime.kernels import compiled
from equipoise.solve.audit import TARGETS, Audit
from equipoise.solve.dual import DualMatrix, weighted_items
from equipoise.solve.engine import Solved, System, move
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.neighbourhood import Columns, solve_again
from equipoise.solve.planning import SolveOptions

Work = Literal["reuse", "update", "prune", "leave out"]
CANNOT_LEAVE_OUT = (
    "users cannot be left out exactly of a model of the neighbourhood engine; evaluate or tune it "
    "on a split, such as eq.split.strong(data, valid=0.1)"
)
MIXTURES = 32  # columns of W K that are computed together
BLOCK_BYTES = 64 << 20  # of rows of P that are processed together
LARGEST = 2**15 - 1  # in 16 bits


class Inverse(ABC):
    """P of one fit, read-only: other models may share it.

    Parameters
    ----------
    matrix
        The entries, of the type `carries`; has `shape`, `dtype` and `diagonal()`.
    """

    carries: ClassVar[type] = object  # type of the matrix
    kind: ClassVar[str]  # name in a saved model
    is_sparse: ClassVar[bool] = False  # whether few entries of a column are not zero
    host_only: ClassVar[str] = ""  # why the model cannot be moved to a GPU, and a remedy
    _forms: ClassVar[list[type[Inverse]]] = []

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "carries" in vars(cls):
            cls._forms.append(cls)

    @staticmethod
    def of(matrix: Any) -> Inverse:
        """Return the inverse that holds the matrix of a solve."""
        return next(form(matrix) for form in Inverse._forms if isinstance(matrix, form.carries))

    @staticmethod
    def restored(
        state: Fields, stored: Stored, n_items: int, system: Callable[[], System]
    ) -> Inverse:
        """Return the inverse that `state` and `arrays` saved; `system` needs the users."""
        # dense and pruned models are saved without a kind
        unnamed = _PrunedInverse.kind if "loss" in state else _DenseInverse.kind
        kind = state.text("inverse") if "inverse" in state else unnamed
        form = {form.kind: form for form in Inverse._forms if "kind" in vars(form)}.get(kind)
        if form is None:
            raise FileFormatError(f"its inverse is of unknown kind {kind!r}")
        return form._restored(state, stored, n_items, system)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of the entries."""
        dtype: np.dtype[Any] = self.matrix.dtype
        return dtype

    @property
    def shape(self) -> tuple[int, int]:
        """Items x items."""
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.matrix.nbytes)

    def diagonal(self) -> npt.NDArray[np.float64]:
        """Return the diagonal of P."""
        return np.asarray(self.matrix.diagonal(), np.float64)

    @abstractmethod
    def term(self, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Term:
        """Return the scores (x * source) @ P * target, P without its diagonal."""

    @abstractmethod
    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        """Return rows of P, dense and on the host."""

    def gathered(self, positions: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        """Return the rows of P at these positions, dense and on the host."""
        return np.concatenate([self.rows(at, at + 1) for at in positions.tolist()])

    def mixed(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], weights: Csr
    ) -> npt.NDArray[Any] | Csr:
        """Return W K for W = source_i P_ij target_j off the diagonal, and K items x mixtures."""
        # P is symmetric, so a column of W K is the scores of a user whose history is that of K
        term, histories = self.term(target, source), weights.T.tocsr()
        histories.sort_indices()
        mixed = np.empty((weights.shape[1], weights.shape[0]), self.dtype)

        def score_part(number: int) -> None:
            part = slice(number * MIXTURES, (number + 1) * MIXTURES)
            mixed[part] = score([term], histories[part])

        machine.run(score_part, -(-len(mixed) // MIXTURES))
        return np.ascontiguousarray(mixed.T)

    @abstractmethod
    def arrays(self) -> dict[str, Any]:
        """Return the arrays that `save` writes; all names begin with "inverse"."""

    @classmethod
    @abstractmethod
    def _restored(
        cls, state: Fields, stored: Stored, n_items: int, system: Callable[[], System]
    ) -> Inverse:
        """Return the inverse that `state` and `arrays` saved."""

    def state(self) -> dict[str, Any]:
        """Return the plain values that `save` writes."""
        return {"inverse": self.kind}

    def to(self, device: str) -> Inverse:
        """Return it in the memory of the host ("cpu") or of a GPU."""
        if not self.host_only:
            return Inverse.of(move(self.matrix, device))
        if device != "cpu":
            raise SettingError(self.host_only)
        return self

    def require(self, work: Work) -> None:
        """Raise `SettingError` if this form cannot do the work; by default it can."""
        return

    def updated(self, change: Change) -> Solved | None:
        """Return the solve of the changed system; None if a new solve is better."""
        return None

    def solve_options(self) -> SolveOptions:
        """Return the options of a new solve: any exact engine in the same precision."""
        return SolveOptions(dtype=self.dtype.name)

    @property
    def agreement(self) -> dict[str, float]:
        """Agreement of an approximate form with the exact one; empty if it is exact."""
        return {}

    def audit(self, system: System, n_targets: int) -> dict[str, float]:
        """Compare sampled columns of an approximate form with exact ones."""
        raise SettingError("this model was solved exactly; residual_ says how accurately")

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield all rows in blocks, each with the number of its first row."""
        n_items = self.shape[0]
        step = max(1, BLOCK_BYTES // (self.dtype.itemsize * max(n_items, 1)))
        for low in range(0, n_items, step):
            yield low, self.rows(low, min(low + step, n_items))

    def toarray(self) -> npt.NDArray[Any]:
        """Return P as a new array."""
        P = np.empty(self.shape, self.dtype)
        for low, rows in self.blocks():
            P[low : low + len(rows)] = rows
        return P

    def pruned(
        self, source: npt.NDArray[Any], keep: int
    ) -> tuple[_PrunedInverse, npt.NDArray[np.float64]]:
        """Return P with the sources i of largest |source_i P_ij| for each target j.

        The second result has a row per target: the sum of squares of all sources, and of the
        remaining ones.
        """
        n_items = self.shape[0]
        chosen, squares = np.empty((n_items, keep), np.int32), np.empty((n_items, 2))
        values = np.empty((n_items, keep), self.dtype)
        for low, rows in self.blocks():  # P is symmetric: column j is row j
            machine.run(
                lambda at: _strongest(rows, source, keep, low, at, chosen, values, squares),  # noqa: B023
                len(rows),
            )
        offsets = np.arange(n_items + 1, dtype=np.int64) * keep
        columns: Any = sp.csc_array((values.ravel(), chosen.ravel(), offsets), shape=self.shape)
        rows_of_sources = columns.tocsr()
        rows_of_sources.sort_indices()
        return _PrunedInverse(rows_of_sources), squares

    def halved(self) -> _HalvedInverse:
        """Return P in 16 bits; only a dense P can be halved."""
        raise SettingError("only a model with a dense inverse can be halved; this one is small")


class _DenseInverse(Inverse):
    """An array in memory or mapped from a file."""

    carries: ClassVar[type] = np.ndarray
    kind = "dense"

    def term(self, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Term:
        return Dense(self.matrix, source, target)

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        return np.asarray(self.matrix[low:high])

    def gathered(self, positions: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        return np.asarray(self.matrix[positions])

    def state(self) -> dict[str, Any]:
        """Return nothing: dense models are saved without a kind."""
        return {}

    def arrays(self) -> dict[str, Any]:
        return {"inverse": self.matrix}

    @classmethod
    def _restored(
        cls, state: Fields, stored: Stored, n_items: int, system: Callable[[], System]
    ) -> Self:
        return cls(stored.mapped("inverse", (n_items,) * 2))

    def updated(self, change: Change) -> Solved | None:
        return updated_array(self.matrix, change)

    def halved(self) -> _HalvedInverse:
        values, scale = np.empty(self.shape, np.int16), np.empty(self.shape[0], np.float32)
        for low, rows in self.blocks():
            part = np.abs(rows)
            diagonal = np.arange(len(rows)), np.arange(low, low + len(rows))
            part[diagonal] = 0  # the largest of its row, and in no score
            block = slice(low, low + len(rows))
            scale[block] = np.maximum(part.max(axis=1) / LARGEST, np.finfo(np.float32).tiny)
            np.divide(rows, scale[block, None], out=part)
            part[diagonal] = 0
            values[block] = np.rint(part, out=part)
        return _HalvedInverse(HalfMatrix(values, scale, self.diagonal()))


class _DeviceInverse(_DenseInverse):
    """An array on a GPU; saved from there, and loaded as a dense one."""

    carries = DeviceMatrix

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def term(self, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Term:
        return OnDevice(self.matrix, source, target)

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        return np.asarray(self.matrix.rows(low, high))

    gathered = Inverse.gathered

    def require(self, work: Work) -> None:
        if work in ("update", "prune"):
            np.asarray(self.matrix)  # a `DeviceMatrix` refuses this, with advice on moving it


class _DualInverse(Inverse):
    """P of the dual engine: a small matrix of users, and the interactions."""

    carries = DualMatrix
    kind = "dual"
    host_only = "a dual model ranks on device='cpu'; fit one with engine='gpu' instead"

    def term(self, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Term:
        P, Y = self.matrix, self.matrix.items
        scales = source / P.penalty, -target / P.penalty  # P = ... - L^-1 Y^T C Y L^-1
        return Dual(P.core, Y.data, Y.indices, Y.indptr, P.inner_diagonal, *scales, self.dtype)

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        return np.asarray(self.matrix.rows(low, high))

    def gathered(self, positions: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
        return np.asarray(self.matrix.gathered(positions))

    def state(self) -> dict[str, Any]:
        return {**super().state(), "dtype": self.dtype.name}

    def arrays(self) -> dict[str, Any]:
        """Return the matrix of users and a diagonal; the data have the remaining parts."""
        return {"inverse_core": self.matrix.core, "inverse_own": self.matrix.inner_diagonal}

    @classmethod
    def _restored(
        cls, state: Fields, stored: Stored, n_items: int, system: Callable[[], System]
    ) -> Self:
        whole = system()
        items = weighted_items(whole.matrix, whole.weights)
        n_users = items.shape[1]
        core = stored.mapped("inverse_core", (n_users, n_users))
        diagonal = np.array(stored.finite("inverse_own", (n_items,), sizes=(8,)))
        if core.dtype != np.float64:
            raise FileFormatError(f"its matrix of users is {core.dtype}, not float64")
        dtype = np.dtype(state.text("dtype", ("float32", "float64")))
        return cls(DualMatrix(core, items, whole.penalty, diagonal, dtype))


class _ReducedInverse(Inverse):
    """A part of P that is enough to rank with, made from a full P by the `verb`."""

    verb: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.host_only = f"a {cls.kind} model ranks on device='cpu'; move the full one instead"

    def require(self, work: Work) -> None:
        """Raise: only a part of the solve is left."""
        a_model = f"a {self.kind} model"
        raise SettingError(
            {
                "reuse": f"{a_model} cannot be reused; reuse the full one and {self.verb} it",
                "update": f"{a_model} cannot be updated; update the full one and {self.verb} it",
                "prune": f"this model is {self.kind} already; prune the full one",
                "leave out": f"users cannot be left out of {a_model}; use the full one",
            }[work]
        )


class _PrunedInverse(_ReducedInverse):
    """P after `prune`, as sparse rows."""

    carries = sp.sparray
    kind, verb = "pruned", "prune"
    is_sparse = True

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in sparse_arrays(self.matrix, "inverse").values())

    def term(self, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Term:
        return _sparse_term(self.matrix, source, target)

    def mixed(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], weights: Csr
    ) -> npt.NDArray[Any] | Csr:
        return _sparse_mixed(self.matrix, source, target, weights)

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        return np.asarray(self.matrix[low:high].toarray())

    def state(self) -> dict[str, Any]:
        """Return nothing: a pruned model is recognised by its loss."""
        return {}

    def arrays(self) -> dict[str, Any]:
        return sparse_arrays(self.matrix, "inverse")

    @classmethod
    def _restored(
        cls, state: Fields, stored: Stored, n_items: int, system: Callable[[], System]
    ) -> Self:
        return cls(sparse_from(stored, "inverse", n_items))


@dataclass(frozen=True, eq=False)
class HalfMatrix:
    """P in 16 bits: integers, a scale for each row, and a separate diagonal."""

    values: npt.NDArray[np.int16]
    scale: npt.NDArray[np.float32]
    diagonal_: npt.NDArray[np.float64]

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """Items x items."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.values.nbytes + self.scale.nbytes

    def diagonal(self) -> npt.NDArray[np.float64]:
        """Return the diagonal of P."""
        return self.diagonal_


class _HalvedInverse(_ReducedInverse):
    """P in 16 bits, for ranking; sums are in float32."""

    carries = HalfMatrix
    kind, verb = "halved", "halve"
    matrix: HalfMatrix

    def term(self, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Term:
        return Dense(self.matrix.values, source * self.matrix.scale, target)

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        rows = self.matrix.values[low:high] * self.matrix.scale[low:high, None]
        return _with_diagonal(rows, self.matrix.diagonal_, low)

    def arrays(self) -> dict[str, Any]:
        return {"inverse": self.matrix.values, "inverse_scale": self.matrix.scale}

    @classmethod
    def _restored(
        cls, state: Fields, stored: Stored, n_items: int, system: Callable[[], System]
    ) -> Self:
        values = stored.array("inverse", (n_items, n_items), "i", sizes=(2,))
        scale = np.array(stored.finite("inverse_scale", (n_items,), sizes=(4,)))
        diagonal = np.array(stored.finite("diagonal", (n_items,)), np.float64)
        return cls(HalfMatrix(values, scale, diagonal))


class _NeighbourhoodInverse(Inverse):
    """Columns of the neighbourhood engine, on the supports of their targets; not symmetric."""

    carries = Columns
    kind = "neighbourhood"
    is_sparse = True
    host_only = "a model of the neighbourhood engine ranks on device='cpu'"
    matrix: Columns

    def term(self, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Term:
        return _sparse_term(self.matrix, source, target)

    def mixed(
        self, source: npt.NDArray[Any], target: npt.NDArray[Any], weights: Csr
    ) -> npt.NDArray[Any] | Csr:
        return _sparse_mixed(self._checked().off_diagonal, source, target, weights)

    def rows(self, low: int, high: int) -> npt.NDArray[Any]:
        rows = np.asarray(self.matrix.off_diagonal[low:high].toarray())
        return _with_diagonal(rows, self.matrix.diagonal_, low)

    def state(self) -> dict[str, Any]:
        P = self.matrix
        return {"inverse": self.kind, "neighbours": P.neighbours, "audit": P.audit}

    def arrays(self) -> dict[str, Any]:
        return sparse_arrays(self.matrix, "inverse")

    @classmethod
    def _restored(
        cls, state: Fields, stored: Stored, n_items: int, system: Callable[[], System]
    ) -> Self:
        indptr = np.array(stored.array("inverse_indptr", (n_items + 1,), "i"), np.int64)
        size = (int(indptr[-1]),)
        if indptr[0] != 0 or (np.diff(indptr) < 0).any():
            raise FileFormatError("its matrix 'inverse' is damaged: its rows do not ascend")
        data = stored.mapped("inverse_data", size)
        indices = stored.array("inverse_indices", size, "i", sizes=(4,))
        audit = state.group("audit")
        agreement = {name: audit.number(name) for name in audit}
        diagonal = np.array(stored.finite("diagonal", (n_items,)), np.float64)
        neighbours = state.whole_number("neighbours", least=1)
        return cls(Columns(data, indices, indptr, diagonal, neighbours, agreement))

    def require(self, work: Work) -> None:
        """Raise for pruning, where fewer neighbours are better, and for leaving users out."""
        if work == "prune":
            raise SettingError("this model is sparse already; fit it with fewer neighbours")
        if work == "leave out":
            raise SettingError(CANNOT_LEAVE_OUT)

    @property
    def agreement(self) -> dict[str, float]:
        return self.matrix.audit

    def audit(self, system: System, n_targets: int) -> dict[str, float]:
        parts = system.matrix, system.weights, system.penalty
        audit = Audit(self._checked(), *parts, n_targets)
        return {"residual": audit.residual(), **audit.agreement()}

    def updated(self, change: Change) -> Solved | None:
        after = change.after
        rows, _ = gram_change(change.before, after)
        system = after.matrix, after.weights, after.penalty
        columns = solve_again(self._checked(), *system, np.unique(rows.indices).astype(np.int64))
        return Solved(columns, columns.diagonal(), Audit(columns, *system, TARGETS).residual())

    def solve_options(self) -> SolveOptions:
        return SolveOptions(
            dtype=self.dtype.name, engine="neighbourhood", neighbours=self.matrix.neighbours
        )

    def _checked(self) -> Columns:
        """Return the columns with checked indices; loading a large file does not check them."""
        indices, n_items = self.matrix.indices, self.shape[0]
        if len(indices) and not 0 <= indices.min() <= indices.max() < n_items:
            raise FileFormatError(
                "the model is damaged: its weights refer to items that do not exist"
            )
        return self.matrix


def _sparse_term(P: Any, source: npt.NDArray[Any], target: npt.NDArray[Any]) -> Term:
    return Sparse(P.data, P.indices, P.indptr, source, target)


def _sparse_mixed(P: Csr, source: npt.NDArray[Any], target: npt.NDArray[Any], weights: Csr) -> Csr:
    """Return W K for W = source_i P_ij target_j off the diagonal, and sparse K."""
    inside: Csr = P - sp.diags_array(P.diagonal())
    mixed: Csr = (
        sp.diags_array(source) @ inside @ (sp.diags_array(target) @ weights).tocsr()
    ).tocsr()
    mixed.sort_indices()
    return mixed


def _with_diagonal(
    rows: npt.NDArray[Any], diagonal: npt.NDArray[np.float64], low: int
) -> npt.NDArray[Any]:
    """Return rows of P, from row `low` on, with their entries on the diagonal set."""
    places = np.arange(len(rows))
    rows[places, low + places] = diagonal[low : low + len(rows)]
    return rows


@compiled
def _strongest(
    rows: Any, source: Any, keep: int, low: int, at: int, chosen: Any, values: Any, squares: Any
) -> None:
    """Select for target j = low + at the sources i with the largest |source_i P_ij|, in order."""
    j = low + at
    size = np.abs(rows[at] * source)
    size[j] = -1.0
    order = np.argsort(-size, kind="mergesort")[:keep]
    chosen[j] = np.sort(order)
    for place in range(keep):
        values[j, place] = rows[at, chosen[j, place]]
    size[j] = 0.0
    squares[j, 0] = (size.astype(np.float64) ** 2).sum()
    squares[j, 1] = (size[order].astype(np.float64) ** 2).sum()
