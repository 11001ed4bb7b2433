"""A client of the service with the methods of a model; needs no HTTP library."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import os
import secrets
import tomllib
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import moment
from equipoise.data.ids import WHOLE, as_list, is_id
from equipoise.errors import (
    DataError,
    EquipoiseError,
    FetchError,
    SettingError,
    UnknownIdError,
)
from equipoise.models.recommendations import Explanation, Recommendations
from equipoise.ranking.rules import Rules, RulesLike, as_rules

BATCH = 100  # lists in one request
EVENTS, BODY = 1_000, 900_000  # events, and bytes of them, in one request
LINES, LINES_AT_ONCE = "application/x-ndjson", 4_000_000  # bytes in one request
EVENT_FIELDS = ("user", "item", "time")  # of an event that is a tuple
IDLE = 32  # idle connections that stay open, at most
Connections = deque[tuple[int, http.client.HTTPConnection]]


@dataclass(frozen=True)
class ServedRecommendations(Recommendations):
    """Lists of a service.

    Parameters
    ----------
    list_ids
        Id of each list; an event with the same `list_id` is a click on that list.
    """

    list_ids: list[str] = field(default_factory=list, repr=False)


class Client:
    """Client of `equipoise serve` with the methods of a model.

    Ids are integers or text, as in the training data. Threads and forked processes may share a
    client: each request has a connection to itself. `aio` has the same methods for asyncio::

        lists = await client.aio.recommend(["u1"], k=5)

    Parameters
    ----------
    url
        Address of the service, such as "http://127.0.0.1:8000".
    token
        Token, if the service requires one.
    model
        Name of the model; the service chooses if left out.
    timeout
        Seconds to wait for the service.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        model: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        if not isinstance(url, str):
            raise SettingError(f"url must look like http://127.0.0.1:8000, got {url!r}")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise SettingError(f"the port in the url {url!r} is not valid") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(f"url must look like http://127.0.0.1:8000, got {url!r}")
        is_https = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        self._connect = functools.partial(kind, parts.hostname, port, timeout=timeout)
        # idle connections with the id of the process that opened them; a deque is thread-safe,
        # and has no lock that a fork could leave locked
        self._idle: Connections = deque()
        self._aio: tuple[int, AsyncMethods] | None = None  # with the id of its process
        self._root = parts.path.rstrip("/") + "/v1"
        self._token, self._model = token, model
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; those in use are closed after their answer."""
        idle, self._idle = self._idle, deque()
        while idle:
            idle.pop()[1].close()
        if self._aio is not None:
            self._aio[1].stop()
            self._aio = None

    @property
    def aio(self) -> AsyncMethods:
        """The methods of this client as coroutines."""
        if self._aio is None or self._aio[0] != os.getpid():
            self._aio = os.getpid(), AsyncMethods(self)
        return self._aio[1]

    def recommend(
        self,
        users_or_histories: Any,
        k: int = 20,
        *,
        exclude_seen: bool = True,
        exclude: Any = None,
        candidates: Any = None,
        rules: RulesLike | None = None,
        alpha: float | None = None,
        new_items: float | None = None,
        reasons: int = 0,
        **more: Any,
    ) -> ServedRecommendations:
        """Return the k best items for each user or history, and the ids of the lists.

        Lists of users include their live events. `exclude`, `candidates` and `rules` apply to all
        lists; `reasons` is the number of history items to name for each item; `more` are further
        fields of the request, such as `filters`, `offset` and `mark`.
        """
        names, subjects = _split_subjects(users_or_histories)
        options: dict[str, Any] = {"k": k, "exclude_seen": exclude_seen, "alpha": alpha, **more}
        options |= {} if new_items is None else {"new_items": new_items}
        options["exclude"] = [] if exclude is None else as_list(exclude)
        options["candidates"] = None if candidates is None else as_list(candidates)
        options["rules"] = _rule_fields(rules)
        if reasons:
            options["explain"] = reasons
        # a repeated request with mark="seen" would return the next list
        can_repeat = more.get("mark") is None
        lists: list[dict[str, Any]] = []
        for start in range(0, len(subjects), BATCH):
            batch = subjects[start : start + BATCH]
            requests = [{**subject, **options, "model": self._model} for subject in batch]
            body = {"requests": requests}
            answers = self._ask("POST", "/recommend:batch", body, can_repeat=can_repeat)["answers"]
            for answer in answers:
                if answer["problem"] is not None:
                    raise _error(answer["problem"])
                lists.append(answer["result"])
        return _as_recommendations(names, lists)

    def similar(self, item: Any, k: int = 20, *, alpha: float | None = None) -> Recommendations:
        """Return the k most similar items."""
        answer = self._ask("GET", "/similar", item=item, k=k, alpha=alpha, model=self._model)
        return _as_recommendations([item], [answer])

    def trending(self, k: int = 20) -> dict[str, Any]:
        """Return the k items with the most recent users, and the half-life of their counts."""
        answer = self._ask("GET", "/trending", k=k, model=self._model)
        return _with_model_ids(answer)

    def explain(self, history: Any, item: Any, *, alpha: float | None = None) -> Explanation:
        """Return the contribution of each item of a history, or of a user's, to a score."""
        _, (subject,) = _split_subjects(history if is_id(history) else [history])
        body = {**subject, "item": item, "alpha": alpha, "model": self._model}
        answer = self._ask("POST", "/explain", body)
        sources, parts, titles = (
            [reason[name] for reason in answer["reasons"]]
            for name in ("item", "contribution", "title")
        )
        (explained,), sources = _model_ids(answer, [answer["item"]]), _model_ids(answer, sources)
        shared = None
        if any(reason.get("shared") is not None for reason in answer["reasons"]):
            shared = [
                [(name, value) for name, value in reason["shared"]] for reason in answer["reasons"]
            ]
        return Explanation(explained, answer["score"], sources, parts, titles, shared=shared)

    def score(
        self, histories: Any, items: Iterable[Any], *, alpha: float | None = None
    ) -> npt.NDArray[np.float64]:
        """Return the scores of these items for each user or history; NaN without a score."""
        items = as_list(items)
        rows = []
        for subject in _split_subjects(histories)[1]:
            body = {**subject, "items": items, "alpha": alpha, "model": self._model}
            scores = self._ask("POST", "/score", body)["scores"]
            rows.append([_number(entry["score"]) for entry in scores])
        return np.array(rows, np.float64).reshape(len(rows), len(items))

    def add(self, events: Any) -> dict[str, Any]:
        """Send an event or many; return numbers of new and known ones, and their ids.

        An event is a mapping with `user`, `item` and perhaps `id`, `type`, `weight`, `time`,
        `mark` and `list_id`, or a tuple of user, item and perhaps time. Times are datetimes, ISO
        texts or seconds since 1970. Events are sent in parts; after this returns all are on disk
        and count for the next list. Events without an id get one here, so that a repeated request
        does not count them twice.
        """
        is_one = isinstance(events, Mapping) or (isinstance(events, tuple) and is_id(events[0]))
        total: dict[str, Any] = {"accepted": 0, "duplicates": 0, "seen": 0, "ids": []}
        for part in _parts(_event_fields([events] if is_one else events)):
            try:
                answer = self._ask("POST", "/events", part)
            except EquipoiseError as error:
                if not total["ids"]:
                    raise
                stored = f"{error}; the {len(total['ids']):,} events before it are stored"
                raise type(error)(stored) from error
            for name, value in total.items():
                total[name] = value + answer[name]
        return total

    def events(self, **selection: Any) -> Iterator[dict[str, Any]]:
        """Yield stored events in the order of arrival; needs the role admin.

        `selection` are `user`, `item`, `type`, `list_id`, and the times `since` and `until`.
        """
        for name in {"since", "until"} & selection.keys():
            selection[name] = moment(name, selection[name])
        after: int | None = 0
        while after is not None:
            page = self._ask("GET", "/events", after=after, limit=1000, **selection)
            yield from page["events"]
            after = page["next"]

    def delete_event(self, event: str) -> list[str]:
        """Delete an event by its id; return the models that have learned from it."""
        answer = self._ask("DELETE", f"/events/{quote(event, safe='')}")
        return list(answer["models"])

    def forget(self, user: Any, *, erase: bool = False) -> int:
        """Forget a user; return the number of deleted rows.

        With `erase` the id is deleted as well, once no model includes the user.
        """
        path = f"/users/{quote(str(user), safe='')}"
        return int(self._ask("DELETE", path, erase="true" if erase else None)["removed"])

    def user(self, user: Any) -> dict[str, Any]:
        """Return the history of a user as the model sees it."""
        answer = self._ask("GET", f"/users/{quote(str(user), safe='')}", model=self._model)
        return _with_model_ids(answer)

    def user_data(self, user: Any) -> dict[str, Any]:
        """Return everything that is stored about a user; needs the role admin."""
        return self._ask("GET", "/export/user", user=user)

    def describe(self, item: Any, **attributes: Any) -> None:
        """Replace the attributes of an item, such as ``available=False`` or ``category="tea"``."""
        self._ask("PUT", f"/items/{quote(str(item), safe='')}", attributes)

    def add_items(
        self, items: Mapping[Any, Mapping[str, Any]] | Iterable[Mapping[str, Any]]
    ) -> int:
        """Replace the attributes of many items; return their number.

        `items` are attributes by item, or mappings that have the key `item` too. They are sent in
        parts.
        """
        rows: Iterable[Mapping[str, Any]] = (
            ({"item": item, **attributes} for item, attributes in items.items())
            if isinstance(items, Mapping)
            else items
        )
        count = 0
        lines = (json.dumps(dict(row), default=_plain).encode() for row in rows)
        for part in _joined(lines):
            count += int(self._ask("POST", "/items", part, kind=LINES)["items"])
        return count

    def items(self, text: str = "", limit: int = 20, offset: int = 0) -> dict[str, Any]:
        """Search the catalogue by title."""
        page = self._ask("GET", "/items", q=text, limit=limit, offset=offset, model=self._model)
        return _with_model_ids(page)

    def summary(self) -> dict[str, Any]:
        """Return the settings, sizes and version of the model."""
        return self._ask("GET", "/model", name=self._model)

    def models(self) -> dict[str, dict[str, Any]]:
        """Return the settings, sizes and version of each model, the default one first."""
        return {facts["name"]: facts for facts in self._ask("GET", "/models")["models"]}

    def reload(self) -> dict[str, str]:
        """Load changed models in every worker; return the version of each model."""
        return dict(self._ask("POST", "/admin/reload", {})["models"])

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        can_repeat: bool = True,
        **query: Any,
    ) -> dict[str, Any]:
        query = {name: value for name, value in query.items() if value is not None}
        target = self._root + path + (f"?{urlencode(query)}" if query else "")
        headers = {"content-type": kind} if body is not None else {}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        content: bytes | None = body if isinstance(body, bytes) else None
        if body is not None and content is None:
            content = json.dumps(body, default=_plain).encode()
        try:
            status, text = self._exchange(method, target, content, headers, can_repeat)
        except (OSError, http.client.HTTPException) as error:
            raise FetchError(f"{self.url} does not answer ({error}); is it running?") from error
        try:
            answer: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise FetchError(
                f"{self.url} is not an equipoise service; check the address"
            ) from error
        if status >= 400:
            raise _error(answer)
        return answer

    def _exchange(
        self,
        method: str,
        target: str,
        content: bytes | None,
        headers: dict[str, str],
        can_repeat: bool = True,
    ) -> tuple[int, bytes]:
        """Send a request and read the answer, on a connection that no other thread uses.

        The service may have closed an idle connection; the request is then repeated on a new
        one. Requests that must not be repeated always use a new connection.
        """
        idle = self._idle
        request = (method, target, content, headers)
        connection = _take_idle(idle) if can_repeat else None
        if connection is not None:
            with contextlib.suppress(ConnectionError):
                return self._send(idle, connection, *request)
        return self._send(idle, self._connect(), *request)

    def _send(
        self, idle: Connections, connection: http.client.HTTPConnection, *request: Any
    ) -> tuple[int, bytes]:
        """Send and read; a connection whose answer was read to its end becomes idle."""
        try:
            connection.request(*request)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except BaseException:
            connection.close()
            raise
        is_open = connection.sock is not None and idle is self._idle  # else closed meanwhile
        if is_open and len(idle) < IDLE:
            idle.append((os.getpid(), connection))
        else:
            connection.close()
        return status, text


def _take_idle(idle: Connections) -> http.client.HTTPConnection | None:
    while True:
        try:
            process, connection = idle.pop()
        except IndexError:
            return None
        if process == os.getpid():
            return connection
        connection.close()  # the copy of a fork; the parent goes on using its connection


def _split_subjects(users_or_histories: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the names of the lists, and the fields `user` or `history` of their requests."""
    if isinstance(users_or_histories, Mapping):
        histories = [{"history": as_list(items)} for items in users_or_histories.values()]
        return list(users_or_histories), histories
    subjects = as_list(users_or_histories)
    are_ids = [is_id(subject) for subject in subjects]
    if all(are_ids):
        return subjects, [{"user": user} for user in subjects]
    if any(are_ids):
        raise DataError("pass either user ids or histories (lists of item ids), not a mixture")
    return list(range(len(subjects))), [{"history": as_list(items)} for items in subjects]


class AsyncMethods:
    """The methods of a client as coroutines; each call runs in a thread of its own.

    A call that is cancelled goes on in its thread.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(IDLE, "equipoise-client")

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._client, name)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"the client has no method {name!r} for asyncio")

        @functools.wraps(method)
        async def call(*arguments: Any, **options: Any) -> Any:
            work = functools.partial(copy_context().run, method, *arguments, **options)
            if name == "events":  # a generator would ask in the thread of the loop
                work = functools.partial(copy_context().run, _listed, method, options)
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

        return call

    def stop(self) -> None:
        """End the threads after their calls."""
        self._threads.shutdown(wait=False)


def _listed(method: Callable[..., Iterable[Any]], options: Mapping[str, Any]) -> list[Any]:
    return list(method(**options))


def _rule_fields(rules: RulesLike | None) -> dict[str, Any] | None:
    """Return rules as the field of a request."""
    checked = as_rules(rules)
    if checked is None:
        return None
    if not isinstance(checked, Rules):
        raise SettingError("rules must be eq.Rules, a mapping or the path of a TOML file")
    return tomllib.loads(checked.to_toml())


def _event_fields(events: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield events as mappings with an id and with times in seconds."""
    prefix = secrets.token_hex(12)
    for number, event in enumerate(events):
        if isinstance(event, Mapping):
            fields = dict(event)
        elif isinstance(event, (tuple, list)) and 2 <= len(event) <= len(EVENT_FIELDS):
            fields = dict(zip(EVENT_FIELDS, event, strict=False))
        else:
            raise DataError(
                f"an event is a mapping with user and item, or a tuple of user, item and perhaps "
                f"time; got {event!r}"
            )
        if fields.get("time") is not None:
            fields["time"] = moment("time", fields["time"])
        if fields.get("id") is None:
            fields["id"] = f"{prefix}-{number:06d}"
        yield fields


def _parts(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the bodies of requests, each with as many events as one may have."""
    part: list[dict[str, Any]] = []
    size = 0
    for event in events:
        length = len(json.dumps(event, default=_plain)) + 2
        if part and (len(part) == EVENTS or size + length > BODY):
            yield {"events": part}
            part, size = [], 0
        part.append(event)
        size += length
    if part:
        yield {"events": part}


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines in parts of a few megabytes."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line) + 1
        if size > LINES_AT_ONCE:
            yield b"\n".join(part)
            part, size = [], 0
    if part:
        yield b"\n".join(part)


def _as_recommendations(names: list[Any], lists: list[dict[str, Any]]) -> ServedRecommendations:
    rows = [answer["items"] for answer in lists]
    items = [_model_ids(answer, [item["item"] for item in answer["items"]]) for answer in lists]
    reasons, titles = None, None
    if any(item.get("reasons") is not None for row in rows for item in row):
        reasons = [
            [_model_ids(answer, _reasons(item, "item")) for item in answer["items"]]
            for answer in lists
        ]
        titles = [[_reasons(item, "title") for item in row] for row in rows]
    is_text = any(isinstance(item, str) for row in items for item in row)
    return ServedRecommendations(
        names,
        items,
        [np.array([_number(item["score"]) for item in row], np.float32) for row in rows],
        [answer["source"] for answer in lists],
        [[item["title"] for item in row] for row in rows],
        reasons,
        titles,
        {"item": pl.String if is_text else pl.Int64} if any(items) else {},
        list_ids=[answer["list_id"] for answer in lists if "list_id" in answer],
    )


def _reasons(item: Mapping[str, Any], name: str) -> list[Any]:
    return [reason[name] for reason in item.get("reasons") or []]


def _with_model_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with the ids of its items as in the model's data."""
    ids = _model_ids(answer, [entry["item"] for entry in answer["items"]])
    for entry, item in zip(answer["items"], ids, strict=True):
        entry["item"] = item
    return answer


def _model_ids(answer: Mapping[str, Any], ids: list[str]) -> list[Any]:
    """Convert ids of items, which are text in answers, to the type in the model's data."""
    if answer["item_ids"] == "text":
        return ids
    return [int(item) if WHOLE.fullmatch(item) else item for item in ids]  # a pin may be text


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (date, time)):
        return value.isoformat()
    raise TypeError(f"{value!r} cannot be written as JSON")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _error(problem: Mapping[str, Any]) -> EquipoiseError:
    """Return the error that the model itself would have raised."""
    text = str(problem.get("detail", "the service refused"))
    kinds = {404: UnknownIdError, 422: DataError, 413: DataError}
    kind: type[EquipoiseError] = kinds.get(int(problem.get("status", 0)), FetchError)
    return kind(text)
