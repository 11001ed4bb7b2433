"""What DAN did to the session models, in words: the answer that Table 7 is asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl

MODELS = ("SLIS", "SLIT", "SLIST")
WITH_DAN = "_DAN"
START = "| set | model |"  # what every answer begins with
HEADS = {"all": "aoa_", "tail": "tail_", "unbiased": "unbiased_"}


def answer(results: pl.DataFrame, kept: Path) -> str:
    """Return the table, what DAN changed and the answer, as Markdown.

    Parameters
    ----------
    results
        Cells of the table, as `run_sessions` returns them.
    kept
        Folder of the fits; where it holds what each event added, changes get their paired
        standard error over events.
    """
    values = {
        (line["dataset"], line["row"], line["column"]): line
        for line in results.filter(pl.col("ours").is_not_null()).to_dicts()
    }
    heads = [f"{head} R@20 / MRR@20 | published" for head in HEADS]
    first = [f"{START} {' | '.join(heads)} |", "|---|---|" + "---|" * 6]
    heads = [f"{head} MRR@20" for head in HEADS]
    second = [f"{START} {' | '.join(heads)} |", "|---|---|" + "---|" * 3]
    changes: dict[str, dict[tuple[str, str], float]] = {part: {} for part in HEADS}
    for name, model in itertools.product(dict.fromkeys(results["dataset"]), MODELS):
        rows = [row for row in (model, model + WITH_DAN) if (name, row, "aoa_mrr@20") in values]
        first += [_line(name, row, values) for row in rows]
        if len(rows) == 2:
            cells = []
            for part, head in HEADS.items():
                before, after = (values[name, row, f"{head}mrr@20"]["ours"] for row in rows)
                changes[part][name, model] = after - before
                cells.append(_change(before, after, paired_error(kept, name, model, part)))
            second.append(f"| {name} | {model} | {' | '.join(cells)} |")
    said = "What DAN did, both chosen on validation (se: paired standard error over events, in %):"
    return "\n".join([*first, "", said, "", *second, "", *_verdicts(changes), ""])


def paired_error(kept: Path, name: str, model: str, part: str) -> float | None:
    """Return the standard error of the change of MRR@20, None where the events are not kept."""
    metric = {"all": "mrr@20"}.get(part, f"{part}_mrr@20")
    files = [kept / f"{name}-{row}.parquet" for row in (model, model + WITH_DAN)]
    if not all(file.is_file() for file in files):
        return None
    before, after = (
        pl.read_parquet(file, glob=False)[metric].drop_nulls().to_numpy() for file in files
    )
    change = after.astype(np.float64) - before
    return float(change.std(ddof=1) / np.sqrt(len(change)))


def _line(name: str, row: str, values: dict[tuple[str, str, str], dict[str, float]]) -> str:
    cells = []
    for head in HEADS.values():
        pair = [values[name, row, f"{head}{metric}"] for metric in ("recall@20", "mrr@20")]
        cells.append(" / ".join(f"{cell['ours']:.4f}" for cell in pair))
        cells.append(" / ".join(f"{cell['published']:.4f}" for cell in pair))
    return f"| {name} | {row} | {' | '.join(cells)} |"


def _change(before: float, after: float, error: float | None) -> str:
    word = "the same" if after == before else "raised" if after > before else "lowered"
    text = f"{word}, {100 * (after / before - 1):+.1f}%" if before else word
    return text if error is None else f"{text} (se {100 * error / before:.1f})"


def _verdicts(changes: dict[str, dict[tuple[str, str], float]]) -> list[str]:
    """Return one line per question, with the cases that speak against it."""
    lines = []
    for part in ("tail", "unbiased"):
        cases = changes[part]
        against = [f"{model} on {name}" for (name, model), change in cases.items() if change <= 0]
        lines.append(
            f"- DAN raises {part} MRR@20: {_count(len(cases) - len(against), len(cases))}"
            f"{_except(against)}."
        )
    cases = {case: change for case, change in changes["all"].items() if case[1] == "SLIST"}
    against = [name for (name, _), change in cases.items() if change < 0]
    kept = _count(len(cases) - len(against), len(cases))
    lines.append(f"- It does not lower overall MRR@20 of SLIST: {kept}{_except(against)}.")
    return lines


def _count(good: int, total: int) -> str:
    return f"{'yes' if total and good == total else 'no'}, in {good} of {total} cases"


def _except(against: list[str]) -> str:
    return f", not {', '.join(against)}" if against else ""
