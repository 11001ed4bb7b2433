"""The page in a real browser: no complaints, working controls, a telephone's width, the dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Browser

from equipoise.data.interactions import Interactions
from equipoise.report import case_study, write_case_study

RIGHT = ("ArrowRight", 39)
HOME = ("Home", 36)
TAB = ("Tab", 9)
LISTS = "[...document.querySelectorAll('[data-user]')].map(list => list.innerText).join('|')"
READING = "document.querySelector('[data-reading]').textContent"


def test_the_page_runs_without_complaint_or_request(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.title") == "Report on <b>Shop</b>"
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
    assert browser.run("typeof window.hacked") == "undefined"


def test_the_slider_is_moved_by_keys_and_changes_everything(
    browser: Browser, page: Path, facts: dict[str, Any]
) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('.dial:not([hidden])').length") == 2
    before = browser.run(LISTS)
    browser.run("document.getElementById('dial-1').focus()")
    browser.press(*HOME)
    assert browser.run(READING).startswith("alpha 0.00: NDCG@10")
    for _ in facts["dial"]["rows"]:
        browser.press(*RIGHT)
    last = facts["dial"]["rows"][-1]
    assert browser.run(READING).startswith(
        f"alpha {last['alpha']:.2f}: NDCG@10 {last['ndcg']:.4f}"
    )
    spoken = "document.getElementById('dial-2').getAttribute('aria-valuetext')"
    assert browser.run(spoken) == browser.run(READING)
    assert browser.run("document.querySelector('tr.now th').textContent") == "0.50"
    assert browser.run("document.querySelectorAll('svg .now').length") == 2
    assert browser.run("document.querySelector('[data-own]').hidden") is True
    after = browser.run(LISTS)
    assert after != before
    for user in facts["users"]:
        for row in user["lists"][-1]:
            assert row["title"].split()[0] in after
    assert browser.complaints == []
    assert browser.run("typeof window.hacked") == "undefined"


def test_the_script_draws_the_lists_that_the_page_came_with(browser: Browser, page: Path) -> None:
    browser.scripts(False)
    try:
        browser.open(page)
        still = browser.run(LISTS)
        assert browser.run("document.querySelectorAll('.dial[hidden]').length") == 2
        rows = browser.run("document.querySelectorAll('#dial tbody tr').length")
        assert rows >= 11
    finally:
        browser.scripts(True)
    browser.open(page)
    assert browser.run(LISTS) == still


@pytest.mark.parametrize("width", [320, 768])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    assert browser.run("document.documentElement.scrollWidth") == width
    smallest = "Math.min(...[...document.querySelectorAll('svg text')].map("
    smallest += "text => text.getBoundingClientRect().height))"
    assert browser.run(smallest) > 8


def test_controls_and_images_have_names(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.ask("Accessibility.enable")
    nodes = browser.ask("Accessibility.getFullAXTree")["nodes"]
    browser.ask("Accessibility.disable")
    named: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            role = node["role"]["value"]
            named.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    for role in ("image", "slider", "table", "link", "heading", "navigation", "region"):
        assert named[role], role
        assert all(named[role]), f"a {role} has no name"
    for landmark in ("banner", "main", "contentinfo"):
        assert len(named[landmark]) == 1


def test_focus_can_be_seen_and_starts_with_the_skip_link(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press(*TAB)
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("document.activeElement.getBoundingClientRect().left >= 0") is True
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_page_is_dark_in_the_dark(browser: Browser, page: Path, tmp_path: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(page)
    light = browser.run(ground)
    browser.open(page, dark=True)
    dark = browser.run(ground)
    brightness = [sum(map(int, colour[4:-1].split(","))) for colour in (light, dark)]
    assert brightness[0] > 600
    assert brightness[1] < 150
    browser.screenshot(tmp_path / "dark.png")
    assert (tmp_path / "dark.png").read_bytes().startswith(b"\x89PNG")


def test_the_case_study_opens_on_a_telephone(
    browser: Browser, labelled: Interactions, tmp_path: Path
) -> None:
    path = tmp_path / "case.html"
    write_case_study(case_study(labelled, "u7"), path)
    browser.open(path, width=320)
    assert browser.complaints == []
    assert browser.run("document.documentElement.scrollWidth") == 320
    assert browser.run("document.querySelectorAll('article.user').length") == 4
