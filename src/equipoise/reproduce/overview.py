"""The overview of the reproduction: every row of every table with its status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from equipoise.reproduce.config import Config, load_config
from equipoise.reproduce.tables import complete, read_results, write_text

START, END = "<!-- generated: start -->", "<!-- generated: end -->"


def write_overview(paper: Path) -> None:
    """Renew the generated part of the paper folder's README; what people wrote around it stays."""
    file = paper / "README.md"
    text = file.read_text(encoding="utf-8") if file.is_file() else f"{START}\n{END}\n"
    if START not in text or END not in text:
        text = f"{text.rstrip()}\n\n{START}\n{END}\n"
    before, after = text.split(START)[0], text.split(END)[1]
    write_text(file, f"{before}{START}\n{overview(paper)}\n{END}{after}")


def overview(paper: Path) -> str:
    """Return the tables in Markdown, one section each, with a count of statuses in front."""
    parts = []
    for file in sorted(paper.glob("*.toml")):
        config = load_config(file)
        results = complete(config, read_results(paper / "results" / f"{config.name}.csv"))
        parts.append(_section(config, results))
    return "\n".join(parts)


def _section(config: Config, results: pl.DataFrame) -> str:
    counts = results["status"].value_counts(sort=True).rows()
    summary = ", ".join(f"{count} {status}" for status, count in counts)
    commands = sorted(set(results["command"].drop_nulls()) - {""})
    lines = [f"## {config.title}", "", f"Cells: {summary}."]
    if config.tuned_on_test:
        lines.append("Settings were chosen on the test set, by us as by everybody else.")
    lines += [f"Command: `{command}`" for command in commands]
    heads = [column.replace("aoa_", "") for column in config.columns]
    lines += ["", "| data | row | " + " | ".join(heads) + " | status | settings, machine |"]
    lines.append("|---|---|" + "---|" * (len(heads) + 2))
    for key, cells in results.group_by("dataset", "row", maintain_order=True):
        lines.append(_line(str(key[0]), str(key[1]), cells.to_dicts()))
    return "\n".join([*lines, ""])


def _line(dataset: str, row: str, cells: list[dict[str, Any]]) -> str:
    shown = [_cell(cell) for cell in cells]
    statuses = sorted({str(cell["status"]) for cell in cells})
    note = next((cell["note"] for cell in cells if cell["note"]), "")
    first = cells[0]
    how = _settings(first["settings"]) if first["ours"] is not None else ""
    if first["machine"]:
        how = f"{how}; {first['machine']}, fit {first['fit_seconds']:.1f} s"
    status = ", ".join(statuses) + (f": {note}" if note else "")
    return f"| {dataset} | {row} | " + " | ".join(shown) + f" | {status} | {how} |"


def _cell(cell: dict[str, Any]) -> str:
    published = "" if cell["published"] is None else f"{cell['published']:.4f}"
    return published if cell["ours"] is None else f"{published} / **{cell['ours']:.4f}**"


def _settings(text: str | None) -> str:
    settings = json.loads(text or "null") or {}
    shown = []
    for name, value in settings.items():
        if name == "model":
            shown.append(str(value))
        elif isinstance(value, dict):
            inner = ", ".join(f"{key} {part:g}" for key, part in value.items() if key != "name")
            shown.append(f"{value['name']}({inner})")
        else:
            shown.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return " ".join(shown)
