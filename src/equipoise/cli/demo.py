"""The command `demo`: from a download to recommendations with reasons, in a minute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise.cli.data import raw_id
from equipoise.cli.framework import Json, declare
from equipoise.cli.output import add, clean, emit, say, show, table, working
from equipoise.cli.recommend import strongest
from equipoise.cli.settings import describe as name_of
from equipoise.errors import UnknownIdError

if TYPE_CHECKING:
    from equipoise.comparison import Comparison
    from equipoise.models import EASE
    from equipoise.results import Result
    from equipoise.split import Part, Split
    from equipoise.statistics import Statistics

app = typer.Typer()

DATA = "movielens-100k"
# Chosen on the valid part: the best NDCG among 5 values of l2 for plain EASE and among 9 pairs for
# dropout; for DAN, among 108 settings, one of the most accurate with more of the tail. Dropout has
# a row of its own because it explains a good part of what DAN seems to gain over plain EASE.
L2_PLAIN = 400.0
L2_DROPOUT = 50.0
L2, DROPOUT, ALPHA, BETA = 20.0, 0.7, 0.3, 0.2
K = 20
METRICS = ("recall", "ndcg")
SHOWN = 10
WAYS = {
    "plain": "l2=500, a common default",
    "automatic": "with DAN, all settings from the data",
    "tuned": "with DAN, chosen on the valid part",
}
DIAL = (0.0, 0.3, 0.6)
KNOWN = (12, 25)  # length of the history of the person shown


@dataclass(frozen=True)
class Trial:
    """One fitted model, how long its fit took, and its numbers on test."""

    name: str
    model: EASE
    seconds: float
    result: Result


@declare(app, "demo", "equipoise demo")
def demo(
    user: Annotated[str | None, typer.Option(help="Whose list to show, of the test part.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write a page on these data, such as report.html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit EASE with and without dropout and DAN on MovieLens 100K, side by side."""
    from equipoise import datasets
    from equipoise.comparison import compare
    from equipoise.solve.plan import plan
    from equipoise.split import strong
    from equipoise.statistics import describe

    start = time.perf_counter()
    entry = datasets.info(DATA)
    with working(f"loading {entry.title}"):
        data = datasets.load(DATA, min_rating=4)
    with working("describing and splitting it"):
        found = describe(data)
        split = strong(data, valid=0.1, test=0.2, seed=0)
    with working("measuring this machine"):
        cost = plan(split.train)
    with working("fitting and judging three models", 3 * cost.seconds):
        trials = _trials(split)
    with working("tuning, to compare with the automatic settings"):
        ways = _ways(split)
    if report is not None:
        from equipoise.report import write_report

        with working("writing the report"):
            write_report(split, report, name=entry.title)
    results = {trial.name: trial.result for trial in trials}
    tests = [compare(results, f"{part}ndcg@{K}", pairs="all") for part in ("", "tail_")]
    person = _person(split.test, user)
    if as_json:
        facts = _facts(entry, found, trials, tests, _lists(split.test, trials, person))
        emit({**facts, "settings": ways})
        return
    _print_data(entry, found, split)
    _print_models(split, trials)
    _print_accuracy(split, trials, tests)
    _print_person(split.test, trials, person)
    heading("5", "Nothing has to be set")
    out = table("EASE", "settings", "solves", "time", "ndcg all", "ndcg tail", left=(0, 1))
    for way in ways:
        values = [f"{value:.4f}" for value in way["values"].values()]
        add(out, way["name"], WAYS[way["name"]], way["solves"], f"{way['seconds']:.2f} s", *values)
    show(out)
    if report is not None:
        say(f"\nA page to look at, with the dial as a slider: {report}")
    say(f"\nAll of this took {time.perf_counter() - start:.0f} seconds.", "dim")


def _trials(split: Split) -> list[Trial]:
    from equipoise.evaluation import evaluate
    from equipoise.models import EASE
    from equipoise.normalize import DAN

    trials = []
    for name, model in (
        ("EASE", EASE(l2=L2_PLAIN, dropout=0.0)),
        ("EASE + dropout", EASE(l2=L2_DROPOUT, dropout=DROPOUT)),
        ("EASE + DAN", EASE(l2=L2, dropout=DROPOUT, normalizer=DAN(ALPHA, BETA))),
    ):
        start = time.perf_counter()
        model.fit(split.train)
        seconds = time.perf_counter() - start
        trials.append(Trial(name, model, seconds, evaluate(model, split.test, k=K)))
    return trials


def _ways(split: Split) -> list[dict[str, Any]]:
    """Fit EASE with a usual l2, with automatic settings, and with those of a small search."""
    from equipoise.evaluation import evaluate
    from equipoise.models import EASE
    from equipoise.normalize import DAN
    from equipoise.tuning import tune

    auto = EASE(normalizer=DAN())
    out = []
    for name in WAYS:
        start, solves, model = time.perf_counter(), 1, auto
        if name == "plain":
            model = EASE(l2=500.0, dropout=0.0).fit(split.train)
        elif name == "automatic":
            auto.fit(split.train)
        else:
            grid = {
                "alpha": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
                "beta": [0.0, auto.normalizer_.exponents()[1]],
                "l2": [step * auto.l2_ for step in (0.3, 1.0, 3.0)],
                "dropout": [auto.dropout_, (1 + auto.dropout_) / 2],
            }
            found = tune(EASE, split, grid=grid, metric=f"ndcg@{K}", objectives=())
            model, solves = found.model, found.solves + 1
        seconds = time.perf_counter() - start
        result = evaluate(model, split.test, k=K)
        values = {metric: result[metric] for metric in (f"ndcg@{K}", f"tail_ndcg@{K}")}
        out.append({"name": name, "solves": solves, "seconds": seconds, "values": values})
    return out


def _person(part: Part, user: str | None) -> Any:
    """Return the person asked for, or the first one with a history that fits on a screen."""
    index = part.history.user_index
    if user is None:
        counts = part.history.user_counts
        return index.values[((counts >= KNOWN[0]) & (counts <= KNOWN[1])).argmax()]
    wanted = raw_id(index, user)
    if wanted not in index:
        some = ", ".join(str(each) for each in index.values[:5])
        raise UnknownIdError(f"nobody in the test part is {user!r}; choose one of {some}, ...")
    return wanted


def _lists(part: Part, trials: list[Trial], person: Any) -> dict[str, Any]:
    """Return a person's history, hidden films, and both lists with reasons."""
    history, hidden = part.history.history(person), part.target.history(person)
    label = part.history.label
    lists = {}
    for trial in trials:
        found = trial.model.recommend([history], k=SHOWN)
        lists[trial.name] = [
            {
                "item": item,
                "title": label(item),
                "tail": _is_tail(trial.model, item),
                "hit": item in hidden,
                "why": strongest(trial.model.explain(history, item)),
            }
            for item in found.items[0]
        ]
    return {
        "user": person,
        "history": [label(item) for item in history],
        "hidden": [label(item) for item in hidden],
        "lists": lists,
        "dial": _dial(trials[-1].model, history),
    }


def _dial(model: EASE, history: list[Any]) -> dict[str, int]:
    """Count the tail films in a list of K at several alphas, without a new fit."""
    found = {}
    for alpha in DIAL:
        (items,) = model.recommend([history], k=K, alpha=alpha).items
        found[f"{alpha:g}"] = sum(_is_tail(model, item) for item in items)
    return found


def _is_tail(model: EASE, item: Any) -> bool:
    from equipoise.metrics import head_items

    return not head_items(model.item_counts_)[model.item_index_.position(item)]


def _facts(
    entry: Any, found: Statistics, trials: list[Trial], tests: list[Comparison], person: Any
) -> dict[str, Any]:
    models = [
        {
            "name": trial.name,
            "settings": trial.model.settings(),
            "seconds": trial.seconds,
            "values": trial.result.to_dict()["values"],
        }
        for trial in trials
    ]
    rows = [{"metric": test.metric, **row} for test in tests for row in test.to_frame().to_dicts()]
    data = {"name": DATA, "licence": entry.licence, "statistics": found.to_dict()}
    return {"data": data, "models": models, "tests": rows, "person": person}


def _print_data(entry: Any, found: Statistics, split: Split) -> None:
    heading("1", "The data")
    say(f"{entry.title}, {entry.origin}")
    say(f"licence: {entry.licence}", "dim")
    people, films = f"{found.n_users:,} people", f"{found.n_items:,} films"
    say(f"\n{people}, {films}, {found.n_interactions:,} ratings of 4 or 5 stars.")
    say(
        f"The most liked 20% of the films, the head, hold {found.head_share:.0%} of them; "
        f"the others are the tail.\nGini index {found.gini_items:.2f}, homophily "
        f"{found.homophily:.2f} (`equipoise stats {DATA} --min-rating 4` has more)."
    )
    valid = split.valid.n_users if split.valid is not None else 0
    say(
        f"\nSplit by people (strong): {split.train.n_users} to learn from, {valid} to choose "
        f"settings on,\n{split.test.n_users} to report on, of whom 80% of the films are shown "
        "and 20% are to be found."
    )


def _print_models(split: Split, trials: list[Trial]) -> None:
    heading("2", "Three models, one closed-form solve each")
    out = table("", "", "", left=(0, 1))
    for trial in trials:
        add(out, Text(trial.name, "bold"), name_of(trial.model), f"{trial.seconds:.2f} s")
    show(out)
    say(
        "\nDropout penalises popular films in proportion. DAN counts very active people for less "
        "(beta)\nand puts rare films on a level with blockbusters (alpha). Settings were chosen "
        "on the valid people,\nnever on test; more of them were tried for DAN.",
        "dim",
    )


def _print_accuracy(split: Split, trials: list[Trial], tests: list[Comparison]) -> None:
    heading("3", f"Accuracy for {split.test.n_users} people the models never saw, lists of {K}")
    names = [trial.name for trial in trials]
    stacked = [name.replace(" + ", "\n+ ") for name in names]
    out = table("films", *(f"{metric}\n{name}" for metric in METRICS for name in stacked))
    for part in ("all", "head", "tail", "unbiased"):
        wanted = [m if part == "all" else f"{part}_{m}" for m in METRICS]
        add(out, part, *(f"{t.result[f'{m}@{K}']:.4f}" for m in wanted for t in trials))
    show(out)
    reach = ", ".join(f"{trial.result[f'coverage@{K}']:.0%} with {trial.name}" for trial in trials)
    say(f"\nFilms of the catalogue that reach somebody's list: {reach}.")
    for test in tests:
        for row in test.to_frame().filter(model=names[-1]).iter_rows(named=True):
            moved = f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
            sure = "clear" if row["p_adjusted"] < 0.05 else "not clear"
            pair = f"{test.metric}, {row['model']} against {row['baseline']}"
            say(f"{pair}: {moved}, p = {row['p_adjusted']:.2g}: {sure}.")
    say(
        "\nrecall: share of the hidden films found (of those that fit into the list)\n"
        "ndcg: the same, but a film counts more the higher it stands\n"
        "unbiased: rare films count more, as if all were equally popular",
        "dim",
    )


def _print_person(part: Part, trials: list[Trial], person: Any) -> None:
    found = _lists(part, trials, person)
    heading("4", f"One of these people, number {person}")
    history, hidden = found["history"], found["hidden"]
    say(Text.assemble(("liked   ", "dim"), clean("; ".join(history))))
    say(Text.assemble(("hidden  ", "dim"), clean("; ".join(hidden))))
    names = [trials[0].name, trials[-1].name]
    out = table("", *names, f"{names[1]} because of", left=(1, 2, 3))
    before, after = (found["lists"][name] for name in names)
    for rank, (one, other) in enumerate(zip(before, after, strict=True), start=1):
        because = " and ".join(reason["title"] for reason in other["why"])
        add(out, rank, _film(one), _film(other), Text(clean(because), "dim"))
    show(out)
    say(Text.assemble(("tail", "green"), ("  not among the most liked 20% of the films", "dim")))
    say(Text.assemble(("found", "yellow"), (" one of the hidden films", "dim")))
    turned = ", ".join(f"{count} at alpha {alpha}" for alpha, count in found["dial"].items())
    say(
        f"\nThe dial, without a new fit: of {K} films {turned} are from the tail "
        "(`equipoise recommend MODEL --alpha`)."
    )


def _film(film: dict[str, Any]) -> Text:
    text = Text(clean(film["title"]))
    if film["tail"]:
        text.append(" tail", "green")
    if film["hit"]:
        text.append(" found", "yellow")
    return text


def heading(number: str, text: str) -> None:
    """Print the heading of a section."""
    say()
    say(Text.assemble((f"{number}  ", "dim"), (clean(text), "bold")))
