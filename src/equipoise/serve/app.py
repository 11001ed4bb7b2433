"""The HTTP routes of the service; `answers` computes what they return."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import Route

import equipoise
from equipoise.errors import EquipoiseError, SettingError
from equipoise.serve import drift, schemas
from equipoise.serve.answers import Answers, Budget, check_size
from equipoise.serve.config import Config
from equipoise.serve.data_routes import add_data_routes
from equipoise.serve.drift import DriftMetrics
from equipoise.serve.experiment import RunningComparison
from equipoise.serve.guard import Guard, Receive, Scope, Send, as_refused, problem, send_json
from equipoise.serve.records import ERASE_AFTER, erase_forgotten
from equipoise.serve.security import Refused
from equipoise.serve.state import State
from equipoise.serve.store import NO_EVENTS, Store, StoreError
from equipoise.serve.telemetry import SAMPLE_PAUSE, Telemetry
from equipoise.serve.watchdog import LoopWatchdog

logger = logging.getLogger("equipoise.serve")

PAGE = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "operate.js": "text/javascript; charset=utf-8",
    "elements.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "docs.js": "text/javascript; charset=utf-8",
}
DESCRIPTION = """\
Recommendations of linear models from live histories. Requests take ids as text or integers; `7`
and `"7"` are the same. Answers give ids as text; `item_ids` and `user_ids` say what they are in
the data of the model. Errors are problem details (RFC 9457).
"""
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
    for status, text in {
        400: "The request cannot be read.",
        401: "A token is missing or unknown.",
        403: "The role of the token does not allow this.",
        404: "An id or a model that is not known.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The body has another media type than the route takes.",
        422: "A field is missing, unknown or out of its range.",
        429: "Too many requests.",
        503: "The event store or the worker is not available, or the service is stopping.",
        507: "There is no room for temporary files.",
    }.items()
}
Answer = Callable[[Any], Awaitable[bytes]]  # from a validated body to JSON
IdPath = Annotated[str, Path(min_length=1, max_length=schemas.LONGEST, pattern=r"^[^\x00]+$")]
ModelName = Annotated[str | None, Query(max_length=64)]
AlphaQuery = Annotated[float | None, Query(ge=-2, le=2, allow_inf_nan=False)]
K = Annotated[int, Query(ge=1, le=schemas.DEEPEST)]
Search = Annotated[str, Query(max_length=schemas.LONGEST)]
# requests that are answered without a task, unless they have to wait
AT_ONCE = frozenset({("POST", "/v1/recommend")})
RENEWAL_WAIT = 1.0  # seconds; then a list is made with the attributes and trend that are known
TRENDS_WAIT = 5.0  # seconds between two looks at new events without requests
# seconds that a request has waited for the store
waited: ContextVar[float] = ContextVar("waited", default=0.0)


def create(config: Config) -> Any:
    """Return the ASGI application of a worker, with its store open and its models loaded."""
    telemetry = Telemetry(logs_requests=config.access_log)
    store = Store(config.store, config.limits.timeout)
    store.check()
    state = State(config, store)
    app = _application(state, telemetry)
    answers, shortcuts = Answers(state, telemetry), Shortcuts(app, telemetry)
    _add_api_routes(app, state, telemetry, answers, shortcuts)
    add_data_routes(app, state, telemetry, answers)
    _add_operation_routes(app, state, telemetry)
    _add_page_routes(app)
    _match_exactly(app)
    inner: Any = shortcuts
    if config.cors:
        options: dict[str, Any] = {"allow_methods": ["GET", "POST", "PUT", "DELETE"]}
        options["allow_headers"] = ["authorization", "content-type", "x-request-id"]
        inner = CORSMiddleware(inner, allow_origins=config.cors, **options)
    guarded = Guard(inner, config, telemetry)
    guarded.state, guarded.routes = state, app  # type: ignore[attr-defined]
    if not config.traces:
        guarded.at_once = AT_ONCE
        return guarded
    from equipoise.serve import tracing

    return tracing.Traced(guarded, tracing.make_provider())


def _application(state: State, telemetry: Telemetry) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        jobs = (_expire, _erase_forgotten, _follow_trends)
        tasks = [asyncio.create_task(work(state)) for work in jobs]
        tasks.append(asyncio.create_task(_follow_models(state, telemetry)))
        tasks.append(asyncio.create_task(_remember_numbers(state, telemetry)))
        tasks.append(asyncio.create_task(_measure_drift(state, DriftMetrics(telemetry))))
        hung = state.config.hung_seconds
        watchdog = LoopWatchdog(hung) if hung else None
        yield
        if watchdog is not None:
            watchdog.stop()
        for task in tasks:
            task.cancel()
        telemetry.settle()
        telemetry.write_lines()
        await run_in_threadpool(state.store.close)

    app = FastAPI(
        title="equipoise",
        version=equipoise.__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERRORS,
    )
    app.openapi = lambda: _description(app)  # type: ignore[method-assign]

    @app.exception_handler(EquipoiseError)
    @app.exception_handler(HTTPException)
    @app.exception_handler(RequestValidationError)
    @app.exception_handler(Exception)
    async def refuse(request: Request, error: Exception) -> Response:
        refused = as_refused(error)
        body = to_json(_problem(error, refused, request.scope, telemetry))
        return Response(body, refused.status_code, refused.headers, "application/problem+json")

    return app


class Shortcuts:
    """Answers the most frequent requests without the layers of FastAPI, and passes on the others.

    The routes of FastAPI describe these requests and remain their definition: a shortcut validates
    the same body and calls the same function.
    """

    def __init__(self, app: FastAPI, telemetry: Telemetry) -> None:
        self._app, self._telemetry = app, telemetry
        self._answers: dict[tuple[str, str], tuple[Any, type[BaseModel], Answer]] = {}

    def add(self, path: str, body: type[BaseModel], answer: Answer) -> None:
        """Answer POST requests to the last route that was added, which has this path."""
        route = self._app.routes[-1]
        assert isinstance(route, Route)
        assert route.path == path
        self._answers["POST", path] = route, body, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        shortcut = None
        if scope["type"] == "http":
            shortcut = self._answers.get((scope["method"], scope["path"]))
        if shortcut is None:
            await self._app(scope, receive, send)
            return
        scope["route"], model, answer = shortcut  # metrics are counted by the path of the route
        call = scope["state"]["call"]
        is_alone = send == call.send  # no other middleware adds to the answer
        try:
            body = call.take_body() if is_alone else None
            if body is None:
                body = await _read_body(receive)
            content = await answer(model.model_validate_json(body))
        except Exception as error:
            refused = as_refused(error)
            details = to_json(_problem(error, refused, scope, self._telemetry))
            headers = [(k.encode(), v.encode()) for k, v in (refused.headers or {}).items()]
            await send_json(send, details, refused.status_code, headers)
        else:
            if not is_alone or not call.answer(content):
                await send_json(send, content)


async def _read_body(receive: Receive) -> bytes:
    message = await receive()
    parts = [message.get("body", b"")]
    while message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    if message["type"] == "http.disconnect":
        raise Refused(400, "bad-request", "the client went away")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _problem(
    error: Exception, refused: Refused, scope: Scope, telemetry: Telemetry
) -> dict[str, Any]:
    """Return the problem details of an error; count and log it."""
    request_id = scope["state"]["request"]
    if refused.status_code == 500:
        logger.error("request failed", exc_info=error, extra={"fields": {"request": request_id}})
    if isinstance(error, StoreError):
        telemetry.store_errors.inc()
    return problem(refused.status_code, refused.kind, str(refused.detail), request_id)


def _description(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        description = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        components = description.setdefault("components", {})
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        components["schemas"]["Problem"] = schemas.Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(name, None)
        description["security"] = [{}, {"token": []}]
        app.openapi_schema = description
    return app.openapi_schema


def _match_exactly(app: FastAPI) -> None:
    """Let a route match its exact path, with any id in it, also one with line breaks.

    By default `$` also matches before a final line break, and `.` matches no line break: a path
    would mean one thing to the check of roles and another one here.
    """
    for route in app.routes:
        assert isinstance(route, Route)
        pattern = route.path_regex.pattern.removesuffix("$") + r"\Z"
        route.path_regex = re.compile(pattern, re.DOTALL)


def _encode(value: Any) -> bytes:
    # attributes may contain NaN and infinity, which JSON does not have
    return value if isinstance(value, bytes) else to_json(value, inf_nan_mode="null")


def _json(value: Any) -> Response:
    return Response(_encode(value), media_type="application/json")


async def _within(seconds: float, work: Awaitable[Any]) -> Any:
    """Wait for the store at most this long, including the earlier waits of the request.

    The waiting thread goes on until the store's own timeout.
    """
    if asyncio.current_task() is None:
        await asyncio.sleep(0)  # a request that is answered at once gets a task here
    start = time.monotonic()
    try:
        async with asyncio.timeout(max(0.0, seconds - waited.get())):
            return await work
    except TimeoutError:
        logger.warning("the event store did not answer within %g s", seconds)
        raise StoreError(
            "the event store does not answer in time; try again, events with the same ids"
        ) from None
    finally:
        waited.set(waited.get() + time.monotonic() - start)


async def _read(store: Store, seconds: float, work: Callable[..., Any], *arguments: Any) -> Any:
    """Read from the store in another thread."""
    if store.is_local:
        return await run_in_threadpool(work, *arguments)
    return await _within(seconds, asyncio.wrap_future(store.later(work, *arguments)))


def _add_api_routes(
    app: FastAPI, state: State, telemetry: Telemetry, answers: Answers, shortcuts: Shortcuts
) -> None:
    store, limits = state.store, state.config.limits
    timeout = limits.timeout
    threads = max(1, (os.cpu_count() or 1) // state.config.workers - 1)
    long_requests = ThreadPoolExecutor(threads, "long-request")

    async def compute(work: Callable[..., Any], *arguments: Any) -> Any:
        """Compute an answer that may take long; few at a time, so that short ones go on."""
        return await asyncio.get_running_loop().run_in_executor(long_requests, work, *arguments)

    async def read(work: Callable[..., Any], *arguments: Any, seconds: float = timeout) -> Any:
        """Read from the store; a file answers faster than a thread starts."""
        return (
            work(*arguments) if store.is_local else await _read(store, seconds, work, *arguments)
        )

    async def renew_attributes() -> None:
        """Take over the attributes that other workers have changed."""
        if state.attributes_are_old():
            with suppress(StoreError):  # go on with the known ones
                await read(state.renew_attributes, seconds=min(timeout / 4, RENEWAL_WAIT))

    async def renew_trends() -> None:
        """Count the events that all workers have accepted."""
        if state.trends_are_old():
            with suppress(StoreError):  # go on with the trend as it is
                await read(state.renew_trends, seconds=min(timeout / 4, RENEWAL_WAIT))

    async def write(work: Any) -> Any:
        return await _within(timeout, asyncio.wrap_future(store.submit(work)))

    async def make_list(query: schemas.Recommend) -> bytes:
        if state.attributes_are_old():
            await renew_attributes()
        if state.trends_are_old():
            await renew_trends()
        if query.user is None:
            live = NO_EVENTS
        elif store.is_local:
            live = store.live(query.user)
        else:
            live = await read(store.live, query.user)
        plan = answers.plan(query, live)
        answer: bytes
        if plan.is_long:
            answer, mark = await compute(answers.recommend, plan)
        else:
            answer, mark = answers.recommend(plan)
        if mark is not None:
            await write(mark)
        return answer

    @app.post("/v1/recommend", response_model=schemas.Recommended, tags=["lists"])
    async def recommend(body: schemas.Recommend) -> Response:
        """Return the best items for a user, a history or a session."""
        return _json(await make_list(body))

    shortcuts.add("/v1/recommend", schemas.Recommend, make_list)

    @app.get("/v1/recommend/{user:path}", response_model=schemas.Recommended, tags=["lists"])
    async def recommend_user(
        user: IdPath,
        k: K = 20,
        offset: Annotated[int, Query(ge=0, le=schemas.DEEPEST)] = 0,
        alpha: AlphaQuery = None,
        model: ModelName = None,
        explain: Annotated[int, Query(ge=0, le=20)] = 0,
    ) -> Response:
        """Return the best items for a user."""
        options: dict[str, Any] = {"k": k, "offset": offset, "alpha": alpha, "explain": explain}
        return _json(await make_list(schemas.Recommend(user=user, model=model, **options)))

    @app.post("/v1/recommend:batch", response_model=schemas.BatchAnswer, tags=["lists"])
    async def batch(body: schemas.Batch, request: Request) -> Response:
        """Return several lists; an entry that cannot be answered has a problem instead."""
        await renew_attributes()
        await renew_trends()
        if len(body.requests) > limits.batch:
            raise SettingError(
                f"a batch has at most {limits.batch:,} requests, got {len(body.requests):,}; "
                "send it in parts"
            )
        entries = await compute(_read_entries, body.requests)
        queries = [entry for entry in entries if isinstance(entry, schemas.Recommend)]
        check_size(queries, limits)
        budget = Budget(limits)
        try:
            lives = await _read(store, timeout, lambda: [*map(answers.read_live, queries)])
        except StoreError as error:
            lives = [NO_EVENTS if query.user is None else error for query in queries]
        unread = iter(lives)

        def answer(entry: schemas.Recommend | Exception) -> Any:
            if isinstance(entry, Exception):
                return entry
            live = next(unread)
            if isinstance(live, Exception):
                return live
            try:
                return answers.recommend(answers.plan(entry, live, budget))
            except Exception as error:
                return error

        results = await compute(lambda: [answer(entry) for entry in entries])

        async def finish(result: Any) -> bytes:
            try:
                if isinstance(result, Exception):
                    raise result
                listed, mark = result
                if mark is not None:
                    await write(mark)
                return b'{"result":%s,"problem":null}' % listed
            except Exception as error:
                details = _problem(error, as_refused(error), request.scope, telemetry)
                return b'{"result":null,"problem":%s}' % to_json(details)

        entries_json = b",".join(await asyncio.gather(*map(finish, results)))
        return _json(b'{"answers":[%s]}' % entries_json)

    @app.get("/v1/similar", response_model=schemas.Similar, tags=["lists"])
    async def similar(
        item: Annotated[str, Query(min_length=1, max_length=schemas.LONGEST)],
        k: K = 20,
        alpha: AlphaQuery = None,
        model: ModelName = None,
    ) -> Response:
        """Return the most similar items."""
        await renew_attributes()
        return _json(answers.similar(item, k, model, alpha))

    @app.get("/v1/trending", response_model=schemas.Trending, tags=["lists"])
    async def trending(k: K = 20, model: ModelName = None) -> Response:
        """Return the items with the most recent users, including those of live events."""
        await renew_attributes()
        return _json(await _read(store, timeout, answers.trending, k, model))

    @app.post("/v1/explain", response_model=schemas.Explained, tags=["lists"])
    async def explain(body: schemas.Explain) -> Response:
        """Return the contribution of each history item to the score of an item."""
        await renew_trends()
        live = await read(answers.read_live, body)
        return _json(await compute(answers.explain, body, live))

    @app.post("/v1/score", response_model=schemas.Scored, tags=["lists"])
    async def score(body: schemas.Score) -> Response:
        """Return the scores of the requested items."""
        await renew_trends()
        live = await read(answers.read_live, body)
        return _json(await compute(answers.score, body, live))

    async def take_events(body: schemas.Events) -> bytes:
        if state.config.catalogue == "closed":
            await _read(store, timeout, answers.check_announced, body.events)
        new_events, marks = answers.events(body)
        accepted = await write(store.add(new_events, marks))
        telemetry.events.labels("event").inc(accepted)
        telemetry.events.labels("seen").inc(len(marks))
        counts = {"accepted": accepted, "duplicates": len(new_events) - accepted}
        ids = [event.id for event in new_events]
        return to_json({**counts, "seen": len(marks), "ids": ids})

    @app.post("/v1/events", response_model=schemas.Accepted, tags=["events"])
    async def events(body: schemas.Events) -> Response:
        """Take events; after the answer they are on disk and count for the next list."""
        return _json(await take_events(body))

    shortcuts.add("/v1/events", schemas.Events, take_events)

    @app.get("/v1/users", response_model=schemas.Users, tags=["users"])
    async def users(
        q: Search = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        model: ModelName = None,
    ) -> Response:
        """Return training users whose id starts with a text, or a sample of all."""
        return _json(await run_in_threadpool(answers.users, q, limit, model))

    @app.get("/v1/users/{user:path}", response_model=schemas.UserHistory, tags=["users"])
    async def user_history(user: IdPath, model: ModelName = None) -> Response:
        """Return the history of a user."""
        await renew_attributes()
        live = await read(answers.read_live, schemas.Who(user=user))
        return _json(answers.user(user, live, model))

    @app.delete("/v1/users/{user:path}", response_model=schemas.Forgotten, tags=["users"])
    async def forget(user: IdPath, erase: bool = False) -> Response:
        """Forget a user: all rows in the store now, those in a model with its next update.

        With `erase` the id itself is deleted as well, once no model includes the user.
        """
        removed = await write(store.forget(user, erase=erase))
        remains = [name for name, served in state.models.items() if served.knows(user)]
        return _json({"user": user, "removed": removed, "remains": remains})

    @app.get("/v1/items", response_model=schemas.Page, tags=["items"])
    async def items(
        q: Search = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
        model: ModelName = None,
    ) -> Response:
        """Search items by title or id, most popular first."""
        await renew_attributes()
        return _json(await run_in_threadpool(answers.items, q, limit, offset, model))

    @app.get("/v1/items/{item:path}", response_model=schemas.Found, tags=["items"])
    async def item_facts(item: IdPath, model: ModelName = None) -> Response:
        """Return an item and its attributes."""
        await renew_attributes()
        return _json(answers.item(item, model))

    @app.put("/v1/items/{item:path}", response_model=schemas.Attributes, tags=["items"])
    async def describe(item: IdPath, body: schemas.Attributes) -> Response:
        """Replace the attributes of an item, also of one that no model knows yet."""
        attributes = body.model_dump()
        await write(store.describe(item, attributes))
        await _read(store, timeout, partial(state.renew_attributes, at_once=True))
        return _json(attributes)

    @app.get("/v1/models", response_model=schemas.Models, tags=["models"])
    async def models() -> Response:
        """Return all models, the default one first, and the experiment."""
        return _json(answers.models())

    @app.get("/v1/model", response_model=schemas.ModelFacts, tags=["models"])
    async def model(name: ModelName = None) -> Response:
        """Return one model."""
        return _json(answers.model_facts(state.model(name)))


def _read_entries(requests: list[dict[str, Any]]) -> list[schemas.Recommend | Exception]:
    """Validate the requests of a batch; an invalid one becomes its error."""
    entries: list[schemas.Recommend | Exception] = []
    for request in requests:
        try:
            entries.append(schemas.Recommend.model_validate(request))
        except ValidationError as error:
            entries.append(error)
    return entries


def _add_operation_routes(app: FastAPI, state: State, telemetry: Telemetry) -> None:
    timeout = state.config.limits.timeout

    @app.get("/healthz", response_model=schemas.Health, tags=["operation"])
    async def healthz() -> Response:
        """Tell that the process is alive."""
        return _json({"status": "ok"})

    @app.get("/readyz", response_model=schemas.Health, tags=["operation"])
    async def readyz() -> Response:
        """Tell whether the store answers and the service is not stopping."""
        if state.stopping:
            raise Refused(503, "stopping", "the service is stopping; send requests elsewhere")
        await _read(state.store, timeout, state.store.ping)
        return _json({"status": "ok"})

    @app.get("/metrics", response_class=Response, tags=["operation"])
    async def metrics() -> Response:
        """Return the metrics of all workers in the text format of Prometheus."""
        text = await run_in_threadpool(telemetry.exposition, state.models.values())
        return Response(text, media_type="text/plain; version=0.0.4")

    @app.get("/v1/admin/overview", response_model=schemas.Overview, tags=["operation"])
    async def overview(
        past: Annotated[float, Query(ge=0, le=86_400, allow_inf_nan=False)] = 0.0,
    ) -> Response:
        """Return the numbers that the operator's view draws, and those of the past seconds."""
        numbers: dict[str, Any] = await run_in_threadpool(telemetry.summary, state.models.values())
        try:
            counts = await _read(state.store, timeout, state.store.counts)
        except EquipoiseError:
            counts = None
        earlier = telemetry.past(past) if past else []
        return _json({"time": time.time(), **numbers, "store": counts, "past": earlier})

    comparison = RunningComparison(state.store)

    @app.get(
        "/v1/admin/experiment", response_model=schemas.ExperimentComparison, tags=["operation"]
    )
    async def experiment() -> Response:
        """Return the comparison of the models of the experiment, at most a minute old."""
        name = None if state.experiment is None else state.experiment.name
        return _json(await run_in_threadpool(comparison.of, name))

    refused = {**ERRORS[404], "description": "The models could not be loaded."}

    @app.post(
        "/v1/admin/reload",
        response_model=schemas.Reloaded,
        tags=["operation"],
        responses={**ERRORS, 409: refused},
    )
    async def reload() -> Response:
        """Load and check changed models beside the old ones and swap them, in every worker."""
        try:
            versions = await run_in_threadpool(reload_models, state, telemetry)
        except EquipoiseError as error:
            raise Refused(409, "reload-refused", str(error)) from error
        parent = os.environ.get("EQUIPOISE_SUPERVISOR")
        if parent == str(os.getppid()):
            os.kill(int(parent), signal.SIGHUP)  # which tells the other workers
        return _json({"models": versions})


def reload_models(state: State, telemetry: Telemetry) -> dict[str, str]:
    """Reload the changed models and count the result; return the versions by model."""
    try:
        versions = state.reload()
    except EquipoiseError:
        telemetry.reloads.labels("refused").inc()
        raise
    telemetry.drop_other_models(state.models.values())
    telemetry.reloads.labels("done").inc()
    logger.info("models loaded", extra={"fields": {"models": versions}})
    return versions


async def _expire(state: State) -> None:
    """Delete old events from the store, now and every hour."""
    age = state.config.keep_seconds
    while age is not None:
        try:
            n_rows = await run_in_threadpool(state.store.expire, age)
            if n_rows:
                logger.info("old events deleted", extra={"fields": {"rows": n_rows}})
        except EquipoiseError:
            logger.warning("old events could not be deleted")
        await asyncio.sleep(3600)


async def _remember_numbers(state: State, telemetry: Telemetry) -> None:
    """Keep the numbers of the operator's view once a minute."""
    while True:
        with suppress(OSError):  # no room on the disk
            await run_in_threadpool(telemetry.remember, list(state.models.values()))
        await asyncio.sleep(SAMPLE_PAUSE)


async def _erase_forgotten(state: State) -> None:
    """Delete the ids of users to erase once no model needs them."""
    while True:
        await asyncio.sleep(ERASE_AFTER)
        try:
            models = list(state.models.values())
            n_users = await run_in_threadpool(erase_forgotten, state.store, models, time.time())
            if n_users:
                logger.info("forgotten users erased", extra={"fields": {"users": n_users}})
        except EquipoiseError:
            logger.warning("forgotten users could not be erased")


async def _follow_models(state: State, telemetry: Telemetry) -> None:
    """Load models that another process has saved."""
    pause = state.config.follow_seconds
    while pause is not None:
        await asyncio.sleep(pause)
        with suppress(EquipoiseError, OSError):  # it is logged, and the old models go on
            if await run_in_threadpool(state.are_changed):
                await run_in_threadpool(reload_models, state, telemetry)


async def _measure_drift(state: State, metrics: DriftMetrics) -> None:
    """Measure the drift of the models against their data, in one of the workers."""
    while True:
        await asyncio.sleep(drift.PAUSE)
        if metrics.is_ours():
            with suppress(EquipoiseError):
                await run_in_threadpool(metrics.update, state, list(state.models.values()))


async def _follow_trends(state: State) -> None:
    """Count new events also while no lists are requested, so that few remain for the next one."""
    while True:
        await asyncio.sleep(TRENDS_WAIT)
        if state.trends_are_old():
            await run_in_threadpool(state.renew_trends, completely=True)


def _add_page_routes(app: FastAPI) -> None:
    folder = resources.files("equipoise.serve") / "page"

    def add(path: str, name: str, media_type: str) -> None:
        @app.get(path, include_in_schema=False)
        async def page_file() -> Response:
            return Response((folder / name).read_bytes(), media_type=media_type)

    for path, name in (("/", "page.html"), ("/docs", "docs.html")):
        add(path, name, "text/html; charset=utf-8")
    for name, media_type in PAGE.items():
        add(f"/page/{name}", name, media_type)
