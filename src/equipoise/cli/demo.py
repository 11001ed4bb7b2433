"""The command `demo`: from a download to recommendations with reasons, in a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise.cli.data import raw_id
from equipoise.cli.framework import Json, declare, option
from equipoise.cli.output import clean, emit, legend, say, show, working
from equipoise.cli.recommend import strongest
from equipoise.errors import UnknownIdError

if TYPE_CHECKING:
    from equipoise.models import EASE
    from equipoise.results import Result
    from equipoise.split import Part, Split

app = typer.Typer()

DATA = "movielens-100k"
PLAIN, DAN = "EASE", "EASE + DAN"
K = 20
SHOWN = 10
DIAL = (0.0, 0.3, 0.6)
KNOWN = (12, 25)  # length of the history of the user shown
GROUPS = ("all", "head", "tail", "unbiased")


@declare(app, "demo", "equipoise demo")
def demo(
    user: Annotated[str | None, option("Whose list to show, of the test part.")] = None,
    report: Annotated[
        Path | None, option("Also write a page on these data, such as report.html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit EASE with and without dropout and DAN on MovieLens 100K, side by side."""
    from equipoise import datasets
    from equipoise.comparison import compare
    from equipoise.split import strong
    from equipoise.statistics import describe

    start = time.perf_counter()
    entry = datasets.info(DATA)
    with working(f"loading {entry.title}"):
        data = datasets.load(DATA, min_rating=4)
    with working("describing and splitting it"):
        split = strong(data, valid=0.1, test=0.2, seed=0)
        found = {"name": DATA, "licence": entry.licence, "statistics": describe(data).to_dict()}
    with working("fitting and evaluating four models"):
        models = _models()
        results = {name: _fitted(model, split) for name, model in models.items()}
    known = {name: result for name, (result, _) in results.items() if name in CHOSEN}
    tests = []
    for metric in (f"ndcg@{K}", f"tail_ndcg@{K}"):
        rows = compare(known, metric, pairs="all").to_frame().to_dicts()
        tests += [{"metric": metric, **row} for row in rows]
    facts: dict[str, Any] = {
        "data": found,
        "models": [
            {
                "name": name,
                "settings": models[name].settings(),
                "words": models[name].summary(),
                "seconds": seconds,
                "values": result.to_dict()["values"],
            }
            for name, (result, seconds) in results.items()
        ],
        "tests": tests,
        "user": _lists(split.test, models, _user(split.test, user)),
    }
    if report is not None:
        from equipoise.report import write_report

        with working("writing the report"):
            write_report(split, report, name=entry.title)
    if as_json:
        emit(facts)
        return
    _show_data(facts["data"], f"{entry.title}, {entry.origin}", split)
    _show_models(facts["models"], tests, split.test.n_users)
    _show_lists(facts["user"])
    if report is not None:
        say(f"\nA page to look at, with the dial as a slider: {report}")
    say(f"\nAll of this took {time.perf_counter() - start:.0f} seconds.", "dim")


def _models() -> dict[str, EASE]:
    """Return the models by name; all numbers but those of the last were chosen on the valid part.

    Dropout alone explains a good part of what DAN gains over plain EASE, so it has its own row.
    """
    from equipoise import normalize
    from equipoise.models import EASE

    balanced = normalize.DAN(alpha=0.3, beta=0.2)
    return {
        PLAIN: EASE(l2=400.0, dropout=0.0),
        "EASE + dropout": EASE(l2=50.0, dropout=0.7),
        DAN: EASE(l2=20.0, dropout=0.7, normalizer=balanced),
        "EASE + DAN, automatic": EASE(normalizer=normalize.DAN()),
    }


CHOSEN = (PLAIN, "EASE + dropout", DAN)  # the models that are tested against one another


def _fitted(model: EASE, split: Split) -> tuple[Result, float]:
    """Fit on train; return the result on test and the seconds of the fit."""
    from equipoise.evaluation import evaluate

    start = time.perf_counter()
    model.fit(split.train)
    seconds = time.perf_counter() - start
    return evaluate(model, split.test, k=K), seconds


def _user(part: Part, user: str | None) -> Any:
    """Return the user asked for, or the first one with a history that fits on a screen."""
    index = part.history.user_index
    if user is None:
        counts = part.history.user_counts
        return index.values[((counts >= KNOWN[0]) & (counts <= KNOWN[1])).argmax()]
    wanted = raw_id(index, user)
    if wanted not in index:
        some = ", ".join(str(each) for each in index.values[:5])
        raise UnknownIdError(f"the test part has no user {user!r}; choose one of {some}, ...")
    return wanted


def _lists(part: Part, models: dict[str, EASE], user: Any) -> dict[str, Any]:
    """Return a user's history and hidden films, each model's list with reasons, and the dial."""
    from equipoise.metrics import head_items

    history, hidden = part.history.history(user), part.target.history(user)
    label, model = part.history.label, models[DAN]
    head = head_items(model.item_counts_)

    def is_tail(item: Any) -> bool:
        return not head[model.item_index_.position(item)]

    def films(chosen: EASE) -> list[dict[str, Any]]:
        return [
            {
                "item": item,
                "title": label(item),
                "tail": is_tail(item),
                "hit": item in hidden,
                "why": strongest(chosen.explain(history, item)),
            }
            for item in chosen.recommend([history], k=SHOWN).items[0]
        ]

    dial = {}
    for alpha in DIAL:
        (items,) = model.recommend([history], k=K, alpha=alpha).items
        dial[f"{alpha:g}"] = sum(is_tail(item) for item in items)
    return {
        "user": user,
        "history": [label(item) for item in history],
        "hidden": [label(item) for item in hidden],
        "lists": {name: films(each) for name, each in models.items()},
        "dial": dial,
    }


def _show_data(data: dict[str, Any], origin: str, split: Split) -> None:
    _heading("1", "The data")
    found = data["statistics"]
    valid = split.valid.n_users if split.valid is not None else 0
    say(origin)
    say(f"licence: {data['licence']}", "dim")
    say(
        f"\n{found['n_users']:,} users, {found['n_items']:,} films, {found['n_interactions']:,} "
        f"ratings of 4 or 5 stars.\nThe most liked 20% of the films, the head, hold "
        f"{found['head_share']:.0%} of them; the others are the tail.\nGini index "
        f"{found['gini_items']:.2f}, homophily {found['homophily']:.2f} (`equipoise stats {DATA} "
        "--min-rating 4` has more).\n\n"
        f"Split by users (strong): {split.train.n_users} to learn from, {valid} to choose "
        f"settings on,\n{split.test.n_users} to report on, of whom 80% of the films are shown "
        "and 20% are to be found."
    )


def _show_models(models: list[dict[str, Any]], tests: list[dict[str, Any]], users: int) -> None:
    _heading("2", "Four models, one closed-form solve each")
    show([(each["name"], each["words"], f"{each['seconds']:.2f} s") for each in models])
    say(
        "\nDropout penalises popular films in proportion. DAN counts very active users for less "
        "(beta)\nand puts rare films on a level with blockbusters (alpha). Settings were chosen "
        "on the valid part,\nnever on test, and more of them tried for DAN; the last model takes "
        "its settings from the data.",
        "dim",
    )
    _heading("3", f"Accuracy for {users} users the models never saw, lists of {K}")
    rows = []
    for each in models:
        ndcg = [each["values"][_metric("ndcg", group)] for group in GROUPS]
        recall = [each["values"][_metric("recall", group)] for group in ("all", "tail")]
        coverage = f"{each['values'][f'coverage@{K}']:.0%}"
        rows.append((each["name"], *ndcg, *recall, coverage))
    heads = [*(f"ndcg\n{group}" for group in GROUPS), "recall\nall", "recall\ntail"]
    show(rows, "", *heads, "films\nshown")
    say()
    for row in tests:
        if row["model"] == DAN:
            moved = f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"
            sure = "clear" if row["p_adjusted"] < 0.05 else "not clear"
            pair = f"{row['metric']}, {row['model']} against {row['baseline']}"
            say(f"{pair}: {moved}, p = {row['p_adjusted']:.2g}: {sure}.")
    legend(
        {
            "recall": "share of the hidden films found (of those that fit into the list)",
            "ndcg": "the same, but a film counts more the higher it stands",
            "unbiased": "rare films count more, as if all were equally popular",
            "films shown": "share of the catalogue that stands in at least one list",
        }
    )


def _metric(name: str, group: str) -> str:
    return f"{name}@{K}" if group == "all" else f"{group}_{name}@{K}"


def _show_lists(found: dict[str, Any]) -> None:
    _heading("4", f"One of these users, number {found['user']}")
    for word, films in (("liked   ", found["history"]), ("hidden  ", found["hidden"])):
        say(Text.assemble((word, "dim"), clean("; ".join(films))))
    rows = []
    pairs = zip(found["lists"][PLAIN], found["lists"][DAN], strict=True)
    for rank, (plain, balanced) in enumerate(pairs, start=1):
        because = " and ".join(reason["title"] for reason in balanced["why"])
        rows.append((rank, _film(plain), _film(balanced), Text(clean(because), "dim")))
    show(rows, "", PLAIN, DAN, f"{DAN} because of")
    say(Text.assemble(("tail", "green"), ("  not among the most liked 20% of the films", "dim")))
    say(Text.assemble(("found", "yellow"), (" one of the hidden films", "dim")))
    turned = ", ".join(f"{count} at alpha {alpha}" for alpha, count in found["dial"].items())
    say(
        f"\nThe dial, without a new fit: of {K} films {turned} are from the tail "
        "(`equipoise recommend MODEL --alpha`)."
    )


def _film(film: dict[str, Any]) -> Text:
    tail = (" tail", "green") if film["tail"] else ""
    return Text.assemble(clean(film["title"]), tail, (" found", "yellow") if film["hit"] else "")


def _heading(number: str, text: str) -> None:
    say()
    say(Text.assemble((f"{number}  ", "dim"), (text, "bold")))
