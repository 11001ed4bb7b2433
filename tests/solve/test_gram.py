from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from equipoise.machine import limited
from equipoise.matrix import checked_matrix
from equipoise.solve.dense import gram_times, weighted_gram


@given(
    dense=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
        elements=st.sampled_from([0.0, 0.0, 1.0, 2.5]),
    )
)
def test_upper_triangle_is_the_weighted_gram_matrix(dense: np.ndarray) -> None:
    X, _ = checked_matrix(dense, None)
    w = 1 / (1.0 + np.arange(len(dense)))
    out = np.full((dense.shape[1],) * 2, np.nan)
    weighted_gram(X, w, out)
    expected = dense.T.astype(np.float64) @ (w[:, None] * dense)
    upper = np.triu_indices(len(out))
    np.testing.assert_allclose(out[upper], expected[upper], rtol=1e-7)
    assert np.isnan(out[np.tril_indices(len(out), -1)]).all()
    V = np.arange(2.0 * len(out)).reshape(len(out), 2)
    np.testing.assert_allclose(gram_times(X, w, V), expected @ V, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_result_does_not_depend_on_threads(dtype: str, rng: np.random.Generator) -> None:
    X = sp.random_array((400, 90), density=0.1, rng=rng, dtype=np.float32, format="csr")
    X.sort_indices()
    w = rng.random(400)
    results = []
    for threads in (1, 2, 5):
        with limited(threads):
            results.append(weighted_gram(X, w, np.zeros((90, 90), dtype)))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
