"""Plan the bytes, operations and seconds of a fit before anything is allocated.

`plan` says what each engine takes and which one a fit would use; `Plan.require` refuses what
does not fit.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import checks
from equipoise.checks import count as whole
from equipoise.checks import path as checked_path
from equipoise.checks import period
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError, TooBigError
from equipoise.runtime import machine
from equipoise.runtime.machine import duration, free_memory, gigabytes, parse_memory
from equipoise.solve import dense, dual, gpu, neighbourhood, svd, tiled, torch_backend

ENGINES = ("auto", "dense", "dual", "tiled", "gpu", "neighbourhood")
CSR_BYTES = 12 + 28  # a stored interaction, and the copies the Gram matrix works from
TILED_SHARE = 0.9  # of the budget that goes into tiles; the rest is for BLAS and for writing
TILED_SPEED = 0.85  # of the dense engine's rate, without the files
DISK_RATE = 1.5e9  # bytes a second through the page cache, checksums included
CARD_SHARE = 0.85  # of a large product's rate
# Items for each user from which the dual engine is taken (`benchmarks/dual.py --break-even`): its
# lists, through all users, cost more, so that a fit and a list for each user break even near 2,
# and with four lists between 3 and 4
DUAL_ITEMS_PER_USER = 4
DUAL_SPEED = {"float32": 0.5, "float64": 1.0}  # its system is in float64 either way
NEIGHBOURS = 200  # where neither a number nor a budget says how many
NEAR_SPEED = 0.3  # of the dense engine's rate, with so many operations for
LOOKUP = 70  # an entry that is looked up,
PAIR = 2700  # a pair of items of a user of average length (long histories count more), and
CHECK = 32_000  # an interaction in the exact columns of the audit
ROUNDS = 10  # of conjugate gradients
SPARSE = 8  # a product with an interaction
PROBE_ITEMS = 2560  # a solve of this size takes about a quarter of a second on two cores


@dataclass(frozen=True)
class Size:
    """The linear system of a fit, and the rank of the low-pass companion, 0 without one."""

    n_users: int
    n_items: int
    n_interactions: int
    dtype: str
    lowpass_rank: int = 0

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
        rank = min(self.lowpass_rank, self.n_users, self.n_items)
        if not rank:
            return 0
        factors = 2 * rank * self.n_items * self.itemsize
        shape = self.n_users, self.n_items
        vectors, rounds = svd.companion_sketch(shape, rank)
        return svd.needed_bytes(shape, vectors, self.dtype, rounds) + factors

    @property
    def companion_flops(self) -> float:
        """Operations of the companion's SVD; of one to full accuracy with two restarts."""
        rank = min(self.lowpass_rank, self.n_users, self.n_items)
        if not rank:
            return 0.0
        shape = self.n_users, self.n_items
        vectors, rounds = svd.companion_sketch(shape, rank)
        passes = 2.0 * (svd.ROUNDS if rounds is None else rounds + 1)
        made = svd.restart_vectors(rank) if rounds is None else vectors
        products = SPARSE * passes * made * self.n_interactions
        return products + passes * 2.0 * min(shape) * made**2


@dataclass(frozen=True)
class Cost:
    """Memory and disk at the peak, speed, bytes read and written, and the rows of a tile.

    `speed` is the share of the dense engine's rate, or of a card's product, that is reached.
    `flops` are the operations where they are not those of the items x items system.
    """

    peak_bytes: int
    speed: float = 1.0
    disk_bytes: int = 0
    moved_bytes: int = 0
    tile_rows: int = 0
    neighbours: int = 0
    flops: float | None = None  # of an engine that solves something smaller


def dense_cost(size: Size) -> Cost:
    """One n x n array in memory, and the companion beside it."""
    return Cost(size.n_items**2 * size.itemsize + size.data_bytes + size.companion_bytes)


def dual_cost(size: Size) -> Cost:
    """One users x users array in memory, and the companion beside it."""
    m, n, pairs = size.n_users, size.n_items, size.n_interactions
    # the Gram matrix and the diagonal, with items of average length
    flops = float(m) ** 3 + 8.0 * pairs**2 / n
    peak = dual.needed_bytes(m, n, pairs) + size.data_bytes + size.companion_bytes
    return Cost(peak, DUAL_SPEED[size.dtype], flops=flops)


def update_cost(size: Size, rank: int) -> Cost:
    """A second n x n array beside the one that is updated, and copies of the change, rank x n."""
    n, itemsize = size.n_items, size.itemsize
    change = itemsize * (4 * rank + 2 * min(dense.STRIP, n)) * n + 3 * 8 * rank**2
    check = 8 * min(dense.REFINE_COLUMNS, n) * n
    work = n**2 * itemsize + max(change, check)
    return Cost(work + 2 * size.data_bytes + size.companion_bytes)  # the data change too


def tiled_cost(size: Size, budget: int) -> Cost:
    """Three tiles in memory, as large as the budget allows, and the rest on disk.

    Where not even small tiles fit, the peak is what the smallest ones would take.
    """
    room = int(TILED_SHARE * budget) - size.data_bytes
    rows = tiled.rows_for(size.n_items, room, size.itemsize)
    fits = rows > 0
    rows = rows or min(tiled.SMALLEST, size.n_items)
    count = -(-size.n_items // rows)
    tile_bytes = rows**2 * size.itemsize
    held = 3 * tile_bytes + size.data_bytes
    # the tiles are gone, and the result is on disk, when the companion is fitted
    companion = size.companion_bytes + size.data_bytes if size.lowpass_rank else 0
    return Cost(
        peak_bytes=max(held if fits else int(held / TILED_SHARE) + 1, companion),
        speed=TILED_SPEED,
        disk_bytes=tiled.disk_bytes(size.n_items, rows, size.itemsize),
        moved_bytes=(count**3 + 6 * count**2) * tile_bytes,
        tile_rows=rows,
    )


def neighbourhood_cost(
    size: Size, neighbours: int, *, on_disk: bool = False, on_card: bool = False
) -> Cost:
    """The strongest entries of each row of A, in memory or in a file, and the columns of P twice.

    The entries are gone when the columns become rows, and so they are when the result is checked.
    Beside the rows of A, which the processor sums, the systems on a card take no time.
    """
    n, pair = size.n_items, 4 + size.itemsize
    neighbours = min(neighbours, max(n - 1, 1))
    kept = min(neighbourhood.KEPT * neighbours, max(n - 1, 1))
    room = min(neighbours + kept, max(n - 1, 1))
    entries, columns = n * room * pair, n * neighbours * pair
    threads = machine.count()
    solving = (
        (0 if on_disk else entries)
        + (0 if on_disk else columns)
        + (28 + size.itemsize) * n * threads
    )
    turning = 2 * columns
    checking = columns + n * neighbours + 4 * size.n_interactions + 8 * 48 * n * min(threads, 2)
    work = max(solving, turning, checking, columns + size.companion_bytes)
    each = 0.0 if on_card else 2.0 * ROUNDS * (neighbours + 1) ** 2 + LOOKUP * neighbours * kept
    pairs = PAIR * size.n_interactions**2 / size.n_users + CHECK * size.n_interactions
    return Cost(
        peak_bytes=work + size.data_bytes,
        speed=NEAR_SPEED,
        disk_bytes=entries + columns if on_disk else 0,
        neighbours=neighbours,
        flops=n * each + pairs + size.companion_flops,
    )


def gpu_cost(size: Size) -> Cost:
    """One n x n array on the card, and strips beside it."""
    peak = gpu.needed_bytes(size.n_users, size.n_items, size.n_interactions, size.dtype)
    return Cost(peak, CARD_SHARE)


@dataclass(frozen=True)
class Plan:
    """What a fit will cost.

    Parameters
    ----------
    engine
        The engine that would run: "dense", "dual", "tiled", "gpu" or "neighbourhood".
    n_items
        Number of items.
    dtype
        Floating point type of the solve.
    peak_bytes
        Memory a fit takes on top of the data: of the machine, or of the card.
    budget_bytes
        Memory it may take: what is free, or what was asked for.
    flops
        Floating point operations of the solve.
    device
        Where it would run.
    disk_bytes, disk_free_bytes
        Disk that tiles, or entries of the neighbourhood engine, need, and have.
    tile_rows
        Rows of a tile; 0 for other engines than the tiled one.
    neighbours
        Items beside the target in a support of the neighbourhood engine; 0 for an exact engine.
    nearest
        What would fit instead; empty if this fits.
    speed, moved_bytes
        Share of the machine's rate that the engine reaches, and what it moves to and from disk.
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

    @cached_property
    def seconds(self) -> float:
        """Expected time, from a measurement of half a second when this is first asked for."""
        on_card = self.device != "cpu" and self.engine != "neighbourhood"
        rate = (
            torch_backend.product_rate(self.device, self.dtype)
            if on_card
            else solve_rate(self.dtype)
        )
        return self.flops / (self.speed * rate) + self.moved_bytes / DISK_RATE

    @property
    def fits(self) -> bool:
        """Whether the peaks of memory and disk lie within what is there."""
        return self.peak_bytes <= self.budget_bytes and self.disk_bytes <= self.disk_free_bytes

    @property
    def outgrown(self) -> bool:
        """Whether no engine in the memory of this machine has room."""
        return self.engine == "tiled" or not self.fits

    def require(self) -> None:
        """Raise `TooBigError` with the size, the budget and the remedy if it does not fit."""
        if self.fits:
            return
        items, engine = f"{self.n_items:,} items need", f"{self.engine} engine and"
        if self.neighbours:
            items = f"{self.n_items:,} items with {self.neighbours:,} neighbours need"
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
    """Tell bytes, operations and seconds of a fit; nothing is allocated.

    Parameters
    ----------
    data
        Interactions to plan for; or give the three numbers.
    n_users, n_items, n_interactions
        Size of data that need not be at hand.
    dtype
        "float32" or "float64".
    memory
        Budget such as "6GB" or a number of bytes, of the machine or of the card; None takes what
        is free there.
    engine
        "dense", "dual" (a system of users x users), "tiled" (on disk) or "gpu"; "auto" takes the
        card where `device` names one, else the dual engine where users are few beside the items,
        else the dense one, or tiles when that does not fit. All of them are exact.
        "neighbourhood" is not, and never taken unless asked for: each item is predicted from
        `neighbours` others.
    device
        "cpu", or a card such as "cuda" or "cuda:1".
    scratch
        Folder for the tiles; None is the one for temporary files.
    lowpass_rank
        Rank of a `LowPass` companion, which is fitted after the solve; 0 without one.
    neighbours
        Of the neighbourhood engine: their number, or a time such as "2m" that a fit may take. Left
        out: 200, or as many as the memory has room for.

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
    for name, size_of, least in (
        ("n_users", n_users, 1),
        ("n_items", n_items, 1),
        ("n_interactions", n_interactions, 0),
    ):
        checks.count(name, size_of, least)
    checks.count("lowpass_rank", lowpass_rank, 0)
    if dtype not in ("float32", "float64"):
        raise SettingError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    if engine not in ENGINES:
        raise SettingError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if device != "cpu":
        if not (isinstance(device, str) and device.startswith("cuda")):
            raise SettingError(f"device must be 'cpu', 'cuda' or 'cuda:1', got {device!r}")
        if engine in ("dense", "tiled"):
            raise SettingError(f"the {engine} engine runs on device='cpu', got {device!r}")
    size = Size(n_users, n_items, n_interactions, dtype, lowpass_rank)
    if engine == "neighbourhood":
        return _near(size, neighbours, memory, scratch, device)
    if neighbours is not None:
        raise SettingError("neighbours is for engine='neighbourhood'; leave it out")
    on_card = device != "cpu" or engine == "gpu"
    if on_card:
        # the processor takes the place of a card where tests run the same steps
        free = free_memory() if device == "cpu" else torch_backend.free_memory(device)
        budget = free if memory is None else min(free, parse_memory(memory))
    else:
        budget = parse_memory(memory) if memory is not None else free_memory()
    small = _plan("dual", size, dual_cost(size), budget, device=device)
    if on_card:
        whole = _plan("gpu", size, gpu_cost(size), budget, device=device)
    else:
        whole = _plan("dense", size, dense_cost(size), budget)
    fewer = n_users < n_items and small.fits
    pays = n_items > dense.SMALL and DUAL_ITEMS_PER_USER * n_users <= n_items
    if engine == "dual" or (engine == "auto" and fewer and (not whole.fits or pays)):
        return small if small.fits else replace(small, nearest=_fitting(size, budget, scratch))
    if on_card:
        return whole if whole.fits else replace(whole, nearest=_fitting(size, free_memory(), None))
    if engine != "tiled" and whole.fits:
        return whole
    tiles = _tiled(size, budget, scratch)
    if engine == "tiled" or (engine == "auto" and tiles.fits):
        return tiles
    return replace(whole, nearest=_fitting(size, budget, scratch))


def _plan(engine: str, size: Size, cost: Cost, budget: int, **more: Any) -> Plan:
    known: dict[str, Any] = {"n_items": size.n_items, "dtype": size.dtype}
    costs = vars(cost) | ({"flops": size.flops} if cost.flops is None else {})
    return Plan(engine=engine, budget_bytes=budget, **known, **costs, **more)


def _near(
    size: Size,
    neighbours: int | str | None,
    memory: str | float | None,
    scratch: str | os.PathLike[str] | None,
    device: str = "cpu",
) -> Plan:
    """Plan the neighbourhood engine; its entries of A are on disk where memory is short.

    Memory is that of the machine, also where a card solves the systems.
    """
    budget = parse_memory(memory) if memory is not None else free_memory()
    free = free_disk(scratch)

    def made(number: int, on_disk: bool = False) -> Plan:
        cost = neighbourhood_cost(size, number, on_disk=on_disk, on_card=device != "cpu")
        return _plan("neighbourhood", size, cost, budget, disk_free_bytes=free, device=device)

    def best(number: int) -> Plan:
        whole = made(number)
        return whole if whole.fits and scratch is None else made(number, on_disk=True)

    def largest(fits: Callable[[Plan], bool]) -> int:
        low, high = 0, min(NEIGHBOURS, max(size.n_items - 1, 1))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(best(middle)) else (low, middle - 1)
        return low

    if neighbours is None:
        return best(largest(lambda plan: plan.fits) or 1)
    if isinstance(neighbours, str):
        limit = period("neighbours", neighbours)
        number = largest(lambda plan: plan.fits and plan.seconds <= limit)
        if not number:
            least = duration(best(1).seconds)
            raise SettingError(f"{neighbours!r} is too short: even 1 neighbour takes {least}")
        return best(number)
    found = best(whole("neighbours", neighbours))
    if found.fits:
        return found
    room = largest(lambda plan: plan.fits)
    advice = f"neighbours={room} fits" if room else ""
    return replace(found, nearest=advice)


def _tiled(size: Size, budget: int, scratch: str | os.PathLike[str] | None) -> Plan:
    cost = tiled_cost(size, budget)
    return _plan("tiled", size, cost, budget, disk_free_bytes=free_disk(scratch))


def _fitting(size: Size, budget: int, scratch: str | os.PathLike[str] | None) -> str:
    """Name the fastest engine of the processor that fits, or what to give up; empty if none."""
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
        need = f"{gigabytes(near.peak_bytes)}, about {duration(near.seconds)}"
        return (
            f"engine='neighbourhood' with neighbours={near.neighbours} fits, which is approximate "
            f"({need})"
        )
    if size.lowpass_rank and _fitting(replace(size, lowpass_rank=0), budget, scratch):
        return f"take a LowPass of a smaller rank than {size.lowpass_rank:,}"
    return ""


def free_disk(folder: str | os.PathLike[str] | None) -> int:
    """Bytes free for tiles in a folder that need not exist yet; None is the temporary one."""
    place = Path(tempfile.gettempdir())
    if folder is not None:
        place = checked_path("scratch", folder).absolute()
    ours = 0 if folder is None else tiled.written_bytes(place)
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free + ours


@lru_cache(maxsize=2)
def solve_rate(dtype: str) -> float:
    """Operations a second of the solve on this machine, from a measurement of half a second."""
    rng = np.random.default_rng(0)
    best = 0.0
    for n_items in (256, PROBE_ITEMS, PROBE_ITEMS):  # the first one loads the library
        A = rng.random((n_items, n_items), np.float32).astype(dtype)
        A.flat[:: n_items + 1] += n_items
        start = time.perf_counter()
        dense.invert_in_place(A)
        best = max(best, n_items**3 / (time.perf_counter() - start))
    return best
