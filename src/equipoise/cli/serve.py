"""Commands of the service: `serve` and `experiment`."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.checks import positive
from equipoise.cli.framework import Json, declare, emit, note, option, say, show
from equipoise.data.storage import MANIFEST
from equipoise.errors import DataError, MissingExtraError, SettingError

if TYPE_CHECKING:
    from equipoise.serve.config import Config

app = typer.Typer()

MODELS = "Folder that `equipoise fit` wrote, or NAME=FOLDER; repeatable."
Settings = Annotated[Path | None, option("TOML file with all settings.", "--config")]
StoreUrl = Annotated[
    str | None, option("Event store: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.")
]


def _refuse_tenant(tenant: str | None) -> None:
    from equipoise.serve.config import NO_TENANTS

    if tenant is not None:
        raise SettingError(f"--tenant: {NO_TENANTS}")


NoTenant = Annotated[str | None, typer.Option("--tenant", hidden=True, callback=_refuse_tenant)]


@declare(app, "serve", "equipoise serve model --port 8000")
def serve(
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help=MODELS)] = None,
    config: Settings = None,
    store: StoreUrl = None,
    host: Annotated[str | None, option("Address to listen on; 127.0.0.1.")] = None,
    port: Annotated[int | None, option("Port; 8000. 0 takes a free one.")] = None,
    workers: Annotated[int | None, option("Processes that answer; 1.")] = None,
    drain: Annotated[
        float | None, option("Seconds between SIGTERM and the end, with /readyz at 503; 2.")
    ] = None,
    refresh: Annotated[
        str | None, option("Fold new events into the models this often: 1h.")
    ] = None,
    keep: Annotated[str | None, option("Events older than this leave the store: 90d.")] = None,
    access_log: Annotated[
        bool | None, option("A line for each request.", "--access-log/--no-access-log")
    ] = None,
    open_page: Annotated[bool, option("Open the page in a browser.", "--open")] = False,
    as_json: Json = False,
) -> None:
    """Answer over HTTP: recommendations from live events, and a page to try them on.

    Settings come from the TOML file, over them the environment (EQUIPOISE_STORE, ...), over that
    the options. Without tokens only this machine may ask.
    """
    require_extra()
    from equipoise.serve.logs import write_lines
    from equipoise.serve.processes import serve as run

    found = settings(
        config,
        models=named(models or []),
        store=store,
        host=host,
        port=port,
        workers=workers,
        drain=drain,
        refresh=refresh,
        keep=keep,
        access_log=access_log,
    )
    _check_folders(found)
    write_lines()

    def ready(address: str) -> None:
        if as_json:
            emit({"address": address, "workers": found.workers, "process": os.getpid()})
        else:
            note(f"the page is at {address}/, the API at {address}/docs; Ctrl-C ends it")
        sys.stdout.flush()
        if open_page:
            import webbrowser

            webbrowser.open(f"{address}/")

    code = run(found, ready)
    if code:
        raise typer.Exit(code)


@declare(app, "experiment", "equipoise experiment dial --store sqlite:///equipoise.db")
def experiment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the experiment.")],
    store: StoreUrl = None,
    tenant: NoTenant = None,
    within: Annotated[str, option("A click counts this long after its list.")] = "1d",
    share: Annotated[
        list[str] | None,
        option("MODEL=SHARE of the users, if the service did not record it; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the models of an experiment by the clicks on their lists.

    Tells where the users of the models do not fit the shares, and where an arm is too small.
    """
    require_extra()
    from equipoise.checks import period
    from equipoise.serve.experiment import compare_clicks
    from equipoise.serve.store import Store

    url = store or os.environ.get("EQUIPOISE_STORE", "sqlite:///equipoise.db")
    with closing(Store(url)) as held:
        shares = model_shares(share or [])
        found = compare_clicks(held, name, period("within", within), shares)
    if as_json:
        emit(found)
        return
    rows = [(m["model"], m["users"], m["lists"], m["clicked"], m["rate"]) for m in found["models"]]
    show(rows, "model", "users", "lists", "with a click", "rate")
    tests = [
        (
            f"{test['model']} against {test['baseline']}",
            f"{test['difference']:+.4f} [{test['low']:+.4f}, {test['high']:+.4f}]",
            f"{test['p_adjusted']:.2g}",
            f"{test['detectable']:.4f}",
        )
        for test in found["tests"]
    ]
    if tests:
        show(tests, "", "difference [95%]", "p", "detectable")
    for test in found["tests"]:
        say(f"{test['model']} against {test['baseline']}: {test['verdict']}")
    say(f"shares: {found['shares']['verdict']}")
    if found["switched_users"]:
        say(f"{found['switched_users']:,} users saw several models and are left out")
    note(found["how"])


def _check_folders(config: Config) -> None:
    """Refuse a folder that holds no saved model, by its path."""
    for name, folder in config.models.items():
        path = Path(folder)
        if not (path / MANIFEST).is_file():
            problem = "holds no saved model" if path.is_dir() else "is not a folder"
            raise DataError(
                f"{path} (model {name!r}) {problem}; write one with `equipoise fit DATA {path}`"
            )


def model_shares(texts: list[str]) -> dict[str, float] | None:
    """Return shares by model from MODEL=SHARE; None where there are none."""
    shares = {}
    for text in texts:
        name, _, share = text.rpartition("=")
        try:
            shares[name] = positive("share", float(share))
        except ValueError as error:
            raise SettingError(f"--share takes MODEL=SHARE, as dan=0.5; got {text!r}") from error
    return shares or None


def named(models: list[str]) -> dict[str, str] | None:
    """Return folders by name; a folder without one is the default model, or has its own name."""
    found: dict[str, str] = {}
    for text in models:
        name, _, folder = text.rpartition("=")
        name = name or ("default" if len(models) == 1 else Path(folder).name.lower())
        if name in found:
            raise SettingError(f"two models are named {name!r}; give them names: NAME=FOLDER")
        found[name] = folder
    return found or None


def settings(path: Path | None, **flags: Any) -> Config:
    """Return the settings of the service."""
    from equipoise.serve.config import Config

    return Config.read(path, flags)


def require_extra() -> None:
    """Refuse to go on where the packages of the service are not installed."""
    needed = ("fastapi", "uvicorn", "uvloop", "httptools", "sqlalchemy", "prometheus_client")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"the service needs {', '.join(missing)}; "
            "install it with `pip install 'equipoise[serve]'`"
        )
