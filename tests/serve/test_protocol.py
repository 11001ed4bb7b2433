"""Requests that are answered without a task, and those that need one after all."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.serve.conftest import READY, Process

from equipoise.serve.protocol import Started


def start(coroutine: Any) -> Any:
    """Run a coroutine up to its first wait; return what goes on with it."""
    return Started(coroutine, coroutine.send(None)).finish()


def test_a_started_coroutine_goes_on_in_a_task() -> None:
    steps: list[Any] = []

    async def work(answer: asyncio.Future[str]) -> None:
        steps.append(asyncio.current_task() is None)
        await asyncio.sleep(0)
        steps.append(asyncio.current_task() is not None)
        async with asyncio.timeout(5):
            steps.append(await answer)

    async def main() -> None:
        answer = asyncio.get_running_loop().create_future()
        # a callback of the loop, as the parser's, is outside of any task
        rest: list[Any] = []
        asyncio.get_running_loop().call_soon(lambda: rest.append(start(work(answer))))
        await asyncio.sleep(0.01)
        answer.set_result("done")
        await asyncio.create_task(rest[0])

    asyncio.run(main())
    assert steps == [True, True, "done"]


def test_an_error_and_a_cancellation_reach_a_started_coroutine() -> None:
    reached: list[str] = []

    async def work(answer: asyncio.Future[None]) -> None:
        try:
            await answer
        except BaseException as error:
            reached.append(type(error).__name__)
            raise

    async def main() -> None:
        loop = asyncio.get_running_loop()
        failing, waiting = loop.create_future(), loop.create_future()
        first, second = start(work(failing)), loop.create_task(start(work(waiting)))
        failing.set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await first
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second

    asyncio.run(main())
    assert reached == ["ValueError", "CancelledError"]


def post(body: dict[str, Any]) -> bytes:
    """Return a request for a list."""
    content = json.dumps(body).encode()
    head = "POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def answers(service: Process, *parts: bytes, number: int) -> list[Any]:
    """Send parts one after the other on a connection; return the bodies of the answers."""
    address = urlsplit(service.address)
    bodies: list[Any] = []
    with socket.create_connection((address.hostname, address.port), timeout=READY) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(0.05)  # so that the parts arrive one by one
        file = client.makefile("rb")
        while len(bodies) < number:
            length = 0
            while (line := file.readline()) not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            bodies.append(json.loads(file.read(length)))
    return bodies


def test_lists_come_in_order_however_their_requests_arrive(service: Process) -> None:
    users = [f"u{n}" for n in range(6)]
    requests = [post({"user": user, "k": 5}) for user in users]
    together, alone = b"".join(requests), b"".join(requests[:1])
    for parts in ([together], [together[:300], together[300:]], requests):
        listed = answers(service, *parts, number=len(users))
        assert [body["user"] for body in listed] == users
    # the body after the head, and in two parts
    end = len(alone) - 5
    for cut in (len(alone.partition(b"\r\n\r\n")[0]) + 4, end):
        (body,) = answers(service, alone[:cut], alone[cut:], number=1)
        assert body["user"] == "u0"


def test_a_request_that_has_to_wait_is_answered_in_its_turn(service: Process) -> None:
    writes = post({"user": "u1", "k": 3, "mark": "seen"})  # waits for the store
    long = post({"user": "u2", "k": 3, "rules": {"diversity": 0.5}})  # computed in a thread
    wrong = post({"user": "u3", "k": 0})
    short = post({"user": "u4", "k": 3})
    for parts in ([writes + long + wrong + short], [writes, long, wrong, short]):
        first, second, third, last = answers(service, *parts, number=4)
        assert [first["user"], second["user"], last["user"]] == ["u1", "u2", "u4"]
        assert third["status"] == 422
    (again,) = answers(service, post({"user": "u1", "k": 3}), number=1)
    shown = {item["item"] for item in first["items"]}
    assert not shown & {item["item"] for item in again["items"]}
