"""The page as a document: complete, escaped, self-contained, usable without eyes or a mouse."""

from __future__ import annotations

import itertools
import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.conftest import HOSTILE
from tests.report.dom import Node, parse

from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, MissingExtraError
from equipoise.report import write_report
from equipoise.report.page import _source, packed, render


@pytest.fixture(scope="module")
def tree(html: str) -> Node:
    return parse(html)


def test_every_section_is_there_with_a_heading_and_a_link(tree: Node) -> None:
    (main,) = tree.all("main")
    sections = list(main.all("section"))
    names = [section.attributes["id"] for section in sections]
    assert names == [
        *("data", "accuracy", "dial", "exposure", "users"),
        *("cost", "definitions", "origin"),
    ]
    (nav,) = tree.all("nav")
    assert [link.attributes["href"] for link in nav.all("a")] == [f"#{name}" for name in names]
    for section in sections:
        assert tree.one(section.attributes["aria-labelledby"]).tag == "h2"


def test_the_numbers_of_the_facts_stand_in_the_tables(tree: Node, facts: dict[str, Any]) -> None:
    accuracy = tree.one("accuracy").text
    for model in facts["models"]:
        for metric in ("ndcg", "recall"):
            for cell in model["accuracy"][metric].values():
                assert f"{cell['value']:.4f} {cell['low']:.4f} to {cell['high']:.4f}" in accuracy
    rows = list(next(tree.one("dial").all("tbody")).all("tr"))
    assert len(rows) == len(facts["dial"]["rows"]) >= 11
    for row, position in zip(rows, facts["dial"]["rows"], strict=True):
        assert row.text.startswith(f"{position['alpha']:.2f} {position['ndcg']:.4f}")
    origin = tree.one("origin").text
    assert facts["provenance"]["split_fingerprint"] in origin
    assert "equipoise report '<shop>.csv'" in origin
    assert facts["provenance"]["versions"]["numpy"] in origin


def test_titles_of_the_data_are_text_and_never_markup(tree: Node, html: str) -> None:
    assert [script.attributes.get("type") for script in tree.all("script")] == [
        "application/json",
        None,
    ]
    assert not list(tree.all("img", "b"))
    assert not [node for node in tree.all() if any(name[:2] == "on" for name in node.attributes)]
    users = tree.one("users").text
    for title in HOSTILE:
        assert " ".join(title.split()) in users
    assert "49 {" not in html
    assert next(tree.all("h1")).text == "<b>Shop</b>"


def test_the_script_gets_the_same_lists_as_the_page_shows(
    tree: Node, facts: dict[str, Any]
) -> None:
    stored = json.loads("".join(tree.one("facts").words))
    fitted_step = facts["dial"]["own"]
    for user, listed in zip(facts["users"], stored["lists"], strict=True):
        shown = [stored["titles"][row[0]] for row in listed[fitted_step]]
        assert shown == [row["title"] for row in user["lists"][fitted_step]]
        assert len(listed) == len(stored["words"]) == len(facts["dial"]["rows"])
    assert stored["own"] == fitted_step


def test_nothing_is_loaded_from_another_host(tree: Node, html: str) -> None:
    assert not list(tree.all("iframe", "object", "embed", "video", "audio", "base"))
    for node in tree.all():
        assert "src" not in node.attributes
        assert "style" not in node.attributes  # the policy would refuse it
        for name in ("href", "xlink:href", "action"):
            address = node.attributes.get(name, "#")
            assert address.startswith("#") or address == "data:,"
    outside_text = re.sub(r"xmlns(:\w+)?=", "", html)
    assert "http:" not in outside_text
    assert "https:" not in outside_text
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", html)
    policies = [n for n in tree.all("meta") if "http-equiv" in n.attributes]
    assert "default-src 'none'" in policies[0].attributes["content"]


def test_ids_are_unique_and_references_lead_somewhere(tree: Node) -> None:
    ids = [node.attributes["id"] for node in tree.all() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    for node in tree.all():
        for name in ("aria-labelledby", "for"):
            assert set(node.attributes.get(name, "").split()) <= set(ids)
        if node.attributes.get("href", "").startswith("#"):
            assert node.attributes["href"][1:] in ids


def test_images_tables_and_headings_are_accessible(tree: Node) -> None:
    charts = list(tree.all("svg"))
    assert len(charts) == 8
    for chart in charts:
        assert chart.attributes["role"] == "img"
        title, description = chart.children[:2]
        assert (title.tag, description.tag) == ("title", "desc")
        assert title.text
        assert description.text
    for table in tree.all("table"):
        assert next(table.all("caption")).text
        assert all(head.attributes["scope"] in ("row", "col") for head in table.all("th"))
    levels = [int(node.tag[1]) for node in tree.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert next(tree.all("html")).attributes["lang"] == "en"


def test_head_and_tail_are_marked_by_words_beside_the_symbol(
    tree: Node, facts: dict[str, Any]
) -> None:
    first = next(node for node in tree.all("ol") if node.attributes.get("data-user") == "0")
    listed = facts["users"][0]["lists"][facts["dial"]["own"]]
    for row, item in zip(first.all("li"), listed, strict=True):
        tags = [tag.text for tag in row.all("span") if "tag" in tag.attributes.get("class", "")]
        expected = ["◇ tail" if item["tail"] else "▲ head"] + ["✓ found"] * item["found"]
        assert tags == expected


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str) -> None:
    colours = palette(_source("style.css"), scheme)
    for ink in ("ink", "soft", "main", "tail", "head"):
        for ground in ("paper", "panel", "wash"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_head_and_tail_have_the_colours_of_the_page_of_the_service(scheme: str) -> None:
    served = (resources.files("equipoise.serve") / "page" / "page.css").read_text("utf-8")
    colours, service_colours = palette(_source("style.css"), scheme), palette(served, scheme)
    for part in ("head", "tail"):
        assert colours[part] == service_colours[part]
        assert all(
            contrast(service_colours[part], service_colours[ground]) >= 4.5
            for ground in ("ground", "panel")
        )


def palette(style: str, scheme: str) -> dict[str, str]:
    """Return the colours of a style by name."""
    colours: dict[str, str] = {}
    for block in re.findall(r":root \{(.*?)\}", style, re.S)[: 1 + (scheme == "dark")]:
        colours |= dict(re.findall(r"--(\w+): (#\w{6})", block))
    return colours


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2."""
    light = []
    for colour in (one, other):
        parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        light.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_tiny_data_without_titles_or_times_make_a_page(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    data = Interactions(rng.random((12, 5)) < 0.7)
    path = tmp_path / "tiny.html"
    facts = write_report(data, path, k=3, sample=50, bootstrap=20)
    tree = parse(path.read_text(encoding="utf-8"))
    assert len(facts["users"]) == facts["provenance"]["test"]["users"]
    assert tree.one("users").text.count("History") == len(facts["users"])
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_without_a_dial_has_no_slider(facts: dict[str, Any]) -> None:
    users = [{**user, "lists": user["lists"][:1]} for user in facts["users"]]
    tree = parse(render({**facts, "dial": None, "users": users}))
    assert not list(tree.all("input"))
    assert "dial" not in [section.attributes["id"] for section in tree.all("section")]


def test_undefined_numbers_are_shown_as_a_dash(facts: dict[str, Any]) -> None:
    nothing = {"value": None, "low": None, "high": None}
    models = [
        {
            **model,
            "accuracy": {m: {**model["accuracy"][m], "tail": nothing} for m in ("ndcg", "recall")},
        }
        for model in facts["models"]
    ]
    rows = [{**row, "tail_ndcg": None} for row in facts["dial"]["rows"]]
    page = render({**facts, "models": models, "dial": {**facts["dial"], "rows": rows}})
    assert "\N{EN DASH}" in parse(page).one("accuracy").text
    assert "no tail items among the targets" in page
    assert "None" not in parse(page).one("dial").text


def test_every_title_is_packed_once(facts: dict[str, Any]) -> None:
    stored = packed(facts["users"], facts["dial"])
    assert len(stored["titles"]) == len(set(stored["titles"]))


def test_a_path_that_cannot_be_written_is_refused_before_the_work(
    toy: Interactions, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="is a folder; give the path of an HTML file"):
        write_report(toy, tmp_path)
    with pytest.raises(DataError, match=r"the folder .* does not exist"):
        write_report(toy, tmp_path / "missing" / "report.html")


def test_without_jinja_the_extra_is_named(
    toy: Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'equipoise\[report\]'"):
        write_report(toy, tmp_path / "report.html")
