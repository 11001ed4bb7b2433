"""Leave-one-out equals refits without the user, and is a result like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.models.leaving_out import Leave, lists_without

NORMALIZERS = [
    eq.NoNorm(),
    eq.RandomWalk(),
    eq.Symmetric(),
    eq.ColumnNorm(0.4),
    eq.UserNorm(0.3),
    eq.ItemNorm(0.3),
    eq.DAN(0.2, 0.3),
]
FAMILIES: dict[str, Any] = {
    "LAE": eq.LAE,
    "EASE": eq.EASE,
    "RLAE": lambda **settings: eq.RLAE(diag_bound=0.2, **settings),
}
N_ITEMS = 25
SOLE, SINGLE = 5, 6  # a user with an item that no other has; a user with one item


def table(weighted: bool = False) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(0)
    X = (rng.random((60, N_ITEMS)) < np.linspace(0.4, 0.05, N_ITEMS)).astype(np.float64)
    X[X.sum(1) < 2, :3] = 1
    X[:, -1] = 0
    X[SOLE, -1] = 1
    X[SINGLE] = 0
    X[SINGLE, 4] = 1
    return X * rng.integers(1, 5, X.shape) if weighted else X


def histories(data: eq.Interactions, users: list[int]) -> eq.Interactions:
    """Every item of these users but each third one; the single item of a user stays."""
    rows = data.rows(users)
    place = np.arange(rows.n_interactions) - np.repeat(rows.matrix.indptr[:-1], rows.user_counts)
    return rows.entries(place % 3 != 1)


def scores_without(
    model: Any, history: eq.Interactions, leave: Leave = "user", alpha: float | None = None
) -> npt.NDArray[Any]:
    """Scores of all items but those of the history, users x items; the rest is NaN."""
    n_items = len(model.item_index_)
    items, scores = lists_without([model], history, n_items, leave=leave, alpha=alpha)
    out = np.full((history.n_users, n_items), np.nan, scores.dtype)
    rows, places = np.nonzero(items[0] >= 0)
    out[rows, items[0, rows, places]] = scores[0, rows, places]
    return out


def refitted(
    model: Any, X: npt.NDArray[np.float64], user: int, history: eq.Interactions, leave: str
) -> npt.NDArray[Any]:
    """Scores of a real fit without the user, or without what its history lacks."""
    if leave == "user":
        remaining = np.delete(X, user, 0)
    else:
        remaining = X.copy()
        remaining[user] = history.matrix.toarray()[0]
    again = model._vary({}).fit(eq.Interactions(remaining), dtype="float64")
    return np.asarray(again.score(eq.Interactions(history.matrix))[0])


def assert_equals_refits(model: Any, X: npt.NDArray[np.float64], leave: Any = "user") -> None:
    data = eq.Interactions(X)
    model.fit(data, dtype="float64")
    users = [SOLE, SINGLE, 0, 17]
    shown = histories(data, users)
    scores = scores_without(model, shown, leave=leave)
    for row, user in enumerate(users):
        expected = refitted(model, X, user, shown.rows([row]), leave)
        is_new = shown.matrix[[row]].toarray()[0] == 0
        assert np.isnan(scores[row, ~is_new]).all()
        # both solves are of systems with a condition number below 1e4: 1e4 roundings are 2e-12
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            scores[row, is_new], expected[is_new], rtol=0, atol=1e-11 * scale
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=lambda norm: type(norm).__name__)
@pytest.mark.parametrize(("l2", "dropout"), [(5.0, 0.0), (5.0, 0.4), (0.0, 0.5)])
def test_leaving_a_user_out_equals_a_refit_without_it(
    family: str, normalizer: Any, l2: float, dropout: float
) -> None:
    model = FAMILIES[family](l2=l2, dropout=dropout, normalizer=normalizer)
    assert_equals_refits(model, table())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("normalizer", [eq.NoNorm(), eq.DAN(0.2, 0.3)])
@pytest.mark.parametrize("leave", ["user", "items"])
def test_weighted_interactions_are_left_out_with_their_weights(
    family: str, normalizer: Any, leave: str
) -> None:
    model = FAMILIES[family](l2=5.0, dropout=0.4, normalizer=normalizer)
    assert_equals_refits(model, table(weighted=True), leave)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=lambda norm: type(norm).__name__)
@pytest.mark.parametrize(("l2", "dropout"), [(5.0, 0.0), (5.0, 0.4), (0.0, 0.5)])
def test_leaving_items_out_equals_a_refit_without_them(
    family: str, normalizer: Any, l2: float, dropout: float
) -> None:
    model = FAMILIES[family](l2=l2, dropout=dropout, normalizer=normalizer)
    assert_equals_refits(model, table(), "items")


def test_custom_weights_lose_the_user() -> None:
    X = table()
    rng = np.random.default_rng(1)
    users, items, penalty = rng.random((3, len(X))) + 0.5
    items, penalty = items[:N_ITEMS], penalty[:N_ITEMS]
    model = eq.EASE(l2=3.0, dropout=0.2, normalizer=eq.CustomNorm(users, items, penalty))
    data = eq.Interactions(X)
    model.fit(data, dtype="float64")
    shown = histories(data, [17])
    normalizer = eq.CustomNorm(np.delete(users, 17), items, penalty)
    again = eq.EASE(l2=3.0, dropout=0.2, normalizer=normalizer)
    again.fit(eq.Interactions(np.delete(X, 17, 0)), dtype="float64")
    scores, expected = scores_without(model, shown)[0], again.score(shown)[0]
    is_new = ~np.isnan(scores)
    assert_close(scores[is_new], expected[is_new], "float64", scale=np.abs(expected).max())


def test_the_dial_is_turned_for_users_that_are_left_out() -> None:
    X = table()
    data = eq.Interactions(X)
    settings: dict[str, Any] = {"l2": 5.0, "dropout": 0.3}
    model = eq.EASE(**settings, normalizer=eq.DAN(0.1, 0.3)).fit(data, dtype="float64")
    turned = eq.EASE(**settings, normalizer=eq.DAN(0.4, 0.3)).fit(data, dtype="float64")
    shown = histories(data, [3, 17])
    scores, expected = scores_without(model, shown, alpha=0.4), scores_without(turned, shown)
    np.testing.assert_array_equal(scores, expected)


def test_a_user_without_a_history_gets_what_others_use() -> None:
    X = table()
    data = eq.Interactions(X)
    model = eq.EASE(l2=5.0).fit(data)
    nothing = data.rows([SINGLE]).entries(np.array([False]))
    items, scores = lists_without([model], nothing, N_ITEMS)
    expected = X.sum(0) - X[SINGLE]
    np.testing.assert_array_equal(scores[0, 0], np.sort(expected)[::-1])
    np.testing.assert_array_equal(expected[items[0, 0]], scores[0, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("leave", ["user", "items"])
def test_lists_are_the_best_of_all_scores_for_every_model_of_a_solve(
    synthetic: eq.Interactions, dtype: str, leave: Any
) -> None:
    # only items that can reach a list are computed exactly: no list may be missing one
    solved = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3)).fit(synthetic, dtype=dtype)
    models: list[Any] = [solved]
    for alpha in (0.0, 0.5):
        for kind in FAMILIES.values():
            model = kind(l2=5.0, dropout=0.3, normalizer=eq.DAN(alpha, 0.3))
            models.append(model.reuse(solved))
    shown = histories(synthetic, list(range(40)))
    items, scores = lists_without(models, shown, 7, leave=leave)
    for number, model in enumerate(models):
        every = scores_without(model, shown, leave=leave)
        for row in range(shown.n_users):
            ranked = np.lexsort((np.arange(80), -np.nan_to_num(every[row], nan=-np.inf)))[:7]
            np.testing.assert_array_equal(items[number, row], ranked)
            np.testing.assert_array_equal(scores[number, row], every[row, ranked])


def test_lists_do_not_depend_on_threads_or_on_the_other_users(synthetic: eq.Interactions) -> None:
    model = eq.EASE(l2=5.0, dropout=0.3).fit(synthetic)
    shown = histories(synthetic, list(range(30)))
    items, scores = lists_without([model], shown, 10)
    alone = [lists_without([model], shown.rows([row]), 10) for row in (0, 7, 29)]
    for row, (lone_items, lone_scores) in zip((0, 7, 29), alone, strict=True):
        np.testing.assert_array_equal(lone_items[0, 0], items[0, row])
        np.testing.assert_array_equal(lone_scores[0, 0], scores[0, row])


def assert_lists_equal_refits(model: Any, data: eq.Interactions, leave: Any, k: int = 6) -> None:
    """Every user with two items, left out, has the list of a real fit without it."""
    model.fit(data, dtype="float64")
    users = np.flatnonzero(data.user_counts >= 2)
    shown = histories(data, users.tolist())
    items, scores = lists_without([model], shown, k, leave=leave)
    for row, user in enumerate(users):
        if leave == "user":
            remaining = data.rows(np.arange(data.n_users) != user)
        else:
            remaining = data.difference(data.rows([user]).difference(shown.rows([row])))
        again = model._vary({}).fit(remaining, dtype="float64")
        expected = again.rank(shown.rows([row]), k)
        # scores apart by less than rounding may change places
        np.testing.assert_allclose(scores[0, row], expected.scores[0], rtol=1e-8, atol=1e-10)
        tied = np.isclose(expected.scores[0][1:], expected.scores[0][:-1], rtol=1e-8, atol=1e-10)
        if not tied.any() or expected.scores[0][0] == round(expected.scores[0][0]):
            np.testing.assert_array_equal(items[0, row], expected.items[0])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("leave", ["user", "items"])
def test_users_whose_items_nobody_else_has_get_the_lists_of_refits(
    family: str, leave: Any
) -> None:
    """Without the user nobody has used any item of the history: popular items are listed."""
    X = np.zeros((30, N_ITEMS + 12))
    X[:, :N_ITEMS] = table()[:30]
    X[:6] = 0
    for user in range(6):
        X[user, [N_ITEMS + 2 * user, N_ITEMS + 2 * user + 1]] = 1
    X[2:4, 7] = 1  # so some have an item of others too
    X[4, :] *= -1  # and one dislikes them all
    model = FAMILIES[family](l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3))
    for data in (eq.Interactions(np.abs(X)), eq.Interactions(X, signed=True)):
        assert_lists_equal_refits(model, data, leave)
    result = eq.leave_one_out(model.fit(eq.Interactions(np.abs(X))), k=5, bootstrap=0)
    assert result["recall@5"] > 0


def log(n_users: int = 40) -> eq.Interactions:
    """Events with times and quantities; the last one is of user 7, on what `histories` hide."""
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"i{item}", float(rng.integers(1, 5)), float(rng.integers(0, 1000)))
        for user in range(n_users)
        for item in rng.choice(15, rng.integers(2, 7), replace=False)
    ]
    data = eq.read(rows)
    hidden = data.items[data.rows([7]).matrix.indices[1]]
    return eq.read([*rows, ("u7", hidden, 2.0, 1500.0)])


@pytest.mark.parametrize("leave", ["user", "items"])
@pytest.mark.parametrize("reference", [None, 2000.0])
@pytest.mark.parametrize("transform", ["binary", "sum", "log1p"])
def test_ages_of_events_are_those_of_refits(transform: Any, reference: Any, leave: Any) -> None:
    """Without a reference the age is 0 at the last event, which may be of the user left out."""
    signals = eq.Signals(transform=transform, decay=300, floor=0.2, reference=reference)
    settings: dict[str, Any] = {"l2": 2.0, "dropout": 0.2, "signals": signals}
    assert_lists_equal_refits(eq.EASE(**settings), log(), leave)
    data = log()
    solved = eq.EASE(**settings, normalizer=eq.DAN(0.2, 0.3)).fit(data, dtype="float64")
    turned = eq.RLAE(**settings, normalizer=eq.DAN(0.5, 0.3), diag_bound=0.2).reuse(solved)
    shown = histories(data, [6, 7])
    together = lists_without([solved, turned], shown, 6, leave=leave)
    for place, model in enumerate((solved, turned)):
        alone = lists_without([model], shown, 6, leave=leave)
        for scores, expected in zip(together, alone, strict=True):
            np.testing.assert_array_equal(scores[place], expected[0])


def test_signals_that_depend_on_all_users_are_refused() -> None:
    model = eq.EASE(l2=2.0, signals=eq.Signals(transform="bm25")).fit(log())
    with pytest.raises(eq.SettingError, match=r"bm25.*of all users.*evaluate it on a split"):
        eq.leave_one_out(model)
    bm25 = eq.EASE(signals=eq.Signals(transform="bm25"))
    with pytest.raises(eq.SettingError, match=r"bm25.*of all users"):
        eq.tune(bm25, log(), trials=1, criterion="leave-one-out")
    companion = eq.EASE(l2=2.0, signals=eq.Signals(transform="bm25"), lowpass=eq.LowPass(rank=3))
    assert companion.fit(log()).lowpass_ is not None  # its strength is found all the same


def test_the_result_is_that_of_refits(toy: eq.Interactions) -> None:
    model = eq.EASE(l2=1.0, dropout=0.2, normalizer=eq.DAN(0.2, 0.3)).fit(toy, dtype="float64")
    result = eq.leave_one_out(model, k=2, seed=3)
    assert result.n_users == 5  # two of seven have one item
    for user, value in result.per_user.select("user", "ndcg@2").rows():
        place = toy.users.tolist().index(user)
        remaining = toy.rows(np.arange(7) != place)
        again = model._vary({}).fit(remaining, dtype="float64")
        part = left_out(toy, 3, user)
        assert eq.evaluate(again, part, k=2, bootstrap=0)["ndcg@2"] == pytest.approx(value)


def left_out(data: eq.Interactions, seed: int, user: Any) -> tuple[Any, Any]:
    from equipoise.evaluation.leave_one_out import left_out_part

    part = left_out_part(data, 2000, 0.8, seed)
    return part.history.select(users=[user]), part.target.select(users=[user])


def test_results_on_the_same_users_compare_and_save(
    synthetic: eq.Interactions, tmp_path: Path
) -> None:
    models = [eq.EASE(l2=5.0).fit(synthetic), eq.LAE(l2=50.0).fit(synthetic)]
    results = [eq.leave_one_out(model, users=100, k=[5, 10]) for model in models]
    assert results[0].protocol == "leave-one-out"
    assert results[0].n_users == 100
    assert results[0].fingerprint == results[1].fingerprint
    assert eq.compare(results, "ndcg@10").to_frame()["n_users"].item() == 100
    results[0].save(tmp_path / "result")
    again = eq.Result.load(tmp_path / "result")
    assert again["tail_ndcg@5"] == results[0]["tail_ndcg@5"]
    assert "left out of the fit" in repr(again)


def test_every_engine_and_a_saved_model_give_the_same_figures(
    synthetic: eq.Interactions, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"l2": 5.0, "dropout": 0.3, "normalizer": eq.DAN(0.2, 0.3)}
    model = eq.EASE(**settings).fit(synthetic, dtype="float64")
    model.save(tmp_path / "model")
    saved = eq.load(tmp_path / "model")
    tiled = eq.EASE(**settings)
    tiled.fit(synthetic, dtype="float64", engine="tiled", scratch=tmp_path / "tiles")
    dual = eq.EASE(**settings).fit(synthetic, dtype="float64", engine="dual")
    values = [eq.leave_one_out(model, k=10).values for model in (model, saved, tiled, dual)]
    assert values[0] == values[1]
    assert values[2] == pytest.approx(values[0])
    assert values[3] == pytest.approx(values[0])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("leave", ["user", "items"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("l2", "dropout"), [(5.0, 0.0), (5.0, 0.4), (0.0, 0.5)])
def test_users_are_left_out_on_a_gpu_that_holds_the_inverse(
    device: str, leave: Any, weighted: bool, l2: float, dropout: float, monkeypatch: Any
) -> None:
    pytest.importorskip("torch")
    # room for the scores of a few users, and for some of their columns at a time
    monkeypatch.setattr("equipoise.ranking.left_out_device.SCORES", 6 << 10)
    data = eq.Interactions(table(weighted))
    shown = histories(data, [SOLE, SINGLE, *range(0, 40, 7)])
    for kind in FAMILIES.values():
        model = kind(l2=l2, dropout=dropout, normalizer=eq.DAN(0.2, 0.3))
        host = scores_without(model.fit(data, dtype="float64"), shown, leave=leave)
        model.fit(data, dtype="float64", engine="gpu", device=device)
        scores = scores_without(model, shown, leave=leave)
        assert_close(scores, host, "float64", scale=float(np.nanmax(np.abs(host))))


def test_every_model_of_a_solve_is_ranked_on_a_gpu(synthetic: eq.Interactions) -> None:
    pytest.importorskip("torch")
    settings: dict[str, Any] = {"l2": 5.0, "dropout": 0.3}
    lists = []
    for engine in ("dense", "gpu"):
        model = eq.EASE(**settings, normalizer=eq.DAN(0.2, 0.3))
        models: list[Any] = [model.fit(synthetic, engine=engine, dtype="float64")]
        for alpha in (0.0, 0.5):
            for kind in FAMILIES.values():
                other = kind(**settings, normalizer=eq.DAN(alpha, 0.3))
                models.append(other.reuse(model))
        models.append(eq.EASE(**settings, normalizer=eq.DAN(0.2, 0.3)).reuse(model))
        models[-1].lowpass = eq.LowPass(rank=9, strength=0.3)
        lists.append(lists_without(models, histories(synthetic, list(range(40))), 7))
    np.testing.assert_array_equal(lists[0][0], lists[1][0])
    scale = float(np.abs(lists[0][1]).max())
    assert_close(lists[1][1], lists[0][1], "float64", scale=scale)


def test_an_inaccurate_solve_on_a_gpu_is_refused(toy: eq.Interactions) -> None:
    torch = pytest.importorskip("torch")
    model = eq.EASE(l2=1.0).fit(toy, engine="gpu")
    model.inverse_.values.add_(10 * torch.eye(toy.n_items))
    model.diagonal_ += 10
    with pytest.raises(eq.SolveError, match="cannot be left out"):
        scores_without(model, histories(toy, [0]))


def test_a_companion_scores_users_that_it_was_not_fitted_on(synthetic: eq.Interactions) -> None:
    lowpass = eq.LowPass(rank=9, strength=0.3)
    model = eq.EASE(l2=5.0, lowpass=lowpass).fit(synthetic, dtype="float64")
    plain = eq.EASE(l2=5.0).fit(synthetic, dtype="float64")
    shown = histories(synthetic, list(range(20)))  # less than a tenth: one group
    scores, without = scores_without(model, shown), scores_without(plain, shown)
    remaining = synthetic.rows(np.arange(20, 300))
    added = eq.EASE(l2=5.0, lowpass=lowpass).fit(remaining, dtype="float64").score(shown)
    added -= eq.EASE(l2=5.0).fit(remaining, dtype="float64").score(shown)
    is_new = ~np.isnan(scores)
    assert_close((scores - without)[is_new], added[is_new], "float64", scale=np.abs(added).max())
    assert "companion" in repr(eq.leave_one_out(model, users=20))


def test_models_without_exact_leave_one_out_are_refused(synthetic: eq.Interactions) -> None:
    with pytest.raises(eq.SettingError, match="linear autoencoders, not of Popularity"):
        eq.leave_one_out(eq.Popularity().fit(synthetic))
    model = eq.EASE(l2=5.0).fit(synthetic)
    with pytest.raises(eq.SettingError, match="left out of a pruned model; use the full one"):
        eq.leave_one_out(model.prune(5))
    near = eq.EASE(l2=5.0).fit(synthetic, engine="neighbourhood", neighbours=9)
    with pytest.raises(eq.SettingError, match="neighbourhood engine; evaluate or tune it on a"):
        eq.leave_one_out(near)
    with pytest.raises(eq.NotFittedError):
        eq.leave_one_out(eq.EASE())
    with pytest.raises(eq.SettingError, match="leave must be"):
        eq.leave_one_out(model, leave="item")  # type: ignore[arg-type]
    with pytest.raises(eq.SettingError, match="history must"):
        eq.leave_one_out(model, history=1.0)
    foreign = eq.Interactions(np.ones((300, 80)), synthetic.users, synthetic.items)
    with pytest.raises(eq.DataError, match="does not have in the training data"):
        eq.leave_one_out(model, part=(foreign, foreign))
    single = eq.Interactions(np.eye(4))
    with pytest.raises(eq.DataError, match="no user has two items"):
        eq.leave_one_out(eq.EASE(l2=1.0).fit(single))


@pytest.mark.parametrize("returns", ["net", "negative"])
def test_values_that_signals_made_are_left_out(returns: Any) -> None:
    rng = np.random.default_rng(3)
    rows = [
        (f"u{user}", f"i{item}", float(rng.integers(1, 6)) * (-1 if rng.random() < 0.15 else 1))
        for user in range(40)
        for item in rng.choice(12, 5, replace=False)
    ]
    table = {
        name: list(column) for name, column in zip("uiw", zip(*rows, strict=True), strict=True)
    }
    data = eq.read(pl.DataFrame(table), user="u", item="i", weight="w")
    signals = eq.Signals(transform="log1p", returns=returns)
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3), signals=signals)
    model.fit(data, dtype="float64")
    shown = model.data_.rows([7])
    scores = scores_without(model, shown)[0]
    remaining = data.rows(np.arange(data.n_users) != 7)
    again = model._vary({}).fit(remaining, dtype="float64")
    expected = again.score(shown)[0]
    is_new = ~np.isnan(scores)
    assert 0 < is_new.sum() < 12
    assert_close(scores[is_new], expected[is_new], "float64", scale=np.abs(expected).max())
