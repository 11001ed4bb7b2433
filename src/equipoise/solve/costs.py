"""What each engine takes for a system of some size: memory, disk, operations, seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise import svd
from equipoise.errors import SettingError
from equipoise.solve import card, dense, gpu, inmemory, tiled

ENGINES = ("auto", "dense", "tiled", "gpu")
CSR_BYTES = 12 + 28  # a stored interaction, and the copies the Gram matrix works from
TILED_SHARE = 0.9  # of the budget that goes into tiles; the rest is for BLAS and for writing
TILED_SPEED = 0.85  # of the dense engine's rate, without the files
DISK_RATE = 1.5e9  # bytes a second through the page cache, checksums included
CARD_SHARE = 0.85  # of a large product's rate


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
        return svd.needed_bytes((self.n_users, self.n_items), rank, self.dtype) + factors


@dataclass(frozen=True)
class Cost:
    """Memory and disk at the peak, speed, bytes read and written, and the rows of a tile.

    `speed` is the share of the dense engine's rate, or of a card's product, that is reached.
    """

    peak_bytes: int
    speed: float = 1.0
    disk_bytes: int = 0
    moved_bytes: int = 0
    tile_rows: int = 0


def dense_cost(size: Size) -> Cost:
    """One n x n array in memory, and the companion beside it."""
    return Cost(size.n_items**2 * size.itemsize + size.data_bytes + size.companion_bytes)


def update_cost(size: Size, rank: int) -> Cost:
    """A second n x n array beside the one that is updated, and copies of the change, rank x n."""
    n, itemsize = size.n_items, size.itemsize
    change = itemsize * (4 * rank + 2 * min(inmemory.STRIP, n)) * n + 3 * 8 * rank**2
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


def gpu_cost(size: Size) -> Cost:
    """One n x n array on the card, and strips beside it."""
    peak = gpu.needed_bytes(size.n_users, size.n_items, size.n_interactions, size.dtype)
    return Cost(peak, CARD_SHARE)


def check_choice(engine: str, device: str) -> None:
    """Refuse an engine or a device that does not exist, and pairs that do not belong together."""
    if engine not in ENGINES:
        raise SettingError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if device == "cpu":
        return
    if not (isinstance(device, str) and device.startswith("cuda")):
        raise SettingError(f"device must be 'cpu', 'cuda' or 'cuda:1', got {device!r}")
    if engine in ("dense", "tiled"):
        raise SettingError(f"the {engine} engine runs on device='cpu', got {device!r}")


def card_rate(device: str, dtype: str) -> float:
    """Operations a second of a large product on a card, from a measurement of milliseconds."""
    import time

    torch, where = card.load_torch(), card.find_device(device)
    n = 4096
    A = torch.ones((n, n), dtype=getattr(torch, dtype), device=where)
    best = 0.0
    with card.precision(False):
        for _ in range(3):
            torch.cuda.synchronize(where)
            start = time.perf_counter()
            A @ A
            torch.cuda.synchronize(where)
            best = max(best, 2.0 * n**3 / (time.perf_counter() - start))
    return best
