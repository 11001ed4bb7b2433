"""Plan where a fit runs, and its memory, operations and seconds before anything is allocated.

`SolveOptions` are the run options of a fit. `plan` chooses its engine and estimates its cost;
`Plan.require` raises an error where it does not fit.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.checks import choice, count, function, period
from equipoise.checks import path as checked_path
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.display.notebook import fragment, table
from equipoise.errors import DataError, SettingError, TooBigError
from equipoise.runtime import machine
from equipoise.runtime.machine import (
    MOST_THREADS,
    duration,
    free_memory,
    gigabytes,
    parse_memory,
)
from equipoise.solve import dense, gpu, neighbourhood, svd, tiled, torch_backend

DTYPES = ("float32", "float64")
PRECISIONS = ("auto", "float32")
ENGINES = ("auto", "dense", "dual", "tiled", "gpu", "neighbourhood")
CSR_BYTES = 12 + 28  # a stored interaction, and the copies the Gram matrix works from
TILED_SHARE = 0.9  # of the budget that goes into tiles; BLAS and writing take the remainder
TILED_SPEED = 0.85  # of the dense engine's rate, without the files
DISK_RATE = 1.5e9  # bytes a second through the page cache, checksums included
CARD_SHARE = 0.85  # of a large product's rate
# Items per user from which the dual engine is chosen (`benchmarks/dual.py --break-even`): its
# lists cost more because they go through all users, so that a fit and one list for each user break
# even near 2, and with four lists between 3 and 4
DUAL_ITEMS_PER_USER = 4
DUAL_SPEED = {"float32": 0.5, "float64": 1.0}  # its system is in float64 either way
NEIGHBOURS = 200  # without a number or a time limit
NEAR_SPEED = 0.3  # of the dense engine's rate, with these operations:
LOOKUP = 70  # for an entry that is looked up,
PAIR = 2700  # for a pair of items of a user of average length (long histories count more),
CHECK = 32_000  # for an interaction in the exact columns of the audit
ROUNDS = 10  # of conjugate gradients
AUDITS = 2  # groups of targets that are checked at a time,
AUDIT_BYTES = 48 * 8  # and the memory of a group for each item
NEAR_PAIR_BYTES = 24  # the interactions, those of numbered items in rows and in columns,
NEAR_ITEM_BYTES = 160  # and vectors over the items
NEAR_USER_BYTES = 48  # and over the users
SPARSE = 8  # operations for a product with an interaction
PROBE_ITEMS = 2560  # a solve of this size takes about a quarter of a second on two cores


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """The run options of `fit`, `tune` and `plan`, checked; `LinearAutoencoder.fit` explains them.

    Which engines there are depends on the model, and whether a GPU exists is checked when it is
    used.
    """

    device: str = "cpu"
    dtype: str = "float32"
    engine: str = "auto"
    memory: str | float | None = None
    scratch: str | os.PathLike[str] | None = None
    threads: int | None = None
    refine: bool = False
    precision: str = "auto"
    neighbours: int | str | None = None
    progress: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        device = self.device
        if device != "cpu" and not (isinstance(device, str) and device.startswith("cuda")):
            raise SettingError(f"device must be 'cpu', 'cuda' or 'cuda:1', got {device!r}")
        choice("dtype", self.dtype, DTYPES)
        choice("precision", self.precision, PRECISIONS)
        if self.memory is not None:
            parse_memory(self.memory)
        if self.scratch is not None:
            checked_path("scratch", self.scratch)
        if self.threads is not None:
            count("threads", self.threads, 1, MOST_THREADS)
        if isinstance(self.neighbours, str):
            period("neighbours", self.neighbours)
        elif self.neighbours is not None:
            count("neighbours", self.neighbours)
        function("progress", self.progress)

    def keywords(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as keyword arguments of `fit`."""
        defaults = {entry.name: entry.default for entry in dataclasses.fields(self)}
        return {name: value for name, value in vars(self).items() if value != defaults[name]}


@dataclass(frozen=True)
class Size:
    """Size of the linear system of a fit, and the rank of its low-pass companion (0 for none)."""

    n_users: int
    n_items: int
    n_interactions: int
    dtype: str
    lowpass_rank: int = 0

    @classmethod
    def of(
        cls, data: Interactions, dtype: str, lowpass_rank: int = 0, features: Csr | None = None
    ) -> Size:
        """Return the size of a fit to these data; each feature is one more user."""
        if not (data.n_users and data.n_items):
            raise DataError("fit needs at least one user and one item; the data have none")
        n_features, n_cells = (0, 0) if features is None else (features.shape[1], features.nnz)
        rows, pairs = data.n_users + n_features, data.n_interactions + n_cells
        return cls(rows, data.n_items, pairs, dtype, lowpass_rank)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def flops(self) -> float:
        """Operations of the solve, and of the Gram matrix with users of average length."""
        return float(self.n_items) ** 3 + 4.0 * self.n_interactions**2 / self.n_users

    @property
    def data_bytes(self) -> int:
        """Memory for the interactions and for vectors."""
        return CSR_BYTES * self.n_interactions + 108 * self.n_items

    @property
    def companion_bytes(self) -> int:
        """Memory in which the low-pass companion is fitted, after the solve."""
        shape = self.n_users, self.n_items
        rank = min(self.lowpass_rank, *shape)
        if not rank:
            return 0
        factors = 2 * rank * self.n_items * self.itemsize
        vectors, rounds = svd.companion_sketch(shape, rank)
        return svd.needed_bytes(shape, vectors, self.dtype, rounds) + factors

    @property
    def companion_flops(self) -> float:
        """Operations of the companion's SVD; with two restarts where it is fully accurate."""
        shape = self.n_users, self.n_items
        rank = min(self.lowpass_rank, *shape)
        if not rank:
            return 0.0
        vectors, rounds = svd.companion_sketch(shape, rank)
        passes = 2.0 * (svd.ROUNDS if rounds is None else rounds + 1)
        if rounds is None:
            vectors = svd.space_sizes(rank)[1]
        products = SPARSE * passes * vectors * self.n_interactions
        return products + passes * 2.0 * min(shape) * vectors**2


@dataclass(frozen=True)
class Cost:
    """Cost of an engine; the fields are those of `Plan`.

    `flops` is None for an engine that solves the items x items system.
    """

    peak_bytes: int
    speed: float = 1.0
    disk_bytes: int = 0
    moved_bytes: int = 0
    tile_rows: int = 0
    neighbours: int = 0
    audit_threads: int = 0
    flops: float | None = None


def dense_cost(size: Size) -> Cost:
    """Return the cost of one n x n array in memory, and of the companion."""
    return Cost(size.n_items**2 * size.itemsize + size.data_bytes + size.companion_bytes)


def dual_cost(size: Size) -> Cost:
    """Return the cost of one users x users array in memory, and of the companion."""
    m, n, pairs = size.n_users, size.n_items, size.n_interactions
    # the Gram matrix and the diagonal, with items of average length
    flops = float(m) ** 3 + 8.0 * pairs**2 / n
    peak = 8 * m**2 + (12 + 16) * pairs + 16 * 8 * n  # C, and copies of the interactions by item
    peak += size.data_bytes + size.companion_bytes
    return Cost(peak, DUAL_SPEED[size.dtype], flops=flops)


def update_cost(size: Size, rank: int) -> Cost:
    """Return the cost of an update: a second n x n array, and copies of the change, rank x n."""
    n, itemsize = size.n_items, size.itemsize
    change = itemsize * (4 * rank + 2 * min(dense.STRIP, n)) * n + 3 * 8 * rank**2
    check = 8 * min(dense.REFINE_COLUMNS, n) * n
    work = n**2 * itemsize + max(change, check)
    return Cost(work + 2 * size.data_bytes + size.companion_bytes)  # the data change too


def tiled_cost(size: Size, budget: int) -> Cost:
    """Return the cost of three tiles in memory, as large as the budget allows, and all on disk.

    Where not even small tiles fit, the peak is that of the smallest ones.
    """
    room = int(TILED_SHARE * budget) - size.data_bytes
    rows = tiled.rows_for(size.n_items, room, size.itemsize)
    fits = rows > 0
    rows = rows or min(tiled.SMALLEST, size.n_items)
    n_tiles = -(-size.n_items // rows)
    tile_bytes = rows**2 * size.itemsize
    in_memory = 3 * tile_bytes + size.data_bytes
    # the tiles are gone, and the result is on disk, when the companion is fitted
    companion = size.companion_bytes + size.data_bytes if size.lowpass_rank else 0
    return Cost(
        peak_bytes=max(in_memory if fits else int(in_memory / TILED_SHARE) + 1, companion),
        speed=TILED_SPEED,
        disk_bytes=tiled.disk_bytes(size.n_items, rows, size.itemsize),
        moved_bytes=(n_tiles**3 + 6 * n_tiles**2) * tile_bytes,
        tile_rows=rows,
    )


def neighbourhood_cost(
    size: Size,
    neighbours: int,
    *,
    on_disk: bool = False,
    on_card: bool = False,
    one_audit: bool = False,
) -> Cost:
    """Return the cost of the strongest entries of A and of P, in memory or on disk, and of P.

    The entries are freed before the columns are turned into rows and before the result is checked,
    with `one_audit` on one thread. The rows of P are always in memory. On a GPU the systems take
    no time beside the rows of A, which the processor sums.
    """
    n, pair = size.n_items, 4 + size.itemsize
    neighbours = min(neighbours, max(n - 1, 1))
    row_entries = min(neighbourhood.ROW_ENTRIES * neighbours, max(n - 1, 1))
    room = min(neighbours + row_entries, max(n - 1, 1))
    entries, columns = n * room * pair, n * neighbours * pair
    threads = machine.count()
    solving = (0 if on_disk else entries + columns) + (28 + size.itemsize) * n * threads
    turning = columns if on_disk else 2 * columns
    checks = 1 if one_audit else min(threads, AUDITS)
    checking = columns + n * neighbours + 4 * size.n_interactions + AUDIT_BYTES * n * checks
    work = max(solving, turning, checking, columns + size.companion_bytes)
    per_target = 2.0 * ROUNDS * (neighbours + 1) ** 2 + LOOKUP * neighbours * row_entries
    per_target = 0.0 if on_card else per_target
    pairs = PAIR * size.n_interactions**2 / size.n_users + CHECK * size.n_interactions
    data = NEAR_PAIR_BYTES * size.n_interactions + NEAR_ITEM_BYTES * n
    return Cost(
        peak_bytes=work + data + NEAR_USER_BYTES * size.n_users,
        speed=NEAR_SPEED,
        disk_bytes=entries + columns if on_disk else 0,
        neighbours=neighbours,
        audit_threads=checks,
        flops=n * per_target + pairs + size.companion_flops,
    )


@dataclass(frozen=True)
class Plan:
    """Engine and cost of a fit.

    Parameters
    ----------
    engine
        The engine that would run: "dense", "dual", "tiled", "gpu" or "neighbourhood".
    n_items
        Number of items.
    dtype
        Floating point type of the solve.
    peak_bytes
        Peak memory of a fit on top of the data: of the machine, or of the GPU.
    budget_bytes
        Memory it may take: the free memory, or the `memory` option.
    flops
        Floating point operations of the solve.
    device
        Device of the solve.
    disk_bytes, disk_free_bytes
        Disk space that the tiled or the neighbourhood engine needs, and that is free.
    tile_rows
        Rows of a tile; 0 for other engines than the tiled one.
    neighbours
        Neighbours of each item in the neighbourhood engine; 0 for an exact engine.
    nearest
        Advice on what would fit instead; empty if this fits.
    speed, moved_bytes
        Share of the machine's rate that the engine reaches, and bytes read and written on disk.
    audit_threads
        Threads that check a neighbourhood solve: one where memory is short.
    """

    engine: str
    n_items: int
    dtype: str
    peak_bytes: int
    budget_bytes: int
    flops: float
    device: str = "cpu"
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    tile_rows: int = 0
    neighbours: int = 0
    nearest: str = ""
    speed: float = field(default=1.0, repr=False)
    moved_bytes: int = field(default=0, repr=False)
    audit_threads: int = field(default=0, repr=False)

    @cached_property
    def seconds(self) -> float:
        """Expected time; the first access measures the speed of the machine for half a second."""
        if self.device != "cpu" and self.engine != "neighbourhood":
            rate = torch_backend.product_rate(self.device, self.dtype)
        else:
            rate = solve_rate(self.dtype)
        return self.flops / (self.speed * rate) + self.moved_bytes / DISK_RATE

    @property
    def fits(self) -> bool:
        """Whether memory and disk space are sufficient."""
        return self.peak_bytes <= self.budget_bytes and self.disk_bytes <= self.disk_free_bytes

    @property
    def outgrown(self) -> bool:
        """Whether no engine fits into the memory of this machine."""
        return self.engine == "tiled" or not self.fits

    def require(self) -> None:
        """Raise `TooBigError` with size, budget and remedy if the fit does not fit."""
        if self.fits:
            return
        with_neighbours = f" with {self.neighbours:,} neighbours" if self.neighbours else ""
        items, engine = (
            f"{self.n_items:,} items{with_neighbours} need",
            f"{self.engine} engine and",
        )
        if self.peak_bytes <= self.budget_bytes:
            remedy = "make room there or give a scratch folder on a larger disk"
            raise TooBigError(
                f"{items} {gigabytes(self.disk_bytes)} of disk in the {engine} "
                f"{gigabytes(self.disk_free_bytes)} is free there; {self.nearest or remedy}"
            )
        largest = int((0.95 * self.budget_bytes / np.dtype(self.dtype).itemsize) ** 0.5)
        remedy = f"keep at most {largest:,} items with data.filter(min_item=...)"
        if self.neighbours:
            remedy = "give more memory, or keep fewer items with data.filter(min_item=...)"
        remedy += ", or fit with dtype='float32'" if self.dtype == "float64" else ""
        remedy = "use engine='auto'" if self.engine == "dual" else remedy
        raise TooBigError(
            f"{items} {gigabytes(self.peak_bytes)} in the {engine} "
            f"{gigabytes(self.budget_bytes)} may be used; {self.nearest or remedy}"
        )

    def _repr_html_(self) -> str:
        memory = f"{gigabytes(self.peak_bytes)} of {gigabytes(self.budget_bytes)}"
        rows = [
            ("engine", self.engine),
            ("items", f"{self.n_items:,}"),
            ("number type", self.dtype),
            ("memory", f"{memory} ({'fits' if self.fits else 'does not fit'})"),
            ("operations", f"{self.flops / 1e12:.3g} Tflop"),
            ("time", f"about {duration(self.seconds)}"),
        ]
        if self.disk_bytes:
            rows.append(("disk", gigabytes(self.disk_bytes)))
        if self.neighbours:
            rows.append(("neighbours of each item", f"{self.neighbours:,} (approximate)"))
        notes = [self.nearest] if self.nearest else []
        return fragment("Plan of a fit", table(["", ""], rows, words=2), notes=notes)

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        disk = f"{gigabytes(self.disk_bytes)} of disk, " if self.disk_bytes else ""
        near = f", {self.neighbours:,} neighbours (approximate)" if self.neighbours else ""
        return (
            f"{self.engine} engine, {self.n_items:,} items{near}, {self.dtype}: "
            f"{gigabytes(self.peak_bytes)} of {gigabytes(self.budget_bytes)} ({verdict}), {disk}"
            f"{self.flops / 1e12:.3g} Tflop, about {duration(self.seconds)}"
        )


def plan(
    data: Interactions | None = None,
    *,
    n_users: int | None = None,
    n_items: int | None = None,
    n_interactions: int | None = None,
    dtype: str = "float32",
    memory: str | float | None = None,
    engine: str = "auto",
    device: str = "cpu",
    scratch: str | os.PathLike[str] | None = None,
    lowpass_rank: int = 0,
    neighbours: int | str | None = None,
) -> Plan:
    """Return the engine, memory, operations and seconds of a fit without running it.

    Parameters
    ----------
    data
        Interactions to plan for; or give the three numbers.
    n_users, n_items, n_interactions
        Size of the data, in place of `data`.
    dtype
        "float32" or "float64".
    memory
        Budget such as "6GB" or a number of bytes, of the machine or of the GPU; None takes the
        free memory.
    engine
        "dense", "dual" (a system of users x users), "tiled" (on disk) or "gpu"; "auto" takes the
        GPU where `device` names one, else the dual engine where there are far fewer users than
        items, else the dense one, or tiles when that does not fit. All of them are exact.
        "neighbourhood" is approximate and never chosen by "auto": each item is predicted from
        `neighbours` other items.
    device
        "cpu", or a GPU such as "cuda" or "cuda:1".
    scratch
        Folder for the tiles; None takes the folder for temporary files.
    lowpass_rank
        Rank of a `LowPass` companion, which is fitted after the solve; 0 for none.
    neighbours
        Neighbours of the neighbourhood engine, or a time such as "2m" that a fit may take; by
        default 200, or as many as fit into memory.

    Examples
    --------
    >>> import equipoise as eq
    >>> eq.plan(n_users=30_000, n_items=10_000, n_interactions=1_000_000).peak_bytes
    441080000
    """
    if data is not None:
        if not all(hasattr(data, name) for name in ("n_users", "n_items", "n_interactions")):
            raise SettingError(f"data must be Interactions, got {type(data).__name__}")
        n_users, n_items, n_interactions = data.n_users, data.n_items, data.n_interactions
    if n_users is None or n_items is None or n_interactions is None:
        raise SettingError("plan needs data, or n_users, n_items and n_interactions")
    count("n_users", n_users)
    count("n_items", n_items)
    count("n_interactions", n_interactions, 0)
    count("lowpass_rank", lowpass_rank, 0)
    options = SolveOptions(
        device=device,
        dtype=dtype,
        engine=engine,
        memory=memory,
        scratch=scratch,
        neighbours=neighbours,
    )
    return plan_fit(Size(n_users, n_items, n_interactions, dtype, lowpass_rank), options)


def plan_fit(size: Size, options: SolveOptions) -> Plan:
    """Return the plan of a fit of this size."""
    device, dtype, scratch = options.device, options.dtype, options.scratch
    engine = choice("engine", options.engine, ENGINES)
    if device != "cpu" and engine in ("dense", "tiled"):
        raise SettingError(f"the {engine} engine runs on device='cpu', got {device!r}")
    budget = free_memory() if options.memory is None else parse_memory(options.memory)
    if engine == "neighbourhood":
        return _near(size, options.neighbours, budget, scratch, device)
    if options.neighbours is not None:
        raise SettingError("neighbours is for engine='neighbourhood'; leave it out")
    if device != "cpu" or engine == "gpu":
        # tests run the steps of the GPU engine on the processor
        free = free_memory() if device == "cpu" else torch_backend.free_memory(device)
        budget = free if options.memory is None else min(free, budget)
        peak = gpu.needed_bytes(size.n_users, size.n_items, size.n_interactions, dtype)
        full = _plan("gpu", size, Cost(peak, CARD_SHARE), budget, device=device)
    else:
        full = _plan("dense", size, dense_cost(size), budget)
    small = _plan("dual", size, dual_cost(size), budget, device=device)
    can_be_dual = size.n_users < size.n_items and small.fits
    pays = size.n_items > dense.SMALL and DUAL_ITEMS_PER_USER * size.n_users <= size.n_items
    if engine == "dual" or (engine == "auto" and can_be_dual and (not full.fits or pays)):
        return small if small.fits else replace(small, nearest=_fitting(size, budget, scratch))
    if full.fits and engine != "tiled":
        return full
    if full.engine == "gpu":
        return replace(full, nearest=_fitting(size, free_memory(), None))
    tiles = _tiled(size, budget, scratch)
    if engine == "tiled" or (engine == "auto" and tiles.fits):
        return tiles
    return replace(full, nearest=_fitting(size, budget, scratch))


def _plan(engine: str, size: Size, cost: Cost, budget: int, **options: Any) -> Plan:
    costs = vars(cost) | ({"flops": size.flops} if cost.flops is None else {})
    return Plan(engine, size.n_items, size.dtype, budget_bytes=budget, **costs, **options)


def _near(
    size: Size,
    neighbours: int | str | None,
    budget: int,
    scratch: str | os.PathLike[str] | None,
    device: str = "cpu",
) -> Plan:
    """Plan the neighbourhood engine; where memory is short, its entries of A are on disk.

    If that is not enough, its result is checked on one thread. Memory is that of the machine, also
    where a GPU solves the systems.
    """
    free = free_disk(scratch)

    def with_entries(number: int, **ways: bool) -> Plan:
        cost = neighbourhood_cost(size, number, on_card=device != "cpu", **ways)
        return _plan("neighbourhood", size, cost, budget, disk_free_bytes=free, device=device)

    def best(number: int) -> Plan:
        plan = with_entries(number)
        if not plan.fits or scratch is not None:
            plan = with_entries(number, on_disk=True)
        return plan if plan.fits else with_entries(number, on_disk=True, one_audit=True)

    def largest(seconds: float = math.inf) -> int:
        """Return the most neighbours that fit into memory and time; 0 for none."""

        def too_many(number: int) -> bool:
            plan = best(number)
            return not plan.fits or (seconds < math.inf and plan.seconds > seconds)

        return bisect_left(
            range(1, min(NEIGHBOURS, max(size.n_items - 1, 1)) + 1), True, key=too_many
        )

    if neighbours is None:
        return best(largest() or 1)
    if isinstance(neighbours, str):
        number = largest(period("neighbours", neighbours))
        if not number:
            least = duration(best(1).seconds)
            raise SettingError(f"{neighbours!r} is too short: even 1 neighbour takes {least}")
        return best(number)
    plan = best(count("neighbours", neighbours))
    number = 0 if plan.fits else largest()
    return replace(plan, nearest=f"neighbours={number} fits") if number else plan


def _tiled(size: Size, budget: int, scratch: str | os.PathLike[str] | None) -> Plan:
    cost = tiled_cost(size, budget)
    return _plan("tiled", size, cost, budget, disk_free_bytes=free_disk(scratch))


def _fitting(size: Size, budget: int, scratch: str | os.PathLike[str] | None) -> str:
    """Return advice on the fastest engine of the processor that fits; empty if there is none."""
    if dense_cost(size).peak_bytes <= budget:
        return "device='cpu' has room for the dense engine"
    if size.n_users < size.n_items and dual_cost(size).peak_bytes <= budget:
        return "engine='dual' fits"
    tiles = _tiled(size, budget, scratch)
    if tiles.fits:
        need = f"{gigabytes(tiles.disk_bytes)} of disk, about {duration(tiles.seconds)}"
        return f"engine='tiled' fits on device='cpu' ({need})"
    near = _near(size, None, budget, scratch)
    if near.fits:
        return (
            f"engine='neighbourhood' with neighbours={near.neighbours} fits, which is approximate "
            f"({gigabytes(near.peak_bytes)}, about {duration(near.seconds)})"
        )
    if size.lowpass_rank and _fitting(replace(size, lowpass_rank=0), budget, scratch):
        return f"take a LowPass of a smaller rank than {size.lowpass_rank:,}"
    return ""


def free_disk(folder: str | os.PathLike[str] | None) -> int:
    """Return the free bytes for tiles in a folder, which need not exist; None for temporary."""
    path = Path(tempfile.gettempdir())
    if folder is not None:
        path = checked_path("scratch", folder).absolute()
    already_written = 0 if folder is None else tiled.written_bytes(path)
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free + already_written


@lru_cache(maxsize=2)
def solve_rate(dtype: str) -> float:
    """Return the operations per second of a solve on this machine, measured in half a second."""
    rng = np.random.default_rng(0)
    best = 0.0
    for n_items in (256, PROBE_ITEMS, PROBE_ITEMS):  # the first one loads the library
        A = rng.random((n_items, n_items), np.float32).astype(dtype)
        A.flat[:: n_items + 1] += n_items
        start = time.perf_counter()
        dense.invert_in_place(A)
        best = max(best, n_items**3 / (time.perf_counter() - start))
    return best
