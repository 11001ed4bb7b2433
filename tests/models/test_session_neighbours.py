"""V-SkNN, STAN and V-STAN: their formulas, click by click, and how neighbours are chosen."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tests.models.sessions import as_data, drawn
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, SettingError


def by_definition(data: Interactions, session: list[int], model: eq.VSKNN) -> np.ndarray:
    """Scores of one session from the definition; the rows of the data go from old to new."""
    weight = {item: (place + 1) / len(session) for place, item in enumerate(session)}
    late_first = sorted(weight, key=lambda item: -weight[item])
    past = [set(data._sequences[row].tolist()) for row in range(data.n_users)]
    sharing = [row for row in range(data.n_users) if past[row] & weight.keys()]
    similar = {
        row: sum(weight[item] for item in sorted(past[row] & weight.keys()))
        for row in sharing[-model.sample :]
    }
    # similarities that are equal but for rounding are equal
    nearest = sorted(similar, key=lambda row: (-round(similar[row], 6), -row))
    scores = np.zeros(data.n_items)
    for row in nearest[: model.neighbours]:
        ago = min(place for place, item in enumerate(late_first, 1) if item in past[row])
        scores[list(past[row])] += similar[row] / (ago if model.last_match else 1)
    return scores


@pytest.mark.parametrize("last_match", [False, True])
@pytest.mark.parametrize(("neighbours", "sample"), [(5, 20), (30, 60), (1000, 5000)])
def test_scores_are_those_of_the_definition(
    neighbours: int, sample: int, last_match: bool
) -> None:
    data, queries = drawn(150, 20, seed=3), drawn(25, 20, seed=8)
    model = eq.VSKNN(neighbours=neighbours, sample=sample, last_match=last_match).fit(data)
    sessions = [queries._sequences[row].tolist() for row in range(queries.n_users)]
    expected = [by_definition(data, session, model) for session in sessions]
    assert_close(model.score(sessions), expected, "float32")


def test_a_session_worked_by_hand() -> None:
    # a b: b weighs 1 and a 1/2; the sessions are (a c), (b c) and (a b d)
    model = eq.VSKNN().fit(as_data([[0, 2], [1, 2], [0, 1, 3], [2, 3]], 4))
    assert model.score([[0, 1]])[0].tolist() == [0.5 + 1.5, 1 + 1.5, 0.5 + 1, 1.5]
    # the click on a that counts is the later one
    assert model.score([[0, 1, 0, 0]])[0].tolist() == [1 + 1.5, 0.5 + 1.5, 1 + 0.5, 1.5]
    by_match = eq.VSKNN(last_match=True).fit(model.interactions_)
    assert by_match.score([[0, 1]])[0].tolist() == [0.25 + 1.5, 1 + 1.5, 0.25 + 1, 1.5]


def test_later_sessions_are_preferred_by_their_times_or_their_order() -> None:
    sessions = [[0, 1], [0, 2], [0, 3]]
    latest = eq.VSKNN(neighbours=1).fit(as_data(sessions, 4))
    assert latest.recommend(session=[0], k=1, exclude_seen=True).items == [[3]]
    timed = eq.VSKNN(neighbours=1).fit(as_data(sessions, 4, last_times=[30.0, 10.0, 20.0]))
    assert timed.recommend(session=[0], k=1, exclude_seen=True).items == [[1]]
    sampled = eq.VSKNN(sample=2).fit(as_data(sessions, 4, last_times=[30.0, 10.0, 20.0]))
    assert sampled.score([[0]])[0].tolist() == [2.0, 1.0, 0.0, 1.0]


def test_it_is_tuned_and_evaluated_like_any_session_model() -> None:
    split = eq.split.sessions(drawn(200, 25, seed=1), valid=0.2, test=0.2)
    grid = {"neighbours": [5, 50], "last_match": [False, True]}
    tuned = eq.tune(eq.VSKNN, split, metric="mrr@5", objectives=(), grid=grid)
    assert tuned.solves == 4
    assert eq.evaluate(tuned.model, split.valid, k=5)["mrr@5"] == tuned.best["mrr@5"]


@pytest.mark.parametrize("wrong", [{"neighbours": 0}, {"sample": 1.5}, {"last_match": 1}])
def test_wrong_settings_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        eq.VSKNN(**wrong)


def stan_by_definition(data: Interactions, session: list[int], model: eq.STAN) -> np.ndarray:
    """Scores of STAN or V-STAN from the definition; the rows of the data go from old to new."""

    def fall(distance: int, decay: float | None) -> float:
        return 1.0 if decay is None else math.exp(-distance / decay)

    last = {item: place for place, item in enumerate(session)}
    past = [data._sequences[row].tolist() for row in range(data.n_users)]
    places = [{item: place for place, item in enumerate(clicks)} for clicks in past]
    sharing = [row for row in range(data.n_users) if last.keys() & places[row].keys()]
    similar = {}
    for row in sharing[-model.sample :]:
        ages = [len(session) - 1 - last[item] for item in last.keys() & places[row].keys()]
        total = sum(fall(age, model.decay_inference) for age in sorted(ages))
        similar[row] = total / math.sqrt(len(places[row]))
    nearest = sorted(similar, key=lambda row: (-round(similar[row], 9), -row))
    n_sessions = [sum(item in clicks for clicks in places) for item in range(data.n_items)]
    scores = np.zeros(data.n_items)
    for row in nearest[: model.neighbours]:
        match = max(last.keys() & places[row].keys(), key=last.__getitem__)
        for item, place in places[row].items():
            vote = similar[row] * fall(abs(place - places[row][match]), model.decay_position)
            if isinstance(model, eq.VSTAN):
                vote *= fall(len(session) - 1 - last[match], model.decay_match)
                vote *= 1 + model.idf * math.log(data.n_users / n_sessions[item])
            scores[item] += vote
    return scores


@pytest.mark.parametrize(
    "model",
    [
        eq.STAN(neighbours=30, sample=60, decay_inference=1.5, decay_position=0.7),
        eq.STAN(neighbours=5, sample=1000, decay_inference=None, decay_position=None),
        eq.VSTAN(neighbours=20, sample=40, decay_match=2.0, idf=3.0),
        eq.VSTAN(neighbours=1000, decay_match=None, idf=0.0),
    ],
    ids=["STAN", "STAN without decays", "V-STAN", "V-STAN as STAN"],
)
def test_scores_of_stan_are_those_of_the_definition(model: eq.STAN) -> None:
    data, queries = drawn(150, 20, seed=3), drawn(25, 20, seed=8)
    fitted = model.clone().fit(data)
    sessions = [queries._sequences[row].tolist() for row in range(queries.n_users)]
    expected = [stan_by_definition(data, session, model) for session in sessions]
    assert_close(fitted.score(sessions), expected, "float32")


def test_stan_worked_by_hand() -> None:
    # a b: b weighs 1 and a exp(-1); the sessions are (a c d) and (b c)
    data = as_data([[0, 2, 3], [1, 2]], 4)
    e, similar = math.exp(-1), (math.exp(-1) / 3**0.5, 1 / 2**0.5)
    expected = [similar[0], similar[1], e * sum(similar), e * e * similar[0]]
    assert_close(eq.STAN().fit(data).score([[0, 1]])[0], expected, "float32")
    # idf: c is in all sessions, the others in one of two; the match of the first is a, one ago
    weights = [e * (1 + math.log(2)), 1 + math.log(2), 1, e * (1 + math.log(2))]
    expected[2] = e * (e * similar[0] + similar[1])
    model = eq.VSTAN().fit(data)
    assert_close(model.score([[0, 1]])[0], np.multiply(expected, weights), "float32")


def test_old_sessions_count_less_for_stan() -> None:
    day = 86400.0
    data = as_data([[0, 1], [0, 2]], 3, last_times=[3 * day, 0.0])
    scores = eq.STAN(decay_time=1.5).fit(data).score([[0]])[0]
    assert_close(scores[2], scores[1] * math.exp(-2), "float32")
    equal = eq.STAN().fit(data).score([[0]])[0]
    assert equal[1] == equal[2]
    with pytest.raises(DataError, match="decay_time needs times"):
        eq.STAN(decay_time=1.0).fit(as_data([[0, 1]], 2))


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        (eq.STAN, {"decay_inference": 0}),
        (eq.STAN, {"decay_time": -1.0}),
        (eq.STAN, {"neighbours": 0}),
        (eq.VSTAN, {"decay_match": 0.0}),
        (eq.VSTAN, {"idf": -1}),
    ],
)
def test_wrong_settings_of_stan_are_named(family: type, wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        family(**wrong)


@pytest.mark.parametrize(("family", "points"), [(eq.STAN, 32), (eq.VSTAN, 64)])
def test_stan_is_tuned_and_saved(family: type, points: int, tmp_path: Path) -> None:
    assert math.prod(map(len, family.search_space.values())) == points
    split = eq.split.sessions(drawn(100, 25, seed=1), valid=0.2, test=0.2)
    grid = {"neighbours": [5, 50], "decay_position": [1.0, None]}
    tuned = eq.tune(family, split, metric="mrr@5", objectives=(), grid=grid)
    assert tuned.solves == 4
    tuned.model.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model")
    assert loaded.settings() == tuned.model.settings()
    assert_array_equal(loaded.score(split.valid.history), tuned.model.score(split.valid.history))
