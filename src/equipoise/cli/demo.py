"""The command `demo`: from a download to explained recommendations in a minute."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise.cli.data import raw_id
from equipoise.cli.framework import Json, clean, declare, emit, legend, option, say, show, working
from equipoise.cli.recommend import REASONS
from equipoise.errors import UnknownIdError

if TYPE_CHECKING:
    from equipoise.data.split import Part, Split
    from equipoise.evaluation.results import Result
    from equipoise.models import EASE

app = typer.Typer()

DATA = "movielens-100k"
CHOSEN = PLAIN, DROPOUT, DAN = "EASE", "EASE + dropout", "EASE + DAN"
K = 20
SHOWN = 10
DIAL = (0.0, 0.3, 0.6)
HISTORY_LENGTH = (12, 25)  # of the user shown by default
METRICS = ("ndcg", "head_ndcg", "tail_ndcg", "unbiased_ndcg", "recall", "tail_recall")


@declare(app, "demo", "equipoise demo")
def demo(
    user: Annotated[str | None, option("Test user to show.")] = None,
    report: Annotated[
        Path | None, option("Also write the report to this file, such as report.html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare EASE with and without dropout and DAN on MovieLens 100K."""
    from equipoise.data import datasets
    from equipoise.data.split import strong
    from equipoise.data.statistics import describe
    from equipoise.evaluation.comparison import compare

    start = time.perf_counter()
    entry = datasets.info(DATA)
    with working(f"loading {entry.title}"):
        data = datasets.load(DATA, min_rating=4)
    with working("describing and splitting the data"):
        split = strong(data, valid=0.1, test=0.2, seed=0)
        statistics = describe(data)
    with working("fitting and evaluating four models"):
        models = demo_models()
        results = {name: _fit_and_evaluate(model, split) for name, model in models.items()}
    chosen = {name: results[name][0] for name in CHOSEN}
    tests = []
    for metric in (f"ndcg@{K}", f"tail_ndcg@{K}"):
        rows = compare(chosen, metric, pairs="all").to_frame().to_dicts()
        tests += [{"metric": metric, **row} for row in rows]
    fitted = []
    for name, (result, seconds) in results.items():
        settings = {"settings": models[name].settings(), "words": models[name].summary()}
        values = result.to_dict()["values"]
        fitted.append({"name": name, **settings, "seconds": seconds, "values": values})
    shown = chosen_user(split.test, models) if user is None else _user(split.test, user)
    example = _example(split.test, models, shown) | {"chosen": user is None}
    if report is not None:
        from equipoise.report import write_report

        with working("writing the report"):
            write_report(split, report, name=entry.title)
    if as_json:
        facts = {"name": DATA, "licence": entry.licence, "statistics": statistics.to_dict()}
        emit({"data": facts, "models": fitted, "tests": tests, "user": example})
        return
    _heading("1", "The data: users and the films they gave 4 or 5 stars")
    say(f"{entry.title}, {entry.origin}\nlicence: {entry.licence}\n\n{statistics}\n{split}")
    say("\nhead: the 20% of the films with most users; tail: all others", "dim")
    _show_models(fitted, tests, split.test.n_users)
    _show_example(example)
    if report is not None:
        say(f"\nReport with the dial as a slider: {report}")
    say(f"\nFinished in {time.perf_counter() - start:.0f} seconds.", "dim")


def demo_models() -> dict[str, EASE]:
    """Return the models by name; settings were tuned on the valid part, or are automatic.

    Dropout alone explains much of the gain of DAN over plain EASE, so it has a separate row.
    """
    from equipoise import normalize
    from equipoise.models import EASE

    balanced = normalize.DAN(alpha=0.3, beta=0.2)
    return {
        PLAIN: EASE(l2=400.0, dropout=0.0),
        DROPOUT: EASE(l2=50.0, dropout=0.7),
        DAN: EASE(l2=20.0, dropout=0.7, normalizer=balanced),
        "EASE + DAN, automatic": EASE(dropout="auto", normalizer=normalize.DAN()),
    }


def _fit_and_evaluate(model: EASE, split: Split) -> tuple[Result, float]:
    """Fit on train; return the result on test and the seconds of the fit."""
    from equipoise.evaluation.evaluator import evaluate

    start = time.perf_counter()
    model.fit(split.train)
    seconds = time.perf_counter() - start
    return evaluate(model, split.test, k=K), seconds


def chosen_user(part: Part, models: Mapping[str, EASE]) -> Any:
    """Return the test user for whom EASE + DAN finds most hidden films that plain EASE misses.

    Films of the tail count before others. Only users with a history that fits on a screen are
    compared, and the first of equals is taken.
    """
    from equipoise.evaluation.metrics import head_items

    head = head_items(models[DAN].item_counts_)
    counts, (shortest, longest) = part.history.user_counts, HISTORY_LENGTH
    candidates = part.history.users[(counts >= shortest) & (counts <= longest)].tolist()

    def gain(user: Any) -> tuple[int, int]:
        history, hidden = part.history.history(user), set(part.target.history(user))
        lists = {
            name: models[name].recommend([history], k=SHOWN).items[0] for name in (PLAIN, DAN)
        }
        hits = {name: hidden.intersection(items) for name, items in lists.items()}
        position = models[DAN].item_index_.position
        tail = {name: sum(not head[position(item)] for item in hits[name]) for name in hits}
        return tail[DAN] - tail[PLAIN], len(hits[DAN]) - len(hits[PLAIN])

    return max(candidates, key=gain)


def _user(part: Part, user: str) -> Any:
    """Return the id of the requested user."""
    index = part.history.user_index
    user_id = raw_id(index, user)
    if user_id not in index:
        known = ", ".join(map(str, index.values[:5]))
        raise UnknownIdError(f"the test part has no user {user!r}; choose one of {known}, ...")
    return user_id


def _example(part: Part, models: dict[str, EASE], user: Any) -> dict[str, Any]:
    """Return a user's history and hidden films, each model's list with reasons, and the dial."""
    from equipoise.evaluation.metrics import head_items

    history, hidden = part.history.history(user), part.target.history(user)
    label, model = part.history.label, models[DAN]
    head = head_items(model.item_counts_)

    def is_tail(item: Any) -> bool:
        return not head[model.item_index_.position(item)]

    lists: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    for name, fitted in models.items():
        for item in fitted.recommend([history], k=SHOWN).items[0]:
            film = {"item": item, "title": label(item), "tail": is_tail(item)}
            why = fitted.explain(history, item).strongest(REASONS)
            lists[name].append({**film, "hit": item in hidden, "why": why})
    dial = {}
    for alpha in DIAL:
        (items,) = model.recommend([history], k=K, alpha=alpha).items
        dial[f"{alpha:g}"] = sum(is_tail(item) for item in items)
    titles = {"history": [*map(label, history)], "hidden": [*map(label, hidden)]}
    return {"user": user, **titles, "lists": lists, "dial": dial}


def _show_models(models: list[dict[str, Any]], tests: list[dict[str, Any]], users: int) -> None:
    _heading("2", "Four models, one closed-form solve each")
    show([(model["name"], model["words"], f"{model['seconds']:.2f} s") for model in models])
    say(
        "\nDropout penalises films in proportion to their popularity. DAN discounts very active "
        "users (beta) and popular films (alpha). Settings were tuned on the valid part, with "
        "more trials for DAN; the last model derives its settings from the data.",
        "dim",
    )
    _heading("3", f"Accuracy for {users} users the models never saw, lists of {K}")
    rows = []
    for model in models:
        values = [model["values"][f"{metric}@{K}"] for metric in METRICS]
        rows.append((model["name"], *values, f"{model['values'][f'coverage@{K}']:.0%}"))
    headings = [metric.replace("_", "\n") for metric in METRICS]
    show(rows, "", *headings, "films\nshown", best=dict.fromkeys(headings, 1))
    say()
    for row in tests:
        if row["model"] == DAN:
            difference = f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
            verdict = "significant" if row["p_adjusted"] < 0.05 else "not significant"
            pair = f"{row['metric']}, {row['model']} against {row['baseline']}"
            say(f"{pair}: {difference}, p = {row['p_adjusted']:.2g}: {verdict}.")
    legend(
        {
            "recall": "share of the held-out films in the list (of those that fit into it)",
            "ndcg": "like recall, but films at the top count more",
            "unbiased": "rare films count more, as if all were equally popular",
            "films shown": "share of the catalogue that appears in at least one list",
        }
    )


def _show_example(example: dict[str, Any]) -> None:
    _heading("4", f"One of these users, number {example['user']}")
    if example["chosen"]:
        say(
            "For this test user DAN finds the most hidden films that EASE misses, tail films "
            "first. The table above is the mean over all users.",
            "dim",
        )
    for word, films in (("liked   ", example["history"]), ("hidden  ", example["hidden"])):
        say(Text.assemble((word, "dim"), clean("; ".join(films))))
    rows = []
    pairs = zip(example["lists"][PLAIN], example["lists"][DAN], strict=True)
    for rank, (plain, balanced) in enumerate(pairs, start=1):
        because = " and ".join(reason["title"] for reason in balanced["why"])
        rows.append((rank, _film(plain), _film(balanced), Text(clean(because), "dim")))
    show(rows, "", PLAIN, DAN, f"{DAN} because of")
    say(Text.assemble(("tail", "green"), ("  not among the most liked 20% of the films", "dim")))
    say(Text.assemble(("found", "cyan"), (" one of the hidden films", "dim")))
    turned = ", ".join(f"{count} at alpha {alpha}" for alpha, count in example["dial"].items())
    say(
        f"\nThe dial, without a new fit: of {K} films {turned} are from the tail "
        "(`equipoise recommend MODEL --alpha`)."
    )


def _film(film: dict[str, Any]) -> Text:
    tail = (" tail", "green") if film["tail"] else ""
    return Text.assemble(clean(film["title"]), tail, (" found", "cyan") if film["hit"] else "")


def _heading(number: str, text: str) -> None:
    say()
    say(Text.assemble((f"{number}  ", "dim"), (text, "bold")))
