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


def claims(config: Config, points: pl.DataFrame) -> list[str]:
    """Return a sentence for each claim of the figure."""
    out = []
    for curve in config.options["curves"]:
        for dataset, lines in _by(points.filter(curve=curve), "dataset").items():
            out += [f"{dataset}: {text}" for text in SENTENCES[curve](lines)]
    return out + (_group_gains(config, points) if config.options.get("panels") else [])


def holds(claim: bool) -> str:
    """Return the verdict on a claim of the paper."""
    return "yes" if claim else "no"


def _by(lines: pl.DataFrame, column: str) -> dict[str, pl.DataFrame]:
    """Return the lines of each value of a column, in their order."""
    parts = lines.partition_by(column, maintain_order=True)
    return {part[0, column]: part for part in parts}


def _models(lines: pl.DataFrame) -> list[str]:
    models = list(_by(lines, "series").values())
    if len(models) < 2:
        return []
    plain, normed = (dict(part.select("group", "y").rows()) for part in (models[0], models[-1]))
    out = []
    for group in ("all", "head", "tail"):
        before, after = plain[group], normed[group]
        gain = f" ({100 * (after / before - 1):+.1f} %)" if before > 0 else ""
        out.append(f"{group} {before:.4f} -> {after:.4f}{gain}")
    text = f"NDCG@20 without -> with normalization: {'; '.join(out)}"
    return [f"{text}. Normalization raises the tail: {holds(normed['tail'] > plain['tail'])}."]


def _group_gains(config: Config, points: pl.DataFrame) -> list[str]:
    """Return the gain of normalization in each group of data sets, and the larger one."""
    means = {}
    for group, names in config.options["panels"].items():
        parts = _by(points.filter(pl.col("dataset").is_in(names), group="all"), "dataset").values()
        gains = [100 * (part[-1, "y"] / part[0, "y"] - 1) for part in parts if part.height > 1]
        if gains:
            means[group] = float(np.mean(gains))
    text = "; ".join(f"{group} {mean:+.1f} %" for group, mean in means.items())
    if len(means) < 2:
        return [f"Mean gain: {text}. The groups cannot be compared with the data at hand."]
    first, second = means.values()
    claim = "The paper's ordering, a larger gain in the first group, holds"
    return [f"Mean gain: {text}. {claim} on the data at hand: {holds(first > second)}."]


def _alpha(lines: pl.DataFrame) -> list[str]:
    best = {group: _best(part) for group, part in _by(lines, "group").items()}
    tail = lines.filter(group="tail").sort("x")["y"].to_list()
    rising = all(low <= high for low, high in pairwise(tail))
    text = f"NDCG@20 over all items is best at alpha = {best['all']:g}, over the tail at "
    text += f"{best['tail']:g} and over the head at {best['head']:g}"
    return [f"{text}. The tail gains with every step of alpha: {holds(rising)}."]


def _beta(lines: pl.DataFrame) -> list[str]:
    groups = _by(lines, "group")
    parts = [f"{name} users {_best(groups[name]):g}" for name in ("all", "active", "inactive")]
    return [f"NDCG@20 is best at beta: {', '.join(parts)}."]


def _noise(lines: pl.DataFrame) -> list[str]:
    out = []
    for group, part in _by(drops(lines).filter(x=NOISY), "group").items():
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
    for name, part in _by(lines, "series").items():
        head, tail = (part.filter(group=group) for group in ("head", "tail"))
        both = np.minimum(head["y"].to_numpy(), tail["y"].to_numpy())
        shared[name] = float(np.trapezoid(both, head["x"].to_numpy()))
    text = ", ".join(f"{name} {value:.2f}" for name, value in shared.items())
    first = max(shared, key=lambda name: shared[name])
    claim = f"The paper's claim, most balanced at {BALANCED}, holds: {holds(first == BALANCED)}"
    return [f"area that the densities of head and tail share: {text}. {claim}."]


def _eigenvalues(lines: pl.DataFrame) -> list[str]:
    spectra = lines.filter(group="")
    curves = [part["y"].to_numpy() for part in _by(spectra, "series").values()]
    # equal to rounding where an eigenvalue is 0 for every beta
    falls = all((low >= high - 1e-6).all() for low, high in pairwise(curves))
    means = lines.filter(group="mean").select("series", "y").rows()
    text = ", ".join(f"{name} {y:.4f}" for name, y in means)
    claim = f"Every eigenvalue falls as beta grows: {holds(falls)}"
    return [f"mean of all {spectra['x'].max():,.0f} eigenvalues: {text}. {claim}."]


def _lists(lines: pl.DataFrame) -> list[str]:
    tails, parts = {}, []
    for name, rows in _by(lines.filter(pl.col("group") != ""), "series").items():
        tails[name] = rows.filter(group="tail").height
        parts.append(f"{name} {tails[name]} of {rows.height} (mean {rows['y'].mean():.0f} users)")
    user = lines.filter(series="user")[0, "label"]
    text = f"user {user}, items from the tail: {', '.join(parts)}"
    between = tails["W/O"] < tails["DAN"] < tails["Sym"]
    return [f"{text}. DAN lies between W/O and Sym, as in the paper: {holds(between)}."]


def _best(lines: pl.DataFrame) -> float:
    return float(lines.sort("y", descending=True, maintain_order=True)[0, "x"])


SENTENCES: dict[str, Callable[[pl.DataFrame], list[str]]] = {
    "models": _models,
    "alpha": _alpha,
    "beta": _beta,
    "noise": _noise,
    "weights": _weights,
    "eigenvalues": _eigenvalues,
    "lists": _lists,
}
