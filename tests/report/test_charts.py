"""Drawings are well-formed XML, text in them is text, and axes are round."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from equipoise.display.drawing import Drawing, Scale, padded
from equipoise.report import charts


def test_text_is_escaped_everywhere() -> None:
    nasty = '<a href="x">&\'</a>'
    out = Drawing("name", 10, 10, nasty, nasty)
    out.text(1, 1, nasty)
    out.mark("diamond", 1, 1, "mark", hint=nasty)
    tree = ET.fromstring(str(out))
    texts = [node.text for node in tree.iter() if node.tag in ("title", "desc", "text")]
    assert texts == [nasty] * 4
    assert not [node for node in tree.iter() if node.tag == "a"]


@pytest.mark.parametrize(("low", "high"), [(0, 0.43), (0.3611, 0.3842), (0, 3200), (-0.01, 0.02)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    scale = Scale(low, high, 0, 100)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 8
    assert all(low <= tick <= high for tick in ticks)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert len(steps) == 1


def test_a_range_of_one_value_still_has_a_scale() -> None:
    scale = Scale(*padded([0.5, 0.5]), 0, 100)
    assert scale(0.5) == pytest.approx(50)
    assert Scale(0, 0, 0, 100)(0) == 50


def test_every_chart_is_well_formed(facts: dict[str, Any]) -> None:
    models, dial = facts["models"], facts["dial"]
    drawn = [
        charts.popularity_curve(facts["data"]["popularity"], facts["data"]["head_share"]),
        *(charts.accuracy_dots(models, part, "recall", 10) for part in charts.NAMES),
        charts.frontier(dial, models[-2], 10),
        charts.dial_lines(dial, 10),
        charts.exposure_curves(models, facts["training_curve"]),
    ]
    for drawing in drawn:
        tree = ET.fromstring(drawing)
        width, height = map(float, tree.attrib["viewBox"].split()[2:])
        for node in tree.iter("text"):
            assert 0 <= float(node.attrib["x"]) <= width
            assert 0 <= float(node.attrib["y"]) <= height
        assert "nan" not in drawing


def test_dots_stand_where_their_values_are(facts: dict[str, Any]) -> None:
    tree = ET.fromstring(charts.accuracy_dots(facts["models"], "all", "ndcg", 10))
    spans = [node for node in tree.iter("line") if node.attrib["class"].startswith("span")]
    marked = [node for node in tree.iter("circle") if "main" in node.attrib["class"]]
    cells = [model["accuracy"]["ndcg"]["all"] for model in facts["models"]]
    assert len(spans) == len(cells)
    # the whole chart is one linear scale: places and values give the same share
    left, right = (float(spans[-1].attrib[name]) for name in ("x1", "x2"))
    value, low, high = (cells[-1][name] for name in ("value", "low", "high"))
    share = (float(marked[0].attrib["cx"]) - left) / (right - left)
    # places are rounded to a tenth of a unit
    assert share == pytest.approx((value - low) / (high - low), abs=0.2 / (right - left))
