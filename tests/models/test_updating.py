"""An update equals a refit."""

from __future__ import annotations

import copy
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise import solve
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError, SolveError, UnknownIdError
from equipoise.models import updating

MODELS = {
    "EASE": {"l2": 5.0},
    "user weights": {"l2": 5.0, "normalizer": eq.DAN(0.2, 0.4)},
    "dropout": {"l2": 2.0, "dropout": 0.5, "normalizer": eq.DAN(0.2, 0.4)},
}


@pytest.fixture(params=MODELS)
def fitted(request: pytest.FixtureRequest, synthetic: Interactions) -> eq.EASE:
    return eq.EASE(**MODELS[request.param]).fit(synthetic.rows(np.arange(280)), dtype="float64")


@pytest.fixture(params=["low rank", "refit"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(updating, "PAYS", 10.0 if request.param == "low rank" else 0.0)
    return request.param


def assert_equals_refit(model: eq.EASE) -> None:
    fresh = eq.EASE(l2=model.l2, dropout=model.dropout, normalizer=model.normalizer)
    fresh.fit(model.interactions_, dtype="float64")
    assert_close(model.inverse_, fresh.inverse_, "float64", scale=np.abs(fresh.inverse_).max())
    assert_close(model.penalty_, fresh.penalty_, "float64")
    data = fresh.interactions_
    assert_same_lists(model.rank(data, 10), fresh.rank(data, 10), fresh.score(data), "float64")


def test_new_users_equal_a_refit(fitted: eq.EASE, path: str, synthetic: Interactions) -> None:
    fitted.update(synthetic.rows(np.arange(280, 300)))
    assert fitted.interactions_.fingerprint == synthetic.fingerprint
    assert_equals_refit(fitted)


def test_changed_users_equal_a_refit(fitted: eq.EASE, path: str) -> None:
    items = fitted.item_index_.values
    added = eq.read([("u3", int(items[70])), ("u3", int(items[71])), ("u8", int(items[75]))])
    before = fitted.interactions_.n_interactions
    fitted.update(added)
    assert fitted.interactions_.n_interactions == before + 3
    assert_equals_refit(fitted)


def test_new_items_and_new_users_equal_a_refit(fitted: eq.EASE, path: str) -> None:
    added = eq.read([("u3", -1), ("zoe", -1), ("zoe", -2), ("zoe", 13)])
    fitted.update(added)
    assert fitted.item_index_.values.tolist()[-2:] == [-2, -1]
    assert "zoe" in fitted.interactions_.user_index
    assert_equals_refit(fitted)
    assert fitted.recommend(["zoe"], k=3).source == ["model"]


def test_forgotten_users_are_gone(fitted: eq.EASE, path: str) -> None:
    fitted.update(removed=["u1", "u2"])
    assert "u1" not in fitted.interactions_.user_index
    assert_equals_refit(fitted)


def test_removed_pairs_and_added_ones_together(
    fitted: eq.EASE, path: str, synthetic: Interactions
) -> None:
    fitted.update(synthetic.rows([280, 281]), removed=synthetic.rows([0, 1, 2]))
    assert fitted.interactions_.n_users == 279
    assert_equals_refit(fitted)


def test_taking_back_what_was_added_restores_the_model(synthetic: Interactions, path: str) -> None:
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.4)).fit(
        synthetic.rows(np.arange(280)), dtype="float64"
    )
    before = model.inverse_.copy()
    extra = synthetic.rows(np.arange(280, 300))
    model.update(extra).update(removed=extra)
    assert_close(model.inverse_, before, "float64", scale=np.abs(before).max())


def test_low_rank_path_needs_no_solve(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic.rows(np.arange(290)))
    monkeypatch.setattr(solve.dense, "invert_in_place", pytest.fail)
    model.update(synthetic.rows(np.arange(290, 300)))
    assert model.interactions_.n_users == 300


def test_loaded_model_can_be_updated_and_the_file_stays(synthetic: Interactions, tmp_path) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic.rows(np.arange(290)), dtype="float64")
    model.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model").update(synthetic.rows(np.arange(290, 300)))
    assert_equals_refit(loaded)
    assert eq.load(tmp_path / "model", verify=True).interactions_.n_users == 290


def test_update_with_nothing_changes_nothing(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic)
    before = model.inverse_
    assert model.update(synthetic.rows([3, 4])).inverse_ is before


def test_wrong_updates_are_refused_and_leave_the_model(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic)
    before = model.inverse_.copy()
    with pytest.raises(UnknownIdError, match="nobody"):
        model.update(removed=["nobody"])
    with pytest.raises(DataError, match="1 of the pairs to remove are not in the data"):
        model.update(removed=Interactions([[1.0]], ["stranger"], [13]))
    with pytest.raises(DataError, match="leave no interactions"):
        model.update(removed=synthetic)
    np.testing.assert_array_equal(model.inverse_, before)
    with pytest.raises(SettingError, match="pruned"):
        model.prune(5).update(synthetic.rows([1]))
    custom = eq.EASE(l2=5.0, normalizer=eq.CustomNorm(users=np.ones(300))).fit(synthetic)
    with pytest.raises(SettingError, match="fit again"):
        custom.update(removed=["u1"])


def test_update_that_loses_accuracy_becomes_a_refit(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic.rows(np.arange(290)), dtype="float64")

    def spoilt(P: np.ndarray, *change: object) -> None:
        P[:] = np.nan

    monkeypatch.setattr(updating, "low_rank_update", spoilt)
    model.update(synthetic.rows(np.arange(290, 300)))
    assert_equals_refit(model)


def scored(model: eq.EASE, data: Interactions) -> np.ndarray:
    return model.score([data.history(user) for user in data.users[:20]])


@pytest.mark.parametrize("twin", ["reuse", "copy"])
def test_update_leaves_other_models_of_the_same_solve_alone(
    twin: str, synthetic: Interactions, path: str
) -> None:
    old, new = synthetic.rows(np.arange(280)), synthetic.rows(np.arange(280, 300))
    model = eq.LAE(l2=5.0).fit(old)
    other = eq.LAE(l2=5.0).reuse(model) if twin == "reuse" else copy.copy(model)
    before = scored(other, old)
    model.update(new)
    np.testing.assert_array_equal(scored(other, old), before)
    assert other.interactions_ is old
    assert (scored(model, old) != before).any()


STAGES = {
    "data": (updating, "changed_data", 10.0),
    "change": (updating, "gram_change", 10.0),
    "product": (updating, "add_outer", 10.0),
    "mirror": (updating, "mirror", 10.0),
    "low rank": (updating, "low_rank_update", 10.0),
    "check": (updating, "residual_and_level", 10.0),
    "companion": (eq.LowPass, "fit", 10.0),
    "refit gram": (solve.dense, "weighted_gram", 0.0),
    "refit solve": (solve.dense, "invert_in_place", 0.0),
    "refit check": (solve.dense, "check_residual", 0.0),
    "refit companion": (eq.LowPass, "fit", 0.0),
}


@pytest.fixture(params=STAGES)
def stage(request: pytest.FixtureRequest) -> tuple[object, str, float]:
    return STAGES[request.param]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ZeroDivisionError])
def test_update_cut_short_at_any_stage_leaves_the_model_as_it_was(
    stage: tuple[object, str, float],
    error: type[BaseException],
    synthetic: Interactions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = synthetic.rows(np.arange(280))
    model = eq.EASE(l2=5.0, lowpass=eq.LowPass(rank=5, strength=0.2)).fit(old)
    state, before = dict(vars(model)), scored(model, old)
    owner, name, pays = stage
    original = getattr(owner, name)

    def cut_short(*args: object, **options: object) -> None:
        original(*args, **options)
        raise error

    monkeypatch.setattr(updating, "PAYS", pays)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, cut_short)
        with pytest.raises(error):
            model.update(synthetic.rows(np.arange(280, 300)), removed=["u1", "u2"])
    assert all(vars(model)[key] is value for key, value in state.items())
    np.testing.assert_array_equal(scored(model, old), before)
    model.update(synthetic.rows(np.arange(280, 300)), removed=["u1", "u2"])
    assert model.interactions_.n_users == 298


def test_update_to_a_system_that_cannot_be_solved_leaves_the_model_as_it_was() -> None:
    data = Interactions(np.eye(6, dtype=np.float32)[[0, 1, 2, 3, 4, 5, 0, 1]])
    model = eq.LAE(l2=1e-12).fit(data)
    before = model.score([[0], [1, 2]])
    huge = Interactions(np.full((1, 6), 3e4, np.float32), [99], data.items)
    with pytest.raises(SolveError, match="raise l2 or dropout"):
        model.update(huge)
    np.testing.assert_array_equal(model.score([[0], [1, 2]]), before)
    assert model.interactions_ is data


@pytest.mark.parametrize("name", ["change", "product", "low rank", "check", "refit solve"])
def test_request_during_an_update_sees_the_old_model(
    name: str, synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = synthetic.rows(np.arange(280))
    model = eq.EASE(l2=5.0).fit(old)
    before, during = scored(model, old), []
    owner, function, pays = STAGES[name]
    original = getattr(owner, function)

    def observed(*args: object, **options: object) -> object:
        result = original(*args, **options)
        during.append(scored(model, old))
        return result

    monkeypatch.setattr(updating, "PAYS", pays)
    monkeypatch.setattr(owner, function, observed)
    model.update(eq.read([("zoe", 23), ("zoe", 13), ("u3", 23)]))
    assert during
    for scores in during:
        np.testing.assert_array_equal(scores, before)


@pytest.mark.parametrize("ask", ["recommend", "score", "explain", "similar", "rank"])
def test_update_during_a_request_does_not_reach_it(
    ask: str, synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(model: eq.EASE) -> object:
        if ask == "rank":
            return model.rank(old, 5).items.tolist()
        if ask == "score":
            return model.score(["u3"]).tolist()
        if ask == "explain":
            return model.explain("u3", 13).contributions
        return model.similar(13, k=5).items if ask == "similar" else model.recommend(["u3"]).items

    old = synthetic.rows(np.arange(280))
    model = eq.EASE(l2=5.0).fit(old)
    expected = answer(model)
    added = eq.read([("zoe", -1), ("zoe", 13), ("u3", -1)])
    terms = eq.EASE._terms

    def overtaken(self: eq.EASE, alpha: float | None = None) -> object:
        monkeypatch.setattr(eq.EASE, "_terms", terms)
        model.update(added)
        return terms(self, alpha)

    monkeypatch.setattr(eq.EASE, "_terms", overtaken)
    assert answer(model) == expected
    assert model.interactions_.n_users == 281


def test_requests_of_another_thread_see_the_model_before_or_after_each_update(
    synthetic: Interactions,
) -> None:
    model = eq.EASE(l2=5.0).fit(synthetic.rows(np.arange(280)))
    # new items come with each step, so that a mixture would have the wrong shape too
    steps = [
        eq.read([(f"new{n}", -1 - n), (f"new{n}", 13), ("u3", 23 + 10 * n)]) for n in range(6)
    ]
    twin = copy.copy(model)
    allowed = [twin.recommend([[13, 33]], k=10).items[0]]
    allowed += [twin.update(step).recommend([[13, 33]], k=10).items[0] for step in steps]
    seen, done = [], threading.Event()

    def ask() -> None:
        while not done.is_set():
            seen.append(model.recommend([[13, 33]], k=10, threads=1).items[0])

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            for step in steps:
                model.update(step)
        finally:
            done.set()
        asking.result()
    assert all(items in allowed for items in seen)
    assert model.recommend([[13, 33]], k=10).items[0] == allowed[-1]


def preferences(n_users: int, n_items: int) -> Interactions:
    """Users of eight tastes: a Gram matrix with a few large eigenvalues, hard to solve."""
    rng = np.random.default_rng(1)
    liking = rng.standard_normal((n_users, 8)) @ rng.standard_normal((8, n_items))
    X = liking > np.quantile(liking, 0.85)
    X[np.arange(n_users), rng.integers(0, n_items, n_users)] = True
    return Interactions(X.astype(np.float32), np.arange(n_users), np.arange(n_items))


def test_chain_of_updates_stays_at_the_accuracy_of_a_solve(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "equipoise")
    data = preferences(520, 200)
    # fewer users than items: each one who leaves takes a large eigenvalue along
    model = eq.EASE(l2=0.1).fit(data.rows(np.arange(120)))
    for step in range(50):
        coming = data.rows(np.arange(120 + 8 * step, 128 + 8 * step))
        model.update(coming, removed=list(range(6 * step, 6 * step + 6)))
        if step % 7 == 0:
            fresh = eq.EASE(l2=0.1).fit(model.interactions_)
            # the limit is sqrt(n) roundings, of which a solve has some
            assert model.residual_ <= np.sqrt(200) * fresh.residual_
    assert re.search(r"residual .* above .* of a solve: solving again", caplog.text)


def test_single_updates_of_a_fresh_solve_are_accurate_enough_to_stay(
    synthetic: Interactions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "equipoise")
    for dtype in ("float32", "float64"):
        for l2 in (0.1, 5.0, 500.0):
            model = eq.EASE(l2=l2).fit(synthetic.rows(np.arange(295)), dtype=dtype)
            model.update(synthetic.rows(np.arange(295, 300)), removed=["u1", "u2"])
    assert "solving again" not in caplog.text


RETURNED = [
    ("ann", "tea", 5.0, 1),
    ("bob", "tea", 1.0, 2),
    ("bob", "milk", 1.0, 3),
    ("cleo", "milk", 1.0, 4),
    ("cleo", "rice", 1.0, 5),
]
LATER = [("ann", "tea", -8.0, 9), ("ann", "tea", 5.0, 10)]
RETURNS = [None, *(eq.Signals(transform="sum", returns=returns) for returns in ("net", "ignore"))]
RETURNS += [eq.Signals(transform="sum", returns="negative")]


@pytest.mark.parametrize("signals", RETURNS, ids=["none", "net", "ignore", "negative"])
def test_users_whose_purchases_were_returned_keep_their_events(
    signals: eq.Signals | None, path: str
) -> None:
    model = eq.EASE(l2=1.0, signals=signals).fit(eq.read(RETURNED), dtype="float64")
    for stop in (1, 2):
        model.update(eq.read([LATER[stop - 1]]))
        everything = eq.read([*RETURNED, *LATER[:stop]])
        assert sorted(model.data_.to_frame(events=True).rows()) == sorted(
            everything.to_frame(events=True).rows()
        )
        fresh = eq.EASE(l2=1.0, signals=signals).fit(everything, dtype="float64")
        order = model.item_index_.positions(fresh.item_index_.values)
        np.testing.assert_allclose(
            model.score([["tea"], ["milk"]])[:, order],
            fresh.score([["tea"], ["milk"]]),
            rtol=0,
            atol=1e-6,  # scores of order 1, told in single precision
        )
        assert model.recommend(["ann"], k=2).source == fresh.recommend(["ann"], k=2).source


EVERY_MODEL = [eq.EASE(l2=1.0), eq.LAE(l2=1.0, normalizer=eq.DAN(0.2, 0.4)), eq.RLAE(l2=1.0)]
EVERY_MODEL += [eq.GFCF(n_factors=2), eq.BSPM(n_factors=2), eq.SVDAE(n_factors=2), eq.TurboCF()]
EVERY_MODEL += [eq.SGFCF(n_factors=2), eq.ItemKNN(), eq.Popularity(), eq.SLIST(), eq.VSKNN()]
EVERY_MODEL += [eq.STAN(), eq.VSTAN()]


@pytest.mark.parametrize("model", EVERY_MODEL, ids=lambda model: type(model).__name__)
def test_every_model_updates_with_users_who_returned_everything(model: eq.Recommender) -> None:
    fresh = copy.copy(model).fit(eq.read([*RETURNED, LATER[0]]))
    model.fit(eq.read(RETURNED)).update(eq.read([LATER[0]]))
    assert model.data_.user_index.position("ann") == 0
    assert model.recommend(["ann"], k=2).source == fresh.recommend(["ann"], k=2).source
    model.update(eq.read([LATER[1]]))
    assert model.data_.history("ann") == ["tea", "tea"]
    assert model.data_.select(users=["ann"], items=["tea"]).matrix.data.tolist() == [2.0]


def test_forgetting_a_user_who_returned_everything_leaves_no_event() -> None:
    model = eq.EASE(l2=1.0).fit(eq.read([*RETURNED, LATER[0]]))
    model.update(removed=["ann"])
    assert model.data_.users.tolist() == ["bob", "cleo"]
    assert model.data_.events.n_events == 4
    model.update(eq.read([LATER[1]]))
    assert model.data_.select(users=["ann"], items=["tea"]).matrix.data.tolist() == [5.0]


def test_pairs_that_were_returned_can_be_removed_and_replaced() -> None:
    data = eq.read([*RETURNED, LATER[0]])
    model = eq.EASE(l2=1.0).fit(data)
    model.update(removed=eq.read([("ann", "tea")]))
    assert model.data_.users.tolist() == ["bob", "cleo"]
    model = eq.EASE(l2=1.0).fit(eq.read(RETURNED))
    model.update(eq.read([("ann", "tea", 2.0, 9), ("ann", "tea", -2.0, 10)]), replace=True)
    assert model.data_.users.tolist() == ["ann", "bob", "cleo"]
    assert model.data_.select(users=["ann"]).n_interactions == 0
    assert model.data_.events.lengths.tolist() == [2, 2, 2]


def test_users_without_any_event_leave_with_their_pairs_alone(toy: Interactions) -> None:
    rows = np.vstack([toy.matrix.toarray(), np.zeros((1, toy.n_items))])
    data = Interactions(rows, [*toy.users.tolist(), "idle"], toy.items)
    model = eq.EASE(l2=1.0).fit(data)
    model.update(eq.read([("new", "tea")]))
    assert model.data_.users.tolist() == [*toy.users.tolist(), "idle", "new"]
    model.update(removed=["idle"])
    assert "idle" not in model.data_.user_index
    model.update(removed=model.data_.select(users=["new"]))
    assert model.data_.users.tolist() == toy.users.tolist()
