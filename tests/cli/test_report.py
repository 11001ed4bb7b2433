"""The command `report`: a page, JSON about it, and the case study."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Answer, Run

from equipoise.data.split import Split

READ = ("events.csv", "--catalogue", "titles.csv")


def test_report_writes_a_page_and_tells_what_it_says(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run("report", *READ, "--out", page, "-k", 3, "--sample", 2, "--title", "My shop")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("After the last event expect NDCG@20 0.")
    assert "On items hidden at random instead, NDCG@3 over all items" in done.stdout
    assert str(page) in done.stdout
    text = page.read_text(encoding="utf-8")
    assert "<h1>My shop</h1>" in text
    assert text.count('class="user"') == 2
    assert "Whole milk" in text


def test_a_saved_split_and_model_are_reported_as_they_are(answer: Answer, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    document = answer("report", "split", "--model", "model", "--out", page, "-k", 3)
    assert document["path"] == str(page)
    assert document["bytes"] == page.stat().st_size
    assert document["models"][-1]["name"] == "Your model, EASE"
    assert "as it was fitted on the train part" in document["choices"][-1]
    assert "users" not in document


def test_a_certain_user_can_be_shown(run: Run, answer: Answer, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    user = Split.load("split").test.history.users[0]
    answer("report", "split", "--out", page, "--show-user", user, "-k", 3)
    assert f"User {user}</h3>" in page.read_text(encoding="utf-8")
    done = run("report", "split", "--out", page, "--show-user", "nobody")
    assert done.exit_code == 1
    assert "the test part has no user 'nobody'" in done.stderr


def test_the_case_study_is_printed_and_written(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "case.html"
    done = run("report", *READ, "--case-study", "u3", "-k", 2, "--out", page)
    assert done.exit_code == 0, done.output
    for words in ("W/O: no normalization", "RW: random walk", "DAN: data-adaptive", "Sym:"):
        assert words in done.stdout
    assert "User u3" in page.read_text(encoding="utf-8")


def test_the_case_study_answers_in_json(answer: Answer) -> None:
    document = answer("report", *READ, "--case-study", "u3", "-k", 2)
    assert list(document["lists"]) == ["W/O", "RW", "DAN", "Sym"]
    assert document["lists"]["DAN"][0]["rank"] == 1
