"""SVG drawings without a plotting library: marks, scales and axes.

Drawings have CSS classes instead of colours, so that a page can style them for light and dark; a
standalone image carries `STYLE`. They are 360 units wide, to be readable on a telephone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH = 360.0
QUARTERS = (0, 0.25, 0.5, 0.75, 1)
# of a standalone drawing; every rule names the class, since a notebook shares its styles, and text
# has the colour of the text around it, in a light and in a dark notebook
STYLE = (
    ".equipoise{font:11.5px sans-serif;fill:currentColor}"
    ".equipoise .grid,.equipoise .guide{stroke:currentColor;opacity:.15}"
    ".equipoise .guide{opacity:.6}"
    ".equipoise .tick,.equipoise .axis{opacity:.7;font-size:10.5px}"
    ".equipoise .series{fill:none;stroke:#1f9e78;stroke-width:1.5}"
    ".equipoise .point{fill:currentColor;opacity:.3}"
    ".equipoise .mark{fill:#1f9e78}.equipoise .span{stroke:#1f9e78;stroke-width:2}"
)


class Drawing:
    """An SVG image, built by calls and converted with `str`.

    `name` is a prefix of ids, unique in a page; screen readers read title and description; `style`
    is the style sheet of a standalone image, in a file or a notebook.
    """

    def __init__(
        self, name: str, width: float, height: float, title: str, description: str, style: str = ""
    ) -> None:
        style_element = f"<style>{style}</style>" if style else ""
        namespace = 'xmlns="http://www.w3.org/2000/svg" ' if style else ""
        kind = "chart equipoise" if style else "chart"
        self._head = (
            f'<svg {namespace}class="{kind}" role="img" viewBox="0 0 {_n(width)} {_n(height)}" '
            f'aria-labelledby="{escape(name)}-title {escape(name)}-desc">'
            f'<title id="{escape(name)}-title">{escape(title)}</title>'
            f'<desc id="{escape(name)}-desc">{escape(description)}</desc>{style_element}'
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
        """Draw a marker; `hint` is its tooltip."""
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
    """Maps values from `low` to `high` to positions from `start` to `stop` in a drawing.

    A `power` of 1/2 draws the square root, which gives small values more room.
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
        """Return the position of a value."""
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
    """Return the range of values with a margin on both sides.

    >>> padded([1.0, 3.0], 0.5)
    (0.0, 4.0)
    """
    low, high = min(values), max(values)
    margin = share * (high - low)
    return low - margin, high + margin


def axis_text(value: float) -> str:
    """Return the label of a tick.

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


def axes(
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
