"""A client of the service with the methods of a model, on the standard library alone."""

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

BATCH = 100  # lists in one request, as the service allows
IDLE = 32  # open connections that wait for a request, at most


class Client:
    """Asks `equipoise serve` what a model could be asked.

    Ids come back as the data of the model have them, integers or text, as from a model. Threads
    may share a client, and processes that were forked: each request has a connection to itself.

    Parameters
    ----------
    url
        Address of the service, such as "http://127.0.0.1:8000".
    token
        Where the service wants one.
    model
        Name of the model to ask; the service chooses if left out.
    timeout
        Seconds until a silent service is an error.
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
            raise SettingError(f"url has no port that a service can have: {url!r}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(f"url must look like http://127.0.0.1:8000, got {url!r}")
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connect = functools.partial(kind, parts.hostname, port, timeout=timeout)
        # open connections that wait for a request, each with the process that opened it; a deque
        # can be changed by several threads, and has no lock that a fork could leave locked
        self._idle: deque[tuple[int, http.client.HTTPConnection]] = deque()
        self._root = parts.path.rstrip("/") + "/v1"
        self._token, self._model = token, model
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; those that are in use are closed when their answer is read."""
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
        """Return the k best items for each user or history, as a model does.

        Users may have live events that no model has seen. `exclude` and `candidates` are for all
        users; `more` are further fields of the request, such as `filters` and `offset`.
        """
        names, entries = self._asked(users_or_histories)
        options: dict[str, Any] = {"k": k, "exclude_seen": exclude_seen, "alpha": alpha, **more}
        options["exclude"] = [] if exclude is None else as_list(exclude)
        options["candidates"] = None if candidates is None else as_list(candidates)
        found = []
        for start in range(0, len(entries), BATCH):
            some = [{**each, **options, "model": self._model} for each in entries[start:][:BATCH]]
            # sent again, a list that marks its items as seen would be the next one
            again = more.get("mark") is None
            answer = self._ask("POST", "/recommend:batch", {"requests": some}, again=again)
            found += answer["answers"]
        for entry in found:
            if entry["problem"] is not None:
                raise _error(entry["problem"])
        lists = [entry["result"] for entry in found]
        items = [each["items"] for each in lists]
        return Recommendations(
            names,
            [_table_ids(each, [item["item"] for item in each["items"]]) for each in lists],
            [np.array([_number(item["score"]) for item in row], np.float32) for row in items],
            [each["source"] for each in lists],
            [[item["title"] for item in row] for row in items],
        )

    def similar(self, item: Any, k: int = 20, *, alpha: float | None = None) -> Recommendations:
        """Return the items that most follow from one."""
        found = self._ask("GET", "/similar", item=item, k=k, alpha=alpha, model=self._model)
        row = found["items"]
        scores = np.array([_number(each["score"]) for each in row], np.float32)
        items = _table_ids(found, [each["item"] for each in row])
        titles = [each["title"] for each in row]
        return Recommendations([item], [items], [scores], [found["source"]], [titles])

    def explain(self, history: Any, item: Any, *, alpha: float | None = None) -> Explanation:
        """Return what each item of a history, or of a user's, adds to the score of an item."""
        who = self._asked(history if is_id(history) else [history])[1][0]
        body = {**who, "item": item, "alpha": alpha, "model": self._model}
        found = self._ask("POST", "/explain", body)
        sources, parts, titles = (
            [each[name] for each in found["reasons"]] for name in ("item", "contribution", "title")
        )
        (explained,), sources = _table_ids(found, [found["item"]]), _table_ids(found, sources)
        return Explanation(explained, found["score"], sources, parts, titles)

    def score(
        self, histories: Any, items: Iterable[Any], *, alpha: float | None = None
    ) -> npt.NDArray[np.float64]:
        """Return the scores of these items for each user or history; NaN where there is none."""
        wanted = as_list(items)
        rows = []
        for who in self._asked(histories)[1]:
            body = {**who, "items": wanted, "alpha": alpha, "model": self._model}
            found = self._ask("POST", "/score", body)["scores"]
            rows.append([_number(each["score"]) for each in found])
        return np.array(rows, np.float64).reshape(len(rows), len(wanted))

    def add(self, events: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Send events with `user`, `item` and perhaps `id`, `type`, `weight`, `time`, `mark`.

        Once this returns they are on disk, and count for the next list. An event without an id
        gets one here, so that none counts twice where it has to be sent again.
        """
        start = secrets.token_hex(12)
        listed = [events] if isinstance(events, Mapping) else events
        given = [dict(each) for each in listed]
        for place, event in enumerate(given):
            if event.get("id") is None:
                event["id"] = f"{start}-{place:06d}"
        return self._ask("POST", "/events", {"events": given})

    def forget(self, user: Any) -> int:
        """Forget a user; return the number of rows taken out."""
        return int(self._ask("DELETE", f"/users/{quote(str(user), safe='')}")["removed"])

    def describe(self, item: Any, **attributes: Any) -> None:
        """Replace the attributes of an item, such as ``available=False`` or ``category="tea"``."""
        self._ask("PUT", f"/items/{quote(str(item), safe='')}", attributes)

    def items(self, text: str = "", limit: int = 20, offset: int = 0) -> dict[str, Any]:
        """Search the catalogue by title."""
        page = self._ask("GET", "/items", q=text, limit=limit, offset=offset, model=self._model)
        ids = _table_ids(page, [entry["item"] for entry in page["items"]])
        for entry, item in zip(page["items"], ids, strict=True):
            entry["item"] = item
        return page

    def summary(self) -> dict[str, Any]:
        """Return what is served."""
        return self._ask("GET", "/model", name=self._model)

    def _asked(self, wanted: Any) -> tuple[list[Any], list[dict[str, Any]]]:
        if isinstance(wanted, Mapping):
            names, given = list(wanted), [as_list(each) for each in wanted.values()]
            return names, [{"history": each} for each in given]
        listed = as_list(wanted)
        if all(is_id(each) for each in listed):
            return listed, [{"user": each} for each in listed]
        if any(is_id(each) for each in listed):
            raise DataError("pass either user ids or histories (lists of item ids), not a mixture")
        return list(range(len(listed))), [{"history": as_list(each)} for each in listed]

    def _ask(
        self, method: str, path: str, body: Any = None, *, again: bool = True, **query: Any
    ) -> dict[str, Any]:
        given = {name: value for name, value in query.items() if value is not None}
        target = self._root + path + (f"?{urlencode(given)}" if given else "")
        headers = {"content-type": "application/json"} if body is not None else {}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        content = None if body is None else json.dumps(body, default=_plain).encode()
        try:
            status, text = self._exchange(method, target, content, headers, again)
        except (OSError, http.client.HTTPException) as error:
            raise FetchError(f"{self.url} does not answer ({error}); is it running?") from error
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise FetchError(f"{self.url} is no equipoise service; check the address") from error
        if status >= 400:
            raise _error(found)
        return found

    def _exchange(
        self,
        method: str,
        target: str,
        content: bytes | None,
        headers: dict[str, str],
        again: bool = True,
    ) -> tuple[int, bytes]:
        """Send and read on a connection that no other thread uses.

        A connection that was idle may have been closed at the other end; what may be sent `again`
        is then sent on a new one, and other requests are sent on a new one from the start.
        """
        idle = self._idle
        connection = _take(idle) if again else None
        if connection is not None:
            with contextlib.suppress(ConnectionError):
                return self._send(idle, connection, method, target, content, headers)
        return self._send(idle, self._connect(), method, target, content, headers)

    def _send(
        self,
        idle: deque[tuple[int, http.client.HTTPConnection]],
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        content: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        """Send and read; only a connection whose answer was read to its end is used again."""
        try:
            connection.request(method, target, content, headers)
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


def _take(
    idle: deque[tuple[int, http.client.HTTPConnection]],
) -> http.client.HTTPConnection | None:
    """Return an idle connection of this process, None where there is none."""
    while True:
        try:
            process, connection = idle.pop()
        except IndexError:
            return None
        if process == os.getpid():
            return connection
        connection.close()  # a fork's copy; the parent goes on using its own


def _table_ids(answer: Mapping[str, Any], ids: list[str]) -> list[Any]:
    """Return the ids of items of an answer, which are text, as the data of the model have them."""
    if answer["item_ids"] == "text":
        return ids
    return [int(item) if WHOLE.fullmatch(item) else item for item in ids]  # a pin may be text


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no value that JSON can hold")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _error(problem: Mapping[str, Any]) -> EquipoiseError:
    """Return the error that the model itself would have raised."""
    text = str(problem.get("detail", "the service refused"))
    kinds = {404: UnknownIdError, 422: DataError, 413: DataError}
    kind: type[EquipoiseError] = kinds.get(int(problem.get("status", 0)), FetchError)
    return kind(text)
