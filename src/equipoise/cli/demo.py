"""The command `demo`: from a download to recommendations with reasons, in a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise.cli.data import raw_id
from equipoise.cli.framework import Json, clean, declare, emit, legend, option, say, show, working
from equipoise.cli.recommend import strongest
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
KNOWN = (12, 25)  # length of the history of the user shown
METRICS = ("ndcg", "head_ndcg", "tail_ndcg", "unbiased_ndcg", "recall", "tail_recall")


@declare(app, "demo", "equipoise demo")
def demo(
    user: Annotated[str | None, option("Whose list to show, of the test part.")] = None,
    report: Annotated[Path | None, option("Also write a page, such as report.html.")] = None,
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
    with working("describing and splitting it"):
        split = strong(data, valid=0.1, test=0.2, seed=0)
        found = describe(data)
    with working("fitting and evaluating four models"):
        models = _models()
        results = {name: _fitted(model, split) for name, model in models.items()}
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
    asked = _lists(split.test, models, _user(split.test, user))
    if report is not None:
        from equipoise.report import write_report

        with working("writing the report"):
            write_report(split, report, name=entry.title)
    if as_json:
        facts = {"name": DATA, "licence": entry.licence, "statistics": found.to_dict()}
        emit({"data": facts, "models": fitted, "tests": tests, "user": asked})
        return
    _heading("1", "The data: users and the films they gave 4 or 5 stars")
    say(f"{entry.title}, {entry.origin}\nlicence: {entry.licence}\n\n{found}\n{split}")
    say("\nhead: the 20% of the films with most users; tail: all others", "dim")
    _show_models(fitted, tests, split.test.n_users)
    _show_lists(asked)
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
        DROPOUT: EASE(l2=50.0, dropout=0.7),
        DAN: EASE(l2=20.0, dropout=0.7, normalizer=balanced),
        "EASE + DAN, automatic": EASE(normalizer=normalize.DAN()),
    }


def _fitted(model: EASE, split: Split) -> tuple[Result, float]:
    """Fit on train; return the result on test and the seconds of the fit."""
    from equipoise.evaluation.evaluator import evaluate

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
    from equipoise.evaluation.metrics import head_items

    history, hidden = part.history.history(user), part.target.history(user)
    label, model = part.history.label, models[DAN]
    head = head_items(model.item_counts_)

    def is_tail(item: Any) -> bool:
        return not head[model.item_index_.position(item)]

    lists: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    for name, each in models.items():
        for item in each.recommend([history], k=SHOWN).items[0]:
            film = {"item": item, "title": label(item), "tail": is_tail(item)}
            why = strongest(each.explain(history, item))
            lists[name].append({**film, "hit": item in hidden, "why": why})
    dial = {}
    for alpha in DIAL:
        (items,) = model.recommend([history], k=K, alpha=alpha).items
        dial[f"{alpha:g}"] = sum(is_tail(item) for item in items)
    titles = {"history": [*map(label, history)], "hidden": [*map(label, hidden)]}
    return {"user": user, **titles, "lists": lists, "dial": dial}


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
        values = [each["values"][f"{metric}@{K}"] for metric in METRICS]
        rows.append((each["name"], *values, f"{each['values'][f'coverage@{K}']:.0%}"))
    show(rows, "", *(metric.replace("_", "\n") for metric in METRICS), "films\nshown")
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
