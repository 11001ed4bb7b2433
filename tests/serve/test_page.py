"""The page in a real browser: search, history, dial, reasons, two models, the operator's view."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.report.browser import PATIENCE, Browser
from tests.serve.conftest import FIRST_WIDE, SCRIPT, Process, Start

DOWN, ENTER, RIGHT, TAB = ("ArrowDown", 40), ("Enter", 13), ("ArrowRight", 39), ("Tab", 9)
LIST = "[...document.querySelectorAll('#lists ol .title')].map(each => each.textContent).join('|')"


def wait(browser: Browser, condition: str) -> None:
    end = time.monotonic() + PATIENCE
    while not browser.run(condition):
        assert time.monotonic() < end, f"never true: {condition}; {browser.complaints}"
        time.sleep(0.03)


def type_text(browser: Browser, identity: str, text: str) -> None:
    browser.run(f"document.getElementById('{identity}').focus()")
    browser.ask("Input.insertText", text=text)


def opened(browser: Browser, service: Process, **options: object) -> None:
    browser.open(f"{service.address}/", **options)  # type: ignore[arg-type]
    wait(browser, "document.querySelectorAll('#lists ol li').length == 10")


def test_search_add_reasons_and_the_dial_by_keyboard(browser: Browser, service: Process) -> None:
    opened(browser, service)
    assert "by popularity" in browser.run("document.getElementById('status').textContent")
    before = browser.run(LIST)
    type_text(browser, "search", "item 12")
    wait(browser, "document.querySelectorAll('#found li').length == 1")
    browser.press(*DOWN)
    chosen = "document.querySelector('#found [aria-selected=true]').textContent"
    assert browser.run(chosen) == "Item 12 & friends"
    browser.press(*ENTER)
    wait(browser, "document.querySelectorAll('.reasons').length == 10")
    assert browser.run("document.querySelector('#history li span').textContent") == (
        "Item 12 & friends"
    )
    assert "because of Item 12 & friends" in browser.run(
        "document.querySelector('.reasons').textContent"
    )
    widths = "[...document.querySelectorAll('.bar')].map(each => each.offsetWidth)"
    assert max(browser.run(widths)) > 20
    after = browser.run(LIST)
    assert after != before
    browser.run("document.getElementById('alpha').focus()")
    for _ in range(24):
        browser.press(*RIGHT)
    wait(browser, f"{LIST} != {after!r}")
    assert browser.run("document.getElementById('alpha-value').textContent") == "1.50"
    wait(browser, "document.querySelector('#lists h3').textContent.includes('alpha 1.50')")
    label = "document.querySelector('#curve svg').getAttribute('aria-label')"
    assert "from the tail" in browser.run(label)
    assert browser.run("document.querySelectorAll('#curve circle').length") == 10
    browser.run("document.querySelector('#history button').click()")
    wait(browser, "document.querySelectorAll('#history li').length == 0")
    assert browser.complaints == []


def test_a_script_in_a_title_is_text(browser: Browser, service: Process) -> None:
    opened(browser, service)
    type_text(browser, "search", "<script>")
    wait(browser, "document.querySelectorAll('#found li').length == 1")
    browser.press(*ENTER)
    wait(browser, "document.querySelectorAll('#history li').length == 1")
    title = "document.querySelector('#history li span').textContent"
    assert browser.run(title) == f"{SCRIPT} item"
    wait(browser, "document.querySelectorAll('.reasons').length == 10")
    browser.run("document.querySelector('#lists .title').click()")
    wait(browser, "!document.getElementById('similar').hidden")
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("document.querySelectorAll('main script').length") == 0
    assert browser.complaints == []


def test_a_user_two_models_and_similar_items(browser: Browser, service: Process) -> None:
    opened(browser, service)
    type_text(browser, "user", "u5")
    browser.press(*ENTER)
    browser.run("document.querySelector('#user-form button').click()")
    wait(browser, "document.getElementById('whose').textContent.startsWith('User u5: ')")
    second = "const b = document.getElementById('model-b'); b.value = 'plain'; "
    browser.run(f"{{ {second} b.dispatchEvent(new Event('change')) }}")
    wait(browser, "document.querySelectorAll('#lists ol').length == 2")
    heads = (
        "[...document.querySelectorAll('#lists h3')].map(each => each.textContent.split(',')[0])"
    )
    assert browser.run(heads) == ["default", "plain"]
    with service.client() as client:
        expected = [item["title"] for item in client._ask("GET", "/recommend/u5", k=10)["items"]]
    first = "[...document.querySelectorAll('#lists ol')[0].querySelectorAll('.title')]"
    assert browser.run(f"{first}.map(each => each.textContent)") == expected
    browser.run("document.querySelector('#lists .title').click()")
    wait(browser, "!document.getElementById('similar').hidden")
    assert browser.run("document.querySelectorAll('#similar-list li').length") == 10
    assert browser.run("document.activeElement.id") == "similar-title"
    assert browser.complaints == []


def test_ids_of_64_bits_come_back_as_they_were_sent(
    browser: Browser, wide: Path, start: Start, tmp_path: Path
) -> None:
    service = start(wide, "--store", f"sqlite:///{tmp_path}/x.db")
    opened(browser, service)
    bodies = (
        "{ window.bodies = []; const send = window.fetch; window.fetch = (path, options) => {"
        " if (options.body) window.bodies.push(options.body); return send(path, options); } }"
    )
    browser.run(bodies)
    top = browser.run("document.querySelector('#lists .title').textContent")
    browser.run("document.querySelector('#lists ol button:not(.title)').click()")
    wait(browser, "document.querySelectorAll('.reasons').length == 10")
    assert f"because of {top}" in browser.run("document.querySelector('.reasons').textContent")
    (number,) = [n for n in range(80) if top.startswith(f"Item {n} ")]
    sent = json.loads(browser.run("window.bodies.at(-1)"))
    assert [int(item) for item in sent["history"]] == [FIRST_WIDE + number]
    browser.run("document.getElementById('clear').click()")
    user = browser.run("document.querySelector('#users option').value")
    assert int(user) == FIRST_WIDE
    type_text(browser, "user", user)
    browser.run("document.querySelector('#user-form button').click()")
    wait(browser, f"document.getElementById('whose').textContent.startsWith('User {user}: ')")
    assert browser.complaints == []


def test_the_operator_sees_traffic_and_models(browser: Browser, service: Process) -> None:
    opened(browser, service)
    browser.run("document.getElementById('show-operate').click()")
    wait(browser, "document.querySelectorAll('#models-table tbody tr').length == 2")
    wait(browser, "document.querySelector('.card strong').textContent != '-'")
    assert browser.run("document.querySelectorAll('.card svg').length") == 7
    assert "events" in browser.run("document.getElementById('store').textContent")
    assert browser.complaints == []


@pytest.mark.parametrize("width", [320, 768])
def test_nothing_is_wider_than_the_window(browser: Browser, service: Process, width: int) -> None:
    opened(browser, service, width=width)
    assert browser.run("document.documentElement.scrollWidth") == width


def test_everything_has_a_name_and_focus_can_be_seen(browser: Browser, service: Process) -> None:
    opened(browser, service)
    browser.press(*TAB)
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.ask("Accessibility.enable")
    nodes = browser.ask("Accessibility.getFullAXTree")["nodes"]
    browser.ask("Accessibility.disable")
    roles = ("button", "combobox", "slider", "textbox", "image", "link", "heading", "region")
    for node in nodes:
        if not node.get("ignored") and node["role"]["value"] in roles:
            assert node.get("name", {}).get("value"), node


def test_light_dark_and_no_request_to_elsewhere(
    browser: Browser, service: Process, tmp_path: Path
) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    shades = []
    for dark in (False, True):
        opened(browser, service, dark=dark)
        shades.append(sum(map(int, browser.run(ground)[4:-1].split(","))))
        browser.screenshot(tmp_path / f"{dark}.png")
        assert (tmp_path / f"{dark}.png").stat().st_size > 10_000
    assert shades[0] > 600
    assert shades[1] < 150
    foreign = [
        address
        for address in browser.requests
        if not address.startswith((service.address, "data:"))
    ]
    assert set(foreign) <= {"about:blank"}


def test_the_api_is_described_without_a_network(browser: Browser, service: Process) -> None:
    browser.open(f"{service.address}/docs")
    wait(browser, "document.querySelectorAll('section').length > 15")
    assert "POST /v1/recommend" in browser.run("document.body.textContent")
    assert browser.complaints == []
