"""Statistics: values by hand as fractions, brute force on random matrices, known data."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from equipoise.data import statistics
from equipoise.data.interactions import Interactions
from equipoise.data.readers import read
from equipoise.data.statistics import Statistics, describe, gini, homophily, sampled_homophily
from equipoise.errors import SettingError
from equipoise.runtime.machine import limited

# The pairs of items of `toy`: (common users, smaller count, size of the union).
TOY_PAIRS = [(3, 5, 7), (2, 3, 6), (2, 2, 5), (2, 3, 6), (2, 2, 5), (1, 2, 4)]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([5, 5, 3, 2], Fraction(11, 60)),
        ([2, 2, 4, 2, 1, 3, 1], Fraction(26, 105)),
        ([4, 4, 4], Fraction(0)),
        ([0, 0, 0, 9], Fraction(3, 4)),
        ([0, 1, 2], Fraction(4, 9)),
        ([7], Fraction(0)),
    ],
)
def test_gini_has_the_value_found_by_hand(counts: list[int], expected: Fraction) -> None:
    assert gini(counts) == pytest.approx(float(expected), rel=1e-12, abs=0)


@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0]])
def test_gini_of_nothing_is_zero(counts: list[int]) -> None:
    assert gini(counts) == 0.0


@pytest.mark.parametrize("delta", [0, 1, 2])
def test_homophily_of_the_toy_has_the_value_found_by_hand(toy: Interactions, delta: int) -> None:
    weights = [Fraction(c) ** (delta + 1) / least for c, least, _ in TOY_PAIRS]
    similar = sum(
        w * Fraction(c, union) for w, (c, _, union) in zip(weights, TOY_PAIRS, strict=True)
    )
    expected = float(similar / sum(weights))
    assert homophily(toy, delta=delta) == pytest.approx(expected, rel=1e-12, abs=0)


def test_two_items_with_the_same_users_are_fully_homophilic() -> None:
    assert homophily(Interactions(np.ones((3, 2)))) == 1.0


@pytest.mark.parametrize("matrix", [np.eye(4), np.ones((4, 1)), np.zeros((2, 3))])
def test_homophily_is_zero_when_no_two_items_share_a_user(matrix: np.ndarray) -> None:
    assert homophily(Interactions(matrix)) == 0.0


def brute_force(pattern: np.ndarray, delta: float) -> float:
    above = below = 0.0
    for i, j in combinations(range(pattern.shape[1]), 2):
        common = float(pattern[:, i] @ pattern[:, j])
        smaller = min(pattern[:, i].sum(), pattern[:, j].sum())
        if common:
            weight = common**delta * common / smaller
            above += weight * common / ((pattern[:, i] + pattern[:, j]) > 0).sum()
            below += weight
    return above / below if below else 0.0


matrices = st.tuples(st.integers(1, 9), st.integers(1, 8)).flatmap(
    lambda shape: arrays(np.int8, shape, elements=st.integers(0, 1))
)


@given(matrices, st.sampled_from([0.0, 0.5, 1.5, 3.0]))
def test_homophily_equals_brute_force_over_all_pairs(pattern: np.ndarray, delta: float) -> None:
    ratio = homophily(Interactions(pattern), delta=delta)
    assert ratio == pytest.approx(brute_force(pattern.astype(float), delta), rel=1e-12, abs=0)


@settings(max_examples=20)
@given(matrices, st.integers(0, 1000))
def test_order_of_users_and_items_does_not_matter(pattern: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(rng.permutation(pattern, axis=0), axis=1)
    one, other = describe(Interactions(pattern)), describe(Interactions(mixed))
    assert one.homophily == pytest.approx(other.homophily, rel=1e-12, abs=0)
    assert one.gini_items == other.gini_items
    assert one.gini_users == other.gini_users


def test_weights_are_ignored(synthetic: Interactions, rng: np.random.Generator) -> None:
    matrix = synthetic.matrix.copy()
    matrix.data = rng.uniform(0.1, 9, matrix.nnz).astype(np.float32)
    assert describe(Interactions(matrix)) == describe(synthetic)


def test_homophily_is_the_same_bit_for_bit_on_any_number_of_threads_and_blocks(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = set()
    for threads in (1, None):
        for block in (7, 64, 1000):
            monkeypatch.setattr(statistics, "BLOCK", block)
            with limited(threads):
                ratios.add(homophily(synthetic))
    assert len(ratios) == 1


@pytest.mark.parametrize("delta", [-0.1, float("nan"), float("inf"), 51])
def test_impossible_exponents_are_refused(toy: Interactions, delta: float) -> None:
    with pytest.raises(SettingError, match="delta must lie between 0 and 50"):
        describe(toy, delta=delta)


def test_describe_counts_the_toy(toy: Interactions) -> None:
    stats = describe(toy)
    assert (stats.n_users, stats.n_items, stats.n_interactions) == (7, 4, 15)
    assert stats.density == 15 / 28
    assert stats.gini_items == pytest.approx(11 / 60, rel=1e-12, abs=0)
    assert stats.gini_users == pytest.approx(26 / 105, rel=1e-12, abs=0)
    assert stats.head_share == 5 / 15
    assert (stats.min_user, stats.median_user, stats.max_user) == (1, 2.0, 4)
    assert (stats.min_item, stats.median_item, stats.max_item) == (2, 4.0, 5)
    assert stats.delta == 1.5


def test_head_is_a_fifth_of_the_items_rounded_up() -> None:
    matrix = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    assert describe(Interactions(matrix)).head_share == 5 / 10


def test_popularity_curve_is_concave_from_nothing_to_everything(synthetic: Interactions) -> None:
    stats = describe(synthetic)
    covered = stats.popularity["interactions"].to_numpy()
    assert stats.popularity["items"].to_list() == pytest.approx([n / 50 for n in range(51)])
    assert (covered[0], covered[-1]) == (0.0, 1.0)
    assert (np.diff(covered) >= 0).all()
    assert (np.diff(covered, n=2) <= 1e-12).all()
    assert covered[10] == pytest.approx(stats.head_share, rel=1e-12, abs=0)


def test_empty_data_can_be_described() -> None:
    stats = describe(Interactions(sp.csr_array((0, 0))))
    assert stats.to_frame().select(pl.exclude("delta")).row(0) == (0,) * 17


def test_describe_knows_attributes_and_new_items() -> None:
    table = {"item": ["tea", "rum"], "title": ["Tea", "Rum"], "price": [1.5, 9.0]}
    stats = describe(read([("ann", "tea"), ("bob", "tea")], catalogue=table))
    assert stats.n_new_items == 1
    assert stats.attributes == {"title": "text", "price": "number"}
    assert "  attributes      title (text), price (number)\n" in str(stats)
    assert str(stats).endswith("  new items       1 of the catalogue without events")
    assert stats.to_dict()["attributes"] == stats.attributes
    assert "attributes" not in stats.to_frame().columns


def test_frames_of_several_data_sets_stack(toy: Interactions, synthetic: Interactions) -> None:
    frame = pl.concat([describe(toy).to_frame(), describe(synthetic).to_frame()])
    assert frame["n_users"].to_list() == [7, 300]
    assert "popularity" not in frame.columns


def test_dictionary_survives_json(toy: Interactions) -> None:
    stats = describe(toy)
    back = json.loads(json.dumps(stats.to_dict()))
    curve = pl.DataFrame(back.pop("popularity"))
    assert Statistics(**back, popularity=curve) == stats
    assert curve.equals(stats.popularity)


def pairs(*files: Path) -> Interactions:
    loaded = [np.load(file) for file in files]
    place = [np.concatenate([part[axis] for part in loaded]) for axis in ("users", "items")]
    return Interactions(sp.csr_array((np.ones(len(place[0]), np.float32), tuple(place))))


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "files", "gini_items", "expected"),
    [
        ("gowalla", ["weak/train"], "0.4410", "0.0914"),
        ("gowalla", ["weak/train", "weak/test"], "0.4346", "0.0882"),
        ("gowalla", ["strong/train"], "0.4421", "0.0895"),
        ("yelp2018", ["weak/train"], "0.5315", "0.0424"),
        ("yelp2018", ["weak/train", "weak/test"], "0.5130", "0.0447"),
        ("yelp2018", ["strong/train"], "0.5159", "0.0472"),
    ],
)
def test_known_data_have_the_known_gini_and_homophily(
    shared_data: Path, name: str, files: list[str], gini_items: str, expected: str
) -> None:
    stats = describe(pairs(*(shared_data / name / f"{file}.npz" for file in files)))
    assert (f"{stats.gini_items:.4f}", f"{stats.homophily:.4f}") == (gini_items, expected)


def test_a_sampled_homophily_has_an_interval_that_holds_the_exact_one(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = describe(synthetic)
    assert exact.homophily_low == exact.homophily == exact.homophily_high
    assert "sampled" not in repr(exact)
    monkeypatch.setattr(statistics, "SAMPLE", 100)
    estimates = [sampled_homophily(synthetic, seed=seed) for seed in range(60)]
    n_covering = sum(low <= exact.homophily <= high for _, low, high in estimates)
    assert n_covering >= 48  # 57 are expected; the seeds are fixed
    assert all(high - low < exact.homophily for _, low, high in estimates)
    wide = [high - low for _, low, high in estimates]
    monkeypatch.setattr(statistics, "SAMPLE", 10_000)
    narrow = [high - low for _, low, high in [sampled_homophily(synthetic, seed=1)]]
    assert narrow[0] < np.mean(wide) / 5


def test_describe_samples_where_there_are_too_many_pairs_and_says_so(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = describe(synthetic)
    monkeypatch.setattr(statistics, "PAIRS", 10)
    monkeypatch.setattr(statistics, "homophily", pytest.fail)
    stats = describe(synthetic)
    assert stats.homophily_low < stats.homophily < stats.homophily_high
    assert f"sampled, 95% interval {stats.homophily_low:.4f} to" in repr(stats)
    assert stats == describe(synthetic)
    assert stats.to_dict()["homophily_low"] == stats.homophily_low
    assert stats.gini_items == exact.gini_items
    empty = describe(Interactions(np.zeros((3, 2))), exact=False)
    assert empty.homophily == empty.homophily_high == 0.0
