"""The charts of a report, drawn from its facts.

Colours are in the page's style sheet, for light and dark mode; series also differ by marker and
dash. A plotting library would add fonts and a hundred times the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from equipoise.display.drawing import QUARTERS, WIDTH, Drawing, Scale, axes, axis_text, padded

MARKS = ("circle", "square", "diamond", "triangle")
DASHES = ("", "dash1", "dash2", "dash3", "dash4")
ROW = 26.0
NAMES = {"all": "all items", "head": "head items", "tail": "tail items", "unbiased": "unbiased"}


def popularity_curve(curve: dict[str, list[float]], head_share: float) -> str:
    """Draw the cumulative share of interactions of the most popular items."""
    height = 230.0
    description = f"The most used 20% of the items hold {head_share:.0%} of the interactions."
    title = "Concentration of the interactions"
    out = Drawing("popularity", WIDTH, height, title, description)
    x, y = Scale(0, 1, 44, WIDTH - 14), Scale(0, 1, height - 42, 22)
    labels = "share of the items, most used first", "of the interactions"
    axes(out, x, y, height, labels, QUARTERS)
    points = [(x(a), y(b)) for a, b in zip(curve["items"], curve["interactions"], strict=True)]
    edge = [point for point in points if point[0] <= x(0.2) + 0.01]
    out.path([*edge, (edge[-1][0], y(0)), (x(0), y(0))], "fill", close="Z")
    out.path(points, "series main")
    out.line(x(0.2), y(0), x(0.2), y(head_share), "guide")
    out.mark("circle", x(0.2), y(head_share), "mark main")
    out.text(x(0.2) + 9, y(head_share) + 15, f"head: 20% of items, {head_share:.0%}", "strong")
    return str(out)


def accuracy_dots(models: Sequence[dict[str, Any]], part: str, metric: str, k: int) -> str:
    """Draw one metric of all models as dots with intervals."""
    cells = [(model["name"], model["accuracy"][metric][part]) for model in models]
    known = [(name, cell) for name, cell in cells if cell["value"] is not None]
    height = ROW * len(cells) + 36
    description = "; ".join(_interval_words(name, cell) for name, cell in known)
    description = description or "not defined: no such targets in the test part"
    title = f"{metric.upper()}@{k}, {NAMES[part]}"
    out = Drawing(f"dots-{metric}-{part}", WIDTH, height, title, description)
    tops = [cell["value"] if cell["high"] is None else cell["high"] for _, cell in known]
    top = max(tops, default=1.0) or 1.0
    x = Scale(0, top * 1.02, 104, 306)
    bottom = height - 22
    for tick in x.ticks(4):
        out.line(x(tick), 6, x(tick), bottom, "grid")
        out.text(x(tick), height - 8, axis_text(tick), "tick", "middle")
    for place, (name, cell) in enumerate(cells):
        middle = 6 + ROW * (place + 0.5)
        main = place == len(cells) - 1
        kind = "main" if main else "other"
        out.text(94, middle + 4, _short(name), "label strong" if main else "label", "end")
        if cell["value"] is None:
            out.text(110, middle + 4, "not defined", "tick")
            continue
        if cell["low"] is not None:
            out.line(x(cell["low"]), middle, x(cell["high"]), middle, f"span {kind}")
        out.mark(MARKS[(place + 1) % 4], x(cell["value"]), middle, f"mark {kind}")
        bold = "value strong" if main else "value"
        out.text(WIDTH - 2, middle + 4, f"{cell['value']:.4f}", bold, "end")
    return str(out)


def frontier(dial: dict[str, Any], plain: dict[str, Any], k: int) -> str:
    """Draw tail accuracy against overall accuracy over alpha, with plain EASE for comparison."""
    height = 270.0
    rows = [row for row in dial["rows"] if row["tail_ndcg"] is not None]
    first, last = dial["rows"][0], dial["rows"][-1]
    title = f"Accuracy against the tail: NDCG@{k} of tail items over NDCG@{k} of all items"
    description = (
        f"From alpha {first['alpha']:.2f} to {last['alpha']:.2f} NDCG over all items goes from "
        f"{_plain(first['ndcg'])} to {_plain(last['ndcg'])}, over tail items from "
        f"{_plain(first['tail_ndcg'])} to {_plain(last['tail_ndcg'])}."
    )
    out = Drawing("frontier", WIDTH, height, title, description)
    if not rows:
        out.text(WIDTH / 2, height / 2, "no tail items among the targets", "tick", "middle")
        return str(out)
    other = [plain["accuracy"]["ndcg"][part]["value"] for part in ("all", "tail")]
    with_plain = None not in other
    xs = [row["ndcg"] for row in rows] + ([other[0]] if with_plain else [])
    ys = [row["tail_ndcg"] for row in rows] + ([other[1]] if with_plain else [])
    x = Scale(*padded(xs, 0.12), 44, WIDTH - 14)
    y = Scale(*padded([*ys, 0.0], 0.1), height - 42, 22)
    axes(out, x, y, height, (f"NDCG@{k}, all items", "tail items"))
    out.path([(x(row["ndcg"]), y(row["tail_ndcg"])) for row in rows], "series main")
    if with_plain:
        out.mark("triangle", x(other[0]), y(other[1]), "mark other", 5.5, hint="plain EASE")
        _beside(out, x(other[0]), y(other[1]) + 16, "plain EASE", "label", x)
    for step, row in enumerate(dial["rows"]):
        if row["tail_ndcg"] is None:
            continue
        place = x(row["ndcg"]), y(row["tail_ndcg"])
        hint = f"alpha {row['alpha']:.2f}"
        kind = "dot now" if step == dial["own"] else "dot"
        out.mark("circle", *place, kind, step=step, hint=hint)
    for row in (rows[0], rows[-1]):
        words = f"alpha {row['alpha']:g}"
        _beside(out, x(row["ndcg"]), y(row["tail_ndcg"]) - 9, words, "label", x)
    return str(out)


def dial_lines(dial: dict[str, Any], k: int) -> str:
    """Draw metrics over alpha, relative to the values at the first alpha."""
    height = 270.0
    keys = {"all": "ndcg", "head": "head_ndcg", "tail": "tail_ndcg", "coverage": "coverage"}
    rows = dial["rows"]
    series = {
        name: [(row["alpha"], row[key] / rows[0][key]) for row in rows]
        for name, key in keys.items()
        if rows[0][key] and all(row[key] is not None for row in rows)
    }
    title = f"What alpha changes: NDCG@{k} of all, head and tail items, and coverage"
    ratios = "; ".join(f"{name} {points[-1][1]:.2f}" for name, points in series.items())
    baseline = f"as multiples of the values at alpha {rows[0]['alpha']:.2f}"
    description = f"At alpha {rows[-1]['alpha']:.2f}, {baseline}: {ratios}"
    out = Drawing("dial-lines", WIDTH, height, title, description)
    values = [value for points in series.values() for _, value in points]
    x = Scale(rows[0]["alpha"], rows[-1]["alpha"], 44, WIDTH - 62)
    y = Scale(0, max([*values, 1.0]) * 1.08, height - 42, 22)
    axes(out, x, y, height, ("alpha", f"times the value at alpha {rows[0]['alpha']:g}"))
    for step, row in enumerate(rows):
        kind = "cursor now" if step == dial["own"] else "cursor"
        out.line(x(row["alpha"]), y(0), x(row["alpha"]), y(y.high), kind, step=step)
    ends = _spread([y(points[-1][1]) for points in series.values()], 13)
    for place, (name, points) in enumerate(series.items()):
        tone = "other" if name == "coverage" else name
        drawn = [(x(alpha), y(value)) for alpha, value in points]
        out.path(drawn, f"series {tone} {DASHES[place]}")
        for point in drawn:
            out.mark(MARKS[place], *point, f"mark small {tone}", 2.6)
        out.text(x.stop + 8, ends[place] + 4, name, "label strong" if name == "all" else "label")
    return str(out)


def exposure_curves(models: Sequence[dict[str, Any]], training: dict[str, list[float]]) -> str:
    """Draw the cumulative exposure of the items of each model, and their interactions.

    The share of the items has a square-root scale, since lists show a small part of a catalogue.
    """
    height = 320.0
    ginis = "; ".join(f"{model['name']} {_plain(model['beyond']['gini'])}" for model in models)
    title, description = "Cumulative exposure of the items", f"Gini index of exposure: {ginis}"
    out = Drawing("exposure-curves", WIDTH, height, title, description)
    x, y = Scale(0, 1, 44, WIDTH - 14, power=0.5), Scale(0, 1, height - 42, 22)
    ticks = (0.01, 0.05, 0.2, 0.5, 1)
    for share in ticks:
        out.line(x(share), y(0), x(share), y(1), "grid")
    labels = "share of the items, most shown first", "of all exposure"
    axes(out, x, y, height, labels, ticks)
    even = [step / 40 for step in range(41)]
    out.path([(x(share), y(share)) for share in even], "guide line")
    out.text(x(0.49), y(0.53), "all items alike", "tick", "end")
    last = len(models) - 1
    lines = [("interactions", training, "soft")]
    for place, model in enumerate(models):
        kind = "main" if place == last else f"other {DASHES[1 + place % 4]}"
        lines.append((model["name"], model["curve"], kind))
    for place, (name, curve, kind) in enumerate(lines):
        pairs = zip(curve["items"], curve["held"], strict=True)
        out.path([(x(share), y(share_held)) for share, share_held in pairs], f"series {kind}")
        middle = y(0.06) - 17 * (len(lines) - 1 - place)
        out.line(x(0.36), middle, x(0.45), middle, f"series {kind}")
        out.text(x(0.476), middle + 4, _short(name), "label")
    return str(out)


def _spread(places: Sequence[float], room: float) -> list[float]:
    """Move labels apart until none overlaps; keeps their order.

    >>> _spread([50.0, 52.0, 90.0], 10)
    [46.0, 56.0, 90.0]
    """
    out = list(places)
    order = sorted(range(len(out)), key=lambda place: out[place])
    for _ in range(20):
        for above, below in itertools.pairwise(order):
            lack = room - (out[below] - out[above])
            if lack > 0:
                out[above] -= lack / 2
                out[below] += lack / 2
    return out


def _beside(out: Drawing, x: float, y: float, words: str, kind: str, scale: Scale) -> None:
    """Write a label anchored so that it stays inside the drawing."""
    room = 3.2 * len(words)
    anchor = "end" if x + room > scale.stop else "start" if x - room < scale.start else "middle"
    out.text(x, y, words, kind, anchor)


def _short(name: str) -> str:
    return "Your model" if name.startswith("Your model") else name


def _interval_words(name: str, cell: dict[str, Any]) -> str:
    if cell["low"] is None:
        return f"{name} {cell['value']:.4f}"
    return f"{name} {cell['value']:.4f}, 95% interval {cell['low']:.4f} to {cell['high']:.4f}"


def _plain(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
