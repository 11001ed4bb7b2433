"""The truncated SVD against LAPACK, its restarts, and the cache."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.readers.research import read_weak
from equipoise.errors import SettingError, TooBigError
from equipoise.solve import svd
from equipoise.solve.svd import normalised, spectrum, truncated_svd


def random_matrix(m: int, n: int, density: float, seed: int = 3) -> sp.csr_array:
    """A 0/1 matrix with a long tail of columns, scaled like the filters' matrices."""
    rng = np.random.default_rng(seed)
    chance = density * n * np.arange(1, n + 1) ** -0.7 / (np.arange(1, n + 1) ** -0.7).sum()
    X = sp.csr_array((rng.random((m, n)) < np.minimum(chance, 1)).astype(np.float32))
    return normalised(Interactions(X))


@pytest.fixture
def always_krylov(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the iterative method for small matrices too, with blocks to match."""
    monkeypatch.setattr(svd, "DENSE", 0)
    monkeypatch.setattr(svd, "BLOCK", 4)


@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dense_decomposition_agrees_with_lapack(shape: tuple[int, int], dtype: str) -> None:
    A = random_matrix(*shape, 0.2)
    result = truncated_svd(A, 7, dtype=dtype)
    _, values, right = np.linalg.svd(A.toarray())
    rtol = 1e-4 if dtype == "float32" else 1e-7
    assert result.values.dtype == result.right.dtype == dtype
    np.testing.assert_allclose(result.values, values[:7], rtol=rtol)
    projection = result.right.T @ result.right
    # entries of a projection are at most 1, so its absolute error is a relative one
    np.testing.assert_allclose(projection, right[:7].T @ right[:7], rtol=rtol, atol=rtol)


@pytest.mark.usefixtures("always_krylov")
@pytest.mark.parametrize("shape", [(400, 300), (300, 400)])
def test_krylov_restarts_reach_the_values_of_a_flat_spectrum(shape: tuple[int, int]) -> None:
    A = random_matrix(*shape, 0.05)
    result = truncated_svd(A, 40, dtype="float64", tolerance=1e-8)
    _, values, right = np.linalg.svd(A.toarray())
    np.testing.assert_allclose(result.values, values[:40], rtol=1e-7)
    overlap = np.linalg.norm(right[:40] @ result.right.T)
    np.testing.assert_allclose(overlap, np.sqrt(40), rtol=1e-7)


@pytest.mark.usefixtures("always_krylov")
def test_vectors_are_orthonormal_in_single_precision() -> None:
    result = truncated_svd(random_matrix(500, 300, 0.05), 30)
    np.testing.assert_allclose(result.right @ result.right.T, np.eye(30), rtol=1e-4, atol=1e-4)


def check_low_rank(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    A = sp.csr_array(rng.random((shape[0], 5)) @ rng.random((5, shape[1])))
    result = truncated_svd(A, 12, dtype="float64")
    exact = np.linalg.svd(A.toarray(), compute_uv=False)
    np.testing.assert_allclose(result.values[:5], exact[:5], rtol=1e-7)
    np.testing.assert_allclose(result.right[:5] @ result.right[:5].T, np.eye(5), atol=1e-7)
    assert not result.values[5:].any()
    assert not result.right[5:].any()


@pytest.mark.parametrize("shape", [(200, 150), (150, 200)])
def test_singular_values_of_zero_have_vectors_of_zeros(shape: tuple[int, int]) -> None:
    check_low_rank(shape)


@pytest.mark.usefixtures("always_krylov")
@pytest.mark.parametrize("shape", [(200, 150), (150, 200)])
def test_krylov_spaces_go_on_where_the_matrix_has_no_more(shape: tuple[int, int]) -> None:
    check_low_rank(shape)


@pytest.mark.usefixtures("always_krylov")
def test_same_seed_same_bits_and_other_seed_same_subspace() -> None:
    A = random_matrix(400, 300, 0.05)
    one, two = truncated_svd(A, 20), truncated_svd(A, 20)
    assert np.array_equal(one.right, two.right)
    other = truncated_svd(A, 20, seed=1)
    np.testing.assert_allclose(one.values, other.values, rtol=1e-4)
    overlap = np.linalg.norm(one.right @ other.right.T)
    np.testing.assert_allclose(overlap, np.sqrt(20), rtol=1e-4)


def test_the_largest_entry_of_each_vector_is_positive() -> None:
    right = truncated_svd(random_matrix(60, 40, 0.2), 10).right
    assert (right[np.arange(10), np.abs(right).argmax(axis=1)] > 0).all()


@pytest.mark.parametrize(
    ("rank", "dtype", "message"),
    [
        *[(rank, "float32", "rank must") for rank in (0, 41, True, 2.5)],
        (5, "float16", "dtype must be"),
    ],
)
def test_wrong_settings_are_refused(rank: object, dtype: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        truncated_svd(random_matrix(60, 40, 0.2), rank, dtype=dtype)


def test_an_svd_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svd, "free_memory", lambda: 1000)
    with pytest.raises(TooBigError, match=r"rank 5 needs .* smaller rank"):
        truncated_svd(random_matrix(60, 40, 0.2), 5)


def test_power_iterations_give_the_plain_randomised_method() -> None:
    A = random_matrix(120, 80, 0.1)
    exact = np.linalg.svd(A.toarray(), compute_uv=False)[:10]
    rough = [truncated_svd(A, 10, dtype="float64", power_iterations=q).values for q in (0, 2, 40)]
    assert (rough[0] <= exact + 1e-12).all()
    assert (rough[0] < rough[1] + 1e-12).all()
    assert rough[1][-1] < 0.999 * exact[-1]
    np.testing.assert_allclose(rough[2][:5], exact[:5], rtol=1e-7)
    right = truncated_svd(A, 10, dtype="float64", power_iterations=2).right
    np.testing.assert_allclose(np.linalg.norm(A @ right.T, axis=0), rough[1], rtol=1e-7)


def test_a_randomised_method_takes_rows_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    A = random_matrix(500, 80, 0.1)
    in_one_block = truncated_svd(A, 10, dtype="float64", power_iterations=3)
    monkeypatch.setattr(svd, "ROW_NUMBERS", 10 * 64)
    blocks = truncated_svd(A, 10, dtype="float64", power_iterations=3)
    # sums of 500 products of numbers below 1, seven times over
    np.testing.assert_allclose(blocks.values, in_one_block.values, rtol=0, atol=1e-11)
    planned = svd.needed_bytes(A.shape, 10, "float64", 3)
    tracemalloc.start()
    truncated_svd(A, 10, dtype="float64", power_iterations=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    matrix = A.data.nbytes + A.indices.nbytes + A.indptr.nbytes
    assert peak <= planned + 3 * matrix + 100_000  # Python's own objects


def test_a_companion_of_large_data_keeps_their_large_structure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    groups = np.equal.outer(rng.integers(6, size=400), rng.integers(6, size=120))
    data = Interactions(rng.random(groups.shape) < np.where(groups, 0.6, 0.02))
    companion = eq.LowPass(rank=6, strength=0.3)
    exact = companion.fit(data, "float64").triples
    monkeypatch.setattr(svd, "LARGE", 100)
    model = eq.EASE(l2=20.0, lowpass=companion).fit(data, dtype="float64")
    sketched = model.companion_.triples
    assert sketched.right.shape == (6, 120)
    # every product with the matrix moves the sixth value away from those beyond the 15 vectors
    beyond = np.linalg.svd(normalised(data).toarray(), compute_uv=False)[15]
    bound = 10 * (beyond / exact.values[5]) ** (2 * (2 * svd.ROUNDS + 1))
    projections = [factors.right.T @ factors.right for factors in (sketched, exact)]
    assert np.linalg.norm(projections[0] - projections[1], 2) ** 2 <= bound < 1e-3
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    np.testing.assert_array_equal(again.score(data.rows([3])), model.score(data.rows([3])))


@pytest.mark.data
@pytest.mark.slow
def test_gowalla_has_its_known_singular_value(shared_data: Path) -> None:
    train = read_weak(shared_data / "gowalla" / "weak")["train"]
    result = spectrum(train, 256)
    # .489 to the digits that are known; two rounds of a plain randomised method give .467
    np.testing.assert_allclose(result.values[255], 0.489, atol=5e-4)
    np.testing.assert_allclose(result.right @ result.right.T, np.eye(256), rtol=1e-4, atol=1e-4)


def test_normalised_matrix_is_divided_by_powers_of_both_sums(toy: Interactions) -> None:
    X = toy.matrix.toarray().astype(np.float64)
    expected = X / (X.sum(1) + 2)[:, None] ** 0.3 / (X.sum(0) + 2) ** 0.6
    np.testing.assert_allclose(normalised(toy, 0.3, 0.6, 2.0).toarray(), expected, rtol=1e-7)


def test_a_larger_spectrum_serves_smaller_ranks(synthetic: Interactions) -> None:
    svd._cache.clear()
    large = spectrum(synthetic, 20)
    small = spectrum(synthetic, 5)
    assert np.shares_memory(small.right, large.right)
    assert small.right.shape == (5, synthetic.n_items)
    assert not np.shares_memory(spectrum(synthetic, 5, shift=1.0).right, large.right)
    assert spectrum(synthetic, 10**6).right.shape == (80, 80)


def test_old_spectra_leave_the_cache_when_it_is_full(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    svd._cache.clear()
    monkeypatch.setattr(svd, "CACHED_BYTES", 3 * 5 * 80 * 4)
    spectra = [spectrum(synthetic, 5, shift=float(shift)) for shift in range(5)]
    assert len(svd._cache) == 3
    again = [spectrum(synthetic, 5, shift=float(shift)) for shift in (4, 0)]
    assert np.shares_memory(again[0].right, spectra[4].right)
    assert not np.shares_memory(again[1].right, spectra[0].right)
    svd._cache.clear()


def test_rough_spectra_are_used_again_for_their_own_rank_only(synthetic: Interactions) -> None:
    rough = spectrum(synthetic, 20, power_iterations=1)
    assert np.shares_memory(spectrum(synthetic, 20, power_iterations=1).right, rough.right)
    assert not np.shares_memory(spectrum(synthetic, 5, power_iterations=1).right, rough.right)
