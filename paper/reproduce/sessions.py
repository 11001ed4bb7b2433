"""Table 7: session models on random splits, tuned on validation, and the effect of DAN."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split import Part, Split
from equipoise.errors import DataError
from equipoise.models.saving import build
from reproduce.config import Config, Row, Settings
from reproduce.results import Lines, cells, write_text
from reproduce.tables import Job, Load, Steps, Table

Pair = tuple[Interactions, Interactions]
FOLDERS = {"yoochoose": "yoochoose1_64"}
MODELS = ("SLIS", "SLIT", "SLIST")  # in this order: SLIST starts from the settings of SLIT
WITH_DAN = "_DAN"
METRICS = ["recall", "mrr", "tail_recall", "tail_mrr"]
EVENTS = 20_000  # of validation, drawn once for all settings of a set
BATCH = 16384  # events ranked at a time: a GPU is idle between batches
START: Settings = {"l2": 10.0, "dropout": 0.0, "decay_inference": 2.0}
# Settings of the model itself, chosen first and without DAN; SLIST takes SLIT's decay_position.
MODEL_GRID: dict[str, dict[str, list[Any]]] = {
    "SLIT": {"decay_position": [0.5, 1.0, 2.0, 4.0], "decay_inference": [1.0, 2.0, 4.0, 8.0]},
    "SLIS": {"decay_inference": [1.0, 2.0, 4.0, 8.0]},
    "SLIST": {"mix": [0.2, 0.5, 0.8], "decay_inference": [1.0, 2.0, 4.0, 8.0]},
}
# Every combination is tried; without DAN alpha and beta are 0 and the grid is otherwise equal.
GRID: dict[str, list[Any]] = {
    "row_norm": ["l1", None],
    "l2": [10.0],
    "dropout": [0.0, 0.5],
    "beta": [0.0, 0.5, 1.0],
    "alpha": [0.0, 0.05, 0.1, 0.2, 0.3, 0.5],
}
NEARBY = (0.3, 3.0)  # factors of l2 that are tried last, around both choices
PARTS = {"all": "aoa_mrr@20", "tail": "tail_mrr@20", "unbiased": "unbiased_mrr@20"}
ANSWER = "| set | model |"  # beginning of every answer


class Sessions(Table):
    """Sessions are split 8:1:1 at random; rows without settings are searched on validation.

    Options: "seed", "events" to choose on, and "grid" in place of values of `GRID`. The values of
    a search and the metrics of each test event are saved in a folder beside the results.
    """

    def rows(self, config: Config, done: Lines) -> list[Row]:
        """Return the rows with all settings of their models, of the config or an earlier run."""
        settings_by_row = {key[:3]: json.loads(key[3]) for key in done}
        rows = []
        for row in config.rows:
            settings = row.settings or settings_by_row.get((row.dataset, "", row.name))
            if settings is not None:  # TOML has no null: "none" stands for it
                fields = {
                    name: None if value == "none" else value for name, value in settings.items()
                }
                settings = build(fields).settings()
            rows.append(replace(row, settings=settings))
        return rows

    def runs(self, row: Row, device: str) -> bool:
        return True

    def find(self, data: Path, config: Config, row: Row) -> Load | None:
        folder = data / folder_name(row.dataset)
        seed = int(config.options.get("seed", 0))
        if not folder.is_dir():
            return None
        return lambda: eq.split.sessions(all_sessions(folder), valid=0.1, test=0.1, seed=seed)

    def compute(self, job: Job, rows: list[Row]) -> Steps:
        words = job.out.with_suffix(".md")
        if words.exists() and not words.read_bytes().startswith(ANSWER.encode()):
            raise DataError(f"{words} is no answer of an earlier run; choose another path")
        settings_by_row: dict[str, Settings] = {}
        for row in sorted(rows, key=lambda row: MODELS.index(row.name.removesuffix(WITH_DAN))):
            if row.settings is None:
                if row.name not in settings_by_row:
                    settings_by_row |= self.search_settings(job, row)
                row = replace(row, settings=settings_by_row[row.name])
            if row.settings["model"] not in MODELS:
                raise DataError(f"{row.name} on {row.dataset} is not a session model")
            began = time.perf_counter()
            model: Any = build(row.settings)
            model.fit(job.data.train, device=job.device)
            fitted = time.perf_counter()
            values, events = measure(model, (job.data.test.history, job.data.test.target))
            times = (fitted - began, time.perf_counter() - fitted)
            events_file = fits_folder(job.out) / f"{row.dataset}-{row.name}.parquet"
            events_file.parent.mkdir(parents=True, exist_ok=True)
            events.cast(pl.Float32).write_parquet(events_file)
            yield row, cells(job.config, values, times), f"{row.name}: {values['mrr@20']:.4f}"

    def search_settings(self, job: Job, row: Row) -> dict[str, Settings]:
        """Return the settings of a model without and with DAN, by the names of their rows."""
        options = job.config.options
        valid_sample = sample(job.data.valid, options.get("events", EVENTS))
        where = fits_folder(job.out), f"{row.dataset}-", job.device
        search = Search(replace(job.data, valid=valid_sample), *where, options.get("grid", {}))
        model = row.name.removesuffix(WITH_DAN)
        start = search.tune_model("SLIT", {}) if model == "SLIST" else {}
        start = {name: start[name] for name in start if name == "decay_position"}
        pair = search.pair(model, search.tune_model(model, start))
        names = (model, f"{model}{WITH_DAN}")
        return {name: make(model, one).settings() for name, one in zip(names, pair, strict=True)}

    def finish(self, config: Config, results: pl.DataFrame, out: Path, new: bool) -> str:
        if new:
            write_text(out.with_suffix(".md"), answer(results, fits_folder(out)))
        return ""


def fits_folder(out: Path) -> Path:
    """Return the folder for searches and events, beside the results."""
    return out.with_name(f"{out.stem}-fits")


def folder_name(dataset: str) -> str:
    """Return the name of a data set's folder.

    >>> folder_name("Yoochoose"), folder_name("Diginetica")
    ('yoochoose1_64', 'diginetica')
    """
    return FOLDERS.get(dataset.lower(), dataset.lower())


def all_sessions(folder: Path) -> Interactions:
    """Return the sessions of `train_sessions.npz` and `test_sessions.npz` together."""
    frames = []
    for part in ("train", "test"):
        stored = np.load(folder / f"{part}_sessions.npz")
        lengths = np.diff(stored["offsets"])
        names = pl.Series([f"{part}{number}" for number in range(len(lengths))])
        session = names[np.repeat(np.arange(len(lengths)), lengths)]
        frames.append(pl.DataFrame({"session": session, "item": stored["items"]}))
    return eq.read(pl.concat(frames), session="session", item="item")


def sample(part: Part, n_events: int, seed: int = 0) -> Part:
    """Return this many events of a part, drawn evenly; all where there are fewer."""
    if n_events >= part.n_users:
        return part
    rows = np.sort(np.random.default_rng(seed).choice(part.n_users, n_events, replace=False))
    return replace(part, history=part.history.rows(rows), target=part.target.rows(rows))


def target_weights(train: Interactions) -> npt.NDArray[np.float64]:
    """Return count^-1.5 of each item, counted as a click after the first of a session."""
    events = train._sequences
    after_first = np.ones(len(events.items), bool)
    after_first[events.offsets[:-1][events.lengths > 0]] = False
    counts = np.bincount(events.items[after_first], minlength=train.n_items)
    return np.maximum(counts, 1).astype(np.float64) ** -1.5


def measure(model: Any, pair: Pair) -> tuple[dict[str, float], pl.DataFrame]:
    """Rank after every event; return recall and MRR at 20, and the MRRs of each event.

    Over all events, those with a tail target, and unbiased: the mean over events of
    hit / count^1.5 (and of that / rank), the form that the size of the published numbers points
    to; it is not divided by the sum of its weights.
    """
    options = {"exclude_seen": False, "bootstrap": 0, "batch_size": BATCH}
    result = eq.evaluate(model, pair, 20, metrics=METRICS, **options)
    values = {name: float(result[name]) for name in result}
    weight = target_weights(model.interactions_)[pair[1].matrix.indices]
    for name in ("recall@20", "mrr@20"):
        unbiased = result.per_user[name].to_numpy() * weight
        values[f"unbiased_{name}"] = float(unbiased.mean())
    events = result.per_user.select("mrr@20", "tail_mrr@20")
    return values, events.with_columns(pl.Series("unbiased_mrr@20", unbiased))


def make(name: str, settings: Settings, *, always_dan: bool = False) -> Any:
    """Return the unfitted model; `alpha` and `beta` make a DAN, unless both are 0."""
    fields = dict(settings)
    alpha, beta = fields.pop("alpha", 0.0), fields.pop("beta", 0.0)
    norm = eq.DAN(alpha, beta) if alpha or beta or always_dan else eq.NoNorm()
    return getattr(eq, name)(normalizer=norm, **fields)


@dataclass(frozen=True)
class Search:
    """Chooses settings of session models by MRR@20 on the valid part, by calls of `eq.tune`.

    Finished solves are saved in `folder`, in files whose names begin with `prefix`; a search that
    was stopped resumes from them. `grid` replaces values of `GRID`.
    """

    split: Split
    folder: Path
    prefix: str
    device: str = "cpu"
    grid: Mapping[str, list[Any]] = field(default_factory=dict)

    def tune_model(self, model: str, start: Settings) -> Settings:
        """Return the settings of the model itself, chosen without DAN."""
        return best(self.try_grid(model, "own", {**START, **start}, MODEL_GRID[model]))

    def pair(self, model: str, model_settings: Settings) -> tuple[Settings, Settings]:
        """Return the best settings without and with DAN, out of one grid.

        Those without DAN are the best of its points with alpha = beta = 0.
        """
        grid = {**GRID, **self.grid}
        if model == "SLIT":  # a history of one click has nothing to scale
            del grid["row_norm"]
        points = self.try_grid(model, "grid", model_settings, grid)
        chosen = {"without": best(filter(is_plain, points)), "with": best(points)}
        if _fit_settings(chosen["with"]) == _fit_settings(chosen["without"]):
            del chosen["with"]  # they differ in alpha alone, which needs no fit
        for name, settings in chosen.items():
            near = {"l2": [settings["l2"] * factor for factor in NEARBY], "alpha": grid["alpha"]}
            points += self.try_grid(model, f"near-{name}", settings, near)
        return best(filter(is_plain, points)), best(points)

    def try_grid(
        self, model: str, step: str, base: Settings, grid: Mapping[str, list[Any]]
    ) -> list[Settings]:
        """Return every point of a grid around settings and its MRR@20, in the grid's order."""
        tuned = eq.tune(
            make(model, base, always_dan=True),
            self.split,
            grid=grid,
            metric="mrr@20",
            objectives=["recall@20"],
            storage=self.folder / f"{self.prefix}{model}-{step}.jsonl",
            device=self.device,
        )
        points = [
            {**base, **{name: row[name] for name in grid}, "mrr@20": row["mrr@20"]}
            for row in tuned.trials.to_dicts()
        ]
        return sorted(points, key=lambda point: [grid[name].index(point[name]) for name in grid])


def best(points: Iterable[Settings]) -> Settings:
    """Return the settings with the best MRR@20, of equal ones the first."""
    best_point = max(points, key=lambda point: point["mrr@20"])
    return {name: value for name, value in best_point.items() if name != "mrr@20"}


def _fit_settings(settings: Settings) -> Settings:
    """Return the settings that need a fit of their own."""
    return {name: value for name, value in settings.items() if name != "alpha"}


def is_plain(settings: Settings) -> bool:
    """Whether these settings are without DAN."""
    return not settings.get("alpha") and not settings.get("beta")


def answer(results: pl.DataFrame, folder: Path) -> str:
    """Return what DAN changed and whether it helped, as Markdown.

    Changes get their paired standard error over events where `folder` holds the events.
    """
    ours = {
        (line["dataset"], line["row"], line["column"]): line["ours"]
        for line in results.filter(pl.col("ours").is_not_null()).to_dicts()
    }
    heads = [f"{part} MRR@20" for part in PARTS]
    lines = [f"{ANSWER} {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    changes: dict[str, dict[tuple[str, str], float]] = {part: {} for part in PARTS}
    for name, model in itertools.product(dict.fromkeys(results["dataset"]), MODELS):
        shown = []
        for part, metric in PARTS.items():
            before, after = (ours.get((name, row, metric)) for row in (model, model + WITH_DAN))
            if before is not None and after is not None:
                changes[part][name, model] = after - before
                shown.append(_change(before, after, paired_error(folder, name, model, part)))
        lines += [f"| {name} | {model} | {' | '.join(shown)} |"] if shown else []
    summary = (
        "What DAN did, both chosen on validation (se: paired standard error over events, in %)."
    )
    lines += ["", summary, ""]
    for part in ("tail", "unbiased"):
        against = [f"{model} on {name}" for (name, model), by in changes[part].items() if by <= 0]
        lines.append(f"- DAN raises {part} MRR@20: {_verdict(len(changes[part]), against)}.")
    cases = {name: by for (name, model), by in changes["all"].items() if model == "SLIST"}
    verdict = _verdict(len(cases), [name for name, by in cases.items() if by < 0])
    return "\n".join([*lines, f"- It does not lower overall MRR@20 of SLIST: {verdict}.", ""])


def paired_error(folder: Path, name: str, model: str, part: str) -> float | None:
    """Return the standard error of the change of MRR@20, None without saved events."""
    metric = PARTS[part].removeprefix("aoa_")
    files = [folder / f"{name}-{row}.parquet" for row in (model, model + WITH_DAN)]
    if not all(file.is_file() for file in files):
        return None
    before, after = (
        pl.read_parquet(file, glob=False)[metric].drop_nulls().to_numpy() for file in files
    )
    change = after.astype(np.float64) - before
    return float(change.std(ddof=1) / np.sqrt(len(change)))


def _change(before: float, after: float, error: float | None) -> str:
    word = "the same" if after == before else "raised" if after > before else "lowered"
    text = f"{word}, {100 * (after / before - 1):+.1f}%" if before else word
    return text if error is None else f"{text} (se {100 * error / before:.1f})"


def _verdict(total: int, against: list[str]) -> str:
    """Whether something holds in all cases, and which speak against it."""
    yes = "yes" if total and not against else "no"
    exceptions = f", not {', '.join(against)}" if against else ""
    return f"{yes}, in {total - len(against)} of {total} cases{exceptions}"
