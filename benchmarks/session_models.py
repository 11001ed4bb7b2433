"""Compare session models with V-SkNN: default settings, and settings derived from the data.

Run ``python benchmarks/session_models.py --data FOLDER --out RESULTS``, where FOLDER holds one
folder per set with `train_sessions.npz` and `test_sessions.npz`. Each model is fitted on train and
ranks after every click of a uniform sample of 300 test sessions (seed 0) with two or more known
clicks. The gain over V-SkNN is the change of MRR@20 in % with its paired standard error over
events. Each row is stored in RESULTS, so that an interrupted run continues. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path
from session_timing import AUTHORS, some_sessions

import equipoise as eq
from equipoise.data.interactions import Interactions
from reproduce.results import write_text
from reproduce.sessions import folder_name

SETS = ("RetailRocket", "Diginetica", "Yoochoose")
YARDSTICK = "V-SkNN"
MODELS: dict[str, Any] = {
    YARDSTICK: eq.VSKNN(),
    "SLIT": eq.SLIT(),
    "SLIST": eq.SLIST(),
    "SLIST, half and half": eq.SLIST(**AUTHORS, mix=0.5),
    "SLIST, more of the next click": eq.SLIST(**AUTHORS, mix=0.2),
    "SLIS": eq.SLIS(),
    "SLIT, auto": eq.SLIT(l2="auto"),
    "SLIST, auto": eq.SLIST(l2="auto"),
    "SLIS, auto": eq.SLIS(l2="auto"),
}


def row_of(model: Any, train: Interactions, sessions: Interactions) -> dict[str, Any]:
    """Fit and rank after every click; return the metrics and each event's reciprocal rank."""
    began = time.process_time()
    model = model.clone().fit(train)
    fitted = time.process_time()
    part = eq.split.reveal(sessions)
    metrics = ["recall", "mrr", "tail_mrr"]
    result = eq.evaluate(model, part, 20, metrics=metrics, exclude_seen=False, bootstrap=0)
    row = {name: float(result[name]) for name in result}
    row |= {"fit": fitted - began, "rank": time.process_time() - fitted}
    row |= {"settings": model.summary(), "events": result.per_user["mrr@20"].to_list()}
    return row


def table(rows: dict[tuple[str, str], dict[str, Any]]) -> str:
    lines = [
        "| set | model | HR@20 | MRR@20 | tail MRR@20 | gain over V-SkNN | fit s | ms an event |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, model), row in rows.items():
        cells = [f"{row[metric]:.4f}" for metric in ("recall@20", "mrr@20", "tail_mrr@20")]
        cells.append(gain(row["events"], rows.get((name, YARDSTICK), row)["events"]))
        cells += [f"{row['fit']:.1f}", f"{1e3 * row['rank'] / len(row['events']):.1f}"]
        lines.append(f"| {name} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gain(values: list[float], reference: list[float]) -> str:
    """Return the change of the mean with its paired standard error, both in %."""
    change = np.subtract(values, reference)
    if not change.any():
        return "-"
    error = change.std(ddof=1) / len(change) ** 0.5
    mean = np.mean(reference)
    return f"{100 * change.mean() / mean:+.1f}% (se {100 * error / mean:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--sessions", type=int, default=300, help="test sessions of each set")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name in args.sets:
        folder = args.data / folder_name(name)
        train = eq.read(folder / "train_sessions.npz")
        sessions = some_sessions(folder, train, args.sessions)
        for model in args.models:
            short = model.replace(", ", "-").replace(" ", "_")
            path = args.out / f"{name}-{args.sessions}-{short}.json"
            if not path.exists():
                write_text(path, json.dumps(row_of(MODELS[model], train, sessions)))
            rows[name, model] = json.loads(path.read_text(encoding="utf-8"))
            print(f"{name}: {rows[name, model]['settings']}", flush=True)
    text = table(rows)
    write_text(args.out / f"models-{args.sessions}.md", text + "\n")
    print(text)


if __name__ == "__main__":
    main()
