"""Write the table and the plots of a finished run."""

from __future__ import annotations

import io
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.display.drawing import STYLE, Drawing, Scale, axis_text, padded

Row = dict[str, Any]

COLUMNS = (
    "data",
    "users",
    "items",
    "pairs",
    "lists",
    "floor_s",
    "library",
    "version",
    "model",
    "way",
    "settings",
    "fit_s",
    "fit_by_floor",
    "peak_mb",
    "peak_by_array",
    "rank_s",
    "ndcg",
    "tail_ndcg",
    "coverage",
    "date",
    "error",
    "note",
)
KEY = ["data", "library", "model", "way"]
HEADS = (
    "library",
    "model",
    "settings",
    "fit s",
    "of floor",
    "peak MB",
    "top-20 s",
    "NDCG@20",
    "tail NDCG@20",
    "coverage",
)

NOTES = """
Notes on single rows. EASE of RecTools ranks with the transposed weights, because it passes them
to a ranker of item factors. EASE of Cornac drops negative weights by default. LensKit ranks one
user after the other, here in one process; its item kNN was configured for data without ratings.
RecBole has no call for lists of training users, so torch masks its scores and selects the top 20,
as in its evaluation. For irspack its own function does so, in batches of 1,024. sansa has no
defaults: it has 100 weights per item and the penalty of its description, and numpy selects its
top 20, since its own lists fail if fewer than 20 items have a score. The rules behind equipoise's
automatic settings were fitted to other splits of several data sets, including MovieLens 1M and
Gowalla (docs/evidence-tuning.md). Models without a searched row were not searched."""


def full(row: Row) -> Row:
    """Add the ratios of time to the floor and of memory to one n x n float32 array to a row."""
    out = dict.fromkeys(COLUMNS) | {name: row.get(name) for name in COLUMNS}
    out["settings"] = json.dumps(row["settings"])[1:-1].replace('"', "")
    if row.get("fit_s") is not None:
        out["fit_by_floor"] = row["fit_s"] / row["floor_s"]
        out["peak_mb"] = row["peak_bytes"] / 1e6
        out["peak_by_array"] = row["peak_bytes"] / (4 * row["items"] ** 2)
    return out


def last_run(file: Path) -> pl.DataFrame | None:
    """Return the table of the last commit, or None."""
    shown = subprocess.run(
        ["git", "show", f"HEAD:./{file.name}"], cwd=file.parent, capture_output=True
    )
    return None if shown.returncode else pl.read_csv(io.BytesIO(shown.stdout))


def with_earlier(rows: pl.DataFrame, earlier: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of this run and earlier rows that it did not replace, by data set."""
    both = pl.concat([earlier, rows], how="diagonal_relaxed").select(COLUMNS)
    newest = both.unique(KEY, keep="last", maintain_order=True)
    order = {name: place for place, name in enumerate(both["data"].unique(maintain_order=True))}
    return newest.sort(pl.col("data").replace_strict(order), maintain_order=True)


def short(rows: pl.DataFrame) -> list[str]:
    """Return a table of each library's best model per data set and the cost of its EASE."""
    names = rows["data"].unique(maintain_order=True).to_list()
    exact = rows.filter(pl.col("model").is_in(["EASE", "DenseSLIM"]), way="default")
    costly = exact["data"][-1] if exact.height else names[-1]
    last = f"EASE on {costly}: fit s, peak MB, top-20 s"
    out = [f"| NDCG@20, defaults / searched | {' | '.join(names)} | {last} |"]
    out.append("|---" * (len(names) + 2) + "|")
    for library in rows["library"].unique(maintain_order=True):
        library_rows = rows.filter(library=library).drop_nulls("fit_s")
        cells = []
        for name in names:
            both = []
            for way in ("default", "searched"):
                best = library_rows.filter(data=name, way=way).sort("ndcg").tail(1)
                both += [f"{row['ndcg']:.3f} {row['model']}" for row in best.iter_rows(named=True)]
            cells.append(" / ".join(both) or "-")
        cost = [
            f"{row['fit_s']:.1f}, {row['peak_mb']:,.0f}, {row['rank_s']:.1f}"
            for row in exact.filter(library=library, data=costly)
            .drop_nulls("fit_s")
            .rows(named=True)
        ]
        out.append(f"| {library} | {' | '.join(cells)} | {(cost or ['-'])[0]} |")
    return out


def regressions(rows: pl.DataFrame, before: pl.DataFrame | None) -> list[str]:
    """Return the ratios of our times to the last run, each relative to its machine's floor."""
    nothing = ["No earlier run of these was committed."]
    if before is None:
        return nothing
    ours = [frame.filter(library="equipoise") for frame in (rows, before)]
    pairs = ours[0].join(ours[1], on=KEY, suffix="_before").drop_nulls("fit_s")
    if pairs.is_empty():
        return nothing
    out = ["| data | model | settings | fit | top-20 | NDCG@20 |", "|---|---|---|--:|--:|--:|"]
    for row in pairs.iter_rows(named=True):
        fit = row["fit_by_floor"] / row["fit_by_floor_before"]
        ranked, then = (row[f"rank_s{end}"] / row[f"floor_s{end}"] for end in ("", "_before"))
        quality = row["ndcg"] / row["ndcg_before"]
        out.append(
            f"| {row['data']} | {row['model']} | {row['way']} | {fit:.2f} | {ranked / then:.2f} "
            f"| {quality:.3f} |"
        )
    return out


def lines(rows: pl.DataFrame) -> list[str]:
    """Return the table of one data set, best NDCG first."""
    out = ["| " + " | ".join(HEADS) + " |", "|---|---|---" + "|--:" * (len(HEADS) - 3) + "|"]
    best = rows["ndcg"].max()
    for row in rows.sort("ndcg", descending=True, nulls_last=True).iter_rows(named=True):
        name = f"**{row['library']}**" if row["library"] == "equipoise" else row["library"]
        settings = row["settings"] or ("its defaults" if row["way"] == "default" else "none found")
        settings += f" ({row['note']})" if row["note"] else ""
        head = f"| {name} | {row['model']} | {settings} "
        if row["fit_s"] is None:
            out.append(head + f"| {row['error']} " + "| " * (len(HEADS) - 4) + "|")
            continue
        ndcg = f"{row['ndcg']:.4f}"
        out.append(
            f"{head}| {row['fit_s']:.2f} | {row['fit_by_floor']:.1f} | {row['peak_mb']:,.0f} "
            f"| {row['rank_s']:.2f} | {f'**{ndcg}**' if row['ndcg'] == best else ndcg} "
            f"| {row['tail_ndcg']:.4f} | {row['coverage']:.0%} |"
        )
    return out


def ahead(rows: pl.DataFrame) -> list[str]:
    """Return lines that name the models of other libraries with a better NDCG than ours."""
    done = rows.drop_nulls("fit_s")
    ours = done.filter(pl.col("library") == "equipoise", way="default")
    other_rows = done.filter(pl.col("library") != "equipoise")
    out = []
    for our_row in ours.iter_rows(named=True):
        better_by_way = []
        for way in ("default", "searched"):
            better = other_rows.filter(pl.col("ndcg") > our_row["ndcg"], way=way).sort("ndcg")
            names = [f"{row['library']} {row['model']}" for row in better.iter_rows(named=True)]
            better_by_way.append(f"{way}: {', '.join(names[::-1]) or 'none'}")
        out.append(
            f"- {our_row['model']} ({our_row['ndcg']:.4f}): " + "; ".join(better_by_way) + "."
        )
    return out


def drawing(name: str, rows: pl.DataFrame) -> str:
    """Plot NDCG against the fit time on a logarithmic axis, with filled marks for equipoise."""
    width, height = 600.0, 320.0
    done = rows.drop_nulls("fit_s").sort("ndcg", descending=True)
    words = f"{done.height} models and settings on {name}; filled: equipoise"
    title = f"NDCG@20 against the seconds of a fit, {name}"
    out = Drawing(f"peers-{name}", width, height, title, words, STYLE)
    across = [math.log10(value) for value in done["fit_s"]]
    x = Scale(*padded(across), 48, width - 170)  # leaves room for labels on the right
    y = Scale(*padded(done["ndcg"].to_list()), height - 42, 22)
    for power in range(math.ceil(x.low), math.floor(x.high) + 1):
        out.line(x(power), y.start, x(power), y.stop, "grid")
        out.text(x(power), height - 26, f"{10.0**power:g} s", "tick", "middle")
    for tick in y.ticks(4):
        out.line(x.start, y(tick), width, y(tick), "grid")
        out.text(x.start - 6, y(tick) + 4, axis_text(tick), "tick", "end")
    out.text(x.start - 6, 12, "NDCG@20", "axis")
    out.text(x.stop, height - 8, "time of a fit", "axis", "end")
    named: set[str] = set()
    labelled_points: list[tuple[float, float]] = []
    for row, place in zip(done.iter_rows(named=True), across, strict=True):
        ours, at = row["library"] == "equipoise", (x(place), y(row["ndcg"]))
        label = f"{row['library']} {row['model']}"
        out.mark("circle", *at, "mark" if ours else "point", 4, hint=f"{label}, {row['way']}")
        free = all(abs(at[0] - a) > 110 or abs(at[1] - b) > 11 for a, b in labelled_points)
        if free and (label if ours else row["library"]) not in named:
            named.add(label if ours else row["library"])
            labelled_points.append(at)
            out.text(at[0] + 7, at[1] + 4, label, "tick")
    return str(out)


def write(folder: Path, rows: list[Row], errors: dict[str, str], machine: str) -> None:
    """Write peers.csv and a plot per data set to `folder`, and peers.md to its parent."""
    measured = frame = pl.DataFrame([full(row) for row in rows], infer_schema_length=None)
    file = folder / "peers.csv"
    before = last_run(file)
    if file.exists():
        frame = with_earlier(measured, pl.read_csv(file, infer_schema_length=None))
    frame.write_csv(file, float_precision=5)
    text = [
        "# Comparison with other libraries",
        "",
        f"`make bench`, {frame['date'].max()}; {machine}. The table is also in results/peers.csv.",
        "",
        "One process per model on an idle machine. For each setting: the minimum of up to",
        "three fits their peak memory on top of the data, and lists of 20 for the same users.",
        "Data objects, imports and compilation are not counted. *Of floor*: the time of a fit",
        "divided by that of n^3 operations at the rate of a float32 matrix product, measured",
        "in the same run. Settings other than the defaults are the best of at most six, by",
        "NDCG@20 on the valid part; the two automatic rows of equipoise use the train part",
        "only. `eq.evaluate` evaluates all lists. `benchmarks/bench.py` describes each stage.",
        NOTES,
        "",
        "Versions: "
        + ", ".join(
            f"{name} {version}"
            for name, version in frame.select("library", "version").unique().sort("library").rows()
        )
        + ".",
    ]
    text += ["", "The best model of each library:", "", *short(frame), ""]
    for name, error in errors.items():
        text.append(f"Not installed: {name} (`{error.splitlines()[1][:120]}`).")
    for (name,), set_rows in frame.group_by("data", maintain_order=True):
        first_row = set_rows.row(0, named=True)
        (folder / f"peers-{name}.svg").write_text(drawing(str(name), set_rows), encoding="utf-8")
        text += [
            "",
            f"## {name}",
            "",
            f"{first_row['users']:,} users, {first_row['items']:,} items, "
            f"{first_row['pairs']:,} pairs in train; "
            f"lists for {first_row['lists']:,} users; floor {first_row['floor_s']:.2f} s.",
            "",
            *lines(set_rows),
            "",
            f"![NDCG@20 against fit time](results/peers-{name}.svg)",
            "",
            "Ahead of equipoise's own settings in NDCG@20:",
            "",
            *ahead(set_rows),
        ]
    text += ["", "## Compared with the last committed run", "", *regressions(measured, before), ""]
    (folder.parent / "peers.md").write_text("\n".join(text), encoding="utf-8")
