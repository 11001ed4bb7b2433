"""Commands that judge models: `evaluate` and `compare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.data import check_out, print_legend, require_split
from equipoise.cli.framework import Json, declare
from equipoise.cli.output import add, emit, note, say, show, table, working
from equipoise.cli.settings import Recipe, Run, describe
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.models import Recommender
    from equipoise.results import Result
    from equipoise.split import Part, Split

app = typer.Typer()

SLICES = ("all", "head", "tail", "unbiased")


BEYOND = {
    "coverage": "share of the catalogue that stands in at least one list",
    "gini": "how unevenly items are shown: 0 all alike, near 1 always the same few",
    "popularity": "mean number of training users of the listed items",
    "novelty": "mean surprise of the listed items in bits; a rare item has more",
    "lift": "how much more popular the lists are than the histories; 0 is equal",
}


class PartName(StrEnum):
    """Parts of a split."""

    valid = "valid"
    test = "test"


@declare(app, "evaluate", "equipoise evaluate --model ease --l2 100 split")
def evaluate(
    paths: Annotated[
        list[str], typer.Argument(metavar="[MODEL] SPLIT", help="Saved model and saved split.")
    ],
    recipe: Recipe,
    run: Run,
    k: Annotated[list[int] | None, typer.Option("-k", help="A cut-off; repeatable. [20]")] = None,
    part: Annotated[PartName, typer.Option(help="Which part to judge on.")] = PartName.test,
    save: Annotated[Path | None, typer.Option(help="Folder to save the result in.")] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples for the intervals; 0: none.")] = 1000,
    tuned_on_test: Annotated[
        bool, typer.Option("--tuned-on-test", help="Label: settings were chosen on this part.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Judge a saved model on a split, or fit one in place with --model and judge it."""
    from equipoise.evaluation import evaluate as judge

    if save is not None:
        check_out(save)
    split, model = _judged(paths, recipe, run)
    if model.data_fingerprint_ != split.train.fingerprint:
        note(
            "warning: the model was not fitted on the train part of this split, so it may have "
            "seen what it is asked to find",
            "yellow",
        )
    chosen = _part(split, part, paths[-1])
    with working(f"evaluating {describe(model)}") as progress:
        result = judge(
            model,
            chosen,
            k=k or [20],
            bootstrap=bootstrap,
            threads=run.threads,
            tuned_on_test=tuned_on_test,
            progress=progress,
        )
    if save is not None:
        result.save(save)
        note(f"result saved in {save}")
    if as_json:
        emit(result.to_dict())
        return
    say(f"{describe(model)}{' (tuned on test)' if tuned_on_test else ''}", "bold")
    for cutoff in result.k:
        print_result(result, cutoff)
    print_words(result)


def _judged(paths: list[str], recipe: Recipe, run: Run) -> tuple[Split, Recommender]:
    """Return the split and a fitted model: the saved one, or one fitted on its train part."""
    if len(paths) == 1:
        if not recipe.given:
            raise SettingError("give MODEL and SPLIT, or --model and SPLIT")
        model = recipe.build()
        split = require_split(paths[0])
        return split, run.fit(model, split.train)
    if len(paths) > 2:
        raise SettingError(f"give MODEL and SPLIT, got {len(paths)} paths")
    if recipe.given:
        raise SettingError("a saved model has its settings; leave out --model and its options")
    from equipoise.models import load

    return require_split(paths[1]), load(paths[0])


def _part(split: Split, name: PartName, path: str) -> Part:
    if name == "test":
        return split.test
    if split.valid is None:
        raise SettingError(f"{path} has no valid part; use --part test or split with --valid 0.1")
    return split.valid


def print_result(result: Result, k: int) -> None:
    """Print accuracy by group of items and what lies beyond accuracy, at one cut-off."""
    rows = "events" if result.protocol == "session" else "users"
    title = f"{result.protocol} split, {result.part} part, {result.n_users:,} {rows}, lists of {k}"
    out = table("items", "recall", "95% interval", "ndcg", "95% interval")
    cells = {
        (row["metric"], row["slice"]): row
        for row in result.table.iter_rows(named=True)
        if row["k"] == k
    }
    for part in SLICES:
        pair = [cells.get((metric, part)) for metric in ("recall", "ndcg")]
        add(out, part, *(text for cell in pair for text in _cell(cell)))
    show(out, title)
    beyond = {name: result[f"{name}@{k}"] for name in BEYOND if f"{name}@{k}" in result}
    say("\nbeyond accuracy: " + ", ".join(f"{n} {_number(v)}" for n, v in beyond.items()))


def print_words(result: Result) -> None:
    """Print what the words of the tables mean."""
    words = {
        "recall": result.definitions["recall"],
        "ndcg": "like recall, but a hit counts more the higher it stands: 1/log2(rank + 1)",
        "head, tail": "only the 20% of items with most training users, or only the rest",
        "unbiased": "a rare item counts more, as if all items were equally popular",
        **BEYOND,
    }
    print_legend(tuple(words.items()))
    for sentence in result.notes:
        say(f"note: {sentence}", "yellow")


def _cell(row: dict[str, Any] | None) -> tuple[str, str]:
    if row is None or row["value"] is None:
        return "-", ""
    bounds = "" if row["low"] is None else f"{row['low']:.4f} to {row['high']:.4f}"
    return f"{row['value']:.4f}", bounds


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


@declare(app, "compare", "equipoise compare result-ease result-dan --metric ndcg@20")
def compare(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULT", help="Folders of `evaluate --save`, the baseline first."),
    ],
    metric: Annotated[str, typer.Option(help="Any with a value per user.")] = "ndcg@20",
    pairs: Annotated[bool, typer.Option("--all-pairs", help="Test every pair.")] = False,
    as_json: Json = False,
) -> None:
    """Test user by user whether models differ; the first result is the baseline."""
    from equipoise.comparison import compare as test
    from equipoise.results import Result

    named: dict[str, Result] = {}
    for path in results:
        if str(path) in named:
            raise SettingError(f"{path} is given twice")
        named[str(path)] = Result.load(path)
    with working("comparing"):
        found = test(named, metric, pairs="all" if pairs else "first")
    if as_json:
        facts = {"metric": metric, "test": found.test, "correction": found.correction}
        emit({**facts, "fingerprint": found.fingerprint, "rows": found.to_frame().to_dicts()})
        return
    say("\n".join(f"{path}: {result.label}" for path, result in named.items()))
    heads = ("model", "against", metric, "before", "difference", "95% interval", "p", "verdict")
    out = table(*heads, left=(0, 1, 7))
    for row in found.to_frame().iter_rows(named=True):
        means = [f"{row[name]:.4f}" for name in ("mean", "baseline_mean")]
        change = [f"{row['difference']:+.4f}", f"{row['low']:+.4f} to {row['high']:+.4f}"]
        verdict = _verdict(row)
        add(
            out,
            row["model"],
            row["baseline"],
            *means,
            *change,
            f"{row['p_adjusted']:.2g}",
            verdict,
        )
    show(out)
    print_legend(
        (
            (
                "p",
                "chance of so large a difference if the models were equally good, corrected for "
                f"{found.to_frame().height} test(s); two-sided, paired by user",
            ),
        )
    )


def _verdict(row: dict[str, Any]) -> str:
    if row["p_adjusted"] >= 0.05:
        return "no clear difference"
    return "better" if row["difference"] > 0 else "worse"
