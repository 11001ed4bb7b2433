"""Run a config: the rows whose data are present, each saved as soon as it is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl

import equipoise
from equipoise.errors import DataError, TooBigError
from equipoise.runtime.machine import duration
from reproduce.config import Config, Row
from reproduce.figures import Figure
from reproduce.results import Lines, as_frame, machine_name, put, write_text
from reproduce.sessions import Sessions
from reproduce.tables import Efficiency, Job, Statistics, Table

KINDS: dict[str, Table] = {
    "table": Table(),
    "statistics": Statistics(),
    "efficiency": Efficiency(),
    "sessions": Sessions(),
    "figure": Figure(),
}


def kind_of(config: Config) -> Table:
    """Return the runner of a config; an unknown kind is refused."""
    if config.kind not in KINDS:
        known = ", ".join(KINDS)
        raise DataError(f"{config.name} has the unknown kind {config.kind!r}; known: {known}")
    return KINDS[config.kind]


def results_file(paper: Path, config: Config) -> Path:
    """Return the results file of a config."""
    return paper / "results" / f"{config.name}.csv"


def run(
    config: Config,
    data: Path,
    out: Path,
    *,
    device: str = "cpu",
    datasets: Iterable[str] | None = None,
    command: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> pl.DataFrame:
    """Compute the rows whose data are present and compare them; finished rows are not repeated.

    Rows in the CSV `out` with the same settings are not run again. Pictures go to the folder
    `figures` beside the CSV's folder. `data` has one folder per data set; `command` is written
    beside the numbers, and `say` is called with a sentence when a row is done.
    """
    kind = kind_of(config)
    done = kind.read(out)
    selected = {name.lower() for name in datasets or config.datasets}
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in kind.rows(config, done):
        if (
            row.dataset.lower() in selected
            and kind.runs(row, device)
            and kind.find(data, config, row) is not None
        ):
            groups.setdefault(kind.group(row), []).append(row)
    for key, rows in groups.items():
        missing = [row for row in rows if row.id not in done]
        groups[key] = rows if missing and kind.together else missing
    total = sum(kind.steps(config, rows) for rows in groups.values())
    where = {"versions": f"equipoise {equipoise.__version__}", "command": command}
    start, step = time.perf_counter(), 0
    for rows in groups.values():
        load = kind.find(data, config, rows[0]) if rows else None
        if load is None:
            continue
        try:
            for row, lines, text in kind.compute(Job(config, load(), device, out), rows):
                if lines:
                    put(done, row, lines, {"machine": machine_name(device), **where})
                    write_text(out, as_frame(done, kind.schema).write_csv())
                if text:
                    step += 1
                    say(f"{config.name} {row.dataset} {text} {pace(step, total, start)}")
        except TooBigError as error:
            say(f"{config.name} {rows[0].dataset}: {error}")
    results = completed(config, done)
    if step:
        write_text(out, as_frame(done, kind.schema).write_csv())
    message = kind.finish(config, results, out, step > 0)
    if message:
        say(message)
    return results


def pace(step: int, total: int, start: float) -> str:
    """Return the progress of a run, and the remaining time at the speed so far."""
    left = (total - step) * (time.perf_counter() - start) / step
    return f"({step} of {total}{f', about {duration(left)} left' if step < total else ''})"


def completed(config: Config, done: Lines) -> pl.DataFrame:
    """Return the results of a config in its order, compared with what was published.

    Adds the comparison to the lines of `done` too. Cells that were not run have that status.
    """
    kind = kind_of(config)
    lines: Lines = {}
    for row in kind.rows(config, done):
        lines[row.id] = done.get(row.id, [])
        if not lines[row.id]:
            put(lines, row, [{"column": column} for column in config.columns], {})
        for line in lines[row.id] if config.columns else ():
            line.update(kind.judge(config, row, line["column"], line.get("ours")))
    return as_frame(lines, kind.schema)


def stored(paper: Path, config: Config) -> pl.DataFrame:
    """Return the results of a config that are in the paper folder."""
    return completed(config, kind_of(config).read(results_file(paper, config)))
