"""Charts as SVG: those of a report, drawn from its facts, and the frontier of a search.

Drawings have classes instead of colours; colours live in the page's style sheet, so that charts
follow light and dark. Series differ by marker and dash as well as by colour, and every drawing
carries a title and a description. Charts are 360 units wide, so that their text can be read on a
telephone. No plotting library: the page would carry fonts and a hundred times the bytes, and
could not follow light and dark.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import polars as pl

MARKS = ("circle", "square", "diamond", "triangle")
DASHES = ("", "dash1", "dash2", "dash3", "dash4")
WIDTH = 360.0
ROW = 26.0
QUARTERS = (0, 0.25, 0.5, 0.75, 1)
NAMES = {"all": "all items", "head": "head items", "tail": "tail items", "unbiased": "unbiased"}
# of a drawing that is a file of its own
STYLE = (
    ".chart{background:#fff;font:11.5px sans-serif;fill:#1c2430}.grid{stroke:#dde2e8}"
    ".tick,.axis{fill:#5a6572;font-size:10.5px}.series{fill:none;stroke:#0b6e4f;stroke-width:1.5}"
    ".point{fill:#b8c0cc}.mark{fill:#0b6e4f}"
)


class Drawing:
    """An SVG image that grows by calls and is read out with `str`.

    Parameters
    ----------
    name
        Prefix of ids; unique in a page.
    width, height
        Size of the view box; a page scales it to the room there is.
    title, description
        What the image is, and what it shows, for those who cannot see it.
    style
        Style sheet of an image that is a file of its own.
    """

    def __init__(
        self,
        name: str,
        width: float,
        height: float,
        title: str,
        description: str,
        style: str = "",
    ) -> None:
        alone = f"<style>{style}</style>" if style else ""
        space = 'xmlns="http://www.w3.org/2000/svg" ' if style else ""
        self._head = (
            f'<svg {space}class="chart" role="img" viewBox="0 0 {_n(width)} {_n(height)}" '
            f'aria-labelledby="{escape(name)}-title {escape(name)}-desc">'
            f'<title id="{escape(name)}-title">{escape(title)}</title>'
            f'<desc id="{escape(name)}-desc">{escape(description)}</desc>{alone}'
        )
        self._parts: list[str] = []

    def line(
        self, x1: float, y1: float, x2: float, y2: float, kind: str, *, step: int | None = None
    ) -> None:
        """Draw a straight line; `step` ties it to a position of the dial."""
        place = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        self._parts.append(f'<line class="{kind}" {place}{_step(step)}/>')

    def path(self, points: Sequence[tuple[float, float]], kind: str, close: str = "") -> None:
        """Draw a line through points; "Z" closes it."""
        joined = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self._parts.append(f'<path class="{kind}" d="M{joined}{close}"/>')

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Write text, taken literally."""
        place = f'x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="{kind}" {place}>{escape(words)}</text>')

    def mark(
        self,
        shape: str,
        x: float,
        y: float,
        kind: str,
        size: float = 4.5,
        step: int | None = None,
        hint: str = "",
    ) -> None:
        """Draw a marker; `hint` is shown by browsers when one points at it."""
        inner = f"<title>{escape(hint)}</title>" if hint else ""
        if shape == "circle":
            body = f'circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(size)}"'
        else:
            corners = " ".join(f"{_n(a)},{_n(b)}" for a, b in _corners(shape, x, y, size))
            body = f'polygon points="{corners}"'
        name = body.split(" ", 1)[0]
        self._parts.append(f'<{body} class="{kind}"{_step(step)}>{inner}</{name}>')

    def __str__(self) -> str:
        return self._head + "".join(self._parts) + "</svg>"


class Scale:
    """Maps values to places along an axis.

    Parameters
    ----------
    low, high
        Range of the values.
    start, stop
        Where its ends lie in the drawing.
    power
        1/2 draws the square root, which gives small values more room.
    """

    def __init__(
        self, low: float, high: float, start: float, stop: float, power: float = 1.0
    ) -> None:
        if not high > low:
            spread = abs(low) * 0.1 or 0.1
            low, high = low - spread, high + spread
        self.low, self.high, self.start, self.stop = low, high, start, stop
        self.power = power

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return float(self.start + share**self.power * (self.stop - self.start))

    def ticks(self, about: int = 4) -> list[float]:
        """Return round values inside the range.

        >>> Scale(0, 0.43, 0, 1).ticks()
        [0.0, 0.1, 0.2, 0.3, 0.4]
        """
        raw = (self.high - self.low) / about
        unit = 10 ** math.floor(math.log10(raw))
        width = min((unit * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda w: abs(w - raw))
        first = math.ceil(self.low / width - 1e-9)
        last = math.floor(self.high / width + 1e-9)
        return [round(place * width, 10) for place in range(first, last + 1)]


def padded(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """Return the range of some values with a margin on both sides.

    >>> padded([1.0, 3.0], 0.5)
    (0.0, 4.0)
    """
    low, high = min(values), max(values)
    margin = share * (high - low)
    return low - margin, high + margin


def axis_text(value: float) -> str:
    """Return a tick's label without needless digits.

    >>> axis_text(0.30000000000000004), axis_text(0.0), axis_text(1500.0)
    ('0.3', '0', '1,500')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _corners(shape: str, x: float, y: float, size: float) -> list[tuple[float, float]]:
    s = size * 1.15
    if shape == "square":
        s *= 0.82
        return [(x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s)]
    if shape == "diamond":
        return [(x, y - s), (x + s, y), (x, y + s), (x - s, y)]
    return [(x, y - s), (x + s, y + 0.8 * s), (x - s, y + 0.8 * s)]


def _step(step: int | None) -> str:
    return "" if step is None else f' data-step="{step}"'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def popularity_curve(curve: dict[str, list[float]], head_share: float) -> str:
    """Draw the share of interactions that the most used items hold."""
    height = 230.0
    out = Drawing(
        "popularity",
        WIDTH,
        height,
        "Concentration of the interactions",
        f"The most used 20% of the items hold {head_share:.0%} of the interactions.",
    )
    x, y = Scale(0, 1, 44, WIDTH - 14), Scale(0, 1, height - 42, 22)
    labels = "share of the items, most used first", "of the interactions"
    _axes(out, x, y, height, labels, QUARTERS)
    points = [(x(a), y(b)) for a, b in zip(curve["items"], curve["interactions"], strict=True)]
    edge = [point for point in points if point[0] <= x(0.2) + 0.01]
    out.path([*edge, (edge[-1][0], y(0)), (x(0), y(0))], "fill", close="Z")
    out.path(points, "series main")
    out.line(x(0.2), y(0), x(0.2), y(head_share), "guide")
    out.mark("circle", x(0.2), y(head_share), "mark main")
    out.text(x(0.2) + 9, y(head_share) + 15, f"head: 20% of items, {head_share:.0%}", "strong")
    return str(out)


def accuracy_dots(models: Sequence[dict[str, Any]], part: str, metric: str, k: int) -> str:
    """Draw one metric of all models as dots with their intervals."""
    cells = [(each["name"], each["accuracy"][metric][part]) for each in models]
    known = [(name, cell) for name, cell in cells if cell["value"] is not None]
    height = ROW * len(cells) + 36
    words = [_interval_words(name, cell) for name, cell in known]
    out = Drawing(
        f"dots-{metric}-{part}",
        WIDTH,
        height,
        f"{metric.upper()}@{k}, {NAMES[part]}",
        "; ".join(words) or "not defined: no such targets in the test part",
    )
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
    """Draw tail accuracy against overall accuracy as alpha moves, and plain EASE beside it."""
    height = 270.0
    rows = [row for row in dial["rows"] if row["tail_ndcg"] is not None]
    first, last = dial["rows"][0], dial["rows"][-1]
    out = Drawing(
        "frontier",
        WIDTH,
        height,
        f"Accuracy against the tail: NDCG@{k} of tail items over NDCG@{k} of all items",
        f"From alpha {first['alpha']:.2f} to {last['alpha']:.2f} NDCG over all items goes from "
        f"{_plain(first['ndcg'])} to {_plain(last['ndcg'])}, over tail items from "
        f"{_plain(first['tail_ndcg'])} to {_plain(last['tail_ndcg'])}.",
    )
    if not rows:
        out.text(WIDTH / 2, height / 2, "no tail items among the targets", "tick", "middle")
        return str(out)
    other = [plain["accuracy"]["ndcg"][part]["value"] for part in ("all", "tail")]
    with_plain = None not in other
    xs = [row["ndcg"] for row in rows] + ([other[0]] if with_plain else [])
    ys = [row["tail_ndcg"] for row in rows] + ([other[1]] if with_plain else [])
    x = Scale(*padded(xs, 0.12), 44, WIDTH - 14)
    y = Scale(*padded([*ys, 0.0], 0.1), height - 42, 22)
    _axes(out, x, y, height, (f"NDCG@{k}, all items", "tail items"))
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


def search_frontier(points: pl.DataFrame, front: pl.DataFrame, names: tuple[str, str]) -> str:
    """Draw what a search tried and its frontier, as an SVG file of its own.

    Parameters
    ----------
    points, front
        `Tuned.trials` and `Tuned.frontier`.
    names
        The metric that runs to the right, and the one that runs up.
    """
    height = 270.0
    words = f"{points.height:,} settings, {front.height} on the frontier"
    title = f"{names[1]} against {names[0]}"
    out = Drawing("frontier", WIDTH, height, title, words, STYLE)
    every, best = (
        frame.select(names).cast(pl.Float64).fill_nan(None).drop_nulls().rows()
        for frame in (points, front)
    )
    if not every:
        out.text(WIDTH / 2, height / 2, "no values to draw", "tick", "middle")
        return str(out)
    x = Scale(*padded([across for across, _ in every]), 48, WIDTH - 14)
    y = Scale(*padded([up for _, up in every]), height - 42, 22)
    _axes(out, x, y, height, names)
    out.text(x.stop, 12, words, "axis", "end")
    for across, up in every:
        out.mark("circle", x(across), y(up), "point", 1.5)
    out.path([(x(across), y(up)) for across, up in sorted(best)], "series")
    for across, up in best:
        out.mark("circle", x(across), y(up), "mark", 3)
    return str(out)


def dial_lines(dial: dict[str, Any], k: int) -> str:
    """Draw what alpha changes, as multiples of the values at the first position."""
    height = 270.0
    keys = {"all": "ndcg", "head": "head_ndcg", "tail": "tail_ndcg", "coverage": "coverage"}
    rows = dial["rows"]
    series = {
        name: [(row["alpha"], row[key] / rows[0][key]) for row in rows]
        for name, key in keys.items()
        if rows[0][key] and all(row[key] is not None for row in rows)
    }
    out = Drawing(
        "dial-lines",
        WIDTH,
        height,
        f"What alpha changes: NDCG@{k} of all, head and tail items, and coverage",
        f"At alpha {rows[-1]['alpha']:.2f}, as multiples of the values at alpha "
        f"{rows[0]['alpha']:.2f}: "
        + "; ".join(f"{name} {points[-1][1]:.2f}" for name, points in series.items()),
    )
    values = [value for points in series.values() for _, value in points]
    x = Scale(rows[0]["alpha"], rows[-1]["alpha"], 44, WIDTH - 62)
    y = Scale(0, max([*values, 1.0]) * 1.08, height - 42, 22)
    _axes(out, x, y, height, ("alpha", f"times the value at alpha {rows[0]['alpha']:g}"))
    for step, row in enumerate(rows):
        kind = "cursor now" if step == dial["own"] else "cursor"
        out.line(x(row["alpha"]), y(0), x(row["alpha"]), y(y.high), kind, step=step)
    ends = _spread([y(points[-1][1]) for points in series.values()], 13)
    tones = {"all": "main", "tail": "accent"}
    for place, (name, points) in enumerate(series.items()):
        tone = tones.get(name, "other")
        drawn = [(x(alpha), y(value)) for alpha, value in points]
        out.path(drawn, f"series {tone} {DASHES[place]}")
        for point in drawn:
            out.mark(MARKS[place], *point, f"mark small {tone}", 2.6)
        out.text(x.stop + 8, ends[place] + 4, name, "label strong" if name == "all" else "label")
    return str(out)


def exposure_curves(models: Sequence[dict[str, Any]], training: dict[str, list[float]]) -> str:
    """Draw how much of all exposure the most shown items take, beside what was used.

    The share of the items is on a square-root scale: lists show a small part of a catalogue.
    """
    height = 320.0
    out = Drawing(
        "exposure-curves",
        WIDTH,
        height,
        "Share of all exposure that the most shown items take",
        "Gini index of exposure: "
        + "; ".join(f"{each['name']} {_plain(each['beyond']['gini'])}" for each in models),
    )
    x, y = Scale(0, 1, 44, WIDTH - 14, power=0.5), Scale(0, 1, height - 42, 22)
    ticks = (0.01, 0.05, 0.2, 0.5, 1)
    for share in ticks:
        out.line(x(share), y(0), x(share), y(1), "grid")
    labels = "share of the items, most shown first", "of all exposure"
    _axes(out, x, y, height, labels, ticks)
    even = [step / 40 for step in range(41)]
    out.path([(x(share), y(share)) for share in even], "guide line")
    out.text(x(0.49), y(0.53), "all items alike", "tick", "end")
    last = len(models) - 1
    lines = [("interactions", training, "soft")]
    for place, each in enumerate(models):
        kind = "main" if place == last else f"other {DASHES[1 + place % 4]}"
        lines.append((each["name"], each["curve"], kind))
    for place, (name, curve, kind) in enumerate(lines):
        pairs = zip(curve["items"], curve["held"], strict=True)
        out.path([(x(share), y(held)) for share, held in pairs], f"series {kind}")
        middle = y(0.06) - 17 * (len(lines) - 1 - place)
        out.line(x(0.36), middle, x(0.45), middle, f"series {kind}")
        out.text(x(0.476), middle + 4, _short(name), "label")
    return str(out)


def _spread(places: Sequence[float], room: float) -> list[float]:
    """Move labels apart so that none covers another; the order stays.

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


def _axes(
    out: Drawing,
    x: Scale,
    y: Scale,
    height: float,
    labels: tuple[str, str],
    shares: Sequence[float] = (),
) -> None:
    """Draw ticks, grid and labels; with `shares` as ticks across, both axes run from 0 to 100%."""
    text = "{:.0%}".format if shares else axis_text
    for tick in QUARTERS if shares else y.ticks(4):
        out.line(x.start, y(tick), x.stop, y(tick), "grid")
        out.text(x.start - 6, y(tick) + 4, text(tick), "tick", "end")
    for tick in shares or x.ticks(4):
        anchor = {0.0: "start", 1.0: "end"}.get(tick, "middle") if shares else "middle"
        out.text(x(tick), height - 26, text(tick), "tick", anchor)
    out.text(x.start - 6, 12, labels[1], "axis")
    out.text(x.stop, height - 8, labels[0], "axis", "end")


def _beside(out: Drawing, x: float, y: float, words: str, kind: str, scale: Scale) -> None:
    """Write a label so that it stays inside the drawing."""
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
