"""Checks and arithmetic that the splits share: how many, which ones, what to say about it."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.errors import DataError, SettingError
from equipoise.interactions import Interactions
from equipoise.matrix import entry_rows

LATER = "training may hold events later than those to be found"


def check_share(name: str, share: Any, *, zero: bool) -> None:
    """Refuse a share outside (0, 1), or outside [0, 1) where zero is allowed."""
    fine = isinstance(share, Real) and 0 <= float(share) < 1
    if not fine or (share == 0 and not zero):
        lower = ">= 0" if zero else "> 0"
        raise SettingError(f"{name} must be {lower} and < 1, got {share!r}")


def check_shares(valid: float, test: float) -> None:
    """Refuse shares of valid and test that leave nothing to train on."""
    check_share("valid", valid, zero=True)
    check_share("test", test, zero=False)
    if valid + test >= 1:
        raise SettingError(f"valid and test must sum to less than 1, got {valid} + {test}")


def rounded(share: float, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Shares of many counts, rounded half up."""
    half_up: npt.NDArray[np.int64] = np.floor(share * counts + 0.5).astype(np.int64)
    return half_up


def group_sizes(total: int, valid: float, test: float, what: str) -> tuple[int, int]:
    """How many of the users (or sessions) go to valid and to test; too few are an error."""
    # With 2 / share of each group, train included, rounding by 1/2 can leave no group empty.
    shares = [share for share in (valid, test, 1 - valid - test) if share]
    enough = max(total, math.ceil(2 / min(shares)))
    # Numbers in between are tried so that the message can name the least; no more than a million.
    sizes = np.unique(np.append(np.arange(total, min(enough, total + 1_000_000)), enough))
    n_valid, n_test = rounded(valid, sizes), rounded(test, sizes)
    fits = ((n_valid > 0) | (valid == 0)) & (n_test > 0) & (n_valid + n_test < sizes)
    if not fits[0]:
        needed = int(sizes[fits][0])
        asked = f"valid={valid} and test={test} need at least {needed:,} {what}"
        raise DataError(f"{asked}, the data have {total:,}; give more data or other shares")
    return int(n_valid[0]), int(n_test[0])


def draw(
    total: int, n_valid: int, n_test: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], ...]:
    """Positions of train, valid and test, drawn evenly; each list ascends."""
    order = rng.permutation(total)
    return tuple(np.sort(part) for part in np.split(order, [total - n_valid - n_test, -n_test]))


def ranks(data: Interactions, key: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Rank of each pair among the pairs of its user by ascending key; ties by item position."""
    row = entry_rows(data.matrix)
    order = np.lexsort((key, row))
    out = np.empty(len(row), np.int64)
    out[order] = np.arange(len(row)) - data.matrix.indptr[row]
    return out


def times_of(data: Interactions, split: str) -> npt.NDArray[np.float64]:
    """Return the times of the data; an error names the split that needs them."""
    if data.times is None:
        raise DataError(f"{split} needs times; name the column with eq.read(..., time=...)")
    return data.times


def leak_notes(data: Interactions, why: str = "this split ignores time") -> list[str]:
    """Say that training may see the future, where the data have times."""
    return [f"{why}: {LATER}"] if data.times is not None else []


def seconds(moment: float | str | date, name: str) -> float:
    """Seconds since 1970 of a number, an ISO text or a date; UTC where no zone is given."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError as error:
            raise SettingError(f"{name} must be an ISO date or time, got {moment!r}") from error
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if isinstance(moment, datetime):
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(moment):
        raise SettingError(f"{name} must be finite, got {moment}")
    return float(moment)


def counted(number: int, noun: str, why: str) -> list[str]:
    """Return a note such as "3 users left out: ...", or none where the number is 0."""
    return [f"{number:,} {noun}{'' if number == 1 else 's'} {why}"] if number else []
