"""The catalogue as a matrix of features."""

from __future__ import annotations

from datetime import date

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.models.features import Vocabulary


def vocabulary(frame: pl.DataFrame, **settings: object) -> Vocabulary:
    kinds = Interactions(np.ones((1, frame.height)), catalogue=frame).attributes
    return Vocabulary.of(eq.Features(**settings), frame, kinds)


FRAME = pl.DataFrame(
    {
        "title": ["red tea", "green tea", "red wine", "green salad", "rye bread"],
        "kind": ["drink", "drink", "drink", "food", "food"],
        "tags": [["hot", "leaf"], ["hot", "leaf"], ["cold"], ["cold", "leaf"], None],
        "price": [3.0, 3.5, 9.0, 5.0, 2.0],
    }
)


def test_features_are_the_tokens_that_items_share() -> None:
    names = set(vocabulary(FRAME.drop("price")).names)
    assert names == {
        ("title", "red"),
        ("title", "green"),
        ("title", "tea"),
        ("kind", "drink"),
        ("kind", "food"),
        ("tags", "hot"),
        ("tags", "leaf"),
        ("tags", "cold"),
    }


def test_rows_have_length_one_and_rare_features_count_more() -> None:
    fitted = vocabulary(FRAME.drop("price"))
    rows = fitted.encode(FRAME)
    np.testing.assert_allclose(np.linalg.norm(rows.toarray()[:4], axis=1), 1, rtol=1e-6)
    position = {name: at for at, name in enumerate(fitted.names)}
    first = rows.toarray()[0]
    assert first[position["tags", "hot"]] > first[position["kind", "drink"]]
    equal = fitted.weighted(FRAME, rarity=0.0).encode(FRAME).toarray()[0]
    assert equal[position["tags", "hot"]] == equal[position["kind", "drink"]]


def test_an_item_that_is_hardly_described_has_a_short_row() -> None:
    frame = pl.DataFrame(
        {"title": [None] * 40, "tags": [["a", "b", "c", "d", "e", "f", "g", "h"]] * 39 + [["a"]]}
    )
    rows = vocabulary(frame, attributes=["tags"]).encode(frame).toarray()
    lengths = np.linalg.norm(rows, axis=1)
    assert lengths[0] == pytest.approx(1)
    assert lengths[-1] < 0.8


def test_near_numbers_and_dates_share_features() -> None:
    numbers = np.linspace(0, 100, 50)
    days = [date(2024, 1, 1 + n // 2) for n in range(50)]
    frame = pl.DataFrame({"title": [None] * 50, "price": numbers, "day": days})
    for name in ("price", "day"):
        rows = vocabulary(frame, attributes=[name]).encode(frame).toarray()
        similar = rows[25] @ rows.T
        assert similar[26] > similar[35]
        assert similar[49] == pytest.approx(0)


def test_vectors_keep_their_angles() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 8)).astype(np.float32)
    frame = pl.DataFrame(
        {"title": [None] * 30, "embedding": pl.Series(vectors, dtype=pl.Array(pl.Float32, 8))}
    )
    fitted = vocabulary(frame, attributes=["embedding"])
    rows = fitted.encode(frame).toarray()
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    centred = units - units.mean(axis=0)
    cosines = np.corrcoef((centred @ centred.T)[0, 1:], (rows @ rows.T)[0, 1:])
    assert cosines[0, 1] > 0.9
    wrong = pl.DataFrame({"title": [None], "embedding": pl.Series([[1.0, 2.0]])})
    with pytest.raises(eq.DataError, match="have 2 numbers, those of the fit 8"):
        fitted.encode(wrong)


def test_later_items_are_encoded_like_those_of_the_fit() -> None:
    fitted = vocabulary(FRAME)
    again = fitted.encode(pl.concat([FRAME[2:3], FRAME[:1]]))
    np.testing.assert_array_equal(again.toarray(), fitted.encode(FRAME)[[2, 0]].toarray())
    strange = pl.DataFrame({"title": ["unheard words"], "kind": ["tool"]})
    assert fitted.encode(strange).nnz == 0


def test_limit_leaves_out_the_features_that_say_least() -> None:
    tags = [[f"t{n % 7}", f"pair{n // 2}"] for n in range(60)]
    frame = pl.DataFrame({"title": [None] * 60, "tags": tags})
    fitted = vocabulary(frame, attributes=["tags"], limit=7)
    assert fitted.size == 7
    assert {name for _, name in fitted.names} == {f"t{n}" for n in range(7)}


def test_shared_attributes_are_ordered_by_what_they_say() -> None:
    fitted = vocabulary(FRAME.drop("price"))
    rows = fitted.encode(FRAME)
    shared = fitted.shared(rows[[0]], rows[[1]], most=5)
    # "hot" and "tea" have two items each, "drink" and "leaf" three
    assert set(shared[:2]) == {("title", "tea"), ("tags", "hot")}
    assert set(shared[2:]) == {("kind", "drink"), ("tags", "leaf")}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attributes": "kind"}, "attributes must be a list of column names"),
        ({"strength": -1.0}, "strength must be"),
        ({"map": "mean"}, "map must be 'auto'"),
        ({"mu": 0.0}, "mu must be"),
        ({"neighbours": 0}, "neighbours must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(eq.SettingError, match=message):
        eq.Features(**settings)


def test_attributes_that_say_nothing_are_refused() -> None:
    with pytest.raises(eq.DataError, match="has no column 'color'"):
        vocabulary(FRAME, attributes=["color"])
    alone = pl.DataFrame({"title": ["a", "b"], "code": ["x1", "x2"]})
    with pytest.raises(eq.DataError, match="nothing that describes several items"):
        vocabulary(alone, attributes=["code"])
