"""What a figure shows and whether the paper's claim holds, in sentences computed from points."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import polars as pl

from reproduce.config import Config
from reproduce.drawing import drops

NOISY = 20.0  # percent at which the paper compares
BALANCED = "alpha 0.2"  # whose weights the paper shows as the most balanced


def claims(config: Config, found: pl.DataFrame) -> list[str]:
    """Return a sentence for each thing the figure is there to show."""
    out = []
    for curve in config.options["curves"]:
        part = found.filter(pl.col("curve") == curve)
        for dataset in part["dataset"].unique(maintain_order=True):
            lines = part.filter(pl.col("dataset") == dataset)
            out += [f"{dataset}: {text}" for text in SENTENCES[curve](lines)]
    if config.options.get("panels"):
        out += _group_gains(config, found)
    return out


def holds(claim: bool) -> str:
    """Return the verdict on a claim of the paper."""
    return "yes" if claim else "no"


def _models(lines: pl.DataFrame) -> list[str]:
    names = lines["series"].unique(maintain_order=True).to_list()
    if len(names) < 2:
        return []
    plain, normed = names[0], names[-1]
    out = []
    for group in ("all", "head", "tail"):
        before, after = (_value(lines, name, group) for name in (plain, normed))
        gain = f" ({100 * (after / before - 1):+.1f} %)" if before > 0 else ""
        out.append(f"{group} {before:.4f} -> {after:.4f}{gain}")
    raised = _value(lines, normed, "tail") > _value(lines, plain, "tail")
    text = f"NDCG@20 without -> with normalization: {'; '.join(out)}"
    return [f"{text}. Normalization raises the tail: {holds(raised)}."]


def _group_gains(config: Config, found: pl.DataFrame) -> list[str]:
    """The gain of normalization in each group of data sets, and which is larger."""
    means = {}
    for group, names in config.options["panels"].items():
        gains = []
        for dataset in names:
            lines = found.filter((pl.col("dataset") == dataset) & (pl.col("group") == "all"))
            values = lines["y"].to_list()
            gains += [100 * (values[-1] / values[0] - 1)] if len(values) > 1 else []
        if gains:
            means[group] = float(np.mean(gains))
    text = "; ".join(f"{group} {mean:+.1f} %" for group, mean in means.items())
    if len(means) < 2:
        return [f"Mean gain: {text}. The groups cannot be compared with the data at hand."]
    first, second = means.values()
    claim = "The paper's ordering, a larger gain in the first group, holds"
    return [f"Mean gain: {text}. {claim} on the data at hand: {holds(first > second)}."]


def _alpha(lines: pl.DataFrame) -> list[str]:
    best = _best(lines, "all")
    tail = lines.filter(pl.col("group") == "tail").sort("x")["y"].to_list()
    rising = all(low <= high for low, high in pairwise(tail))
    text = f"NDCG@20 over all items is best at alpha = {best:g}, over the tail at "
    text += f"{_best(lines, 'tail'):g} and over the head at {_best(lines, 'head'):g}"
    return [f"{text}. The tail gains with every step of alpha: {holds(rising)}."]


def _beta(lines: pl.DataFrame) -> list[str]:
    parts = [f"{group} users {_best(lines, group):g}" for group in ("all", "active", "inactive")]
    return [f"NDCG@20 is best at beta: {', '.join(parts)}."]


def _noise(lines: pl.DataFrame) -> list[str]:
    out = []
    at = drops(lines).filter(pl.col("x") == NOISY)
    for group in ("all", "tail"):
        part = at.filter(pl.col("group") == group)
        drop = dict(part.select("series", "drop").rows())
        if len(drop) < 2 or "LAE" not in drop:
            continue
        ranked = sorted(drop, key=lambda name: -drop[name])
        shown = ", ".join(f"{name} {drop[name]:.1f} %" for name in ranked)
        text = f"drop of NDCG@20 ({group}) at {NOISY:g} % noise: {shown}"
        claim = f"The paper's ordering (LAE drops most) holds: {holds(ranked[0] == 'LAE')}"
        left = part.sort("ndcg@20", descending=True).select("series", "ndcg@20").rows()
        most = ", ".join(f"{name} {value:.4f}" for name, value in left)
        out.append(f"{text}. {claim}. NDCG@20 that is left: {most}.")
    return out


def _weights(lines: pl.DataFrame) -> list[str]:
    shared = {}
    for name in lines["series"].unique(maintain_order=True):
        part = lines.filter(pl.col("series") == name)
        head, tail = (part.filter(pl.col("group") == group) for group in ("head", "tail"))
        both = np.minimum(head["y"].to_numpy(), tail["y"].to_numpy())
        shared[name] = float(np.trapezoid(both, head["x"].to_numpy()))
    text = ", ".join(f"{name} {value:.2f}" for name, value in shared.items())
    first = max(shared, key=lambda name: shared[name])
    claim = f"The paper's claim, most balanced at {BALANCED}, holds: {holds(first == BALANCED)}"
    return [f"area that the densities of head and tail share: {text}. {claim}."]


def _eigenvalues(lines: pl.DataFrame) -> list[str]:
    kept = lines.filter(pl.col("group") == "")
    names = kept["series"].unique(maintain_order=True).to_list()
    curves = [kept.filter(pl.col("series") == name)["y"].to_numpy() for name in names]
    # equal to rounding where an eigenvalue is 0 for every beta
    falls = all((low >= high - 1e-6).all() for low, high in pairwise(curves))
    means = lines.filter(pl.col("group") == "mean")
    text = ", ".join(f"{name} {y:.4f}" for name, y in means.select("series", "y").rows())
    size = f"{kept['x'].to_numpy().max():,.0f}"
    claim = f"Every eigenvalue falls as beta grows: {holds(falls)}"
    return [f"mean of all {size} eigenvalues: {text}. {claim}."]


def _lists(lines: pl.DataFrame) -> list[str]:
    tails, parts = {}, []
    shown = lines.filter(pl.col("group") != "")
    for name in shown["series"].unique(maintain_order=True):
        rows = shown.filter(pl.col("series") == name)
        tails[name] = rows.filter(pl.col("group") == "tail").height
        mean = rows["y"].to_numpy().mean()
        parts.append(f"{name} {tails[name]} of {rows.height} (mean {mean:.0f} users)")
    user = lines.filter(pl.col("series") == "user")["label"].to_list()
    text = f"user {user[0]}, items from the tail: {', '.join(parts)}"
    between = tails["W/O"] < tails["DAN"] < tails["Sym"]
    return [f"{text}. DAN lies between W/O and Sym, as in the paper: {holds(between)}."]


def _best(lines: pl.DataFrame, group: str) -> float:
    part = lines.filter(pl.col("group") == group)
    return float(part.sort("y", descending=True, maintain_order=True)[0, "x"])


def _value(lines: pl.DataFrame, series: str, group: str) -> float:
    same = (pl.col("series") == series) & (pl.col("group") == group)
    return float(lines.filter(same)[0, "y"])


SENTENCES: dict[str, Callable[[pl.DataFrame], list[str]]] = {
    "models": _models,
    "alpha": _alpha,
    "beta": _beta,
    "noise": _noise,
    "weights": _weights,
    "eigenvalues": _eigenvalues,
    "lists": _lists,
}
