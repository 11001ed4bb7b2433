"""What every model promises, whatever it is inside."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.neural_cases import CASES as NEURAL
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, NotFittedError, SettingError, UnknownIdError
from equipoise.models import Recommender
from equipoise.models.recommendations import write_lists
from equipoise.models.saving import build, model_classes
from equipoise.models.trend import recent_users
from equipoise.runtime import machine

NORMALIZERS = [
    eq.NoNorm(),
    eq.RandomWalk(),
    eq.Symmetric(),
    eq.ColumnNorm(0.3),
    eq.UserNorm(0.4),
    eq.ItemNorm(0.3),
    eq.DAN(0.2, 0.3),
    eq.DAN(),
]
FAMILIES: list[Callable[..., eq.LAE]] = [eq.LAE, eq.EASE, eq.RLAE]
LINEAR: dict[str, Callable[[], Recommender]] = {
    **{
        f"{family.__name__} {norm}": lambda family=family, norm=norm: family(
            l2=2.0, dropout=0.4, normalizer=norm
        )
        for place, norm in enumerate(NORMALIZERS)
        for family in (FAMILIES if place % 3 == 0 else FAMILIES[1:2])
    },
    "DLAE": lambda: eq.DLAE(l2=1.0),
    "EDLAE": lambda: eq.EDLAE(l2=2.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3)),
    "RDLAE": lambda: eq.RDLAE(l2=1.0, diag_bound=0.3),
    "auto": lambda: eq.EDLAE(),
    "LowPass": lambda: eq.EASE(l2=2.0, lowpass=eq.LowPass(rank=9, softness=1.0, strength=0.2)),
    "pruned": lambda: eq.EASE(l2=2.0),
    "halved": lambda: eq.EASE(l2=2.0, normalizer=eq.DAN(0.2, 0.3)),
    "dual": lambda: eq.RLAE(l2=2.0, dropout=0.4, normalizer=eq.DAN(0.2, 0.3)),
}
TRAINED: dict[str, Callable[[], Recommender]] = {
    name: lambda make=make: make(epochs=1) for name, make in NEURAL.items()
}
MODELS: dict[str, Callable[[], Recommender]] = {
    **LINEAR,
    "Popularity": lambda: eq.Popularity(),
    "ItemKNN": lambda: eq.ItemKNN(neighbours=80, shrink=1.0),
    "ItemKNN auto": lambda: eq.ItemKNN(),
    "GFCF": lambda: eq.GFCF(n_factors=9),
    "GFCF linear": lambda: eq.GFCF(strength=0.0),
    "BSPM": lambda: eq.BSPM(n_factors=9, solver="rk4", merge="late"),
    "TurboCF": lambda: eq.TurboCF(power=0.7),
    "TurboCF order": lambda: eq.TurboCF(order=3),
    "SVDAE": lambda: eq.SVDAE(n_factors=9, power_iterations=None),
    "SGFCF": lambda: eq.SGFCF(n_factors=9),
    "SLIS": lambda: eq.SLIS(repeats=False),
    "SLIT": lambda: eq.SLIT(repeats=False, normalizer=eq.DAN(0.2, 0.3)),
    "SLIST": lambda: eq.SLIST(repeats=False, direction="part", dropout=0.3),
    "SLIST auto": lambda: eq.SLIST(repeats=False, l2="auto"),
    "VSKNN": lambda: eq.VSKNN(repeats=False, neighbours=20, sample=60, last_match=True),
    "STAN": lambda: eq.STAN(repeats=False, neighbours=20, sample=60),
    "VSTAN": lambda: eq.VSTAN(repeats=False, neighbours=20, sample=60, decay_match=3.0),
    **TRAINED,
}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
NAMES = [pytest.param(name, marks=needs_torch if name in TRAINED else ()) for name in MODELS]
OTHER = {
    "device": "cuda",
    "dtype": "float64",
    "engine": "tiled",
    "memory": "1GB",
    "scratch": "folder",
    "neighbours": 5,
    "refine": True,
    "precision": "float32",
    "progress": print,
    "valid": "part",
    "checkpoint": "folder",
    "checkpoint_every": 3,
    "resume": False,
}


def fit_model(name: str, data: Any, **options: Any) -> Recommender:
    options |= {"engine": "dual"} if name == "dual" else {}
    model = MODELS[name]().fit(data, **options)
    reduced = {"pruned": lambda: model.prune(30), "halved": lambda: model.halve()}
    return reduced[name]() if name in reduced else model


@pytest.fixture(scope="module")
def data(synthetic: Interactions) -> Interactions:
    """The synthetic interactions in an order of their own, so that session models can learn."""
    rng = np.random.default_rng(3)
    matrix = synthetic.matrix
    rows = np.split(matrix.indices, matrix.indptr[1:-1])
    clicks = np.concatenate([rng.permutation(row) for row in rows]).astype(np.int32)
    sequences = Events(clicks, matrix.indptr.astype(np.int64))
    return Interactions(matrix, synthetic.users, synthetic.items, events=sequences)


@pytest.fixture(scope="module")
def fitted(data: Interactions) -> Callable[[str], Recommender]:
    return cache(lambda name: fit_model(name, data))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str, fitted: Callable[[str], Recommender]) -> Recommender:
    return copy.copy(fitted(name))


@pytest.fixture(scope="module")
def timed(data: Interactions) -> Interactions:
    """The same data with a time for each event, days apart and different for all."""
    events = data._sequences
    assert events is not None
    rng = np.random.default_rng(5)
    start = np.repeat(rng.random(data.n_users) * 5e6, events.lengths)
    place = np.arange(events.n_events) - np.repeat(events.offsets[:-1], events.lengths)
    timed = Events(events.items, events.offsets, start + place * 9e4 + rng.random(len(place)))
    return data._replace(events=timed)


def fit_with_trend(name: str, data: Interactions, trend: eq.Trend | None) -> Recommender:
    model = MODELS[name]()
    model.trend = trend
    model.fit(data, **({"engine": "dual"} if name == "dual" else {}))
    return model.prune(30) if name == "pruned" else model.halve() if name == "halved" else model


def history(data: Interactions, user: str) -> list[Any]:
    """The items of a user, in their order."""
    clicks = data._sequences[int(data.user_index.position(user))]
    items: list[Any] = data.items[clicks].tolist()
    return items


def test_the_contract_covers_every_model_of_the_package() -> None:
    ours = {
        name for name, kind in model_classes.items() if kind.__module__.startswith("equipoise.")
    }
    bases = {"LinearAutoencoder", "GraphFilter", "SessionModel", "SessionRegression"}
    bases |= {"NeuralModel", "GraphEmbedding", "SessionNeighbours"}
    assert ours - bases == {type(make()).__name__ for make in MODELS.values()}


def test_fit_returns_the_model_itself(name: str, data: Interactions) -> None:
    model = MODELS[name]()
    assert model.fit(data) is model


def test_a_model_that_is_not_fitted_says_so(name: str) -> None:
    model = MODELS[name]()
    for ask in (
        lambda: model.recommend(["u1"]),
        lambda: model.score(["u1"]),
        lambda: model.similar(13),
        lambda: model.save("nowhere"),
        lambda: model.item_index_,
        lambda: model._terms(),
    ):
        with pytest.raises(NotFittedError, match="call fit first"):
            ask()


def test_a_linear_autoencoder_that_is_not_fitted_has_no_smaller_form() -> None:
    for ask in (eq.EASE().scales, eq.EASE().halve, lambda: eq.EASE().prune(3)):
        with pytest.raises(NotFittedError, match="call fit first"):
            ask()


def test_a_linear_autoencoder_reuses_no_other_model(data: Interactions) -> None:
    with pytest.raises(SettingError, match="needs a linear autoencoder with the solve, got GFCF"):
        eq.EASE().reuse(eq.GFCF(n_factors=2).fit(data))


def test_fit_takes_a_sparse_matrix(name: str, model: Recommender, data: Interactions) -> None:
    if model.ordered:
        with pytest.raises(DataError, match="needs ordered clicks"):
            fit_model(name, data.matrix)
        return
    scores = fit_model(name, data.matrix).score(np.arange(5))
    np.testing.assert_array_equal(scores, model.score(data.users[:5]))


def test_fit_takes_a_frame(name: str, model: Recommender, data: Interactions) -> None:
    if model.ordered:
        return  # frames have no order that fit could guess
    again = fit_model(name, data.to_frame().select("user", "item"))
    assert again.interactions_.n_interactions == data.n_interactions


def test_fit_refuses_objects_that_are_not_interactions(name: str) -> None:
    for wrong in ([[1, 0]], np.eye(3), "data.csv", None):
        with pytest.raises(DataError, match="a frame or a scipy sparse matrix"):
            MODELS[name]().fit(wrong)


def test_options_of_fit_that_mean_nothing_to_a_model_are_refused(
    name: str, data: Interactions
) -> None:
    model = MODELS[name]()
    supported = {*inspect.signature(model.fit).parameters} - {"interactions", "threads"}
    assert supported <= set(OTHER)
    for option in set(OTHER) - supported:
        with pytest.raises(SettingError, match=rf"does not support {option}; leave it out"):
            model.fit(data, **{option: OTHER[option]})
        assert not hasattr(model, "interactions_")


def test_fit_cut_short_at_any_point_leaves_the_fitted_model_as_it_was(
    model: Recommender, data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, before = dict(vars(model)), model.score(["u3", "u4"])
    for last in [name for name in state if name.endswith("_")]:

        def cut_short(self: Recommender, name: str, value: object, last: str = last) -> None:
            object.__setattr__(self, name, value)
            if name == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(model), "__setattr__", cut_short)
            with pytest.raises(KeyboardInterrupt):
                model.fit(data.rows(np.arange(100)))
        assert all(vars(model)[name] is value for name, value in state.items())
        np.testing.assert_array_equal(model.score(["u3", "u4"]), before)


def test_lists_are_sorted_without_seen_items_and_ties_go_by_position(
    model: Recommender, data: Interactions
) -> None:
    lists = model.recommend(data.users, k=15)
    for user, items, scores in zip(lists.users, lists.items, lists.scores, strict=True):
        assert not set(items) & set(data.history(user))
        assert len(items) == len(set(items)) == 15
        steps = np.diff(scores)
        assert (steps <= 0).all()
        assert (np.diff(data.item_index.positions(items))[steps == 0] > 0).all()
    assert set(lists.source) == {"model"}


def test_known_users_and_their_histories_get_the_same_lists(
    model: Recommender, data: Interactions
) -> None:
    users = ["u3", "u14", "u15"]
    known = model.recommend(users, k=8)
    histories = model.recommend([history(data, user) for user in users], k=8)
    named = model.recommend({user: history(data, user) for user in users}, k=8)
    as_data = model.recommend(data.select(users=users), k=8)
    assert known.items == histories.items == named.items == as_data.items
    assert known.users == named.users == as_data.users == users
    assert histories.users == [0, 1, 2]


def test_other_histories_are_ranked_or_refused_with_a_sentence(model: Recommender) -> None:
    if model.fold_in:
        assert len(model.recommend([[13, 33]], k=5).items[0]) == 5
        return
    with pytest.raises(DataError, match="ranks only for the users and histories it was fitted on"):
        model.recommend([[13, 33]])


def test_a_list_as_long_as_the_catalogue_has_the_scores_of_score(
    model: Recommender, data: Interactions
) -> None:
    dense = model.score(["u5"])[0]
    lists = model.recommend(["u5"], k=1000)
    assert len(lists.items[0]) == 80 - len(data.history("u5"))
    place = data.item_index.positions(lists.items[0])
    np.testing.assert_array_equal(dense[place], lists.scores[0])
    every = model.recommend(["u5"], k=80, exclude_seen=False)
    assert set(every.items[0]) == set(data.items.tolist())


def test_excluded_items_and_candidates_are_honoured(
    model: Recommender, data: Interactions
) -> None:
    first = model.recommend(["u1", "u2"], k=5).items
    without = model.recommend(["u1", "u2"], k=5, exclude=first[0])
    assert not set(without.items[0]) & set(first[0])
    per_user = model.recommend(["u1", "u2"], k=5, exclude=first)
    for old, new in zip(first, per_user.items, strict=True):
        assert not set(old) & set(new)
    allowed = data.items[:30].tolist()
    only = model.recommend(["u1", "u2"], k=40, candidates=allowed)
    assert all(set(row) <= set(allowed) for row in only.items)
    pair = model.recommend(["u1", "u2"], k=40, candidates=[allowed[:10], allowed[10:]])
    assert set(pair.items[0]) <= set(allowed[:10])
    assert set(pair.items[1]) <= set(allowed[10:])
    assert pair.users == ["u1", "u2"]


def test_empty_history_gets_popular_items_and_says_so(
    model: Recommender, data: Interactions
) -> None:
    lists = model.recommend([[], history(data, "u1")], k=4)
    best = np.argsort(-data.item_counts, kind="stable")[:4]
    assert lists.items[0] == data.items[best].tolist()
    assert lists.source == ["popular", "model"]
    details = model.recommend([[]], k=2).to_frame(details=True)
    assert details["source"].to_list() == ["popular", "popular"]


def test_unknown_ids_are_named_or_skipped(model: Recommender, data: Interactions) -> None:
    known = history(data, "u1")
    with pytest.raises(UnknownIdError, match="stranger"):
        model.recommend(["u1", "stranger"])
    with pytest.raises(UnknownIdError, match="-5"):
        model.recommend([[*known, -5]])
    assert model.recommend(["u1", "stranger"], unknown_users="skip").users == ["u1"]
    skipped = model.recommend([[*known, -5]], k=3, unknown_items="skip")
    assert skipped.items == model.recommend(["u1"], k=3).items


def test_invalid_requests_are_refused(model: Recommender) -> None:
    with pytest.raises(DataError, match="mixture"):
        model.recommend(["u1", [13, 23]])
    for k in (0, -3):
        with pytest.raises(SettingError, match="k must be"):
            model.recommend(["u1"], k=k)
    with pytest.raises(SettingError, match="batch_size must be"):
        model.recommend_to("x", batch_size=0)


def test_frame_is_long_with_ranks_from_one(model: Recommender) -> None:
    frame = model.recommend(["u1", "u2"], k=3).to_frame()
    assert frame.columns == ["user", "item", "score", "rank"]
    assert frame["user"].to_list() == ["u1"] * 3 + ["u2"] * 3
    assert frame["rank"].to_list() == [1, 2, 3, 1, 2, 3]


def test_similar_items_leave_the_item_itself_out(model: Recommender) -> None:
    if not model.fold_in:
        with pytest.raises(
            DataError, match="ranks only for the users and histories it was fitted on"
        ):
            model.similar(13)
        return
    similar = model.similar(13, k=5)
    assert 13 not in similar.items[0]
    assert len(similar.items[0]) == 5
    assert similar.users == [13]


def test_contributions_add_up_to_the_score_exactly(model: Recommender, data: Interactions) -> None:
    explanation = model.recommend(["u9"], k=5)
    if not model.explains:
        with pytest.raises(DataError, match="cannot explain a score, which is not a sum"):
            model.explain("u9", explanation.items[0][0])
        return
    for item, score in zip(explanation.items[0], explanation.scores[0], strict=True):
        reason = model.explain("u9", item)
        assert reason.score == score
        assert np.cumsum(reason.contributions)[-1] == score
        assert set(reason.sources) == set(data.history("u9"))
        sizes = np.abs(reason.contributions)
        assert (np.diff(sizes) <= 1e-6 * sizes[0]).all()


def test_a_trend_without_weight_changes_no_list(name: str, timed: Interactions) -> None:
    users = [*timed.users[:40].tolist()]
    plain = fit_with_trend(name, timed, None)
    lists = [plain.recommend(users, k=10), plain.recommend([[], []], k=10)]
    for trend in (eq.Trend(power=0, share=0), eq.Trend(share=0, form="add")):
        model = fit_with_trend(name, timed, trend)
        again = [model.recommend(users, k=10), model.recommend([[], []], k=10)]
        for expected, same in zip(lists, again, strict=True):
            assert same.items == expected.items
            for scores, expected_scores in zip(same.scores, expected.scores, strict=True):
                np.testing.assert_array_equal(scores, expected_scores)
        np.testing.assert_array_equal(model.score(users), plain.score(users))


def test_a_trend_with_all_weight_lists_what_is_popular_lately(
    name: str, timed: Interactions, tmp_path: Path
) -> None:
    trend = eq.Trend(half_life="10d", power=1.0, share=1e6)
    model = fit_with_trend(name, timed, trend)
    counts = recent_users(timed, 864000.0)
    lists = model.recommend(timed.users[:20], k=80, exclude_seen=False)
    nobody = model.recommend([[]], k=80)
    best = timed.items[np.argsort(-counts, kind="stable")].tolist()
    assert lists.items == [best] * 20
    assert nobody.items == [best]
    assert nobody.source == ["popular"]
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert again.settings()["trend"]["half_life"] == "10d"
    np.testing.assert_array_equal(again.score(timed.users[:5]), model.score(timed.users[:5]))
    assert model.clone().trend_ is None


def test_a_trend_needs_times(name: str, data: Interactions) -> None:
    model = MODELS[name]()
    model.trend = eq.Trend()
    with pytest.raises(DataError, match="a trend needs times; name the column"):
        model.fit(data)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [None, 0.5])
@pytest.mark.parametrize("lowpass", [None, eq.LowPass(rank=9, strength=0.2)])
def test_contributions_add_up_in_the_precision_of_the_model(
    dtype: str, alpha: float | None, lowpass: eq.LowPass | None, synthetic: Interactions
) -> None:
    model = eq.EASE(l2=2.0, dropout=0.4, normalizer=eq.DAN(0.2, 0.3), lowpass=lowpass)
    model.fit(synthetic, dtype=dtype)
    users = synthetic.users[:25]
    scores = model.score(users, alpha=alpha)
    for user, row in zip(users.tolist(), scores, strict=True):
        for place in (0, 7, 31, 79):
            reason = model.explain(user, int(synthetic.items[place]), alpha=alpha)
            assert reason.score == row[place]
            size = float(np.abs(reason.contributions).sum())
            length = len(reason.sources)
            error = abs(float(np.sum(reason.contributions)) - row[place])
            assert error <= length * np.spacing(size)
            if min(abs(part) for part in reason.contributions if part) <= abs(row[place]):
                assert np.cumsum(reason.contributions)[-1] == row[place]
            if lowpass is None:
                # a score is a sum of `length` products, so that many roundings move digits
                alone = model.score([[item] for item in reason.sources], alpha=alpha)[:, place]
                rounding = length * float(np.spacing(np.asarray(size, dtype)))
                np.testing.assert_allclose(reason.contributions, alone, rtol=0, atol=rounding)


def test_same_lists_for_any_threads_and_batches(model: Recommender, data: Interactions) -> None:
    one_batch = model.recommend(data, k=10, threads=1)
    again = model.recommend(data, k=10, threads=2)
    parts = [model.recommend(data.rows(np.arange(n, 300, 7)), k=10) for n in range(7)]
    assert one_batch.items == again.items
    for n, part in enumerate(parts):
        assert part.items == one_batch.items[n::7]
        for one, two in zip(part.scores, one_batch.scores[n::7], strict=True):
            np.testing.assert_array_equal(one, two)


def test_parquet_stream_holds_the_same_lists(
    model: Recommender, data: Interactions, tmp_path: Path
) -> None:
    assert model.recommend_to(tmp_path / "all.parquet", k=6, batch_size=37) == 300
    written = pl.read_parquet(tmp_path / "all.parquet")
    assert written.equals(model.recommend(data, k=6).to_frame(details=True))
    assert [file.name for file in tmp_path.iterdir()] == ["all.parquet"]


def test_threads_in_force_hold_for_every_batch_of_a_stream(tmp_path: Path) -> None:
    thread_counts: list[int] = []

    def batches() -> Iterator[pl.DataFrame]:
        for user in range(5):
            thread_counts.append(machine.count())
            yield pl.DataFrame({"user": [user]})

    with machine.limited(3):
        write_lists(tmp_path / "all.parquet", batches())
    assert thread_counts == [3] * 5
    assert pl.read_parquet(tmp_path / "all.parquet")["user"].to_list() == list(range(5))


def test_settings_make_the_same_model_and_tell_it_in_words(model: Recommender) -> None:
    plain = model.settings()
    again = build(json.loads(json.dumps(plain)))
    assert type(again) is type(model)
    assert again.settings() == plain
    assert model.label.split("+")[0] == model.summary().split()[0] == type(model).__name__
    assert "auto" not in model.summary()
    assert model.settings(resolved=True).keys() == plain.keys()


def test_saved_and_loaded_model_answers_the_same(
    model: Recommender, data: Interactions, tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert type(again) is type(model)
    assert again.settings() == model.settings()
    assert again.summary() == model.summary()
    assert again.data_fingerprint_ == model.data_fingerprint_
    one, two = model.recommend(data, k=10), again.recommend(data, k=10)
    assert one.items == two.items
    for a, b in zip(one.scores, two.scores, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in TRAINED])
def test_items_in_another_order_have_the_same_scores(name: str, data: Interactions) -> None:
    dtype = "float64" if "dtype" in inspect.signature(MODELS[name]().fit).parameters else "float32"
    options = {} if dtype == "float32" else {"dtype": dtype}
    order = np.random.default_rng(1).permutation(data.n_items)
    before = fit_model(name, data, **options).score(data.users)
    after = fit_model(name, data.columns(order), **options).score(data.users)
    assert_close(after, before[:, order], before.dtype.name, scale=np.abs(before).max())


def test_models_without_a_dial_refuse_an_alpha(model: Recommender) -> None:
    if model.alpha_ is None:
        with pytest.raises(SettingError, match="has no popularity dial; leave alpha out"):
            model.recommend(["u1"], alpha=0.2)
    else:
        with_alpha = model.recommend(["u1"], alpha=model.alpha_)
        assert with_alpha.items == model.recommend(["u1"]).items


@pytest.mark.parametrize("name", LINEAR)
def test_a_larger_alpha_favours_the_tail_without_a_refit(
    model: Recommender, data: Interactions
) -> None:
    counts = dict(zip(data.items.tolist(), data.item_counts.tolist(), strict=True))
    means = []
    for alpha in (-0.5, 0.0, 0.5, 1.0):
        lists = model.recommend(data, k=10, alpha=alpha)
        means.append(np.mean([counts[item] for row in lists.items for item in row]))
    assert means == sorted(means, reverse=True)
    assert means[0] > means[-1]


def test_update_equals_a_refit_or_says_why_not(
    name: str, model: Recommender, data: Interactions
) -> None:
    later = data.rows(np.arange(280, 300))
    earlier = fit_model(name, data.rows(np.arange(280)))
    if name in TRAINED:
        with pytest.raises(SettingError, match="cannot be updated: training starts from random"):
            earlier.update(later)
        return
    if name in ("pruned", "halved"):
        with pytest.raises(SettingError, match=f"a {name} model cannot be updated"):
            earlier.update(later)
        return
    assert earlier.update(later) is earlier
    assert earlier.interactions_.users.tolist() == data.users.tolist()
    if isinstance(model, eq.models.LinearAutoencoder):
        return  # test_updating.py is about these
    np.testing.assert_array_equal(earlier.score(data.users[:5]), model.score(data.users[:5]))
    earlier.update(removed=data.users[280:])
    back = fit_model(name, data.rows(np.arange(280)))
    np.testing.assert_array_equal(earlier.score(["u3"]), back.score(["u3"]))


def test_settings_are_read_set_and_cloned_as_in_scikit_learn(
    name: str, model: Recommender
) -> None:
    twin = model.clone()
    assert type(twin) is type(model)
    assert twin.settings() == model.settings()
    assert not hasattr(twin, "interactions_")
    params = model.get_params()
    assert twin.set_params(**params).settings() == model.settings()
    if "normalizer__alpha" in params:
        assert twin.set_params(normalizer__alpha=0.25).normalizer.alpha == 0.25
    with pytest.raises(SettingError, match="has no setting 'nonsense'; it has"):
        model.set_params(nonsense=1)
    assert hasattr(model, "interactions_")
    from sklearn.base import clone

    assert clone(model).settings() == model.settings()


@given(
    rows=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=2, max_size=8),
    alpha=st.floats(0, 1),
    beta=st.floats(0, 1),
)
@settings(max_examples=25, deadline=None)
def test_scores_are_finite_whatever_the_counts(
    rows: list[list[bool]], alpha: float, beta: float
) -> None:
    """Items without users and users without items included."""
    data = Interactions(np.array(rows, dtype=float))
    for family in (eq.LAE, eq.EASE, eq.RLAE):
        for penalty in ({"l2": 1.0}, {"l2": 0.0, "dropout": 0.5}):
            model = family(normalizer=eq.DAN(alpha, beta), **penalty).fit(data)
            assert np.isfinite(model.weights_).all()
            assert np.isfinite(model.score(data)).all()
