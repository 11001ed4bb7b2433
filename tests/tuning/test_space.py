"""What is searched where no grid is given, and beside a solve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.data.split import Split
from equipoise.errors import SettingError
from equipoise.models.saving import model_classes
from equipoise.tuning import PAPER
from equipoise.tuning.space import Space


@pytest.fixture(scope="module")
def visits() -> Split:
    """Sessions that walk around one of two loops of six items."""
    rows = [
        [(session + step) % 6 + 6 * (session % 2) for step in range(3 + session % 3)]
        for session in range(60)
    ]
    dense = np.zeros((len(rows), 12))
    for place, row in enumerate(rows):
        dense[place, row] = 1
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    events = Events(np.concatenate(rows).astype(np.int32), offsets)
    return eq.split.sessions(Interactions(dense, events=events), valid=0.2, test=0.2)


SEARCHED = [
    kind
    for kind in model_classes.values()
    if kind.search_space and not kind._in_ranges and kind.__module__.startswith("equipoise.")
]


@pytest.mark.parametrize("kind", SEARCHED)
def test_every_search_space_is_valid_for_its_model(split: Split, kind: Any) -> None:
    space = Space.of(kind, None, split.train)
    assert space.size == len(space.outer()) > 1
    for point in (space.outer()[0], space.outer()[-1]):
        kind(**point)


@pytest.mark.parametrize("kind", [eq.GFCF, eq.TurboCF, eq.SVDAE, eq.ItemKNN])
def test_small_space_is_tried_completely(split: Split, kind: Any) -> None:
    tuned = eq.tune(kind, split)
    assert tuned.solves == math.prod(map(len, kind.search_space.values()))
    assert isinstance(tuned.model, kind)
    result = eq.evaluate(tuned.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == tuned.trials["ndcg@20"].max()


@pytest.mark.parametrize("kind", [eq.BSPM, eq.SGFCF])
def test_large_space_is_searched(synthetic: Interactions, kind: Any) -> None:
    pytest.importorskip("optuna")
    # SGFCF ranks only users it was fitted on
    split = eq.split.weak(synthetic, valid=0.2, test=0.2)
    tuned = eq.tune(kind, split, trials=14)
    again = eq.tune(kind, split, trials=14)
    assert tuned.solves == 14
    names = list(kind.search_space)
    assert tuned.trials.select(names).unique().height == 14
    assert again.trials.equals(tuned.trials)
    for name, listed in kind.search_space.items():
        assert set(tuned.trials[name]) <= set(listed)


@pytest.mark.parametrize(("kind", "size"), [(eq.SLIS, 45), (eq.SLIT, 60), (eq.SLIST, 225)])
def test_session_models_are_tuned_on_sessions(visits: Split, kind: Any, size: int) -> None:
    assert math.prod(map(len, kind.search_space.values())) == size
    tuned = eq.tune(kind, visits, metric="mrr@3", objectives=(), trials=6)
    assert tuned.solves == 6
    result = eq.evaluate(tuned.model, visits.valid, k=3, bootstrap=0)
    assert result["mrr@3"] == tuned.best["mrr@3"] == tuned.trials["mrr@3"].max()


def test_companion_is_searched_beside_the_solve(split: Split) -> None:
    model = eq.EASE(normalizer=eq.DAN(), lowpass=eq.LowPass(rank=5, strength=0.2))
    tuned = eq.tune(model, split, trials=2)
    assert tuned.solves == 2
    assert tuned.trials.height == 2 * 6 * 4 * 2
    assert tuned.model.lowpass.rank == 5
    assert tuned.model.lowpass.strength == tuned.best["strength"]
    result = eq.evaluate(tuned.model, split.valid, bootstrap=0)
    assert result["ndcg@20"] == tuned.best["ndcg@20"]


def test_companion_of_a_grid_equals_separate_fits(split: Split) -> None:
    model = eq.LAE(l2=5.0, dropout=0.2, lowpass=eq.LowPass(rank=4, strength=0.2))
    tuned = eq.tune(model, split, grid={"strength": [0.0, 0.3], "exponent": [0.1, 0.5], "l2": 5.0})
    assert tuned.solves == 1
    assert tuned.trials.height == 4
    for row in tuned.trials.iter_rows(named=True):
        lowpass = eq.LowPass(rank=4, strength=row["strength"], exponent=row["exponent"])
        alone = eq.LAE(l2=5.0, dropout=0.2, lowpass=lowpass).fit(split.train)
        assert eq.evaluate(alone, split.valid, bootstrap=0)["ndcg@20"] == row["ndcg@20"]


def test_sessions_are_tuned_in_the_precision_asked_for(visits: Split) -> None:
    grid = {"l2": [1.0]}
    tuned = eq.tune(eq.SLIS, visits, grid=grid, objectives=(), dtype="float64", memory="1GB")
    assert tuned.model.dtype_ == "float64"


def test_a_grid_takes_arrays_of_numbers(split: Split, tmp_path: Path) -> None:
    grid = {"neighbours": np.array([3, 5])}
    tuned = eq.tune(eq.ItemKNN, split, grid=grid, storage=tmp_path / "search.jsonl")
    assert tuned.trials["neighbours"].to_list() == [3, 5]


def test_paper_grid_has_its_size() -> None:
    assert {name: len(values) for name, values in PAPER.items()} == {
        **{"alpha": 6, "beta": 11, "l2": 5, "dropout": 5}
    }


@pytest.mark.parametrize("kind", [eq.SLIS, eq.SLIT, eq.SLIST])
def test_one_fit_of_a_session_model_serves_every_alpha_and_decay_of_the_past(
    visits: Split, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[Any] = []
    real = kind._fit
    monkeypatch.setattr(
        kind, "_fit", lambda *args, **options: (fits.append(args), real(*args, **options))
    )
    grid = {"decay_inference": [0.5, 2.0, None], "alpha": [0.0, 0.3], "l2": [2.0]}
    model = kind(normalizer=eq.DAN(0.1, 0.4))
    tuned = eq.tune(model, visits, metric="mrr@3", objectives=(), grid=grid)
    assert tuned.solves == 1
    assert len(fits) == 2  # the search, and the model that is returned
    rows = tuned.trials.to_dicts()
    assert len(rows) == 6
    for row in rows:
        options = {"l2": 2.0, "decay_inference": row["decay_inference"]}
        alone = kind(normalizer=eq.DAN(row["alpha"], 0.4), **options).fit(visits.train)
        result = eq.evaluate(alone, visits.valid, k=3, bootstrap=0)
        assert result["mrr@3"] == row["mrr@3"]  # the same sums bit for bit


def test_session_models_are_not_tuned_by_leave_one_out(visits: Split) -> None:
    remedy = r"eq.split.sessions\(data\), or fit SLIST\(l2='auto'\)"
    with pytest.raises(SettingError, match=f"SLIST is tuned on a split; make one with {remedy}"):
        eq.tune(eq.SLIST, visits.train)
    with pytest.raises(SettingError, match=r"make one with eq.split.sessions\(data\)$"):
        eq.tune(eq.STAN, visits.train)


def test_a_session_model_does_not_reuse_another_kind_of_fit(visits: Split) -> None:
    fitted = eq.SLIST(l2=2.0, normalizer=eq.DAN(0.1, 0.4)).fit(visits.train)
    reused = eq.SLIST(l2=2.0, decay_inference=9.0, normalizer=eq.DAN(0.3, 0.4)).reuse(fitted)
    assert reused.system_ is fitted.system_
    for other in (
        eq.SLIST(l2=3.0, normalizer=eq.DAN(0.1, 0.4)),
        eq.SLIST(l2=2.0, normalizer=eq.DAN(0.1, 0.5)),
        eq.SLIST(l2=2.0, mix=0.3, normalizer=eq.DAN(0.1, 0.4)),
        eq.SLIT(l2=2.0, normalizer=eq.DAN(0.1, 0.4)),
    ):
        with pytest.raises(SettingError, match="reuse needs the same model"):
            other.reuse(fitted)
    with pytest.raises(SettingError, match="VSKNN cannot reuse the fit of another model"):
        eq.VSKNN().reuse(fitted)


def test_neural_models_stop_on_the_valid_part_of_a_search(split: Split) -> None:
    pytest.importorskip("torch")
    model = eq.MultVAE(epochs=3, evaluate_every=1)
    tuned = eq.tune(model, split, grid={"dropout": [0.5]}, objectives=())
    seen = [entry["ndcg"] for entry in tuned.model.history_]
    assert None not in seen
    assert tuned.best["ndcg@20"] == pytest.approx(max(seen), abs=2e-3)
