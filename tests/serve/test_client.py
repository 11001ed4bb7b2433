"""`eq.Client` gives what the model gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.conftest import FIRST_WIDE, Process, Start

import equipoise as eq


def test_the_client_has_the_methods_of_the_model(service: Process, saved: Path) -> None:
    model = eq.load(saved / "dan")
    with service.client() as client:
        users = [f"u{n}" for n in range(150)]
        mine, theirs = model.recommend(users, k=5), client.recommend(users, k=5)
        assert theirs.items == mine.items
        assert theirs.users == users
        assert theirs.source == mine.source
        assert all(map(np.array_equal, mine.scores, theirs.scores))
        assert theirs.titles == mine.titles
        some = {"a": [3, 13], "b": [23]}
        options = {"alpha": 0.8, "exclude": [33], "k": 6}
        assert client.recommend(some, **options).items == model.recommend(some, **options).items
        assert client.recommend([[3]], k=3).users == [0]
        assert client.similar(13, k=4).items == model.similar(13, k=4).items
        why, because = model.explain([3, 13], 23), client.explain([3, 13], 23)
        assert because.sources == why.sources
        assert because.score == why.score
        wanted = model.interactions_.items[[0, 5]]
        assert np.array_equal(client.score(["u5"], wanted), model.score(["u5"])[:, [0, 5]])
        assert client.summary()["items"] == 80
        assert client.items("item 7")["total"] == 11


def test_ids_come_back_as_the_data_have_them(wide: Path, start: Start, tmp_path: Path) -> None:
    model = eq.load(wide)
    service = start(wide, "--store", f"sqlite:///{tmp_path}/x.db")
    with service.client() as client:
        users = model.interactions_.users[:3]
        mine, theirs = model.recommend(users, k=5), client.recommend(users, k=5)
        assert theirs.items == mine.items
        assert all(type(item) is int for item in theirs.items[0])
        assert client.similar(FIRST_WIDE, k=4).items == model.similar(FIRST_WIDE, k=4).items
        why, because = (each.explain([FIRST_WIDE], FIRST_WIDE + 1) for each in (model, client))
        assert (because.item, because.sources) == (why.item, why.sources)
        assert client.items(str(FIRST_WIDE))["items"][0]["item"] == FIRST_WIDE


def test_events_attributes_and_forgetting(service: Process) -> None:
    with service.client() as client:
        assert client.add({"user": "c", "item": 3, "id": "c1"})["accepted"] == 1
        assert client.add([{"user": "c", "item": 3, "id": "c1"}])["duplicates"] == 1
        (first, *_) = client.recommend(["c"]).items[0]
        client.describe(first, available=False)
        assert first not in client.recommend(["c"], k=80).items[0]
        client.describe(first)
        assert client.forget("c") == 1
        assert client.recommend(["c"]).source == ["popular"]


def test_events_that_are_sent_again_count_once(
    service: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service.client() as client:
        send = client._exchange

        def twice(*given: Any) -> Any:
            send(*given)  # its answer is lost
            return send(*given)

        monkeypatch.setattr(client, "_exchange", twice)
        found = client.add([{"user": "again", "item": 3}, {"user": "again", "item": 13}])
        assert (found["accepted"], found["duplicates"]) == (0, 2)


def test_errors_are_those_of_the_model(service: Process) -> None:
    with service.client() as client:
        with pytest.raises(eq.UnknownIdError, match="unknown item 'none'"):
            client.similar("none")
        with pytest.raises(eq.DataError, match="k"):
            client.recommend(["u5"], k=0)
        with pytest.raises(eq.DataError, match="mixture"):
            client.recommend(["u5", [3]])
    other = service.client(model="none")
    with other, pytest.raises(eq.UnknownIdError, match="no model"):
        other.recommend(["u5"])
    with pytest.raises(eq.FetchError, match="does not answer"):
        eq.Client("http://127.0.0.1:9").summary()
    with pytest.raises(eq.SettingError, match="url must look like"):
        eq.Client("ftp://shop")
    with pytest.raises(eq.SettingError, match="no port"):
        eq.Client("http://127.0.0.1:80000")
