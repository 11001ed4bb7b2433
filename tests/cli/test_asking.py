from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import Result

import equipoise as eq

Run = Callable[..., Result]
Answer = Callable[..., Any]


@pytest.fixture
def model(shop: Path) -> Any:
    return eq.load(shop / "model")


@pytest.fixture
def someone(model: Any) -> str:
    """Return a training user who has not used everything."""
    return str(model.interactions_.users[0])


def test_recommend_gives_the_models_lists(model: Any, someone: str, answer: Answer) -> None:
    (found,) = answer("recommend", "model", "--user", someone, "-k", 3)
    expected = model.recommend([someone], k=3)
    assert [row["item"] for row in found["items"]] == expected.items[0]
    assert [row["title"] for row in found["items"]] == expected.titles[0]
    assert found["source"] == "model"


def test_recommend_takes_histories_by_id_and_title(model: Any, answer: Answer) -> None:
    by_id, by_title = answer(
        "recommend", "model", "--history", "egg,tea", "--history", '["Eggs, six", "green tea"]'
    )
    assert by_id["items"] == by_title["items"]
    assert [row["item"] for row in by_id["items"]] == model.recommend([["egg", "tea"]]).items[0]


def test_recommend_obeys_its_options(answer: Answer) -> None:
    ask = ("recommend", "model", "--history", "tea")
    (left_out,) = answer(*ask, "--exclude", "milk")
    assert "milk" not in [row["item"] for row in left_out["items"]]
    (chosen,) = answer(*ask, "--candidates", "fig,jam,tea")
    assert sorted(row["item"] for row in chosen["items"]) == ["fig", "jam"]
    (seen,) = answer(*ask, "--candidates", "fig,jam,tea", "--with-seen")
    assert sorted(row["item"] for row in seen["items"]) == ["fig", "jam", "tea"]
    (plain,), (turned,) = answer(*ask), answer(*ask, "--alpha", 0.8)
    assert plain["items"] != turned["items"]


def test_recommend_names_its_reasons(model: Any, run: Run, answer: Answer) -> None:
    (found,) = answer("recommend", "model", "--history", "tea,milk,oil", "-k", 2, "--why")
    first = found["items"][0]
    parts = model.explain(["tea", "milk", "oil"], first["item"])
    positive = sorted((part for part in parts.contributions if part > 0), reverse=True)
    assert [reason["contribution"] for reason in first["why"]] == positive[:2]
    shown = run("recommend", "model", "--history", "tea,bun", "-k", 2, "--why").stdout
    assert "for the history Green tea, Bun [soft]" in shown
    assert "because of" in shown


def test_an_empty_history_gets_popular_items_and_is_told(run: Run, answer: Answer) -> None:
    (found,) = answer("recommend", "model", "--history", "", "-k", 2, "--why")
    assert found["source"] == "popular"
    assert found["items"][0]["why"] == []
    assert "the most popular items" in run("recommend", "model", "--history", "", "-k", 2).stdout


def test_recommend_to_everybody_writes_parquet(model: Any, tmp_path: Path, answer: Answer) -> None:
    found = answer("recommend", "model", "--all", "--out", tmp_path / "recs.parquet", "-k", 3)
    frame = pl.read_parquet(tmp_path / "recs.parquet")
    assert found["people"] == model.interactions_.n_users
    assert frame["user"].n_unique() == found["people"]
    assert frame.columns[:4] == ["user", "item", "score", "rank"]


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ([], 2, "give one of --user, --history and --all"),
        (["--all"], 2, "--all needs --out"),
        (["--all", "--out", "recs.csv"], 2, "must end in .parquet"),
        (["--history", "ham"], 1, "the model knows no item 'ham'; did you mean jam (Plum jam)?"),
        (["--history", "tea", "--user", "u1"], 2, "give one of"),
        (["--history", "[tea"], 2, "not a JSON list"),
        (["--user", "u1x"], 1, "did you mean 'u1"),
        (["--history", "tea", "-k", "0"], 2, "k must be"),
    ],
)
def test_recommend_refuses_nonsense(args: list[str], code: int, sentence: str, run: Run) -> None:
    done = run("recommend", "model", *args)
    assert (done.exit_code, done.stdout) == (code, "")
    assert sentence in done.stderr


def test_text_is_no_id_where_ids_are_integers(tmp_path: Path, run: Run, answer: Answer) -> None:
    rows = [f"{user},{item}" for user in range(1, 9) for item in range(10, 14) if user % item % 3]
    (tmp_path / "numbers.csv").write_text("user,item\n" + "\n".join(rows) + "\n")
    answer("fit", tmp_path / "numbers.csv", tmp_path / "model")
    (found,) = answer("recommend", tmp_path / "model", "--user", 1, "--with-seen")
    assert found["user"] == 1
    assert {row["item"] for row in found["items"]} <= {10, 11, 12, 13}
    done = run("recommend", tmp_path / "model", "--user", "ann")
    assert done.exit_code == 1
    assert "the user ids of this model are integers" in done.stderr


def test_similar_items_are_those_of_the_model(model: Any, run: Run, answer: Answer) -> None:
    found = answer("similar", "model", "Green tea", "-k", 3)
    assert found["item"] == "tea"
    assert [row["item"] for row in found["similar"]] == model.similar("tea", 3).items[0]
    assert "similar to Green tea" in run("similar", "model", "tea").stdout


def test_explained_parts_add_up(run: Run, someone: str, answer: Answer) -> None:
    found = answer("explain", "model", "tea", "--history", "milk,oil,jam")
    assert sum(found["contributions"]) == found["score"]
    assert found["title"] == "Green tea"
    shown = run("explain", "model", "--user", someone, "tea").stdout
    assert shown.strip().startswith("Green tea: score ")


def test_an_item_may_be_asked_for_by_part_of_its_title(run: Run) -> None:
    done = run("similar", "model", "soft")
    assert done.exit_code == 1
    assert "did you mean bun (Bun [soft])?" in done.stderr
