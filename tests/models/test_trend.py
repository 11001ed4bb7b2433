"""A trend: recent users of each item as a prior of every score."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.models.leaving_out import Leave, lists_without
from equipoise.models.trend import recent_users
from equipoise.ranking.ranker import score

DAY = 86400.0
N_USERS, N_ITEMS = 40, 18
TRENDS = {
    "scaled": eq.Trend(half_life="3d", power=0.7, share=0.0),
    "prior": eq.Trend(half_life="3d", power=0.7, share=0.5),
    "constant": eq.Trend(half_life="2d", power=0.0, share=0.5),
    "added": eq.Trend(half_life="5d", share=0.4, form="add"),
}


def log(seed: int = 0, *, returns: bool = False, n_events: int = 420) -> eq.Interactions:
    """Events of 30 days; one user has the last event, another a single item."""
    rng = np.random.default_rng(seed)
    chances = np.linspace(3, 1, N_ITEMS - 1)
    rows = [
        (
            f"u{rng.integers(1, N_USERS)}",
            f"i{rng.choice(N_ITEMS - 1, p=chances / chances.sum())}",
            -1.0 if returns and rng.random() < 0.1 else 1.0,
            float(rng.integers(0, 30 * 24)) * 3600,
        )
        for _ in range(n_events)
    ]
    if returns:  # bought and returned: no value is left, but a use
        rows += [("u3", "i16", 2.0, 20 * DAY), ("u3", "i16", -2.0, 21 * DAY)]
    rows += [("u1", f"i{N_ITEMS - 1}", 1.0, 29 * DAY)]  # nobody else has this item
    rows += [("single", "i2", 1.0, 28 * DAY), ("last", "i3", 1.0, 31 * DAY)]
    rows += [("last", f"i{item}", 1.0, item * DAY) for item in (1, 5, 6)]
    return eq.read(rows)


def with_numbers_of(model: Any, again: Any) -> Any:
    """A refitted model with the level and the spread of another one."""
    numbers = {name: getattr(model.trend_, name) for name in ("level", "spread")}
    again.trend_ = dataclasses.replace(again.trend_, **numbers)
    return again


def assert_equals_refits(
    model: Any, data: eq.Interactions, leave: Leave = "user", **options: Any
) -> None:
    model.fit(data, dtype="float64", **options)
    assert_fitted_equals_refits([model], data, leave)


def assert_fitted_equals_refits(models: Any, data: eq.Interactions, leave: Leave) -> None:
    users = np.arange(data.n_users)
    rows = data.rows(users)
    place = np.arange(rows.n_interactions) - np.repeat(rows.matrix.indptr[:-1], rows.user_counts)
    shown = rows.entries(place % 3 != 1)
    items, scores = lists_without(models, shown, data.n_items, leave=leave)
    for user in users:
        if leave == "user":
            remaining = data.rows(users != user)
        else:
            remaining = data.difference(data.rows([user]).difference(shown.rows([user])))
        for number, model in enumerate(models):
            again = model._vary({}).fit(remaining, dtype="float64")
            expected = with_numbers_of(model, again).rank(shown.rows([user]), data.n_items)
            scale = np.nanmax(np.abs(expected.scores))
            listed = expected.items[0] >= 0
            np.testing.assert_array_equal(items[number, user] >= 0, listed)
            score_of = dict(zip(items[number, user].tolist(), scores[number, user], strict=True))
            same_items = np.array([score_of[item] for item in expected.items[0][listed].tolist()])
            # both solves are of systems with a condition number below 1e4
            np.testing.assert_allclose(
                same_items, expected.scores[0][listed], rtol=0, atol=1e-10 * scale
            )
            differs = items[number, user] != expected.items[0]
            np.testing.assert_allclose(  # only equal scores may change places
                scores[number, user][differs], expected.scores[0][differs], atol=1e-10 * scale
            )


@pytest.mark.parametrize("trend", TRENDS)
@pytest.mark.parametrize("family", [eq.LAE, eq.EASE, eq.RLAE])
@pytest.mark.parametrize("leave", ["user", "items"])
def test_a_user_left_out_equals_a_refit_without_the_user(
    trend: str, family: Any, leave: Leave
) -> None:
    model = family(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3), trend=TRENDS[trend])
    assert_equals_refits(model, log(), leave)


@pytest.mark.parametrize("trend", TRENDS)
@pytest.mark.parametrize("leave", ["user", "items"])
@pytest.mark.parametrize("returned", ["net", "negative"])
def test_uses_that_were_returned_leave_with_their_user(
    trend: str, leave: Leave, returned: Any
) -> None:
    signals = eq.Signals(transform="count", decay="9d", returns=returned, history_decay="2d")
    model = eq.EASE(l2=5.0, dropout=0.3, trend=TRENDS[trend], signals=signals)
    assert_equals_refits(model, log(returns=True), leave)


@pytest.mark.parametrize("engine", ["dual", "tiled"])
def test_every_engine_leaves_a_user_out_of_the_trend(engine: str) -> None:
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3), trend=TRENDS["prior"])
    assert_equals_refits(model, log(), engine=engine)


@pytest.mark.parametrize("leave", ["user", "items"])
def test_models_with_different_trends_and_history_ages_share_a_solve(leave: Leave) -> None:
    data = log()
    settings: dict[str, Any] = {"l2": 5.0, "dropout": 0.2}
    ages = [None, "1d", "6d"]
    solved = eq.EASE(**settings, signals=eq.Signals(), trend=TRENDS["prior"])
    models: list[Any] = [solved.fit(data, dtype="float64")]
    for age, trend in zip(ages, ["scaled", "added", "constant"], strict=True):
        signals = eq.Signals(history_decay=age)
        for kind in (eq.EASE, eq.LAE):
            model = kind(**settings, signals=signals, trend=TRENDS[trend])
            models.append(model.reuse(solved))
    assert_fitted_equals_refits(models, data, leave)


def test_a_companion_is_scaled_by_the_trend_without_the_user() -> None:
    data = log()
    lowpass = eq.LowPass(rank=5, strength=0.3)
    settings: dict[str, Any] = {"l2": 5.0, "lowpass": lowpass}
    model = eq.EASE(**settings, trend=TRENDS["prior"]).fit(data, dtype="float64")
    shown = data.rows([4, 9])  # fewer than a tenth: one group of the companion
    items, scores = lists_without([model], shown, N_ITEMS)
    remaining = data.rows(np.setdiff1d(np.arange(data.n_users), [4, 9]))
    companion = lowpass.fit(remaining, "float64").term
    for row, user in enumerate([4, 9]):
        plain = eq.EASE(l2=5.0).fit(data.rows(np.arange(data.n_users) != user), dtype="float64")
        trend = model.trend_.fitted_to(plain.data_)
        scale, constant = trend.scale_and_constant()
        assert scale is not None
        expected = plain.score(shown.rows([row])) + score([companion], shown.rows([row]).matrix)
        expected = (expected * scale + constant)[0]
        listed = items[0, row][items[0, row] >= 0]
        best = np.abs(expected).max()
        assert_close(scores[0, row][: len(listed)], expected[listed], "float64", scale=best)


def test_lists_left_out_are_the_best_of_all_scores(synthetic: eq.Interactions) -> None:
    data = log(3, n_events=2000)
    model = eq.EASE(l2=5.0, dropout=0.3, trend=TRENDS["prior"]).fit(data)
    every = lists_without([model], data, N_ITEMS)
    short = lists_without([model], data, 4)
    np.testing.assert_array_equal(every[0][:, :, :4], short[0])
    np.testing.assert_array_equal(every[1][:, :, :4], short[1])


@pytest.mark.parametrize("trend", TRENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_contributions_and_the_trend_sum_to_the_score(trend: str, dtype: str) -> None:
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3), trend=TRENDS[trend])
    model.fit(log(), dtype=dtype)
    plain = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3)).fit(log(), dtype=dtype)
    scale, constant = model.trend_.scale_and_constant()
    for item in ("i0", "i9", "i17"):
        reason, bare = model.explain("u3", item), plain.explain("u3", item)
        place = int(model.item_index_.position(item))
        assert bare.trend == 0.0
        assert reason.score == model.score(["u3"])[0, place]
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        assert sum(reason.contributions) + reason.trend == pytest.approx(
            reason.score, rel=tolerance, abs=tolerance
        )
        assert reason.trend == pytest.approx(constant[place], rel=1e-4, abs=1e-6)
        # the constant is not counted once for each item of the history
        factor = 1.0 if scale is None else scale[place]
        np.testing.assert_allclose(
            sorted(reason.contributions),
            np.sort(bare.contributions) * factor,
            rtol=1e-3,
            atol=1e-5 * abs(bare.score),
        )
    assert ("popular lately" in reason._repr_html_()) == (reason.trend != 0)


def test_being_popular_lately_is_a_reason_where_it_adds_more_than_a_listed_item() -> None:
    data = log()
    data = data._replace(
        catalogue=pl.DataFrame({"title": [f"Item {item}" for item in data.items]})
    )
    model = eq.EASE(l2=5.0, trend=TRENDS["prior"]).fit(data)
    lists = model.recommend(["u3", "u4"], k=8, reasons=2)
    assert lists.trending is not None
    _, constant = model.trend_.scale_and_constant()
    for row, items in enumerate(lists.items):
        for rank, item in enumerate(items):
            parts = model.explain(lists.users[row], item)
            reasons = parts.strongest(2)
            listed = [part["contribution"] for part in reasons if part["item"] is not None]
            titles = [part["title"] for part in reasons]
            assert ("popular lately" in titles) == lists.trending[row][rank]
            assert sorted(reasons, key=lambda part: -part["contribution"]) == reasons
            is_reason = constant[int(model.item_index_.position(item))] > min(listed, default=0.0)
            assert lists.trending[row][rank] == is_reason
    flags = np.array(lists.trending)
    assert flags.any()
    frame = lists.to_frame(details=True)
    assert frame["trending"].to_list() == flags.ravel().tolist()
    said = [text.endswith("popular lately") for text in frame["because"].to_list()]
    assert said == flags.ravel().tolist()
    assert "popular lately" in lists._repr_html_()
    unknown = model.recommend([["i3"], []], k=3, reasons=1)
    assert unknown.trending is not None
    assert unknown.trending[1] == [False] * 3  # the list is of popular items altogether
    plain = eq.EASE(l2=5.0).fit(data).recommend(["u3"], reasons=1)
    assert plain.trending is None
    assert "trending" not in plain.to_frame(details=True).columns


def test_a_trend_is_the_reason_where_the_history_adds_nothing() -> None:
    lists = eq.Popularity(trend=TRENDS["prior"]).fit(log()).recommend(["u3"], k=3, reasons=2)
    assert lists.reasons == [[[], [], []]]
    assert lists.trending == [[True] * 3]


def test_lists_with_trending_items_are_written(tmp_path: Path) -> None:
    model = eq.EASE(l2=5.0, trend=TRENDS["prior"]).fit(log())
    path = tmp_path / "lists.parquet"
    model.recommend_to(path, ["u3", "u4", "u5"], k=4, reasons=2, batch_size=2)
    expected = model.recommend(["u3", "u4", "u5"], k=4, reasons=2).to_frame(details=True)
    assert pl.read_parquet(path).equals(expected)


def test_the_trend_counts_users_by_the_age_of_their_last_use() -> None:
    rows = [
        ("ann", "tea", 1.0, 0.0),
        ("ann", "tea", 1.0, 8 * DAY),  # a repeat is no second user
        ("bob", "tea", 1.0, 2 * DAY),
        ("bob", "jam", -1.0, 10 * DAY),  # returned
        ("cleo", "milk", 1.0, 10 * DAY),
    ]
    data = eq.read(rows)
    counts = dict(zip(data.items.tolist(), recent_users(data, 2 * DAY), strict=True))
    assert counts == pytest.approx({"tea": 0.5 + 0.0625, "jam": 0.0, "milk": 1.0})


@pytest.mark.parametrize("trend", TRENDS)
def test_scores_follow_the_formula(trend: str) -> None:
    data, settings = log(), TRENDS[trend]
    model = eq.EASE(l2=5.0, trend=settings).fit(data, dtype="float64")
    plain = eq.EASE(l2=5.0).fit(data, dtype="float64")
    users = [user for user in data.users.tolist() if len(data.history(user))]
    scores = plain.score(users)
    counts = recent_users(data, settings.seconds)
    lift = (counts + 0.001) / (counts.mean() + 0.001)
    share = settings.share * model.trend_.spread
    if settings.form == "add":
        expected = scores + share * np.log(lift)
    else:
        expected = (scores + share) * lift**settings.power
    assert_close(model.score(users), expected, "float64", scale=np.abs(expected).max())
    if settings.share:
        assert model.trend_.spread == pytest.approx(plain.score(users).std())
    nobody = model.recommend([[]], k=5)
    assert nobody.items[0] == data.items[np.argsort(-counts, kind="stable")[:5]].tolist()


@pytest.mark.parametrize("make", [eq.EASE, eq.ItemKNN])
def test_users_without_a_history_get_what_is_popular_lately(make: Any, tmp_path: Path) -> None:
    data = log()
    model = make().fit(data)
    times = data.events.times
    counts = recent_users(data, (times.max() - times.min()) / 10)
    best = data.items[np.argsort(-counts, kind="stable")[:5]].tolist()
    assert best != eq.Popularity().fit(data).recommend([[]], k=5).items[0]
    model.save(tmp_path / "model")
    for ready in (model, eq.load(tmp_path / "model")):
        lists = ready.recommend([[], ["i1"]], k=5)
        assert lists.items[0] == best
        assert lists.source == ["popular", "model"]
    without_times = eq.Interactions(data.matrix, users=data.users, items=data.items)
    fallback = make().fit(without_times)._fallback_scores
    np.testing.assert_array_equal(fallback, data.item_counts)


def test_popularity_lists_the_same_for_users_without_a_history() -> None:
    data = log()
    for signals in (None, eq.Signals(decay="3d", floor=0.0)):
        model = eq.Popularity(signals=signals).fit(data)
        known, nobody = model.recommend(
            [data.items[:1].tolist(), []], k=5, exclude_seen=False
        ).items
        assert nobody == known


@pytest.mark.parametrize("trend", TRENDS)
@pytest.mark.parametrize("form", ["dense", "dual", "tiled", "neighbourhood", "halved", "pruned"])
def test_every_form_of_a_model_has_the_trend(trend: str, form: str) -> None:
    data = log()
    options = {} if form in ("dense", "halved", "pruned") else {"engine": form}
    models = []
    for setting in (None, TRENDS[trend]):
        model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3), trend=setting).fit(data, **options)
        models.append(
            {"halved": model.halve, "pruned": lambda m=model: m.prune(6)}.get(
                form, lambda m=model: m
            )()
        )
    plain, model = models
    scale, constant = model.trend_.scale_and_constant()
    expected = plain.score(data) * (1.0 if scale is None else scale) + constant
    assert_close(model.score(data), expected, "float32", scale=float(np.abs(expected).max()))
    lists = model.rank(data, 6)
    scores = model.score(data)
    scores[data.matrix.toarray() != 0] = -np.inf
    for row, items in enumerate(lists.items):
        best = np.lexsort((np.arange(N_ITEMS), -scores[row]))[: len(items)]
        np.testing.assert_array_equal(items[items >= 0], best[: (items >= 0).sum()])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("trend", TRENDS)
@pytest.mark.parametrize("lowpass", [None, eq.LowPass(rank=5, strength=0.3)])
def test_a_gpu_ranks_with_the_trend(device: str, trend: str, lowpass: eq.LowPass | None) -> None:
    pytest.importorskip("torch")
    data = log()
    settings: dict[str, Any] = {"l2": 5.0, "trend": TRENDS[trend], "lowpass": lowpass}
    host = eq.EASE(**settings).fit(data, dtype="float64")
    there = eq.EASE(**settings).fit(data, dtype="float64", engine="gpu", device=device)
    moved = eq.EASE(**settings).fit(data, dtype="float64").to(device)
    expected = host.rank(data, 8)
    for model in (there, moved):
        ranked = model.rank(data, 8)
        np.testing.assert_array_equal(ranked.items, expected.items)
        size = float(np.nanmax(np.abs(expected.scores)))
        listed = expected.items >= 0
        assert_close(ranked.scores[listed], expected.scores[listed], "float64", scale=size)
        assert_close(model.score(data), host.score(data), "float64", scale=size)
    shown = data.rows(np.arange(12))
    lists = [lists_without([model], shown, 6) for model in (host, there)]
    np.testing.assert_array_equal(lists[0][0], lists[1][0])
    size = float(np.nanmax(np.abs(lists[0][1])))
    listed = lists[0][0] >= 0
    assert_close(lists[1][1][listed], lists[0][1][listed], "float64", scale=size)


@pytest.mark.parametrize("make", [eq.EASE, eq.ItemKNN, eq.Popularity])
def test_an_update_equals_a_refit(make: Any) -> None:
    data = log()
    times = data.events.times
    settings: dict[str, Any] = {"trend": TRENDS["prior"]}
    options: dict[str, Any] = {}
    if make is eq.EASE:
        settings |= {"l2": 5.0, "dropout": 0.2}
        options = {"dtype": "float64"}
    before, after = data._only_events(times < 24 * DAY), data._only_events(times >= 24 * DAY)
    before = before.rows(~before._empty_users)
    model = make(**settings).fit(before, **options).update(after)
    again = make(**settings).fit(model.data_, **options)
    np.testing.assert_array_equal(model.trend_.counts, again.trend_.counts)
    np.testing.assert_array_equal(model._recent_users, again._recent_users)
    assert model.trend_.level == again.trend_.level
    assert model.trend_.spread == pytest.approx(again.trend_.spread, rel=1e-9)
    assert_close(model.score(data), again.score(data), "float32")
    forgotten = model.update(removed=["u3"])
    smaller = make(**settings).fit(forgotten.data_, **options)
    np.testing.assert_array_equal(forgotten.trend_.counts, smaller.trend_.counts)


def test_reuse_copies_and_files_have_the_trend_of_their_model(tmp_path: Path) -> None:
    data = log()
    model = eq.EASE(l2=5.0, trend=TRENDS["prior"]).fit(data)
    other = eq.RLAE(l2=5.0, trend=TRENDS["added"]).reuse(model)
    alone = eq.RLAE(l2=5.0, trend=TRENDS["added"]).fit(data)
    np.testing.assert_array_equal(other.score(data), alone.score(data))
    bare = eq.EASE(l2=5.0).reuse(model)
    assert bare.trend_ is None
    np.testing.assert_array_equal(bare.score(data), eq.EASE(l2=5.0).fit(data).score(data))
    for copy in (model.halve(), model.prune(9), model.clone().fit(data)):
        np.testing.assert_array_equal(copy.trend_.counts, model.trend_.counts)
        assert (copy.trend_.level, copy.trend_.spread) == pytest.approx(
            (model.trend_.level, model.trend_.spread)
        )
    model.save(tmp_path / "model")
    saved = eq.load(tmp_path / "model")
    assert saved.trend_.settings == TRENDS["prior"]
    np.testing.assert_array_equal(saved.score(data), model.score(data))
    assert saved.recommend([[]], k=4).items == model.recommend([[]], k=4).items
    again = model.set_params(trend=None).fit(data)
    assert again.trend_ is None


def test_similar_items_do_not_depend_on_the_trend() -> None:
    data = log()
    model = eq.EASE(l2=5.0, trend=TRENDS["prior"]).fit(data)
    plain = eq.EASE(l2=5.0).fit(data)
    assert model.similar("i3", k=5).items == plain.similar("i3", k=5).items


def test_an_automatic_companion_does_not_see_the_trend_of_an_earlier_fit() -> None:
    data = log(n_events=900)
    lowpass = eq.LowPass(rank=5)
    model = eq.EASE(l2=5.0, lowpass=lowpass, trend=TRENDS["prior"])
    strengths = [model.fit(data).lowpass_.strength for _ in range(2)]
    assert (
        strengths[0]
        == strengths[1]
        == eq.EASE(l2=5.0, lowpass=lowpass).fit(data).lowpass_.strength
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"half_life": "soon"}, "half_life must"),
        ({"half_life": 0}, "half_life must"),
        ({"power": -1}, "power must be >= 0, got -1"),
        ({"share": "much"}, "share must"),
        ({"form": "divide"}, "form must"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(eq.SettingError, match=message):
        eq.Trend(**settings)
    with pytest.raises(eq.SettingError, match="trend must be a Trend or None, got '7d'"):
        eq.EASE(l2=1.0, trend="7d").fit(log())  # type: ignore[arg-type]
