"""V-SkNN: its formula, written click by click, and how neighbours are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models.sessions import as_data, drawn
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError


def by_definition(data: Interactions, session: list[int], model: eq.VSKNN) -> np.ndarray:
    """Scores of one session from the definition; the rows of the data go from old to new."""
    weight = {item: (place + 1) / len(session) for place, item in enumerate(session)}
    late_first = sorted(weight, key=lambda item: -weight[item])
    past = [set(data.sequences[row].tolist()) for row in range(data.n_users)]
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
    sessions = [queries.sequences[row].tolist() for row in range(queries.n_users)]
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
