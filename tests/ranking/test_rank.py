"""Ranking against a brute-force dense implementation on data whose sums are exact."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data.matrix import Csr
from equipoise.errors import DataError, SettingError, SolveError
from equipoise.ranking import ranker
from equipoise.ranking.ranker import Job, Ranked, RowRanker, score, score_items, top_k
from equipoise.ranking.terms import Constant, Dense, LowRank, Scaled, Sparse, Term

KINDS = ["dense", "dense with diagonal", "sparse", "sparse with diagonal", "low-rank", "constant"]


def small_integers(rng: np.random.Generator, shape: Any, dtype: str) -> npt.NDArray[Any]:
    """Return small integers: every sum of products is exact, and ties are common."""
    return rng.integers(-3, 4, shape).astype(dtype)


def scales(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return rng.choice([0.5, 1.0, 2.0], n), rng.choice([-1.0, 0.5, 1.0], n)


def sparse_term(
    matrix: npt.NDArray[Any], source: Any, target: Any, zero_diagonal: bool = True
) -> Sparse:
    csr = sp.csr_array(matrix)
    return Sparse(csr.data, csr.indices, csr.indptr, source, target, zero_diagonal)


def make_term(rng: np.random.Generator, kind: str, n: int, dtype: str) -> Term:
    source, target = scales(rng, n)
    if kind == "constant":
        return Constant(small_integers(rng, n, dtype))
    if kind == "low-rank":
        q = int(rng.integers(1, 12))
        return LowRank(
            small_integers(rng, (n, q), dtype), small_integers(rng, (q, n), dtype), source, target
        )
    matrix = small_integers(rng, (n, n), dtype)
    if kind.startswith("dense"):
        return Dense(matrix, source, target, zero_diagonal=kind == "dense")
    return sparse_term(matrix, source, target, zero_diagonal=kind == "sparse")


def make_history(rng: np.random.Generator, m: int, n: int, density: float = 0.3) -> Csr:
    """Random histories with weights 1 and 2, some of them empty."""
    filled = rng.random((m, n)) < density
    filled[::4] = False
    return sp.csr_array((filled * rng.integers(1, 3, (m, n))).astype(np.float32))


def dense_weights(term: Term) -> npt.NDArray[np.float64]:
    """Form what ranking never forms: the scoring matrix of a term."""
    assert not isinstance(term, Constant)
    if isinstance(term, LowRank):
        matrix = term.left.astype(np.float64) @ term.right.astype(np.float64)
    elif isinstance(term, Dense):
        matrix = term.matrix.astype(np.float64)
    else:
        n = term.n_items
        matrix = sp.csr_array((term.data, term.indices, term.indptr), (n, n)).toarray()
    weights = term.source[:, None] * matrix * term.target
    if not isinstance(term, LowRank) and term.zero_diagonal:
        np.fill_diagonal(weights, 0)
    return np.asarray(weights, np.float64)


def brute_scores(terms: Sequence[Term], history: Csr) -> npt.NDArray[np.float64]:
    scores = np.zeros(history.shape)
    for term in terms:
        if isinstance(term, Constant):
            scores += term.scores
        else:
            scores += history.toarray().astype(np.float64) @ dense_weights(term)
    return scores


def assert_lists(ranked: Ranked, scores: npt.NDArray[Any], barred: Any, k: int) -> None:
    """Compare with a stable sort of all scores, user by user."""
    k = min(k, scores.shape[1])  # a list has no more room than there are items
    assert ranked.items.shape == ranked.scores.shape == (len(scores), k)
    for user, row in enumerate(scores):
        order = np.argsort(-row, kind="stable")
        order = order[~barred[user][order]][:k]
        assert ranked.lengths[user] == len(order)
        np.testing.assert_array_equal(ranked.items[user, : len(order)], order)
        np.testing.assert_array_equal(ranked.scores[user, : len(order)], row[order])
        assert (ranked.items[user, len(order) :] == -1).all()
        assert np.isnan(ranked.scores[user, len(order) :]).all()


def assert_same_bits(one: Ranked, other: Ranked) -> None:
    assert one.items.tobytes() == other.items.tobytes()
    assert one.scores.tobytes() == other.scores.tobytes()
    assert one.lengths.tobytes() == other.lengths.tobytes()


def random_terms(rng: np.random.Generator, n: int, dtype: str = "float32") -> list[Term]:
    """One term of each kind with values whose sums do round."""
    ones = np.ones(n)
    square = rng.standard_normal((n, n)).astype(dtype)
    thin = rng.standard_normal((n, 21)).astype(dtype)
    pruned = np.where(np.abs(square.T) > 1, square.T, 0)
    return [
        Dense(square, rng.random(n), rng.random(n)),
        sparse_term(pruned, ones, rng.random(n)),
        LowRank(thin, np.ascontiguousarray(thin.T), rng.random(n), ones),
        Constant(rng.random(n).astype(dtype)),
    ]


@pytest.mark.parametrize("k", [1, 7])
def test_integers_are_summed_as_floats_of_the_same_value(k: int) -> None:
    rng = np.random.default_rng(k)
    integers = rng.integers(-(2**15), 2**15, (50, 50), np.int16)
    scales = rng.random(50, np.float32), rng.random(50, np.float32)
    history = sp.random_array((40, 50), density=0.3, format="csr", dtype=np.float32, rng=rng)
    half, single = (Dense(matrix, *scales) for matrix in (integers, integers.astype(np.float32)))
    assert half.dtype == np.float32
    assert_same_bits(top_k([half], history, k), top_k([single], history, k))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(0, 9),
    n=st.integers(1, 40),
    k=st.integers(1, 45),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64"]),
    exclude_seen=st.booleans(),
    with_exclude=st.booleans(),
    with_candidates=st.booleans(),
)
def test_lists_equal_a_stable_sort_of_all_scores(
    seed: int,
    m: int,
    n: int,
    k: int,
    kinds: list[str],
    dtype: str,
    exclude_seen: bool,
    with_exclude: bool,
    with_candidates: bool,
) -> None:
    rng = np.random.default_rng(seed)
    terms = [make_term(rng, kind, n, dtype) for kind in kinds]
    history = make_history(rng, m, n)
    exclude = make_history(rng, m, n) if with_exclude else None
    candidates = rng.random(n) < 0.6 if with_candidates else None
    barred = np.zeros((m, n), bool)
    if exclude_seen:
        barred |= history.toarray() != 0
    if exclude is not None:
        barred |= exclude.toarray() != 0
    if candidates is not None:
        barred |= ~candidates
    ranked = top_k(
        terms, history, k, exclude_seen=exclude_seen, exclude=exclude, candidates=candidates
    )
    assert ranked.scores.dtype == dtype
    assert ranked.items.dtype == ranked.lengths.dtype == np.int32
    assert_lists(ranked, brute_scores(terms, history), barred, k)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 5, 31, 33, 1023, 1025, 2047, 2049])
def test_any_number_of_items_is_ranked(
    rng: np.random.Generator, n: int, dtype: str, kind: str
) -> None:
    terms = [make_term(rng, kind, n, dtype)]
    history = make_history(rng, 5, n, density=min(1.0, 30 / n))
    ranked = top_k(terms, history, 20, exclude_seen=False)
    scores = brute_scores(terms, history)
    assert_lists(ranked, scores, np.zeros(history.shape, bool), 20)
    np.testing.assert_array_equal(score(terms, history), scores)


@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("kind", KINDS[:4])
def test_items_add_nothing_to_their_own_score_in_any_block(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: str, width: int
) -> None:
    monkeypatch.setattr(Job, "width", width)
    terms = [make_term(rng, kind, 50, "float32")]
    history = make_history(rng, 12, 50, density=0.5)
    ranked = top_k(terms, history, 50, exclude_seen=False)
    assert_lists(ranked, brute_scores(terms, history), np.zeros(history.shape, bool), 50)


def test_scores_of_all_rows_follow_the_order_of_the_rows(rng: np.random.Generator) -> None:
    terms, history = [make_term(rng, "dense", 9, "float32")], make_history(rng, 5, 9)
    expected = score(terms, history)
    for rows in ([4, 3, 2, 1, 0], [2, 2, 0, 1, 4]):
        assert np.array_equal(score(terms, history, rows), expected[rows])
    assert np.array_equal(score(terms, history[[1]]), expected[[1]])


def test_equal_scores_are_ordered_by_position() -> None:
    values = np.zeros(3000, np.float32)
    values[[7, 1500, 2999]] = 1
    history = sp.csr_array((1, 3000), dtype=np.float32)
    ranked = top_k([Constant(values)], history, 6)
    assert ranked.items.tolist() == [[7, 1500, 2999, 0, 1, 2]]


def test_empty_histories_have_scores_of_zero(rng: np.random.Generator) -> None:
    terms = random_terms(rng, 30)[:3]
    ranked = top_k(terms, sp.csr_array((2, 30), dtype=np.float32), 4)
    assert ranked.items.tolist() == [[0, 1, 2, 3]] * 2
    assert (ranked.scores == 0).all()


def test_no_users_give_no_lists(rng: np.random.Generator) -> None:
    terms = random_terms(rng, 30)
    history = sp.csr_array((0, 30), dtype=np.float32)
    assert top_k(terms, history, 4).items.shape == (0, 4)
    assert score(terms, history).shape == (0, 30)
    assert score_items(terms, history, [], []).shape == (0,)


def test_users_without_candidates_get_empty_lists(rng: np.random.Generator) -> None:
    terms = random_terms(rng, 30)
    everything = sp.csr_array(np.ones((3, 30), np.float32))
    assert top_k(terms, everything, 4).lengths.tolist() == [0, 0, 0]
    nothing = np.zeros(30, bool)
    ranked = top_k(terms, everything, 4, exclude_seen=False, candidates=nothing)
    assert ranked.lengths.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lists_have_the_same_bits_for_any_threads_batches_and_blocks(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    terms = random_terms(rng, 700, dtype)
    history = make_history(rng, 90, 700, density=0.05)
    expected = top_k(terms, history, 20, threads=1)
    for start in range(0, 90, 30):
        part = top_k(terms, history[start : start + 30], 20, threads=1)
        assert part.items.tobytes() == expected.items[start : start + 30].tobytes()
        assert part.scores.tobytes() == expected.scores[start : start + 30].tobytes()
    monkeypatch.setattr(ranker, "SMALL", 0)
    for block, tile, scratch in [(1024, 1 << 19, 1 << 23), (37, 600, 5000), (256, 1, 1)]:
        monkeypatch.setattr(ranker, "BLOCK", block)
        monkeypatch.setattr(ranker, "TILE", tile)
        monkeypatch.setattr(ranker, "SCRATCH", scratch)
        for threads in (None, 1, 2, 3):
            assert_same_bits(top_k(terms, history, 20, threads=threads), expected)


def one_matrix(rng: np.random.Generator, n_items: int, dtype: str) -> list[Term]:
    """Return a single matrix and scores that do not depend on the history."""
    constant = rng.standard_normal(n_items).astype(dtype)
    return [make_term(rng, "dense", n_items, dtype), Constant(constant), Constant(constant)]


@pytest.mark.parametrize("kind", ["float32", "float64", "mixed"])
@pytest.mark.parametrize("tile", [1 << 19, 256])
def test_a_single_row_has_the_bits_of_the_lists(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tile: int, kind: str
) -> None:
    n, m = 700, 12
    if kind == "mixed":
        scaled = Scaled(make_term(rng, "dense", n, "float32"), rng.random(n))
        terms = [*random_terms(rng, n), scaled]
    else:
        terms = one_matrix(rng, n, kind)
    history = sp.csr_array(
        sp.random_array((m, n), density=0.1, rng=rng, dtype=np.float32, format="csr")
    )
    history.data[:] = rng.random(history.nnz, dtype=np.float32)
    candidates = rng.random(n) < 0.8
    for k in (1, 20, n):
        ranked = top_k(terms, history, k, candidates=candidates)
        monkeypatch.setattr(ranker, "TILE", tile)
        row_ranker = RowRanker(terms)
        for row in range(m):
            part = slice(history.indptr[row], history.indptr[row + 1])
            indices, values = history.indices[part], history.data[part]
            hidden = rng.permutation(np.concatenate([indices, indices]))
            items, scores = row_ranker.rank(indices, values, k, candidates, hidden)
            length = ranked.lengths[row]
            assert len(items) == len(scores) == length
            assert items.tolist() == ranked.items[row, :length].tolist()
            assert scores.tobytes() == ranked.scores[row, :length].tobytes()


def test_a_single_row_of_integer_weights_has_the_bits_of_the_lists(
    rng: np.random.Generator,
) -> None:
    n = 300
    matrix = rng.integers(-(2**15), 2**15, (n, n), np.int16)
    term = Dense(matrix, rng.random(n), rng.random(n).astype(np.float32), zero_diagonal=False)
    history = make_history(rng, 5, n, density=0.2)
    ranked = top_k([term], history, 10)
    for row in range(5):
        part = slice(history.indptr[row], history.indptr[row + 1])
        indices, values = history.indices[part], history.data[part]
        items, scores = RowRanker([term]).rank(indices, values, 10, np.ones(n, bool), indices)
        assert items.tolist() == ranked.items[row].tolist()
        assert scores.tobytes() == ranked.scores[row].tobytes()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_single_row_with_nan_scores_is_refused(rng: np.random.Generator, kind: str) -> None:
    row_ranker = RowRanker([make_term(rng, kind, 5, "float32")])
    values, allowed = np.full(1, np.nan, np.float32), np.ones(5, np.bool_)
    with pytest.raises(SolveError, match="not numbers"):
        row_ranker.rank(np.array([2]), values, 3, allowed, np.empty(0, np.int64))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_of_pairs_have_the_bits_of_the_lists(rng: np.random.Generator, dtype: str) -> None:
    terms = random_terms(rng, 1100, dtype)
    history = make_history(rng, 40, 1100, density=0.03)
    ranked = top_k(terms, history, 30, exclude_seen=False)
    users = np.repeat(np.arange(40), 30)
    shuffled = rng.permutation(len(users))
    pairs = score_items(terms, history, users[shuffled], ranked.items.ravel()[shuffled])
    assert pairs.tobytes() == ranked.scores.ravel()[shuffled].tobytes()
    dense = score(terms, history, [5, 3])
    assert dense[:, ranked.items[3]][1].tobytes() == ranked.scores[3].tobytes()
    tolerance = 1e-7 if dtype == "float64" else 1e-4
    # Sums of some 50 terms of both signs cancel: the error is relative to the largest score.
    scale = np.abs(dense).max()
    np.testing.assert_allclose(
        dense / scale, brute_scores(terms, history[[5, 3]]) / scale, rtol=0, atol=tolerance
    )


def test_several_callers_at_once_get_the_same_lists(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker, "SMALL", 0)
    terms = random_terms(rng, 300)
    history = make_history(rng, 40, 300)
    expected = top_k(terms, history, 10)
    lists: list[Ranked] = []

    def work() -> None:
        lists.extend(top_k(terms, history, 10, threads=2) for _ in range(5))

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(lists) == 20
    for ranked in lists:
        assert_same_bits(ranked, expected)


def test_unsorted_histories_are_ranked_like_sorted_ones(rng: np.random.Generator) -> None:
    terms = random_terms(rng, 40)
    unsorted = sp.csr_array(
        (np.ones(4, np.float32), np.array([9, 2, 30, 2]), np.array([0, 4])), shape=(1, 40)
    )
    tidy = unsorted.copy()
    tidy.sum_duplicates()
    assert_same_bits(top_k(terms, unsorted, 10), top_k(terms, tidy, 10))
    assert unsorted.nnz == 4


def test_memory_maps_are_ranked_like_arrays(rng: np.random.Generator, tmp_path: Path) -> None:
    dense = random_terms(rng, 60)[0]
    assert isinstance(dense, Dense)
    np.save(tmp_path / "matrix.npy", dense.matrix)
    matrix = np.load(tmp_path / "matrix.npy", mmap_mode="r")
    mapped = Dense(matrix, dense.source, dense.target)
    history = make_history(rng, 10, 60)
    assert_same_bits(top_k([mapped], history, 10), top_k([dense], history, 10))


def test_terms_of_two_precisions_are_summed_in_the_higher(rng: np.random.Generator) -> None:
    terms = [make_term(rng, "dense", 20, "float32"), make_term(rng, "low-rank", 20, "float64")]
    history = make_history(rng, 6, 20)
    ranked = top_k(terms, history, 5)
    assert ranked.scores.dtype == np.float64
    assert_lists(ranked, brute_scores(terms, history), history.toarray() != 0, 5)


@pytest.mark.parametrize("kind", ["dense", "sparse", "low-rank"])
def test_nan_scores_are_refused_with_the_first_row(rng: np.random.Generator, kind: str) -> None:
    n = 1500
    matrix = np.ones((n, n), np.float32)
    matrix[3, 1400] = np.nan
    ones = np.ones(n)
    term: Term
    if kind == "dense":
        term = Dense(matrix, ones, ones)
    elif kind == "sparse":
        term = sparse_term(matrix, ones, ones)
    else:
        term = LowRank(matrix[:, 1400:1401].copy(), np.ones((1, n), np.float32), ones, ones)
    history = make_history(rng, 200, n, density=0.01).tolil()
    history[:, [3]] = 0
    history[[77, 150], [3, 3]] = 1
    csr = sp.csr_array(history)
    message = "row 77 of the histories has scores that are not numbers"
    for call in (
        lambda: top_k([term], csr, 5, threads=2),
        lambda: score([term], csr),
        lambda: score_items([term], csr, [150, 77], [1400, 1400]),
    ):
        with pytest.raises(SolveError, match=message):
            call()
    clean = score_items([term], csr, [0, 1], [1400, 2])
    assert np.isfinite(clean).all()


def test_nan_scores_of_excluded_items_are_ignored() -> None:
    values = np.array([1, np.nan, 2], np.float32)
    history = sp.csr_array(np.array([[0, 1, 0]], np.float32))
    assert top_k([Constant(values)], history, 3).items.tolist() == [[2, 0, -1]]


def test_items_of_minus_infinity_are_never_listed() -> None:
    values = np.array([1, -np.inf, np.inf], np.float32)
    ranked = top_k([Constant(values)], sp.csr_array((1, 3), dtype=np.float32), 3)
    assert ranked.items.tolist() == [[2, 0, -1]]
    assert ranked.lengths.tolist() == [2]


def test_wrong_arguments_are_refused_with_a_reason(rng: np.random.Generator) -> None:
    terms = [Constant(np.ones(4, np.float32))]
    history = make_history(rng, 3, 4)
    with pytest.raises(SettingError, match="k must be a whole number >= 1, got 0"):
        top_k(terms, history, 0)
    with pytest.raises(SettingError, match="threads must be a whole number from 1"):
        top_k(terms, history, 1, threads=0)
    with pytest.raises(DataError, match=re.escape("exclude must have shape (3, 4), got (2, 4)")):
        top_k(terms, history, 1, exclude=history[:2])
    with pytest.raises(DataError, match="candidates must be a mask of 4 items, got int64"):
        top_k(terms, history, 1, candidates=np.array([0, 1, 2, 3]))
    with pytest.raises(DataError, match="the history has 4 items, the model has 5"):
        top_k([Constant(np.ones(5))], history, 1)
    with pytest.raises(DataError, match="at least one term"):
        top_k([], history, 1)
    with pytest.raises(DataError, match="2 user rows for 1 items"):
        score_items(terms, history, [0, 1], [0])
    with pytest.raises(DataError, match="positions must lie between 0 and 3"):
        score_items(terms, history, [0], [4])
