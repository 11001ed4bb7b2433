"""The paper's table of session models: random parts, settings chosen on validation."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from equipoise import split as splits
from equipoise.errors import DataError
from equipoise.models.saving import build
from equipoise.models.sessions import SessionModel
from equipoise.reproduce import cells
from equipoise.reproduce.config import Config, Row
from equipoise.reproduce.session_answer import START, WITH_DAN, answer
from equipoise.reproduce.session_search import Pair, Search, all_sessions, make, measure, sample
from equipoise.split import Split

logger = logging.getLogger(__name__)

EVENTS = 20_000  # of validation, drawn once for all settings of a set
FOLDERS = {"yoochoose": "yoochoose1_64"}
MODELS = ("SLIT", "SLIS", "SLIST")  # SLIST starts from what SLIT found


def run_sessions(
    config: Config,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    device: str = "cpu",
    datasets: Iterable[str] | None = None,
    command: str = "",
    progress: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """Run the rows whose data are present, and answer what DAN did; finished rows are kept.

    Rows without settings are searched on validation first. Every fit is kept in a folder beside
    the results, so that a run that was stopped goes on; the answer is written beside them too.

    Parameters
    ----------
    config
        The table; its `options` may give "seed", "events", "search" ("missing", or "always" to
        search although settings are given) and "grid".
    data
        Folder with one folder per data set, each with `train_sessions.npz` and
        `test_sessions.npz`.
    out
        CSV of results.
    device
        "cpu" or "cuda".
    datasets
        Names of data sets to run; all when left out.
    command
        How this was called, written beside the numbers.
    progress
        Called with a sentence when a row is done.
    """
    target = Path(out)
    words = target.with_suffix(".md")
    if words.exists() and not words.read_bytes().startswith(START.encode()):
        raise DataError(f"{words} is no answer of an earlier run; choose another path than {out}")
    done = cells.read_results(target)
    wanted = set(datasets) if datasets is not None else {row.dataset for row in config.rows}
    rows, fresh = [], False
    for name in dict.fromkeys(row.dataset for row in config.rows):
        mine = [row for row in config.rows if row.dataset == name]
        folder = Path(data) / folder_name(name)
        if name not in wanted or not folder.is_dir():
            rows += mine
            continue
        run = SetRun(config, name, folder, kept_folder(config, target), device)
        for row in run.settled(mine):
            rows.append(row)
            if not cells.is_done(done, row):
                done = cells.merged(done, run.compared(row, command))
                cells.write_results(target, done)
                fresh = True
                if progress:
                    progress(f"{config.name} {name} {row.name}: done")
    order = [(row.dataset, row.name) for row in config.rows]
    rows.sort(key=lambda row: order.index((row.dataset, row.name)))
    results = complete(replace(config, rows=rows), done)
    if fresh:
        text = answer(results, kept_folder(config, target))
        cells.write_text(words, text)
    return results


def complete(config: Config, done: pl.DataFrame) -> pl.DataFrame:
    """Return one line per cell; rows without settings have those that a search found."""
    found = {(line["dataset"], line["row"]): line["settings"] for line in done.to_dicts()}
    rows = []
    for row in config.rows:
        settings = json.loads(found.get((row.dataset, row.name), "null"))
        rows.append(replace(row, settings=settings) if row.settings is None else _full(row))
    return cells.complete(replace(config, rows=rows), done)


def kept_folder(config: Config, out: Path) -> Path:
    """Return the folder of the fits of a table, beside its results."""
    return out.with_name(f"{config.name}-fits")


def folder_name(dataset: str) -> str:
    """Return the name of a data set's folder.

    >>> folder_name("Yoochoose"), folder_name("Diginetica")
    ('yoochoose1_64', 'diginetica')
    """
    return FOLDERS.get(dataset.lower(), dataset.lower())


class SetRun:
    """One data set: its random parts, searches and last fits.

    Parameters
    ----------
    config
        The table.
    name
        The set's name in the paper.
    folder
        Its sessions.
    kept
        Where fits are kept.
    device
        Where to fit.
    """

    def __init__(
        self, config: Config, name: str, folder: Path, kept: Path, device: str = "cpu"
    ) -> None:
        self.config, self.name, self.folder = config, name, folder
        self.kept, self.device = kept, device
        self.options: dict[str, Any] = dict(config.options)
        self._parts: Split | None = None

    @property
    def parts(self) -> Split:
        """Sessions at random 8:1:1; read when first asked for."""
        if self._parts is None:
            seed = int(self.options.get("seed", 0))
            sessions = all_sessions(self.folder)
            self._parts = splits.sessions(sessions, valid=0.1, test=0.1, seed=seed)
        return self._parts

    def settled(self, rows: list[Row]) -> Iterable[Row]:
        """Yield the rows with their settings, found by a search where they are not given."""
        always = self.options.get("search", "missing") == "always"
        found: dict[str, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda one: _order(one.name)):
            if row.settings is None or always:
                if row.name not in found:
                    found |= self.search(row.name.removesuffix(WITH_DAN))
                row = replace(row, settings=found[row.name])
            yield _full(row)

    def search(self, model: str) -> dict[str, dict[str, Any]]:
        """Return the settings of a model without and with DAN, by the names of their rows."""
        start: dict[str, Any] = {}
        if model == "SLIST":
            start = {"decay_position": self._search("SLIT").own({})["decay_position"]}
        search = self._search(model)
        plain, dan = search.pair(search.own(start))
        return {
            model: make(model, plain).settings(),
            f"{model}{WITH_DAN}": make(model, dan).settings(),
        }

    def _search(self, model: str) -> Search:
        valid = self.parts.valid
        assert valid is not None
        some = sample((valid.history, valid.target), int(self.options.get("events", EVENTS)))
        grid = {name: _nulls(values) for name, values in self.options.get("grid", {}).items()}
        path = self.kept / f"{self.name}-{model}-search.json"
        return Search(model, self.parts.train, some, path, self.device, grid)

    def finished(self, row: Row) -> dict[str, Any]:
        """Fit a row and measure it on test, or return what an earlier run found."""
        path = self.kept / f"{self.name}-{row.name}.json"
        data = self.parts.fingerprint
        stored = cells.read_kept(path, ("data", "settings", "values", "seconds", "machine"))
        if stored is not None and (stored["data"], stored["settings"]) == (data, row.settings):
            return stored
        model = build(row.settings)
        if not isinstance(model, SessionModel):
            raise DataError(f"{row.name} on {self.name} is not a session model")
        began = time.perf_counter()
        model.fit(self.parts.train, device=self.device)
        fitted = time.perf_counter()
        test: Pair = (self.parts.test.history, self.parts.test.target)
        found = measure(model, test)
        seconds = {"fit": fitted - began, "rank": time.perf_counter() - fitted}
        made: dict[str, Any] = {"data": data, "settings": row.settings, "values": found.values}
        made |= {
            "seconds": seconds,
            "machine": cells.machine_name(self.device),
            "events": test[0].n_users,
        }
        cells.write_text(path, json.dumps(made, indent=1))
        found.per_event.cast(pl.Float32).write_parquet(path.with_suffix(".parquet"))
        return made

    def compared(self, row: Row, command: str) -> pl.DataFrame:
        """Return the lines of a row: published and ours."""
        made = self.finished(row)
        times = (made["seconds"]["fit"], made["seconds"]["rank"])
        return cells.compared(self.config, row, made["values"], times, made["machine"], command)


def _order(name: str) -> tuple[int, bool]:
    model = name.removesuffix(WITH_DAN)
    return MODELS.index(model), name != model


def _full(row: Row) -> Row:
    """Return a row with all its model's settings, also those that are left at their defaults."""
    given = dict(row.settings or {})
    fields = dict(zip(given, _nulls(list(given.values())), strict=True))
    return replace(row, settings=build(fields).settings())


def _nulls(values: list[Any]) -> list[Any]:
    """Return a list of a TOML file, which has no null, with None for "none"."""
    return [None if value == "none" else value for value in values]
