"""List the source files that six typical operations of the package execute, in order.

A file counts if one of its functions is called; importing it is not enough.

    python benchmarks/walks.py            print the section "Call paths" of docs/architecture.md
    python benchmarks/walks.py --write    replace that section
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import io
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
from paper_path import PAPER

import equipoise as eq
from equipoise.cli import app
from equipoise.serve.app import create
from equipoise.serve.config import Config
from reproduce import runner
from reproduce.config import load_config

PLACES = (Path(eq.__file__).parent, PAPER / "reproduce")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
BEGIN = "<!-- benchmarks/walks.py --write begins here -->\n"
END = "<!-- benchmarks/walks.py --write ends here -->\n"


@contextlib.contextmanager
def walked() -> Iterator[list[str]]:
    """Collect the files whose functions are called inside the block, in order."""
    files: list[str] = []

    def look(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event != "call" or code.co_name == "<module>":
            return
        for place in PLACES:
            if code.co_filename.startswith(f"{place}/"):
                name = code.co_filename.removeprefix(f"{place.parent}/").removeprefix("equipoise/")
                if name not in files:
                    files.append(name)

    sys.setprofile(look)
    threading.setprofile(look)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def command(*words: object) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        sys.argv = ["equipoise", *map(str, words)]
        with contextlib.suppress(SystemExit):
            app.main()


def one_cell(folder: Path, pairs: np.ndarray) -> None:
    """Run LAE's row of Table 3 on the pairs, laid out like the published split."""
    strong = folder / "data" / "gowalla" / "strong"
    strong.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid_in", "valid_target", "test_in", "test_target"):
        users, items = pairs[: len(pairs) // 2].T if name.endswith("target") else pairs.T
        np.savez(strong / f"{name}.npz", users=users.astype("i4"), items=items.astype("i4"))
    config = load_config(PAPER / "table3.toml")
    rows = [row for row in config.rows if (row.dataset, row.name) == ("Gowalla", "LAE")]
    out = folder / "table3.csv"
    out.unlink(missing_ok=True)
    runner.run(dataclasses.replace(config, rows=rows), folder / "data", out)


def post(service: object, body: dict[str, object]) -> None:
    """Send one request to a service in this process."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post("/v1/recommend", json=body)

    asyncio.run(send()).raise_for_status()


def files_of(operation: Callable[[], object]) -> list[str]:
    operation()  # first without tracing, so that imports do not count
    with walked() as files:
        operation()
    return files


def walks() -> dict[str, list[str]]:
    """Return the files of each walk, by its title."""
    rng = np.random.default_rng(0)
    folder = Path(tempfile.mkdtemp())
    events = folder / "events.csv"
    pairs = np.argwhere(rng.random((60, 25)) < 0.3)
    lines = [f"u{user},i{item}" for user, item in pairs]
    events.write_text("\n".join(["user,item", *lines]), encoding="utf-8")
    data = eq.read(events)
    model = folder / "model"
    eq.EASE(l2=5.0).fit(data).save(model)
    split = eq.split.strong(data, valid=0.2, test=0.2)
    settings = {"models": {"default": str(model)}, "store": f"sqlite:///{folder}/events.db"}
    service = create(Config.read(None, {**settings, "access_log": False}))
    operations: dict[str, Callable[[], object]] = {
        "a CSV row until it is a number in P": lambda: eq.EASE(l2=5.0).fit(eq.read(events)),
        "`equipoise recommend` until ranked ids": lambda: command(
            "recommend", model, "--user", "u1"
        ),
        "one trial of `tune(EASE, split)`": lambda: eq.tune(eq.EASE, split, grid={"l2": [5.0]}),
        "`tune(data)`": lambda: eq.tune(data),
        "`POST /v1/recommend`": lambda: post(service, {"user": "u1", "k": 5}),
        "one cell of Table 3": lambda: one_cell(folder, pairs),
    }
    return {title: files_of(operation) for title, operation in operations.items()}


def section() -> str:
    """Return a table of the numbers of files, and the list of each walk."""
    files = walks()
    rows = [f"| {title} | {len(names)} |" for title, names in files.items()]
    paths = [
        textwrap.fill(
            f"- *{title}*: {' → '.join(names)}",
            width=120,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        for title, names in files.items()
    ]
    return "\n".join(["", "| walk | files |", "|---|---|", *rows, "", *paths, "", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the section of the page")
    args = parser.parse_args()
    text = section()
    if not args.write:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
