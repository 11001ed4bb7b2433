"""Session models on prepared sets: published settings, and the paper's Table 7.

Run ``python benchmarks/sessions.py --data FOLDER --out RESULTS``, where FOLDER holds one folder
per set with `train_sessions.npz` and `test_sessions.npz`. Two protocols:

- ``--protocol prepared``: fit on train, rank after every click of the prepared test sessions; the
  settings of the authors of SLIST and, with ``--tune``, settings chosen on the last tenth of
  train;
- ``--protocol random``: sessions of both files are split 8:1:1 at random, with and without DAN
  chosen by MRR@20 on validation; written in the layout of Table 7 beside the published numbers.

Every fit is kept in RESULTS; a run that was stopped goes on where it was. Prints Markdown.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numba
import numpy as np
from session_runs import Pair, Search, Settings, all_sessions, prepared_test, row, run, sample
from session_runs import train_sessions as load_train

import equipoise as eq
from equipoise.interactions import Interactions
from equipoise.models import session_rows

SETS = {"yoochoose1_64": "Yoochoose", "retailrocket": "RetailRocket", "diginetica": "Diginetica"}
PUBLISHED = Path(__file__).parents[1] / "paper" / "published" / "table7_session.csv"
# Settings of the authors: mix, decay_position, decay_inference.
AUTHORS = {
    "yoochoose1_64": (0.4, 1.0, 1.0),
    "diginetica": (0.8, 1.0, 2.0),
    "retailrocket": (0.2, 0.25, 4.0),
}
# HR@20 and MRR@20 to compare with: the publication of SLIST, on another preparation of the data.
REPORTED = {
    ("yoochoose1_64", "SLIS"): ".7015 / -",
    ("yoochoose1_64", "SLIT"): ".6968 / -",
    ("yoochoose1_64", "SLIST"): ".7088 / .3083",
    ("diginetica", "SLIS"): ".5247 / -",
    ("diginetica", "SLIT"): ".4729 / -",
    ("diginetica", "SLIST"): ".5291 / .1886",
    ("retailrocket", "SLIST"): ".5877 / -",
}
COLUMNS = [
    f"{part}{metric}@20" for part in ("", "tail_", "unbiased_") for metric in ("recall", "mrr")
]
CACHE = 4 << 30  # bytes of solved rows: several settings are measured on one fit


def authors(name: str, model: str) -> Settings:
    mix, position, inference = AUTHORS[name]
    settings: Settings = {"decay_inference": inference, "l2": 10.0}
    if model != "SLIS":
        settings["decay_position"] = position
    return settings | ({"mix": mix} if model == "SLIST" else {})


def chosen(
    model: str, train: Interactions, valid: Pair, out: Path, stem: str, found: dict[str, Settings]
) -> tuple[Settings, Settings]:
    """Return the settings without and with DAN; SLIST starts from what SLIT found."""
    start = {} if model != "SLIST" else {"decay_position": found["SLIT"]["decay_position"]}
    search = Search(model, train, valid, out / f"{stem}-{model}-search.json")
    plain = found[model] = search.plain({"l2": 10.0, "decay_inference": 2.0, **start})
    return plain, search.dan(plain)


def prepared(name: str, folder: Path, out: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    train = load_train(folder)
    test = prepared_test(folder, train)
    rows = []
    for model in ("SLIT", "SLIST", "SLIS"):
        stem = out / f"prepared-{name}-{model}.json"
        settings = authors(name, model)
        made = row(stem, lambda m=model, s=settings: run(m, s, train, test))
        rows.append({"set": name, "model": model, "how": "authors' settings", **made})
    if args.tune:
        bound = train.n_users - train.n_users // 10  # the sessions are in order of time
        part = eq.split.reveal(train.rows(np.arange(bound, train.n_users)))
        past = train.rows(np.arange(bound))
        past = past.columns(past.item_counts > 0)
        history, target = (side.with_items(past.item_index, unknown="skip") for side in part)
        kept = (history.user_counts > 0) & (target.user_counts > 0)
        valid = sample((history.rows(kept), target.rows(kept)), args.events)
        found: dict[str, Settings] = {}
        for model in ("SLIT", "SLIST", "SLIS"):
            plain, dan = chosen(model, past, valid, out, f"prepared-{name}", found)
            for label, settings in (("tuned", plain), ("tuned, DAN", dan)):
                stem = out / f"prepared-{name}-{model}-{label.replace(', ', '-')}.json"
                made = row(stem, lambda m=model, s=settings: run(m, s, train, test))
                rows.append({"set": name, "model": model, "how": label, **made})
    return rows


def prepared_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| set | model | settings | HR@20 / MRR@20 | tail | events | fit s | rank s | reported |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        pairs = [f"{one[p + 'recall@20']:.4f} / {one[p + 'mrr@20']:.4f}" for p in ("", "tail_")]
        seconds = f"{one['seconds']['fit']:.1f} | {one['seconds']['rank']:.0f}"
        reported = REPORTED.get((one["set"], one["model"]), "-")
        cells = [SETS[one["set"]], one["model"], one["how"], *pairs, f"{one['events']:,}"]
        lines.append(f"| {' | '.join(cells)} | {seconds} | {reported} |")
    return "\n".join(lines)


def random_split(
    name: str, folder: Path, out: Path, args: argparse.Namespace
) -> list[dict[str, Any]]:
    split = eq.split.sessions(all_sessions(folder), valid=0.1, test=0.1, seed=args.seed)
    assert split.valid is not None
    valid = sample((split.valid.history, split.valid.target), args.events)
    test = (split.test.history, split.test.target)
    rows, found = [], {}
    for model in ("SLIT", "SLIST", "SLIS"):
        plain, dan = chosen(model, split.train, valid, out, f"random-{name}", found)
        for label, settings in ((model, plain), (f"{model}_DAN", dan)):
            path = out / f"random-{name}-{label}.json"
            made = row(path, lambda m=model, s=settings: run(m, s, split.train, test))
            rows.append({"set": name, "model": label, **made})
    return rows


def table7(rows: list[dict[str, Any]]) -> str:
    """Our numbers beside the published ones, and what DAN did."""
    with PUBLISHED.open() as stream:
        published = {(line["dataset"], line["model"]): line for line in csv.DictReader(stream)}
    head = ["all", "tail", "unbiased"]
    lines = [
        f"| set | model | {' | '.join(f'{p} R@20 / MRR@20 | published' for p in head)} |",
        f"|---|---|{'---|' * 6}",
    ]
    for one in sorted(rows, key=lambda each: (SETS[each["set"]], each["model"])):
        theirs = published[SETS[one["set"]], one["model"]]
        cells = []
        for part, theirs_part in (("", "aoa_"), ("tail_", "tail_"), ("unbiased_", "unbiased_")):
            cells.append(f"{one[part + 'recall@20']:.4f} / {one[part + 'mrr@20']:.4f}")
            cells.append(f"{theirs[theirs_part + 'recall@20']} / {theirs[theirs_part + 'mrr@20']}")
        lines.append(f"| {SETS[one['set']]} | {one['model']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *gains(rows)])


def gains(rows: list[dict[str, Any]]) -> list[str]:
    by_name = {(one["set"], one["model"]): one for one in rows}
    lines = [
        "| set | model | all MRR@20 | tail MRR@20 | unbiased MRR@20 |",
        "|---|---|---|---|---|",
    ]
    for (name, model), one in by_name.items():
        with_dan = by_name.get((name, f"{model}_DAN"))
        if with_dan is None:
            continue
        cells = []
        for part in ("", "tail_", "unbiased_"):
            before, after = one[f"{part}mrr@20"], with_dan[f"{part}mrr@20"]
            verdict = "raised" if after > before else "lowered" if after < before else "the same"
            cells.append(f"{verdict}, {100 * (after / before - 1):+.1f}%")
        lines.append(f"| {SETS[name]} | {model} | {' | '.join(cells)} |")
    return ["What DAN did, both chosen on validation:", "", *lines]


def write(rows: list[dict[str, Any]], out: Path, protocol: str, text: str) -> None:
    (out / f"{protocol}.json").write_text(json.dumps(rows, indent=1))
    (out / f"{protocol}.md").write_text(text + "\n")
    names = ["set", "model", *(["how"] if protocol == "prepared" else []), *COLUMNS, "events"]
    with (out / f"{protocol}.csv").open("w", newline="") as stream:
        table = csv.DictWriter(stream, names, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--protocol", choices=["prepared", "random"], default="prepared")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--events", type=int, default=4000, help="validation events to choose on")
    parser.add_argument("--seed", type=int, default=0, help="of the random split")
    parser.add_argument("--tune", action="store_true", help="also choose settings (prepared)")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    numba.set_num_threads(args.threads)
    session_rows.CACHE_BYTES = CACHE
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in args.sets:
        print(f"{name}, {args.protocol}", flush=True)
        work = prepared if args.protocol == "prepared" else random_split
        rows += work(name, args.data / name, args.out, args)
        text = prepared_table(rows) if args.protocol == "prepared" else table7(rows)
        write(rows, args.out, args.protocol, text)
    print(text)


if __name__ == "__main__":
    main()
