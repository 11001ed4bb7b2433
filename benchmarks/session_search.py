"""Compare the automatic choice of the session models with a wide search, STAN and V-STAN.

Run ``python benchmarks/session_search.py --data FOLDER --out RESULTS``, where FOLDER holds one
folder per set with `train_sessions.npz` and `test_sessions.npz`. Lists after every click of a
uniform sample of 1,000 test sessions (seed 0) with two or more known clicks.

- The wide search fits SLIS, SLIT and SLIST with the settings that the automatic choice starts
  from and with drawn ones (seed 0), then with one setting changed from the best by the test
  sessions; all fits leave out the last 300 training sessions. Its best MRR@20 by the test sessions
  is a reference that no choice made without them can expect to reach.
- The automatic models, and STAN and V-STAN with settings chosen by MRR@20 in the last 300 training
  sessions, are fitted to all training sessions.

Each row is stored in RESULTS, so that an interrupted run continues; ``--seconds`` limits the time
spent on new points of the wide search. Prints Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path
from session_models import gain
from session_timing import some_sessions

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.models.session_choice import STARTS
from equipoise.models.session_solver import recency
from reproduce.results import write_text
from reproduce.sessions import folder_name

SETS = ("Yoochoose", "RetailRocket", "Diginetica")
K = 20
HELD_OUT = 300  # last training sessions
DECAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 32.0)  # values of decay_inference, read off every fit
AXES: dict[str, tuple[Any, ...]] = {
    "mix": (0.0, 0.2, 0.5, 0.8, 0.9, 1.0),
    "l2": (1.0, 3.0, 10.0, 30.0, 100.0),
    "dropout": (0.0, 0.5, 0.8),
    "row_norm": ("l1", "l2"),
    "direction": ("sr", "part", "all"),
    "decay_position": (0.5, 1.0, 2.0, 4.0),
}
AUTOMATIC: dict[str, Any] = {
    "SLIST, auto": eq.SLIST(l2="auto"),
    "SLIS, auto": eq.SLIS(l2="auto"),
    "SLIT, auto": eq.SLIT(l2="auto"),
}
YARDSTICKS: dict[str, list[Any]] = {
    "V-SkNN": [eq.VSKNN(neighbours=n, sample=1000) for n in (100, 500)],
    "STAN": [
        eq.STAN(decay_inference=first, decay_position=second)
        for first, second in itertools.product(
            (0.25, 0.5, 1.0, 2.0, 4.0), (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
        )
    ],
    "V-STAN": [
        eq.VSTAN(decay_inference=first, decay_position=second, decay_match=third, idf=idf)
        for first, second, third, idf in itertools.product(
            (0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 2.0, 4.0, 8.0), (1.0, 4.0), (1.0, 5.0)
        )
    ],
}


class Sessions:
    """The sessions of one set: training, last training sessions and test sessions."""

    def __init__(self, folder: Path, n_sessions: int) -> None:
        self.train = eq.read(folder / "train_sessions.npz")
        test = some_sessions(folder, self.train, n_sessions)
        last = self.train.n_users - HELD_OUT
        past = self.train.rows(np.arange(last))
        self.past = past.columns(past.item_counts > 0)
        valid = self.train.rows(np.arange(last, self.train.n_users))
        self.test = eq.split.reveal(test)
        self.parts = {"valid": self._known(valid), "test": self._known(test)}

    def _known(self, sessions: Interactions) -> tuple[Interactions, Interactions]:
        """Return the steps of sessions on the items of all but the last training sessions."""
        known = sessions.with_items(self.past.item_index, unknown_items="skip")
        assert known._sequences is not None
        return eq.split.reveal(known.rows(np.flatnonzero(known._sequences.lengths >= 2)))


def key_of(settings: dict[str, Any]) -> str:
    """Return the settings that matter, as text."""
    relevant = dict(settings)
    if relevant["mix"] == 1:
        relevant |= {"direction": "sr", "decay_position": 1.0}
    if relevant["mix"] == 0 and relevant["direction"] == "sr":
        relevant["row_norm"] = "l1"
    return json.dumps(relevant, sort_keys=True)


def first_points(n_points: int) -> Iterator[dict[str, Any]]:
    yield from ({**start, "row_norm": "l1"} for start in STARTS)
    rng = np.random.default_rng(0)
    for _ in range(n_points):
        yield {name: values[rng.integers(len(values))] for name, values in AXES.items()}


def steps_from(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings that differ in one axis, by one place."""
    for name, values in AXES.items():
        place = values.index(settings[name])
        for other in (place - 1, place + 1):
            if 0 <= other < len(values):
                yield {**settings, name: values[other]}


def reciprocal_ranks(
    model: Any, part: tuple[Interactions, Interactions], decays: tuple[float, ...]
) -> np.ndarray:
    """Return the reciprocal rank of each event by each decay of its clicks, 0 beyond K.

    The rows of C are computed once for all decays.
    """
    history, target = part
    clicks = history._sequences
    assert clicks is not None
    weights = [recency(clicks, history.n_items, decay).tocsr() for decay in decays]
    clicked, places = np.unique(weights[0].indices, return_inverse=True)
    system = replace(model.system_, rough=True)
    rows = system.rows(clicked.astype(np.int64), "float32")
    out = np.zeros((len(decays), history.n_users))
    for event, item in enumerate(target.matrix.indices):
        entries = slice(*weights[0].indptr[event : event + 2])
        event_weights = np.stack([weight.data[entries] for weight in weights])
        scores = event_weights @ rows[places[entries]]
        own = scores[:, item, None]
        rank = 1 + (scores > own).sum(axis=1) + (scores[:, :item] == own).sum(axis=1)
        out[:, event] = np.where(rank <= K, 1 / rank, 0.0)
    return out


def measure_point(settings: dict[str, Any], sessions: Sessions) -> dict[str, Any]:
    began = time.process_time()
    model = eq.SLIST(**settings).fit(sessions.past, engine="sparse")
    row: dict[str, Any] = {"settings": settings}
    for name, part in sessions.parts.items():
        values = reciprocal_ranks(model, part, DECAYS)
        row[name] = values.mean(axis=1).tolist()
    return row | {"seconds": time.process_time() - began}


def search(sessions: Sessions, path: Path, n_points: int, n_steps: int, limit: float) -> list[Any]:
    """Return the rows of the wide search; measure points that are not stored yet."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {key_of(row["settings"]) for row in rows}
    began = time.monotonic()

    def visit(settings: dict[str, Any]) -> bool:
        """Measure a point unless it is known; return whether there is time for it."""
        if key_of(settings) in done:
            return True
        if time.monotonic() - began > limit:
            return False
        row = measure_point(settings, sessions)
        rows.append(row)
        done.add(key_of(settings))
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        text = f"{max(row['valid']):.4f} {max(row['test']):.4f} {row['seconds']:.1f} s"
        print(f"{path.stem} {text} {settings}", flush=True)
        return True

    if not all(visit(settings) for settings in first_points(n_points)):
        return rows
    walked: set[str] = set()
    most = len(STARTS) + n_points + n_steps
    while len(rows) < most:
        best = max(rows, key=lambda row: max(row["test"]))["settings"]
        if key_of(best) in walked:
            break
        walked.add(key_of(best))
        for settings in steps_from(best):
            if len(rows) >= most or not visit(settings):
                return rows
    return rows


def mrr_events(model: Any, part: tuple[Interactions, Interactions]) -> np.ndarray:
    history, target = part
    lists = model.rank(history, K).items
    hits = lists == target.matrix.indices[:, None]
    return np.asarray((hits / np.arange(1, lists.shape[1] + 1)).sum(axis=1))


def chosen_yardstick(models: list[Any], sessions: Sessions) -> Any:
    """Return the model with the best MRR@20 in the last training sessions."""
    valid = sessions.parts["valid"]
    values = [
        float(mrr_events(model.clone().fit(sessions.past), valid).mean()) for model in models
    ]
    return models[int(np.argmax(values))].clone()


def model_row(name: str, sessions: Sessions) -> dict[str, Any]:
    began = time.process_time()
    model = AUTOMATIC[name].clone() if name in AUTOMATIC else None
    if model is None:
        model = chosen_yardstick(YARDSTICKS[name], sessions)
    model.fit(sessions.train)
    seconds = time.process_time() - began
    events = mrr_events(model, sessions.test)
    settings = model.settings(resolved=True)
    return {"settings": settings, "events": events.tolist(), "seconds": seconds}


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| set | model | MRR@20 | of the wide search | over STAN | over V-STAN | choice s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        rows, models = result["search"], result["models"]
        best = max(max(row["test"]) for row in rows)
        by_valid = max(
            (valid, test)
            for row in rows
            for valid, test in zip(row["valid"], row["test"], strict=True)
        )[1]
        fits = f"best of {len(rows)} fits by"
        lines.append(f"| {name} | {fits} the test sessions | {best:.4f} | 100% | - | - | - |")
        share = f"{100 * by_valid / best:.1f}%"
        cells = [name, f"{fits} the last sessions", f"{by_valid:.4f}", share, "-", "-", "-"]
        lines.append(f"| {' | '.join(cells)} |")
        for model, row in models.items():
            mean = float(np.mean(row["events"]))
            cells = [f"{mean:.4f}", f"{100 * mean / best:.1f}%"]
            for yardstick in ("STAN", "V-STAN"):
                reference = models.get(yardstick, row)["events"]
                cells.append(gain(row["events"], reference))
            cells.append(f"{row['seconds']:.0f}")
            lines.append(f"| {name} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    names = [*AUTOMATIC, *YARDSTICKS]
    parser.add_argument("--models", nargs="*", choices=names, default=names)
    parser.add_argument("--sessions", type=int, default=1000, help="test sessions of each set")
    parser.add_argument("--points", type=int, default=10, help="drawn points of the wide search")
    parser.add_argument("--steps", type=int, default=20, help="steps from the best")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for new points")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    for name in args.sets:
        sessions = Sessions(args.data / folder_name(name), args.sessions)
        path = args.out / f"search-{name}.jsonl"
        rows = search(sessions, path, args.points, args.steps, args.seconds)
        models: dict[str, Any] = {}
        for model in args.models:
            short = model.replace(", ", "-")
            path = args.out / f"search-{name}-{short}.json"
            if not path.exists():
                write_text(path, json.dumps(model_row(model, sessions)))
            models[model] = json.loads(path.read_text(encoding="utf-8"))
            print(f"{name}: {model} {models[model]['settings']}", flush=True)
        results[name] = {"search": rows, "models": models}
    text = table(results)
    write_text(args.out / "search.md", text + "\n")
    print(text)


if __name__ == "__main__":
    main()
