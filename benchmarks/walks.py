"""List the source files that four typical operations of the package execute, in order.

A file counts if one of its functions is called; importing it is not enough. Run

    python benchmarks/walks.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from paper_path import PAPER

import equipoise as eq
from equipoise.cli import app
from reproduce import runner
from reproduce.config import load_config

PLACES = (Path(eq.__file__).parent, PAPER / "reproduce")


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
                name = code.co_filename.removeprefix(f"{place.parent}/")
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


def show(title: str, walk: Callable[[], object]) -> None:
    walk()  # first without tracing, so that imports do not count
    with walked() as files:
        walk()
    print(f"{title}: {len(files)} files\n  {' -> '.join(files)}\n")


def main() -> None:
    rng = np.random.default_rng(0)
    folder = Path(tempfile.mkdtemp())
    events = folder / "events.csv"
    pairs = np.argwhere(rng.random((60, 25)) < 0.3)
    lines = [f"u{user},i{item}" for user, item in pairs]
    events.write_text("\n".join(["user,item", *lines]), encoding="utf-8")
    show("a CSV row until it is a number in P", lambda: eq.EASE(l2=5.0).fit(eq.read(events)))
    model = folder / "model"
    eq.EASE(l2=5.0).fit(eq.read(events)).save(model)
    show(
        "`equipoise recommend` until ranked ids",
        lambda: command("recommend", model, "--user", "u1"),
    )
    split = eq.split.strong(eq.read(events), valid=0.2, test=0.2)
    show("one trial of `tune`", lambda: eq.tune(eq.EASE, split, grid={"l2": [5.0]}))
    show("one cell of Table 3", lambda: one_cell(folder, pairs))


if __name__ == "__main__":
    main()
