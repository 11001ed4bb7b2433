"""Values of a wrong kind are refused by name, with what was given; no error comes from inside."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.errors import EquipoiseError
from equipoise.report import case_study, collect

# an exponent of 10^30 is a number, and the scores say what comes of it
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|divide|invalid).*:RuntimeWarning")

WRONG: list[Any] = [
    1.5,
    True,
    "3",
    None,
    -1,
    [],
    {},
    object(),
    float("nan"),
    10**30,
    b"x",
    [None],
    ("a", 2),
    np.array([1.0]),
]


@pytest.fixture(autouse=True)
def in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the values are valid paths, where files are written."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def data() -> eq.Interactions:
    X = np.random.default_rng(0).random((20, 9)) < 0.4
    X[:, :2] = True
    return eq.Interactions(X)


@pytest.fixture(scope="module")
def timed() -> eq.Interactions:
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"i{item}", 1.0, float(rng.integers(0, 999)))
        for user in range(12)
        for item in rng.choice(8, 4, replace=False)
    ]
    return eq.read(rows)


@pytest.fixture(scope="module")
def model(data: eq.Interactions) -> eq.EASE:
    return eq.EASE(l2=2.0).fit(data)


def assert_ours(function: Callable[..., Any], skipped: set[str], **settings: Any) -> None:
    """Every parameter takes each wrong value, or refuses it with an error of this package."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name in skipped or parameter.kind is parameter.VAR_KEYWORD:
            continue
        for value in WRONG:
            try:
                function(**{**settings, name: value})
            except EquipoiseError:
                continue
            except Exception as error:
                pytest.fail(f"{function.__name__}({name}={value!r}): {error!r}")


def test_queries_of_a_model(model: eq.EASE, data: eq.Interactions, tmp_path: Path) -> None:
    file = tmp_path / "lists.csv"
    assert_ours(model.recommend, set(), users_or_histories=[1, 2])
    assert_ours(model.recommend_to, set(), path=file, users_or_histories=[1, 2])
    assert_ours(model.similar, set(), items=[1, 2])
    assert_ours(model.similar_to, set(), path=file, items=[1, 2])
    assert_ours(model.score, set(), histories=[1, 2])
    assert_ours(model.explain, set(), history=[1, 2], item=3)
    assert_ours(model.rank, {"history"}, history=data, k=3)
    assert_ours(model.prune, set(), keep=3)
    assert_ours(copy.copy(model).update, set())
    assert_ours(model.save, set(), path=tmp_path / "model")
    assert_ours(eq.load, {"verify"}, path=tmp_path / "model")


@pytest.mark.parametrize("value", [1.5, True, "3", None, 0, -1, float("inf")])
def test_the_length_of_lists_is_a_whole_number(
    model: eq.EASE, data: eq.Interactions, tmp_path: Path, value: Any
) -> None:
    split = eq.split.strong(data, valid=0, test=0.2)
    calls: list[Callable[[], Any]] = [
        lambda: model.recommend([1], value),
        lambda: model.recommend([1], value, rules=eq.Rules(pin=[3, 99])),
        lambda: model.recommend_to(tmp_path / "lists.csv", [1], value),
        lambda: model.similar(1, value),
        lambda: model.similar_to(tmp_path / "lists.csv", [1], value),
        lambda: model.rank(data, value),
        lambda: eq.evaluate(model, split.test, value),
        lambda: eq.evaluate(model, split.test, [3, value]),
        lambda: eq.leave_one_out(model, k=value),
        lambda: case_study(data, 1, value),
        lambda: collect(data, k=value),
    ]
    for call in calls:
        with pytest.raises(eq.SettingError, match="k must be a whole number >= 1, got"):
            call()


@pytest.mark.parametrize("value", [1.5, True, "a", 0, [], 10**30])
def test_threads_are_a_whole_number(model: eq.EASE, data: eq.Interactions, value: Any) -> None:
    split = eq.split.strong(data, valid=0.2, test=0.2)
    calls: list[Callable[[], Any]] = [
        lambda: eq.EASE(l2=2.0).fit(data, threads=value),
        lambda: model.recommend([1], threads=value),
        lambda: eq.evaluate(model, split.test, threads=value),
        lambda: eq.leave_one_out(model, threads=value),
        lambda: eq.tune(eq.EASE, split, grid={"l2": [1.0]}, threads=value),
    ]
    for call in calls:
        with pytest.raises(eq.SettingError, match="threads must be a whole number"):
            call()


def test_evaluating_and_comparing(model: eq.EASE, data: eq.Interactions) -> None:
    split = eq.split.strong(data, valid=0, test=0.2)
    lists = model.recommend(split.test.history, k=5).to_frame()
    long = {"bootstrap"}  # 10^30 of them take their time
    options: dict[str, Any] = {"part": split.test, "k": 3, "bootstrap": 3}
    assert_ours(eq.evaluate, long, model=model, **options)
    assert_ours(eq.evaluate, long, model=lists, **options)
    assert_ours(eq.leave_one_out, long, model=model, users=9, k=3, bootstrap=3)
    first = eq.evaluate(model, **options)
    second = eq.evaluate(eq.Popularity().fit(split.train), **options)
    assert_ours(eq.compare, {"resamples"}, results=[first, second], metric="ndcg@3", resamples=9)
    assert_ours(first.interval, set(), name="ndcg@3")
    assert_ours(first.slices, set(), metric="ndcg", k=3)
    assert_ours(eq.describe, set(), interactions=data)
    assert_ours(eq.plan, set(), n_users=9, n_items=9, n_interactions=9)


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame(),
        pl.DataFrame({"a": [1]}),
        pl.DataFrame({"user": [1], "item": [2]}),
        pl.DataFrame({"user": [1], "item": [[2]], "rank": [1]}),
        pl.DataFrame({"user": [{"a": 1}], "item": [2], "rank": [1]}),
        pl.DataFrame({"user": [], "item": [], "rank": []}),
        pl.DataFrame({"user": [1], "item": [2], "rank": [[1]]}),
    ],
)
def test_frames_without_lists(data: eq.Interactions, frame: pl.DataFrame) -> None:
    split = eq.split.strong(data, valid=0, test=0.2)
    with pytest.raises(EquipoiseError):
        eq.evaluate(frame, split.test)


def test_making_data(timed: eq.Interactions, data: eq.Interactions) -> None:
    assert_ours(eq.Interactions, set(), matrix=np.ones((2, 3)))
    for method in (timed.union, timed.difference):
        assert_ours(method, {"replace"})
    for method in (timed.entries, timed.rows):
        assert_ours(method, set())
    assert_ours(eq.split.strong, set(), data=data)
    assert_ours(eq.split.weak, set(), data=data)
    assert_ours(eq.split.folds, set(), data=data)
    assert_ours(eq.split.time_cut, set(), data=timed)
    assert_ours(eq.split.leave_last_out, set(), data=timed)
    assert_ours(eq.split.sessions, set(), data=timed)
    assert_ours(eq.split.reveal, set(), data=timed)
    assert_ours(eq.datasets.info, set())
    assert_ours(eq.Client, set(), url="http://127.0.0.1:1")


def test_settings_of_models(data: eq.Interactions, timed: eq.Interactions) -> None:
    makers: list[type[Any]] = [eq.EASE, eq.RLAE, eq.GFCF, eq.TurboCF, eq.ItemKNN, eq.BSPM]
    for kind in makers:
        for name in inspect.signature(kind).parameters:
            for value in WRONG:
                try:
                    kind(**{name: value}).fit(data).recommend([1])
                except EquipoiseError:
                    continue
    for name in inspect.signature(eq.Signals).parameters:
        for value in WRONG:
            try:
                eq.EASE(l2=1.0, signals=eq.Signals(**{name: value})).fit(timed)
            except EquipoiseError:
                continue
    for name in inspect.signature(eq.Trend).parameters:
        for value in WRONG:
            try:
                eq.EASE(l2=1.0, trend=eq.Trend(**{name: value})).fit(timed).recommend([1])
            except EquipoiseError:
                continue


def test_backtests(timed: eq.Interactions) -> None:
    options: dict[str, Any] = {"folds": 1, "bootstrap": 0, "yardsticks": False}
    assert_ours(eq.backtest, {"bootstrap"}, model=eq.EASE(l2=2.0), data=timed, **options)
    tested = eq.backtest(eq.EASE(l2=2.0), timed, **options)
    assert_ours(tested.value, set())
    assert_ours(tested.error, set())


def test_fitting_and_tuning(data: eq.Interactions) -> None:
    assert_ours(eq.EASE(l2=2.0).fit, set(), interactions=data)
    assert_ours(eq.GFCF(n_factors=4).fit, set(), interactions=data)
    split = eq.split.strong(data, valid=0.2, test=0.2)
    grid = {"l2": [1.0]}
    names = ("metric", "objectives", "storage", "seed", "scratch", "progress", "users", "refit")
    skipped = set(inspect.signature(eq.tune).parameters) - set(names)
    assert_ours(eq.tune, skipped, model=eq.EASE, split=split, grid=grid)


def test_rules_and_what_they_do(model: eq.EASE) -> None:
    for name in inspect.signature(eq.Rules).parameters:
        for value in WRONG:
            try:
                rules = eq.Rules(**{name: value})
                model.recommend([1], rules=rules)
                rules.settings()
                rules.to_toml()
            except EquipoiseError:
                continue
