"""Commands that ask a model: ids and titles in texts, lists, reasons, sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.cli.conftest import Answer, Run, call

import equipoise as eq
from equipoise.cli.data import find_items, find_users, split_list


@pytest.fixture
def model(shop: Path) -> Any:
    return eq.load(shop / "model")


@pytest.fixture
def someone(model: Any) -> str:
    """Return a training user who has not used everything."""
    return str(model.interactions_.users[0])


def test_recommend_gives_the_models_lists(model: Any, someone: str, answer: Answer) -> None:
    (document,) = answer("recommend", "model", "--user", someone, "-k", 3)
    expected = model.recommend([someone], k=3)
    assert [row["item"] for row in document["items"]] == expected.items[0]
    assert [row["title"] for row in document["items"]] == expected.titles[0]
    assert document["source"] == "model"


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
    (document,) = answer("recommend", "model", "--history", "tea,milk,oil", "-k", 2, "--why")
    first = document["items"][0]
    parts = model.explain(["tea", "milk", "oil"], first["item"])
    positive = sorted((part for part in parts.contributions if part > 0), reverse=True)
    assert [reason["contribution"] for reason in first["why"]] == positive[:2]
    shown = run("recommend", "model", "--history", "tea,bun", "-k", 2, "--why").stdout
    assert "for the history Green tea, Bun [soft]" in shown
    assert "because of" in shown


def test_an_empty_history_gets_popular_items_and_is_told(run: Run, answer: Answer) -> None:
    (document,) = answer("recommend", "model", "--history", "", "-k", 2, "--why")
    assert document["source"] == "popular"
    assert document["items"][0]["why"] == []
    assert "the most popular items" in run("recommend", "model", "--history", "", "-k", 2).stdout


def test_recommend_to_all_users_writes_parquet(model: Any, tmp_path: Path, answer: Answer) -> None:
    document = answer("recommend", "model", "--all", "--out", tmp_path / "recs.parquet", "-k", 3)
    frame = pl.read_parquet(tmp_path / "recs.parquet")
    assert document["users"] == model.interactions_.n_users
    assert frame["user"].n_unique() == document["users"]
    assert frame.columns[:4] == ["user", "item", "score", "rank"]


def test_recommend_writes_what_the_name_of_the_file_says(
    model: Any, tmp_path: Path, run: Run, answer: Answer
) -> None:
    for suffix, read in (("csv", pl.read_csv), ("jsonl", pl.read_ndjson)):
        file = tmp_path / f"recs.{suffix}"
        answer("recommend", "model", "--all", "--out", file, "-k", 2, "--why")
        frame = read(file)
        assert {"title", "source", "reasons", "because"} <= set(frame.columns)
        expected = model.recommend(model.interactions_, k=2, reasons=2)
        assert frame["item"].to_list() == [item for row in expected.items for item in row]
    done = run("recommend", "model", "--all", "--out", tmp_path / "recs.xls")
    assert done.exit_code == 2
    assert "must end in .parquet, .csv, .jsonl" in done.stderr


def test_rules_and_lists_of_items_come_from_files(
    model: Any, tmp_path: Path, someone: str, answer: Answer
) -> None:
    (tmp_path / "rules.toml").write_text('pin = ["fig"]\nseen = "include"\n')
    (document,) = answer(
        "recommend", "model", "--user", someone, "--rules", tmp_path / "rules.toml", "-k", 3
    )
    assert document["items"][0]["item"] == "fig"
    (tmp_path / "stock.csv").write_text("price,item_id\n1,fig\n2,jam\n3,new thing\n")
    (tmp_path / "plain.txt").write_text("fig\njam\nnew thing\n")
    pl.DataFrame({"item": ["fig", "jam"]}).write_parquet(tmp_path / "stock.parquet")
    ask = ("recommend", "model", "--history", "tea")
    for file in ("stock.csv", "plain.txt", "stock.parquet"):
        (ranked,) = answer(*ask, "--candidates", f"@{tmp_path / file}")
        assert sorted(row["item"] for row in ranked["items"]) == ["fig", "jam"]
        (left,) = answer(*ask, "--exclude", f"@{tmp_path / file}")
        assert not {"fig", "jam"} & {row["item"] for row in left["items"]}


def test_a_pinned_item_that_the_model_does_not_know_is_listed(
    model: Any, tmp_path: Path, someone: str, answer: Answer, run: Run
) -> None:
    rules, out = tmp_path / "rules.toml", tmp_path / "lists.csv"
    rules.write_text('pin = ["offer"]\n')
    (tmp_path / "stock.txt").write_text("fig\njam\noffer\n")
    ask = ("recommend", "model", "--user", someone, "--rules", rules, "-k", 3)
    (document,) = answer(*ask, "--why")
    first, second, _ = document["items"]
    assert (first["item"], first["score"], first["why"]) == ("offer", None, [])
    assert second["why"]
    assert "offer" in run(*ask, "--why").stdout
    (stock,) = answer(*ask, "--candidates", f"@{tmp_path / 'stock.txt'}")
    assert stock["items"][0]["item"] == "offer"
    (left,) = answer(*ask, "--exclude", f"@{tmp_path / 'stock.txt'}")
    assert left["items"][0]["item"] != "offer"
    assert run(*ask, "--why", "--out", out).exit_code == 0
    assert pl.read_csv(out)["item"][0] == "offer"
    (similar, *_) = answer("similar", "model", "tea", "--rules", rules)["similar"]
    assert similar["item"] == "offer"


def test_unknown_users_and_items_are_handled_separately(run: Run, answer: Answer) -> None:
    done = run("recommend", "model", "--user", "u9999")
    assert done.exit_code == 1
    assert "does not know the user 'u9999'" in done.stderr
    assert "did you mean" not in done.stderr
    (popular,) = answer("recommend", "model", "--user", "u9999", "--unknown-users", "popular")
    assert popular["source"] == "popular"
    assert popular["items"][0]["score"] is None
    assert answer("recommend", "model", "--user", "u9999", "--unknown-users", "skip") == []
    ask = ("recommend", "model", "--history", "tea,plutonium")
    assert "did you mean" in run(*ask[:-1], "te").stderr
    (known,) = answer(*ask, "--unknown-items", "skip")
    assert known["items"] == answer("recommend", "model", "--history", "tea")[0]["items"]
    assert answer("explain", "model", "milk", *ask[2:], "--unknown-items", "skip")["sources"] == [
        "tea"
    ]


def test_similar_items_of_the_whole_catalogue_go_to_a_file(
    model: Any, tmp_path: Path, run: Run, answer: Answer
) -> None:
    document = answer("similar", "model", "--all", "--out", tmp_path / "similar.parquet", "-k", 3)
    frame = pl.read_parquet(tmp_path / "similar.parquet")
    assert document["items"] == frame["user"].n_unique() == model.interactions_.n_items
    tea = frame.filter(user="tea")["item"].to_list()
    assert tea == model.similar("tea", 3).items[0]
    assert run("similar", "model").exit_code == run("similar", "model", "--all").exit_code == 2


def test_text_is_not_an_id_where_ids_are_integers(
    tmp_path: Path, run: Run, answer: Answer
) -> None:
    rows = [f"{user},{item}" for user in range(1, 9) for item in range(10, 14) if user % item % 3]
    (tmp_path / "numbers.csv").write_text("user,item\n" + "\n".join(rows) + "\n")
    answer("fit", tmp_path / "numbers.csv", tmp_path / "model")
    (document,) = answer("recommend", tmp_path / "model", "--user", 1, "--with-seen")
    assert document["user"] == "1"
    assert {row["item"] for row in document["items"]} <= {"10", "11", "12", "13"}
    done = run("recommend", tmp_path / "model", "--user", "ann")
    assert done.exit_code == 1
    assert "the user ids of this model are integers" in done.stderr


def test_similar_items_are_those_of_the_model(model: Any, run: Run, answer: Answer) -> None:
    document = answer("similar", "model", "Green tea", "-k", 3)
    assert document["item"] == "tea"
    assert [row["item"] for row in document["similar"]] == model.similar("tea", 3).items[0]
    assert "similar to Green tea" in run("similar", "model", "tea").stdout


def test_explained_parts_add_up(run: Run, someone: str, answer: Answer) -> None:
    document = answer("explain", "model", "tea", "--history", "milk,oil,jam")
    assert sum(document["contributions"]) == document["score"]
    assert document["title"] == "Green tea"
    shown = run("explain", "model", "--user", someone, "tea").stdout
    assert shown.strip().startswith("Green tea: score ")


def test_a_trend_is_one_of_the_parts_and_reasons(tmp_path: Path) -> None:
    """The parts that `explain` prints must sum to the score above them."""
    rng = np.random.default_rng(0)
    rows = [(f"u{rng.integers(40)}", f"i{rng.integers(12)}", 1.0, day) for day in range(600)]
    model = eq.EASE(l2=5.0, trend=eq.Trend(half_life="60s", share=3.0)).fit(eq.read(rows))
    model.save(tmp_path / "model")
    user = "u1"
    best = model.recommend([user], k=1).items[0][0]
    shown = call("explain", tmp_path / "model", best, "--user", user).stdout.splitlines()
    at = shown.index(next(line for line in shown if "score" in line))
    score = float(shown[at].split()[2].rstrip(","))
    parts = {" ".join(words[:-1]): float(words[-1]) for words in map(str.split, shown[at + 2 :])}
    assert parts["popular lately"] > 0
    assert sum(parts.values()) == pytest.approx(score, abs=1e-3)
    listed = call("recommend", tmp_path / "model", "--user", user, "--why", "-k", "3").stdout
    assert "popular lately" in listed


def films() -> eq.Interactions:
    titles = pl.DataFrame({"title": ["Heat", "heat", "7"]})
    return eq.Interactions([[1, 1, 0], [0, 1, 1]], [1, 2], [5, 6, 8], catalogue=titles)


def test_an_id_wins_over_a_title() -> None:
    assert find_items(films(), ["8", "5"]) == [8, 5]


def test_a_title_stands_for_its_item() -> None:
    assert find_items(films(), ["7"]) == [8]


def test_a_title_of_two_items_is_not_guessed() -> None:
    with pytest.raises(eq.UnknownIdError, match=r"did you mean 5 \(Heat\), 6 \(heat\)\?"):
        find_items(films(), ["HEAT"])


def test_users_are_found_by_their_own_kind() -> None:
    assert find_users(films(), ["2"]) == [2]
    with pytest.raises(eq.UnknownIdError, match="does not know the user '3'"):
        find_users(films(), ["3"])


def test_a_json_list_serves_for_ids_with_commas() -> None:
    assert split_list(' ["a,b", 3]') == ["a,b", "3"]
    assert split_list("a, b,,c") == ["a", "b", "c"]


LOG = (
    "visit,page,when\n1,tea,10\n1,milk,20\n2,tea,100\n2,milk,110\n2,cake,120\n3,cake,9\n3,tea,21\n"
)
READ = ("--session", "visit", "--item", "page", "--time", "when")


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(LOG)
    options = [f"--set={name}" for name in ("mix=0.3", "decay-inference=none", "row_norm=none")]
    done = call("fit", "log.csv", "model", *READ, "--model", "slist", "--l2", 1, *options)
    assert done.exit_code == 0, done.output
    return tmp_path


def test_fit_takes_the_settings_of_a_session_model(visits: Path) -> None:
    model = eq.load(visits / "model")
    expected = eq.SLIST(l2=1.0, mix=0.3, decay_inference=None, row_norm=None)
    assert model.settings() == expected.settings()


def test_fit_chooses_the_settings_of_a_session_model_unless_one_is_set(visits: Path) -> None:
    rows = ["visit,page,when"]
    rows += [f"{n},{page},{9 * n + i}" for n in range(60) for i, page in enumerate("abc")]
    (visits / "many.csv").write_text("\n".join(rows))
    fitted = {}
    for name, options in {
        "auto": [],
        "set": ["--set", "mix=0.3"],
        "once": ["--no-search"],
    }.items():
        done = call("fit", "many.csv", name, *READ, "--model", "slist", *options)
        assert done.exit_code == 0, done.output
        assert ("by MRR@20 on the last sessions" in done.output) == (name == "auto")
        fitted[name] = eq.load(visits / name)
    assert fitted["auto"].l2 == "auto"
    assert fitted["auto"].chosen_["l2"] > 0
    assert fitted["set"].settings() == eq.SLIST(mix=0.3).settings()
    assert fitted["once"].settings() == eq.SLIST().settings()


def test_recommend_takes_a_session_with_its_order_and_repeats(visits: Path) -> None:
    done = call("recommend", "model", "--session", "tea,milk,tea", "-k", 3, "--json")
    assert done.exit_code == 0, done.output
    (document,) = json.loads(done.stdout)
    expected = eq.load(visits / "model").recommend(session=["tea", "milk", "tea"], k=3)
    assert [row["item"] for row in document["items"]] == expected.items[0]
    assert "tea" in expected.items[0]


def test_explain_names_the_clicks(visits: Path) -> None:
    done = call("explain", "model", "cake", "--session", "tea,milk", "--json")
    document = json.loads(done.stdout)
    assert sorted(document["sources"]) == ["milk", "tea"]
    assert sum(document["contributions"]) == document["score"]


def test_ids_of_64_bits_are_text_in_json(run: Run, answer: Answer, tmp_path: Path) -> None:
    first = 6783772548752091658  # JavaScript and jq read it as ...092000
    matrix = np.tri(12, 4, dtype=np.float32)
    matrix[:, 3] += np.arange(12) % 2 == 0
    data = eq.Interactions(matrix > 0, first + np.arange(12), first + np.arange(4))
    folder = tmp_path / "wide"
    eq.EASE(l2=1.0).fit(data).save(folder)
    (listed,) = answer("recommend", folder, "--user", first, "-k", 2, "--why")
    assert listed["user"] == str(first)
    ids = [row["item"] for row in listed["items"]]
    ids += [reason["item"] for row in listed["items"] for reason in row["why"]]
    document = answer("similar", folder, first, "-k", 2)
    ids += [document["item"], *(row["item"] for row in document["similar"])]
    document = answer("explain", folder, first + 1, "--user", first)
    ids += [document["item"], *document["sources"]]
    assert len(ids) > 6
    assert set(ids) <= {str(first + n) for n in range(4)}


def test_vectors_writes_those_of_the_model(
    model: Any, tmp_path: Path, run: Run, answer: Answer
) -> None:
    document = answer("vectors", "model", tmp_path / "vectors", "--rank", 3)
    expected = model.vectors(rank=3)
    for name in ("items", "users"):
        saved = pl.read_parquet(tmp_path / "vectors" / f"{name}.parquet")
        assert saved.equals(getattr(expected, name))
        assert document[name] == saved.height
    assert (document["rank"], document["overlap@20"]) == (3, expected.overlap)
    shown = run("vectors", "model", tmp_path / "other", "--rank", 3, "--alpha", 0.5).stdout
    assert "with 3 dimensions" in shown
    assert "overlap@20 with the lists of the model" in shown
