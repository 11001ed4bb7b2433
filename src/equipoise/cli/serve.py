"""Commands of the service: `serve`, `experiment` and `replay`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.checks import positive
from equipoise.cli.framework import (
    Json,
    Saved,
    declare,
    emit,
    note,
    option,
    say,
    show,
    working,
)
from equipoise.errors import DataError, MissingExtraError, SettingError

if TYPE_CHECKING:
    from equipoise.serve.config import Config

app = typer.Typer()

MANIFEST = "manifest.json"  # as in data/storage.py, which imports polars
MODELS = "Folder that `equipoise fit` wrote, or NAME=FOLDER; repeatable."
Settings = Annotated[Path | None, option("TOML file with all settings.", "--config")]
StoreUrl = Annotated[
    str | None, option("Event store: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.")
]


def _refuse_tenant(tenant: str | None) -> None:
    if tenant is not None:
        from equipoise.serve.config import NO_TENANTS

        raise SettingError(f"--tenant: {NO_TENANTS}")


NoTenant = Annotated[str | None, typer.Option("--tenant", hidden=True, callback=_refuse_tenant)]


@declare(app, "serve", "equipoise serve model --port 8000")
def serve(
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help=MODELS)] = None,
    config: Settings = None,
    store: StoreUrl = None,
    host: Annotated[str | None, option("Address to listen on. [127.0.0.1]")] = None,
    port: Annotated[int | None, option("Port; 0 picks a free one. [8000]")] = None,
    workers: Annotated[int | None, option("Number of worker processes. [1]")] = None,
    drain: Annotated[
        float | None, option("Seconds after SIGTERM in which /readyz answers 503. [2]")
    ] = None,
    refresh: Annotated[
        str | None, option("Interval of updates with new events, such as 1h.")
    ] = None,
    keep: Annotated[str | None, option("Delete events older than this, such as 90d.")] = None,
    access_log: Annotated[
        bool | None, option("Log a line per request.", "--access-log/--no-access-log")
    ] = None,
    open_page: Annotated[bool, option("Open the page in a browser.", "--open")] = False,
    demo: Annotated[
        bool, option("Serve two demo models of MovieLens 100K, plain and with DAN.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve recommendations over HTTP, from live events, with a page to try them on.

    Options override the environment (EQUIPOISE_STORE, ...), which overrides the TOML file.
    Without tokens only this machine may send requests.
    """
    require_extra()
    from equipoise.serve.config import Config
    from equipoise.serve.logs import write_lines
    from equipoise.serve.processes import serve as run

    if demo:
        if models or config:
            raise SettingError("--demo serves its own models: leave out MODEL and --config")
        models, folder = _demo_models()
        store = store or f"sqlite:///{folder / 'events.db'}"
    settings = Config.read(
        config,
        {
            "models": name_models(models or []),
            "store": store,
            "host": host,
            "port": port,
            "workers": workers,
            "drain": drain,
            "refresh": refresh,
            "keep": keep,
            "access_log": access_log,
        },
    )
    _check_folders(settings)
    write_lines(settings.log)

    def ready(address: str) -> None:
        if as_json:
            emit({"address": address, "workers": settings.workers, "process": os.getpid()})
        else:
            note(f"the page is at {address}/, the API at {address}/docs; Ctrl-C ends it")
        sys.stdout.flush()
        if open_page:
            import webbrowser

            webbrowser.open(f"{address}/")

    code = run(settings, ready)
    if code:
        raise typer.Exit(code)


@declare(app, "experiment", "equipoise experiment dial --store sqlite:///equipoise.db")
def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the experiment.")],
    store: StoreUrl = None,
    tenant: NoTenant = None,
    within: Annotated[str, option("Time after a list in which a click counts.")] = "1d",
    share: Annotated[
        list[str] | None,
        option("MODEL=SHARE of the users, if the service did not record it; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the models of an experiment by the clicks on their lists.

    Warns if the users do not match the shares, or if an arm is too small.
    """
    require_extra()
    from equipoise.checks import period
    from equipoise.serve.experiment import compare_clicks
    from equipoise.serve.store import Store

    url = store or os.environ.get("EQUIPOISE_STORE", "sqlite:///equipoise.db")
    with closing(Store(url)) as opened:
        shares = model_shares(share or [])
        result = compare_clicks(opened, name, period("within", within), shares)
    if as_json:
        emit(result)
        return
    rows = [
        (m["model"], m["users"], m["lists"], m["clicked"], m["rate"]) for m in result["models"]
    ]
    show(rows, "model", "users", "lists", "with a click", "rate")
    tests = [
        (
            f"{test['model']} against {test['baseline']}",
            f"{test['difference']:+.4f} [{test['low']:+.4f}, {test['high']:+.4f}]",
            f"{test['p_adjusted']:.2g}",
            f"{test['detectable']:.4f}",
        )
        for test in result["tests"]
    ]
    if tests:
        show(tests, "", "difference [95%]", "p", "detectable")
    for test in result["tests"]:
        say(f"{test['model']} against {test['baseline']}: {test['verdict']}")
    say(f"shares: {result['shares']['verdict']}")
    if result["switched_users"]:
        say(f"{result['switched_users']:,} users saw several models and are left out")
    note(result["how"])


@declare(app, "replay", "equipoise replay new-model --store sqlite:///equipoise.db")
def replay(
    model: Saved,
    store: StoreUrl = None,
    rules: Annotated[
        Path | None, option("TOML file of rules, instead of those of the requests.")
    ] = None,
    alpha: Annotated[
        float | None, option("Popularity dial, instead of the requested one.")
    ] = None,
    since: Annotated[str | None, option("Date or time of the first list.")] = None,
    within: Annotated[str, option("Time after a list in which a click counts.")] = "1d",
    as_json: Json = False,
) -> None:
    """Estimate the clicks on another model's lists, or by other rules, from logged lists.

    The service logs lists with the setting `explore`. The model must have been fitted on events
    before these lists. docs/operating.md explains how to read the estimates.
    """
    require_extra()
    from equipoise.checks import moment, period
    from equipoise.ranking.rules import Rules
    from equipoise.serve.replay import replay as estimate
    from equipoise.serve.state import Served
    from equipoise.serve.store import Store

    url = store or os.environ.get("EQUIPOISE_STORE", "sqlite:///equipoise.db")
    with closing(Store(url)) as opened, working("replaying lists") as report:
        result = estimate(
            opened,
            Served.open(model.name, str(model), opened),
            within=period("within", within),
            since=None if since is None else moment("since", since),
            rules=None if rules is None else Rules.load(rules),
            alpha=alpha,
            progress=report,
        )
    if as_json:
        emit(result)
        return
    say(
        f"{result['lists']:,} lists of {result['users']:,} users, {result['random_lists']:,} of "
        f"them random; {result['agreement']:.0%} of the places hold the items that were ranked"
    )
    ranking = result["ranking"]
    rows: list[tuple[Any, ...]]
    rows = [("the ranking that was served", interval_text(ranking, "value", "low", "high"), None)]
    for row in result["estimates"]:
        difference = interval_text(row, "difference", "difference_low", "difference_high", "+")
        rows.append((row["title"], interval_text(row, "value", "low", "high"), difference))
    show(rows, "", "clicks per list [95%]", "difference [95%]")
    say(result["verdict"])
    for text in result["notes"]:
        note(text, "yellow")


def interval_text(
    values: Mapping[str, float], middle: str, low: str, high: str, sign: str = ""
) -> str:
    """Return a value with its interval, such as "0.1200 [0.1000, 0.1400]"."""
    middle_text, low_text, high_text = (
        f"{values[name]:{sign}.4f}" for name in (middle, low, high)
    )
    return f"{middle_text} [{low_text}, {high_text}]"


def _check_folders(config: Config) -> None:
    """Refuse folders without a saved model."""
    from equipoise.data.storage import MANIFEST

    for name, folder in config.models.items():
        path = Path(folder)
        if not (path / MANIFEST).is_file():
            problem = "holds no saved model" if path.is_dir() else "is not a folder"
            raise DataError(
                f"{path} (model {name!r}) {problem}; write one with `equipoise fit DATA {path}`"
            )


def model_shares(texts: list[str]) -> dict[str, float] | None:
    """Return shares by model from MODEL=SHARE; None without any."""
    shares = {}
    for text in texts:
        name, _, share = text.rpartition("=")
        try:
            shares[name] = positive("share", float(share))
        except ValueError as error:
            raise SettingError(
                f"--share takes MODEL=SHARE, such as dan=0.5; got {text!r}"
            ) from error
    return shares or None


def _demo_models() -> tuple[list[str], Path]:
    """Fit the two models of the demo once, and return their folders by name and the folder."""
    from equipoise.cli.demo import DAN, DATA, PLAIN, demo_models
    from equipoise.data import datasets

    folder = datasets.cache_folder() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"dan": DAN, "plain": PLAIN}
    for name, title in paths.items():
        if not (folder / name / MANIFEST).exists():
            with working(f"fitting {title} to {DATA}"):
                data = datasets.load(DATA, min_rating=4)
                demo_models()[title].fit(data).save(folder / name)
    return [f"{name}={folder / name}" for name in paths], folder


def name_models(models: list[str]) -> dict[str, str] | None:
    """Return folders by model name: NAME=FOLDER, "default" for a single folder, or its name."""
    folders: dict[str, str] = {}
    for text in models:
        name, _, folder = text.rpartition("=")
        name = name or ("default" if len(models) == 1 else Path(folder).name.lower())
        if name in folders:
            raise SettingError(f"two models are named {name!r}; give them names: NAME=FOLDER")
        folders[name] = folder
    return folders or None


def require_extra() -> None:
    """Raise if packages that the service needs are not installed."""
    needed = (
        "fastapi",
        "pydantic_settings",
        "uvicorn",
        "uvloop",
        "httptools",
        "sqlalchemy",
        "prometheus_client",
    )
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"the service needs {', '.join(missing)}; "
            "install it with `pip install 'equipoise[serve]'`"
        )
