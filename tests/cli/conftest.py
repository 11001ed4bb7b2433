"""A small shop on disk, with a split, a model and results made by the command itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from equipoise.cli.app import app

TITLES = {
    "tea": "Green tea",
    "milk": "Whole milk",
    "salt": "Sea salt",
    "rice": "Basmati rice",
    "oil": "Olive oil",
    "jam": "Plum jam",
    "egg": "Eggs, six",
    "bun": "Bun [soft]",
    "pea": "Peas",
    "fig": "Figs",
}
Run = Callable[..., Result]
Answer = Callable[..., Any]


def call(*args: object) -> Result:
    """Run the command in this process; anything but a tidy exit is raised."""
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def write_shop(folder: Path) -> None:
    """Write `events.csv` (90 users, 10 items, times), `titles.csv` and `new.csv`."""
    rng = np.random.default_rng(5)
    weight = 1 / np.arange(1, len(TITLES) + 1)
    lines = ["user_id,item_id,timestamp"]
    for user in range(1, 91):
        chosen = rng.choice(
            list(TITLES), size=int(rng.integers(3, 7)), replace=False, p=weight / weight.sum()
        )
        lines += [
            f"u{user},{item},{1_700_000_000 + 60 * user + 86_400 * n}"
            for n, item in enumerate(chosen)
        ]
    (folder / "events.csv").write_text("\n".join(lines) + "\n")
    titles = [f'{item},"{title}"' for item, title in TITLES.items()]
    (folder / "titles.csv").write_text("item_id,title\n" + "\n".join(titles) + "\n")
    (folder / "new.csv").write_text(
        "user_id,item_id,timestamp\nnew,tea,1700000000\nnew,fig,1700000060\n"
    )


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tables above and `split`, `model`, `result-ease`, `result-dan`."""
    folder = tmp_path_factory.mktemp("shop")
    write_shop(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        dan = ("--l2", 5, "--normalizer", "dan", "--alpha", 0.3, "--beta", 0.2)
        for args in (
            ("split", "events.csv", "split", "--catalogue", "titles.csv"),
            ("fit", "split", "model", "--l2", 5, "--dropout", 0),
            ("evaluate", "model", "split", "-k", 2, "-k", 20, "--save", "result-ease"),
            ("evaluate", "split", "-m", "ease", *dan, "-k", 20, "--save", "result-dan"),
        ):
            done = call(*args)
            assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def run(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the command inside the shop; nothing there may be replaced."""
    monkeypatch.chdir(shop)
    return call


@pytest.fixture
def answer(run: Run) -> Answer:
    """Return a function that runs a command with `--json` and gives back the document."""

    def ask(*args: object) -> Any:
        done = run(*args, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return ask
