"""Fit the rules behind "auto" to real data sets and evaluate them on data sets left out.

    python benchmarks/calibrate_auto.py --data FOLDER --cache FOLDER

For every data set, `eq.tune` evaluates a coarse grid on the valid part. The constants of the rules
are those with the smallest total loss over all sets. For the table, each data set is left out in
turn: the constants are fitted to the other sets, and the model with the resulting settings is
evaluated on the test part of the left-out set, beside settings tuned on its valid part and the
defaults of other libraries. Large data sets are reduced to their most used items, so that the run
takes minutes on two cores. Writes benchmarks/results/automatic.csv and prints the constants and a
Markdown table.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from real import SHARED, cut, sources
from scipy.interpolate import RegularGridInterpolator

import equipoise as eq
from equipoise import automatic
from equipoise.data.statistics import gini, homophily
from equipoise.ranking.ranker import Ranked, top_k
from equipoise.ranking.terms import Dense
from equipoise.tuning import Tuned

GRID = {
    "alpha": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    "beta": (0.0, 0.2, 0.4, 0.6),
    "dropout": (0.0, 0.1, 0.2, 0.35, 0.5, 0.7),
}
PER_COUNT = (0.025, 0.1, 0.4, 1.5, 6.0, 24.0)  # l2 of the grid, per mean item count
PER_COUNT_OF_FEW = PER_COUNT[1:]  # for small sets, which are split several times
CONSTANTS = {
    "ALPHA_AT_NO_GINI": (0.2, 0.3, 0.4, 0.5),
    "ALPHA_PER_GINI": (-0.1, -0.2, -0.3, -0.4),
    "BETA_AT_NO_HOMOPHILY": (0.0, 0.1, 0.2),
    "BETA_PER_HOMOPHILY": (0.5, 1.0, 2.0),
    "L2_PER_ROOT": (2.8, 4.0, 5.6, 8.0, 11.0, 16.0, 23.0),
    "ODDS_PER_FOURTH_ROOT": (2.8, 4.0, 5.6, 8.0, 11.0, 16.0),
}
TAIL = 0.1  # weight of tail NDCG in the objective of the constants
SEVERAL, SPLITS = 2_000, 20  # with fewer than 2,000 users, average over 20 splits
ITEMS = 3_000
OUT = Path(__file__).parent / "results" / "automatic.csv"
METRICS = ("ndcg@20", "tail_ndcg@20")
PEERS = ("RecTools", "LensKit", "RecBole", "Cornac")


def l2_values(train: eq.Interactions) -> list[float]:
    """Return the l2 values of the grid."""
    shares = PER_COUNT_OF_FEW if train.n_users < SEVERAL else PER_COUNT
    mean = train.n_interactions / train.n_items
    return [share * mean for share in shares]


@dataclass
class Case:
    """One split of a data set with its statistics and the grid evaluated on its valid part."""

    name: str
    split: eq.split.Split
    tuned: Tuned

    def __post_init__(self) -> None:
        train = self.split.train
        self.mean = train.n_interactions / train.n_items
        self.mean_user = train.n_interactions / train.n_users
        self.gini = gini(train.item_counts)
        self.homophily = homophily(train)
        penalties = l2_values(train)
        trials = self.tuned.trials.filter(pl.col("l2").is_in(penalties))  # the cache may have more
        trials = trials.sort("alpha", "beta", "dropout", "l2")
        axes = [np.array(values) for values in GRID.values()]
        axes.append(np.log(np.array(penalties) / self.mean))
        shape = [len(axis) for axis in axes]
        self.surfaces = [
            RegularGridInterpolator(
                axes, trials[name].to_numpy().reshape(shape), bounds_error=False, fill_value=None
            )
            for name in METRICS
        ]

    def mean_weight(self, beta: float) -> float:
        """Return the mean user weight over all interactions."""
        counts = self.split.train.user_counts.astype(np.float64)
        return float((counts ** (1 - beta)).sum() / counts.sum())

    def at(self, choices: list[dict[str, float]]) -> npt.NDArray[np.float64]:
        """Return NDCG and tail NDCG at the settings of the rules, interpolated in the grid."""
        at = np.array([rules(constants, self) for constants in choices])
        share = np.log(at[:, 2] / self.mean)
        at = np.column_stack([at[:, 0], at[:, 1], at[:, 3], share])
        for column, axis in enumerate(self.surfaces[0].grid):  # no extrapolation
            at[:, column] = at[:, column].clip(axis[0], axis[-1])
        return np.column_stack([surface(at) for surface in self.surfaces])


def rules(constants: dict[str, float], case: Case) -> tuple[float, float, float, float]:
    """Return alpha, beta, l2 and dropout of the library's rules with these constants."""
    before = {name: getattr(automatic, name) for name in constants}
    try:
        for name, value in constants.items():
            setattr(automatic, name, value)
        alpha = automatic.alpha_from_gini(case.gini)
        beta = automatic.beta_from_homophily(case.homophily)
        weight = case.mean_weight(beta)
        l2, dropout = automatic.penalty_from_counts(case.mean, case.mean_user, weight)
    finally:
        for name, value in before.items():
            setattr(automatic, name, value)
    return alpha, beta, l2, dropout


def every_choice() -> list[dict[str, float]]:
    return [
        dict(zip(CONSTANTS, values, strict=True))
        for values in itertools.product(*CONSTANTS.values())
    ]


def gains(cases: list[Case]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the objective of every choice of constants on the valid part of each data set.

    The objective is NDCG divided by that of the best grid point, plus `TAIL` times the same ratio
    of tail NDCG. Both are averaged over splits before the division, because the best point of a
    single small split is mostly chance.
    """
    choices = every_choice()
    out: dict[str, npt.NDArray[np.float64]] = {}
    for name in dict.fromkeys(case.name for case in cases):
        set_cases = [case for case in cases if case.name == name]
        grid = [
            np.mean([case.surfaces[n].values for case in set_cases], 0).ravel() for n in (0, 1)
        ]
        best = int(np.argmax(grid[0]))
        ndcg, tail = np.mean([case.at(choices) for case in set_cases], 0).T
        out[name] = np.minimum(ndcg / grid[0][best], 1)
        out[name] += TAIL * np.minimum(tail / max(grid[1][best], 1e-9), 1)
    return out


def best_choice(worth: dict[str, npt.NDArray[np.float64]], without: str = "") -> dict[str, float]:
    """Return the constants with the largest total objective over all data sets but one."""
    total = sum(values for name, values in worth.items() if name != without)
    return every_choice()[int(np.argmax(total))]


class PositiveEASE:
    """EASE without negative weights, which is Cornac's default."""

    def __init__(self, model: eq.EASE) -> None:
        self.item_index_, self.item_counts_ = model.item_index_, model.item_counts_
        self.data_fingerprint_ = model.data_fingerprint_
        ones = np.ones(len(model.item_index_), np.float32)
        self.term = Dense(np.maximum(model.weights_, 0), ones, ones)

    def settings(self) -> dict[str, str]:
        """Return the name of the model."""
        return {"name": "EASE without negative weights"}

    def rank(self, history: eq.Interactions, k: int, *, exclude_seen: bool = True) -> Ranked:
        """Rank items by the positive weights."""
        return top_k([self.term], history.matrix, k, exclude_seen=exclude_seen)


Row = dict[str, float | str]


def on_test(model: object, split: eq.split.Split) -> tuple[list[float], pl.DataFrame]:
    """Return NDCG and tail NDCG on the test part, and the NDCG of each user."""
    names = ["ndcg", "tail_ndcg"]
    result = eq.evaluate(model, split.test, metrics=names, bootstrap=0)  # type: ignore[arg-type]
    return [result[name] for name in METRICS], result.per_user.select("user", METRICS[0])


def judged(case: Case, constants: dict[str, float]) -> tuple[Row, pl.DataFrame]:
    """Return test metrics of automatic settings, tuned settings and other libraries' defaults.

    Also returns each test user's difference in NDCG between the automatic settings and each
    library's defaults.
    """
    split = case.split
    alpha, beta, l2, dropout = rules(constants, case)
    auto = eq.EASE(l2=l2, dropout=dropout, normalizer=eq.DAN(alpha, beta)).fit(split.train)
    peers = {
        "RecTools": (plain := eq.EASE(l2=500.0, dropout=0.0).fit(split.train)),
        "LensKit": eq.EASE(l2=1.0, dropout=0.0).fit(split.train, dtype="float64"),
        "RecBole": eq.EASE(l2=250.0, dropout=0.0).fit(split.train),
        "Cornac": PositiveEASE(plain),
    }
    row: Row = {"data": case.name, "gini": case.gini}
    row |= {"homophily": case.homophily, "items": split.train.n_items}
    row |= {"alpha": alpha, "beta": beta, "l2": l2, "dropout": dropout}
    (row["auto"], row["auto_tail"]), users = on_test(auto, split)
    (row["tuned"], row["tuned_tail"]), _ = on_test(case.tuned.model, split)
    without = eq.EASE(l2="auto", dropout="auto").fit(split.train)
    (row["plain_auto"], row["plain_auto_tail"]), _ = on_test(without, split)
    for name, model in peers.items():
        (row[name], row[f"{name}_tail"]), peer_users = on_test(model, split)
        users = users.with_columns((users[METRICS[0]] - peer_users[METRICS[0]]).alias(name))
    return row, users.with_columns(data=pl.lit(case.name)).select("data", "user", *PEERS)


def table(cases: list[Case], worth: dict[str, npt.NDArray[np.float64]]) -> pl.DataFrame:
    """Return the results of each data set with constants fitted to all other sets."""
    rows, leads = [], []
    for name in worth:
        constants = best_choice(worth, without=name)
        logging.info("without %s: %s", name, constants)
        for case in cases:
            if case.name == name:
                row, lead = judged(case, constants)
                rows.append(row)
                leads.append(lead.with_columns(user=pl.col("user").cast(pl.String)))
    frame = pl.DataFrame(rows).group_by("data", maintain_order=True).mean()
    # one value per user: a user in the test part of several splits counts once
    users = pl.concat(leads).group_by("data", "user", maintain_order=True).mean()
    spread = users.group_by("data", maintain_order=True).agg(
        *((pl.col(name).std() / pl.len().sqrt()).alias(f"{name}_error") for name in PEERS),
        users=pl.len(),
    )
    return frame.join(spread, on="data", maintain_order="left").with_columns(
        share=pl.col("auto") / pl.col("tuned"),
        tail_share=pl.col("auto_tail") / pl.col("tuned_tail"),
    )


def lead(row: Row) -> str:
    """Return the lead over the best default of another library, with its standard error."""
    name = max(PEERS, key=lambda peer: float(row[peer]))
    ahead = float(row["auto"]) - float(row[name])
    return f"{ahead:+.4f} ± {float(row[f'{name}_error']):.4f}"


def make_case(name: str, seed: int, args: argparse.Namespace) -> Case:
    split = eq.split.strong(cut(args.data, name, args.items), seed=seed)
    grid = {**GRID, "l2": l2_values(split.train)}
    storage = args.cache / f"{name}-{args.items}-{seed}.jsonl"
    options = {"device": args.device, "threads": args.threads}
    tuned = eq.tune(eq.EASE, split, grid=grid, storage=storage, **options)
    case = Case(name, split, tuned)
    logging.info("%s, seed %d: %.0f s, best %s", name, seed, tuned.seconds, tuned.best)
    return case


def fill(name: str, seed: int, args: argparse.Namespace) -> None:
    """Evaluate a grid only to store it in the cache."""
    make_case(name, seed, args)


def parser_of(text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the prepared sets")
    parser.add_argument("--cache", type=Path, required=True, help="folder of finished solves")
    parser.add_argument("--items", type=int, default=ITEMS, help="number of most used items")
    parser.add_argument("--only", nargs="+", help="names of data sets")
    parser.add_argument("--splits", type=int, default=SPLITS, help="splits of sets with few users")
    parser.add_argument("--device", default="cpu", help="device of the solves")
    parser.add_argument("--threads", type=int, help="threads of a solve")
    return parser


def tasks_of(args: argparse.Namespace) -> list[tuple[str, int, argparse.Namespace]]:
    tasks = []
    for name in args.only or sources(args.data):
        few = cut(args.data, name, args.items).n_users < SEVERAL
        tasks += [(name, seed, args) for seed in range(args.splits if few else 1)]
    return tasks


def cases_of(args: argparse.Namespace) -> list[Case]:
    """Return every split of every data set with its evaluated grid, from the cache if possible."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("equipoise").setLevel(logging.WARNING)
    args.cache.mkdir(parents=True, exist_ok=True)
    return [make_case(*task) for task in tasks_of(args)]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--jobs", type=int, help="only fill the cache, with this many processes")
    args = parser.parse_args()
    if args.jobs:
        args.cache.mkdir(parents=True, exist_ok=True)
        with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
            pool.starmap(fill, tasks_of(args), chunksize=1)
        return
    cases = cases_of(args)
    worth = gains(cases)
    print("constants fitted to all:", best_choice(worth))
    results = table(cases, worth)
    OUT.parent.mkdir(exist_ok=True)
    results.write_csv(OUT, float_precision=4)
    heads = ("data", "gini", "homophily", "alpha", "beta", "l2", "dropout", "auto", "tuned")
    heads += ("share", "tail_share", *PEERS)
    print("| " + " | ".join(heads) + " | lead |\n|" + "---|" * (len(heads) + 1))
    for row in results.iter_rows(named=True):
        cells = [row["data"], *(f"{row[head]:.4g}" for head in heads[1:]), lead(row)]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
