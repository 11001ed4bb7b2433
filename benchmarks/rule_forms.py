"""Compare other forms of the rules for l2 and dropout, leaving out each data set in turn.

    python benchmarks/rule_forms.py --data FOLDER --cache FOLDER --splits 6

Reads grids that `calibrate_auto.py` computed with the same options. The rule must hold with DAN
(alpha and beta by their rules) and without a normalizer (alpha = beta = 0):

    l2 = c1 w^a k^e kk^g,    p/(1-p) = c2 w^b / (m^c kk^h)

m: mean item count, k: mean user count, kk: mean over interactions of their user's count, w: mean
user weight. Per form, random candidates are drawn. The candidate that is best on all data sets
but one is evaluated on the grid of the left-out set: NDCG@20 on its valid part in percent of the
best value of the grid slice.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
from calibrate_auto import Case, cases_of, parser_of, rules

from equipoise import automatic

CANDIDATES = 8_000
C1, C2 = np.geomspace(2, 60, 30), np.geomspace(0.2, 60, 60)
UP_TO = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
# c1, a, e, g, c2, b, c, h
FORMS: dict[str, list[Any]] = {
    "now": [[8], [1], [0.5], [0], [8], [1], [0.25], [0]],
    "constants": [C1, [1], [0.5], [0], C2, [1], [0.25], [0]],
    "powers of w": [C1, UP_TO, [0.5], [0], C2, UP_TO, [0.25], [0]],
    "and of m": [C1, UP_TO, [0.5], [0], C2, UP_TO, [0, 0.125, 0.25, 0.5], [0]],
    "kk for m": [C1, UP_TO, [0.5], [0], C2, UP_TO, [0], [0.125, 0.25, 0.375, 0.5, 0.75]],
    "kk and m": [C1, UP_TO, [0.5], [0], C2, UP_TO, [0, 0.125, 0.25], [0.125, 0.25, 0.375, 0.5]],
    "kk in both": [C1, UP_TO, [0, 0.25], [0.25, 0.5], C2, UP_TO, [0, 0.125], [0.125, 0.25, 0.5]],
}
Values = npt.NDArray[np.float64]


def size_of(case: Case) -> float:
    """Return kk, the mean over interactions of their user's count."""
    counts = case.split.train.user_counts.astype(np.float64)
    return float((counts**2).sum() / counts.sum())


def read_off(case: Case, normalized: bool, chosen: Values) -> list[Values]:
    """Return NDCG and tail NDCG on valid of every candidate, then of all points of the slice."""
    c1, a, e, g, c2, b, c, h = chosen.T
    alpha, beta = rules({}, case)[:2] if normalized else (0.0, 0.0)
    size, weight = size_of(case), case.mean_weight(beta)
    l2 = c1 * weight**a * case.mean_user**e * size**g
    odds = c2 * weight**b / (case.mean**c * size**h)
    dropout = np.minimum(odds / (1 + odds), automatic.LARGEST_DROPOUT)
    axes = case.surfaces[0].grid
    at = np.column_stack([dropout, np.log(l2 / case.mean)])
    at = at.clip([axes[2][0], axes[3][0]], [axes[2][-1], axes[3][-1]])
    corners = np.stack(np.meshgrid(*axes[2:], indexing="ij"), axis=-1).reshape(-1, 2)
    return [
        surface(np.column_stack([np.tile([alpha, beta], (len(points), 1)), points]))
        for points in (at, corners)
        for surface in case.surfaces
    ]


def shares(cases: list[Case], normalized: bool, chosen: Values) -> tuple[Values, Values]:
    """Return NDCG and tail NDCG divided by those of the best point, as means over splits."""
    every = [read_off(case, normalized, chosen) for case in cases]
    ndcg, tail, slice_ndcg, slice_tail = (
        np.mean(values, axis=0) for values in zip(*every, strict=True)
    )
    best = int(slice_ndcg.argmax())
    return ndcg / slice_ndcg[best], tail / max(slice_tail[best], 1e-9)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tail", type=float, default=0.03, help="weight of the tail")
    args: argparse.Namespace = parser.parse_args()
    cases = cases_of(args)
    names = list(dict.fromkeys(case.name for case in cases))
    rng = np.random.default_rng(0)
    print("kk:", {case.name: round(size_of(case), 1) for case in cases})
    print(f"| form | | {' | '.join(names)} | mean |\n" + "|---" * (len(names) + 3) + "|")
    for form, space in FORMS.items():
        chosen = np.stack([rng.choice(values, CANDIDATES) for values in space], axis=1)
        ndcg: dict[bool, list[Values]] = {}
        worth = np.zeros((len(names), CANDIDATES))
        for kind in (True, False):
            ndcg[kind] = []
            for place, name in enumerate(names):
                set_cases = [case for case in cases if case.name == name]
                value, tail = shares(set_cases, kind, chosen)
                ndcg[kind].append(value)
                worth[place] += np.minimum(value, 1) + args.tail * np.minimum(tail, 1)
        worth_elsewhere = worth.sum(axis=0) - worth
        for kind, label in ((True, "DAN"), (False, "none")):
            chosen_ndcg = [
                set_ndcg[best]
                for set_ndcg, best in zip(ndcg[kind], worth_elsewhere.argmax(1), strict=True)
            ]
            cells = [f"{100 * value:.1f}" for value in (*chosen_ndcg, np.mean(chosen_ndcg))]
            print(f"| {form} | {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
