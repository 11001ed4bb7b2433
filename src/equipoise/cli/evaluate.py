"""Commands that evaluate and compare models: `evaluate` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.cli.data import check_out, require_split
from equipoise.cli.framework import (
    Cluster,
    Json,
    declare,
    emit,
    legend,
    note,
    number,
    option,
    refuse_options,
    say,
    show,
    verdict_text,
    working,
)
from equipoise.cli.recommend import RulesFile
from equipoise.cli.settings import FitOptions, ModelOptions
from equipoise.errors import SettingError

if TYPE_CHECKING:
    from equipoise.data.split import Split
    from equipoise.evaluation.results import Result
    from equipoise.models import Recommender

app = typer.Typer()

GROUPS = ("all", "head", "tail", "unbiased")
BEYOND = {
    "coverage": "share of the catalogue that appears in at least one list",
    "gini": "inequality of exposure: 0 all items equally often, near 1 always the same few",
    "popularity": "mean number of training users of the listed items",
    "novelty": "mean self-information of the listed items in bits; higher for rare items",
    "lift": "how much more popular the lists are than the histories; 0 if equal",
}


@declare(app, "evaluate", "equipoise evaluate --model ease --l2 100 split")
def evaluate(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] [SPLIT]",
            help="Saved model, or a file of lists (user, item, rank or score), and saved split.",
        ),
    ],
    chosen: ModelOptions,
    options: FitOptions,
    k: Annotated[list[int] | None, option("List length; repeatable. [20]", "-k")] = None,
    part: Annotated[Literal["valid", "test"], option("Part to evaluate on.")] = "test",
    rules: RulesFile = None,
    dial: Annotated[float | None, option("Alpha of the popularity dial.", "--dial")] = None,
    save: Annotated[Path | None, option("Folder to save the result in.")] = None,
    bootstrap: Annotated[int, option("Resamples of the intervals; 0: none.")] = 1000,
    tuned_on_test: Annotated[
        bool, option("Mark the result: settings were tuned on this part.", "--tuned-on-test")
    ] = False,
    leave_one_out: Annotated[
        bool, option("Evaluate MODEL on its training users, without a split.", "--leave-one-out")
    ] = False,
    users: Annotated[int | None, option("Users for --leave-one-out. [2000]")] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Evaluate a saved model, or one fitted with --model, on a split.

    With --leave-one-out no split is needed: each training user is ranked by the model that a fit
    without that user would give.
    """
    from equipoise.evaluation.evaluator import evaluate as measure

    if save is not None:
        check_out(save)
    settings: dict[str, Any] = {"k": k or [20], "alpha": dial, "bootstrap": bootstrap}
    settings["threads"] = options.threads
    if leave_one_out:
        if part != "test" or rules is not None or cluster is not None or tuned_on_test:
            raise SettingError(
                "--leave-one-out cannot be combined with --part, --rules, --cluster or "
                "--tuned-on-test; leave them out"
            )
        settings |= {} if users is None else {"users": users}
        _report(*_leave_one_out(paths, chosen, options, settings), save, as_json)
        return
    if users is not None:
        raise SettingError("--users is for --leave-one-out; leave it out")
    split, model = _load_or_fit(paths, chosen, options)
    title = str(model) if isinstance(model, Path) else model.summary()
    if not isinstance(model, Path) and model.data_fingerprint_ != split.train.fingerprint:
        note(
            "warning: the model was not fitted on the train part of this split, so it may have "
            "seen the held-out items",
            "yellow",
        )
    held_out = split.test if part == "test" else split.valid
    if held_out is None:
        raise SettingError(
            f"{paths[-1]} has no valid part; use --part test or split with --valid 0.1"
        )
    with working(f"evaluating {title}") as progress:
        settings |= {"tuned_on_test": tuned_on_test, "progress": progress, "rules": rules}
        if cluster is not None:
            from equipoise.cluster import evaluate as evaluate_on

            source = model if len(paths) == 1 else paths[0]
            result = evaluate_on(source, held_out, client=cluster, **settings)
        else:
            name = model.stem if isinstance(model, Path) else None
            result = measure(model, held_out, train=split.train, name=name, **settings)
    _report(result, title, save, as_json)


def _leave_one_out(
    paths: list[str], chosen: ModelOptions, options: FitOptions, settings: dict[str, Any]
) -> tuple[Result, str]:
    """Return the result of a saved model on its training users, and the model in words."""
    from equipoise.evaluation.leave_one_out import leave_one_out
    from equipoise.models import load

    if len(paths) != 1 or chosen.is_used:
        raise SettingError("--leave-one-out takes only MODEL, without a split or --model")
    refuse_options(options, f"{paths[0]} is evaluated as it was saved", "threads")
    model = load(paths[0])
    with working(f"leaving users out of {model.label}") as progress:
        return leave_one_out(model, progress=progress, **settings), model.summary()


def _report(result: Result, title: str, save: Path | None, as_json: bool) -> None:
    """Save a result if `save` is set, and print it."""
    if save is not None:
        result.save(save)
        note(f"result saved in {save}")
    if as_json:
        emit(result.to_dict())
        return
    say(f"{title}{' (tuned on test)' if result.tuned_on_test else ''}", "bold")
    for cutoff in result.k:
        _show_result(result, cutoff)
    legend(
        {
            "recall": result.definitions["recall"],
            "ndcg": "like recall, but a hit at the top counts more: 1/log2(rank + 1)",
            "head, tail": "only the 20% of items with most training users, or only the other 80%",
            "unbiased": "rare items count more, as if all items were equally popular",
            **BEYOND,
        }
    )
    for sentence in result.notes:
        say(f"note: {sentence}", "yellow")


def _load_or_fit(
    paths: list[str], chosen: ModelOptions, options: FitOptions
) -> tuple[Split, Recommender | Path]:
    """Return the split, and a loaded or newly fitted model or the path of a file of lists."""
    if len(paths) == 1:
        if not chosen.is_used:
            raise SettingError("give MODEL and SPLIT, or --model and SPLIT")
        model = chosen.build()
        split = require_split(paths[0])
        options.fit(model, split.train, **chosen.fit_arguments(model))
        return split, model
    if len(paths) > 2:
        raise SettingError(f"give MODEL and SPLIT, got {len(paths)} paths")
    if chosen.is_used:
        raise SettingError("a saved model keeps its settings; leave out --model and its options")
    refuse_options(options, f"{paths[0]} is evaluated as it was saved", "threads")
    if Path(paths[0]).is_file():
        return require_split(paths[1]), Path(paths[0])
    from equipoise.models import load

    return require_split(paths[1]), load(paths[0])


def _show_result(result: Result, k: int) -> None:
    """Print the metrics at one list length."""
    from equipoise.evaluation.results import REPEATED

    kind = "events" if result.protocol == "session" else "users"
    where = f"{result.protocol} split, {result.part} part"
    if result.protocol.startswith("leave-"):
        where = f"{result.protocol} of the training data"
    title = f"{where}, {result.n_users:,} {kind}, lists of {k}"
    title += REPEATED.get(result.repeats, "")
    metrics = result.table.filter(k=k).select("metric", "slice", "value", "low", "high")
    rows = [row for row in metrics.rows() if row[0] in ("recall", "ndcg") and row[1] in GROUPS]
    show(rows, "metric", "items", "value", "95% interval", "", title=title)
    names = [name for name in BEYOND if f"{name}@{k}" in result]
    values = ", ".join(f"{name} {number(result[f'{name}@{k}'])}" for name in names)
    say(f"\nbeyond accuracy: {values}")


@declare(app, "compare", "equipoise compare result-ease result-dan --metric ndcg@20")
def compare(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULT", help="Folders of `evaluate --save`, the baseline first."),
    ],
    metric: Annotated[str, option("Metric with a value per user.")] = "ndcg@20",
    pairs: Annotated[bool, option("Test every pair.", "--all-pairs")] = False,
    as_json: Json = False,
) -> None:
    """Test per user whether results differ from the first, the baseline."""
    from equipoise.evaluation.comparison import compare as test
    from equipoise.evaluation.results import Result

    named: dict[str, Result] = {}
    for path in results:
        if str(path) in named:
            raise SettingError(f"{path} is given twice; name it once")
        named[str(path)] = Result.load(path)
    with working("comparing"):
        comparison = test(named, metric, pairs="all" if pairs else "first")
    frame = comparison.to_frame()
    if as_json:
        names = ("test", "correction", "fingerprint")
        facts = {name: getattr(comparison, name) for name in names}
        emit({"metric": metric, **facts, "rows": frame.to_dicts()})
        return
    say("\n".join(f"{path}: {result.label}" for path, result in named.items()))
    rows = []
    for row in frame.iter_rows(named=True):
        verdict = "better" if row["difference"] > 0 else "worse"
        if row["p_adjusted"] >= 0.05:
            verdict = "no clear difference"
        means = (row["model"], row["baseline"], row["mean"], row["baseline_mean"])
        change = (f"{row['difference']:+.4f}", f"{row['low']:+.4f} to {row['high']:+.4f}")
        rows.append((*means, *change, f"{row['p_adjusted']:.2g}", verdict_text(verdict)))
    heads = ("model", "against", metric, "before", "difference", "95% interval", "p", "verdict")
    show(rows, *heads)
    test_name = f"two-sided test paired by user, corrected for {frame.height} test(s)"
    legend({"p": f"probability of such a difference between equally good models; {test_name}"})
