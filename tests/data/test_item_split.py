"""The split that hides items."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions


@pytest.fixture
def data() -> Interactions:
    rng = np.random.default_rng(5)
    return Interactions((rng.random((60, 40)) < 0.3).astype(np.float32))


def test_train_has_no_event_of_hidden_items_and_all_columns(data: Interactions) -> None:
    split = eq.split.new_items(data, share=0.2, seed=3)
    assert split.train.n_items == data.n_items
    hidden = split.train.item_counts == 0
    assert hidden.sum() == 8
    targets = split.test.target.matrix
    assert targets[:, hidden].nnz == data.matrix[:, hidden].nnz
    assert split.test.history.matrix[:, hidden].nnz == 0


def test_known_targets_are_not_in_train(data: Interactions) -> None:
    split = eq.split.new_items(data, seed=1)
    users = data.user_index.positions(split.test.target.users)
    both = split.train.matrix[users].multiply(split.test.target.matrix)
    assert both.nnz == 0
    everything = split.train.matrix[users] + split.test.target.matrix
    assert (everything != data.matrix[users]).nnz == 0


def test_history_of_one_makes_targets_of_hidden_items_only(data: Interactions) -> None:
    split = eq.split.new_items(data, history=1.0)
    hidden = split.train.item_counts == 0
    assert hidden[split.test.target.matrix.indices].all()


def test_valid_hides_other_items_than_test(data: Interactions, tmp_path: object) -> None:
    split = eq.split.new_items(data, share=0.2, valid=0.1, history=1.0)
    hidden = [set(part.target.matrix.indices.tolist()) for part in (split.valid, split.test)]
    assert not hidden[0] & hidden[1]
    assert len(hidden[0]) == 4
    both = split.train_and_valid()
    assert both.select(items=data.items[sorted(hidden[0])]).n_interactions > 0
    split.save(f"{tmp_path}/split")
    assert eq.Split.load(f"{tmp_path}/split").fingerprint == split.fingerprint


def test_same_seed_same_split(data: Interactions) -> None:
    first, second, other = (eq.split.new_items(data, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == second.fingerprint != other.fingerprint


def test_too_few_items_are_refused() -> None:
    with pytest.raises(eq.DataError, match="too few to hide 15% of them"):
        eq.split.new_items(Interactions(np.ones((3, 3))))


def test_items_that_appear_after_the_cut_are_targets_on_request() -> None:
    days = np.array([[1, 3, 0, 8, 0], [0, 2, 9, 0, 0], [0, 0, 5, 6, 0], [7, 1, 0, 0, 9]])
    data = Interactions(days > 0, [1, 2, 3, 4], list("abcde"), times=days[days > 0])
    plain = eq.split.time_cut(data, test_from=7, valid=0)
    assert "e" not in plain.train.items
    split = eq.split.time_cut(data, test_from=7, valid=0, new_items=True)
    assert split.test.target.history(4) == ["a", "e"]
    assert split.train.item_counts[split.train.item_index.position("e")] == 0


def test_new_and_known_items_are_measured_apart(data: Interactions) -> None:
    split = eq.split.new_items(data, share=0.2)
    result = eq.evaluate(eq.EASE(l2=5.0).fit(split.train), split.test, k=40, bootstrap=0)
    # 40 places show all items, new ones without a score of their own after others
    assert result["new_recall@40"] == result["known_recall@40"] == 1
    assert 0.1 < result["new_share@40"] < 0.4
    plain = eq.evaluate(
        eq.EASE(l2=5.0).fit(data), (data, data), k=5, bootstrap=0, exclude_seen=False
    )
    assert "new_share" not in plain.to_frame()["metric"].to_list()
