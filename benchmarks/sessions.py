"""Session models on prepared sets: published settings, and the paper's Table 7.

Run ``python benchmarks/sessions.py --data FOLDER --out RESULTS``, where FOLDER holds one folder
per set with `train_sessions.npz` and `test_sessions.npz`. Three protocols:

- ``--protocol prepared``: fit on train with the settings of the authors of SLIST, rank after every
  click of the prepared test sessions; with ``--tune`` also settings chosen on the last tenth of
  train;
- ``--protocol random``: ``equipoise reproduce table7`` with one process for each set and model;
- ``--protocol memory``: the peak of a fit beside the plan.

Every fit is kept in RESULTS; a run that was stopped goes on where it was. ``--jobs 6 --device
cuda`` runs six processes that share a card. Prints Markdown.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import multiprocessing
import resource
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from equipoise.reproduce.cells import write_text
from equipoise.reproduce.config import Config, load_config
from equipoise.reproduce.session_search import Pair, Search, Settings, make, measure, sample
from equipoise.reproduce.sessions import SetRun, folder_name, kept_folder, run_sessions

import equipoise as eq
from equipoise.interactions import Interactions
from equipoise.models import session_solver

PAPER = Path(__file__).parents[1] / "paper"
SETS = ("RetailRocket", "Diginetica", "Yoochoose")
MODELS = ("SLIT", "SLIST", "SLIS")
# Settings of the authors: mix, decay_position, decay_inference.
AUTHORS = {
    "Yoochoose": (0.4, 1.0, 1.0),
    "Diginetica": (0.8, 1.0, 2.0),
    "RetailRocket": (0.2, 0.25, 4.0),
}
# HR@20 and MRR@20 to compare with: the publication of SLIST, on another preparation of the data.
REPORTED = {
    ("Yoochoose", "SLIS"): ".7015 / -",
    ("Yoochoose", "SLIT"): ".6968 / -",
    ("Yoochoose", "SLIST"): ".7088 / .3083",
    ("Diginetica", "SLIS"): ".5247 / -",
    ("Diginetica", "SLIT"): ".4729 / -",
    ("Diginetica", "SLIST"): ".5291 / .1886",
    ("RetailRocket", "SLIST"): ".5877 / -",
}
CACHE = 4 << 30  # bytes of solved rows: several settings are measured on one fit


def authors(name: str, model: str) -> Settings:
    mix, position, inference = AUTHORS[name]
    settings: Settings = {"decay_inference": inference, "l2": 10.0}
    if model != "SLIS":
        settings["decay_position"] = position
    return settings | ({"mix": mix} if model == "SLIST" else {})


def prepared_test(folder: Path, train: Interactions) -> Pair:
    """Return the steps of the prepared test sessions.

    Clicks on items that train lacks are removed first, then sessions shorter than two clicks.
    """
    sessions = eq.read(folder / "test_sessions.npz")
    known = sessions.with_items(train.item_index, unknown="skip")
    assert known.sequences is not None
    return eq.split.reveal(known.rows(known.sequences.lengths >= 2))


def last_tenth(train: Interactions) -> tuple[Interactions, Pair]:
    """Return the earlier sessions, and the clicks of the last tenth on items they know."""
    bound = train.n_users - train.n_users // 10  # the sessions are in order of time
    past = train.rows(np.arange(bound))
    past = past.columns(past.item_counts > 0)
    part = eq.split.reveal(train.rows(np.arange(bound, train.n_users)))
    history, target = (side.with_items(past.item_index, unknown="skip") for side in part)
    kept = (history.user_counts > 0) & (target.user_counts > 0)
    return past, (history.rows(kept), target.rows(kept))


def prepared(name: str, model: str, args: argparse.Namespace) -> None:
    train = eq.read(args.data / folder_name(name) / "train_sessions.npz")
    test = prepared_test(args.data / folder_name(name), train)
    wanted = {"authors": authors(name, model)}
    if args.tune:
        past, valid = last_tenth(train)
        path = args.out / f"prepared-{name}-{model}-search.json"
        some = sample(valid, args.events)
        start = {"decay_position": AUTHORS[name][1]} if model == "SLIST" else {}
        search = Search(model, past, some, path, args.device)
        wanted["tuned"], wanted["tuned, DAN"] = search.pair(search.own(start))
    for how, settings in wanted.items():
        path = args.out / f"prepared-{name}-{model}-{how.replace(', ', '-')}.json"
        if path.exists() and json.loads(path.read_text())["settings"] == settings:
            continue
        fitted, seconds = fit(model, settings, train, args.device)
        began = time.perf_counter()
        values = measure(fitted, test).values
        row = {"set": name, "model": model, "how": how, "settings": settings, **values}
        row |= {"events": test[0].n_users, "fit": seconds, "rank": time.perf_counter() - began}
        if args.ties:
            row["best of ties"] = best_of_ties(fitted, test)
        write_text(path, json.dumps(row, indent=1))


def best_of_ties(model: Any, pair: Pair) -> list[float]:
    """Return HR@20 and MRR@20 where a target with the score of others takes the first place."""
    history, target = pair
    wanted, found = target.matrix.indices, np.zeros(history.n_users)
    for low in range(0, history.n_users, 1000):
        rows = np.arange(low, min(low + 1000, history.n_users))
        scores = model.score(history.rows(rows))
        own = scores[rows - low, wanted[rows]][:, None]
        rank = 1 + (scores > own).sum(axis=1)
        found[rows] = np.where((rank <= 20) & (own[:, 0] > 0), 1 / rank, 0.0)
    return [float((found > 0).mean()), float(found.mean())]


def memory(name: str, model: str, args: argparse.Namespace) -> None:
    """Write the peak of a fit above what the data take, and what the plan says."""
    path = args.out / f"memory-{name}-{model}-{args.device}.json"
    train = eq.read(args.data / folder_name(name) / "train_sessions.npz")
    some = train.rows(np.arange(100))
    make(model, authors(name, model)).fit(some, device=args.device)  # compiles, loads libraries
    before = peak_bytes("cpu")
    _, seconds = fit(model, authors(name, model), train, args.device)
    plan = eq.plan(train, device=args.device) if args.device != "cpu" else eq.plan(train)
    row = {"set": name, "model": model, "device": args.device, "items": train.n_items}
    row |= {"plan": plan.peak_bytes, "engine": plan.engine, "fit": seconds, "before": before}
    row |= {"host": peak_bytes("cpu") - before, "card": peak_bytes(args.device)}
    write_text(path, json.dumps(row, indent=1))


def peak_bytes(device: str) -> int:
    """Return the most that this process took so far, of the machine or of a card."""
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


def random_parts(name: str, model: str, args: argparse.Namespace) -> None:
    """Search and fit one model; `run_sessions` then finds everything in the files."""
    config = configured(args)
    run = SetRun(config, name, args.data / folder_name(name), kept_folder(config, args.out / "x"))
    run.device = args.device
    rows = [row for row in config.rows if row.dataset == name]
    for row in run.settled([row for row in rows if row.name.removesuffix("_DAN") == model]):
        run.finished(row)


def configured(args: argparse.Namespace) -> Config:
    config = load_config(PAPER / "table7.toml")
    options = {**config.options, "seed": args.seed, "events": args.events}
    options["search"] = "always" if args.tune else "missing"
    return dataclasses.replace(config, options=options)


def prepared_table(out: Path) -> str:
    lines = [
        "| set | model | settings | HR@20 / MRR@20 | tail | events | reported |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(out.glob("prepared-*.json")):
        if path.stem.endswith("-search"):
            continue
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
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("equipoise.reproduce").setLevel(logging.INFO)
    session_solver.CACHE_BYTES = CACHE
    began = time.perf_counter()
    tasks = {"prepared": prepared, "random": random_parts, "memory": memory}
    tasks[args.protocol](name, model, args)
    return f"{name} {model}: {time.perf_counter() - began:.0f} s"


def run_all(args: argparse.Namespace) -> None:
    """Run every set and model; SLIST of a set after its SLIT, from which it starts."""
    later = "SLIST" if {"SLIT", "SLIST"} <= set(args.models) else ""
    spawn = multiprocessing.get_context("spawn")
    # a fresh process for each task: its peak of memory is its own
    with ProcessPoolExecutor(args.jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        tasks = [(name, model) for model in args.models for name in args.sets if model != later]
        pending = {pool.submit(work, (*task, args)): task for task in tasks}
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                name, model = pending.pop(future)
                print(future.result(), flush=True)
                if later and model == "SLIT":
                    pending[pool.submit(work, (name, later, args))] = (name, later)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--protocol", choices=["prepared", "random", "memory"], default="prepared")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--events", type=int, default=20_000, help="validation events")
    parser.add_argument("--seed", type=int, default=0, help="of the random split")
    parser.add_argument("--tune", action="store_true", help="search although settings are known")
    parser.add_argument("--ties", action="store_true", help="also the best of tied places")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--docs", type=Path, help="page whose table of this protocol is renewed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    run_all(args)
    if args.protocol != "random":
        text = (prepared_table if args.protocol == "prepared" else memory_table)(args.out)
        write_text(args.out / f"{args.protocol}.md", text + "\n")
    elif len(args.models) < len(MODELS):
        return  # a part of the table
    else:
        ready = [n for n in SETS if len([*kept(args).glob(f"{n}-SLI*.parquet")]) == 6]
        out = args.out / "table7.csv"
        run_sessions(configured(args), args.data, out, device=args.device, datasets=ready)
        text = out.with_suffix(".md").read_text()
    if args.docs:
        start, end = (f"<!-- {args.protocol}: {side} -->" for side in ("start", "end"))
        page = args.docs.read_text(encoding="utf-8")
        before, after = page.split(start)[0], page.split(end)[1]
        write_text(args.docs, f"{before}{start}\n{text.strip()}\n{end}{after}")
    print(text)


def kept(args: argparse.Namespace) -> Path:
    return kept_folder(configured(args), args.out / "x")


if __name__ == "__main__":
    main()
