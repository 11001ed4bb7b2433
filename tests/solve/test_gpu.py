"""The GPU engine's steps, run by torch on the processor, and on a GPU if there is one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import MissingExtraError, SettingError, SolveError, TooBigError
from equipoise.ranking.device import OnDevice
from equipoise.ranking.ranker import Boost, Only, top_k
from equipoise.ranking.terms import Constant, Dense, LowRank
from equipoise.solve import dense, gpu, torch_backend

torch = pytest.importorskip("torch")

N_USERS, N_ITEMS = 300, 133
Problem = tuple[sp.csr_array, np.ndarray, np.ndarray]


@pytest.fixture
def problem(rng: np.random.Generator) -> Problem:
    X = sp.csr_array((rng.random((N_USERS, N_ITEMS)) < 0.08).astype(np.float32))
    return X, rng.random(N_USERS) + 0.5, rng.random(N_ITEMS) * 5 + 5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block", [1, 32, 50, 133, 512])
def test_weights_equal_those_of_the_dense_engine(problem: Problem, dtype: str, block: int) -> None:
    X, weights, penalty = problem
    expected, _ = dense.Gram(X, weights, dtype).inverse(penalty)
    gram = gpu.Gram(X, weights, dtype, "cpu")
    gram.block = block
    inverse, residual = gram.inverse(penalty)
    assert_close(inverse.toarray(), expected, dtype, scale=np.abs(expected).max())
    assert residual < {"float32": 1e-5, "float64": 1e-13}[dtype]
    np.testing.assert_array_equal(inverse.toarray(), inverse.toarray().T)
    np.testing.assert_array_equal(inverse.diagonal(), inverse.toarray().diagonal())


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processor multiply by pairs of halves, products of this size included."""
    monkeypatch.setattr(gpu, "multiplies_pairs", lambda device: True)
    monkeypatch.setattr(gpu, "PAIR_LEAST", 8)
    monkeypatch.setattr(gpu, "PAIR_INNER", 24)


def test_a_number_is_the_sum_of_its_pair_to_the_last_bit(rng: np.random.Generator) -> None:
    # halves hold 11 bits each down to 2^-14, and the second one of a scaled number above 1/4 does
    exponents = rng.integers(-6, 8, (40, 30))
    values = torch.from_numpy((rng.choice([-1, 1], (40, 30)) * 2.0**exponents).astype(np.float32))
    values *= torch.from_numpy(1 + rng.random((40, 30), np.float32))
    for matrix in (values, values.T):
        high, low = gpu._pair(matrix)
        assert high.stride() == matrix.stride()
        error = (high.double() + low.double()) / gpu.PAIR_SCALE - matrix.double()
        assert float((error.abs() / matrix.abs()).max()) <= 2.0**-23


@pytest.mark.usefixtures("pairs")
@pytest.mark.parametrize("block", [16, 50])
def test_products_of_pairs_are_as_good_as_those_of_float32(problem: Problem, block: int) -> None:
    X, weights, penalty = problem
    penalty = penalty * 10.0 ** np.arange(-1, 3)[np.arange(N_ITEMS) % 4]  # rows of other sizes
    expected, _ = dense.Gram(X, weights, "float64").inverse(penalty)
    gram = gpu.Gram(X, weights, "float32", "cpu")
    gram.block = block
    assert gram.pairs
    inverse, residual = gram.inverse(penalty)
    assert_close(inverse.toarray(), expected, "float32", scale=np.abs(expected).max())
    assert residual < 1e-5
    np.testing.assert_array_equal(inverse.toarray(), inverse.toarray().T)


@pytest.mark.usefixtures("pairs")
def test_pairs_that_overflow_are_followed_by_a_solve_in_float32(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, weights, penalty = problem
    monkeypatch.setattr(gpu, "PAIR_SCALE", 1e6)
    inverse, _ = _blocks_of_16(gpu.Gram(X, weights, "float32", "cpu")).inverse(penalty)
    plain = _blocks_of_16(gpu.Gram(X, weights, "float32", "cpu", precision="float32"))
    assert not plain.pairs
    np.testing.assert_array_equal(inverse.toarray(), plain.inverse(penalty)[0].toarray())


def _blocks_of_16(gram: gpu.Gram) -> gpu.Gram:
    gram.block = 16
    return gram


def test_refining_squares_the_error_of_a_rough_solve(problem: Problem) -> None:
    X, weights, penalty = problem
    gram = gpu.Gram(X, weights, "float32", "cpu")
    exact, error = dense.Gram(X, weights, "float64").inverse(penalty)[0], 2.0**-4
    P = torch.from_numpy((exact * (1 + error)).astype(np.float32))
    rounding = len(P) * np.linalg.cond(exact) * np.finfo(np.float32).eps
    assert rounding < error**2 / 4
    assert gram.residual(P, penalty) == pytest.approx(error, abs=rounding)
    gram.newton_step(P, penalty)
    assert gram.residual(P, penalty) == pytest.approx(error**2, abs=rounding)


@pytest.mark.parametrize("block", [1, 40, 512])
def test_indefinite_matrix_is_refused_with_its_item(block: int) -> None:
    A = torch.eye(100)
    A[70, 70] = -1
    with pytest.raises(SolveError, match=r"not positive definite \(at item 70\); raise l2"):
        gpu.invert_in_place(A, block)


def test_inaccurate_solve_is_refused(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dense.TOLERANCE, "float32", 1e-12)
    with pytest.raises(SolveError, match="not accurate"):
        gpu.Gram(*problem[:2], device="cpu").inverse(problem[2])


def test_running_out_of_gpu_memory_is_an_error(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(gpu, "empty_square", full)
    with pytest.raises(TooBigError, match=r"133 items did not fit .* engine='tiled'"):
        gpu.Gram(*problem[:2], device="cpu").inverse(problem[2])


def test_precision_is_restored() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch_backend.full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_missing_torch_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'equipoise\[gpu\]'"):
        eq.plan(n_users=5, n_items=5, n_interactions=5, device="cuda")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exclude_seen", [True, False])
def test_lists_equal_those_of_the_host(
    problem: Problem, dtype: str, exclude_seen: bool, rng: np.random.Generator
) -> None:
    def drawn(*shape: int) -> np.ndarray:
        return rng.integers(-8, 9, shape).astype(dtype)  # sums are exact in any order

    X = problem[0]
    P = drawn(N_ITEMS, N_ITEMS)
    P += P.T
    source, target, constant = drawn(N_ITEMS), drawn(N_ITEMS), Constant(drawn(N_ITEMS))
    exclude = sp.csr_array((rng.random(X.shape) < 0.1).astype(np.float32))
    options = {
        "exclude_seen": exclude_seen,
        "exclude": exclude,
        "candidates": rng.random(N_ITEMS) < 0.8,
        "only": [
            Only(sp.csr_array((rng.random(X.shape) < 0.7).astype(np.float32)), users)
            for users in (None, rng.random(X.shape[0]) < 0.5)
        ],
        "boost": Boost(2.0 ** rng.integers(-2, 3, N_ITEMS), rng.integers(-3, 4, N_ITEMS) / 4),
    }
    more = [constant, LowRank(drawn(N_ITEMS, 6), drawn(6, N_ITEMS), source, target)]
    there = gpu.DeviceMatrix.from_host(P, torch.device("cpu"))
    lists = top_k([OnDevice(there, source, target), *more], X, 110, **options)
    expected = top_k([Dense(P, source, target), *more], X, 110, **options)
    np.testing.assert_array_equal(lists.lengths, expected.lengths)
    np.testing.assert_array_equal(lists.scores, expected.scores)
    np.testing.assert_array_equal(lists.items, expected.items)


@pytest.mark.parametrize("k", [1, 3, 5, 8, 20])
def test_equal_scores_are_ordered_by_position(k: int, rng: np.random.Generator) -> None:
    scores = rng.integers(0, 3, (40, 12)).astype(np.float32)
    scores[3] = -np.inf
    scores[4, 5:] = -np.inf
    P = np.zeros((12, 12), np.float32)
    ones = np.ones(12, np.float32)
    there = gpu.DeviceMatrix.from_host(P, torch.device("cpu"))
    nothing = sp.csr_array((1, 12), dtype=np.float32)
    for row in scores:
        lists = top_k([OnDevice(there, ones, ones), Constant(row)], nothing, k)
        expected = top_k([Constant(row)], nothing, k)
        np.testing.assert_array_equal(lists.items, expected.items)
        np.testing.assert_array_equal(lists.scores, expected.scores)


def test_lists_on_a_device_have_room_for_the_items_there_are() -> None:
    ones = np.ones(4, np.float32)
    there = gpu.DeviceMatrix.from_host(np.eye(4, dtype=np.float32), torch.device("cpu"))
    history = sp.csr_array(np.eye(3, 4, dtype=np.float32))
    lists = top_k([OnDevice(there, ones, ones)], history, 10**6)
    assert lists.items.shape == lists.scores.shape == (3, 4)
    assert lists.lengths.tolist() == [3, 3, 3]


def test_scores_that_are_not_numbers_are_refused() -> None:
    P = np.full((4, 4), np.nan, np.float32)
    there = gpu.DeviceMatrix.from_host(P, torch.device("cpu"))
    ones = np.ones(4, np.float32)
    history = sp.csr_array(np.array([[0, 0, 0, 0], [0, 1, 0, 0]], np.float32))
    with pytest.raises(SolveError, match="row 1 of the histories"):
        top_k([OnDevice(there, ones, ones)], history, 2)


@pytest.fixture(scope="module")
def models(synthetic: Interactions) -> tuple[eq.EASE, eq.EASE]:
    settings = {"l2": 5.0, "dropout": 0.3, "normalizer": eq.DAN(0.2, 0.3)}
    return (
        eq.EASE(**settings).fit(synthetic),
        # the GPU engine on the processor
        eq.EASE(**settings).fit(synthetic, engine="gpu"),
    )


def test_model_on_a_device_answers_like_one_on_the_host(
    models: tuple[eq.EASE, eq.EASE], synthetic: Interactions
) -> None:
    here, there = models
    assert isinstance(there.inverse_, gpu.DeviceMatrix)
    lists = there.rank(synthetic, 20), here.rank(synthetic, 20)
    assert_same_lists(*lists, here.score(synthetic), "float32")
    users = ["u1", "u7"]  # whose best scores differ by more than 0.2%
    assert there.recommend(users, 5).items == here.recommend(users, 5).items
    assert there.recommend(users, 5, alpha=0.0).items == here.recommend(users, 5, alpha=0.0).items
    assert there.similar(13, k=4).items == here.similar(13, k=4).items
    scale = np.abs(here.score(synthetic)).max()
    assert_close(there.score(synthetic), here.score(synthetic), "float32", scale=scale)
    one, two = there.explain("u1", 13), here.explain("u1", 13)
    assert_close(one.score, two.score, "float32", scale=1.0)
    assert_close(there.weights_, here.weights_, "float32", scale=np.abs(here.weights_).max())


def test_model_on_a_device_shares_its_solve(models: tuple[eq.EASE, eq.EASE]) -> None:
    here, there = models
    settings = {"l2": 5.0, "dropout": 0.3, "normalizer": eq.DAN(0.5, 0.3)}
    one, two = eq.LAE(**settings).reuse(here), eq.LAE(**settings).reuse(there)
    assert two.inverse_ is there.inverse_
    assert two.recommend(["u3"], 5).items == one.recommend(["u3"], 5).items


def test_saved_model_comes_back_on_the_host(
    models: tuple[eq.EASE, eq.EASE], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "COPY_ROWS", 7)
    models[1].save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model", verify=True)
    np.testing.assert_array_equal(loaded.inverse_, models[1].inverse_.toarray())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(
            lambda model, _: model.update(removed=["u3"]),
            SettingError,
            r"model\.to\('cpu'\)",
            id="updating asks for the host",
        ),
        pytest.param(
            lambda model, _: model.prune(5),
            SettingError,
            r"model\.to\('cpu'\)",
            id="pruning asks for the host",
        ),
        pytest.param(
            lambda _, data: eq.EASE(l2=5.0).fit(data, engine="gpu", memory="0.1MB"),
            TooBigError,
            r"80 items need .* in the gpu engine and 0.0001 GB",
            id="too small a card is noticed before anything is allocated",
        ),
        pytest.param(
            lambda *_: eq.plan(n_users=5, n_items=5, n_interactions=5, device="cuda"),
            SettingError,
            "'cuda' does not exist; torch sees 0",
            id="absent card",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card"),
        ),
    ],
)
def test_unsupported_calls_on_a_gpu_are_refused(
    models: tuple[eq.EASE, eq.EASE],
    synthetic: Interactions,
    call: Callable[[eq.EASE, Interactions], object],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        call(models[1], synthetic)


def test_model_moves_between_host_and_device(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0, dropout=0.3).fit(synthetic, engine="gpu")
    expected = model.recommend(["u1"], 5).items
    model.to("cpu")
    assert isinstance(model.inverse_, np.ndarray)
    assert model.recommend(["u1"], 5).items == expected
    model.inverse_ = gpu.DeviceMatrix.from_host(model.inverse_, torch.device("cpu"))
    assert model.recommend(["u1"], 5).items == expected


def test_card_with_24_gb_holds_70_000_items() -> None:
    needed = gpu.needed_bytes(100_000, 70_000, 5_000_000, "float32")
    assert 4 * 70_000**2 < needed < 24e9 * 0.95


@pytest.mark.gpu
def test_a_real_gpu_gives_the_same_lists(synthetic: Interactions) -> None:
    settings = {"l2": 5.0, "dropout": 0.3, "normalizer": eq.DAN(0.2, 0.3)}
    here, there = eq.EASE(**settings).fit(synthetic), eq.EASE(**settings)
    there.fit(synthetic, device="cuda")
    lists = there.rank(synthetic, 20), here.rank(synthetic, 20)
    assert_same_lists(*lists, here.score(synthetic), "float32")
