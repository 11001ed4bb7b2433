"""Items without users: columns of the scoring matrix from the features of known items.

A new item is a mixture of known ones, and its column is that mixture of their columns. The mixture
is computed when the item is added; the solve stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve

from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.storage import Fields, Stored
from equipoise.errors import FileFormatError, TooBigError
from equipoise.models.features import Features, Vocabulary
from equipoise.models.inverse import Inverse
from equipoise.models.saving import build_part, sparse_arrays, sparse_from
from equipoise.models.settings import plain
from equipoise.ranking.terms import Mixtures, NewColumns
from equipoise.runtime.machine import free_memory, gigabytes, run

if TYPE_CHECKING:
    from equipoise.models.linear import LinearAutoencoder

RIDGE_PART = 0.75  # of "both"
BLOCK = 256  # new items worked on at a time
DIGITS = 5  # of similarities, so that equal ones are recognised
ALPHA = 0.5  # of the weights that are mixed


@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """The features of a fit.

    Parameters
    ----------
    settings
        The settings, with numbers in place of "auto".
    vocabulary, map_vocabulary
        What turns a catalogue into features, for the solve and for new items.
    rows, map_rows
        Features of the items, items x features; rows of zeros for items without users.
    columns
        The column of the scoring matrix that each feature has, items x features; None if the map
        is "nearest".
    figures
        What was measured for the choices of "auto", by name.
    """

    settings: Features
    vocabulary: Vocabulary
    map_vocabulary: Vocabulary
    rows: Csr
    map_rows: Csr
    columns: npt.NDArray[Any] | None = None
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Features, data: Interactions) -> ItemFeatures:
        """Learn the features of the catalogue of training data."""
        vocabulary = Vocabulary.of(settings, data.catalogue, data.attributes)
        map_vocabulary = vocabulary
        if settings.rarity not in (1, "auto") and data.catalogue is not None:
            map_vocabulary = vocabulary.weighted(data.catalogue, float(settings.rarity))
        none: Csr = sp.csr_array(np.zeros((0, vocabulary.size), np.float32))
        return cls(settings, vocabulary, map_vocabulary, none, none).on(data)

    def on(self, data: Interactions) -> ItemFeatures:
        """Return the same features for other data, whose items begin with those of the fit.

        An item that loses its last user keeps its features.
        """
        stays = data.item_counts > 0
        before = np.diff(self.rows.indptr) > 0
        stays[: len(before)] |= before
        mask = sp.diags_array(stays.astype(np.float32))
        sides = []
        for vocabulary in (self.vocabulary, self.map_vocabulary):
            rows: Csr = (mask @ vocabulary.encode(data.catalogue, data.n_items)).tocsr()
            rows.eliminate_zeros()
            sides.append(rows)
        return replace(self, rows=sides[0], map_rows=sides[1], columns=None)

    def with_map(
        self, settings: Features, data: Interactions, figures: dict[str, float]
    ) -> ItemFeatures:
        """Return the features with a chosen map, and with figures of the choice."""
        chosen = ItemFeatures.of(settings, data)
        return replace(chosen, figures={**self.figures, **figures})

    def with_columns(self, solution: Inverse, scales: tuple[Any, Any]) -> ItemFeatures:
        """Return the features with their columns of W = source_i P_ij target_j, if they need any.

        The columns are (W + share I) F (F^T F + mu I)^-1.
        """
        settings, F = self.settings, self.map_rows
        if settings.map == "nearest" or not F.shape[1]:
            return replace(self, columns=None)
        _require_room(F.shape, solution.dtype, "the features")
        columns = _added(solution.mixed(*scales, F), np.float32(settings.share) * F)
        inner = ridge_solve(F, float(settings.mu), columns.T)
        return replace(self, columns=np.ascontiguousarray(inner.T, solution.dtype))

    @property
    def needs_columns(self) -> bool:
        """Whether the columns of the features have to be computed."""
        is_ridge = self.settings.map != "nearest" and self.vocabulary.size > 0
        return is_ridge and self.columns is None

    @property
    def is_open(self) -> bool:
        """Whether a setting is "auto" still."""
        return "auto" in vars(self.settings).values()

    def same_rows(self, other: ItemFeatures) -> bool:
        """Whether the solve has the same features."""
        rows, other_rows = self.rows, other.rows
        return rows.shape == other_rows.shape and abs(rows - other_rows).max() == 0

    def state(self) -> dict[str, Any]:
        """Return the plain values to save."""
        return {
            "settings": plain(self.settings),
            "vocabulary": self.vocabulary.state(),
            "map_level": self.map_vocabulary.level,
            "figures": self.figures,
        }

    def arrays(self) -> dict[str, Any]:
        """Return the arrays to save; all names begin with "features"."""
        arrays: dict[str, npt.NDArray[Any]] = {
            **self.vocabulary.arrays(),
            "features_map_idf": self.map_vocabulary.idf,
            **sparse_arrays(self.rows, "features_rows"),
            **sparse_arrays(self.map_rows, "features_map"),
        }
        return arrays if self.columns is None else {**arrays, "features_columns": self.columns}

    @classmethod
    def restored(cls, state: Fields, stored: Stored, n_items: int) -> ItemFeatures:
        """Return what `state` and `arrays` saved, checked."""
        settings = build_part("features", state.group("settings"), [Features])
        vocabulary = Vocabulary.restored(state.group("vocabulary"), stored)
        size = vocabulary.size
        map_idf = np.array(stored.finite("features_map_idf", (size,), sizes=(8,)))
        map_vocabulary = replace(vocabulary, idf=map_idf, level=state.number("map_level", least=0))
        rows, map_rows = (
            sparse_from(stored, name, size, n_items).astype(np.float32)
            for name in ("features_rows", "features_map")
        )
        columns = None
        if settings.map != "nearest" and size:
            columns = stored.mapped("features_columns", (n_items, size))
        saved = state.group("figures")
        figures = {name: saved.number(name) for name in saved}
        fitted = cls(settings, vocabulary, map_vocabulary, rows, map_rows, columns, figures)
        if fitted.is_open or map_vocabulary.level == 0 or (map_idf < 0).any():
            raise FileFormatError("its features are damaged")
        return fitted


def ridge_solve(rows: Csr, mu: float, right: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return (F^T F + mu I)^-1 times a matrix with a row for each feature."""
    system = (rows.T @ rows).toarray().astype(np.float32)
    system.flat[:: len(system) + 1] += np.float32(mu)
    factor = cho_factor(system, lower=True, overwrite_a=True, check_finite=False)
    single: Any = np.asfortranarray(right, np.float32)
    return np.asarray(cho_solve(factor, single, check_finite=False), np.float32)


def nearest(new: Csr, known: Csr, number: int) -> Csr:
    """Return mixtures of the known items with the most similar features, known x new items.

    Weights are proportional to the similarity, and items that are equally similar share the last
    places. The weights sum to the length of the new item's features, so that one that is hardly
    described counts less.
    """
    by_feature: Csr = known.T.tocsr()
    number = min(number, known.shape[0])
    blocks: list[Any] = [None] * -(-new.shape[0] // BLOCK)

    def mix(at: int) -> None:
        part = new[at * BLOCK : (at + 1) * BLOCK]
        similar: Any = np.maximum((part @ by_feature).toarray(), 0).round(DIGITS)
        border = -np.partition(-similar, number - 1, axis=1)[:, number - 1 : number]
        above, at_border = similar > border, similar == border
        places = number - above.sum(axis=1, keepdims=True)
        similar *= above + at_border * (places / np.maximum(at_border.sum(axis=1)[:, None], 1))
        total = similar.sum(axis=1)
        lengths = np.sqrt(np.asarray(part.multiply(part).sum(axis=1)).ravel())
        scale = np.divide(lengths, total, out=np.zeros_like(total), where=total > 0)
        blocks[at] = sp.csr_array((similar * scale[:, None]).astype(np.float32))

    run(mix, len(blocks))
    if not blocks or not number:
        return sp.csr_array(np.zeros((known.shape[0], new.shape[0]), np.float32))
    mixtures: Csr = sp.vstack(blocks, format="csr").T.tocsr()
    mixtures.sort_indices()
    return mixtures


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of new items.

    Parameters
    ----------
    term
        Their scores.
    served
        The training data with all items of the model.
    rows
        Features of the new items, new items x features.
    solution, fitted
        What the columns were made from.
    """

    term: NewColumns
    served: Interactions
    rows: Csr
    solution: Inverse
    fitted: ItemFeatures

    def is_of(self, solution: Inverse, fitted: ItemFeatures) -> bool:
        """Whether the columns were made from this solve and these features."""
        return self.solution is solution and self.fitted is fitted

    @cached_property
    def usable_counts(self) -> npt.NDArray[np.int64]:
        """Users of each item, 1 for a new item that is like a known one."""
        counts: npt.NDArray[np.int64] = self.served.item_counts + self.term.mixtures.described
        return counts

    def shared_attributes(
        self, vocabulary: Vocabulary, items: Sequence[int], target: int
    ) -> list[list[tuple[str, str]]] | None:
        """Return attributes that items share with a new one; None if it is not new."""
        catalogue, positions = self.served.catalogue, self.term.mixtures.positions
        place = int(np.searchsorted(positions, target))
        if catalogue is None or place == len(positions) or positions[place] != target:
            return None
        rows = vocabulary.encode(catalogue[np.asarray(items, np.int64)], len(items))
        new = self.rows[[place]]
        return [vocabulary.shared(rows[[at]], new) for at in range(len(items))]

    def unchanged(
        self, items: IdIndex, positions: npt.NDArray[np.int64], rows: Csr
    ) -> npt.NDArray[np.int64]:
        """Return the column of each of these new items here, -1 if it has other features."""
        place = np.full(self.served.n_items, -1, np.int64)
        place[self.term.mixtures.positions] = np.arange(self.rows.shape[0])
        known = self.served.item_index.positions(items.values[positions], unknown="skip")
        columns = np.where(known >= 0, place[known], -1)
        same = np.flatnonzero(columns >= 0)
        difference: Csr = (rows[same] - self.rows[columns[same]]).tocsr()
        difference.eliminate_zeros()
        columns[same[np.diff(difference.indptr) > 0]] = -1
        return columns


def new_columns(
    model: LinearAutoencoder,
    served: Interactions,
    positions: npt.NDArray[np.int64],
    rows: Csr,
    previous: Columns | None = None,
) -> Columns:
    """Return the columns of new items.

    Parameters
    ----------
    model
        A fitted model with features.
    served
        The training data with all items, known and new.
    positions
        Positions of the new items among them, ascending.
    rows
        Their features for the map, new items x features.
    previous
        Columns of an earlier state; those of the same solve and features are used again.
    """
    fitted, solution = model.item_features_, model.solution_
    assert fitted is not None
    known = np.full(len(positions), -1, np.int64)
    if previous is not None and previous.is_of(solution, fitted):
        known = previous.unchanged(served.item_index, positions, rows)
    missing = np.flatnonzero(known < 0)
    weights = nearest(rows[missing], fitted.map_rows, int(fitted.settings.neighbours))
    matrix = _columns(fitted, solution, model.scales(ALPHA), weights, rows[missing])
    if previous is not None and (known >= 0).any():
        old = previous.term
        weights = _in_place(old.mixtures.weights, weights, known)
        matrix = _in_place(old.columns, matrix, known)
    scale = np.full(len(positions), fitted.settings.scale, solution.dtype)
    term = NewColumns(matrix, scale, Mixtures(served.n_items, positions, weights))
    return Columns(term, served, rows, solution, fitted)


def _columns(
    fitted: ItemFeatures, solution: Inverse, scales: tuple[Any, Any], weights: Csr, rows: Csr
) -> Any:
    """Return the columns of new items: an array, or CSR where the solve and the map are sparse."""
    settings = fitted.settings
    if fitted.columns is None and solution.is_sparse:
        mixed = solution.mixed(*scales, weights.astype(solution.dtype))
        sparse: Csr = (mixed + solution.dtype.type(settings.share) * weights).tocsr()
        sparse.sort_indices()
        return sparse
    _require_room(weights.shape, solution.dtype, f"{weights.shape[1]:,} new items")
    of_features = np.zeros((0, 0), solution.dtype)
    if fitted.columns is not None:
        of_features = np.ascontiguousarray((rows @ fitted.columns.T).T, solution.dtype)
        if settings.map == "ridge":
            return of_features
    mixed = solution.mixed(*scales, weights.astype(solution.dtype))
    mixed = mixed.toarray() if sp.issparse(mixed) else mixed
    columns = _added(mixed, solution.dtype.type(settings.share) * weights)
    if fitted.columns is None:
        return columns
    columns *= 1 - RIDGE_PART
    columns += RIDGE_PART * of_features
    return columns


def _require_room(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    needed = 3 * shape[0] * shape[1] * dtype.itemsize
    if needed > free_memory():
        raise TooBigError(
            f"{what} of this model need {gigabytes(needed)} and {gigabytes(free_memory())} is "
            "free; add fewer items at a time, or fit with a smaller limit of Features"
        )


def _in_place(old: Any, new: Any, known: npt.NDArray[np.int64]) -> Any:
    """Return columns of an old matrix where known, and the others from a new one in order."""
    matrix: Any = old
    if sp.issparse(matrix):
        sides: list[Any] = [old, new]
        joined: Any = sp.hstack(sides, format="csc")
        order = np.where(known >= 0, known, old.shape[1] + np.cumsum(known < 0) - 1)
        rows = joined[:, order].tocsr()
        rows.sort_indices()
        return rows
    out = np.empty((old.shape[0], len(known)), old.dtype)
    out[:, known >= 0] = old[:, known[known >= 0]]
    out[:, known < 0] = new
    return out


def _added(columns: Any, share: Csr) -> npt.NDArray[Any]:
    entries = share.tocoo()
    rows, places = entries.coords
    columns[rows, places] += entries.data.astype(columns.dtype)
    return np.ascontiguousarray(columns)
