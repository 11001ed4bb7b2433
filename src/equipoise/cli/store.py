"""The command `store`: import, export and delete what the event store of the service holds."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.framework import CommandGroup, Json, declare, emit, note, option, say, show
from equipoise.cli.serve import Settings, StoreUrl, require_extra
from equipoise.errors import DataError, SettingError

if TYPE_CHECKING:
    from equipoise.serve.config import Config
    from equipoise.serve.records import Selection
    from equipoise.serve.store import Store

app = typer.Typer(
    cls=CommandGroup,
    help="Import, export and delete what the event store of the service holds.",
    epilog="Example: equipoise store",
    invoke_without_command=True,
    no_args_is_help=False,
)

NAMED_LINES = (".ndjson", ".jsonl")
LONGEST_LINE = 1_000_000  # bytes
User = Annotated[str, typer.Argument(metavar="USER", help="Id of the user.")]
Models = Annotated[
    list[Path] | None, option("Saved model that may know the user; repeatable.", "--model", "-m")
]


@contextmanager
def open_store(
    url: str | None, config: Config | None = None, *, create: bool = False
) -> Iterator[Store]:
    """Open the store of an option, else that of the settings or of the environment.

    An SQLite file that does not exist is an error, unless it may be created.
    """
    from equipoise.serve.store import Store

    known = None if config is None else config.store
    chosen = url or known or os.environ.get("EQUIPOISE_STORE", "sqlite:///equipoise.db")
    path = Path(chosen.removeprefix("sqlite:///"))
    if chosen.startswith("sqlite:///") and not path.is_file() and not create:
        raise DataError(f"there is no event store {path}; name another one with store=")
    with closing(Store(chosen)) as store:
        yield store


@app.callback()
def root(context: typer.Context, store: StoreUrl = None, as_json: Json = False) -> None:
    """Import, export and delete what the event store of the service holds.

    Without a command it prints the numbers of events, marks and lists.
    """
    if context.invoked_subcommand is not None:
        return
    require_extra()
    with open_store(store) as opened:
        counts = opened.counts()
    if as_json:
        emit(counts)
        return
    show(list(counts.items()))


@declare(app, "import", "equipoise store import old-events.ndjson")
def import_events(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines or Parquet.")],
    store: StoreUrl = None,
    config: Settings = None,
    as_json: Json = False,
) -> None:
    """Add the events of a file: JSON lines or Parquet, with the fields of POST /v1/events.

    A file that is imported twice counts once. Weights of event types are those of the settings.
    """
    require_extra()
    from equipoise.serve.transfer import Import, import_file, type_weight

    settings = _read_settings(config)
    if not source.is_file():
        raise DataError(f"no file {str(source)!r}; check the path")
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    tables = [_weights(settings)]
    with open_store(store, settings, create=True) as opened:
        job = Import(opened, lambda event_type: type_weight(event_type, tables), digest[:24])
        import_file(source, job, LONGEST_LINE)
    if as_json:
        emit(job.counts())
        return
    say(
        f"{job.rows:,} rows: {job.accepted:,} new events, {job.duplicates:,} known, "
        f"{job.seen:,} seen marks"
    )


def _read_settings(path: Path | None) -> Config | None:
    from equipoise.serve.config import Config

    return None if path is None else Config.read(path)


def _weights(settings: Config | None) -> Mapping[str, float]:
    from equipoise.serve.config import Config

    default: Mapping[str, float] = Config.model_fields["weights"].default
    return default if settings is None else settings.weights


@declare(app, "export", "equipoise store export events.parquet --since 2024-01-01")
def export_events(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="*.ndjson or *.parquet; - prints.")],
    store: StoreUrl = None,
    user: Annotated[str | None, option("Only events of this user.")] = None,
    item: Annotated[str | None, option("Only events on this item.")] = None,
    since: Annotated[str | None, option("Only events from this date or time on.")] = None,
    until: Annotated[str | None, option("Only events before this date or time.")] = None,
    as_json: Json = False,
) -> None:
    """Write the events of the store to a file that `import` and `equipoise fit` read."""
    require_extra()
    from equipoise.checks import moment
    from equipoise.serve.records import Selection

    first = None if since is None else moment("since", since)
    last = None if until is None else moment("until", until)
    chosen = Selection(user=user, item=item, since=first, until=last)
    with open_store(store) as opened:
        count = _write_events(opened, chosen, out)
    if as_json and str(out) != "-":
        emit({"path": str(out), "events": count})
    elif str(out) != "-":
        say(f"{count:,} events in {out}")


def _write_events(store: Store, chosen: Selection, out: Path) -> int:
    from equipoise.serve.records import all_events
    from equipoise.serve.transfer import event_lines, parquet_file

    count = 0

    def counted() -> Iterator[list[dict[str, Any]]]:
        nonlocal count
        for page in all_events(store, chosen):
            count += len(page)
            yield page

    if str(out) == "-":
        for lines in event_lines(counted()):
            sys.stdout.write(lines.decode())
    elif out.suffix == ".parquet":
        with parquet_file(counted()) as path:
            shutil.copyfile(path, out)
    elif out.suffix in NAMED_LINES:
        with out.open("wb") as file:
            file.writelines(event_lines(counted()))
    else:
        raise SettingError(f"the file must end in .ndjson, .jsonl or .parquet, got {out}")
    return count


@declare(app, "user", "equipoise store user u1 --model model")
def show_user(
    user: User, store: StoreUrl = None, model: Models = None, as_json: Json = False
) -> None:
    """Print everything that the store and models have about a user, as JSON."""
    require_extra()
    from equipoise.serve.records import personal_data, training_data
    from equipoise.serve.state import Served

    with open_store(store) as opened:
        stored = personal_data(opened, user)
    learned = {str(path): training_data(Served.open("", str(path)), user) for path in model or []}
    stored["training"] = {path: rows for path, rows in learned.items() if rows is not None}
    emit(stored)


@declare(app, "delete", "equipoise store delete order-17")
def delete_events(
    events: Annotated[list[str], typer.Argument(metavar="EVENT...", help="Ids of events.")],
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Delete single events by their ids. Models that have learned from them do not change."""
    require_extra()
    from equipoise.serve.records import delete_event

    with open_store(store) as opened:
        numbers = {event: opened.do(delete_event(event)) for event in events}
    missing = [event for event, number in numbers.items() if number is None]
    if as_json:
        emit({"deleted": len(numbers) - len(missing), "missing": missing})
        return
    say(f"{len(numbers) - len(missing):,} events deleted")
    if missing:
        note(f"not in the store: {', '.join(missing)}", "yellow")


@declare(app, "erase", "equipoise store erase u1 --model model")
def erase_user(
    user: User, store: StoreUrl = None, model: Models = None, as_json: Json = False
) -> None:
    """Delete every trace of a user from the store, and from the training data of models.

    The models are updated with all new events of the store and saved; a running service loads them
    with a reload (SIGHUP). Without --model, name none that has learned from the user.
    """
    require_extra()
    from equipoise.serve.folding import fold_saved
    from equipoise.serve.records import erase_now, scrub

    with open_store(store) as opened:
        removed = opened.do(opened.forget(user, erase=True))
        folded = [fold_saved(str(path), opened) for path in model or []]
        opened.do(erase_now(user))
        scrub(opened)
    updated = [entry["path"] for entry in folded if entry["changed"]]
    if as_json:
        emit({"user": user, "removed": removed, "updated": updated})
        return
    say(f"{removed:,} rows deleted; models updated: {', '.join(updated) or 'none'}")
