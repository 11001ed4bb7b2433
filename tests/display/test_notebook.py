"""In a notebook objects show tables and drawings, whose text is never markup."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.display import notebook
from equipoise.runtime import machine

EVIL = '<script>alert("&")</script>'
VOID = {"br", "hr", "img"}


class Shown(HTMLParser):
    """Tags and text of a fragment; unbalanced tags fail."""

    def __init__(self, shown_object: Any) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.hints: list[str] = []
        self.feed(shown_object._repr_html_())
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in VOID else [tag]
        self.hints += [value or "" for name, value in attrs if name == "title"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def data() -> eq.Interactions:
    draws = np.random.default_rng(0).random((120, 15)) < np.linspace(0.6, 0.1, 15)
    labels = pl.DataFrame({"title": [f"{EVIL} {item}" for item in range(15)]})
    return eq.Interactions(draws, users=[f"{EVIL}{u}" for u in range(120)], catalogue=labels)


@pytest.fixture(scope="module")
def split(data: eq.Interactions) -> eq.Split:
    return eq.split.strong(data, valid=0.2, test=0.3, seed=0)


@pytest.fixture(scope="module")
def results(split: eq.Split) -> list[eq.Result]:
    models = {"one": eq.Popularity(), EVIL: eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.2))}
    return [
        eq.evaluate(model.fit(split.train), split.test, k=(3, 5), bootstrap=50, name=name)
        for name, model in models.items()
    ]


@pytest.fixture(scope="module")
def tuned(split: eq.Split) -> eq.Tuned:
    grid = {"l2": [2.0, 20.0], "alpha": [0.0, 0.4]}
    return eq.tune(
        eq.EASE, split, grid=grid, metric="ndcg@5", objectives=["tail_ndcg@5"], early_stop=False
    )


def test_nothing_from_outside_becomes_markup(
    data: eq.Interactions, split: eq.Split, results: list[eq.Result], tuned: eq.Tuned
) -> None:
    model = eq.EASE(l2=5.0).fit(data)
    users = data.users[:2].tolist()
    comparison = eq.compare(results, "ndcg@5", resamples=50)
    named = eq.read([("ann", EVIL), ("ann", "tea"), ("bob", EVIL), ("bob", "tea")])
    explained = eq.EASE(l2=1.0).fit(named).explain(["tea"], EVIL)
    lists = model.recommend(users, k=3, reasons=1)
    for shown_object in (data, split, *results, comparison, lists, explained, tuned):
        assert "script" not in Shown(shown_object).tags
    for shown_object in (data, results[1], comparison, lists, explained):
        assert EVIL in Shown(shown_object).text


def test_a_split_shows_its_parts(split: eq.Split) -> None:
    shown = Shown(split)
    for part in split.parts:
        assert f"{part.target.n_interactions:,}" in shown.text
    assert f"{split.train.n_interactions:,}" in shown.text
    assert {"table", "svg"} <= set(shown.tags)


def test_a_result_shows_every_number_and_a_drawing(results: list[eq.Result]) -> None:
    shown = Shown(results[0])
    for name in ("ndcg@5", "tail_ndcg@3", "coverage@5"):
        assert f"{results[0][name]:.4f}" in shown.text
    assert shown.tags.count("circle") == len(results[0].slices("ndcg", 5))
    assert "95% bootstrap intervals" in shown.text


def test_a_result_without_ndcg_shows_its_table_alone(split: eq.Split) -> None:
    model = eq.Popularity().fit(split.train)
    result = eq.evaluate(model, split.test, k=3, metrics=["recall"], bootstrap=0)
    assert "svg" not in Shown(result).tags
    assert f"{result['recall@3']:.4f}" in Shown(result).text


def test_a_comparison_draws_its_differences(results: list[eq.Result]) -> None:
    comparison = eq.compare(results, "ndcg@5", resamples=50)
    shown = Shown(comparison)
    assert f"{comparison.table['difference'][0]:+.4f}" in shown.text
    assert shown.tags.count("circle") == 1


def test_recommendations_show_titles_with_ids_behind_them(data: eq.Interactions) -> None:
    lists = eq.EASE(l2=5.0).fit(data).recommend(data.users.tolist(), k=12, exclude_seen=False)
    shown = Shown(lists)
    assert lists.titles is not None
    assert lists.titles[0][0] in shown.text
    assert shown.hints[0].startswith(f"{lists.items[0][0]}, score ")
    assert shown.tags.count("tr") == 11
    assert "110 more lists" in shown.text
    assert "ranks after 10 are left out" in shown.text


def test_popular_items_say_so_and_have_no_score(data: eq.Interactions) -> None:
    shown = Shown(eq.EASE(l2=5.0).fit(data).recommend([[]], k=2))
    assert "(popular)" in shown.text
    assert not any("score" in hint for hint in shown.hints)


def test_a_search_shows_its_choice_and_its_frontier(tuned: eq.Tuned) -> None:
    shown = Shown(tuned)
    assert shown.tags.count("tr") == 2 + len(tuned.best) + tuned.frontier.height
    for value in tuned.frontier["tail_ndcg@5"]:
        assert f"{value:.4g}" in shown.text
    assert tuned.model.summary() in shown.text
    assert f"{tuned.best['ndcg@5']:.4f}" in shown.text
    assert "4 settings from 2 solves" in shown.text


def test_styles_of_a_drawing_stay_inside_it(results: list[eq.Result]) -> None:
    style = re.search(r"<style>(.*?)</style>", results[0]._repr_html_())
    assert style is not None
    rules = re.findall(r"([^{}]+)\{", style[1])
    assert all(name.startswith(".equipoise") for rule in rules for name in rule.split(","))


def test_an_explanation_has_titles_with_ids_behind_them(data: eq.Interactions) -> None:
    model = eq.EASE(l2=5, dropout=0).fit(data)
    history, item = data.items[:2].tolist(), data.items[3]
    shown = model.explain(history, item)
    names = dict(zip(data.items.tolist(), data.catalogue.to_series(0), strict=True))  # type: ignore[union-attr]
    assert shown.title == names[item]
    page = shown._repr_html_()
    for item in history:
        assert f'title="{item}"' in page


def test_similar_items_are_titled_with_what_they_are_like(data: eq.Interactions) -> None:
    model = eq.EASE(l2=5, dropout=0).fit(data)
    similar = model.similar(data.items[:2].tolist(), k=3)
    titles = data.catalogue.to_series(0)[:2].to_list()  # type: ignore[union-attr]
    assert similar.names == titles
    assert ">item</th>" in similar._repr_html_()
    assert model.recommend([[0]], k=3).names is None


def test_a_progress_line_is_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    line = eq.ProgressLine("ranking")
    line(1, 4)
    line(2, 4)  # too soon after the first to be shown
    line(4, 4)
    shown = capsys.readouterr().err
    assert shown.count("\r") == 2
    assert shown.endswith("\n")
    assert "ranking █████░░░░░░░░░░░░░░░ 1 of 4" in shown
    assert "4 of 4" in shown
    line(2, 2)  # the next work
    assert "2 of 2" in capsys.readouterr().err


def test_every_progress_of_the_library_takes_the_line(
    split: eq.Split, capsys: pytest.CaptureFixture[str]
) -> None:
    eq.tune(eq.EASE, split, grid={"l2": [5, 50]}, progress=eq.ProgressLine("tuning"))
    shown = capsys.readouterr().err
    assert "2 of 2" in shown
    assert ", best 0." in shown
    model = eq.EASE(l2=5, dropout=0).fit(split.train, engine="tiled", progress=eq.ProgressLine())
    eq.evaluate(model, split.test, progress=eq.ProgressLine("ranking"))
    n_users = split.test.history.n_users
    assert f"{n_users} of {n_users}" in capsys.readouterr().err


def test_in_a_notebook_one_output_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[tuple[str, str]] = []

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Any:
        shown.append(("new", data["text/html"]))
        return SimpleNamespace(update=lambda data, raw: shown.append(("same", data["text/html"])))

    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    line = eq.ProgressLine("<b>")
    for done in range(1, 4):
        line(done, 3)
    line(1, 1)
    assert [kind for kind, _ in shown] == ["new", "same", "new"]
    assert all("&lt;b&gt;" in text for _, text in shown)
    assert capsys.readouterr().err == ""


def test_time_left_is_told_by_the_steps_after_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = {0: 0.0, 1: 100.0, 2: 102.0, 4: 106.0, 5: 108.0}
    clock = SimpleNamespace(perf_counter=iter(ends.values()).__next__)
    monkeypatch.setattr(machine, "time", clock)
    monkeypatch.setattr(notebook, "PAUSE", 0.0)
    line = eq.ProgressLine()
    for done in ends:
        line(done, 5)
        shown = capsys.readouterr().err
        left = {2: "about 6.0 s left", 4: "about 2.0 s left"}.get(done)
        assert left in shown if left else "left" not in shown


def test_a_search_tells_no_time_left_after_one_solve(split: eq.Split) -> None:
    seen: list[Any] = []
    eq.tune(eq.EASE, split, grid={"l2": [5, 50, 500]}, progress=seen.append)
    assert [state.left is None for state in seen] == [True, False, False]


def test_plans_statistics_and_models_are_tables() -> None:
    data = eq.Interactions(np.random.default_rng(0).random((40, 8)) < 0.4)
    plan, statistics = eq.plan(data)._repr_html_(), eq.describe(data)._repr_html_()
    assert "dense" in plan
    assert "fits" in plan
    assert plan.count("<tr>") >= 6
    assert "homophily" in statistics
    assert f"{data.n_users:,}" in statistics
    model = eq.EASE(l2=20.0, normalizer=eq.DAN(0.2, 0.3))
    assert "no data yet" in model._repr_html_()
    fitted = model.fit(data)._repr_html_()
    assert "DAN(alpha=0.2, beta=0.3)" in fitted
    assert "40 users" in fitted


def test_text_is_aligned_to_the_left_and_numbers_to_the_right() -> None:
    html = notebook.table(["item", "score"], [["tea", 0.5]])
    assert html.count("text-align:left") == 2
    assert html.count("text-align:right") == 2
