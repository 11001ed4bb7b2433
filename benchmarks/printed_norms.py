"""Search the settings of two published rows of Table 8, *Col norm* and *User norm* on Gowalla.

    python benchmarks/printed_norms.py --data DATA/gowalla/strong --device cuda --out F.json

The paper gives no settings for them. Every point of a grid is evaluated on the test users: LAE,
EASE and RLAE, with and without dropout in the penalty, and for *Col norm* also with histories
divided by count^given ("gamma on both sides"). The result has, for each row, the number of points
and the points nearest to the three printed numbers, by the largest relative error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path
import polars as pl

import equipoise as eq
from equipoise.data.split import Part, Split
from reproduce.data import published_split

PUBLISHED = Path(__file__).parents[1] / "paper" / "published"
METRICS = ("ndcg@20", "head_ndcg@20", "tail_ndcg@20")
SOLVES = {"l2": [20, 100, 400], "dropout": [0.0, 0.3, 0.6]}
BOUNDS = {"diag_bound": [0.1, 0.3, 0.5]}
COLUMNS = SOLVES | BOUNDS | {"gamma": [0.1, 0.2, 0.3, 0.5]}
USERS = SOLVES | BOUNDS | {"beta": [0.1, 0.3, 0.5, 0.8]}
SHOWN = ["family", *COLUMNS, "beta", "given"]


def trials(
    split: Split, normalizer: Any, grid: dict[str, Any], exponent: float, device: str
) -> Any:
    """Return all grid points with metrics on test; histories are divided by count^exponent."""
    matrix = split.test.history.matrix.astype(np.float32)
    matrix.data *= np.maximum(split.train.item_counts, 1.0)[matrix.indices] ** -exponent
    test = Part(
        split.test.history._replace(matrix=matrix, signed=True),
        split.test.target,
        "strong",
        "valid",
    )
    models = [family(normalizer=normalizer) for family in (eq.LAE, eq.EASE, eq.RLAE)]
    tuning_split = Split(split.train, test, split.test, "strong")
    objectives = METRICS[1:]
    points = eq.tune(models, tuning_split, grid=grid, objectives=objectives, device=device).trials
    print(f"{normalizer} given {exponent}: {len(points)} points", flush=True)
    return points.with_columns(given=pl.lit(exponent))


def nearest(points: pl.DataFrame, printed: dict[str, float]) -> dict[str, Any]:
    errors = [abs(pl.col(name) / printed[name] - 1) for name in METRICS]
    best = points.with_columns(worst=pl.max_horizontal(errors)).sort("worst").head(5)
    columns = [name for name in (*SHOWN, *METRICS, "worst") if name in best.columns]
    rows = [
        {name: round(x, 5) if isinstance(x, float) else x for name, x in row.items()}
        for row in best.select(columns).rows(named=True)
    ]
    return {"points": len(points), "printed": printed, "nearest": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the strong split")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    split = published_split(args.data, "strong")
    table = pl.read_csv(PUBLISHED / "table8_normalizations_all.csv")
    frames_by_row = {
        "Col norm": [
            trials(split, eq.ColumnNorm(), COLUMNS, exponent, args.device)
            for exponent in (0.0, 0.1, 0.2, 0.4)
        ],
        "User norm": [trials(split, eq.UserNorm(), USERS, 0.0, args.device)],
    }
    result = {}
    for name, frames in frames_by_row.items():
        row = table.filter(pl.nth(0) == "Gowalla", pl.nth(1) == name).row(0)
        printed = dict(zip(METRICS, map(float, row[2:]), strict=True))
        result[name] = nearest(pl.concat(frames, how="diagonal_relaxed"), printed)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
