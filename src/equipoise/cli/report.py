"""The command `report`: an HTML report on data, or a case study of one user."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from equipoise.cli.data import DATA, Reading, raw_id
from equipoise.cli.framework import (
    Json,
    Yes,
    clean,
    declare,
    emit,
    note,
    option,
    say,
    show,
    size_text,
    working,
)
from equipoise.cli.settings import confirm_solve_time
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.report import CaseStudy

app = typer.Typer()

CASE_LENGTH = 5
LENGTH = 20
HISTORY = 10  # items of a history that a case study prints


@declare(app, "report", "equipoise report events.csv --out report.html")
def report(
    data: Annotated[str, typer.Argument(metavar="DATA", help=DATA)],
    reading: Reading,
    out: Annotated[Path | None, option("File to write. [report.html]")] = None,
    model: Annotated[Path | None, option("Saved model to report on.")] = None,
    k: Annotated[int | None, option("Length of the lists. [20]", "-k")] = None,
    sample: Annotated[int, option("Number of users to show.")] = 6,
    show_user: Annotated[list[str] | None, option("Test user to show; repeatable.")] = None,
    seed: Annotated[int, option("Random seed of the split and the sample.")] = 0,
    heading: Annotated[str | None, option("Title of the report.", "--title")] = None,
    case_study: Annotated[
        str | None,
        typer.Option(metavar="USER", help="Compare four normalizations for this user."),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML report on data and models.

    Where the data have times, it begins with the figure to expect after the last event, beside
    popularity, recent popularity and item-kNN.

    With --case-study USER, print the paper's case study of one user instead, and write it to
    --out if set.
    """
    if k is not None and k < 1:
        raise SettingError(f"-k must be >= 1, got {k}")
    if case_study is not None:
        _case_study(reading, data, case_study, k or CASE_LENGTH, out, as_json)
        return
    from equipoise.models import load
    from equipoise.report.page import check_page, glance, write_report

    path = out or Path("report.html")
    check_page(path)
    fitted = load(model) if model is not None else None
    split = reading.open_split(data)
    source: Any = reading.load(data) if split is None else split
    train, shown = (source, source) if split is None else (split.train, split.test.history)
    users = [raw_id(shown.user_index, text) for text in show_user] if show_user else None
    # EASE with and without DAN are fitted, perhaps the saved model anew; a backtest that would
    # take long is left out
    confirm_solve_time(train, "the report", {}, solves=2 + (model is not None), yes=yes)
    start = time.perf_counter()
    with working(f"writing the report on {data}") as progress:
        facts = write_report(
            source,
            path,
            name=heading or Path(data).stem,
            model=fitted,
            k=k or LENGTH,
            sample=sample,
            users=users,
            seed=seed,
            command=shlex.join(["equipoise", *sys.argv[1:]]),
            progress=progress,
        )
    seconds = time.perf_counter() - start
    size = path.stat().st_size
    if as_json:
        printed = {key: facts[key] for key in facts if key not in ("users", "training_curve")}
        emit({"path": str(path), "bytes": size, "seconds": seconds, **printed})
        return
    for sentence in glance(facts):
        say(sentence)
    say(f"\n{path}: {size_text(size)} in {seconds:.0f} s; open it in a browser", "bold")


def _case_study(
    reading: Reading, data: str, user: str, k: int, out: Path | None, as_json: bool
) -> None:
    from equipoise.report.page import check_page, write_case_study
    from equipoise.report.users import case_study

    if out is not None:
        check_page(out)
    interactions = reading.load(data)
    with working("fitting four models"):
        study = case_study(interactions, raw_id(interactions.user_index, user), k)
    if out is not None:
        write_case_study(study, out)
        note(f"written to {out}")
    if as_json:
        emit(study.to_dict())
        return
    _show_case(study)


def _show_case(study: CaseStudy) -> None:
    facts = study.to_dict()
    history = facts["history"]
    rows: list[Any] = [(row["title"], row["users"], _group(row)) for row in history[:HISTORY]]
    title = f"user {study.user}, {len(history):,} items in the history"
    show(rows, "history", "users", "", title=title)
    if len(history) > HISTORY:
        say(f"and {len(history) - HISTORY:,} more", "dim")
    for name, listed in facts["lists"].items():
        rows = [
            (row["rank"], row["title"], row["users"], _group(row), Text(clean(row["why"]), "dim"))
            for row in listed
        ]
        share = f"{facts['tails'][name]} of {len(listed)} from the tail"
        title = f"{name}: {facts['about'][name]}; {share}"
        show(rows, "", "item", "users", "", "because of", title=title)
    say()
    for name, words in facts["settings"].items():
        say(Text.assemble((f"{name:<4}", "bold"), (clean(words), "dim")))
    say(
        "users: number of other users with the item; head: most popular 20% of the items",
        "dim",
    )


def _group(row: dict[str, Any]) -> Text:
    tail = row["group"] == "tail"
    return Text("◇ tail" if tail else "▲ head", "green" if tail else "yellow")
