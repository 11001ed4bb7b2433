"""Run the points of a figure, keep them in a CSV, and draw it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl

from equipoise.errors import DataError, EquipoiseError
from equipoise.reproduce import distributions, people, points
from equipoise.reproduce.cells import machine_name, versions, write_text
from equipoise.reproduce.config import Config
from equipoise.reproduce.data import find_ratings
from equipoise.reproduce.drawing import draw
from equipoise.reproduce.pace import Pace
from equipoise.reproduce.points import Curve, Line, Point, Work

FIGURE_SCHEMA = {
    "dataset": pl.String,
    "curve": pl.String,
    "point": pl.String,
    "series": pl.String,
    "group": pl.String,
    "x": pl.Float64,
    "y": pl.Float64,
    "label": pl.String,
    "settings": pl.String,
    "seconds": pl.Float64,
    "machine": pl.String,
    "versions": pl.String,
    "command": pl.String,
}
CURVES = {
    "models": Curve(points.model_points, points.by_items),
    "alpha": Curve(points.alpha_points, points.by_items),
    "beta": Curve(points.beta_points, points.by_users),
    "noise": Curve(points.noise_points, points.under_noise),
    "weights": Curve(distributions.weight_points, distributions.weight_densities),
    "eigenvalues": Curve(distributions.eigenvalue_points, distributions.eigenvalue_curves),
    "lists": Curve(
        people.list_points,
        people.person_lists,
        lambda data, dataset, protocol: find_ratings(data, dataset),
    ),
}
Task = tuple[str, str]  # curve, data set


def run_figure(
    config: Config,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    device: str = "cpu",
    datasets: Iterable[str] | None = None,
    command: str = "",
    progress: Callable[[str], None] | None = None,
) -> pl.DataFrame:
    """Compute the points whose data are present and draw the figure; finished points are kept.

    Parameters
    ----------
    config
        The figure.
    data
        Folder with one folder per data set.
    out
        CSV of points; those in it with the same settings are not computed again. The picture goes
        to the folder `figures` beside the CSV's folder, where matplotlib is installed.
    device
        "cpu" or "cuda".
    datasets
        Names of data sets to run; all when left out.
    command
        How this was called, written beside the numbers.
    progress
        Called with a sentence when a point is done.
    """
    target = Path(out)
    done = read_points(target)
    wanted = set(config.datasets if datasets is None else datasets)
    tasks = {
        task: todo
        for task, todo in _missing(config, done).items()
        if todo and task[1] in wanted and _find(config, task, Path(data)) is not None
    }
    pace = Pace(sum(len(todo) for todo in tasks.values()), progress)
    for task, todo in tasks.items():
        load = _find(config, task, Path(data))
        assert load is not None
        work = Work(config, load(), device)
        try:
            for point, lines, seconds in CURVES[task[0]].compute(work, todo):
                fresh = _as_frame(task[0], point, lines, seconds, device, command)
                done = pl.concat([_without(done, task[0], point), fresh])
                write_text(target, done.write_csv())
                pace.step(f"{config.name} {point.dataset} {point.name}")
        except EquipoiseError as error:
            pace.say(f"{config.name} {task[1]}: {error}")
    found = finished(config, done)
    pace.say(draw(config, found, target.parent.parent / "figures"))
    return found


def finished(config: Config, done: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of the points that the figure has now, in its order."""
    parts = [
        done.filter(_same(curve, point))
        for curve, dataset in _tasks(config)
        for point in CURVES[curve].points(config, dataset)
    ]
    return pl.concat([pl.DataFrame(schema=FIGURE_SCHEMA), *parts])


def panels(config: Config, found: pl.DataFrame) -> pl.DataFrame:
    """Return one line per curve and data set: how many points there are, and of how many."""
    rows = []
    for curve, dataset in _tasks(config):
        every = CURVES[curve].points(config, dataset)
        lines = found.filter((pl.col("curve") == curve) & (pl.col("dataset") == dataset))
        have = lines["point"].n_unique()
        verdict = "not run here" if not have else "ours" if have == len(every) else "in part"
        rows.append((dataset, curve, have, len(every), verdict))
    names = ["dataset", "curve", "points", "of", "status"]
    return pl.DataFrame(rows, schema=names, orient="row")


def read_points(path: Path) -> pl.DataFrame:
    """Return the points of earlier runs, an empty frame where there are none.

    Lines that a run which was cut short left incomplete cannot occur: the file is replaced whole.
    """
    if not path.is_file():
        return pl.DataFrame(schema=FIGURE_SCHEMA)
    try:
        return pl.read_csv(path, schema=FIGURE_SCHEMA, glob=False)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path} cannot be read: {error}; remove it to begin anew") from error


def _tasks(config: Config) -> list[Task]:
    unknown = [name for name in config.options.get("curves", []) if name not in CURVES]
    if unknown or not config.options.get("curves"):
        raise DataError(f"{config.name} needs options.curves, some of {', '.join(CURVES)}")
    return [(curve, dataset) for curve in config.options["curves"] for dataset in config.datasets]


def _missing(config: Config, done: pl.DataFrame) -> dict[Task, list[Point]]:
    return {
        (curve, dataset): [
            point
            for point in CURVES[curve].points(config, dataset)
            if not done.filter(_same(curve, point)).height
        ]
        for curve, dataset in _tasks(config)
    }


def _find(config: Config, task: Task, data: Path) -> Callable[[], object] | None:
    return CURVES[task[0]].find(data, task[1], config.protocol)


def _as_frame(
    curve: str, point: Point, lines: list[Line], seconds: float, device: str, command: str
) -> pl.DataFrame:
    shared = {
        "dataset": point.dataset,
        "curve": curve,
        "point": point.name,
        "series": point.series,
        "x": point.x,
        "label": "",
        "settings": point.key,
        "seconds": round(seconds, 2),
        "machine": machine_name(device),
        "versions": versions(),
        "command": command,
    }
    return pl.DataFrame([{**shared, **_short(line)} for line in lines], schema=FIGURE_SCHEMA)


def _short(line: Line) -> Line:
    """Return the line with six significant digits, which is more than is drawn."""
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in line.items()
    }


def _without(done: pl.DataFrame, curve: str, point: Point) -> pl.DataFrame:
    same = (pl.col("dataset") == point.dataset) & (pl.col("point") == point.name)
    return done.filter(~(same & (pl.col("curve") == curve)))


def _same(curve: str, point: Point) -> pl.Expr:
    return (
        (pl.col("dataset") == point.dataset)
        & (pl.col("curve") == curve)
        & (pl.col("point") == point.name)
        & (pl.col("settings") == point.key)
    )
