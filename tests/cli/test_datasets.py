from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import equipoise as eq

Run = Callable[..., Result]
Answer = Callable[..., Any]


def test_every_data_set_is_listed_with_its_licence(run: Run, answer: Answer) -> None:
    found = answer("datasets", "list")
    assert [entry["name"] for entry in found] == eq.datasets.names()
    assert all(entry["licence"] for entry in found)
    assert found[0]["published"] == {"users": 943, "items": 1682, "interactions": 100_000}
    shown = run("datasets").stdout
    assert "bring your own" in shown
    assert "CC BY-NC-SA 4.0" in shown


def test_datasets_alone_also_prints_json(answer: Answer) -> None:
    assert answer("datasets") == answer("datasets", "list")


def test_show_tells_how_to_get_a_set(run: Run, answer: Answer) -> None:
    assert answer("datasets", "show", "gowalla")["home"].startswith("https://snap.stanford.edu")
    assert "datasets fetch gowalla --raw FOLDER" in run("datasets", "show", "gowalla").stdout
    assert "equipoise stats movielens-1m" in run("datasets", "show", "movielens-1m").stdout


def test_fetch_prepares_raw_files(tmp_path: Path, answer: Answer) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    events = ["session,item,time"] + [f"s{n // 2},i{n % 2},{n}" for n in range(40)]
    (raw / "notes.txt").write_text("\n".join(events))
    for name in ("train.txt", "test.txt"):
        rows = [f"{user} {' '.join(str(item) for item in range(12))}" for user in range(12)]
        (raw / name).write_text("\n".join(rows) + "\n")
    found = answer("datasets", "fetch", "gowalla", "--raw", raw, "--out", tmp_path / "out")
    assert found["users"] == 12
    assert eq.read(tmp_path / "out").n_items == 12


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["gowalla"], "has to be downloaded by hand"),
        (["gowalla", "--raw", "."], "say with --out where to save"),
    ],
)
def test_fetch_says_what_is_missing(args: list[str], sentence: str, run: Run) -> None:
    done = run("datasets", "fetch", *args)
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_demo_without_an_index_says_how_to_get_the_data(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    done = run("demo")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "put the .whl file into" in done.stderr.splitlines()[-1]
