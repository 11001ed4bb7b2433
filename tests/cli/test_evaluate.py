from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Answer, Run

import equipoise as eq


def test_evaluate_prints_what_the_library_finds(shop: Path, answer: Answer) -> None:
    document = answer("evaluate", "model", "split", "-k", 2, "-k", 5)
    split = eq.Split.load(shop / "split")
    expected = eq.evaluate(eq.load(shop / "model"), split.test, k=[2, 5])
    assert document["values"] == expected.to_dict()["values"]
    assert document["k"] == [2, 5]


def test_the_table_explains_its_words(run: Run) -> None:
    shown = run("evaluate", "model", "split", "-k", 3).stdout
    assert shown.splitlines()[0] == "EASE l2=5"
    for word in ("all", "head", "tail", "unbiased", "coverage", "gini", "novelty", "lift"):
        assert f"{word}:" in shown or f"{word} " in shown
    assert "recall: hits among the first k / min(k, number of targets)" in shown
    assert "95% interval" in shown
    assert "test part, 9 users, lists of 3" in shown


def test_evaluate_fits_in_place(shop: Path, answer: Answer) -> None:
    here = answer("evaluate", "--model", "ease", "--l2", 5, "--dropout", 0, "split")
    saved = answer("evaluate", "model", "split")
    assert here["values"] == saved["values"]


def test_the_valid_part_can_be_evaluated_on(answer: Answer) -> None:
    assert answer("evaluate", "model", "split", "--part", "valid")["part"] == "valid"


def test_tuned_on_test_is_on_the_label(run: Run) -> None:
    shown = run("evaluate", "model", "split", "--tuned-on-test").stdout
    assert shown.splitlines()[0].endswith("(tuned on test)")
    assert "so too optimistic for new users" in shown


def test_a_model_of_other_data_is_warned_about(tmp_path: Path, run: Run) -> None:
    run("fit", "events.csv", tmp_path / "model")
    done = run("evaluate", tmp_path / "model", "split")
    assert "may have seen the held-out items" in done.stderr
    assert "warning" not in run("evaluate", "model", "split").stderr


def test_a_split_without_valid_part_says_so(tmp_path: Path, run: Run) -> None:
    run("split", "events.csv", tmp_path / "weak", "-p", "weak")
    done = run("evaluate", "-m", "popularity", tmp_path / "weak", "--part", "valid")
    assert done.exit_code == 2
    assert "has no valid part" in done.stderr


def test_compare_tests_user_by_user(run: Run, answer: Answer) -> None:
    document = answer("compare", "result-ease", "result-dan", "--metric", "recall@20")
    (row,) = document["rows"]
    assert (row["model"], row["baseline"], row["n_users"]) == ("result-dan", "result-ease", 9)
    assert row["difference"] == pytest.approx(row["mean"] - row["baseline_mean"])
    shown = run("compare", "result-ease", "result-dan").stdout
    assert "result-ease: EASE" in shown
    assert "no clear difference" in shown or "better" in shown or "worse" in shown


def test_leave_one_out_needs_no_split(shop: Path, answer: Answer, run: Run) -> None:
    document = answer("evaluate", "model", "--leave-one-out", "--users", 30, "-k", 5)
    expected = eq.leave_one_out(eq.load(shop / "model"), 30, 5)
    assert document["values"]["ndcg@5"] == expected["ndcg@5"]
    assert document["protocol"] == "leave-one-out"
    shown = run("evaluate", "model", "--leave-one-out").stdout
    assert "leave-one-out of the training data" in shown
    assert "left out of the fit, exactly" in shown
    dialled = answer("evaluate", "model", "--leave-one-out", "--users", 30, "--dial", 0.4)
    expected = eq.leave_one_out(eq.load(shop / "model"), 30, alpha=0.4)
    assert dialled["values"]["ndcg@20"] == expected["ndcg@20"]
    done = run("evaluate", "model", "--leave-one-out", "--tuned-on-test")
    assert "cannot be combined with --part" in done.stderr
    done = run("evaluate", "model", "split", "--leave-one-out")
    assert "takes only MODEL" in done.stderr


def test_lists_rules_and_the_dial_are_evaluated(
    tmp_path: Path, shop: Path, run: Run, answer: Answer
) -> None:
    split, model = eq.Split.load(shop / "split"), eq.load(shop / "model")
    lists = model.recommend(split.test.history, k=5).to_frame()
    lists.write_csv(tmp_path / "theirs.csv")
    ours = answer("evaluate", "model", "split", "-k", 2)
    external = answer("evaluate", tmp_path / "theirs.csv", "split", "-k", 2)
    assert external["values"] == ours["values"]
    assert external["name"] == "theirs"
    (tmp_path / "rules.toml").write_text('exclude = ["tea"]\n')
    ruled = answer("evaluate", "model", "split", "--rules", tmp_path / "rules.toml", "--dial", 0)
    assert ruled["settings"]["rules"] == {"exclude": ["tea"]}
    assert ruled["settings"]["alpha"] == 0
    assert "theirs" in run("evaluate", tmp_path / "theirs.csv", "split").stdout
