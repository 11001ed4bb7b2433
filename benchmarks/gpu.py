"""Measure the GPU engine at full size: time, memory and share of the GPU's sgemm speed.

    python benchmarks/gpu.py --out benchmarks/results/gpu.json

Requires only numpy, scipy and torch. Prints Markdown tables. `--quick` runs the first size only,
`--sweep` compares block sizes, `--device cpu --sizes 1500` tests the script without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from equipoise.ranking.device import OnDevice
from equipoise.ranking.ranker import top_k
from equipoise.solve import gpu
from equipoise.solve.gpu import DeviceMatrix, Gram
from equipoise.solve.torch_backend import find_device, full_precision, send

SIZES = (40_981, 91_599, 180_000)
CARD_24GB = 70_000  # items that must fit on a GPU with 24 GB
COLUMNS = {
    "items": ("items", ","),
    "method": ("method", ""),
    "Gram s": ("gram_seconds", ".2f"),
    "inverse s": ("seconds", ".2f"),
    "peak GiB": ("peak_gib", ".1f"),
    "TFLOP/s": ("tflops", ".1f"),
    "sgemm": ("sgemm_tflops", ".1f"),
    "share": ("share", ".0%"),
    "residual": ("residual", ".1e"),
    "1,000 lists s": ("rank_seconds", ".2f"),
}
STARTED = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--quick", action="store_true", help="only the first size")
    parser.add_argument("--sweep", action="store_true", help="compare block sizes, first size")
    parser.add_argument("--skip-torch", action="store_true", help="leave out torch's own inverse")
    parser.add_argument(
        "--limit", type=float, default=450, help="seconds; later parts are skipped"
    )
    parser.add_argument("--block", type=int, default=gpu.BLOCK)
    parser.add_argument("--strip", type=int)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    bench = Bench(options.device, options.limit)
    sizes = options.sizes[:1] if options.quick else options.sizes
    bench.solve(min(sizes), "warm-up, pairs", options.block, options.strip)
    bench.rows.clear()
    if options.sweep:
        for block in (256, 512, 1024, 2048):
            for strip in (1024, 2048, 4096):
                if strip >= block:
                    bench.solve(sizes[0], f"pairs, block {block}, strip {strip}", block, strip)
    for n_items in sizes:
        bench.solve(n_items, "pairs of halves", options.block, options.strip, rank=True)
        bench.solve(n_items, "float32", options.block, options.strip)
        if n_items <= 100_000 and not options.skip_torch:
            bench.solve(n_items, "torch", 0, None)
    if not options.quick and bench.cuda:
        bench.capped(24e9)
    bench.report(options.out)


class Rows(NamedTuple):
    """Histories in the form that a model's terms expect."""

    indptr: Any
    indices: Any
    values: Any


class Bench:
    """Runs the measurements and collects their rows."""

    def __init__(self, device: str, limit: float) -> None:
        device = "cuda:0" if device == "cuda" else device
        self.name, self.device, self.limit = device, find_device(device), limit
        self.cuda = self.device.type == "cuda"
        self.rows: list[dict[str, Any]] = []
        self.card = torch.cuda.get_device_name(self.device) if self.cuda else "CPU"

    def solve(
        self,
        n_items: int,
        method: str,
        block: int,
        strip: int | None,
        *,
        rank: bool = False,
    ) -> None:
        """Add a row for Gram matrix, inverse, residual and optionally ranking."""
        rate = {"torch": 15e12, "float32": 40e12}.get(method, 80e12)
        expected = n_items**3 / rate if self.cuda else 0
        if time.perf_counter() - STARTED + expected > self.limit:
            print(f"skipped {method} at {n_items:,}: no time left", flush=True)
            return
        row: dict[str, Any] = {"items": n_items, "method": method}
        try:
            self.measure(row, interactions(n_items), block, strip, rank)
        except Exception as error:  # go on with the other sizes
            row["error"] = f"{type(error).__name__}: {error}"
        if self.cuda:
            row["peak_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def measure(
        self, row: dict[str, Any], X: Any, block: int, strip: int | None, rank: bool
    ) -> None:
        """Fill in the measurements of one row."""
        weights = np.diff(X.indptr) ** -0.3
        penalty = 20 + np.bincount(X.indices, minlength=X.shape[1]).astype(np.float64)
        row["interactions"] = int(X.nnz)
        with full_precision():
            row["sgemm_tflops"] = self.product_rate()
            if self.cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(self.device)
            gram, row["send_seconds"] = self.timed(
                lambda: Gram(X, weights, "float32", str(self.device))
            )
            P = gram.empty()
            row["gram_seconds"] = self.timed(lambda: gram.fill(P))[1]
            P.diagonal().add_(send(penalty, self.device, P.dtype))
            P = self.invert(P, row, block, strip)
            row["residual"] = gram.residual(P, penalty)
        if rank:
            self.rank(DeviceMatrix(P), X, row)

    def invert(self, P: Any, row: dict[str, Any], block: int, strip: int | None) -> Any:
        """Invert with our engine, or with torch if the block is 0."""
        n_items = len(P)
        if block == 0:
            P, row["seconds"] = self.timed(
                lambda: torch.cholesky_inverse(torch.linalg.cholesky(P))
            )
        else:
            pairs = "pairs" in row["method"]
            row["seconds"] = self.timed(lambda: gpu.invert_in_place(P, block, strip, pairs=pairs))[
                1
            ]
        row["tflops"] = n_items**3 / row["seconds"] / 1e12
        row["share"] = row["tflops"] / row["sgemm_tflops"]
        return P

    def rank(self, matrix: DeviceMatrix, X: Any, row: dict[str, Any]) -> None:
        """Time top-20 lists of 1,000 users and check scores against a plain sum of rows."""
        source = np.ones(len(matrix), np.float32)
        target = (-1 / matrix.diagonal()).astype(np.float32)
        terms, users = [OnDevice(matrix, source, target)], X[:1000]
        ranked, row["rank_seconds"] = self.timed(lambda: top_k(terms, users, 20))
        row["listed"] = int((ranked.items >= 0).sum())
        worst = 0.0
        few_users = users[:8]
        scores = np.zeros(few_users.shape, np.float32)
        terms[0].adder(Rows(few_users.indptr, few_users.indices, few_users.data))(scores, 0)
        for user, user_scores in enumerate(scores):
            history_items = torch.from_numpy(users[[user]].indices.astype(np.int64)).to(
                self.device
            )
            plain = matrix.values[history_items].double().sum(dim=0).cpu().numpy() * target
            worst = max(worst, float(np.abs(user_scores - plain).max() / np.abs(plain).max()))
        row["rank_error"] = worst

    def capped(self, size: float) -> None:
        """Fit `CARD_24GB` items within the memory of a smaller GPU."""
        total = torch.cuda.mem_get_info(self.device)[1]
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(size / total, self.device)
        self.solve(CARD_24GB, "pairs, card capped at 24 GB", gpu.BLOCK, None, rank=True)
        torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def product_rate(self) -> float:
        """Return the TFLOP/s of a large matrix product, the best of three."""
        n = 16_384 if self.cuda else 1024
        A, B, C = (torch.rand((n, n), device=self.device) for _ in range(3))
        seconds = min(self.timed(lambda: torch.mm(A, B, out=C))[1] for _ in range(3))
        return 2 * n**3 / seconds / 1e12

    def timed(self, task: Callable[[], Any]) -> tuple[Any, float]:
        """Return the result of a task and its seconds."""
        self.wait()
        start = time.perf_counter()
        result = task()
        self.wait()
        return result, time.perf_counter() - start

    def wait(self) -> None:
        """Wait until the GPU has finished its work."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def report(self, out: Path | None) -> None:
        """Print the table and write the results."""
        print(f"\n{self.card}, torch {torch.__version__}, float32\n")
        print("| " + " | ".join(COLUMNS) + " |")
        print("|--:|---|" + "--:|" * (len(COLUMNS) - 2))
        for row in self.rows:
            cells = [f"{row[key]:{form}}" if key in row else "" for key, form in COLUMNS.values()]
            print("| " + " | ".join(cells) + " |" + row.get("error", ""))
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            result = {"device": self.card, "torch": torch.__version__, "rows": self.rows}
            out.write_text(json.dumps(result, indent=1) + "\n")


def interactions(n_items: int) -> Any:
    """Return long-tailed synthetic interactions: as many users as items, 27 items each."""
    rng = np.random.default_rng(0)
    count = 27 * n_items
    weight = np.cumsum(1 / np.arange(1, n_items + 1) ** 0.7)
    items = np.searchsorted(weight, rng.random(count) * weight[-1])
    items = rng.permutation(n_items)[np.minimum(items, n_items - 1)]
    users = rng.integers(0, n_items, count)
    users[:n_items] = np.arange(n_items)  # every user has an item
    X = sp.csr_array((np.ones(count, np.float32), (users, items)), shape=(n_items, n_items))
    X.sum_duplicates()
    X.data[:] = 1
    return X


if __name__ == "__main__":
    main()
