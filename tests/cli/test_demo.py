from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.absent import absent
from typer.testing import Result

import equipoise as eq
from equipoise.errors import FetchError


@pytest.fixture(scope="module", autouse=True)
def movies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have MovieLens 100K at hand, or skip where no index answers; in CI that is a failure."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("EQUIPOISE_DATA"):
            patch.setenv("EQUIPOISE_DATA", str(tmp_path_factory.mktemp("data")))
        try:
            eq.datasets.load("movielens-100k")
        except FetchError as error:
            absent(str(error))
        yield


@pytest.mark.network
def test_the_demo_shows_titles_with_reasons(run: Callable[..., Result]) -> None:
    done = run("demo")
    assert done.exit_code == 0
    for text in ("licence: research use", "EASE + DAN", "unbiased", "liked", "because of", "tail"):
        assert text in done.stdout


@pytest.mark.network
def test_the_demo_keeps_its_promise(answer: Callable[..., Any]) -> None:
    document = answer("demo")
    plain, dropout, balanced, automatic = (model["values"] for model in document["models"])
    assert balanced["tail_ndcg@20"] > dropout["tail_ndcg@20"] > plain["tail_ndcg@20"]
    assert automatic["tail_ndcg@20"] > plain["tail_ndcg@20"]
    assert balanced["ndcg@20"] > 0.98 * plain["ndcg@20"]
    user = document["user"]
    seen = set(user["history"])
    for films in user["lists"].values():
        assert len(films) == 10
        for film in films:
            assert film["title"] not in seen
            assert 1 <= len(film["why"]) <= 2
            assert {reason["title"] for reason in film["why"]} <= seen
    dial = list(user["dial"].values())
    assert dial == sorted(dial)


@pytest.mark.network
def test_the_demo_takes_a_user_of_the_test_part(run: Callable[..., Result]) -> None:
    done = run("demo", "--user", "0")
    assert done.exit_code == 1
    assert "the test part has no user '0'; choose one of" in done.stderr
