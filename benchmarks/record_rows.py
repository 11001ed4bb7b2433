"""Copy the metrics of finished searches and trainings into the results of the paper's tables.

    python benchmarks/record_rows.py --paper paper benchmarks/results/*.json

Reads the files of `neural.py` and `validation_search.py`. Metrics are copied if a config has a row
with the same settings (for a neural model, with the best epoch as number of epochs), so that
`paper/run.py` does not run it again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paper_path  # noqa: F401  puts `reproduce` on the path

import equipoise as eq
from equipoise.models.saving import build
from reproduce.config import Config, Row, load_config
from reproduce.overview import write_overview
from reproduce.results import CELLS, as_frame, cells, put, read_lines, write_text
from reproduce.runner import completed

TABLES = {
    "weak": ("table4",),
    "strong": ("table3", "table5", "table8", "table3_tuned", "table8_tuned"),
}
COURSE = ("epochs", "patience", "evaluate_every")  # training schedule, not part of the model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paper", type=Path, default=Path("paper"))
    parser.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    for file in args.files:
        stored = json.loads(file.read_text())
        for entry in finished(stored) if isinstance(stored, dict) else ():
            for name in TABLES[entry["protocol"]]:
                take(args.paper, load_config(args.paper / f"{name}.toml"), entry)
    write_overview(args.paper)


def finished(stored: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the finished models of a file with their settings and test metrics."""
    if "chosen_by" in stored:
        metrics = stored.get("metrics") or stored["chosen_by"]
        times = (stored["chosen_by"]["seconds"], stored.get("evaluate_seconds", 0.0))
        command = (
            f"python benchmarks/neural.py --data data --set {stored['set']} "
            f"--protocol {stored['protocol']} --model {stored['model']} {options(stored)}"
        ).strip()
        settings = {**stored["settings"], "epochs": stored["kept_epoch"]}
        yield {**stored, "settings": settings, "metrics": metrics, "times": times} | {
            "command": command
        }
    for line in [*stored.get("best", ()), *stored.get("observed", ())]:
        if "test" not in line:
            continue
        command = f"python benchmarks/validation_search.py --data data/{stored['data']}/strong"
        yield {
            "set": stored["data"],
            "protocol": stored["protocol"],
            "settings": line["settings"],
            "metrics": line["test"],
            "times": (0.0, 0.0),
            "device": stored["device"],
            "command": command,
        }


def options(stored: dict[str, Any]) -> str:
    """Return command-line options for the settings that differ from the model's defaults."""
    plain = build({"model": stored["model"]}).settings()
    settings = stored["settings"]
    names = [name for name in settings if settings[name] != plain[name] and name not in COURSE]
    return " ".join(f"--set-option {name}={settings[name]}" for name in names)


def take(paper: Path, config: Config, entry: dict[str, Any]) -> None:
    """Write the metrics to the rows of a config that have these settings."""
    for row in config.rows:
        if row.settings is None or row.dataset.lower() != entry["set"] or differ(row, entry):
            continue
        if not set(config.columns.values()) <= set(entry["metrics"]):
            continue
        out = paper / "results" / f"{config.name}.csv"
        done = read_lines(out, CELLS)
        where = {"machine": entry["device"], "versions": f"equipoise {eq.__version__}"}
        lines = cells(config, entry["metrics"], entry["times"])
        put(done, row, lines, {**where, "command": entry["command"]})
        completed(config, done)  # compares the new lines with the published numbers
        write_text(out, as_frame(done, CELLS).write_csv())
        print(f"{config.name} {row.dataset} {row.name}")


def differ(row: Row, entry: dict[str, Any]) -> bool:
    """Tell whether a row has other settings than an entry."""
    row_settings, entry_settings = (
        build(row.settings).settings(),
        build(entry["settings"]).settings(),
    )
    loose = ("patience", "evaluate_every")
    return {k: v for k, v in row_settings.items() if k not in loose} != {
        k: v for k, v in entry_settings.items() if k not in loose
    }


if __name__ == "__main__":
    main()
