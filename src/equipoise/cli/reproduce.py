"""Command `reproduce`: the paper's tables, ours beside the published numbers."""

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

app = typer.Typer()


@declare(app, "reproduce", "equipoise reproduce table3 --data data --paper paper")
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A table, such as table3, or all.")],
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
    """Run the paper's tables on the data that are there; finished rows are not run again.

    What cannot be run says so. Afterwards the overview in the paper folder's README is renewed.
    """
    from equipoise.reproduce import load_config, run_table
    from equipoise.reproduce.overview import write_overview

    names = [name]
    if name == "all":
        names = sorted(file.stem for file in paper.glob("*.toml"))
    if not names:
        raise DataError(f"{paper} has no configs; pass --paper with the folder that has")
    command = "equipoise " + " ".join(sys.argv[1:]) if len(sys.argv) > 1 else ""
    found = {}
    for each in names:
        config = load_config(paper / f"{each}.toml")
        out = paper / "results" / f"{each}.csv"
        found[each] = run_table(
            config, data, out, device=device, datasets=dataset, command=command, progress=note
        )
        if not as_json:
            say(config.title)
            show(_as_table(found[each]))
    write_overview(paper)
    if as_json:
        emit({each: frame.to_dicts() for each, frame in found.items()})


def _as_table(results: pl.DataFrame) -> Table:
    heads = ("data", "row", "column", "published", "ours", "difference", "status")
    out = table(*heads, left=(0, 1, 2, 6))
    for line in results.sort("dataset", "row", "column", maintain_order=True).to_dicts():
        numbers = [
            "" if line[key] is None else f"{line[key]:.4f}"
            for key in ("published", "ours", "difference")
        ]
        add(out, line["dataset"], line["row"], line["column"], *numbers, line["status"])
    return out
