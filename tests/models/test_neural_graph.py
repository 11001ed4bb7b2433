"""LightGCN and XSimGCL against dense transcriptions of their formulas, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.sparse as sp
from tests.models.neural_cases import CASES, GRAPH, clustered
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError
from equipoise.models.neural.graph import (
    LightGCNTask,
    TripleSampler,
    XSimGCLTask,
    contrastive_loss,
    device_graph,
    mean_of_layers,
    propagate,
)

torch = pytest.importorskip("torch")
Matrix = np.ndarray[Any, np.dtype[np.float64]]


@pytest.fixture
def data(rng: np.random.Generator) -> Interactions:
    """30 users x 18 items; user 29 has no item and item 17 no user."""
    X = rng.random((30, 18)) < np.linspace(0.5, 0.1, 18)
    X[:, 17], X[29] = False, False
    X[np.arange(29), rng.integers(0, 17, 29)] = True
    return Interactions(X.astype(np.float32))


@pytest.fixture
def first(rng: np.random.Generator) -> Matrix:
    return rng.standard_normal((48, 5))


@pytest.fixture
def triples(rng: np.random.Generator) -> list[Matrix]:
    """A batch in which users and items are repeated."""
    return [rng.integers(0, high, 40) for high in (29, 17, 18)]


def dense_graph(data: Interactions) -> Matrix:
    X = data.matrix.toarray().astype(np.float64)
    users, items = (np.maximum(X.sum(axis), 1) for axis in (1, 0))
    A = X / np.sqrt(users)[:, None] / np.sqrt(items)
    return np.block([[np.zeros((30, 30)), A], [A.T, np.zeros((18, 18))]])


def tensor(array: Matrix) -> Any:
    return torch.from_numpy(array.astype(np.float32))


def batch_of(triples: list[Matrix]) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(part) for part in triples)


def lightgcn_table(H: Matrix, first: Matrix, layers: int) -> Matrix:
    powers = [np.linalg.matrix_power(H, layer) @ first for layer in range(layers + 1)]
    return np.mean(powers, axis=0)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_lightgcn_averages_all_layers(data: Interactions, first: Matrix, layers: int) -> None:
    table = mean_of_layers(device_graph(data, torch.device("cpu")), tensor(first), layers)
    expected = lightgcn_table(dense_graph(data), first, layers)
    assert_close(table.numpy(), expected, "float32", scale=1.0)


def test_lightgcn_loss_is_that_of_the_formula(
    data: Interactions, first: Matrix, triples: list[Matrix]
) -> None:
    task = LightGCNTask(eq.LightGCN(layers=2, l2=0.1), data, tensor(first))
    E = lightgcn_table(dense_graph(data), first, 2)
    expected = 0.0
    for user, used, unused in zip(*triples, strict=True):
        good, bad = (E[user] @ E[30 + item] for item in (used, unused))
        start = first[[user, 30 + used, 30 + unused]]
        expected += np.log1p(np.exp(bad - good)) + 0.1 * 0.5 * (start**2).sum()
    loss = task.loss(batch_of(triples), 0, None)
    assert_close(float(loss.detach()), expected / 40, "float32")


def noisy_layers(
    H: Matrix, first: Matrix, noise: list[Matrix], eps: float
) -> tuple[Matrix, list[Matrix]]:
    state, layers = first, []
    for part in noise:
        state = H @ state
        state = state + eps * np.sign(state) * part / np.linalg.norm(part, axis=1)[:, None]
        layers.append(state)
    return np.mean(layers, axis=0), layers


def drawn_noise(layers: int) -> list[Matrix]:
    generator = torch.Generator().manual_seed(8)
    parts = [torch.rand((48, 5), generator=generator) for _ in range(layers)]
    return [part.numpy().astype(np.float64) for part in parts]


def dense_contrast(E: Matrix, C: Matrix, rows: Matrix, temperature: float) -> float:
    """The sum over the distinct rows, as the formula is written."""
    unique = sorted(set(rows.tolist()))
    losses = []
    for row in unique:
        one = E[row] / np.linalg.norm(E[row])
        logits = [one @ C[other] / np.linalg.norm(C[other]) / temperature for other in unique]
        losses.append(np.log(np.exp(logits).sum()) - logits[unique.index(row)])
    return float(np.mean(losses))


def test_xsimgcl_layers_are_those_of_the_formula(data: Interactions, first: Matrix) -> None:
    task = XSimGCLTask(eq.XSimGCL(layers=3, view=2, noise=0.3), data, tensor(first))
    H = dense_graph(data)
    E, C = task.layers(torch.Generator().manual_seed(8))
    expected, layers = noisy_layers(H, first, drawn_noise(3), 0.3)
    assert_close(E.detach().numpy(), expected, "float32", scale=1.0)
    assert_close(C.detach().numpy(), layers[1], "float32", scale=1.0)
    quiet = np.mean([np.linalg.matrix_power(H, layer) @ first for layer in (1, 2, 3)], axis=0)
    assert_close(task.embeddings().detach().numpy(), quiet, "float32", scale=1.0)


def test_xsimgcl_loss_is_that_of_the_formula(
    data: Interactions, first: Matrix, triples: list[Matrix]
) -> None:
    settings = eq.XSimGCL(layers=2, view=1, noise=0.1, l2=0.5, strength=0.7, temperature=0.4)
    task = XSimGCLTask(settings, data, tensor(first))
    E, layers = noisy_layers(dense_graph(data), first, drawn_noise(2), 0.1)
    users, used, unused = triples
    edge = (E[users] * (E[30 + used] - E[30 + unused])).sum(axis=1)
    expected = -np.log(1e-5 + 1 / (1 + np.exp(-edge))).mean()
    expected += 0.5 * (np.linalg.norm(E[users]) + np.linalg.norm(E[30 + used])) / 40
    for rows in (users, 30 + used):
        expected += 0.7 * dense_contrast(E, layers[0], rows, 0.4)
    loss = task.loss(batch_of(triples), 0, torch.Generator().manual_seed(8))
    assert_close(float(loss.detach()), expected, "float32")


def test_contrast_does_not_depend_on_order_and_repetition(first: Matrix) -> None:
    E, C = tensor(first), tensor(first[::-1].copy())
    once = contrastive_loss(E, C, torch.tensor([3, 9, 20]), 0.2)
    again = contrastive_loss(E, C, torch.tensor([20, 9, 3, 9, 9, 20]), 0.2)
    assert_close(float(again), float(once), "float32")
    assert_close(
        float(once), dense_contrast(first, first[::-1], np.array([3, 9, 20]), 0.2), "float32"
    )


def test_gradient_of_the_propagation_is_that_of_a_dense_product(
    data: Interactions, first: Matrix, rng: np.random.Generator
) -> None:
    graph, H = device_graph(data, torch.device("cpu")), dense_graph(data)
    weight = rng.standard_normal(first.shape)
    for apply, dense in (
        (lambda table: propagate(graph, table), H),
        (lambda table: mean_of_layers(graph, table, 2), (np.eye(48) + H + H @ H) / 3),
    ):
        table = tensor(first).requires_grad_()
        (apply(table) * tensor(weight)).sum().backward()
        assert_close(table.grad.numpy(), dense.T @ weight, "float32", scale=1.0)


@pytest.mark.parametrize("name", GRAPH)
def test_relabelled_items_have_relabelled_vectors(
    name: str, data: Interactions, first: Matrix, rng: np.random.Generator
) -> None:
    order = rng.permutation(18)
    task = {"LightGCN": LightGCNTask, "XSimGCL": XSimGCLTask}[name]
    before = task(CASES[name](), data, tensor(first)).embeddings().detach().numpy()
    moved = np.concatenate([first[:30], first[30:][order]])
    after = task(CASES[name](), data.columns(order), tensor(moved)).embeddings().detach().numpy()
    assert_close(after[:30], before[:30], "float32", scale=1.0)
    assert_close(after[30:], before[30:][order], "float32", scale=1.0)


@pytest.mark.parametrize("name", GRAPH)
def test_scores_are_products_of_vectors(name: str, data: Interactions) -> None:
    model = CASES[name](epochs=2).fit(data, threads=1)
    users = data.rows(np.arange(29))
    expected = model.arrays_["users"][:29].astype(np.float64) @ model.arrays_["items"].T
    assert_close(model.score(users), expected, "float32", scale=np.abs(expected).max())


@pytest.fixture(params=GRAPH)
def twins(request: pytest.FixtureRequest) -> Any:
    """Users a and c with the same history, and vectors of their own."""
    X = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 0, 0]], np.float32)
    data = Interactions(X, ["a", "b", "c", "d"], [10, 20, 30, 40])
    return CASES[request.param](epochs=2, batch_size=4).fit(data, threads=1)


def test_users_with_equal_histories_keep_vectors_of_their_own(twins: Any, tmp_path: Path) -> None:
    users, items = twins.arrays_["users"], twins.arrays_["items"]
    differs = type(twins) is eq.LightGCN  # XSimGCL has no layer 0
    assert (users[0] != users[2]).any() == differs
    expected = users.astype(np.float64) @ items.T
    order = ["c", "b", "a"]
    scale = np.abs(expected).max()
    assert_close(twins.score(order), expected[[2, 1, 0]], "float32", scale=scale)
    assert_close(twins.score(twins.interactions_), expected, "float32", scale=scale)
    all_items = twins.recommend(order, k=4, exclude_seen=False)
    for row, place in enumerate((2, 1, 0)):
        np.testing.assert_array_equal(
            all_items.scores[row], np.sort(twins.score(order)[row])[::-1]
        )
        assert all_items.items[row] == [10 * (n + 1) for n in np.argsort(-expected[place])]
    ranked = twins.rank(twins.interactions_, 4, exclude_seen=False)
    np.testing.assert_array_equal(ranked.scores[2], all_items.scores[0])
    # the candidates differ, so that the users are answered one by one
    lists = twins.recommend(order, k=1, candidates=[[20], [10], [20]])
    assert_close([row[0] for row in lists.scores], expected[[2, 1, 0], [1, 0, 1]], "float32")
    twins.recommend_to(tmp_path / "lists.parquet", k=4, batch_size=2, exclude_seen=False)
    written = pl.read_parquet(tmp_path / "lists.parquet").filter(pl.col("user") == "c")
    np.testing.assert_array_equal(written["score"].to_numpy(), all_items.scores[0])
    twins.save(tmp_path / "model")
    np.testing.assert_array_equal(eq.load(tmp_path / "model").score(order), twins.score(order))


def test_history_that_several_users_share_is_refused(twins: Any) -> None:
    if type(twins) is eq.LightGCN:
        with pytest.raises(DataError, match=r"several users of .* pass a user id"):
            twins.recommend([[10, 30]])
        with pytest.raises(DataError, match="several users"):
            twins.recommend({"a": [10, 30]})
    else:
        np.testing.assert_array_equal(twins.score([[10, 30]]), twins.score(["c"]))
    np.testing.assert_array_equal(twins.score([[20, 40]]), twins.score(["b"]))


def test_known_ids_with_other_histories_are_refused(twins: Any) -> None:
    other = Interactions(np.array([[0, 1, 1, 0]], np.float32), ["a"], [10, 20, 30, 40])
    with pytest.raises(DataError, match="only for the users and histories it was fitted on"):
        twins.recommend(other)


def drawn(sampler: TripleSampler, way: str, epochs: int) -> Matrix:
    generator = torch.Generator().manual_seed(1)
    batches = [b for _ in range(epochs) for b in getattr(sampler, way)(70, generator)]
    return np.concatenate([torch.stack(batch, 1).numpy() for batch in batches])


@pytest.mark.parametrize("way", ["by_user", "by_interaction"])
def test_triples_hold_a_used_and_an_unused_item(data: Interactions, way: str) -> None:
    X = data.matrix.toarray()
    triples = drawn(TripleSampler(data.matrix, torch.device("cpu")), way, 3)
    assert len(triples) == 3 * data.n_interactions
    assert X[triples[:, 0], triples[:, 1]].all()
    assert not X[triples[:, 0], triples[:, 2]].any()


def test_an_epoch_by_interaction_has_each_once(data: Interactions) -> None:
    triples = drawn(TripleSampler(data.matrix, torch.device("cpu")), "by_interaction", 1)
    pairs = set(zip(*data.matrix.nonzero(), strict=True))
    assert {(user, item) for user, item, _ in triples.tolist()} == pairs


def test_users_and_items_are_drawn_evenly() -> None:
    X = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0], [1] * 6], np.float32)
    triples = drawn(TripleSampler(sp.csr_array(X), torch.device("cpu")), "by_user", 1000)
    count = len(triples)  # the third user used every item and is left out
    assert count == 4_000
    margin = 5 * 0.5 / np.sqrt(count)  # five standard deviations
    assert abs((triples[:, 0] == 0).mean() - 1 / 2) < margin
    one = triples[triples[:, 0] == 0]
    for item in (0, 1, 2):
        assert abs((one[:, 1] == item).mean() - 1 / 3) < 2 * margin
        assert abs((one[:, 2] == item + 3).mean() - 1 / 3) < 2 * margin
    other = triples[triples[:, 0] == 1]
    for item in (0, 1, 3, 4, 5):
        assert abs((other[:, 2] == item).mean() - 1 / 5) < 2 * margin


def test_data_in_which_all_users_used_every_item_are_refused() -> None:
    with pytest.raises(DataError, match="all users used every item"):
        CASES["LightGCN"]().fit(Interactions(np.ones((3, 4), np.float32)))


def test_xsimgcl_trains_without_noise_and_contrast() -> None:
    model = CASES["XSimGCL"](strength=0.0, noise=0.0, layers=2).fit(clustered(), threads=1)
    assert np.isfinite(model.arrays_["users"]).all()
    losses = [entry["loss"] for entry in model.history_]
    assert losses == sorted(losses, reverse=True)
