"""The overview of the reproduction: every table and figure with its status."""

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
    """Renew the generated part of the paper folder's README; the text around it stays."""
    file = paper / "README.md"
    text = file.read_text(encoding="utf-8") if file.is_file() else f"{START}\n{END}\n"
    if START not in text or END not in text:
        text = f"{text.rstrip()}\n\n{START}\n{END}\n"
    before, after = text.split(START)[0], text.split(END)[1]
    write_text(file, f"{before}{START}\n{overview(paper)}\n{END}{after}")


def overview(paper: Path) -> str:
    """Return a summary, then one section per table and figure, in Markdown."""
    lines = ["| | what | status |", "|---|---|---|"]
    sections = []
    for name in names(paper):
        config = load_config(paper / f"{name}.toml")
        status, section = _part(paper, config)
        lines.append(f"| [{name}](#{name}) | {config.title} | {status} |")
        sections.append(section)
    return "\n".join([*lines, "", *sections])


def _part(paper: Path, config: Config) -> tuple[str, str]:
    """Return the status in a few words, and the section."""
    head = [f'<a id="{config.name}"></a>', "", f"## {config.title}", ""]
    results = stored(paper, config)
    if config.columns:
        status, body = _counts(results["status"]), _table(config, results)
    else:
        shown = panels(config, results)
        status, body = _counts(shown["status"]), _figure(paper, config, results, shown)
    return status, "\n".join([*head, *body, ""])


def _counts(statuses: pl.Series) -> str:
    counts = statuses.value_counts(sort=True).sort("count", "status", descending=[True, False])
    return ", ".join(f"{count} {status}" for status, count in counts.rows())


def _table(config: Config, results: pl.DataFrame) -> list[str]:
    commands = sorted(set(results["command"].drop_nulls()) - {""})
    lines = [f"Cells: {_counts(results['status'])}."]
    if config.tuned_on_test:
        lines.append("Settings were chosen on the test set, as in the published tables.")
    lines += [f"Command: `{command}`" for command in commands]
    absent = [name for name in config.datasets if not was_run(results, name)]
    if absent:
        lines += [
            "",
            f"Not run here: {', '.join(absent)}. Pass the folder with the data to fill it.",
        ]
    kept = results.filter(~pl.col("dataset").is_in(absent))
    if not kept.height:
        return lines
    heads = [column.replace("aoa_", "") for column in config.columns]
    lines += ["", "| data | row | " + " | ".join(heads) + " | status | settings, machine |"]
    lines.append("|---|---|" + "---|" * (len(heads) + 2))
    for key, cells in kept.group_by("dataset", "row", maintain_order=True):
        lines.append(_line(str(key[0]), str(key[1]), cells.to_dicts()))
    return lines


def was_run(results: pl.DataFrame, dataset: str) -> bool:
    """Whether any row was run on a data set."""
    return bool(results.filter(pl.col("dataset") == dataset)["ours"].is_not_null().any())


def _figure(paper: Path, config: Config, found: pl.DataFrame, panels: pl.DataFrame) -> list[str]:
    have = panels.filter(pl.col("points") > 0)
    lines = []
    if (paper / "figures" / f"{config.name}.png").is_file():
        lines += [f"![{config.title}](figures/{config.name}.png)", ""]
    many = panels["curve"].n_unique() > 1
    shown = [f"{_panel(row, many)}: {row['status']}" for row in have.to_dicts()]
    absent = [_panel(row, many) for row in panels.filter(pl.col("points") == 0).to_dicts()]
    shown += [f"{NOT_RUN}: {', '.join(absent)}"] if absent else []
    lines.append(f"Panels: {'; '.join(shown)}.")
    if not have.height:
        return lines
    stem = f"figures/{config.name}"
    ways = f"[SVG]({stem}.svg), [numbers drawn]({stem}.csv)"
    lines.append(f"Files: {ways}, [points with settings](results/{config.name}.csv).")
    lines += [f"Command: `{each}`" for each in sorted(set(found["command"]) - {"", None})]
    machines = ", ".join(sorted(set(found["machine"].drop_nulls())))
    seconds = found.unique(["dataset", "curve", "point"])["seconds"].sum()
    lines += [f"Machine: {machines}; {seconds:,.0f} s of computing.", ""]
    if config.options.get("note"):
        lines += [str(config.options["note"]), ""]
    return lines + [f"- {text}" for text in claims(config, found)]


def _panel(row: dict[str, Any], many: bool) -> str:
    return f"{row['dataset']} over {row['curve']}" if many else str(row["dataset"])


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
    published = "" if cell["published"] is None else in_words(cell["published"])
    return published if cell["ours"] is None else f"{published} / **{in_words(cell['ours'])}**"


def in_words(value: float) -> str:
    """Four decimals for metrics, fewer for seconds and counts."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4f}" if size < 2 else f"{value:.2f}"


def _settings(text: str | None) -> str:
    settings = json.loads(text or "null") or {}
    shown = []
    for name, value in settings.items():
        if name == "model":
            shown.append(str(value))
        elif isinstance(value, dict) and "name" in value:
            inner = ", ".join(
                f"{key} {_plain(part)}" for key, part in value.items() if key != "name"
            )
            shown.append(f"{value['name']}({inner})")
        elif value is not None:
            shown.append(f"{name} {_plain(value)}")
    return " ".join(shown)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " / ".join(_plain(each) for each in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
