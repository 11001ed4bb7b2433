"""MultVAE against a dense transcription of its formulas, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.models.neural_cases import CASES, clustered
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.models.neural.multvae import MultVAETask

torch = pytest.importorskip("torch")
Matrix = np.ndarray[Any, np.dtype[np.float64]]
LATENT = 3


@pytest.fixture
def data(rng: np.random.Generator) -> Interactions:
    """25 users x 12 items; user 24 has no item."""
    X = rng.random((25, 12)) < 0.3
    X[24] = False
    X[np.arange(24), rng.integers(0, 12, 24)] = True
    return Interactions(X.astype(np.float32))


@pytest.fixture
def weights(rng: np.random.Generator) -> dict[str, Matrix]:
    shapes = {"read": (12, 7), "encode": (7, 2 * LATENT), "decode": (LATENT, 7), "write": (7, 12)}
    out = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    out |= {f"{name}_bias": rng.standard_normal(shape[1]) for name, shape in shapes.items()}
    return out


def task_of(data: Interactions, weights: dict[str, Matrix], **settings: Any) -> MultVAETask:
    model = eq.MultVAE(hidden=7, latent=LATENT, **settings)
    parameters = {
        name: torch.from_numpy(array.astype(np.float32)).requires_grad_()
        for name, array in weights.items()
    }
    return MultVAETask(model, data, parameters)


def encoded(x: Matrix, w: dict[str, Matrix]) -> tuple[Matrix, Matrix]:
    hidden = np.tanh(x @ w["read"] + w["read_bias"])
    both = hidden @ w["encode"] + w["encode_bias"]
    return both[:LATENT], both[LATENT:]


def decoded(z: Matrix, w: dict[str, Matrix]) -> Matrix:
    return np.tanh(z @ w["decode"] + w["decode_bias"]) @ w["write"] + w["write_bias"]


def test_loss_is_that_of_the_formula(data: Interactions, weights: dict[str, Matrix]) -> None:
    task = task_of(data, weights, dropout=0.4, beta=0.6, annealing=0.5, batch_size=10, epochs=4)
    users = np.array([2, 5, 11, 23])
    X = data.matrix.toarray().astype(np.float64)
    generator = torch.Generator().manual_seed(9)
    stays = (torch.rand(int(X[users].sum()), generator=generator) < 0.6).numpy()
    noise = torch.randn((4, LATENT), generator=generator).numpy().astype(np.float64)
    stays, expected = list(stays), 0.0
    for row, user in enumerate(users):
        x = X[user]
        seen = x / np.linalg.norm(x)
        for item in np.flatnonzero(x):
            seen[item] *= stays.pop(0) / 0.6
        mean, log_variance = encoded(seen, weights)
        scores = decoded(mean + noise[row] * np.exp(log_variance / 2), weights)
        likelihood = (x * (scores - np.log(np.exp(scores).sum()))).sum()
        divergence = 0.5 * (-log_variance + np.exp(log_variance) + mean**2 - 1).sum()
        expected += (
            -likelihood + 0.6 * 3 / 6 * divergence
        )  # update 3 of the 6 that annealing takes
    generator.manual_seed(9)
    loss = task.loss(torch.from_numpy(users), 3, generator)
    assert_close(float(loss.detach()), expected / 4, "float32")


def test_divergence_is_annealed_over_a_share_of_all_updates(
    data: Interactions, weights: dict[str, Matrix]
) -> None:
    task = task_of(data, weights, beta=0.4, annealing=0.5, batch_size=10, epochs=8)
    # 24 users who have items make 3 batches an epoch, 24 updates in all, 12 of them annealed
    assert [task.weight(update) for update in (0, 3, 6, 12, 23)] == pytest.approx(
        [0, 0.1, 0.2, 0.4, 0.4]
    )
    constant = task_of(data, weights, beta=0.4, annealing=0.0)
    assert constant.weight(1) == 0.4


def test_an_epoch_deals_all_users_who_have_items(
    data: Interactions, weights: dict[str, Matrix]
) -> None:
    batches = list(task_of(data, weights, batch_size=10).batches(torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in batches] == [10, 10, 4]
    assert sorted(torch.cat(batches).tolist()) == list(range(24))


def test_scores_are_those_of_the_formula() -> None:
    data = clustered()
    model = CASES["MultVAE"]().fit(data, threads=1)
    w = {name: np.asarray(array, np.float64) for name, array in model.arrays_.items()}
    for history in ([0], [3, 8, 40, 59], list(range(0, 60, 2))):
        x = np.zeros(60)
        x[history] = 1 / np.sqrt(len(history))
        hidden = np.tanh(x @ w["read"] + w["read_bias"])
        z = (hidden @ w["encode"] + w["encode_bias"])[:8]
        expected = decoded(z, w)
        assert_close(model.score([history])[0], expected, "float32", scale=np.abs(expected).max())


def test_relabelled_items_get_the_same_scores(
    data: Interactions, weights: dict[str, Matrix], rng: np.random.Generator
) -> None:
    order = rng.permutation(12)
    moved = {**weights, "read": weights["read"][order], "write": weights["write"][:, order]}
    moved["write_bias"] = weights["write_bias"][order]
    users = torch.arange(5)
    scores = []
    for task in (task_of(data, weights), task_of(data.columns(order), moved)):
        x = torch.nn.functional.normalize(task.data.dense(users), dim=1)
        scores.append(task.decode(task.encode(x)[0]).detach().numpy())
    assert_close(scores[1], scores[0][:, order], "float32", scale=np.abs(scores[0]).max())


def test_users_and_their_bare_histories_score_alike() -> None:
    data = clustered()
    model = CASES["MultVAE"]().fit(data, threads=1)
    histories = [data.history(user) for user in data.users[:20]]
    np.testing.assert_array_equal(model.score(histories), model.score(data.users[:20]))
