"""The items with each value of an attribute, looked up once and changed item by item."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]


class AttributeIndex:
    """Positions of the items by the values of an attribute.

    Parameters
    ----------
    cells
        The attribute of each item.
    values_of
        Returns the distinct values in a cell.
    """

    def __init__(self, cells: Sequence[Any], values_of: Callable[[Any], list[Any]]) -> None:
        self._cells, self._values_of = list(cells), values_of

    @cached_property
    def places(self) -> dict[Any, list[int]]:
        """Ascending positions of the items with each value; not to be changed."""
        places: dict[Any, list[int]] = {}
        for place, cell in enumerate(self._cells):
            for value in self._values_of(cell):
                places.setdefault(value, []).append(place)
        return places

    def changed(self, cells: Mapping[int, Any]) -> AttributeIndex:
        """Return the index with other cells at these positions; this one remains as it is."""
        new = AttributeIndex(self._cells, self._values_of)
        for place, cell in cells.items():
            new._cells[place] = cell
        if "places" in vars(self):
            places: dict[Any, list[int]] = dict(self.places)
            copied: set[Any] = set()

            def own_list(value: Any) -> list[int]:
                if value not in copied:
                    copied.add(value)
                    places[value] = places.get(value, []).copy()
                return places[value]

            for place, cell in cells.items():
                for value in self._values_of(self._cells[place]):
                    positions = own_list(value)
                    del positions[bisect_left(positions, place)]
                for value in self._values_of(cell):
                    insort(own_list(value), place)
            for value in copied:
                if not places[value]:
                    del places[value]
            vars(new)["places"] = places
        return new


class AttributeCodes:
    """A number for each value of an attribute: a row of codes for each item, padded with -1.

    Parameters
    ----------
    cells
        The attribute of each item.
    values_of
        Returns the distinct values in a cell; None is no value.
    """

    def __init__(self, cells: Sequence[Any], values_of: Callable[[Any], list[Any]]) -> None:
        self._values_of = values_of
        self._numbers: dict[Any, int] = {}
        rows = [self._numbers_in(cell) for cell in cells]
        self._codes = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
        for place, row in enumerate(rows):
            self._codes[place, : len(row)] = row

    def _numbers_in(self, cell: Any) -> list[int]:
        values = [value for value in self._values_of(cell) if value is not None]
        return [self._numbers.setdefault(value, len(self._numbers)) for value in values]

    def changed(self, cells: Mapping[int, Any]) -> AttributeCodes:
        """Return the codes with other cells at these positions; these remain as they are."""
        new = AttributeCodes((), self._values_of)
        new._numbers, new._codes = self._numbers.copy(), self._codes.copy()
        for place, cell in cells.items():
            row = new._numbers_in(cell)
            missing = len(row) - new._codes.shape[1]
            if missing > 0:
                padding = np.full((len(new._codes), missing), -1, np.int32)
                new._codes = np.hstack([new._codes, padding])
            new._codes[place] = -1
            new._codes[place, : len(row)] = row
        return new

    @cached_property
    def array(self) -> Codes:
        """The codes, numbered in the order in which the items name their values."""
        width = int((self._codes >= 0).sum(axis=1).max(initial=0))
        codes = self._codes[:, :width].copy()
        flat = codes.ravel()
        where = np.flatnonzero(flat >= 0)
        first = np.full(len(self._numbers), len(flat))
        first[flat[where[::-1]]] = where[::-1]  # the last assignment to a place counts
        number = np.empty(len(first), np.int32)
        number[np.argsort(first, kind="stable")] = np.arange(len(first))
        flat[where] = number[flat[where]]
        return codes
