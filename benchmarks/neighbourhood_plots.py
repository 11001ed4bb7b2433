"""Plot the results of the benchmarks of the neighbourhood engine.

    python benchmarks/neighbourhood_plots.py benchmarks/results/neighbourhood docs/_static

The first folder has curve.csv (from `neighbourhood_curve.py`) and growth.jsonl (one line per run
of `neighbourhood.py synthetic`). A plot is skipped if its file is missing.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.display.drawing import STYLE, Drawing, Scale, padded
from equipoise.solve.neighbourhood import ROW_ENTRIES

WIDTH, HEIGHT = 420.0, 300.0
COLOURS = ("#0b6e4f", "#a3480b", "#2a5db0", "#7a3b8f")
LINES = "".join(
    f".equipoise .l{at}{{fill:none;stroke:{colour};stroke-width:1.5}}.equipoise .d{at}"
    f"{{fill:none;stroke:{colour};stroke-dasharray:3 3}}.equipoise .t{at}{{fill:{colour};"
    "font-size:10.5px}"
    for at, colour in enumerate(COLOURS)
)
Points = list[tuple[float, float]]


def drawn(
    name: str,
    title: str,
    words: str,
    labels: tuple[str, str],
    ticks: Sequence[float],
    lines: Sequence[tuple[str, int, str, Points]],
    log_y: bool = False,
) -> str:
    """Return an SVG plot of lines (class, colour, label, points) over a logarithmic axis."""
    out = Drawing(name, WIDTH, HEIGHT, title, words, STYLE + LINES)

    def up(value: float) -> float:
        return math.log10(value) if log_y else value

    every = [up(value) for *_, points in lines for _, value in points]
    x = Scale(math.log10(ticks[0]), math.log10(ticks[-1]), 46, WIDTH - 28)
    y = Scale(*padded(every), HEIGHT - 44, 26)
    for tick in ticks:
        out.text(x(math.log10(tick)), HEIGHT - 28, f"{tick:,.0f}", "tick", "middle")
    for tick in range(math.ceil(y.low), math.floor(y.high) + 1) if log_y else y.ticks(5):
        out.line(x.start, y(tick), x.stop, y(tick), "grid")
        out.text(x.start - 6, y(tick) + 4, f"{10.0**tick if log_y else tick:g}", "tick", "end")
    out.text(8, 14, labels[1], "axis")
    out.text(x.stop, HEIGHT - 10, labels[0], "axis", "end")
    names = 0
    for kind, colour, label, points in lines:
        out.path([(x(math.log10(a)), y(up(b))) for a, b in sorted(points)], f"{kind}{colour}")
        if label:
            out.text(x.stop, HEIGHT - 60 - 13 * names, label, f"t{colour}", "end")
            names += 1
    return str(out)


def curve(file: Path) -> str:
    rows = list(csv.DictReader(file.open()))
    lines: list[tuple[str, int, str, Points]] = []
    sets = [(d, p) for d in ("gowalla", "yelp2018") for p in ("strong", "weak")]
    for colour, (dataset, protocol) in enumerate(sets):
        set_rows = [
            row for row in rows if (row["dataset"], row["protocol"]) == (dataset, protocol)
        ]
        exact = [
            row for row in set_rows if row["engine"] == "exact" and row["companion"] == "none"
        ]
        for kind, companion in (("l", "chosen"), ("d", "none")):
            points = [
                (float(row["neighbours"]), 100 * float(row["ndcg@20"]) / float(e["ndcg@20"]))
                for e in exact
                for row in set_rows
                if row["engine"] == "neighbourhood"
                and row["companion"] == companion
                and int(row["kept"]) == ROW_ENTRIES * int(row["neighbours"])
            ]
            if points:
                label = f"{dataset} {protocol}" if kind == "l" else ""
                lines.append((kind, colour, label, points))
    return drawn(
        "neighbourhoods",
        "NDCG@20 of neighbourhoods over K",
        "percent of the exact solve without companion; dashed without companion, solid with it",
        (
            "neighbours K; solid with LowPass, dashed without",
            "NDCG@20, % of exact without LowPass",
        ),
        (50, 100, 200, 400, 800, 1600),
        lines,
    )


def growth(file: Path) -> str:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    names = {"fit_processor_seconds": "processor seconds of the fit", "peak_gb": "peak GB"}
    lines = [
        ("l", colour, label, [(row["items"], row[name]) for row in rows])
        for colour, (name, label) in enumerate(names.items())
    ]
    ticks = sorted(row["items"] for row in rows)
    first = min(rows, key=lambda row: row["items"])
    for colour, name in enumerate(names):
        slope = [(at, first[name] * at / first["items"]) for at in (ticks[0], ticks[-1])]
        lines.append(("d", colour, "", slope))
    words = "time and memory from the smallest size up, both axes logarithmic; dashed: linear"
    labels = ("items (30 interactions each); dashed: linear", "seconds, GB")
    return drawn("growth", "Cost of a fit with 100 neighbours", words, labels, ticks, lines, True)


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name, file, draw in (
        ("neighbourhood_curve.svg", folder / "curve.csv", curve),
        ("neighbourhood_growth.svg", folder / "growth.jsonl", growth),
    ):
        if file.exists():
            (out / name).write_text(draw(file) + "\n")


if __name__ == "__main__":
    main()
