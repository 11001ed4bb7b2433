"""Tune every method of the strong tables on validation users, each with the same budget.

    python benchmarks/validation_search.py --data DATA/gowalla/strong --device cuda --out F.json
    python benchmarks/validation_search.py --rows found_gowalla.json found_yelp2018.json

The first command lets `eq.tune` try up to 36 solves (or fits of a filter) of each method, chooses
by NDCG@20 on the validation users and evaluates the best settings on the test users. All trials
are stored in files next to F.json, so that an interrupted search continues. The second command
prints rows of a config for `paper/run.py`.

A weak split has no validation users: settings are chosen on test, as in the published tables
(``--groups dan --betas 0.3 0.5 0.7`` for the DAN rows of Table 4), or with ``--holdout`` on
`valid_subset_of_train`, which is removed from train for the search and added again for the final
fit. The group `companion` is EASE+DAN with the low-pass companion.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path

import equipoise as eq
from equipoise.data.readers.research import read_weak
from equipoise.data.split import Part, Split
from equipoise.models.saving import build
from reproduce.data import published_split

Models = dict[str, Any]  # by method; families with the same normalizer share solves
METRICS = ["ndcg@20", "recall@20", "head_ndcg@20", "tail_recall@20", "tail_ndcg@20"]


def families(normalizer: Any, lae: str, ease: str = "", rlae: str = "") -> Models:
    named = {lae: eq.LAE, ease: eq.EASE, rlae: eq.RLAE}
    return {name: family(normalizer=normalizer) for name, family in named.items() if name}


BOUNDS = {"diag_bound": [0.1, 0.2, 0.4]}
GAMMAS = {"gamma": [0.1, 0.2, 0.3, 0.5]}
ALPHAS = {"alpha": [0.1, 0.2, 0.3, 0.4, 0.5]}
PLAIN = {"l2": [10, 20, 50, 80, 120, 200, 300, 400, 600, 1000], "dropout": [0.0]}
DENOISING = {"l2": [20, 50, 100, 200, 300], "dropout": [0.3, 0.5, 0.6, 0.7]}
DEGREE = {"l2": [0], "dropout": [0.5, 0.667, 0.833, 0.909, 0.952]}
DAN = {"beta": [0.1, 0.2, 0.3, 0.4, 0.6], "l2": [5, 20, 50], "dropout": [0.5, 0.7]}
DIALS = {"alpha": [0.0, *ALPHAS["alpha"]], "diag_bound": [0.1, 0.2]}
WALK = {"l2": [0], "dropout": [0.048, 0.091, 0.167, 0.333, 0.5, 0.667, 0.833]}
COMPANION = {"beta": [0.3, 0.5, 0.7, 0.9], "l2": [5, 30], "dropout": [0.4, 0.6]}
COMPANION |= {"alpha": [0.0, 0.3], "strength": [0.1, 0.2, 0.4], "exponent": [0.15, 0.3, 0.4, 0.5]}
LOW = eq.LowPass(rank=512, user_exponent=0.4, item_exponent=0.4)
USER_NORM = families(eq.UserNorm(), "User norm", "User norm, EASE")
GFCF = {"n_factors": [512, 256], "strength": [0.1, 0.2, 0.3, 0.5, 0.7]}
BSPM = {"n_factors": [448, 256], "strength": [0.1, 0.2, 0.3], "time": [1.2, 2.0, 2.5]}
TURBO = {"user_exponent": [0.4, 0.5, 0.6, 0.7]}
SGFCF = {"exponent": [0.3, 0.34, 0.4], "strength": [0.5, 1.0, 1.6], "weakest": [0.3, 1.0]}
SEARCHES: list[tuple[str, Models, dict[str, Any]]] = [  # one call of `eq.tune` each
    ("plain", families(eq.NoNorm(), "LAE", "EASE", "RLAE"), PLAIN | BOUNDS),
    ("plain", families(eq.ColumnNorm(), "Col norm", "Col norm, EASE"), PLAIN | GAMMAS),
    ("denoising", families(eq.NoNorm(), "DLAE", "EDLAE", "RDLAE"), DENOISING | BOUNDS),
    ("denoising", families(eq.ItemNorm(), "Item norm"), DENOISING | ALPHAS),
    ("degree", families(eq.ItemNorm(), "Item norm"), DEGREE | ALPHAS),
    ("user", USER_NORM, {"beta": [0.2, 0.4, 0.6], "l2": [20, 50], "dropout": [0.0]}),
    ("dan", USER_NORM, DAN),
    ("dan", families(eq.DAN(), "LAE_DAN", "EASE_DAN", "RLAE_DAN"), DAN | DIALS),
    ("walk", families(eq.RandomWalk(), "RW norm"), WALK),
    ("walk", families(eq.Symmetric(), "Sym norm"), WALK),
    ("companion", {"EASE_DAN_companion": eq.EASE(normalizer=eq.DAN(), lowpass=LOW)}, COMPANION),
    ("GFCF", {"GF-CF": eq.GFCF()}, GFCF),
    ("BSPM", {"BSPM": eq.BSPM()}, BSPM | {"solver": ["rk4", "euler"]}),
    ("TurboCF", {"TurboCF": eq.TurboCF()}, TURBO | {"power": [0.7, 1.0]}),
    ("TurboCF", {"TurboCF": eq.TurboCF(order=2)}, TURBO),  # other powers would take hours
    ("SVDAE", {"SVD-AE": eq.SVDAE()}, {"n_factors": [0.01, 0.02, 0.04, 0.06]}),
    ("SGFCF", {"SGFCF": eq.SGFCF(n_factors=400)}, SGFCF | {"strongest": [1.3, 2.5]}),
]
GROUPS = ["plain", "denoising", "degree", "user", "dan", "walk", "companion"]
FILTERS = ["GFCF", "BSPM", "TurboCF", "SVDAE", "SGFCF"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of a split, named after its protocol")
    parser.add_argument("--out", type=Path, help="results; storages get its name and a suffix")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", nargs="*", choices=GROUPS, default=GROUPS[:-1])
    parser.add_argument("--filters", nargs="*", choices=FILTERS, default=[])
    parser.add_argument("--holdout", action="store_true", help="weak: choose on a part of train")
    parser.add_argument("--users", type=int, default=3000, help="validation users to choose on")
    parser.add_argument("--betas", type=float, nargs="+", help="replace the betas of the groups")
    parser.add_argument("--rows", type=Path, nargs="+", help="print a config from results")
    args = parser.parse_args()
    if args.rows:
        print_rows(args.rows)
    else:
        search(args)


def search(args: argparse.Namespace) -> None:
    last = published_split(args.data, args.data.name)
    split = split_to_tune(args, last)
    options: dict[str, Any] = {"metric": METRICS[0], "objectives": METRICS[1:]}
    options["progress"] = lambda at: print(f"{at.done}/{at.total}", at.best, flush=True)
    best_by_method: dict[str, list[Any]] = defaultdict(list)  # the best of each search, by method
    for number, (group, models, grid) in enumerate(SEARCHES):
        if group not in [*args.groups, *args.filters]:
            continue
        grid = grid | ({"beta": args.betas} if args.betas and "beta" in grid else {})
        options["device"] = args.device if group in GROUPS else "cpu"
        options["storage"] = args.out.with_name(f"{args.out.stem}_{number}_{group}.jsonl")
        trials = eq.tune([*models.values()], split, grid=grid, **options).trials
        for method, model in models.items():
            family_trials = trials.filter(family=type(model).__name__)
            row = family_trials.row(family_trials["ndcg@20"].arg_max(), named=True)
            chosen = model._vary({name: row[name] for name in grid if name in model._tunable()})
            valid = {name: round(row[name], 6) for name in METRICS}
            best_by_method[method].append({"settings": chosen.settings(), "valid": valid})
    best = []
    for method, lines in best_by_method.items():
        line = max(lines, key=lambda candidate: candidate["valid"]["ndcg@20"])
        model = build(line["settings"])
        options = {"device": args.device} if "device" in model._fit_options() else {}
        model.fit(last.train, **options)
        result = eq.evaluate(model, last.test, bootstrap=0)
        del model  # frees its inverse before the next one is made
        test = {name: round(float(result[name]), 6) for name in METRICS}
        best.append({"method": method, **line, "test": test})
    summary = {"data": args.data.parent.name, "protocol": args.data.name, "best": best}
    args.out.write_text(json.dumps(summary, indent=1) + "\n")


def split_to_tune(args: argparse.Namespace, last: Split) -> Split:
    """Return a split whose valid part samples the validation, hold-out or test users."""
    train, part = last.train, last.valid or last.test
    if args.holdout:
        hidden = read_weak(args.data)["valid_subset_of_train"]
        train = train.difference(hidden)
        part = eq.split.from_parts(train, test=(train, hidden), protocol="weak").test
    n_users = min(args.users, part.n_users)
    rows = np.sort(np.random.default_rng(0).choice(part.n_users, n_users, replace=False))
    valid = Part(part.history.rows(rows), part.target.rows(rows), part.protocol, "valid")
    return Split(train, valid, last.test, last.protocol)


def print_rows(files: list[Path]) -> None:
    """Print the best settings as rows of a config file."""
    rows: dict[str, list[str]] = defaultdict(list)
    for file in files:
        stored = json.loads(file.read_text())
        for line in stored["best"]:
            settings = {k: v for k, v in line["settings"].items() if v is not None}
            toml = re.sub(r'"(\w+)" = ', r"\1 = ", json.dumps(settings, separators=(", ", " = ")))
            rows[line["method"]].append(f"on.{stored['data'].title()} = {toml}")
    for name, lines in rows.items():
        print("\n".join(["[[rows]]", f'name = "{name}"', *lines, ""]))


if __name__ == "__main__":
    main()
