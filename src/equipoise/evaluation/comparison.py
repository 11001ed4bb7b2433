"""Compare results user by user, with significance tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from equipoise.checks import choice, count
from equipoise.display.notebook import Interval, fragment, intervals, table
from equipoise.errors import DataError, SettingError
from equipoise.evaluation.metrics import nearest
from equipoise.evaluation.resampling import bootstrap_interval, holm, sign_flip_test
from equipoise.evaluation.results import Result, markdown_table
from equipoise.runtime.machine import check_polars

Floats = npt.NDArray[np.float64]
Test = Literal["permutation", "t"]
Correction = Literal["holm", "bonferroni", "none"]
Pairs = Literal["first", "all"]
NUMBERS = ("difference", "low", "high")
TESTS = {"permutation": "sign-flip permutation test", "t": "paired t-test"}
CORRECTIONS = {
    "holm": "Holm's correction",
    "bonferroni": "Bonferroni's correction",
    "none": "uncorrected",
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Differences between models on the same users. Made by `compare`."""

    metric: str
    table: pl.DataFrame  # one row per pair of models, see `to_frame`
    test: str
    correction: str
    fingerprint: str  # of the part all results share

    def to_frame(self) -> pl.DataFrame:
        """Return one row per pair: model, baseline, means, difference, interval and p-values.

        `difference` is model minus baseline, `low` and `high` bound its 95% bootstrap interval
        over users, `p_adjusted` is `p` after the correction for the number of rows.
        """
        return self.table

    def to_markdown(self) -> str:
        """Return a Markdown table, a row per pair of models."""
        return f"{markdown_table(self._rows())}\n\n{self._method}\n"

    def _rows(self) -> list[list[str]]:
        """Return the cells of the table, its head first."""
        head = ["model", "against", self.metric, "difference [95%]", "p", "p adjusted", "users"]
        rows = [head]
        for row in self.table.iter_rows(named=True):
            p_values = [f"{row['p']:.2g}", f"{row['p_adjusted']:.2g}"]
            means = f"{row['mean']:.4f} / {row['baseline_mean']:.4f}"
            names = [row["model"], row["baseline"]]
            rows.append([*names, means, _interval(row), *p_values, f"{row['n_users']:,}"])
        return rows

    def _repr_html_(self) -> str:
        head, *rows = self._rows()
        differences = [
            Interval(f"{row['model']} - {row['baseline']}", *(row[n] for n in NUMBERS))
            for row in self.table.iter_rows(named=True)
        ]
        title = f"Differences in {self.metric} on part {self.fingerprint}"
        picture = intervals(title, differences, zero=True)
        return fragment(title, picture, table(head, rows, words=2), notes=[self._method])

    def __repr__(self) -> str:
        lines = [f"Comparison by {self.metric} on part {self.fingerprint}"]
        for row in self.table.iter_rows(named=True):
            pair = f"{row['model']} against {row['baseline']}"
            lines.append(f"  {pair}: {_interval(row)}, p = {row['p_adjusted']:.2g}")
        return "\n".join([*lines, self._method])

    @property
    def _method(self) -> str:
        tests = f"{self.table.height} test{'s' if self.table.height > 1 else ''}"
        test, correction = TESTS[self.test], CORRECTIONS[self.correction]
        return f"Two-sided {test} per user, {correction} for {tests}."


def _interval(row: dict[str, Any]) -> str:
    return f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"


def compare(
    results: Sequence[Result] | Mapping[str, Result],
    metric: str = "ndcg@20",
    *,
    correction: Correction = "holm",
    test: Test = "permutation",
    pairs: Pairs = "first",
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Test whether models differ, paired user by user.

    Parameters
    ----------
    results
        Two or more results on the same part, the baseline first; a mapping names them.
    metric
        A metric with a value per user, such as "ndcg@20" or "tail_recall@20".
    correction
        For testing several models: "holm", "bonferroni" or "none".
    test
        "permutation" flips the sign of each user's difference at random and makes no assumption
        about its distribution; "t" is the paired t-test, faster for millions of users.
    pairs
        "first" tests every model against the first; "all" tests every pair.
    resamples
        Random flips; the smallest p-value is 1 / (resamples + 1). The interval uses 1,000 draws.
    seed
        Seed of the flips and draws.
    """
    check_polars()
    choice("correction", correction, CORRECTIONS)
    choice("test", test, TESTS)
    choice("pairs", pairs, ("first", "all"))
    count("resamples", resamples)
    if not isinstance(metric, str):
        raise SettingError(f"metric must be a name such as 'ndcg@20', got {metric!r}")
    named = by_label(results)
    if len(named) < 2:
        raise SettingError(f"compare needs at least two results, got {len(named)}")
    _check_comparable(named, metric)
    compared = list(combinations(named, 2))
    if pairs == "first":
        compared = compared[: len(named) - 1]
    values = {
        name: result.per_user[metric].fill_null(float("nan")).to_numpy()
        for name, result in named.items()
    }
    rows = [_row(values, base, other, test, resamples, seed) for base, other in compared]
    table = pl.DataFrame(rows)
    p_values = table["p"].to_numpy()
    adjusted = {
        "holm": holm(p_values),
        "bonferroni": np.minimum(p_values * len(p_values), 1.0),
        "none": p_values,
    }[correction]
    place = table.columns.index("n_users")
    table = table.insert_column(place, pl.Series("p_adjusted", adjusted))
    return Comparison(metric, table, test, correction, next(iter(named.values())).fingerprint)


def by_label(results: Sequence[Result] | Mapping[str, Result]) -> dict[str, Result]:
    """Return results by their names in tables; raise for anything but results."""
    listed = results.values() if isinstance(results, Mapping) else results
    if not isinstance(listed, Iterable) or not all(isinstance(one, Result) for one in listed):
        raise SettingError(f"results must be those of eq.evaluate, got {results!r}")
    if isinstance(results, Mapping):
        return dict(results)
    named: dict[str, Result] = {}
    for result in results:
        same = sum(other.label == result.label for other in named.values())
        named[f"{result.label} #{same + 1}" if same else result.label] = result
    return named


def _check_comparable(named: Mapping[str, Result], metric: str) -> None:
    first_name, first = next(iter(named.items()))
    for name, result in named.items():
        if result.fingerprint != first.fingerprint:
            raise DataError(
                f"{name!r} was evaluated on part {result.fingerprint}, {first_name!r} on part "
                f"{first.fingerprint}; evaluate both on the same part of the same split"
            )
        if metric not in result.per_user.columns or metric == "user":
            metrics = result.per_user.drop("user").columns
            raise DataError(
                f"{name!r} has no values per user for {metric!r} (k = "
                f"{', '.join(map(str, result.k))}); {nearest(metric, metrics)}"
            )
        base = metric.partition("@")[0]
        if result.definitions.get(base) != first.definitions.get(base):
            raise DataError(
                f"{name!r} and {first_name!r} define {base!r} differently; evaluate both again"
            )
        if result.exclude_seen != first.exclude_seen:
            raise DataError(
                f"only one of {name!r} and {first_name!r} excludes seen items; evaluate both with "
                "the same exclude_seen"
            )
        if not result.per_user["user"].equals(first.per_user["user"]):
            raise DataError(
                f"{name!r} and {first_name!r} have different users; evaluate both again"
            )


def _row(
    values: Mapping[str, Floats], base: str, other: str, test: Test, resamples: int, seed: int
) -> dict[str, Any]:
    both = ~np.isnan(values[base]) & ~np.isnan(values[other])
    if not both.any():
        raise DataError(
            f"no user has a value for both {other!r} and {base!r}; compare another metric"
        )
    before, after = values[base][both], values[other][both]
    difference = after - before
    low, high = bootstrap_interval(difference[:, None], 1000, seed)
    return {
        "model": other,
        "baseline": base,
        "mean": float(after.mean()),
        "baseline_mean": float(before.mean()),
        "difference": float(difference.mean()),
        "low": float(low[0]),
        "high": float(high[0]),
        "p": _p_value(difference, test, resamples, seed),
        "n_users": int(both.sum()),
    }


def _p_value(difference: Floats, test: Test, resamples: int, seed: int) -> float:
    if test == "permutation":
        return sign_flip_test(difference, resamples, seed)
    if len(difference) < 2 or (difference == difference[0]).all():
        # a constant difference has no variance; a difference of zero is no evidence
        return 1.0 if len(difference) < 2 or difference[0] == 0 else 0.0
    return float(stats.ttest_1samp(difference, 0.0).pvalue)
