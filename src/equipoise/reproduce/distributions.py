"""Distributions of the paper's theory: weights of head and tail items, eigenvalues over beta.

Both are computed at full size. The mean weight of an item needs one product of P with a vector,
never the weights themselves; the eigenvalues need the smaller of the two Gram matrices.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.linalg import eigvalsh

from equipoise.errors import TooBigError
from equipoise.interactions import Interactions
from equipoise.machine import free_memory, gigabytes
from equipoise.metrics import head_items
from equipoise.models.linear import LinearAutoencoder
from equipoise.models.saving import build
from equipoise.normalize import power
from equipoise.reproduce.config import Config, Row
from equipoise.reproduce.points import Computed, Line, Point, Work
from equipoise.reproduce.tables import fitted
from equipoise.solve.dense import weighted_gram
from equipoise.solve.gpu import DeviceMatrix
from equipoise.solve.torch_backend import find_device, load_torch, send

Vector = npt.NDArray[np.float64]
GRID = 61  # points of a density
SHOWN = (0.5, 99.5)  # percentiles between which densities are drawn
RANKS = 60  # eigenvalues kept of each spectrum
CPU_LIMIT = 9000  # rows of a Gram matrix whose eigenvalues take minutes on a few cores


def weight_points(config: Config, dataset: str) -> list[Point]:
    """One point per row, and per alpha where the row has one."""
    out = []
    for row in config.rows:
        if row.dataset != dataset or row.settings is None:
            continue
        if "normalizer" not in row.settings:
            out.append(Point(dataset, row.name, row.name, None, row.settings))
            continue
        for alpha in config.options["alpha"]:
            settings = copy.deepcopy(row.settings)
            settings["normalizer"]["alpha"] = float(alpha)
            name = f"alpha {alpha:g}"
            out.append(Point(dataset, name, name, float(alpha), settings))
    return out


def weight_densities(work: Work, points: list[Point]) -> Computed:
    """Densities of the mean weights of head and tail items, on the same grid."""
    named = {point.name: point for point in points}
    rows = [Row(point.dataset, point.name, point.settings) for point in points]
    for row, model, seconds in fitted(rows, work.data, work.device):
        assert isinstance(model, LinearAutoencoder)
        means = mean_weights(model)
        head = head_items(model.item_counts_)
        del model  # frees its inverse before the next one is made
        yield named[row.name], densities(means, head), seconds


def mean_weights(model: LinearAutoencoder) -> Vector:
    """Return the mean of each column of W: how strongly an item is recommended at all."""
    source, target = (vector.astype(np.float64) for vector in model.scales())
    P, size = model.inverse_, len(source)
    if isinstance(P, DeviceMatrix):  # whose diagonal is kept apart
        values = P.values
        total = (values @ send(source, values.device, values.dtype)).cpu().numpy()
        total = total.astype(np.float64)
    else:
        total = P @ source.astype(P.dtype) - model.diagonal_ * source
    return np.asarray(target * total / size)


def densities(means: Vector, head: npt.NDArray[np.bool_]) -> list[Line]:
    """Return the densities of both groups, estimated with Gaussian kernels."""
    low, high = np.percentile(means, SHOWN)
    spread = (high - low) or abs(low) or 1.0
    grid = np.linspace(low - 0.05 * spread, high + 0.05 * spread, GRID)
    lines = []
    for group, chosen in (("head", means[head]), ("tail", means[~head])):
        inside = np.clip(chosen, low, high)
        flat = len(inside) < 2 or np.ptp(inside) < 1e-9 * spread
        height = np.zeros(GRID) if flat else kernel_density(inside, grid)
        lines += [
            {"group": group, "x": float(x), "y": float(y)}
            for x, y in zip(grid, height, strict=True)
        ]
    return lines


def kernel_density(values: Vector, grid: Vector) -> Vector:
    """Return a density on the grid: a mean of Gaussians, as wide as Scott's rule says."""
    width = values.std(ddof=1) * len(values) ** -0.2
    bells = np.exp(-0.5 * ((grid[:, None] - values) / width) ** 2)
    return np.asarray(bells.mean(axis=1) / (width * np.sqrt(2 * np.pi)))


def eigenvalue_points(config: Config, dataset: str) -> list[Point]:
    """One point per value of beta."""
    out = []
    for row in config.rows:
        if row.dataset != dataset or row.settings is None:
            continue
        for beta in config.options["beta"]:
            settings = copy.deepcopy(row.settings)
            settings["normalizer"]["beta"] = float(beta)
            name = f"beta {beta:g}"
            out.append(Point(dataset, name, name, None, settings))
    return out


def eigenvalue_curves(work: Work, points: list[Point]) -> Computed:
    """The eigenvalues of B from the largest to the smallest, some of them."""
    for point in points:
        start = time.perf_counter()
        values = weight_eigenvalues(work.data.train, point.settings, work.device)
        size = len(values)
        places = np.unique(np.geomspace(1, size, min(RANKS, size)).round().astype(int))
        lines = [
            {"group": "", "x": float(place), "y": float(values[place - 1])} for place in places
        ]
        lines.append({"group": "mean", "x": float(size), "y": float(values.mean())})
        yield point, lines, time.perf_counter() - start


def weight_eigenvalues(data: Interactions, settings: dict[str, Any], device: str) -> Vector:
    """Return all eigenvalues of B = (G + L)^-1 G of an LAE, largest first.

    With G = X^T W X and a diagonal L they are m / (m + 1) for the eigenvalues m of A^T A, where
    A = W^1/2 X L^-1/2; those of A A^T are the same but for zeros, so the smaller one is taken.
    """
    model = build(settings)
    assert isinstance(model, LinearAutoencoder)
    normalizer = model.normalizer.resolve(data)
    l2, dropout = model._numbers(data, normalizer)
    penalty = model._penalty(data, normalizer, l2, dropout)
    left, right = np.sqrt(normalizer.user_weights(data)), power(penalty, -0.5)
    A: Any = sp.csr_array(sp.diags_array(left) @ data.matrix @ sp.diags_array(right))
    if A.shape[0] < A.shape[1]:
        A = A.T.tocsr()
    A.sort_indices()
    found = np.maximum(_spectrum(A, device), 0.0)[::-1]
    values = np.zeros(data.n_items)
    values[: len(found)] = found / (found + 1)
    return values


def _spectrum(A: Any, device: str) -> Vector:
    """Eigenvalues of A^T A in ascending order, in float32, on a card where there is one."""
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
    torch = load_torch()
    on_card = send(gram, find_device(device))
    return np.asarray(torch.linalg.eigvalsh(on_card, UPLO="U").cpu().numpy(), np.float64)
