"""Command `reproduce`: the paper's tables and figures, ours beside the published numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.framework import Json, declare
from equipoise.cli.output import add, emit, note, say, show, table
from equipoise.errors import DataError

if TYPE_CHECKING:
    import polars as pl
    from rich.table import Table

    from equipoise.reproduce.config import Config

app = typer.Typer()
NAMES = (
    "table1 to table8, figure1 to figure9, companion_strong, companion_weak, or all: the name of "
    "a config in the paper folder."
)


@declare(app, "reproduce", "equipoise reproduce table3 --data data --paper paper")
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAMES)],
    data: Annotated[
        Path, typer.Option(help="Folder with one folder per data set (gowalla, yelp2018, ...).")
    ] = Path("data"),
    paper: Annotated[
        Path, typer.Option(help="Folder with the configs; results go to its folder results.")
    ] = Path("paper"),
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only this data set; can be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Run the paper's tables and figures on the data that are there; what is done stays.

    What cannot be run says so. Figures are drawn from their points where matplotlib is installed;
    without it the points are written, and the same command draws them elsewhere. Afterwards the
    overview in the paper folder's README is renewed.
    """
    from equipoise.reproduce import load_config
    from equipoise.reproduce.config import names as known
    from equipoise.reproduce.kinds import kind_of, results_file, runner
    from equipoise.reproduce.overview import write_overview

    names = known(paper) if name == "all" else [name]
    if not names:
        raise DataError(f"{paper} has no configs; pass --paper with the folder that has")
    command = "equipoise " + " ".join(sys.argv[1:]) if len(sys.argv) > 1 else ""
    found = {}
    for each in names:
        config = load_config(paper / f"{each}.toml")
        found[each] = runner(config)(
            config,
            data,
            results_file(paper, config),
            device=device,
            datasets=dataset,
            command=command,
            progress=note,
        )
        write_overview(paper)  # each time: a run of all may be cut short
        if not as_json:
            say(config.title)
            cells = kind_of(config).cells
            show(_as_table(found[each]) if cells else _as_panels(config, found[each]))
    if as_json:
        emit({each: frame.to_dicts() for each, frame in found.items()})


def _as_table(results: pl.DataFrame) -> Table:
    from equipoise.reproduce.overview import in_words, was_run

    heads = ("data", "row", "column", "published", "ours", "difference", "status")
    out = table(*heads, left=(0, 1, 2, 6))
    for name in results["dataset"].unique(maintain_order=True):
        if not was_run(results, name):
            add(out, name, "", "", "", "", "", "not run here")
            results = results.filter(results["dataset"] != name)
    for line in results.sort("dataset", "row", "column", maintain_order=True).to_dicts():
        numbers = [
            "" if line[key] is None else in_words(line[key])
            for key in ("published", "ours", "difference")
        ]
        add(out, line["dataset"], line["row"], line["column"], *numbers, line["status"])
    return out


def _as_panels(config: Config, found: pl.DataFrame) -> Table:
    from equipoise.reproduce.figures import panels

    out = table("data", "curve", "points", "of", "status", left=(0, 1, 4))
    for line in panels(config, found).to_dicts():
        add(out, *line.values())
    return out
