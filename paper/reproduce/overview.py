"""The overview of the reproduction: every table and figure with its status, in Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from reproduce.claims import claims
from reproduce.config import Config, load_config, names
from reproduce.figures import panels
from reproduce.results import NOT_RUN, write_text
from reproduce.runner import stored

START, END = "<!-- generated: start -->", "<!-- generated: end -->"


def write_overview(paper: Path) -> None:
    """Rewrite the generated part of the paper folder's README; the text around it stays."""
    file = paper / "README.md"
    text = file.read_text(encoding="utf-8") if file.is_file() else f"{START}\n{END}\n"
    if START not in text or END not in text:
        text = f"{text.rstrip()}\n\n{START}\n{END}\n"
    before, after = text.split(START)[0], text.split(END)[1]
    write_text(file, f"{before}{START}\n{overview(paper)}\n{END}{after}")


def overview(paper: Path) -> str:
    """Return a summary, then one section per table and figure."""
    lines, sections = ["| | what | status |", "|---|---|---|"], []
    for name in names(paper):
        config = load_config(paper / f"{name}.toml")
        results = stored(paper, config)
        shown = results if config.columns else panels(config, results)
        body = _table(config, results) if config.columns else _figure(paper, config, results)
        lines.append(f"| [{name}](#{name}) | {config.title} | {_counts(shown['status'])} |")
        sections += [f'<a id="{name}"></a>', "", f"## {config.title}", "", *body, ""]
    return "\n".join([*lines, "", *sections])


def _counts(statuses: pl.Series) -> str:
    counts = statuses.value_counts(sort=True).sort("count", "status", descending=[True, False])
    return ", ".join(f"{count} {status}" for status, count in counts.rows())


def _commands(results: pl.DataFrame) -> list[str]:
    return [f"Command: `{command}`" for command in sorted(set(results["command"]) - {"", None})]


def _table(config: Config, results: pl.DataFrame) -> list[str]:
    lines = [f"Cells: {_counts(results['status'])}."]
    if config.tuned_on_test:
        lines.append("Settings were chosen on the test set, as in the published tables.")
    lines += _commands(results)
    absent = [name for name in config.datasets if not was_run(results, name)]
    if absent:
        remedy = "Pass the folder with the data to fill it."
        lines += ["", f"Not run here: {', '.join(absent)}. {remedy}"]
    computed = results.filter(~pl.col("dataset").is_in(absent))
    if computed.height:
        heads = [column.replace("aoa_", "") for column in config.columns]
        lines += ["", f"| data | row | {' | '.join(heads)} | status | settings, machine |"]
        lines.append("|---|---|" + "---|" * (len(heads) + 2))
    for _, cells in computed.group_by("dataset", "row", maintain_order=True):
        lines.append(_line(cells.to_dicts()))
    return lines


def was_run(results: pl.DataFrame, dataset: str) -> bool:
    """Whether any row was run on a data set."""
    return bool(results.filter(dataset=dataset)["ours"].is_not_null().any())


def _line(cells: list[dict[str, Any]]) -> str:
    """Return a row of a table: published and ours, statuses with a note, settings, machine."""
    first, shown = cells[0], []
    for cell in cells:
        published = "" if cell["published"] is None else in_words(cell["published"])
        ours = "" if cell["ours"] is None else f" / **{in_words(cell['ours'])}**"
        shown.append(f"{published}{ours}")
    note = next((f": {cell['note']}" for cell in cells if cell["note"]), "")
    status = ", ".join(sorted({cell["status"] for cell in cells})) + note
    details = settings_text(json.loads(first["settings"])) if first["ours"] is not None else ""
    if first["machine"]:
        details = f"{details}; {first['machine']}, fit {first['fit_seconds']:.1f} s"
    return f"| {' | '.join([first['dataset'], first['row'], *shown, status, details])} |"


def _figure(paper: Path, config: Config, points: pl.DataFrame) -> list[str]:
    shown, absent, stem = [], [], f"figures/{config.name}"
    for line in panels(config, points).to_dicts():
        both = len(config.options["curves"]) > 1
        panel = f"{line['dataset']} over {line['curve']}" if both else line["dataset"]
        if line["points"]:
            shown.append(f"{panel}: {line['status']}")
        else:
            absent.append(panel)
    shown += [f"{NOT_RUN}: {', '.join(absent)}"] if absent else []
    lines = [f"Panels: {'; '.join(shown)}."]
    if (paper / f"{stem}.png").is_file():
        lines = [f"![{config.title}]({stem}.png)", "", *lines]
    if not points.height:
        return lines
    ways = f"[SVG]({stem}.svg), [numbers drawn]({stem}.csv)"
    lines.append(f"Files: {ways}, [points with settings](results/{config.name}.csv).")
    machines = ", ".join(sorted(set(points["machine"].drop_nulls())))
    seconds = points.unique(["dataset", "curve", "point"])["seconds"].sum()
    lines += [*_commands(points), f"Machine: {machines}; {seconds:,.0f} s of computing.", ""]
    if config.options.get("note"):
        lines += [config.options["note"], ""]
    return lines + [f"- {text}" for text in claims(config, points)]


def in_words(value: float) -> str:
    """Four decimals for metrics, fewer for seconds and counts."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4f}" if size < 2 else f"{value:.2f}"


def settings_text(value: Any) -> str:
    """Return settings in words.

    >>> settings_text({"model": "LAE", "l2": 20.0, "normalizer": {"name": "DAN", "beta": 0.2}})
    'LAE l2 20 DAN(beta 0.2)'
    """
    if isinstance(value, list):
        return " / ".join(settings_text(setting) for setting in value)
    if not isinstance(value, dict):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    if "name" in value:
        inner = [f"{key} {settings_text(part)}" for key, part in value.items() if key != "name"]
        return f"{value['name']}({', '.join(inner)})"
    return " ".join(
        settings_text(setting)
        if name == "model" or isinstance(setting, dict)
        else f"{name} {settings_text(setting)}"
        for name, setting in value.items()
        if setting is not None
    )
