"""Run the paper's tables and figures on the data that are present; finished rows are kept.

Results that cannot be computed are marked. Figures are drawn from their points where matplotlib
is installed; without it the points are written, and the same command draws them elsewhere.
Afterwards the overview in the README beside this file is rewritten.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import polars as pl

from equipoise.errors import DataError, EquipoiseError
from reproduce.config import load_config, names
from reproduce.figures import panels
from reproduce.overview import write_overview
from reproduce.runner import results_file, run

EXAMPLE = "example: python paper/run.py table3 --data data --device cuda --datasets Gowalla"
COLUMNS = ("dataset", "row", "column", "published", "ours", "difference", "status")
SHAPE = {
    "tbl_formatting": "NOTHING",
    "tbl_hide_column_data_types": True,
    "tbl_hide_dataframe_shape": True,
    "tbl_rows": -1,
    "tbl_cols": -1,
    "tbl_width_chars": 160,
    "float_precision": 4,
    "thousands_separator": True,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the tables and figures of the command line; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.strip(), epilog=EXAMPLE)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", help="table3, figure5, ... or all; see --list")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of data sets")
    parser.add_argument("--datasets", nargs="+", help="only these, such as Gowalla")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--list", action="store_true", help="list the tables and figures")
    parser.add_argument(
        "--overview", action="store_true", help="rewrite README.md from the results"
    )
    parser.add_argument(
        "--paper", type=Path, default=Path(__file__).parent, help="folder of configs and results"
    )
    args = parser.parse_args(arguments)
    if not (args.names or args.list or args.overview):
        parser.error("name a table or figure, or pass --list or --overview")
    try:
        known = names(args.paper)
        if not known:
            raise DataError(f"{args.paper} has no configs; pass --paper with the folder that has")
        if args.list:
            for name in known:
                print(f"{name:18}{load_config(args.paper / f'{name}.toml').title}")
            return 0
        try:
            for name in known if args.names == ["all"] else args.names:
                reproduce(name, args, "python paper/run.py " + " ".join(arguments))
        finally:
            write_overview(args.paper)
    except EquipoiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def reproduce(name: str, args: argparse.Namespace, command: str) -> None:
    """Run one table or figure and print its results; progress goes to standard error."""
    config = load_config(args.paper / f"{name}.toml")
    results = run(
        config,
        args.data,
        results_file(args.paper, config),
        device=args.device,
        datasets=args.datasets,
        command=command,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    missing = 0
    if config.columns:
        ran = results.filter(pl.col("ours").is_not_null())
        missing = results.height - ran.height
        shown = ran.select(*COLUMNS) if ran.height else "None of its data sets is at hand."
    else:
        shown = panels(config, results)
    with pl.Config(**SHAPE):
        print(config.title, shown, f"{missing} cells not run here\n" if missing else "", sep="\n")


if __name__ == "__main__":
    sys.exit(main())
