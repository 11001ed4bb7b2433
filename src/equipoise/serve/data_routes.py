"""The routes for the data in the store: import, export, single events, and all about one user."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, StreamingResponse
from polars.exceptions import PolarsError
from pydantic_core import to_json
from starlette.background import BackgroundTask

from equipoise.errors import UnknownIdError
from equipoise.serve import schemas
from equipoise.serve.answers import Answers
from equipoise.serve.guard import NDJSON, PARQUET
from equipoise.serve.records import (
    Selection,
    all_events,
    delete_event,
    personal_data,
    read_events,
    training_data,
)
from equipoise.serve.security import Refused
from equipoise.serve.state import State
from equipoise.serve.telemetry import Telemetry
from equipoise.serve.transfer import (
    AT_ONCE,
    Import,
    ItemImport,
    LineSplitter,
    event_lines,
    import_parquet,
    item_name,
    line_name,
    parquet_file,
    to_lines,
)

IN_MEMORY = 1 << 20  # bytes of a Parquet file before it goes to the folder for temporary files
ID_PATTERN = r"^[^\x00]+$"
IdText = Annotated[str | None, Query(min_length=1, max_length=schemas.LONGEST, pattern=ID_PATTERN)]
Moment = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False)]
IMPORT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            NDJSON: {"schema": {"type": "string", "description": "An event per line."}},
            PARQUET: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
LINES = {NDJSON: {"schema": {"type": "string"}}}
TABLE = {PARQUET: {"schema": {"type": "string", "format": "binary"}}}
LINES_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": LINES, "description": "JSON lines."}
}
EVENTS_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": LINES | TABLE, "description": "JSON lines, or a Parquet file."}
}
ITEMS_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            NDJSON: {"schema": {"type": "string", "description": "An item per line."}},
        },
    }
}


def selection(
    user: IdText = None,
    item: IdText = None,
    type: Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$")] = None,
    list_id: IdText = None,
    since: Moment = None,
    until: Moment = None,
) -> Selection:
    """Return the selection that a query describes."""
    return Selection(user, item, type, list_id, since, until)


Selected = Annotated[Selection, Depends(selection)]


def add_data_routes(app: FastAPI, state: State, telemetry: Telemetry, answers: Answers) -> None:
    """Add the routes to an application."""
    store, limits = state.store, state.config.limits

    @app.get("/v1/events", response_model=schemas.EventPage, tags=["events"])
    async def list_events(
        chosen: Selected,
        after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Return stored events in the order of their arrival, page by page."""
        page = await run_in_threadpool(read_events, store, chosen, after, limit)
        following = page[-1]["number"] if len(page) == limit else None
        return _json({"events": page, "next": following})

    @app.delete("/v1/events/{event:path}", response_model=schemas.DeletedEvent, tags=["events"])
    async def remove_event(
        event: Annotated[str, Path(min_length=1, max_length=schemas.LONGEST, pattern=ID_PATTERN)],
    ) -> Response:
        """Delete an event; models that have learned from it keep what they learned."""
        number = await run_in_threadpool(store.do, delete_event(event))
        if number is None:
            raise UnknownIdError(f"the store has no event {event!r}")
        models = [name for name, served in state.models.items() if served.event >= number]
        return _json({"id": event, "models": models})

    @app.post(
        "/v1/events:import",
        response_model=schemas.Imported,
        tags=["events"],
        openapi_extra=IMPORT_BODY,
    )
    async def import_events(
        request: Request,
        batch: Annotated[
            str | None, Query(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
        ] = None,
    ) -> Response:
        """Take events as JSON lines or Parquet; give `batch` so that a repetition is harmless."""
        name = batch or secrets.token_hex(12)
        job = Import(store, answers.type_weight, name, answers.check_announced)
        kind = request.headers.get("content-type", NDJSON).split(";")[0].strip().lower()
        if kind == PARQUET:
            await _import_parquet(request, job)
        else:
            await _take_lines(request, job.take, line_name, limits.body)
        telemetry.events.labels("event").inc(job.accepted)
        telemetry.events.labels("seen").inc(job.seen)
        return _json(job.counts())

    @app.post(
        "/v1/items",
        response_model=schemas.DescribedItems,
        tags=["items"],
        openapi_extra=ITEMS_BODY,
    )
    async def describe_items(request: Request) -> Response:
        """Replace the attributes of many items; a line of JSON has `item` and its attributes."""
        job = ItemImport(store)
        try:
            await _take_lines(request, job.take, item_name, limits.body)
        finally:
            if job.rows:
                await run_in_threadpool(partial(state.renew_attributes, at_once=True))
        return _json({"items": job.rows})

    @app.get(
        "/v1/export/events", responses=EVENTS_ANSWER, response_class=Response, tags=["events"]
    )
    async def export_events(
        chosen: Selected,
        format: Annotated[str, Query(pattern=r"^(ndjson|parquet)$")] = "ndjson",
    ) -> Response:
        """Return all selected events as JSON lines or Parquet, as an import takes them."""
        pages = all_events(store, chosen)
        first = await run_in_threadpool(next, pages, None)  # an error is answered as one
        every_page = chain([] if first is None else [first], pages)
        if format == "ndjson":
            return StreamingResponse(event_lines(every_page), media_type=NDJSON)
        stack = contextlib.ExitStack()
        with _room():
            path = await run_in_threadpool(stack.enter_context, parquet_file(every_page))
        return FileResponse(path, media_type=PARQUET, background=BackgroundTask(stack.close))

    @app.get("/v1/export/items", responses=LINES_ANSWER, response_class=Response, tags=["items"])
    async def export_items() -> Response:
        """Return the attributes of all items that have any, as JSON lines."""
        stored = await run_in_threadpool(store.all_attributes)
        rows = ({"item": item, **attributes} for item, attributes in stored.items())
        return Response(await run_in_threadpool(to_lines, rows), media_type=NDJSON)

    @app.get("/v1/export/user", response_model=schemas.PersonalData, tags=["users"])
    async def export_user(
        user: Annotated[str, Query(min_length=1, max_length=schemas.LONGEST, pattern=ID_PATTERN)],
    ) -> Response:
        """Return everything that is stored about a user, and what the models have learned."""
        stored = await run_in_threadpool(personal_data, store, user)
        learned = {name: training_data(served, user) for name, served in state.models.items()}
        stored["training"] = {name: rows for name, rows in learned.items() if rows is not None}
        return _json(stored)


def _json(value: Any) -> Response:
    return Response(to_json(value, inf_nan_mode="null"), media_type="application/json")


async def _take_lines(
    request: Request,
    take: Callable[[list[Any], Callable[[int], str]], None],
    name: Callable[[int], str],
    longest: int,
) -> None:
    """Take the JSON lines of a request part by part."""
    splitter = LineSplitter(longest)
    waiting: list[Any] = []
    async for chunk in request.stream():
        waiting += splitter.feed(chunk)
        while len(waiting) >= AT_ONCE:
            await run_in_threadpool(take, waiting[:AT_ONCE], name)
            del waiting[:AT_ONCE]
    waiting += splitter.feed(b"", last=True)
    if waiting:
        await run_in_threadpool(take, waiting, name)


async def _import_parquet(request: Request, job: Import) -> None:
    with _room(), tempfile.SpooledTemporaryFile(IN_MEMORY) as file:
        async for chunk in request.stream():
            await run_in_threadpool(file.write, chunk)
        file.seek(0)
        await run_in_threadpool(import_parquet, file, job)


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """Refuse a request for which the folder for temporary files has no room."""
    try:
        yield
    except (OSError, PolarsError) as error:
        if isinstance(error, OSError) and type(error).__module__.startswith("equipoise"):
            raise  # the store does not answer
        raise Refused(
            507, "no-room", "the service has no room for temporary files; tell its operator"
        ) from error
