"""HTML of objects in notebooks: tables, small drawings, a progress line.

Text is escaped, so that ids and titles cannot become markup.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import Any, NamedTuple

from equipoise.display.drawing import STYLE, WIDTH, Drawing, Scale, axis_text, padded
from equipoise.runtime.machine import Pace, duration

ROW = 20.0
LABELS = 130.0  # width of the labels of a drawing
LONGEST = 19  # characters of a label
BAR = 20  # characters
PAUSE = 0.2  # seconds between two changes of a line


class Cell(NamedTuple):
    """A table cell with a tooltip."""

    text: str
    hint: str


class Interval(NamedTuple):
    """A value with the ends of its interval, None without one."""

    label: str
    value: float
    low: float | None
    high: float | None


def fragment(title: str, *parts: str, notes: Iterable[str] = ()) -> str:
    """Return HTML of a title, parts that are HTML already, and notes.

    >>> fragment("a < b", notes=["c & d"])
    '<p><b>a &lt; b</b></p><ul><li>c &amp; d</li></ul>'
    """
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<p><b>{escape(title)}</b></p>{''.join(parts)}" + (
        f"<ul>{lines}</ul>" if lines else ""
    )


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], words: int = 1) -> str:
    """Return an HTML table; columns after the first `words` are right-aligned.

    >>> table(["item", "score"], [["<b>", 0.5]]).partition("</tr>")[2]  # doctest: +ELLIPSIS
    '<tr><td style="text-align:left">&lt;b&gt;</td><td style="text-align:right">0.5</td></tr>...'
    """

    def line(cells: Sequence[Any], name: str) -> str:
        done = []
        for place, cell in enumerate(cells):
            side = "left" if place < words else "right"
            hint = f' title="{escape(cell.hint)}"' if isinstance(cell, Cell) else ""
            text = cell.text if isinstance(cell, Cell) else str(cell)
            style = f'style="text-align:{side}"'  # notebooks align every cell to the right
            done.append(f"<{name} {style}{hint}>{escape(text)}</{name}>")
        return f"<tr>{''.join(done)}</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def intervals(title: str, rows: Sequence[Interval], *, zero: bool = False) -> str:
    """Draw values as dots with their intervals, one per line; empty without values.

    With `zero`, a line marks 0, as for differences, instead of the axis starting there.
    """
    if not rows:
        return ""
    height = ROW * len(rows) + 26
    words = "; ".join(f"{row.label} {row.value:.4f}" for row in rows)
    out = Drawing(_name(title), WIDTH, height, title, words, STYLE)
    ends = [end for row in rows for end in (0.0, row.low, row.value, row.high) if end is not None]
    low, high = padded(ends) if zero else (0.0, max(ends) * 1.02)
    x, bottom = Scale(low, high, LABELS, WIDTH - 56), height - 20
    for tick in x.ticks(4):
        out.line(x(tick), 2, x(tick), bottom, "guide" if zero and tick == 0 else "grid")
        out.text(x(tick), height - 6, axis_text(tick), "tick", "middle")
    for place, row in enumerate(rows):
        middle = ROW * (place + 0.5)
        out.text(LABELS - 8, middle + 4, _short(row.label), "label", "end")
        if row.low is not None and row.high is not None:
            out.line(x(row.low), middle, x(row.high), middle, "span")
        out.mark("circle", x(row.value), middle, "mark", 3.5)
        out.text(WIDTH - 4, middle + 4, f"{row.value:.4f}", "value", "end")
    return _framed(str(out))


def shares(title: str, parts: Sequence[tuple[str, int]]) -> str:
    """Draw counts as bars, one per line."""
    height = ROW * len(parts) + 4
    words = "; ".join(f"{label} {count:,}" for label, count in parts)
    out = Drawing(_name(title), WIDTH, height, title, words, STYLE)
    x = Scale(0, max(count for _, count in parts), LABELS, WIDTH - 76)
    for place, (label, count) in enumerate(parts):
        top = ROW * place + 5
        corners = [(x(0), top), (x(count), top), (x(count), top + 10), (x(0), top + 10)]
        out.text(LABELS - 8, top + 9, label, "label", "end")
        out.path(corners, "mark", close="Z")
        out.text(x(count) + 6, top + 9, f"{count:,}", "value")
    return _framed(str(out))


def _framed(drawing: str) -> str:
    return f'<div style="max-width:32rem">{drawing}</div>'


class ProgressLine:
    """A progress bar for every `progress=` of the library.

    In a notebook it updates the output of the cell (without widgets), elsewhere a line on stderr.
    It can show several tasks one after the other.

    Parameters
    ----------
    what
        Label of the bar.

    Examples
    --------
    >>> import equipoise as eq, numpy as np
    >>> data = eq.Interactions(np.random.default_rng(0).random((80, 20)) < 0.3)
    >>> tuned = eq.tune(data, progress=eq.ProgressLine("tuning"))
    """

    def __init__(self, what: str = "") -> None:
        self.what = what
        self._done, self._start, self._shown = 0, time.monotonic(), 0.0
        self._pace = Pace()
        self._output: Any = None

    def __call__(self, *state: Any) -> None:
        """Show steps done and steps in all, or an object whose first two fields they are."""
        if len(state) == 1:
            done, total = (getattr(state[0], field.name) for field in fields(state[0])[:2])
        else:
            done, total = state
        now = time.monotonic()
        if done < self._done:  # the next task
            self._start, self._output, self._pace = now, None, Pace()
        self._done, left = done, self._pace.left(done, total)
        if now < self._shown + PAUSE and done < total:
            return
        self._shown = now
        best = getattr(state[0], "best_value", None)
        words = [self._bar(done, total), duration(now - self._start)]
        if left:
            words.append(f"about {duration(left)} left")
        if best is not None:
            words.append(f"best {best:.4f}")
        self._show(", ".join(words), done >= total)

    def _bar(self, done: int, total: int) -> str:
        full = round(BAR * done / max(total, 1))
        return f"{self.what} {'█' * full}{'░' * (BAR - full)} {done:,} of {total:,}".strip()

    def _show(self, text: str, last: bool) -> None:
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if not hasattr(shell, "kernel"):
            print(f"\r{text:<79}", end="\n" if last else "", file=sys.stderr, flush=True)
            return
        from IPython.display import display

        shown = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if self._output is None:
            self._output = display(shown, raw=True, display_id=True)
        else:
            self._output.update(shown, raw=True)


def _name(title: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
