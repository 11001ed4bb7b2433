"""The normalised interactions, and the spectra that models share."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise import svd
from equipoise.interactions import Interactions
from equipoise.svd import normalised, spectrum


def test_normalised_matrix_is_divided_by_powers_of_both_sums(toy: Interactions) -> None:
    X = toy.matrix.toarray().astype(np.float64)
    expected = X / (X.sum(1) + 2)[:, None] ** 0.3 / (X.sum(0) + 2) ** 0.6
    np.testing.assert_allclose(normalised(toy, 0.3, 0.6, 2.0).toarray(), expected, rtol=1e-7)


def test_a_larger_spectrum_serves_smaller_ranks(synthetic: Interactions) -> None:
    svd._cache.held.clear()
    large = spectrum(synthetic, 20)
    small = spectrum(synthetic, 5)
    assert np.shares_memory(small.right, large.right)
    assert small.right.shape == (5, synthetic.n_items)
    assert not np.shares_memory(spectrum(synthetic, 5, shift=1.0).right, large.right)
    assert spectrum(synthetic, 10**6).right.shape == (80, 80)


def test_old_spectra_leave_the_cache_when_it_is_full(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    svd._cache.held.clear()
    monkeypatch.setattr(svd, "CACHED_BYTES", 3 * 5 * 80 * 4)
    found = [spectrum(synthetic, 5, shift=float(shift)) for shift in range(5)]
    assert len(svd._cache.held) == 3
    again = [spectrum(synthetic, 5, shift=float(shift)) for shift in (4, 0)]
    assert np.shares_memory(again[0].right, found[4].right)
    assert not np.shares_memory(again[1].right, found[0].right)
    svd._cache.held.clear()


def test_rough_spectra_are_used_again_for_their_own_rank_only(synthetic: Interactions) -> None:
    rough = spectrum(synthetic, 20, power_iterations=1)
    assert np.shares_memory(spectrum(synthetic, 20, power_iterations=1).right, rough.right)
    assert not np.shares_memory(spectrum(synthetic, 5, power_iterations=1).right, rough.right)
