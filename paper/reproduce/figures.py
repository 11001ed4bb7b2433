"""Points of the paper's figures: a model, one of its settings or its data varied, and its metrics.

Points that differ in alpha, family or diagonal bound share a solve. The distributions of the
paper's theory are computed at full size: the mean weight of an item needs one product of P with a
vector, never the weights themselves; the eigenvalues need the smaller of the two Gram matrices.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.sparse as sp
from scipy.linalg import eigvalsh
from scipy.stats import gaussian_kde

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, TooBigError
from equipoise.evaluation.metrics import head_items
from equipoise.models.saving import build
from equipoise.normalize import power
from equipoise.report.users import ABOUT, case_study
from equipoise.runtime.machine import free_memory, gigabytes
from equipoise.solve.dense import weighted_gram
from equipoise.solve.torch_backend import find_device, load_torch, send
from reproduce.config import Config, Row, Settings
from reproduce.data import find_ratings
from reproduce.drawing import draw
from reproduce.noise import with_noise
from reproduce.results import NOT_RUN, POINTS, Line, Lines
from reproduce.tables import Job, Load, Steps, Table, fitted

Vector = npt.NDArray[np.float64]
Computed = Iterator[tuple[Row, list[Line], float]]
GROUPS = {"all": "ndcg", "head": "head_ndcg", "tail": "tail_ndcg"}
USERS = {"all": "ndcg", "active": "active_ndcg", "inactive": "inactive_ndcg"}
GRID = 61  # points of a density
SHOWN = (0.5, 99.5)  # percentiles between which densities are drawn
RANKS = 60  # eigenvalues kept of each spectrum
CPU_LIMIT = 9000  # rows of a Gram matrix whose eigenvalues take minutes on a few cores


class Figure(Table):
    """A figure: `options.curves` names its curves, `options` the values on their axes."""

    schema = POINTS

    def rows(self, config: Config, done: Lines) -> list[Row]:
        curves = config.options.get("curves", [])
        if not curves or not set(curves) <= set(CURVES):
            raise DataError(f"{config.name} needs options.curves, some of {', '.join(CURVES)}")
        return [
            replace(point, curve=curve)
            for curve, dataset in product(curves, config.datasets)
            for point in points(config, curve, dataset)
        ]

    def find(self, data: Path, config: Config, row: Row) -> Load | None:
        if row.curve == "lists":
            return find_ratings(data, row.dataset)
        return super().find(data, config, row)

    def compute(self, job: Job, rows: list[Row]) -> Steps:
        """Compute the points of one curve on one data set, to six significant digits."""
        for row, lines, seconds in CURVES[rows[0].curve](job, rows):
            spent = {"seconds": round(seconds, 2)}
            yield row, [{**_short(line), **spent} for line in lines], row.name

    def finish(self, config: Config, results: pl.DataFrame, out: Path, new: bool) -> str:
        return draw(config, results, out.parent.parent / "figures")


def panels(config: Config, results: pl.DataFrame) -> pl.DataFrame:
    """Return one line per curve and data set, with the numbers of computed and of all points."""
    rows = []
    for curve, dataset in product(config.options["curves"], config.datasets):
        total = len(points(config, curve, dataset))
        n_points = results.filter(curve=curve, dataset=dataset)["point"].n_unique()
        verdict = NOT_RUN if not n_points else "ours" if n_points == total else "in part"
        rows.append((dataset, curve, n_points, total, verdict))
    names = ["dataset", "curve", "points", "of", "status"]
    return pl.DataFrame(rows, schema=names, orient="row")


def _short(line: Line) -> Line:
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in line.items()
    }


def points(config: Config, curve: str, dataset: str) -> list[Row]:
    """Return the points of a curve on a data set."""
    options = config.options
    rows = [
        replace(row, series=row.name)
        for row in config.rows
        if row.dataset == dataset and row.settings is not None
    ]
    if curve == "models":
        return rows
    if curve == "lists":
        extra = {name: options[name] for name in ("k", "history")}
        return [replace(row, extra=extra) for row in rows]
    if curve == "noise":
        seeds = options.get("seeds_of", {}).get(dataset, options["seeds"])
        return [
            replace(
                row,
                name=f"{row.name}, {share:g} % noise, seed {seed}",
                x=float(share),
                extra={"noise": share, "seed": seed},
            )
            for share in options["noise"]
            for seed in range(seeds if share else 1)  # without noise the seed does not matter
            for row in rows
        ]
    exponent = {"weights": "alpha", "eigenvalues": "beta"}.get(curve, curve)
    out = []
    for row in rows:
        for value in options[exponent] if "normalizer" in row.settings else ():
            settings = copy.deepcopy(row.settings)
            settings["normalizer"][exponent] = float(value)
            label = f"{exponent} {value:g}"
            names = {"name": label, "series": label}
            if curve == exponent:
                names = {"name": f"{row.name}, {label}"}
            out.append(replace(row, settings=settings, x=float(value), **names))
        out += [] if "normalizer" in row.settings else [row]
    return out


def under_noise(job: Job, rows: list[Row]) -> Computed:
    """NDCG@20 of models whose training data were disturbed; the test users were not."""
    train = job.data.train
    # the tail of the clean data: the same targets count whatever the noise
    groups = {"clean_tail": ~head_items(train.item_counts)}
    metrics = {"all": "ndcg", "tail": "clean_tail_ndcg"}
    for share, seed in sorted({(row.extra["noise"], row.extra["seed"]) for row in rows}):
        noisy = with_noise(train, share / 100, seed) if share else train
        noise_rows = [row for row in rows if row.extra == {"noise": share, "seed": seed}]
        noisy_job = replace(job, data=replace(job.data, train=noisy))
        yield from evaluated(noisy_job, noise_rows, metrics, groups)


def evaluated(
    job: Job, rows: list[Row], metrics: dict[str, str], groups: dict[str, Any] | None = None
) -> Computed:
    """NDCG@20 of the models; one line per group of items or users."""
    for row, model, seconds in fitted(rows, job.data, job.device):
        names = list(metrics.values())
        result = eq.evaluate(model, job.data.test, 20, metrics=names, groups=groups, bootstrap=0)
        lines = [
            {"group": group, "y": float(result[f"{metric}@20"])}
            for group, metric in metrics.items()
        ]
        del model  # frees its inverse before the next one is made
        yield row, lines, seconds + sum(result.seconds.values())


def weight_densities(job: Job, rows: list[Row]) -> Computed:
    """Densities of the mean weights of head and tail items, on the same grid."""
    for row, model, seconds in fitted(rows, job.data, job.device):
        means, head = mean_weights(model), head_items(model.item_counts_)
        del model  # frees its inverse before the next one is made
        yield row, densities(means, head), seconds


def mean_weights(model: Any) -> Vector:
    """Return the mean of each column of W: how strongly an item is recommended at all."""
    source, target = (vector.astype(np.float64) for vector in model.scales())
    P = model.to("cpu").inverse_
    total = P @ source.astype(P.dtype) - model.diagonal_ * source
    return np.asarray(target * total / len(source))


def densities(means: Vector, head: npt.NDArray[np.bool_]) -> list[Line]:
    """Return the densities of both groups, estimated with Gaussian kernels."""
    low, high = np.percentile(means, SHOWN)
    spread = (high - low) or abs(low) or 1.0
    grid = np.linspace(low - 0.05 * spread, high + 0.05 * spread, GRID)
    lines = []
    for group, chosen in (("head", means[head]), ("tail", means[~head])):
        inside = np.clip(chosen, low, high)
        flat = len(inside) < 2 or np.ptp(inside) < 1e-9 * spread
        height = np.zeros(GRID) if flat else gaussian_kde(inside)(grid)
        lines += [
            {"group": group, "x": float(x), "y": float(y)}
            for x, y in zip(grid, height, strict=True)
        ]
    return lines


def eigenvalue_curves(job: Job, rows: list[Row]) -> Computed:
    """The eigenvalues of B from the largest to the smallest, some of them, and their mean."""
    for row in rows:
        start = time.perf_counter()
        values = weight_eigenvalues(job.data.train, row.settings, job.device)
        size = len(values)
        places = np.unique(np.geomspace(1, size, min(RANKS, size)).round().astype(int))
        lines = [{"group": "", "x": float(n), "y": float(values[n - 1])} for n in places]
        lines.append({"group": "mean", "x": float(size), "y": float(values.mean())})
        yield row, lines, time.perf_counter() - start


def weight_eigenvalues(data: Interactions, settings: Settings, device: str) -> Vector:
    """Return all eigenvalues of B = (G + L)^-1 G of an LAE, largest first.

    With G = X^T W X and a diagonal L they are m / (m + 1) for the eigenvalues m of A^T A, where
    A = W^1/2 X L^-1/2; those of A A^T are the same but for zeros, so the smaller one is taken.
    """
    model: Any = build(settings)
    penalty = model.l2 + model.dropout / (1 - model.dropout) * data.item_counts
    left, right = np.sqrt(model.normalizer.user_weights(data)), power(penalty, -0.5)
    A: Any = sp.csr_array(sp.diags_array(left) @ data.matrix @ sp.diags_array(right))
    if A.shape[0] < A.shape[1]:
        A = A.T.tocsr()
    A.sort_indices()
    eigenvalues = np.maximum(_spectrum(A, device), 0.0)[::-1]
    values = np.zeros(data.n_items)
    values[: len(eigenvalues)] = eigenvalues / (eigenvalues + 1)
    return values


def _spectrum(A: Any, device: str) -> Vector:
    """Eigenvalues of A^T A in ascending order, in float32, on a GPU where there is one."""
    size = A.shape[1]
    needed = 3 * 4 * size**2
    if device == "cpu" and size > CPU_LIMIT:
        raise TooBigError(f"eigenvalues of {size:,} rows take hours here; use --device cuda")
    if device == "cpu" and needed > free_memory():
        raise TooBigError(f"eigenvalues of {size:,} rows need {gigabytes(needed)} of memory")
    gram = np.zeros((size, size), np.float32)
    weighted_gram(A, np.ones(A.shape[0]), gram)
    if device == "cpu":
        return np.asarray(eigvalsh(gram, lower=False, overwrite_a=True), np.float64)
    on_gpu = send(gram, find_device(device))
    return np.asarray(load_torch().linalg.eigvalsh(on_gpu, UPLO="U").cpu().numpy(), np.float64)


def user_lists(job: Job, rows: list[Row]) -> Computed:
    """History and lists of one user, one line per title; y is how many users have it."""
    for row in rows:
        start = time.perf_counter()
        user = row.settings["user"]
        if user == "auto":
            user = typical_user(job.data, int(row.extra["history"]))
        study = case_study(job.data, user, int(row.extra["k"])).to_dict()
        parts = {"history": study["history"], **{name: study["lists"][name] for name in ABOUT}}
        lines: list[Line] = [
            {
                "series": name,
                "group": entry["group"],
                "x": float(rank),
                "y": float(entry["users"]),
                "label": str(entry["title"]),
            }
            for name, entries in parts.items()
            for rank, entry in enumerate(entries, start=1)
        ]
        lines.append({"series": "user", "group": "", "x": 0.0, "y": None, "label": str(user)})
        yield row, lines, time.perf_counter() - start


def typical_user(data: Interactions, fewest: int) -> Any:
    """Return a user like the paper's: a short history, most of it from the tail.

    Of all users with `fewest` to twice as many items, those whose share of tail items is nearest
    to the 4 of 5 of the paper's user; of these the shortest history, the first of equals.
    """
    head = head_items(data.item_counts)
    counts = data.user_counts
    tail = np.asarray(data.matrix @ (~head).astype(np.float64)).ravel()
    gap = np.abs(tail / np.maximum(counts, 1) - 0.8)
    outside = (counts < fewest) | (counts > 2 * fewest)
    # whole numbers, so that equal shares are equal
    order = np.lexsort((counts, np.round(gap * 1e6), outside))
    return data.users.tolist()[int(order[0])]


CURVES: dict[str, Callable[[Job, list[Row]], Computed]] = {
    "models": partial(evaluated, metrics=GROUPS),
    "alpha": partial(evaluated, metrics=GROUPS),
    "beta": partial(evaluated, metrics=USERS),
    "noise": under_noise,
    "weights": weight_densities,
    "eigenvalues": eigenvalue_curves,
    "lists": user_lists,
}
