"""Commands that query a model: `recommend`, `similar`, `explain` and `vectors`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.cli.data import find_items, find_users, item_list, item_lists
from equipoise.cli.framework import Cluster, Json, Saved, declare, emit, option, say, show, working
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.models import Recommendations, Recommender

app = typer.Typer()

TARGETS = "--user, --history, --session and --all"
REASONS = 2  # items of the history named as reasons
Users = Annotated[list[str] | None, option("A user id; repeatable.", "--user")]
Histories = Annotated[
    list[str] | None,
    option('Items of a history: "a,b,c" or a JSON list; repeatable.', "--history"),
]
Sessions = Annotated[
    list[str] | None,
    option('Clicks in order, for session models: "a,b,a"; repeatable.', "--session"),
]
RulesFile = Annotated[Path | None, option("TOML file of business rules.", "--rules")]
UnknownItems = Annotated[
    Literal["error", "skip"], option("What to do with unknown items.", "--unknown-items")
]
Length = Annotated[int, option("Length of the list.", "-k")]
Alpha = Annotated[float | None, option("Popularity dial: larger favours the tail.")]
Item = Annotated[str, typer.Argument(metavar="ITEM", help="An item id or title.")]


@declare(app, "recommend", "equipoise recommend model --user u1 -k 5 --why")
def recommend(
    model: Saved,
    user: Users = None,
    history: Histories = None,
    session: Sessions = None,
    all_users: Annotated[bool, option("All training users; needs --out.", "--all")] = False,
    out: Annotated[
        Path | None,
        option("File to write: .parquet, .csv or .jsonl; with --cluster a folder."),
    ] = None,
    k: Length = 20,
    alpha: Alpha = None,
    new_items: Annotated[
        float | None,
        option("Factor of the scores of items without users; 0: none.", "--new-items"),
    ] = None,
    rules: RulesFile = None,
    exclude: Annotated[str | None, option("Items to exclude: a,b,c, or @FILE.")] = None,
    candidates: Annotated[str | None, option("Candidate items: a,b,c, or @FILE.")] = None,
    with_seen: Annotated[bool, option("Recommend seen items too.", "--with-seen")] = False,
    why: Annotated[bool, option("Show the strongest reasons.", "--why")] = False,
    unknown_users: Annotated[
        Literal["error", "popular", "skip"],
        option("What to do with unknown users.", "--unknown-users"),
    ] = "error",
    unknown_items: UnknownItems = "error",
    threads: Annotated[int | None, option("Maximum number of threads.")] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Recommend items to training users or for any history."""
    from equipoise.models import load

    fitted = load(model)
    if all_users and (user or history or session):
        raise SettingError(f"give one of {TARGETS}")
    if all_users and out is None:
        raise SettingError("--all needs --out FILE.parquet")
    skip = unknown_items == "skip"
    targets = None if all_users else _targets(fitted, user, history, session, unknown_users, skip)
    options: dict[str, Any] = {"alpha": alpha, "threads": threads, "rules": rules}
    options |= {} if new_items is None else {"new_items": new_items}
    options |= {"unknown_users": unknown_users, "reasons": REASONS if why and out else 0}
    for name, text in (("exclude", exclude), ("candidates", candidates)):
        if text is not None:
            known, unknown = item_lists(fitted._served, text, skip=skip)
            # rules may pin items that are unknown to the model
            options |= {name: [*known, *unknown], "unknown_items": "skip"}
    if with_seen:
        options["exclude_seen"] = False
    if cluster is not None and out is None:
        raise SettingError("--cluster writes a folder of Parquet files; give it with --out")
    if out is not None:
        with working("recommending"):
            if cluster is None:
                count = fitted.recommend_to(out, targets, k, **options)
            else:
                from equipoise.cluster import recommend_to

                count = recommend_to(model, out, targets, k, client=cluster, **options)
        if as_json:
            emit({"path": str(out), "users": count})
        else:
            say(f"{count:,} lists written to {out}")
        return
    assert targets is not None
    recommended = fitted.recommend(targets, k, **options)
    targets = recommended.users if user else targets
    lists = _lists(recommended)
    if why:
        with working("explaining"):
            for target, ranked in zip(targets, lists, strict=True):
                for row in ranked["items"]:
                    row["why"] = []
                    # pinned items that are unknown to the model have no reasons
                    if ranked["source"] == "model" and row["item"] in fitted.item_index_:
                        explanation = fitted.explain(target, row["item"], alpha=alpha)
                        row["why"] = explanation.strongest(REASONS)
    if as_json:
        emit(lists)
        return
    for target, ranked in zip(targets, lists, strict=True):
        _show_list(ranked["items"], _title(fitted, target, ranked["source"]))


def _targets(
    model: Recommender,
    user: list[str] | None,
    history: list[str] | None,
    session: list[str] | None,
    unknown_users: str = "error",
    skip: bool = False,
    choices: str = TARGETS,
) -> list[Any]:
    """Return the ids of users, or the histories, to recommend to."""
    if session and not model.ordered:
        kind = type(model).__name__
        raise SettingError(
            f"--session needs slis, slit, slist, vsknn, stan or vstan; {kind} takes --history"
        )
    histories = [*(history or ()), *(session or ())]
    if bool(user) == bool(histories):
        raise SettingError(f"give one of {choices}")
    if user:
        known, hint = unknown_users == "error", "for a new user give --history"
        return find_users(model._served, user, known=known, hint=hint)
    return [item_list(model._served, text, skip=skip) for text in histories]


def _lists(recommended: Recommendations) -> list[dict[str, Any]]:
    """Return the recommendations as plain values, one entry per user."""
    lists = []
    for place, user in enumerate(recommended.users):
        pairs = zip(recommended.items[place], recommended.scores[place], strict=True)
        rows: list[dict[str, Any]] = [
            {"rank": rank, "item": item, "score": None if score != score else float(score)}
            for rank, (item, score) in enumerate(pairs, start=1)
        ]
        if recommended.titles is not None:
            for row, title in zip(rows, recommended.titles[place], strict=True):
                row["title"] = title
        lists.append({"user": user, "source": recommended.source[place], "items": rows})
    return lists


def _title(model: Recommender, target: Any, source: str) -> str:
    """Return the heading of the list for a user or a history."""
    data = model._served
    popular = "; unknown user, so these are the most popular items"
    suffix = popular if source == "popular" else ""
    if isinstance(target, list):
        labels = [data.label(item) for item in target[:4]]
        return f"for the history {', '.join(labels)}{', ...' if len(target) > 4 else ''}{suffix}"
    count = 0
    if target in data.user_index:
        count = int(data.user_counts[data.user_index.position(target)])
    return f"for user {target} ({count:,} items in the history){suffix}"


def _show_list(rows: list[dict[str, Any]], title: str) -> None:
    table = []
    for row in rows:
        cells = {**row, "item": str(row["item"])}
        if "why" in row:
            cells["because of"] = ", ".join(
                f"{reason['title']} {reason['share']:.0%}" for reason in cells.pop("why")
            )
        table.append(cells)
    headings = list(table[0]) if table else ["rank", "item", "score"]
    show((cells.values() for cells in table), *headings, title=title)


@declare(app, "similar", "equipoise similar model tea -k 5")
def similar(
    model: Saved,
    item: Annotated[
        str | None, typer.Argument(metavar="[ITEM]", help="An item id or title.")
    ] = None,
    all_items: Annotated[bool, option("All items; needs --out.", "--all")] = False,
    out: Annotated[Path | None, option("File to write: .parquet, .csv or .jsonl.")] = None,
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
        items = None if item is None else find_items(fitted._served, [item])
        with working("computing similar items"):
            count = fitted.similar_to(out, items, k, alpha=alpha, rules=rules)
        if as_json:
            emit({"path": str(out), "items": count})
        else:
            say(f"{count:,} lists written to {out}")
        return
    assert item is not None
    (item_id,) = find_items(fitted._served, [item])
    (ranked,) = _lists(fitted.similar(item_id, k, alpha=alpha, rules=rules))
    if as_json:
        emit({"item": item_id, "similar": ranked["items"]})
    else:
        _show_list(ranked["items"], f"similar to {fitted._served.label(item_id)}")


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
    from equipoise.models.recommendations import POPULAR_LATELY

    fitted = load(model)
    (item_id,) = find_items(fitted._served, [item])
    skip, choices = unknown_items == "skip", "--user, --history and --session"
    targets = _targets(fitted, user, history, session, skip=skip, choices=choices)
    if len(targets) > 1:
        raise SettingError("explain takes one --user, --history or --session")
    explanation = fitted.explain(targets[0], item_id, alpha=alpha)
    label = fitted._served.label(item_id)
    if as_json:
        emit({**vars(explanation), "title": label})
        return
    frame = explanation.to_frame()
    rows = [(str(source), *values) for source, *values in frame.rows()]
    if explanation.trend:
        rest = [""] * (frame.width - 2)
        rows.append((POPULAR_LATELY, explanation.trend, *rest))
        rows.sort(key=lambda row: -row[1])
    show(rows, *frame.columns, title=f"{label}: score {explanation.score:.4f}, the sum of")


@declare(app, "vectors", "equipoise vectors model vectors --rank 128")
def vectors(
    model: Saved,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    rank: Annotated[int, option("Length of the vectors.")] = 128,
    alpha: Alpha = None,
    as_json: Json = False,
) -> None:
    """Write item and user vectors for a vector database, as items.parquet and users.parquet.

    Inner products of user and item vectors approximate the scores of the model. A new user's
    vector is the sum of the history vectors (a column of items.parquet) of the items in the
    history. The output says how much of the model's lists the vectors preserve.
    """
    from equipoise.models import load

    fitted = load(model)
    with working("factorising"):
        vectors = fitted.vectors(rank, alpha=alpha)
        vectors.save(out)
    facts = {"items": vectors.items.height, "users": vectors.users.height, "rank": vectors.rank}
    if as_json:
        emit({"path": str(out), **facts, "overlap@20": vectors.overlap})
        return
    sizes = f"{vectors.items.height:,} items and {vectors.users.height:,} users"
    say(f"vectors of {sizes} with {vectors.rank} dimensions written to {out}")
    say(f"overlap@20 with the lists of the model: {vectors.overlap:.3f}")
