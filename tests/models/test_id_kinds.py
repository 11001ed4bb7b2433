"""Ids of digits and of text meet: a model compares them by the kind that it was fitted on."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq

PAIRS = [(1, 10), (1, 20), (2, 20), (2, 30), (3, 10), (3, 30), (4, 20)]
TEXT = [(str(user), str(item)) for user, item in PAIRS]
NEW = [(4, 30), (5, 10), (5, 40)]


@pytest.mark.parametrize(("rows", "other"), [(PAIRS, str), (TEXT, int)])
def test_an_update_with_ids_of_the_other_kind_equals_a_refit(rows, other):
    kind = type(rows[0][0])
    added = eq.read([(other(user), other(item)) for user, item in NEW])
    model = eq.EASE(l2=1.0, dropout=0.0).fit(eq.read(rows), dtype="float64")
    model.update(added)
    assert {type(user) for user in model.interactions_.users.tolist()} == {kind}
    data = eq.read([*rows, *((kind(user), kind(item)) for user, item in NEW)])
    again = eq.EASE(l2=1.0, dropout=0.0).fit(data, dtype="float64")
    order = model.interactions_.item_index.positions(again.interactions_.items)
    # scores of order 1 from four equations in double precision, returned in single precision
    scores, expected = model.score([[kind(10)]])[:, order], again.score([[kind(10)]])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)
    model.update(removed=added)
    assert model.interactions_.n_interactions == len(PAIRS)


@pytest.mark.parametrize(("rows", "other"), [(PAIRS, str), (TEXT, int)])
def test_users_and_histories_of_the_other_kind_are_known(rows, other):
    model = eq.EASE(l2=1.0).fit(eq.read(rows))
    kind = type(rows[0][0])
    assert model.recommend([other(1)], k=2).items == model.recommend([kind(1)], k=2).items
    history = model.recommend([[other(10), other(20)]], k=1)
    assert history.items == model.recommend([[kind(10), kind(20)]], k=1).items
    assert type(history.items[0][0]) is kind


@pytest.mark.parametrize("added", [[("ann", "10"), ("1", "30")], [("1", "x-9"), ("9", "x-9")]])
def test_an_id_that_is_not_a_number_makes_the_ids_text(added, tmp_path, caplog):
    model = eq.EASE(l2=1.0, dropout=0.0).fit(eq.read(PAIRS), dtype="float64")
    model.update(eq.read(added))
    assert "ids were integers and are text now" in caplog.text
    again = eq.EASE(l2=1.0, dropout=0.0).fit(eq.read([*TEXT, *added]), dtype="float64")
    model.save(tmp_path / "model")
    for updated in (model, eq.load(tmp_path / "model")):
        order = updated.item_index_.positions(again.item_index_.values)
        expected = again.score([["10"], ["30"]])
        # scores of order 1 from few equations in double precision, returned in single precision
        np.testing.assert_allclose(
            updated.score([[10], ["30"]])[:, order], expected, rtol=0, atol=1e-6
        )
        for user, item in added:
            assert item in map(str, updated.data_.history(user))
            assert updated.recommend([user], k=1).source == ["model"]
        assert updated.recommend([1], k=2).items == updated.recommend(["1"], k=2).items
        updated.update(removed=[2])
        assert "2" not in updated.data_.user_index
