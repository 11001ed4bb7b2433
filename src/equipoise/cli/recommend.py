"""Commands that ask a model: `recommend`, `similar` and `explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.cli.data import find_items, find_users, item_list, item_lists
from equipoise.cli.framework import Cluster, Json, Saved, declare, emit, option, say, show, working
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.models import Explanation, Recommendations, Recommender

app = typer.Typer()

CHOICES = "--user, --history, --session and --all"  # who is recommended to
REASONS = 2  # how many items of the history a reason names
Users = Annotated[list[str] | None, option("A user id; repeatable.", "--user")]
Histories = Annotated[
    list[str] | None,
    option('Items of any user: "a,b,c" or a JSON list; repeatable.', "--history"),
]
Sessions = Annotated[
    list[str] | None,
    option('Clicks in order, for a session model: "a,b,a"; repeatable.', "--session"),
]
RulesFile = Annotated[
    Path | None, option("TOML file of rules: what may be listed, and in what mixture.", "--rules")
]
UnknownItems = Annotated[
    Literal["error", "skip"], option("Items the model does not know.", "--unknown-items")
]
Length = Annotated[int, option("Length of the list.", "-k")]
Alpha = Annotated[float | None, option("The popularity dial: larger, more tail; no new fit.")]
Item = Annotated[str, typer.Argument(metavar="ITEM", help="An item id or title.")]


@declare(app, "recommend", "equipoise recommend model --user u1 -k 5 --why")
def recommend(
    model: Saved,
    user: Users = None,
    history: Histories = None,
    session: Sessions = None,
    all_users: Annotated[bool, option("All training users; with --out.", "--all")] = False,
    out: Annotated[
        Path | None,
        option("File to write instead: .parquet, .csv or .jsonl; with --cluster a folder."),
    ] = None,
    k: Length = 20,
    alpha: Alpha = None,
    rules: RulesFile = None,
    exclude: Annotated[str | None, option("Items to leave out: a,b,c, or @FILE.")] = None,
    candidates: Annotated[str | None, option("Items to choose from: a,b,c, or @FILE.")] = None,
    with_seen: Annotated[bool, option("Keep items of the history.", "--with-seen")] = False,
    why: Annotated[bool, option("Name the strongest reasons.", "--why")] = False,
    unknown_users: Annotated[
        Literal["error", "popular", "skip"],
        option("Users the model does not know.", "--unknown-users"),
    ] = "error",
    unknown_items: UnknownItems = "error",
    threads: Annotated[int | None, option("At most this many.")] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Recommend items to training users or for any history."""
    from equipoise.models import load

    fitted = load(model)
    if all_users and (user or history or session):
        raise SettingError(f"give one of {CHOICES}")
    if all_users and out is None:
        raise SettingError("--all needs --out FILE.parquet")
    skip = unknown_items == "skip"
    wanted = None if all_users else _wanted(fitted, user, history, session, unknown_users, skip)
    options: dict[str, Any] = {"alpha": alpha, "threads": threads, "rules": rules}
    options |= {"unknown_users": unknown_users, "reasons": REASONS if why and out else 0}
    for name, text in (("exclude", exclude), ("candidates", candidates)):
        if text is not None:
            known, unknown = item_lists(fitted.interactions_, text, skip=skip)
            # the latter may be pinned by the rules all the same
            options |= {name: [*known, *unknown], "unknown_items": "skip"}
    if with_seen:
        options["exclude_seen"] = False
    if cluster is not None and out is None:
        raise SettingError("--cluster writes a folder of Parquet files; give it with --out")
    if out is not None:
        with working("recommending"):
            if cluster is None:
                count = fitted.recommend_to(out, wanted, k, **options)
            else:
                from equipoise.cluster import recommend_to

                count = recommend_to(model, out, wanted, k, client=cluster, **options)
        if as_json:
            emit({"path": str(out), "users": count})
        else:
            say(f"{count:,} lists written to {out}")
        return
    assert wanted is not None
    found = fitted.recommend(wanted, k, **options)
    wanted = found.users if user else wanted
    lists = _lists(found)
    if why:
        with working("looking for reasons"):
            for one, each in zip(wanted, lists, strict=True):
                for row in each["items"]:
                    row["why"] = []
                    # a pinned item that the model does not know has no reasons
                    if each["source"] == "model" and row["item"] in fitted.item_index_:
                        row["why"] = strongest(fitted.explain(one, row["item"], alpha=alpha))
    if as_json:
        emit(lists)
        return
    for one, each in zip(wanted, lists, strict=True):
        _show_list(each["items"], _title(fitted, one, each))


def _wanted(
    model: Recommender,
    user: list[str] | None,
    history: list[str] | None,
    session: list[str] | None,
    unknown_users: str = "error",
    skip: bool = False,
    choices: str = CHOICES,
) -> list[Any]:
    """Return what to pass to `recommend`: ids of training users, or histories."""
    if session and not model.ordered:
        kind = type(model).__name__
        raise SettingError(f"--session needs slis, slit, slist or vsknn; {kind} takes --history")
    histories = [*(history or ()), *(session or ())]
    if bool(user) == bool(histories):
        raise SettingError(f"give one of {choices}")
    if user:
        known, hint = unknown_users == "error", "for a new user give --history"
        return find_users(model.interactions_, user, known=known, hint=hint)
    return [item_list(model.interactions_, text, skip=skip) for text in histories]


def strongest(explanation: Explanation) -> list[dict[str, Any]]:
    """Return the items of the history that add most to the score, with their share."""
    names = explanation.titles or [str(source) for source in explanation.sources]
    rows = zip(explanation.sources, names, explanation.contributions, strict=True)
    adding = sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])
    return [
        {"item": source, "title": name, "contribution": part}
        for source, name, part in adding[:REASONS]
    ]


def _lists(found: Recommendations) -> list[dict[str, Any]]:
    """Return a list for each user as plain values."""
    lists = []
    for place, user in enumerate(found.users):
        pairs = zip(found.items[place], found.scores[place], strict=True)
        rows: list[dict[str, Any]] = [
            {"rank": rank, "item": item, "score": None if score != score else float(score)}
            for rank, (item, score) in enumerate(pairs, start=1)
        ]
        if found.titles is not None:
            for row, title in zip(rows, found.titles[place], strict=True):
                row["title"] = title
        lists.append({"user": user, "source": found.source[place], "items": rows})
    return lists


def _title(model: Recommender, wanted: Any, found: dict[str, Any]) -> str:
    """Return the line above a list: for whom it is."""
    data = model.interactions_
    if isinstance(wanted, list):
        named = ", ".join(data.label(item) for item in wanted[:4])
        who = f"for the history {named}{', ...' if len(wanted) > 4 else ''}"
    else:
        known = 0
        if wanted in data.user_index:
            known = int(data.user_counts[data.user_index.position(wanted)])
        who = f"for user {wanted} ({known:,} items known)"
    popular = "; nothing is known of this user, so these are the most popular items"
    return who + (popular if found["source"] == "popular" else "")


def _show_list(rows: list[dict[str, Any]], title: str) -> None:
    shown = []
    for row in rows:
        cells = {**row, "item": str(row["item"])}
        if "why" in row:
            cells["because of"] = ", ".join(reason["title"] for reason in cells.pop("why"))
        shown.append(cells)
    heads = list(shown[0]) if shown else ["rank", "item", "score"]
    show((cells.values() for cells in shown), *heads, title=title)


@declare(app, "similar", "equipoise similar model tea -k 5")
def similar(
    model: Saved,
    item: Annotated[
        str | None, typer.Argument(metavar="[ITEM]", help="An item id or title.")
    ] = None,
    all_items: Annotated[bool, option("All items; with --out.", "--all")] = False,
    out: Annotated[Path | None, option("File to write instead: .parquet, .csv or .jsonl.")] = None,
    k: Length = 20,
    alpha: Alpha = None,
    rules: RulesFile = None,
    as_json: Json = False,
) -> None:
    """List the items most similar to one item, or to every item."""
    from equipoise.models import load

    if all_items == (item is not None) or (all_items and out is None):
        raise SettingError("give ITEM, or --all with --out FILE.parquet")
    fitted = load(model)
    if out is not None:
        chosen = None if item is None else find_items(fitted.interactions_, [item])
        with working("looking for similar items"):
            count = fitted.similar_to(out, chosen, k, alpha=alpha, rules=rules)
        if as_json:
            emit({"path": str(out), "items": count})
        else:
            say(f"{count:,} lists written to {out}")
        return
    assert item is not None
    (wanted,) = find_items(fitted.interactions_, [item])
    (found,) = _lists(fitted.similar(wanted, k, alpha=alpha, rules=rules))
    if as_json:
        emit({"item": wanted, "similar": found["items"]})
    else:
        _show_list(found["items"], f"similar to {fitted.interactions_.label(wanted)}")


@declare(app, "explain", "equipoise explain model --user u1 tea")
def explain(
    model: Saved,
    item: Item,
    user: Users = None,
    history: Histories = None,
    session: Sessions = None,
    alpha: Alpha = None,
    unknown_items: UnknownItems = "error",
    as_json: Json = False,
) -> None:
    """Show how much each item of a history adds to an item's score."""
    from equipoise.models import load

    fitted = load(model)
    (explained,) = find_items(fitted.interactions_, [item])
    skip, choices = unknown_items == "skip", "--user, --history and --session"
    wanted = _wanted(fitted, user, history, session, skip=skip, choices=choices)
    if len(wanted) > 1:
        raise SettingError("explain takes one --user, --history or --session")
    found = fitted.explain(wanted[0], explained, alpha=alpha)
    label = fitted.interactions_.label(explained)
    if as_json:
        emit({**vars(found), "title": label})
        return
    frame = found.to_frame()
    rows = ((str(source), *rest) for source, *rest in frame.rows())
    show(rows, *frame.columns, title=f"{label}: score {found.score:.4f}, of which")
