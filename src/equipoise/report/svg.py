"""A small drawing board for charts in a page: escaped text, classes instead of colours.

Colours live in the page's style sheet, so that charts follow light and dark. Series differ by
marker and dash as well as by colour, and every drawing carries a title and a description.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

MARKS = ("circle", "square", "diamond", "triangle")


class Drawing:
    """An SVG image that grows by calls and is read out with `str`.

    Parameters
    ----------
    name
        Prefix of ids; unique in a page.
    width, height
        Of the view box; a page scales it to the room there is.
    title
        What the image is, in a few words.
    description
        What it shows, for those who cannot see it.
    """

    def __init__(self, name: str, width: float, height: float, title: str, description: str):
        self.width, self.height = width, height
        self._head = (
            f'<svg class="chart" role="img" viewBox="0 0 {_n(width)} {_n(height)}" '
            f'aria-labelledby="{escape(name)}-title {escape(name)}-desc">'
            f'<title id="{escape(name)}-title">{escape(title)}</title>'
            f'<desc id="{escape(name)}-desc">{escape(description)}</desc>'
        )
        self._parts: list[str] = []

    def line(
        self, x1: float, y1: float, x2: float, y2: float, kind: str, *, step: int | None = None
    ) -> None:
        """Draw a straight line; `step` ties it to a position of the dial."""
        place = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        self._parts.append(f'<line class="{kind}" {place}{_step(step)}/>')

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line through points."""
        joined = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self._parts.append(f'<path class="{kind}" d="M{joined}"/>')

    def area(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Fill the shape between points."""
        joined = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self._parts.append(f'<path class="{kind}" d="M{joined}Z"/>')

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
    """

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        if not high > low:
            spread = abs(low) * 0.1 or 0.1
            low, high = low - spread, high + spread
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

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
