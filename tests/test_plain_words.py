"""`tools/plain_words.py`: the check of `make lint` for names that say nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "plain_words.py"
SOURCE = """\
class Found:
    def total(self, wanted):
        return self.held + wanted + len(found_rows)
"""


def run_checker(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vague.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "plain.py").write_text("scores = [2, 3]\nprint(scores)\n", encoding="utf-8")
    return tmp_path


def test_rate_counts_vague_names_of_every_kind_and_names_the_worst_file(folder: Path) -> None:
    done = run_checker(folder)
    assert done.returncode == 0
    # Found, wanted, held, wanted; beside total, self, self, len, found_rows, scores, print, scores
    assert f"{folder}: 333.3 vague names per 1,000 of 12 identifiers" in done.stdout
    assert f"     4  {folder / 'vague.py'}" in done.stdout
    assert "plain.py" not in done.stdout


def test_rate_above_the_bound_fails_and_lists_the_places(folder: Path) -> None:
    done = run_checker(folder, "--most", 333)
    assert done.returncode == 1
    for line, name in ((1, "Found"), (2, "wanted"), (3, "held"), (3, "wanted")):
        assert f"{folder / 'vague.py'}:{line}: {name}\n" in done.stdout
    assert f"more than 333 vague names per 1,000 in {folder}" in done.stderr


def test_rate_at_most_the_bound_passes(folder: Path) -> None:
    assert run_checker(folder, "--most", 334).returncode == 0


def test_folder_without_python_files_is_an_error(tmp_path: Path) -> None:
    done = run_checker(tmp_path, "--most", 1)
    assert done.returncode == 1
    assert "no Python files" in done.stderr
