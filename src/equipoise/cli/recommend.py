"""Commands that ask a model: `recommend`, `similar` and `explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.data import find_items, find_users, split_list
from equipoise.cli.fit import Saved
from equipoise.cli.framework import Json, declare
from equipoise.cli.output import add, emit, say, show, table, working
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.models import Explanation, Recommendations, Recommender

app = typer.Typer()

REASONS = 2  # how many items of the history a reason names


Users = Annotated[list[str] | None, typer.Option("--user", help="A user id; repeatable.")]


Histories = Annotated[
    list[str] | None,
    typer.Option("--history", help='Items of anybody: "a,b,c" or a JSON list; repeatable.'),
]


Sessions = Annotated[
    list[str] | None,
    typer.Option("--session", help='Clicks in order, for a session model: "a,b,a"; repeatable.'),
]


Length = Annotated[int, typer.Option("-k", help="Length of the list.")]


Alpha = Annotated[
    float | None, typer.Option(help="The popularity dial, without a new fit; larger: more tail.")
]


@declare(app, "recommend", "equipoise recommend model --user u1 -k 5 --why")
def recommend(
    model: Saved,
    user: Users = None,
    history: Histories = None,
    session: Sessions = None,
    everybody: Annotated[
        bool, typer.Option("--all", help="All training users; with --out.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Parquet file to write instead.")] = None,
    k: Length = 20,
    alpha: Alpha = None,
    exclude: Annotated[str | None, typer.Option(help="Items to leave out: a,b,c.")] = None,
    candidates: Annotated[str | None, typer.Option(help="Items to choose from: a,b,c.")] = None,
    with_seen: Annotated[
        bool, typer.Option("--with-seen", help="Keep items of the history.")
    ] = False,
    why: Annotated[bool, typer.Option("--why", help="Name the strongest reasons.")] = False,
    threads: Annotated[int | None, typer.Option(help="At most this many.")] = None,
    as_json: Json = False,
) -> None:
    """Recommend items to training users, or to anybody with a history."""
    from equipoise.models import load

    fitted = load(model)
    people = _people(fitted, user, _histories(fitted, history, session), everybody, out)
    options: dict[str, Any] = {
        **({"exclude_seen": False} if with_seen else {}),
        "exclude": _listed(fitted, exclude),
        "candidates": _listed(fitted, candidates),
        "alpha": alpha,
        "threads": threads,
    }
    if out is not None:
        if out.suffix != ".parquet":
            raise SettingError(f"--out must end in .parquet, got {out}")
        if why:
            raise SettingError("--why prints reasons; leave it out with --out")
        with working("recommending"):
            count = fitted.recommend_to(out, people, k, **options)
        facts = {"path": str(out), "people": count}
        return emit(facts) if as_json else say(f"{count:,} lists written to {out}")
    found = fitted.recommend(people, k, **options)
    reasons = _reasons(fitted, people, found, alpha) if why else None
    if as_json:
        return emit(_answer(found, reasons))
    for place in range(len(found)):
        _print_list(found, place, _heading(fitted, people, found, place), reasons)
    return None


def _histories(
    model: Recommender, history: list[str] | None, session: list[str] | None
) -> list[str] | None:
    """Return histories and sessions together; only session models know an order of clicks."""
    from equipoise.models.sessions import SessionModel

    if session and not isinstance(model, SessionModel):
        kind = type(model).__name__
        raise SettingError(f"--session needs slis, slit or slist; {kind} takes --history")
    return [*(history or ()), *(session or ())] or None


def _people(
    model: Recommender,
    user: list[str] | None,
    history: list[str] | None,
    everybody: bool,
    out: Path | None,
) -> Any:
    """Return what to pass to `recommend`: users, histories, or None for everybody."""
    if (bool(user) + bool(history) + everybody) != 1:
        raise SettingError("give one of --user, --history and --all")
    if everybody:
        if out is None:
            raise SettingError("--all needs --out FILE.parquet")
        return None
    if user:
        return find_users(model.interactions_, user)
    return [find_items(model.interactions_, split_list(text)) for text in history or ()]


def _one(text: str | None) -> list[str] | None:
    return None if text is None else [text]


def _listed(model: Recommender, text: str | None) -> list[Any] | None:
    return None if text is None else find_items(model.interactions_, split_list(text))


def _reasons(
    model: Recommender, people: list[Any], found: Recommendations, alpha: float | None
) -> list[list[list[dict[str, Any]]]]:
    """Return the strongest reasons for each item of each list."""
    with working("looking for reasons"):
        return [
            [
                strongest(model.explain(person, item, alpha=alpha)) if source == "model" else []
                for item in items
            ]
            for person, items, source in zip(people, found.items, found.source, strict=True)
        ]


def strongest(explanation: Explanation) -> list[dict[str, Any]]:
    """Return the items of the history that add most to the score, with their share."""
    names = explanation.titles or [str(source) for source in explanation.sources]
    rows = zip(explanation.sources, names, explanation.contributions, strict=True)
    adding = sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])
    return [
        {"item": source, "title": name, "contribution": part}
        for source, name, part in adding[:REASONS]
    ]


def _answer(found: Recommendations, reasons: Any) -> list[dict[str, Any]]:
    lists = []
    for place, who in enumerate(found.users):
        rows: list[dict[str, Any]] = [
            {"rank": rank, "item": item, "score": float(score)}
            for rank, (item, score) in enumerate(
                zip(found.items[place], found.scores[place], strict=True), start=1
            )
        ]
        for at, row in enumerate(rows):
            if found.titles is not None:
                row["title"] = found.titles[place][at]
            if reasons is not None:
                row["why"] = reasons[place][at]
        lists.append({"user": who, "source": found.source[place], "items": rows})
    return lists


def _heading(model: Recommender, people: list[Any], found: Recommendations, place: int) -> str:
    if isinstance(people[place], list):
        items = people[place]
        named = ", ".join(model.interactions_.label(item) for item in items[:4])
        who = f"for the history {named}{', ...' if len(items) > 4 else ''}"
    else:
        seen = len(model.interactions_.history(people[place]))
        who = f"for user {found.users[place]} ({seen:,} items known)"
    popular = "; nothing is known of this person, so these are the most popular items"
    return who + (popular if found.source[place] == "popular" else "")


def _print_list(found: Recommendations, place: int, heading: str, reasons: Any) -> None:
    names = ["", "item", *(["title"] if found.titles is not None else []), "score"]
    left = [1, 2] if found.titles is not None else [1]
    if reasons is not None:
        names.append("because of")
        left.append(len(names) - 1)
    out = table(*names, left=left)
    for at, (item, score) in enumerate(zip(found.items[place], found.scores[place], strict=True)):
        title = [found.titles[place][at]] if found.titles is not None else []
        because = []
        if reasons is not None:
            because = [", ".join(reason["title"] for reason in reasons[place][at])]
        add(out, at + 1, item, *title, f"{float(score):.3f}", *because)
    show(out, heading)


@declare(app, "similar", "equipoise similar model tea -k 5")
def similar(
    model: Saved,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="An item id or title.")],
    k: Length = 20,
    alpha: Alpha = None,
    as_json: Json = False,
) -> None:
    """List the items that most follow from one item alone."""
    from equipoise.models import load

    fitted = load(model)
    (found_item,) = find_items(fitted.interactions_, [item])
    found = fitted.similar(found_item, k, alpha=alpha)
    if as_json:
        answer = _answer(found, None)[0]
        return emit({"item": found_item, "similar": answer["items"]})
    return _print_list(found, 0, f"similar to {fitted.interactions_.label(found_item)}", None)


@declare(app, "explain", "equipoise explain model --user u1 tea")
def explain(
    model: Saved,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="An item id or title.")],
    user: Annotated[str | None, typer.Option(help="A user id.")] = None,
    history: Annotated[
        str | None, typer.Option(help='Items of anybody: "a,b,c" or a JSON list.')
    ] = None,
    session: Annotated[
        str | None, typer.Option(help='Clicks in order, for a session model: "a,b,a".')
    ] = None,
    alpha: Alpha = None,
    as_json: Json = False,
) -> None:
    """Tell what each item of a history adds to the score of an item."""
    from equipoise.models import load

    fitted = load(model)
    (wanted,) = find_items(fitted.interactions_, [item])
    people = _people(
        fitted,
        _one(user),
        _histories(fitted, _one(history), _one(session)),
        False,
        None,
    )
    found = fitted.explain(people[0], wanted, alpha=alpha)
    if as_json:
        return emit({**vars(found), "title": fitted.interactions_.label(wanted)})
    title = f"{fitted.interactions_.label(wanted)}: score {found.score:.4f}, of which"
    names = ["item", "title", "adds"] if found.titles is not None else ["item", "adds"]
    out = table(*names, left=range(len(names) - 1))
    for at, (source, part) in enumerate(zip(found.sources, found.contributions, strict=True)):
        named = [found.titles[at]] if found.titles is not None else []
        add(out, source, *named, f"{part:+.4f}")
    return show(out, title)
