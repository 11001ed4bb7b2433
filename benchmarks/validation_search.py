"""Tune every method of the strong tables on validation, each with the same budget.

    python benchmarks/validation_search.py --data DATA/gowalla/strong --device cuda --out F.json
    python benchmarks/validation_search.py --rows found_gowalla.json found_yelp2018.json

The first line judges up to 36 solves (or fits of a filter) of each method by NDCG@20 on the
validation users and evaluates the best on the test users; everything that can be read off a solve
(family, bound, alpha, gamma) is tried at no cost. The second prints the rows of a config for
`paper/run.py`. ``--observe`` names methods whose every trial is evaluated on test as well:
to look for the settings behind a published number, never to choose.

A weak split has no validation users: the choice is made on test, as the published tables do
(``--groups dan --betas 0.3 0.5 0.7`` for the DAN rows of Table 4), or with ``--holdout`` on
`valid_subset_of_train`, taken out of train for the search and put back for the last fit. The
group `companion` is EASE+DAN with the low-pass companion.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path

import equipoise as eq
from equipoise.models.saving import build
from equipoise.readers.research import read_weak
from equipoise.split import Part
from reproduce.data import published_split
from reproduce.tables import FILTERS as ON_CPU

Settings = dict[str, Any]
METRICS = ["recall", "ndcg", "head_ndcg", "tail_recall", "tail_ndcg"]
BOUNDS = (0.1, 0.2, 0.4)
ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
GAMMAS = (0.1, 0.2, 0.3, 0.5)
# (betas, l2s, dropouts): the solves that a group of methods shares
SOLVES: dict[str, tuple[tuple[float, ...], ...]] = {
    "plain": ((0.0,), (10, 20, 50, 80, 120, 200, 300, 400, 600, 1000), (0.0,)),
    "denoising": ((0.0,), (20, 50, 100, 200, 300), (0.3, 0.5, 0.6, 0.7)),
    "degree": ((0.0,), (0,), (0.5, 0.667, 0.833, 0.909, 0.952)),
    "user": ((0.2, 0.4, 0.6), (20, 50), (0.0,)),
    "dan": ((0.1, 0.2, 0.3, 0.4, 0.6), (5, 20, 50), (0.5, 0.7)),
    "walk": ((1.0,), (0,), (0.048, 0.091, 0.167, 0.333, 0.5, 0.667, 0.833)),
    "companion": ((0.3, 0.5, 0.7, 0.9), (5, 30), (0.4, 0.6)),
}
COMPANION = {"n_factors": (512,), "strength": (0.1, 0.2, 0.4), "exponent": (0.15, 0.3, 0.4, 0.5)}
FILTERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "GFCF": {"n_factors": (512, 256), "strength": (0.1, 0.2, 0.3, 0.5, 0.7)},
    "BSPM": {
        "n_factors": (448, 256),
        "strength": (0.1, 0.2, 0.3),
        "solver": ("rk4", "euler"),
        "time": (1.2, 2.0, 2.5),
        "average": (False,),
    },
    "TurboCF": {"user_exponent": (0.4, 0.5, 0.6, 0.7), "power": (0.7, 1.0), "order": (1, 2)},
    "SVDAE": {"n_factors": (0.01, 0.02, 0.04, 0.06)},
    "SGFCF": {
        "n_factors": (400,),
        "exponent": (0.3, 0.34, 0.4),
        "strength": (0.5, 1.0, 1.6),
        "weakest": (0.3, 1.0),
        "strongest": (1.3, 2.5),
    },
}
ROW_NAMES = {"GFCF": "GF-CF", "TurboCF": "TurboCF", "SVDAE": "SVD-AE"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of one split, its name the protocol")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", nargs="*", choices=SOLVES, default=list(SOLVES)[:-1])
    parser.add_argument("--filters", nargs="*", choices=FILTERS, default=[])
    parser.add_argument("--observe", nargs="*", default=[], help="methods to evaluate on test too")
    parser.add_argument("--holdout", action="store_true", help="weak: choose on a part of train")
    parser.add_argument("--users", type=int, default=3000, help="validation users to choose on")
    parser.add_argument("--betas", type=float, nargs="+", help="in place of those of the groups")
    parser.add_argument("--limit", type=int, help="only so many solves or fits of a group")
    parser.add_argument("--rows", type=Path, nargs="+", help="print a config from results")
    args = parser.parse_args()
    if args.rows:
        print_rows(args.rows)
    else:
        search(args)


def search(args: argparse.Namespace) -> None:
    last = published_split(args.data, args.data.name)
    split = held_out(args.data) if args.holdout else last
    valid = sample(split.test if split.valid is None else split.valid, args.users)
    found: list[dict[str, Any]] = []
    start = time.perf_counter()
    for models in trials(args):
        fitted: Any = None
        for method, model in models:
            if fitted is None:
                fitted = model.fit(split.train, **on_device(model, args.device))
            else:
                model.reuse(fitted)
            line = {"method": method, "settings": model.settings(), "valid": score(model, valid)}
            if method in args.observe:
                line["test"] = score(model, last.test)
            found.append(line)
        del fitted, model
        done = f"{time.perf_counter() - start:.0f} s, {len(found)} trials"
        print(done, json.dumps(found[-1]), flush=True)
        args.out.write_text(json.dumps({"data": str(args.data.parent.name), "trials": found}))
    best = [evaluated(line, last, args.device) for line in best_of(found)]
    summary = {"data": args.data.parent.name, "protocol": args.data.name, "best": best}
    args.out.write_text(json.dumps({**summary, "trials": found}, indent=1) + "\n")


def trials(args: argparse.Namespace) -> Iterator[list[tuple[str, Any]]]:
    """Yield lists of models that share a solve, the first of them to be fitted."""
    for group in args.groups:
        betas, *penalties = SOLVES[group]
        solves = list(itertools.product(args.betas or betas, *penalties))[: args.limit]
        for beta, l2, dropout in solves:
            yield list(read_off(group, beta, {"l2": float(l2), "dropout": dropout}))
    for name in args.filters:
        grid = FILTERS[name]
        points = list(itertools.product(*grid.values()))[: args.limit]
        for values in points:
            settings = dict(zip(grid, values, strict=True))
            if settings.get("order", 1) > 1 and settings["power"] != 1:
                continue  # its graph would be applied twice to dense rows: hours
            yield [(ROW_NAMES.get(name, name), getattr(eq, name)(**settings))]


def read_off(group: str, beta: float, penalty: Settings) -> Iterator[tuple[str, Any]]:
    """Yield every method and model that one solve serves."""
    if group in ("plain", "denoising"):
        mark = "D" if group == "denoising" else ""
        yield f"{mark}LAE", eq.LAE(**penalty)
        yield f"E{mark}LAE" if mark else "EASE", eq.EASE(**penalty)
        for bound in BOUNDS:
            yield f"R{mark}LAE", eq.RLAE(diag_bound=bound, **penalty)
        if group == "plain":
            for gamma, family in itertools.product(GAMMAS, (eq.LAE, eq.EASE)):
                name = "Col norm" if family is eq.LAE else "Col norm, EASE"
                yield name, family(normalizer=eq.ColumnNorm(gamma), **penalty)
    if group in ("denoising", "degree"):
        for alpha in ALPHAS[1:]:
            yield "Item norm", eq.LAE(normalizer=eq.ItemNorm(alpha), **penalty)
    if group in ("user", "dan"):
        yield "User norm", eq.LAE(normalizer=eq.UserNorm(beta), **penalty)
        yield "User norm, EASE", eq.EASE(normalizer=eq.UserNorm(beta), **penalty)
    if group == "dan":
        for alpha in ALPHAS:
            shared: Settings = {"normalizer": eq.DAN(alpha, beta), **penalty}
            yield "LAE_DAN", eq.LAE(**shared)
            yield "EASE_DAN", eq.EASE(**shared)
            for bound in BOUNDS[:2]:
                yield "RLAE_DAN", eq.RLAE(diag_bound=bound, **shared)
    if group == "companion":
        for alpha, *values in itertools.product((0.0, 0.3), *COMPANION.values()):
            fields: Settings = dict(zip(COMPANION, values, strict=True))
            lowpass = eq.LowPass(user_exponent=0.4, item_exponent=0.4, **fields)
            norm = eq.DAN(alpha, beta)
            yield "EASE_DAN_companion", eq.EASE(normalizer=norm, lowpass=lowpass, **penalty)
    if group == "walk":
        yield "RW norm", eq.LAE(normalizer=eq.RandomWalk(), **penalty)
        yield "Sym norm", eq.LAE(normalizer=eq.Symmetric(), **penalty)


def best_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the trial of each method with the highest NDCG@20 on validation."""
    best: dict[str, dict[str, Any]] = {}
    for line in found:
        known = best.get(line["method"])
        if known is None or line["valid"]["ndcg@20"] > known["valid"]["ndcg@20"]:
            best[line["method"]] = line
    return list(best.values())


def evaluated(line: dict[str, Any], split: Any, device: str) -> dict[str, Any]:
    """Return the trial with its numbers on the test users."""
    if "test" in line:
        return line
    model = build(line["settings"])
    model.fit(split.train, **on_device(model, device))
    return {**line, "test": score(model, split.test)}


def on_device(model: Any, device: str) -> dict[str, Any]:
    return {} if type(model).__name__ in ON_CPU else {"device": device}


def held_out(folder: Path) -> Any:
    """Return a weak split whose validation part was taken out of train."""
    parts = read_weak(folder)
    valid = parts["valid_subset_of_train"]
    rest = parts["train"].difference(valid)
    test = (parts["train"], parts["test"])
    return eq.split.from_parts(rest, valid=(rest, valid), test=test, protocol="weak")


def sample(part: Part, n_users: int) -> Part:
    if n_users >= part.n_users:
        return part
    rows = np.sort(np.random.default_rng(0).choice(part.n_users, n_users, replace=False))
    return Part(part.history.rows(rows), part.target.rows(rows), part.protocol, part.name)


def score(model: Any, part: Part) -> dict[str, float]:
    result = eq.evaluate(model, part, 20, metrics=METRICS, bootstrap=0)
    return {f"{name}@20": round(float(result[f"{name}@20"]), 6) for name in METRICS}


def print_rows(files: list[Path]) -> None:
    """Print the best settings as rows of a table's config."""
    rows: dict[str, list[str]] = {}
    names = {"gowalla": "Gowalla", "yelp2018": "Yelp2018"}
    for file in files:
        stored = json.loads(file.read_text())
        for line in stored["best"]:
            settings = {k: v for k, v in line["settings"].items() if v is not None}
            where = names.get(stored["data"], stored["data"])
            rows.setdefault(line["method"], []).append(f"on.{where} = {as_toml(settings)}")
    for name, lines in rows.items():
        print("\n".join(["[[rows]]", f'name = "{name}"', *lines, ""]))


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {as_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


if __name__ == "__main__":
    main()
