"""Evaluate session models with published settings, or measure the memory of a fit.

Run ``python benchmarks/sessions.py --data FOLDER --out RESULTS``, where FOLDER holds one folder
per set with `train_sessions.npz` and `test_sessions.npz`. Two protocols (for the random parts of
the paper's Table 7: ``python paper/run.py table7 --data FOLDER``):

- ``--protocol prepared``: fit on train with the settings of SLIST's authors and rank after every
  click of the test sessions; with ``--tune`` also with settings chosen on the last tenth of train;
- ``--protocol memory``: compare the peak memory of a fit with its plan.

Each result is stored in RESULTS, so that an interrupted run continues. ``--jobs 6 --device cuda``
runs six processes on one GPU. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import paper_path  # noqa: F401  puts `reproduce` on the path

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split import Part, Split
from equipoise.models import session_solver
from reproduce.config import Settings
from reproduce.results import write_text
from reproduce.sessions import Pair, Search, folder_name, make, measure, sample

SETS = ("RetailRocket", "Diginetica", "Yoochoose")
MODELS = ("SLIT", "SLIST", "SLIS")
# Settings of the authors: mix, decay_position, decay_inference.
AUTHORS = {
    "Yoochoose": (0.4, 1.0, 1.0),
    "Diginetica": (0.8, 1.0, 2.0),
    "RetailRocket": (0.2, 0.25, 4.0),
}
# HR@20 and MRR@20 of the SLIST paper, which prepared the data differently.
REPORTED = {
    ("Yoochoose", "SLIS"): ".7015 / -",
    ("Yoochoose", "SLIT"): ".6968 / -",
    ("Yoochoose", "SLIST"): ".7088 / .3083",
    ("Diginetica", "SLIS"): ".5247 / -",
    ("Diginetica", "SLIT"): ".4729 / -",
    ("Diginetica", "SLIST"): ".5291 / .1886",
    ("RetailRocket", "SLIST"): ".5877 / -",
}
CACHE = 4 << 30  # bytes of solved rows, since several settings are evaluated on one fit


def authors(name: str, model: str) -> Settings:
    mix, position, inference = AUTHORS[name]
    settings: Settings = {"decay_inference": inference, "l2": 10.0, "dropout": 0.0}
    if model != "SLIS":
        settings["decay_position"] = position
    return settings | ({"mix": mix} if model == "SLIST" else {})


def prepared_test(folder: Path, train: Interactions) -> Pair:
    """Return history and next click of every step of the prepared test sessions.

    Clicks on items that are not in train are removed first, then sessions shorter than two clicks.
    """
    sessions = eq.read(folder / "test_sessions.npz")
    known = sessions.with_items(train.item_index, unknown_items="skip")
    assert known._sequences is not None
    return eq.split.reveal(known.rows(known._sequences.lengths >= 2))


def last_tenth(train: Interactions) -> tuple[Interactions, Pair]:
    """Return the earlier sessions, and the steps of the last tenth on items known from them."""
    bound = train.n_users - train.n_users // 10  # the sessions are in order of time
    past = train.rows(np.arange(bound))
    past = past.columns(past.item_counts > 0)
    part = eq.split.reveal(train.rows(np.arange(bound, train.n_users)))
    history, target = (side.with_items(past.item_index, unknown_items="skip") for side in part)
    has_both_sides = (history.user_counts > 0) & (target.user_counts > 0)
    return past, (history.rows(has_both_sides), target.rows(has_both_sides))


def prepared(name: str, model: str, args: argparse.Namespace) -> None:
    train = eq.read(args.data / folder_name(name) / "train_sessions.npz")
    test = prepared_test(args.data / folder_name(name), train)
    settings_by_source = {"authors": authors(name, model)}
    if args.tune:
        past, last = last_tenth(train)
        valid = sample(Part(*last, "session", "valid"), args.events)
        start = {"decay_position": AUTHORS[name][1]} if model == "SLIST" else {}
        where = args.out / "searches", f"prepared-{name}-", args.device
        search = Search(Split(past, valid, valid, "session"), *where)
        own_settings = search.tune_model(model, start)
        settings_by_source["tuned"], settings_by_source["tuned, DAN"] = search.pair(
            model, own_settings
        )
    for source, settings in settings_by_source.items():
        path = args.out / f"prepared-{name}-{model}-{source.replace(', ', '-')}.json"
        if path.exists() and json.loads(path.read_text())["settings"] == settings:
            continue
        fitted, seconds = fit(model, settings, train, args.device)
        began = time.perf_counter()
        values, _ = measure(fitted, test)
        row = {"set": name, "model": model, "how": source, "settings": settings, **values}
        row |= {"events": test[0].n_users, "fit": seconds, "rank": time.perf_counter() - began}
        if args.ties:
            row["best of ties"] = best_of_ties(fitted, test)
        write_text(path, json.dumps(row, indent=1))


def best_of_ties(model: Any, pair: Pair) -> list[float]:
    """Return HR@20 and MRR@20 if the target is ranked first among items of equal score."""
    history, target = pair
    targets, reciprocal_ranks = target.matrix.indices, np.zeros(history.n_users)
    for low in range(0, history.n_users, 1000):
        rows = np.arange(low, min(low + 1000, history.n_users))
        scores = model.score(history.rows(rows))
        target_scores = scores[rows - low, targets[rows]][:, None]
        rank = 1 + (scores > target_scores).sum(axis=1)
        reciprocal_ranks[rows] = np.where((rank <= 20) & (target_scores[:, 0] > 0), 1 / rank, 0.0)
    return [float((reciprocal_ranks > 0).mean()), float(reciprocal_ranks.mean())]


def memory(name: str, model: str, args: argparse.Namespace) -> None:
    """Write the peak memory of a fit beyond the data, and the planned memory."""
    path = args.out / f"memory-{name}-{model}-{args.device}.json"
    train = eq.read(args.data / folder_name(name) / "train_sessions.npz")
    few_sessions = train.rows(np.arange(100))
    make(model, authors(name, model)).fit(
        few_sessions, device=args.device
    )  # compiles, loads libraries
    before = peak_bytes("cpu")
    _, seconds = fit(model, authors(name, model), train, args.device)
    plan = eq.plan(train, device=args.device) if args.device != "cpu" else eq.plan(train)
    row = {"set": name, "model": model, "device": args.device, "items": train.n_items}
    row |= {"plan": plan.peak_bytes, "engine": plan.engine, "fit": seconds, "before": before}
    row |= {"host": peak_bytes("cpu") - before, "card": peak_bytes(args.device)}
    write_text(path, json.dumps(row, indent=1))


def peak_bytes(device: str) -> int:
    """Return the peak memory of this process, on the host or on a GPU."""
    if device == "cpu":
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
    import torch

    return int(torch.cuda.max_memory_allocated(device))


def memory_table(out: Path) -> str:
    lines = [
        "| set | model | items | device | plan | host, peak of the fit | card | fit s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(out.glob("memory-*.json")):
        one = json.loads(path.read_text())
        card = "-" if one["device"] == "cpu" else f"{one['card'] / 1e6:,.0f} MB"
        plan = f"{one['engine']}: {one['plan'] / 1e6:,.0f} MB"
        cells = [one["set"], one["model"], f"{one['items']:,}", one["device"], plan]
        cells += [f"{one['host'] / 1e6:,.0f} MB", card, f"{one['fit']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def fit(name: str, settings: Settings, train: Interactions, device: str) -> tuple[Any, float]:
    began = time.perf_counter()
    model = make(name, settings).fit(train, device=device)
    return model, time.perf_counter() - began


def prepared_table(out: Path) -> str:
    lines = [
        "| set | model | settings | HR@20 / MRR@20 | tail | events | reported |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(out.glob("prepared-*.json")):
        one = json.loads(path.read_text())
        pairs = [f"{one[p + 'recall@20']:.4f} / {one[p + 'mrr@20']:.4f}" for p in ("", "tail_")]
        cells = [one["set"], one["model"], one["how"], *pairs, f"{one['events']:,}"]
        cells.append(REPORTED.get((one["set"], one["model"]), "-"))
        lines.append(f"| {' | '.join(cells)} |")
        if "best of ties" in one:
            cells[2] += ", best of ties"
            cells[3:5] = [" / ".join(f"{value:.4f}" for value in one["best of ties"]), "-"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def work(task: tuple[str, str, argparse.Namespace]) -> str:
    name, model, args = task
    session_solver.CACHE_BYTES = CACHE
    began = time.perf_counter()
    {"prepared": prepared, "memory": memory}[args.protocol](name, model, args)
    return f"{name} {model}: {time.perf_counter() - began:.0f} s"


def run_all(args: argparse.Namespace) -> None:
    """Run every data set and model in a fresh process, so that peak memory is measured per run."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        tasks = [(name, model, args) for model in args.models for name in args.sets]
        for line in pool.map(work, tasks):
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--protocol", choices=["prepared", "memory"], default="prepared")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--events", type=int, default=20_000, help="validation events")
    parser.add_argument("--tune", action="store_true", help="also search settings")
    parser.add_argument("--ties", action="store_true", help="also report the best of tied ranks")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--docs", type=Path, help="page whose table of this protocol is updated")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    run_all(args)
    text = (prepared_table if args.protocol == "prepared" else memory_table)(args.out)
    write_text(args.out / f"{args.protocol}.md", text + "\n")
    if args.docs:
        start, end = (f"<!-- {args.protocol}: {side} -->" for side in ("start", "end"))
        page = args.docs.read_text(encoding="utf-8")
        before, after = page.split(start)[0], page.split(end)[1]
        write_text(args.docs, f"{before}{start}\n{text.strip()}\n{end}{after}")
    print(text)


if __name__ == "__main__":
    main()
