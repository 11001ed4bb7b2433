"""The page in a real browser: search, history, dial, reasons, two models, the operator's view."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import PATIENCE, Browser
from tests.serve.conftest import FIRST_WIDE, SCRIPT, TURNED, Process, Start

import equipoise as eq
from equipoise.data.interactions import Interactions

DOWN, ENTER, RIGHT, TAB = ("ArrowDown", 40), ("Enter", 13), ("ArrowRight", 39), ("Tab", 9)
LIST = "[...document.querySelectorAll('#list-a .title')].map(each => each.textContent).join('|')"
STATUS = "document.getElementById('status').textContent"


def wait(browser: Browser, condition: str) -> None:
    end = time.monotonic() + PATIENCE
    while not browser.run(condition):
        assert time.monotonic() < end, f"never true: {condition}; {browser.complaints}"
        time.sleep(0.03)


def type_text(browser: Browser, identity: str, text: str) -> None:
    browser.run(f"document.getElementById('{identity}').focus()")
    browser.ask("Input.insertText", text=text)


def titles(items: list[dict[str, Any]]) -> list[str]:
    """Return titles as the page shows them, without characters that turn text."""
    return [item["title"].replace(TURNED[:2], "") for item in items]


def opened(browser: Browser, service: Process, lists: int = 2, **options: object) -> None:
    """Open the page and wait for its example."""
    browser.open(f"{service.address}/", **options)  # type: ignore[arg-type]
    wait(browser, f"document.querySelectorAll('#lists ol li').length == {10 * lists}")


def choose(browser: Browser, identity: str, value: str) -> None:
    element = f"document.getElementById('{identity}')"
    browser.run(f"{element}.value = '{value}'; {element}.dispatchEvent(new Event('change'))")


def clear(browser: Browser) -> None:
    """Remove the example."""
    browser.run("document.getElementById('clear').click()")
    wait(browser, f"{STATUS}.includes('by popularity')")


def test_search_add_reasons_and_the_dial_by_keyboard(browser: Browser, service: Process) -> None:
    opened(browser, service)
    choose(browser, "model-b", "")
    clear(browser)
    before = browser.run(LIST)
    type_text(browser, "search", "item 12")
    wait(browser, "document.querySelectorAll('#results li').length == 1")
    browser.press(*DOWN)
    chosen = "document.querySelector('#results [aria-selected=true]').textContent"
    assert browser.run(chosen) == "Item 12 & friends"
    browser.press(*ENTER)
    wait(browser, "document.querySelectorAll('.reasons').length == 10")
    assert browser.run("document.querySelector('#history li bdi').textContent") == (
        "Item 12 & friends"
    )
    assert "because of Item 12 & friends" in browser.run(
        "document.querySelector('.reasons').textContent"
    )
    widths = "[...document.querySelectorAll('.bar')].map(each => each.offsetWidth)"
    assert max(browser.run(widths)) > 20
    after = browser.run(LIST)
    assert after != before
    browser.run("document.getElementById('alpha-a').focus()")
    for _ in range(24):
        browser.press(*RIGHT)
    wait(browser, f"{LIST} != {after!r}")
    assert browser.run("document.getElementById('alpha-value-a').textContent") == "1.50"
    wait(browser, "document.querySelector('#lists h3').textContent.includes('alpha 1.50')")
    label = "document.querySelector('#curve svg').getAttribute('aria-label')"
    assert "from the tail" in browser.run(label)
    assert browser.run("document.querySelectorAll('#curve .dot').length") == 10
    browser.run("document.querySelector('#history button').click()")
    wait(browser, "document.querySelectorAll('#history li').length == 0")
    assert browser.complaints == []


def test_a_script_in_a_title_is_text(browser: Browser, service: Process) -> None:
    opened(browser, service)
    choose(browser, "model-b", "")
    clear(browser)
    type_text(browser, "search", "<script>")
    wait(browser, "document.querySelectorAll('#results li').length == 1")
    browser.press(*ENTER)
    wait(browser, "document.querySelectorAll('#history li').length == 1")
    title = "document.querySelector('#history li bdi').textContent"
    assert browser.run(title) == f"{SCRIPT} item"
    wait(browser, "document.querySelectorAll('.reasons').length == 10")
    browser.run("document.querySelector('#lists .title').click()")
    wait(browser, "!document.getElementById('similar').hidden")
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("document.querySelectorAll('main script').length") == 0
    assert browser.complaints == []


def test_a_title_does_not_turn_the_text_around_it(browser: Browser, service: Process) -> None:
    opened(browser, service)
    clear(browser)
    type_text(browser, "search", "right to left")
    wait(browser, "document.querySelectorAll('#results li').length == 1")
    browser.press(*ENTER)
    wait(browser, "document.querySelectorAll('.reasons').length == 20")
    texts = (
        "[...document.querySelectorAll('body *')].flatMap(element => [element.textContent, "
        "...[...element.attributes].map(attribute => attribute.value)]).join('')"
    )
    everything = browser.run(texts)
    assert "right to left item" in everything
    assert TURNED[1] not in everything
    assert everything.count("\u2068") == everything.count("\u2069") > 0
    left = (
        "(text, n) => { const range = document.createRange(); range.setStart(text, n); "
        "range.setEnd(text, n + 1); return range.getBoundingClientRect().left; }"
    )
    # the text before and after the title of a reason stays where and as it was
    placed = (
        "(() => { const dt = document.querySelector('.reasons dt'); dt.append(' after it'); "
        "dt.style.whiteSpace = 'nowrap'; "
        f"const left = {left}; const last = dt.lastChild; "
        "return [left(dt.firstChild, 0), left(dt.querySelector('bdi').firstChild, 0), "
        "left(last, 1), left(last, 5)]; })()"
    )
    places = browser.run(placed)
    assert places == sorted(places)
    assert browser.complaints == []


def test_a_user_two_models_and_similar_items(browser: Browser, service: Process) -> None:
    opened(browser, service)
    type_text(browser, "user", "u5")
    browser.press(*ENTER)
    browser.run("document.querySelector('#user-form button').click()")
    wait(browser, "document.getElementById('whose').textContent.startsWith('User u5: ')")
    heads = (
        "[...document.querySelectorAll('#lists h3')].map(each => each.textContent.split(',')[0])"
    )
    assert browser.run(heads) == ["default", "plain"]
    with service.client() as client:
        expected = titles(client._ask("GET", "/recommend/u5", k=10)["items"])
    wait(browser, f"{LIST} == {json.dumps('|'.join(expected))}")
    browser.run("document.querySelector('#lists .title').click()")
    wait(browser, "!document.getElementById('similar').hidden")
    assert browser.run("document.querySelectorAll('#similar-list li').length") == 10
    assert browser.run("document.activeElement.id") == "similar-title"
    assert browser.complaints == []


def test_ids_of_64_bits_come_back_as_they_were_sent(
    browser: Browser, wide: Path, start: Start, tmp_path: Path
) -> None:
    service = start(wide, "--store", f"sqlite:///{tmp_path}/x.db")
    opened(browser, service, lists=1)
    clear(browser)
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


def test_the_page_opens_with_two_models_on_an_example_and_marks_their_differences(
    browser: Browser, service: Process
) -> None:
    opened(browser, service)
    assert browser.run("document.getElementById('example').textContent").startswith(
        "An example: of the 30 training users offered above"
    )
    with service.client() as client:
        users = client._ask("GET", "/users", limit=30)["users"]
        lists = {
            user: [
                client._ask("POST", "/recommend", {"user": user, "k": 10, "model": model})["items"]
                for model in ("default", "plain")
            ]
            for user in users
        }
    ids = {user: [{item["item"] for item in ranked} for ranked in lists[user]] for user in users}
    tail = {
        user: [sum(item["tail"] for item in ranked) for ranked in lists[user]] for user in users
    }

    def difference(user: str) -> tuple[int, int]:
        return abs(tail[user][0] - tail[user][1]), len(ids[user][0] - ids[user][1])

    example = max(users, key=difference)
    assert browser.run("document.querySelector('#whose bdi').textContent") == example
    assert difference(example) > (0, 0)
    for side, listed, other in zip("ab", lists[example], reversed(ids[example]), strict=True):
        expected = titles([item for item in listed if item["item"] not in other])
        marked = (
            f"[...document.querySelectorAll('#list-{side} .only')].filter(row => "
            "row.textContent.includes('only in this list'))"
            ".map(row => row.querySelector('.title').textContent)"
        )
        assert browser.run(marked) == expected
    assert f"{len(set.intersection(*ids[example]))} item" in browser.run(STATUS)
    assert browser.complaints == []


def test_each_model_has_a_dial_of_its_own(browser: Browser, service: Process) -> None:
    opened(browser, service)
    values = "['a', 'b'].map(side => document.getElementById(`alpha-value-${side}`).textContent)"
    assert browser.run(values) == ["0.30", "0.00"]
    assert "number of users to the power" in browser.run(
        "document.getElementById('dial-about').textContent"
    )
    second = LIST.replace("list-a", "list-b")
    before = browser.run(LIST), browser.run(second)
    browser.run("document.getElementById('alpha-a').focus()")
    for _ in range(24):
        browser.press(*RIGHT)
    wait(browser, f"{LIST} != {before[0]!r}")
    assert browser.run(second) == before[1]
    assert browser.run(values) == ["1.50", "0.00"]
    browser.run("document.getElementById('reset-a').click()")
    wait(browser, f"{LIST} == {before[0]!r}")
    assert browser.run("document.activeElement.id") == "alpha-a"
    choose(browser, "model-b", "default")  # one model at two dials
    wait(browser, f"{LIST} == {second}")
    assert "default at 0.30" in browser.run(STATUS)
    assert browser.complaints == []


def test_marks_on_the_curve_are_at_the_place_of_their_item(
    browser: Browser, service: Process
) -> None:
    opened(browser, service)
    texts = "[...document.querySelectorAll('#curve text')].map(text => text.textContent)"
    assert {"users of an item, logarithmic scale", "head", "tail", "80"} <= set(browser.run(texts))
    centres = (
        "Object.fromEntries([...document.querySelectorAll('#curve .SHAPE')].map(mark => { "
        "const box = mark.getBBox(); return [mark.querySelector('title').textContent"
        ".split(', ').slice(0, -1).join(), [Math.round(box.x + box.width / 2), "
        "Math.round(box.y + box.height / 2)]]; }))"
    )
    circles = browser.run(centres.replace("SHAPE", "dot"))
    diamonds = browser.run(centres.replace("SHAPE", "diamond"))
    common = circles.keys() & diamonds.keys()
    assert common
    assert all(circles[title] == diamonds[title] for title in common)


def test_an_empty_search_is_announced(browser: Browser, service: Process) -> None:
    opened(browser, service)
    type_text(browser, "search", "no such title")
    message = "document.getElementById('search-status').textContent"
    wait(browser, f"{message} == 'Nothing found for no such title'")
    browser.run("document.getElementById('user').value = 'nobody'")
    browser.run("document.querySelector('#user-form button').click()")
    wait(browser, "document.getElementById('whose').textContent.includes('nobody: nothing found')")
    wait(browser, f"{STATUS}.includes('by popularity')")
    assert browser.complaints == []


def test_the_operator_sees_traffic_over_time_by_model(browser: Browser, service: Process) -> None:
    opened(browser, service)
    browser.run("document.getElementById('show-operate').click()")
    wait(browser, "document.querySelectorAll('#models-table tbody tr').length == 2")
    wait(browser, "document.querySelectorAll('.card svg[role=img]').length == 6")
    cards = {
        text.split(":")[0]: text
        for text in browser.run(
            "[...document.querySelectorAll('.card svg[role=img]')]"
            ".map(svg => svg.getAttribute('aria-label'))"
        )
    }
    for title in ("Items listed from the tail", "Catalogue coverage"):
        assert re.search(r"default [\d.]+%, plain [\d.]+%$", cards[title]), cards[title]
    texts = browser.run(
        "[...document.querySelectorAll('.card svg text')].map(text => text.textContent)"
    )
    assert sum(bool(re.fullmatch(r"\d\d:\d\d(:\d\d)?", text)) for text in texts) == 6 * 3
    choose(browser, "range", "600")
    about = "document.getElementById('range-about').textContent"
    wait(browser, f"{about}.startsWith('From ')")
    assert "events" in browser.run("document.getElementById('store').textContent")
    assert "Not measured yet" in browser.run("document.getElementById('drift-about').textContent")
    assert browser.run("document.getElementById('experiment-how').textContent") == (
        "No experiment is running."
    )
    assert browser.complaints == []


def test_the_operator_sees_drift(browser: Browser, service: Process) -> None:
    """The service measures it every five minutes, so the answer is completed here."""
    opened(browser, service)
    figures = {
        "drift_events": {"default": 400, "plain": 400},
        "drift_unknown": {"default item": 0.125, "default user": 0.5},
        "drift_popularity": {"default": 0.31, "plain": None},
        "drift_overlap": {"default": 0.75, "plain": 1.0},
    }
    browser.run(
        "{ const send = window.fetch; window.fetch = async (path, options) => { "
        "const response = await send(path, options); if (!path.includes('overview')) "
        "return response; const content = await response.json(); return new Response("
        f"JSON.stringify({{...content, ...{json.dumps(figures)}}})); }} }}"
    )
    browser.run("document.getElementById('show-operate').click()")
    wait(browser, "document.querySelectorAll('#drift-table tbody tr').length == 2")
    rows = browser.run(
        "[...document.querySelectorAll('#drift-table tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert rows == [
        ["default", "400", "12.5%", "50.0%", "0.310, large", "75%"],
        ["plain", "400", "-", "-", "- (too few events)", "100%"],
    ]


def test_the_operator_sees_the_verdict_of_the_experiment(
    browser: Browser, saved: Path, start: Start, tmp_path: Path
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(
        f'[models]\ndefault = "{saved / "dan"}"\nplain = "{saved / "plain"}"\n'
        '[[experiments]]\nname = "dial"\nmodels = { default = 0.5, plain = 0.5 }\n'
    )
    service = start("--config", config, "--store", f"sqlite:///{tmp_path}/x.db")
    with service.client() as client:
        for n in range(60):
            client._ask("GET", f"/recommend/u{n}", k=5)
    opened(browser, service)
    browser.run("document.getElementById('show-operate').click()")
    wait(browser, "document.querySelectorAll('#verdicts li').length == 2")
    verdicts = browser.run("document.getElementById('verdicts').textContent")
    assert "plain against default: too few clicks to tell" in verdicts
    assert "Sample ratio: the numbers of users match the shares" in verdicts
    rows = "[...document.querySelectorAll('#experiment-table tbody tr')]"
    cells = browser.run(f"{rows}.map(row => [...row.cells].map(cell => cell.textContent))")
    assert [row[:2] for row in cells] == [["default", "50%"], ["plain", "50%"]]
    assert sum(int(row[2]) for row in cells) == 60
    assert browser.complaints == []


def test_popular_lately_and_the_forecast_of_a_model(
    browser: Browser, log: Interactions, start: Start, tmp_path: Path
) -> None:
    model = eq.EASE(l2=5.0, trend=eq.Trend(half_life="2d")).fit(log)
    model.estimate_ = {
        **{"protocol": "time", "version": "1", "part": "train", "data": "x", "n_users": 9},
        **{"seed": 0, "values": {"ndcg@20": {"value": 0.25, "low": 0.2, "high": 0.3}}},
        **{"yardsticks": {"recent popularity": 0.3}, "verdict": "do not deploy it as it is"},
    }
    model.save(tmp_path / "model")
    service = start(tmp_path / "model", "--store", f"sqlite:///{tmp_path}/x.db")
    browser.open(f"{service.address}/")
    wait(browser, "document.querySelectorAll('#trending-list li').length == 10")
    assert "2 days" in browser.run("document.getElementById('trending-about').textContent")
    with service.client() as client:
        expected = client.trending(10)["items"]
    first = "document.querySelector('#trending-list li bdi').textContent"
    assert browser.run(first) == expected[0]["title"]
    browser.run("document.getElementById('clear').click()")
    browser.run("document.querySelector('#trending-list button').click()")
    wait(browser, "document.querySelectorAll('#history li').length == 1")
    browser.run("document.getElementById('show-operate').click()")
    wait(browser, "document.querySelectorAll('#forecasts li').length == 1")
    text = browser.run("document.querySelector('#forecasts li').textContent")
    for part in ("ndcg@20 0.2500 [0.2000, 0.3000]", "recent popularity 0.3000", "do not deploy"):
        assert part in text
    wait(browser, "document.querySelectorAll('#trend-table tbody tr').length == 10")
    first = "document.querySelector('#trend-table tbody th').textContent"
    assert browser.run(first) == expected[0]["title"]
    assert browser.complaints == []


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_the_window(browser: Browser, service: Process, width: int) -> None:
    opened(browser, service, width=width)
    assert browser.run("document.documentElement.scrollWidth") == width
    browser.run("document.getElementById('show-operate').click()")
    wait(browser, "document.querySelectorAll('.card svg[role=img]').length == 6")
    assert browser.run("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("view", ["try", "operate"])
def test_controls_have_names_and_focus_is_visible(
    browser: Browser, service: Process, view: str
) -> None:
    opened(browser, service)
    if view == "operate":
        browser.run("document.getElementById('show-operate').click()")
        wait(browser, "document.querySelectorAll('.card svg[role=img]').length == 6")
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


def test_light_and_dark_mode_need_no_other_host(
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
