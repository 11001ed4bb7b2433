"""Session models: their closed forms, and how they treat the clicks of a session."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.models.sessions import as_data, by_definition, drawn
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.models import session_choice, session_solver
from equipoise.models.sessions import SessionRegression
from equipoise.solve.planning import SolveOptions

MODELS = {
    "SLIS": lambda **s: eq.SLIS(**s),
    "SLIT sr": lambda **s: eq.SLIT(**s),
    "SLIT part": lambda **s: eq.SLIT(direction="part", **s),
    "SLIT all": lambda **s: eq.SLIT(direction="all", decay_position=2.0, **s),
    "SLIST sr": lambda **s: eq.SLIST(mix=0.4, **s),
    "SLIST part": lambda **s: eq.SLIST(mix=0.7, direction="part", decay_position=None, **s),
}
MIX = {"SLIS": 1.0, "SLIST sr": 0.4, "SLIST part": 0.7}
SETTINGS = [
    {"l2": 3.0},
    {"l2": 1.0, "row_norm": "l2", "normalizer": eq.DAN(0.3, 0.6)},
    {"l2": 0.0, "dropout": 0.4, "row_norm": None, "normalizer": eq.DAN(0.2, 0.0)},
]


@pytest.fixture(scope="module")
def data() -> Interactions:
    return drawn(80, 15)


@pytest.mark.parametrize("engine", ["sparse", "dense"])
@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "DAN l2 rows", "dropout"])
@pytest.mark.parametrize("name", MODELS)
def test_solution_satisfies_its_optimality_condition(
    data: Interactions, name: str, settings: dict, engine: str
) -> None:
    model = MODELS[name](**settings).fit(data, engine=engine, dtype="float64")
    M, R = by_definition(model, data, MIX.get(name, 0.0))
    alpha = model.normalizer_.exponents()[0]
    scale = data.item_counts.astype(float) ** alpha
    C = model.weights_ / scale[:, None] * scale
    # the gradient of the objective: 0 up to the tolerance of the solve
    assert np.abs(M @ C - R).max() < 1e-9 * np.abs(R).max()


@pytest.mark.parametrize("settings", SETTINGS)
def test_slist_at_its_extremes_is_slis_and_slit(data: Interactions, settings: dict) -> None:
    for family, mix in ((eq.SLIS, 1.0), (eq.SLIT, 0.0)):
        one = family(**settings).fit(data, engine="sparse", dtype="float64")
        same = {"dropout": 0.0, "decay_position": 1.0, **settings}
        both = eq.SLIST(mix=mix, **same).fit(data, engine="sparse", dtype="float64")
        np.testing.assert_array_equal(one.weights_, both.weights_)


def test_a_session_worked_by_hand() -> None:
    # One session a b a: splits a -> b + a/e and b -> a. With l2 = 1 and d_pos = 1,
    # M = diag(1 + 1, 1 + 1), so C_ab = 1/2, C_aa = 1/(2e) and C_ba = 1/2.
    model = eq.SLIT(l2=1.0, decay_inference=1.0).fit(as_data([[0, 1, 0]], 2), dtype="float64")
    e = np.e
    assert_close(model.weights_, [[1 / (2 * e), 1 / 2], [1 / 2, 0.0]], "float64")
    # The session a b: b counts 1 and a counts 1/e.
    assert_close(model.score([[0, 1]])[0], [1 / 2 + 1 / (2 * e * e), 1 / (2 * e)], "float64")
    # SLIS: X = (1 1), inputs (1/2 1/2): M = [[5 1] [1 5]] / 4, R = 1/2 everywhere, C = 1/3.
    slis = eq.SLIS(l2=1.0).fit(as_data([[0, 1, 0]], 2), dtype="float64")
    assert_close(slis.weights_, np.full((2, 2), 1 / 3), "float64")


@pytest.mark.parametrize("name", MODELS)
def test_both_engines_give_the_same_lists(name: str) -> None:
    data = drawn(400, 60, seed=4)
    settings = {"l2": 2.0, "normalizer": eq.DAN(0.2, 0.3)}
    sparse, dense = (
        MODELS[name](**settings).fit(data, engine=engine, dtype="float64")
        for engine in ("sparse", "dense")
    )
    assert_same_lists(sparse.rank(data, 10), dense.rank(data, 10), dense.score(data), "float64")
    assert_close(sparse.weights_, dense.weights_, "float64", scale=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_same_bits_for_any_threads_batches_and_cache(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = drawn(300, 50, seed=2)
    model = MODELS[name](l2=2.0).fit(data, engine="sparse")
    one_batch = model.recommend(data, k=8, threads=1)
    monkeypatch.setattr(session_solver, "CACHE_BYTES", 3 * 50 * 4)
    monkeypatch.setattr(session_solver, "CACHE_SHARE", 0.0)
    other = MODELS[name](l2=2.0).fit(data, engine="sparse")
    pieces = [other.recommend(data.rows(rows), k=8) for rows in np.split(np.arange(300), 30)]
    assert one_batch.items == [row for piece in pieces for row in piece.items]
    np.testing.assert_array_equal(
        np.concatenate(one_batch.scores), np.concatenate([s for p in pieces for s in p.scores])
    )
    threads = model.recommend(data, k=8, threads=2)
    assert threads.items == one_batch.items


def test_order_and_repeats_of_clicks_count() -> None:
    data = as_data([[0, 1], [1, 2], [2, 3], [0, 1], [3, 0]], 4)
    model = eq.SLIT(l2=1.0, decay_inference=1.0).fit(data)
    assert model.recommend([[0, 2], [2, 0]], k=1).items == [[3], [1]]
    one, two = model.score([[0, 2], [0, 0, 2]])
    assert two[1] == pytest.approx(one[1] * (1 + np.exp(-1)), rel=1e-6)


def test_repeats_are_recommended_by_choice() -> None:
    data = as_data([[0, 1, 0], [0, 1, 0], [1, 2]], 3)
    model = eq.SLIT(l2=1.0).fit(data)
    assert model.recommend(session=[0, 1], k=1).items == [[0]]
    assert model.recommend(session=[0, 1], k=3, exclude_seen=True).items == [[2]]
    never = eq.SLIT(l2=1.0, repeats=False).fit(data)
    assert never.recommend(session=[0, 1], k=3).items == [[2]]
    assert never.recommend(session=[0, 1], k=3, exclude_seen=False).items[0][0] == 0
    assert model.similar(0, k=5).items == [[1, 2]]


def test_a_session_is_accepted_in_every_form(data: Interactions) -> None:
    model = eq.SLIST(l2=2.0).fit(data)
    users = [4, 7]
    clicks = [data._sequences[user].tolist() for user in users]
    expected = model.recommend(clicks, k=5)
    assert model.recommend(users, k=5).items == expected.items
    assert model.recommend({"x": clicks[0], "y": clicks[1]}, k=5).items == expected.items
    assert model.recommend(data.rows(users), k=5).items == expected.items
    assert model.recommend(session=clicks[1], k=5).items == expected.items[1:]
    with pytest.raises(SettingError, match="either session"):
        model.recommend()
    with pytest.raises(SettingError, match="either session"):
        model.recommend(clicks, session=clicks[0])
    with pytest.raises(DataError, match="mixture"):
        model.recommend([1, [1]])


def test_unknown_items_of_a_session_are_skipped_and_reported(
    data: Interactions, caplog: pytest.LogCaptureFixture
) -> None:
    model = eq.SLIST(l2=2.0).fit(data)
    with pytest.raises(UnknownIdError, match="99"):
        model.recommend(session=[1, 99, 2])
    with caplog.at_level(logging.WARNING):
        lists = model.recommend(session=[1, 99, 2], unknown_items="skip")
    assert "skipped a click on an item the model does not know: 99" in caplog.text
    assert lists.items == model.recommend(session=[1, 2]).items
    nothing = model.recommend(session=[99], unknown_items="skip")
    assert nothing.source == ["popular"]


def test_contributions_of_clicks_sum_to_the_score(data: Interactions) -> None:
    model = eq.SLIST(l2=2.0, normalizer=eq.DAN(0.3, 0.5)).fit(data, engine="sparse")
    clicks = [3, 1, 3, 0, 5]
    lists = model.recommend(session=clicks, k=4)
    for item, score in zip(lists.items[0], lists.scores[0], strict=True):
        reason = model.explain(clicks, item)
        assert reason.score == score
        assert sum(reason.contributions) == score
        assert set(reason.sources) == {0, 1, 3, 5}


def test_sessions_of_one_click_teach_nothing_and_are_answered(data: Interactions) -> None:
    sessions = [data._sequences[row].tolist() for row in range(data.n_users)]
    alone = [[item] for item in range(15)]
    for make in MODELS.values():
        before = make(l2=2.0, dropout=0.0).fit(as_data(sessions, 15), dtype="float64")
        after = make(l2=2.0, dropout=0.0).fit(as_data(sessions + alone, 15), dtype="float64")
        np.testing.assert_array_equal(before.weights_, after.weights_)
        assert after.recommend([80], k=3).source == ["model"]


def test_very_long_sessions_stay_linear() -> None:
    rng = np.random.default_rng(0)
    data = as_data([rng.integers(0, 40, 50_000).tolist(), [1, 2, 3]], 40)
    for direction in ("sr", "part", "all"):
        model = eq.SLIST(l2=2.0, direction=direction).fit(data, engine="sparse")
        assert model.system_.targets.nnz < 100 * 50_000
        assert np.isfinite(model.score([data._sequences[0].tolist()])).all()


def test_older_sessions_weigh_less_with_times() -> None:
    sessions = [[0, 1], [0, 2], [0, 2]]
    new = eq.SLIT(l2=1.0, decay_time=1.0).fit(as_data(sessions, 3, [9e5, 0.0, 0.0]))
    assert new.recommend(session=[0], k=1).items == [[1]]
    same = eq.SLIT(l2=1.0).fit(as_data(sessions, 3, [9e5, 0.0, 0.0]))
    assert same.recommend(session=[0], k=1).items == [[2]]
    day = eq.SLIT(l2=1.0, decay_time=2.0).fit(as_data(sessions[:2], 3, [86400.0, 0.0]))
    first, second = day.system_.right.toarray()[0, 1:]
    assert second / first == pytest.approx(np.exp(-0.5))
    with pytest.raises(DataError, match="decay_time needs times"):
        eq.SLIT(decay_time=1.0).fit(as_data(sessions, 3))


@pytest.mark.parametrize("engine", ["sparse", "dense"])
@pytest.mark.parametrize("name", MODELS)
def test_saved_models_answer_the_same(tmp_path, data, name: str, engine: str) -> None:
    model = MODELS[name](l2=2.0, normalizer=eq.DAN("auto", 0.5)).fit(data, engine=engine)
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert isinstance(again, SessionRegression)
    assert again.settings() == model.settings()
    assert again.normalizer_ == model.normalizer_
    first, second = model.recommend(data, k=6), again.recommend(data, k=6)
    assert first.items == second.items
    np.testing.assert_array_equal(np.concatenate(first.scores), np.concatenate(second.scores))


def test_a_damaged_model_is_not_saved(tmp_path, data: Interactions) -> None:
    model = eq.SLIST(l2=2.0).fit(data, engine="sparse")
    model.system_.diagonal[3] = -1.0
    with pytest.raises(DataError, match="its diagonal is not positive; nothing was changed"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_sessions_are_evaluated_step_by_step() -> None:
    split = eq.split.sessions(drawn(300, 30, seed=5), seed=1)
    model = eq.SLIT(l2=2.0).fit(split.train)
    result = eq.evaluate(model, split.test, k=20, metrics=["recall", "mrr"], bootstrap=0)
    assert not result.exclude_seen
    items = split.test.target.matrix.indices
    lists = model.recommend(split.test.history, k=20).items
    ranks = [
        row.index(want) + 1 if want in row else np.inf
        for row, want in zip(lists, split.train.items[items], strict=True)
    ]
    assert result["recall@20"] == pytest.approx(np.mean(np.isfinite(ranks)))
    assert result["mrr@20"] == pytest.approx(np.mean(1 / np.array(ranks)))


@pytest.mark.parametrize(
    ("family", "wrong", "message"),
    [
        (eq.SLIS, {"l2": -1.0}, "l2 must be >= 0"),
        (eq.SLIS, {"l2": 0.0}, "both be 0"),
        (eq.SLIS, {"dropout": 1.0}, "dropout must lie"),
        (eq.SLIS, {"row_norm": "max"}, "row_norm must be"),
        (eq.SLIS, {"decay_inference": 0.0}, "decay_inference must be > 0"),
        (eq.SLIS, {"repeats": "no"}, "repeats must be"),
        (eq.SLIT, {"decay_position": -1.0}, "decay_position must be > 0"),
        (eq.SLIT, {"direction": "back"}, "direction must be"),
        (eq.SLIST, {"mix": 1.5}, "mix must lie"),
        (eq.SLIST, {"normalizer": 3}, "normalizer must be"),
    ],
)
def test_wrong_settings_are_named(family: type, wrong: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        family(**wrong)


def test_data_without_order_are_refused(toy: Interactions) -> None:
    with pytest.raises(DataError, match="ordered clicks"):
        eq.SLIS().fit(toy)


def test_settings_are_tuned_by_the_next_click() -> None:
    split = eq.split.sessions(drawn(400, 20, seed=8), valid=0.2, test=0.2, seed=0)
    prototype = eq.SLIST(normalizer=eq.DAN(0.2, 0.5))
    grid = {"l2": [0.5, 50.0], "mix": [0.2, 0.8]}
    tuned = eq.tune(prototype, split, metric="mrr@10", grid=grid)
    values = {}
    for l2, mix in itertools.product(grid["l2"], grid["mix"]):
        model = eq.SLIST(normalizer=prototype.normalizer, l2=l2, mix=mix).fit(split.train)
        result = eq.evaluate(model, split.valid, 10, metrics=["mrr"], bootstrap=0)
        values[l2, mix] = result["mrr@10"]
    best = max(values, key=lambda point: values[point])
    assert (tuned.model.l2, tuned.model.mix) == best
    assert tuned.best["mrr@10"] == pytest.approx(values[best])
    assert tuned.model.normalizer == prototype.normalizer


@pytest.mark.parametrize("family", [eq.SLIS, eq.SLIT, eq.SLIST])
def test_automatic_settings_are_the_best_of_the_starts_and_their_steps_on_the_last_sessions(
    family: type[SessionRegression],
) -> None:
    data = drawn(400, 30, seed=5)
    model = family(l2="auto").fit(data)
    last = data.rows(np.arange(360, 400))
    part, past = eq.split.reveal(last), data.rows(np.arange(360))
    names = family()._tunable()

    def measure(settings: dict[str, Any]) -> float:
        one = family(**settings).fit(past)
        return eq.evaluate(one, part, 20, metrics=["mrr"], exclude_seen=False)["mrr@20"]

    chosen = dict(model.chosen_)
    best = measure(chosen)
    starts = [{k: v for k, v in start.items() if k in names} for start in session_choice.STARTS]
    for start, decay in itertools.product(starts, session_choice.DECAYS):
        assert measure({**start, "decay_inference": decay}) <= best
    # all sessions are in the fit, with the settings that were chosen
    same = family(**chosen).fit(data)
    np.testing.assert_array_equal(model.score(last), same.score(last))
    assert model.settings()["l2"] == "auto"
    assert model.settings(resolved=True)["l2"] == chosen["l2"]


@pytest.mark.parametrize(
    "goal",
    [
        {"mix": 1.0, "l2": 30.0, "decay_inference": 32.0},
        {"mix": 0.0, "direction": "part", "decay_inference": 0.5},
        {"mix": 0.5, "dropout": 0.8, "decay_position": 4.0},
    ],
)
def test_automatic_settings_climb_to_the_best_ones(
    goal: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(self: Any, fitted: Any, settings: dict[str, Any], decay: float) -> float:
        point = {**settings, "decay_inference": decay}
        numbers = [name for name in goal if name != "direction"]
        distance = sum(abs(float(goal[name]) - float(point[name])) for name in numbers)
        return -distance - (point["direction"] != goal.get("direction", point["direction"]))

    monkeypatch.setattr(session_choice.Trials, "_mrr", measure)
    monkeypatch.setattr(session_choice, "MOST_FITS", 30)
    model = eq.SLIST(l2="auto").fit(drawn(60, 8))
    assert {name: model.chosen_[name] for name in goal} == goal


def test_automatic_settings_are_bounded_in_fits_and_clicks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []
    real = eq.SLIST._fit

    def counted(self: Any, data: Interactions, options: Any) -> None:
        sizes.append(data._sequences.n_events)
        real(self, data, options)

    monkeypatch.setattr(eq.SLIST, "_fit", counted)
    monkeypatch.setattr(session_choice, "MOST_CLICKS", 500)
    monkeypatch.setattr(session_choice, "MOST_FITS", 7)
    data = drawn(400, 30, seed=5)
    eq.SLIST(l2="auto").fit(data)
    assert len(sizes) == 8  # the automatic fit, which makes the others
    assert sizes[0] == data._sequences.n_events
    assert max(sizes[1:]) <= 500


def test_automatic_settings_predict_a_bounded_number_of_clicks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_choice, "MOST_EVENTS", 20)
    data, model = drawn(400, 30, seed=5), eq.SLIS()
    trials = session_choice.Trials.of(model, data, session_choice.CHOSEN, SolveOptions())
    assert trials.history.n_users == len(trials.target) == 20
    last = data._sequences[399].tolist()
    assert trials.history._sequences[19].tolist() == last[:-1]
    assert trials.target[19, 0] == last[-1]


def test_automatic_settings_survive_saving(tmp_path: Path) -> None:
    data = drawn(200, 20, seed=5)
    model = eq.SLIST(l2="auto").fit(data)
    model.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model")
    assert loaded.chosen_ == model.chosen_
    np.testing.assert_array_equal(loaded.score(data), model.score(data))


def test_automatic_settings_go_by_the_latest_sessions_and_need_some() -> None:
    # the sessions that are latest by their times walk a -> b; all others walk b -> a
    walks = [[0, 1, 2]] * 5 + [[2, 1, 0]] * 45
    times = [100.0 + row for row in range(5)] + [float(row) for row in range(45)]
    model = eq.SLIT(l2="auto").fit(as_data(walks, 3, last_times=times))
    assert model.chosen_.keys() == session_choice.CHOSEN - {"mix"}
    few = eq.SLIST(l2="auto").fit(as_data([[0, 1], [1, 0]], 2))
    assert few.chosen_ == {**session_choice.STARTS[0], "decay_inference": 2.0}


def test_returns_are_not_clicks_in_a_fit_or_a_history() -> None:
    clicks = drawn(40, 8)._sequences
    assert clicks is not None
    last = clicks.offsets[1:] - 1  # the last item of each session is given back in part
    rows = np.concatenate([clicks.rows, np.arange(len(clicks))])
    items = np.concatenate([clicks.items, clicks.items[last]])
    weights = np.concatenate([np.full(clicks.n_events, 2.0), np.full(len(clicks), -1.0)])
    plain, signed = (
        Events.collected(rows[:size], len(clicks), items[:size], weights=weights[:size])
        for size in (clicks.n_events, len(rows))
    )
    ones = drawn(40, 8).matrix
    without, returned = (Interactions(ones, events=events) for events in (plain, signed))
    for model in (eq.SLIST(l2=2.0), eq.VSKNN()):
        expected = model.clone().fit(without)
        with_returns = model.clone().fit(returned)
        assert_array_equal(with_returns.score(returned.users), expected.score(without.users))
        assert_array_equal(with_returns.score(returned), expected.score(without))


def test_the_automatic_choice_is_logged_beside_nearest_neighbours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever fits SLIST must see if a model of nearest neighbours finds more next clicks."""
    with caplog.at_level(logging.INFO, "equipoise"):
        eq.SLIST(l2="auto").fit(drawn(60, 8))
    *_, line = [r.getMessage() for r in caplog.records if "sessions: SLIST" in r.getMessage()]
    assert line.startswith("MRR@20 in the last 6 sessions: SLIST 0.")
    best = max(float(r.args[1]) for r in caplog.records if r.msg == "%s: MRR@20 %.4f")
    assert f"SLIST {best:.4f}, STAN 0." in line
    assert ", VSTAN 0." in line
