"""Features: what the catalogue says about items, as numbers that a model can use.

A fitted `Vocabulary` turns the rows of any catalogue with the same columns into the rows of a
sparse matrix, items x features, so items that come later are encoded like those of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp

from equipoise.automatic import Auto
from equipoise.checks import choice, count, non_negative, positive
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.storage import Fields, Stored
from equipoise.errors import DataError, FileFormatError, SettingError

Map = Literal["ridge", "nearest", "both"]
Kind = Literal["category", "list", "words", "number", "vector"]
Floats = npt.NDArray[np.float64]
Cells = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]  # row, feature, value

MAPS = get_args(Map)
KINDS = get_args(Kind)
KIND_OF: dict[str, Kind] = {  # by the kind of attribute
    "category": "category",
    "list": "list",
    "text": "words",
    "number": "number",
    "date": "number",
    "vector": "vector",
}
WORD = r"[\p{L}\p{N}]{2,}"
FEWEST = 2  # items that share a word or a category; one that a single item has says nothing
KNOTS = 9  # of a number, at its quantiles
FEW_NUMBERS = 12  # an integer column with at most as many values is a category
DIRECTIONS = 256  # of a vector, at most
SHORT = 0.5  # of the median length: descriptions below that are not stretched to length 1


@dataclass(frozen=True)
class Features:
    """How a model uses the attributes of the items.

    Categories, list entries and words count by how rare they are (IDF), and numbers and dates by
    the neighbouring quantiles that they lie between. The features of an item have length 1, less
    if it is hardly described. With F their matrix, items x features:

    - In the solve, each feature is a user of this `strength` whose items are those that have it:
      A = X^T W X + strength F F^T + L. It helps items with few users.
    - An item without users, a new item, gets its column of the scoring matrix from known items:
      "ridge" is (W + share I) F (F^T F + mu I)^-1 f^T, so each feature has a column and that of an
      item is their sum; "nearest" is the mean of the columns of the items with the most similar
      features; "both" mixes three quarters of the first and a quarter of the second. W has
      alpha 1/2.

    What is "auto" is chosen by lists that the fit did not see: `strength` on users left out of it,
    the others on known items that are hidden from it.

    Parameters
    ----------
    attributes
        Columns of the catalogue to use; None for all that can be used.
    strength
        Weight of the features in the solve, 0 to about 10; 0 leaves them out, and so does "auto"
        unless another strength is clearly better.
    map
        "ridge", "nearest" or "both", as above.
    rarity
        Exponent of IDF in the map, 0 to 1: with 0 all features count alike.
    mu
        Ridge penalty, about 1.
    share
        How much an item of the history adds to a new item that is like it, beside the model's
        weights, 0 to about 1.
    neighbours
        Number of known items in "nearest", and in the other maps too for what is not a score: the
        trend of a new item, and what it says in a history.
    scale
        Factor of the scores of new items beside known ones. `recommend(new_items=)` changes it for
        a request.
    limit
        Largest number of features; the rest, those that say least, are left out.

    Examples
    --------
    >>> import equipoise as eq
    >>> data = eq.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cleo", "milk"),
    ...                 ("dan", "jam"), ("dan", "tea"), ("eve", "jam")])
    >>> data = data.with_catalogue({"item": ["tea", "milk", "jam"],
    ...                             "kind": ["drink", "drink", "spread"]})
    >>> model = eq.EASE(l2=1.0, features=eq.Features(strength=1.0, map="nearest")).fit(data)
    >>> _ = model.add_items({"item": ["cocoa"], "kind": ["drink"]})
    >>> model.recommend([["jam"]], k=3).items
    [['tea', 'cocoa', 'milk']]
    """

    attributes: tuple[str, ...] | None = None
    _: KW_ONLY
    strength: float | Auto = "auto"
    map: Map | Auto = "auto"
    rarity: float | Auto = "auto"
    mu: float | Auto = "auto"
    share: float | Auto = "auto"
    neighbours: int | Auto = "auto"
    scale: float | Auto = "auto"
    limit: int = 2000

    def __post_init__(self) -> None:
        names: Any = self.attributes
        if names is not None:
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise SettingError(f"attributes must be a list of column names, got {names!r}")
            object.__setattr__(self, "attributes", tuple(names))
        choice("map", self.map, ("auto", *MAPS))
        if self.mu != "auto":
            positive("mu", self.mu)
        for name in ("strength", "rarity", "share", "scale"):
            if getattr(self, name) != "auto":
                non_negative(name, getattr(self, name))
        if self.neighbours != "auto":
            count("neighbours", self.neighbours)
        count("limit", self.limit)

    def require_map(self, engine: str) -> None:
        """Raise if an engine cannot give the map."""
        if engine == "neighbourhood" and self.map in ("ridge", "both"):
            raise SettingError(
                f'map={self.map!r} needs the weights of all items, which engine="neighbourhood" '
                'does not have; use map="nearest" or "auto"'
            )


@dataclass(frozen=True, eq=False)
class Column:
    """The features of one attribute of the catalogue.

    Parameters
    ----------
    attribute, kind
        Name of the column, and how its cells are read.
    tokens
        The categories or words that are features.
    knots
        Of a number: its quantiles, ascending. A value is shared between the two around it.
    mean, directions
        Of a vector: what is subtracted, and the orthogonal directions of its largest variation.
    """

    attribute: str
    kind: Kind
    tokens: tuple[str, ...] = ()
    knots: Floats = field(default_factory=lambda: np.zeros(0))
    mean: Floats = field(default_factory=lambda: np.zeros(0))
    directions: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def size(self) -> int:
        """Number of features."""
        sizes = {"number": len(self.knots), "vector": len(self.directions)}
        return sizes.get(self.kind, len(self.tokens))

    def names(self) -> list[str]:
        """Return the value that each feature stands for, as text."""
        if self.kind == "number":
            return [f"about {knot:.4g}" for knot in self.knots]
        return [""] * self.size if self.kind == "vector" else list(self.tokens)

    def cells(self, cells: pl.Series) -> Cells:
        """Return the rows and features of the cells, with values before weighting."""
        if self.kind == "number":
            return _between_knots(_numbers(cells), self.knots)
        if self.kind == "vector":
            return _projected(cells, self.mean, self.directions)
        places = pl.DataFrame(
            {"token": self.tokens, "place": np.arange(len(self.tokens))},
            schema={"token": pl.String, "place": pl.Int64},
        )
        pairs = _tokens(cells, self.kind).join(places, on="token", maintain_order="left")
        rows, features = pairs["row"].to_numpy(), pairs["place"].to_numpy()
        return rows.astype(np.int64), features, np.ones(len(rows))


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The features of a fit, which encode any catalogue with the same columns.

    Parameters
    ----------
    columns
        The attributes in use.
    idf
        Factor of each feature, in the order of the columns.
    level
        Median length of a description before it is scaled to length 1.
    """

    columns: tuple[Column, ...]
    idf: Floats
    level: float

    @classmethod
    def of(
        cls, features: Features, catalogue: pl.DataFrame | None, kinds: Mapping[str, str]
    ) -> Vocabulary:
        """Learn the features of a catalogue; `kinds` are those of `Interactions.attributes`.

        Raises
        ------
        DataError
            If there is no catalogue, or it has no attribute that can be used.
        """
        if catalogue is None:
            raise DataError(
                "features need a catalogue; read the data with catalogue=, or add one with "
                "data.with_catalogue(frame)"
            )
        chosen = features.attributes
        for name in chosen or ():
            if name not in catalogue.columns:
                known = ", ".join(catalogue.columns)
                raise DataError(f"the catalogue has no column {name!r}; it has {known}")
        names = catalogue.columns if chosen is None else chosen
        learnt = (_column(catalogue[name], kinds.get(name, "other")) for name in names)
        columns = [column for column in learnt if column is not None]
        used = {column.attribute for column in columns}
        missing = [name for name in chosen or () if name not in used]
        if missing or not columns:
            what = f"column {missing[0]!r} of the catalogue" if missing else "the catalogue"
            raise DataError(
                f"{what} has nothing that describes several items: features need categories, "
                "text, numbers or vectors that items share"
            )
        vocabulary = cls(tuple(columns), np.ones(sum(column.size for column in columns)), 1.0)
        return vocabulary.weighted(catalogue)._limited(features.limit, catalogue)

    @property
    def size(self) -> int:
        """Number of features."""
        return len(self.idf)

    @property
    def names(self) -> list[tuple[str, str]]:
        """The attribute and the value of each feature."""
        return [(column.attribute, name) for column in self.columns for name in column.names()]

    def encode(self, catalogue: pl.DataFrame | None, height: int | None = None) -> Csr:
        """Return the features of each row, items x features; empty for an item without any."""
        height = catalogue.height if catalogue is not None else height or 0
        raw = self._raw(catalogue, height)
        lengths = np.sqrt(np.asarray(raw.multiply(raw).sum(axis=1)).ravel())
        scale = 1 / np.maximum(lengths, SHORT * self.level)
        scaled: Csr = (sp.diags_array(scale) @ raw).tocsr().astype(np.float32)
        scaled.sort_indices()
        return scaled

    def shared(self, first: Csr, second: Csr, most: int = 3) -> list[tuple[str, str]]:
        """Return attributes and values that two items (rows of features) share, best first."""
        product: Csr = first.multiply(second).tocsr()
        best = product.indices[np.argsort(-product.data, kind="stable")]
        names = self.names
        return [names[at] for at in best.tolist() if names[at][1]][:most]

    def _raw(self, catalogue: pl.DataFrame | None, height: int) -> Csr:
        rows, features, values = [], [], []
        start = 0
        for column in self.columns:
            if catalogue is not None and column.attribute in catalogue.columns:
                row, feature, value = column.cells(catalogue[column.attribute])
                rows.append(row)
                features.append(feature + start)
                values.append(value * self.idf[feature + start])
            start += column.size
        parts = [np.concatenate(part) if part else np.empty(0) for part in (rows, features)]
        value = np.concatenate(values) if values else np.empty(0)
        row, feature = (part.astype(np.int64) for part in parts)
        cells: Any = (value, (row, feature))
        return sp.csr_array(cells, shape=(height, self.size))

    def weighted(self, catalogue: pl.DataFrame, rarity: float = 1.0) -> Vocabulary:
        """Return the same features weighted by IDF^rarity; vectors weigh as much as the rest."""
        plain_weights = Vocabulary(self.columns, np.ones(self.size), 1.0)
        raw = plain_weights._raw(catalogue, catalogue.height)
        described = max(int((np.diff(raw.indptr) > 0).sum()), 1)
        used: Floats = np.asarray(abs(raw).sum(axis=0)).ravel()
        idf = np.log1p(described / np.maximum(used, 1.0)) ** rarity
        is_vector = np.repeat(
            [column.kind == "vector" for column in self.columns],
            [column.size for column in self.columns],
        )
        plain: Csr = raw[:, ~is_vector] @ sp.diags_array(idf[~is_vector])
        lengths = _lengths(plain)
        idf[is_vector] = float(np.median(lengths[lengths > 0])) if (lengths > 0).any() else 1.0
        full: Any = raw @ sp.diags_array(idf)
        lengths = _lengths(full)
        level = float(np.median(lengths[lengths > 0])) if (lengths > 0).any() else 1.0
        return Vocabulary(self.columns, idf, level)

    def _limited(self, limit: int, catalogue: pl.DataFrame) -> Vocabulary:
        """Return the vocabulary with the features that say most, if there are too many."""
        if self.size <= limit:
            return self
        raw = self._raw(catalogue, catalogue.height)
        mass: Floats = np.asarray(raw.multiply(raw).sum(axis=0)).ravel()
        keeps = np.zeros(self.size, np.bool_)
        keeps[np.argsort(-mass, kind="stable")[:limit]] = True
        columns, start = [], 0
        for column in self.columns:
            part = keeps[start : start + column.size]
            start += column.size
            if column.kind in ("number", "vector"):
                keeps[start - column.size : start] = True
                columns.append(column)
            elif part.any():
                tokens = tuple(t for t, keep in zip(column.tokens, part, strict=True) if keep)
                columns.append(Column(column.attribute, column.kind, tokens))
        return Vocabulary(tuple(columns), self.idf[keeps], self.level)

    def state(self) -> dict[str, Any]:
        """Return the plain values to save."""
        columns = [
            {"attribute": column.attribute, "kind": column.kind, "tokens": list(column.tokens)}
            for column in self.columns
        ]
        return {"columns": columns, "level": self.level}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays to save; all names begin with "features"."""
        arrays = {"features_idf": self.idf}
        for number, column in enumerate(self.columns):
            for name in {"number": ("knots",), "vector": ("mean", "directions")}.get(
                column.kind, ()
            ):
                arrays[f"features_{name}_{number}"] = getattr(column, name)
        return arrays

    @classmethod
    def restored(cls, state: Fields, stored: Stored) -> Vocabulary:
        """Return what `state` and `arrays` saved, checked."""
        columns = []
        for number, saved in enumerate(state.groups("columns")):
            kind: Any = saved.text("kind", KINDS)
            parts = {}
            for name in {"number": ("knots",), "vector": ("mean", "directions")}.get(kind, ()):
                key = f"features_{name}_{number}"
                shape = stored.arrays[key].shape if key in stored.arrays else (0,)
                parts[name] = np.array(stored.finite(key, shape, sizes=(8,)))
            column = Column(
                saved.text("attribute"), kind, tuple(dict.fromkeys(saved.texts("tokens"))), **parts
            )
            knots, mean, directions = column.knots, column.mean, column.directions
            if (
                knots.ndim != 1
                or (np.diff(knots) <= 0).any()
                or directions.ndim != 2
                or (kind == "vector" and mean.shape != directions.shape[1:])
            ):
                raise FileFormatError(f"the features of {column.attribute!r} are damaged")
            columns.append(column)
        size = sum(column.size for column in columns)
        idf = np.array(stored.finite("features_idf", (size,), sizes=(8,)))
        level = state.number("level", least=0)
        if (idf < 0).any() or level == 0:
            raise FileFormatError("its features have a weight that is not positive")
        return cls(tuple(columns), idf, level)


def usable(features: Features, data: Interactions) -> bool:
    """Whether the catalogue of data describes items by more than a title, or new ones at all."""
    catalogue = data.catalogue
    if catalogue is None or (catalogue.width < FEWEST and data.new_items is None):
        return False
    try:
        Vocabulary.of(features, catalogue, data.attributes)
    except DataError:
        return False
    return True


def _lengths(rows: Csr) -> Floats:
    return np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())


def _column(cells: pl.Series, attribute: str) -> Column | None:
    """Return the features of an attribute, None if it has none that items share."""
    kind = _kind(cells, attribute)
    if kind is None:
        return None
    if kind == "number":
        knots = _quantiles(_numbers(cells))
        return Column(cells.name, kind, knots=knots) if len(knots) > 1 else None
    if kind == "vector":
        return _vector_column(cells)
    counts = _tokens(cells, kind).group_by("token").len().filter(pl.col("len") >= FEWEST)
    tokens = tuple(counts.sort("token")["token"].to_list())
    return Column(cells.name, kind, tokens) if tokens else None


def _kind(cells: pl.Series, attribute: str) -> Kind | None:
    """Return how the cells of an attribute are read; None for one without a meaning here."""
    known = cells.drop_nulls()
    if not len(known):
        return None
    if attribute == "number" and cells.dtype.is_integer() and known.n_unique() <= FEW_NUMBERS:
        return "category"
    return KIND_OF.get(attribute)


def _tokens(cells: pl.Series, kind: str) -> pl.DataFrame:
    """Return the distinct tokens of each row: columns row and token."""
    frame = pl.DataFrame({"row": np.arange(len(cells)), "token": cells})
    token = pl.col("token")
    if cells.dtype.is_float():  # a column of integers with gaps, as some libraries have it
        integers = token.cast(pl.Int64, strict=False)
        frame = frame.with_columns(
            pl.when(token == integers)
            .then(integers.cast(pl.String))
            .otherwise(token.cast(pl.String))
        )
    if kind == "list":
        frame = frame.explode("token")
    elif kind == "words":
        words = frame.with_columns(token.str.to_lowercase().str.extract_all(WORD)).explode("token")
        # a text that several items have is also a category
        frame = pl.concat([words, frame])
    return (
        frame.with_columns(token.cast(pl.String).str.strip_chars())
        .filter(token.is_not_null() & (token != ""))
        .unique(maintain_order=True)
    )


def _numbers(cells: pl.Series) -> Floats:
    """Return numbers and moments as floats, NaN where there is none."""
    if cells.dtype.is_temporal() and not isinstance(cells.dtype, pl.Time | pl.Duration):
        cells = cells.cast(pl.Datetime("us")).dt.timestamp("us")
    elif cells.dtype.is_temporal():
        cells = cells.to_physical()
    values = np.array(cells.cast(pl.Float64).to_numpy(), np.float64)
    values[~np.isfinite(values)] = np.nan
    return values


def _quantiles(values: Floats) -> Floats:
    known = values[~np.isnan(values)]
    if not len(known):
        return known
    knots: Floats = np.unique(np.quantile(known, np.linspace(0, 1, KNOTS)))
    return knots


def _between_knots(values: Floats, knots: Floats) -> Cells:
    """Share each value between the two knots around it."""
    rows = np.flatnonzero(~np.isnan(values))
    inside = np.clip(values[rows], knots[0], knots[-1])
    low = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
    upper = (inside - knots[low]) / (knots[low + 1] - knots[low])
    places, parts = np.concatenate([low, low + 1]), np.concatenate([1 - upper, upper])
    is_used = parts > 0
    return np.concatenate([rows, rows])[is_used], places[is_used], parts[is_used]


def _vectors(cells: pl.Series) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the rows with a vector, and these vectors with length 1."""
    lists = cells.to_list()
    width = max((len(cell) for cell in lists if cell is not None), default=0)
    rows = [at for at, cell in enumerate(lists) if cell is not None and len(cell) == width]
    vectors = np.array([lists[at] for at in rows], np.float64).reshape(len(rows), width)
    fine = np.isfinite(vectors).all(axis=1) & (abs(vectors) > 0).any(axis=1)
    vectors = vectors[fine]
    return np.array(rows, np.int64)[fine], vectors / np.linalg.norm(vectors, axis=1)[:, None]


def _vector_column(cells: pl.Series) -> Column | None:
    rows, vectors = _vectors(cells)
    if len(rows) < FEWEST:
        return None
    mean: Floats = vectors.mean(axis=0)
    centred = vectors - mean
    values, directions = np.linalg.eigh(centred.T @ centred)
    order = np.argsort(-values)[:DIRECTIONS]
    order = order[values[order] > 1e-9 * max(values.max(), 1e-300)]
    if not len(order):
        return None
    return Column(
        cells.name, "vector", mean=mean, directions=np.ascontiguousarray(directions[:, order].T)
    )


def _projected(cells: pl.Series, mean: Floats, directions: Floats) -> Cells:
    rows, vectors = _vectors(cells)
    if vectors.shape[1] != len(mean):
        if len(rows):
            raise DataError(
                f"the vectors of column {cells.name!r} have {vectors.shape[1]} numbers, those of "
                f"the fit {len(mean)}; use the same embedding model for all items"
            )
        rows, vectors = rows[:0], np.empty((0, len(mean)))
    inner = (vectors - mean) @ directions.T
    length = np.linalg.norm(inner, axis=1)[:, None]
    inner = np.divide(inner, length, out=np.zeros_like(inner), where=length > 0)
    width = len(directions)
    return np.repeat(rows, width), np.tile(np.arange(width), len(rows)), inner.ravel()
