"""Changed lookups of attributes equal new ones."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from equipoise.ranking.attribute_index import AttributeCodes, AttributeIndex
from equipoise.ranking.rules import attribute_values, written_values

CELL = st.one_of(
    st.none(),
    st.sampled_from(["tea", "salt", "tea|jam", "jam| tea"]),
    st.lists(st.sampled_from(["tea", "jam", "oil"]), max_size=3),
)
CELLS = st.lists(CELL, min_size=1, max_size=12)
CHANGES = st.lists(st.dictionaries(st.integers(0, 11), CELL), max_size=4)


@given(cells=CELLS, changes=CHANGES, looks=st.lists(st.booleans(), min_size=5, max_size=5))
def test_changed_lookups_equal_new_ones(
    cells: list[Any], changes: list[dict[int, Any]], looks: list[bool]
) -> None:
    index, codes = AttributeIndex(cells, written_values), AttributeCodes(cells, attribute_values)
    for change, is_read in zip(changes, looks, strict=False):
        before = dict(index.places) if is_read else None
        before_codes = codes.array.tolist() if is_read else None
        old_index, old_codes = index, codes
        fitting = {place: cell for place, cell in change.items() if place < len(cells)}
        index, codes = index.changed(fitting), codes.changed(fitting)
        cells = [fitting.get(place, cell) for place, cell in enumerate(cells)]
        if is_read:
            assert old_index.places == before
            assert old_codes.array.tolist() == before_codes
    assert index.places == AttributeIndex(cells, written_values).places
    assert codes.array.tolist() == AttributeCodes(cells, attribute_values).array.tolist()
