"""The routes of the service; what they answer is worked out in `answers`."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import Route

import equipoise
from equipoise.errors import EquipoiseError, SettingError
from equipoise.serve import schemas
from equipoise.serve.answers import NO_USER, Answers
from equipoise.serve.config import Config
from equipoise.serve.costs import Budget, check_size, is_long
from equipoise.serve.guard import Guard, as_refused, problem
from equipoise.serve.security import Refused
from equipoise.serve.state import State
from equipoise.serve.store import Live, Store, StoreError
from equipoise.serve.telemetry import Telemetry

logger = logging.getLogger("equipoise.serve")

PAGE = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
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
        400: "Not a request that can be read.",
        401: "A token is missing or unknown.",
        403: "The token has too small a role.",
        404: "An id or a model that is not known.",
        408: "The body did not arrive in time.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        422: "A field is missing, unknown or out of its range.",
        429: "Too many requests.",
        503: "The event store or the worker is not available, or the service stops.",
    }.items()
}
UserPath = Annotated[str, Path(min_length=1, max_length=schemas.LONGEST, pattern=r"^[^\x00]+$")]
ItemPath = UserPath
ModelName = Annotated[str | None, Query(max_length=64)]
AlphaQuery = Annotated[float | None, Query(ge=-2, le=2, allow_inf_nan=False)]
K = Annotated[int, Query(ge=1, le=schemas.DEEPEST)]
OffsetQuery = Annotated[int, Query(ge=0, le=10_000_000)]
ATTRIBUTES_WAIT = 1.0  # seconds; then a list is made with the attributes that are known
waited: ContextVar[float] = ContextVar(
    "waited", default=0.0
)  # seconds of a request, for the store


def create(config: Config) -> Any:
    """Return the application of a worker: it opens the store and loads the models at once."""
    telemetry = Telemetry()
    store = Store(config.store, config.limits.timeout)
    store.check()
    state = State(config, store)
    app = _application(state, telemetry)
    _routes(app, state, telemetry)
    _operation(app, state, telemetry)
    _page(app)
    _match_exactly(app)
    whole: Any = app
    if config.cors:
        options: dict[str, Any] = {"allow_methods": ["GET", "POST", "PUT", "DELETE"]}
        options["allow_headers"] = ["authorization", "content-type", "x-request-id"]
        whole = CORSMiddleware(whole, allow_origins=config.cors, **options)
    guarded = Guard(whole, config, telemetry)
    guarded.state, guarded.routes = state, app  # type: ignore[attr-defined]
    return guarded


def _application(state: State, telemetry: Telemetry) -> FastAPI:
    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        ageing = asyncio.create_task(_expire(state))
        yield
        ageing.cancel()
        await run_in_threadpool(state.store.close)

    app = FastAPI(
        title="equipoise",
        version=equipoise.__version__,
        description=DESCRIPTION,
        lifespan=life,
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
        number = request.scope["state"]["request"]
        refused = _refused(error)
        if refused.status_code == 500:
            logger.error("request failed", exc_info=error, extra={"fields": {"request": number}})
        if isinstance(error, StoreError):
            telemetry.store_errors.inc()
        found = problem(refused.status_code, refused.kind, str(refused.detail), number)
        kind = "application/problem+json"
        return Response(to_json(found), refused.status_code, refused.headers, kind)

    return app


def _refused(error: Exception) -> Refused:
    """Return the problem behind what FastAPI found wrong."""
    if isinstance(error, RequestValidationError):
        return _invalid(error.errors())
    if isinstance(error, HTTPException) and not isinstance(error, Refused):
        kind = {404: "not-found", 405: "method"}.get(error.status_code, "bad-request")
        return Refused(error.status_code, kind, str(error.detail), dict(error.headers or {}))
    return as_refused(error)


def _invalid(errors: Any) -> Refused:
    """Say which fields are wrong; their values, which may be anything, are not repeated."""
    told = []
    for each in errors[:5]:
        where = ".".join(str(part) for part in each["loc"] if part != "body")[:200]
        told.append(f"{where}: {each['msg']}" if where else str(each["msg"]))
    return Refused(422, "invalid", "; ".join(told))


def _description(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemes = {"token": {"type": "http", "scheme": "bearer"}}
        parts = found.setdefault("components", {})
        parts["securitySchemes"] = schemes
        parts["schemas"]["Problem"] = schemas.Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            parts["schemas"].pop(name, None)
        found["security"] = [{}, {"token": []}]
        app.openapi_schema = found
    return app.openapi_schema


def _match_exactly(app: FastAPI) -> None:
    """Let a route match its path alone, and any id in it, also one with line breaks.

    As they come, `$` matches before a last line break too, and `.` matches none: a path would mean
    one thing to the check of roles and another one here.
    """
    for route in app.routes:
        assert isinstance(route, Route)
        pattern = route.path_regex.pattern.removesuffix("$") + r"\Z"
        route.path_regex = re.compile(pattern, re.DOTALL)


def _json(value: Any) -> Response:
    # labels may hold numbers that JSON has no word for
    return Response(to_json(value, inf_nan_mode="null"), media_type="application/json")


async def _within(seconds: float, work: Awaitable[Any]) -> Any:
    """Wait for the store no longer than this, together with the earlier waits of the request.

    The thread that waits may go on, and is given up by the store itself.
    """
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


async def _ask(store: Store, seconds: float, work: Callable[..., Any], *given: Any) -> Any:
    """Read from the store in another thread."""
    if store.is_local:
        return await run_in_threadpool(work, *given)
    return await _within(seconds, asyncio.wrap_future(store.later(work, *given)))


def _routes(app: FastAPI, state: State, telemetry: Telemetry) -> None:
    store, timeout = state.store, state.config.limits.timeout
    answers = Answers(state, telemetry)

    async def ask(work: Callable[..., Any], *given: Any, seconds: float = timeout) -> Any:
        """Wait for the store; a file answers faster than a thread starts to wait for it."""
        return work(*given) if store.is_local else await _ask(store, seconds, work, *given)

    async def mine() -> Answers:
        """Return who answers a request, with attributes that other workers have changed."""
        if state.attributes_are_old():
            with suppress(StoreError):  # those that are known go on
                seconds = min(timeout / 4, ATTRIBUTES_WAIT)
                await ask(state.renew_attributes, seconds=seconds)
        return answers

    async def write(work: Any) -> Any:
        return await _within(timeout, asyncio.wrap_future(store.submit(work)))

    async def listed(own: Answers, body: schemas.Recommend) -> Response:
        live = await ask(own.live, body)
        if is_long(body):
            answer, first = await run_in_threadpool(own.recommend, body, live)
        else:
            answer, first = own.recommend(body, live)
        if first is not None:
            await write(first)
        return _json(answer)

    @app.post("/v1/recommend", response_model=schemas.Recommended, tags=["lists"])
    async def recommend(body: schemas.Recommend) -> Response:
        """Return the best items for a user, a history or a session."""
        return await listed(await mine(), body)

    @app.get("/v1/recommend/{user:path}", response_model=schemas.Recommended, tags=["lists"])
    async def recommend_user(
        user: UserPath,
        k: K = 20,
        offset: Annotated[int, Query(ge=0, le=schemas.DEEPEST)] = 0,
        alpha: AlphaQuery = None,
        model: ModelName = None,
        explain: Annotated[int, Query(ge=0, le=20)] = 0,
    ) -> Response:
        """Return the best items for a user."""
        body = schemas.Recommend(
            user=user, k=k, offset=offset, alpha=alpha, model=model, explain=explain
        )
        return await listed(await mine(), body)

    @app.post("/v1/recommend:batch", response_model=schemas.BatchAnswer, tags=["lists"])
    async def batch(body: schemas.Batch, request: Request) -> Response:
        """Return several lists; an entry that cannot be answered has a problem in its place."""
        own, number = await mine(), request.scope["state"]["request"]
        limits = state.config.limits
        if len(body.requests) > limits.batch:
            raise SettingError(
                f"a batch has at most {limits.batch:,} requests, got {len(body.requests):,}; "
                "send it in parts"
            )
        entries = await run_in_threadpool(_read_entries, body.requests)
        read = [entry for entry in entries if isinstance(entry, schemas.Recommend)]
        check_size(read, limits)
        budget = Budget(limits)
        try:
            lives = iter(await _ask(store, timeout, _read_lives, own, read))
        except StoreError as error:
            lives = iter([NO_USER if entry.user is None else error for entry in read])

        def work(entry: schemas.Recommend | Exception) -> Any:
            try:
                if isinstance(entry, Exception):
                    raise entry
                live = next(lives)
                if isinstance(live, Exception):
                    raise live
                return own.recommend(entry, live, budget)
            except Exception as error:
                return error

        found = await run_in_threadpool(lambda: [work(entry) for entry in entries])

        async def told(result: Any) -> dict[str, Any]:
            try:
                if isinstance(result, Exception):
                    raise result
                answer, first = result
                if first is not None:
                    await write(first)
                return {"result": answer, "problem": None}
            except ValidationError as error:
                refused = _invalid(error.errors())
            except Exception as error:
                refused = as_refused(error)
                if isinstance(error, StoreError):
                    telemetry.store_errors.inc()
                if refused.status_code == 500:
                    logger.exception("entry failed", extra={"fields": {"request": number}})
            facts = (refused.status_code, refused.kind, str(refused.detail), number)
            return {"result": None, "problem": problem(*facts)}

        return _json({"answers": await asyncio.gather(*map(told, found))})

    @app.get("/v1/similar", response_model=schemas.Similar, tags=["lists"])
    async def similar(
        item: Annotated[str, Query(min_length=1, max_length=schemas.LONGEST)],
        k: K = 20,
        alpha: AlphaQuery = None,
        model: ModelName = None,
    ) -> Response:
        """Return the items that most follow from one."""
        return _json((await mine()).similar(item, k, model, alpha))

    @app.post("/v1/explain", response_model=schemas.Explained, tags=["lists"])
    async def explain(body: schemas.Explain) -> Response:
        """Return what each item of a history adds to the score of an item."""
        own = await mine()
        found = await ask(own.live, body)
        return _json(await run_in_threadpool(own.explain, body, found))

    @app.post("/v1/score", response_model=schemas.Scored, tags=["lists"])
    async def score(body: schemas.Score) -> Response:
        """Return the scores of some items."""
        own = await mine()
        return _json(await run_in_threadpool(own.score, body, await ask(own.live, body)))

    @app.post("/v1/events", response_model=schemas.Accepted, tags=["events"])
    async def events(body: schemas.Events) -> Response:
        """Take events; once this has answered they are on disk and count for the next list."""
        given, marks, ids = (await mine()).events(body)
        fresh = await write(store.add(given, marks))
        telemetry.events.labels("event").inc(fresh)
        telemetry.events.labels("seen").inc(len(marks))
        known = len(given) - fresh
        return _json({"accepted": fresh, "duplicates": known, "seen": len(marks), "ids": ids})

    @app.get("/v1/users", response_model=schemas.Users, tags=["users"])
    async def users(
        q: Annotated[str, Query(max_length=schemas.LONGEST)] = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        model: ModelName = None,
    ) -> Response:
        """Return some training users."""
        own = await mine()
        return _json(await run_in_threadpool(own.users, q, limit, model))

    @app.get("/v1/users/{user:path}", response_model=schemas.UserHistory, tags=["users"])
    async def user_history(user: UserPath, model: ModelName = None) -> Response:
        """Return the history of a user."""
        own = await mine()
        return _json(own.user(user, await ask(own.live, schemas.Who(user=user)), model))

    @app.delete("/v1/users/{user:path}", response_model=schemas.Forgotten, tags=["users"])
    async def forget(user: UserPath) -> Response:
        """Forget a user: all traces in the store now, those in a model with its next update."""
        gone = await write(store.forget(user))
        return _json({"user": user, "removed": gone})

    @app.get("/v1/items", response_model=schemas.Page, tags=["items"])
    async def items(
        q: Annotated[str, Query(max_length=schemas.LONGEST)] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        offset: OffsetQuery = 0,
        model: ModelName = None,
    ) -> Response:
        """Search items by title or id, most popular first."""
        own = await mine()
        return _json(await run_in_threadpool(own.items, q, limit, offset, model))

    @app.get("/v1/items/{item:path}", response_model=schemas.Found, tags=["items"])
    async def item_facts(item: ItemPath, model: ModelName = None) -> Response:
        """Return an item and its attributes."""
        return _json((await mine()).item(item, model))

    @app.put("/v1/items/{item:path}", response_model=schemas.Attributes, tags=["items"])
    async def describe(item: ItemPath, body: schemas.Attributes) -> Response:
        """Replace the attributes of an item, which the models may not know yet."""
        given = body.model_dump()
        await write(store.describe(item, given))
        renew = functools.partial(state.renew_attributes, at_once=True)
        await _ask(store, timeout, renew)
        return _json(given)

    @app.get("/v1/models", response_model=schemas.Models, tags=["models"])
    async def models() -> Response:
        """Return all models, the default one first, and the experiment."""
        return _json((await mine()).models())

    @app.get("/v1/model", response_model=schemas.ModelFacts, tags=["models"])
    async def model(name: ModelName = None) -> Response:
        """Return one model."""
        return _json((await mine()).facts(state.model(name)))


def _read_entries(given: list[dict[str, Any]]) -> list[schemas.Recommend | Exception]:
    """Return the requests of a batch, or what is wrong with them."""
    entries: list[schemas.Recommend | Exception] = []
    for entry in given:
        try:
            entries.append(schemas.Recommend.model_validate(entry))
        except ValidationError as error:
            entries.append(error)
    return entries


def _read_lives(own: Answers, entries: list[schemas.Recommend]) -> list[Live | Exception]:
    """Ask the store about the users of a batch; once it has failed it is not asked again."""
    lives: list[Live | Exception] = []
    failure: StoreError | None = None
    for entry in entries:
        try:
            if failure is not None and entry.user is not None:
                raise failure
            lives.append(own.live(entry))
        except StoreError as error:
            failure = error
            lives.append(error)
    return lives


def _operation(app: FastAPI, state: State, telemetry: Telemetry) -> None:
    timeout = state.config.limits.timeout

    @app.get("/healthz", response_model=schemas.Health, tags=["operation"])
    async def healthz() -> Response:
        """Tell that the process lives."""
        return _json({"status": "ok"})

    @app.get("/readyz", response_model=schemas.Health, tags=["operation"])
    async def readyz() -> Response:
        """Tell whether models are loaded, the store answers and the service goes on."""
        if state.stopping:
            raise Refused(503, "stopping", "the service stops; send requests elsewhere")
        await _ask(state.store, timeout, state.store.ping)
        return _json({"status": "ok"})

    @app.get("/metrics", response_class=Response, tags=["operation"])
    async def metrics() -> Response:
        """Return the numbers of all workers in the text format of Prometheus."""
        text = await run_in_threadpool(telemetry.exposition, state.models.values())
        return Response(text, media_type="text/plain; version=0.0.4")

    @app.get("/v1/admin/overview", response_model=schemas.Overview, tags=["operation"])
    async def overview() -> Response:
        """Return the numbers that the operator's view draws."""
        models = [*state.models.values()]
        found: dict[str, Any] = await run_in_threadpool(telemetry.summary, models)
        try:
            found["store"] = await _ask(state.store, timeout, state.store.counts)
        except EquipoiseError:
            found["store"] = None
        return _json({"time": time.time(), **found})

    @app.post("/v1/admin/reload", response_model=schemas.Reloaded, tags=["operation"])
    async def reload() -> Response:
        """Load changed models beside the old ones, check them and swap, in every worker."""
        try:
            found = await run_in_threadpool(reloaded(state, telemetry))
        except EquipoiseError as error:
            raise Refused(409, "reload-refused", str(error)) from error
        parent = os.environ.get("EQUIPOISE_SUPERVISOR")
        if parent == str(os.getppid()):
            os.kill(int(parent), signal.SIGHUP)  # the others
        return _json({"models": found})

    reload_errors = {409: {**ERRORS[404], "description": "The models could not be loaded."}}
    app.routes[-1].responses |= reload_errors  # type: ignore[attr-defined]


def reloaded(state: State, telemetry: Telemetry) -> Callable[[], dict[str, str]]:
    """Return the function that reloads and counts how that went."""

    def reload() -> dict[str, str]:
        try:
            found = state.reload()
        except EquipoiseError:
            telemetry.reloads.labels("refused").inc()
            raise
        telemetry.keep(state.models.values())
        telemetry.reloads.labels("done").inc()
        logger.info("models loaded", extra={"fields": {"models": found}})
        return found

    return reload


async def _expire(state: State) -> None:
    """Take old events out of the store, now and every hour."""
    age = state.config.keep_seconds
    while age is not None:
        try:
            gone = await run_in_threadpool(state.store.expire, age)
            if gone:
                logger.info("events aged out", extra={"fields": {"rows": gone}})
        except EquipoiseError:
            logger.warning("events could not be aged out")
        await asyncio.sleep(3600)


def _page(app: FastAPI) -> None:
    folder = resources.files("equipoise.serve") / "page"

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        text = (folder / "page.html").read_bytes()
        return Response(text, media_type="text/html; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        text = (folder / "docs.html").read_bytes()
        return Response(text, media_type="text/html; charset=utf-8")

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in PAGE:
            raise Refused(404, "not-found", "there is no such file")
        return Response((folder / name).read_bytes(), media_type=PAGE[name])
