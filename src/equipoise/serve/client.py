"""A client of the service with the methods of a model; needs no HTTP library."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from equipoise.data.ids import WHOLE, as_list, is_id
from equipoise.errors import (
    DataError,
    EquipoiseError,
    FetchError,
    SettingError,
    UnknownIdError,
)
from equipoise.models.recommendations import Explanation, Recommendations

BATCH = 100  # lists in one request
IDLE = 32  # idle connections that stay open, at most
Connections = deque[tuple[int, http.client.HTTPConnection]]


class Client:
    """Client of `equipoise serve` with the methods of a model.

    Ids are integers or text, as in the training data. Threads and forked processes may share a
    client: each request has a connection to itself.

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
        self._root = parts.path.rstrip("/") + "/v1"
        self._token, self._model = token, model
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; those in use are closed after their answer."""
        idle, self._idle = self._idle, deque()
        while idle:
            idle.pop()[1].close()

    def recommend(
        self,
        users_or_histories: Any,
        k: int = 20,
        *,
        exclude_seen: bool = True,
        exclude: Any = None,
        candidates: Any = None,
        alpha: float | None = None,
        **more: Any,
    ) -> Recommendations:
        """Return the k best items for each user or history.

        Lists of users include their live events. `exclude` and `candidates` apply to all lists;
        `more` are further fields of the request, such as `filters` and `offset`.
        """
        names, subjects = _split_subjects(users_or_histories)
        options: dict[str, Any] = {"k": k, "exclude_seen": exclude_seen, "alpha": alpha, **more}
        options["exclude"] = [] if exclude is None else as_list(exclude)
        options["candidates"] = None if candidates is None else as_list(candidates)
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
        return Explanation(explained, answer["score"], sources, parts, titles)

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

    def add(self, events: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Send events with `user`, `item` and perhaps `id`, `type`, `weight`, `time`, `mark`.

        After this returns they are on disk and count for the next list. Events without an id get
        one here, so that a repeated request does not count them twice.
        """
        prefix = secrets.token_hex(12)
        sent = [dict(event) for event in ([events] if isinstance(events, Mapping) else events)]
        for number, event in enumerate(sent):
            if event.get("id") is None:
                event["id"] = f"{prefix}-{number:06d}"
        return self._ask("POST", "/events", {"events": sent})

    def forget(self, user: Any) -> int:
        """Forget a user; return the number of deleted rows."""
        return int(self._ask("DELETE", f"/users/{quote(str(user), safe='')}")["removed"])

    def describe(self, item: Any, **attributes: Any) -> None:
        """Replace the attributes of an item, such as ``available=False`` or ``category="tea"``."""
        self._ask("PUT", f"/items/{quote(str(item), safe='')}", attributes)

    def items(self, text: str = "", limit: int = 20, offset: int = 0) -> dict[str, Any]:
        """Search the catalogue by title."""
        page = self._ask("GET", "/items", q=text, limit=limit, offset=offset, model=self._model)
        ids = _model_ids(page, [entry["item"] for entry in page["items"]])
        for entry, item in zip(page["items"], ids, strict=True):
            entry["item"] = item
        return page

    def summary(self) -> dict[str, Any]:
        """Return the settings, sizes and version of the model."""
        return self._ask("GET", "/model", name=self._model)

    def _ask(
        self, method: str, path: str, body: Any = None, *, can_repeat: bool = True, **query: Any
    ) -> dict[str, Any]:
        query = {name: value for name, value in query.items() if value is not None}
        target = self._root + path + (f"?{urlencode(query)}" if query else "")
        headers = {"content-type": "application/json"} if body is not None else {}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        content = None if body is None else json.dumps(body, default=_plain).encode()
        try:
            status, text = self._exchange(method, target, content, headers, can_repeat)
        except (OSError, http.client.HTTPException) as error:
            raise FetchError(f"{self.url} does not answer ({error}); is it running?") from error
        try:
            answer: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise FetchError(f"{self.url} is no equipoise service; check the address") from error
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
    """Return an idle connection of this process, or None."""
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


def _as_recommendations(names: list[Any], lists: list[dict[str, Any]]) -> Recommendations:
    rows = [answer["items"] for answer in lists]
    return Recommendations(
        names,
        [_model_ids(answer, [item["item"] for item in answer["items"]]) for answer in lists],
        [np.array([_number(item["score"]) for item in row], np.float32) for row in rows],
        [answer["source"] for answer in lists],
        [[item["title"] for item in row] for row in rows],
    )


def _model_ids(answer: Mapping[str, Any], ids: list[str]) -> list[Any]:
    """Convert ids of items, which are text in answers, to the type in the model's data."""
    if answer["item_ids"] == "text":
        return ids
    return [int(item) if WHOLE.fullmatch(item) else item for item in ids]  # a pin may be text


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be written as JSON")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _error(problem: Mapping[str, Any]) -> EquipoiseError:
    """Return the error that the model itself would have raised."""
    text = str(problem.get("detail", "the service refused"))
    kinds = {404: UnknownIdError, 422: DataError, 413: DataError}
    kind: type[EquipoiseError] = kinds.get(int(problem.get("status", 0)), FetchError)
    return kind(text)
