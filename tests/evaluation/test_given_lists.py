"""Lists of other systems, rules and the dial under `evaluate`; when two parts are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, EquipoiseError, SettingError


@pytest.fixture(scope="module")
def split(synthetic: Interactions) -> eq.Split:
    return eq.split.strong(synthetic, valid=0, test=0.2, seed=1)


@pytest.fixture(scope="module")
def model(split: eq.Split) -> eq.EASE:
    return eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3)).fit(split.train)


@pytest.fixture(scope="module")
def lists(split: eq.Split, model: eq.EASE) -> pl.DataFrame:
    return model.recommend(split.test.history, k=20).to_frame()


def assert_same(one: eq.Result, two: eq.Result) -> None:
    assert one.values.keys() == two.values.keys()
    np.testing.assert_array_equal(list(one.values.values()), list(two.values.values()))


def test_lists_of_another_system_get_the_numbers_of_the_model_they_come_from(
    split: eq.Split, model: eq.EASE, lists: pl.DataFrame, tmp_path: Path
) -> None:
    expected = eq.evaluate(model, split.test, k=[5, 20], bootstrap=50)
    shuffled = lists.sample(fraction=1.0, shuffle=True, seed=1)
    lists.write_csv(tmp_path / "lists [1].csv")
    lists.write_ndjson(tmp_path / "lists [1].jsonl")
    lists.write_parquet(tmp_path / "lists [1].parquet")
    (tmp_path / "lists 1.jsonl").write_text("what a pattern of the other name would find")
    text = shuffled.with_columns(pl.col("item").cast(pl.String)).drop("score")
    named = lists.drop("rank").rename({"user": "user_id", "item": "itemId"})
    for source in (
        lists,
        shuffled.drop("score"),
        text,
        named,
        lists.with_columns(pl.col("item").cast(pl.Float64)),
        pd.DataFrame(lists.to_dict(as_series=False)),
        tmp_path / "lists [1].csv",
        str(tmp_path / "lists [1].jsonl"),
        tmp_path / "lists [1].parquet",
    ):
        result = eq.evaluate(
            source, split.test, k=[5, 20], train=split.train, bootstrap=50, name="other"
        )
        assert_same(result, expected)
        assert result.exclude_seen
        table = eq.compare([expected, result]).to_frame()
        assert table["difference"][0] == 0
        assert table["model"][0] == "other"


def test_without_training_data_metrics_of_popularity_are_left_out(
    split: eq.Split, model: eq.EASE, lists: pl.DataFrame
) -> None:
    expected = eq.evaluate(model, split.test)
    result = eq.evaluate(lists, split.test)
    assert {"ndcg@20", "coverage@20", "active_recall@20"} <= set(result)
    assert not {"tail_ndcg@20", "unbiased_recall@20", "novelty@20", "lift@20"} & set(result)
    for name in result:
        assert result[name] == expected[name]
    for name in ("tail_ndcg", "novelty", "unbiased_ndcg"):
        with pytest.raises(SettingError, match=f"{name} needs the counts"):
            eq.evaluate(lists, split.test, metrics=[name])


def test_users_without_a_list_miss_everything_and_other_items_take_their_place(
    split: eq.Split, lists: pl.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    users = split.test.target.users.tolist()
    half = lists.filter(pl.col("user").is_in(users[::2]))
    result = eq.evaluate(half, split.test)
    hits = result.per_user["ndcg@20"]
    assert hits[1::2].sum() == 0 < hits[::2].sum()
    assert f"{len(users) // 2} of {len(users)} users have no list" in caplog.text
    strange = lists.with_columns(item=pl.col("item") + 100_000)
    assert eq.evaluate(strange, split.test)["recall@20"] == 0
    with_stranger = pl.concat([lists, lists.with_columns(user=pl.lit("stranger")).head(1)])
    assert (
        eq.evaluate(with_stranger, split.test)["ndcg@20"]
        == eq.evaluate(lists, split.test)["ndcg@20"]
    )


def test_seen_items_in_given_lists_are_reported_or_removed(
    split: eq.Split, model: eq.EASE
) -> None:
    seen = model.recommend(split.test.history, k=40, exclude_seen=False).to_frame()
    unfiltered = eq.evaluate(seen, split.test, train=split.train)
    assert not unfiltered.exclude_seen
    assert_same(unfiltered, eq.evaluate(model, split.test, exclude_seen=False))
    without = eq.evaluate(seen, split.test, k=5, train=split.train, exclude_seen=True)
    assert without.exclude_seen
    assert_same(without, eq.evaluate(model, split.test, k=5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop("rank", "score"), "needs a column 'rank' or 'score'"),
        (lambda f: f.drop("user"), "needs one column 'user'"),
        (lambda f: pl.concat([f, f.head(1)]), "occurs twice in the list of user"),
        (lambda f: f.with_columns(user=pl.lit("x")).unique("item"), "none of the users"),
        (lambda f: f.with_columns(item=pl.lit("x")), "item ids of the part are integers"),
        (
            lambda f: f.with_columns(item=pl.col("item") + 0.9),
            "'item' holds [0-9]+.9, which is no",
        ),
        (lambda f: f.with_columns(item=pl.lit(2.0**60)), "'item' holds 1.15.*, which is no"),
        (lambda f: f.with_columns(item="0" + pl.col("item").cast(pl.String)), "holds '0[0-9]+'"),
        (lambda f: f.with_columns(item=pl.col("item") > 50), "'item' holds Boolean"),
        (lambda f: f.with_columns(item=pl.concat_list("item")), "'item' holds List"),
        (lambda f: f.with_columns(rank=pl.lit("x")), "'rank' must have only numbers"),
        (lambda f: f.with_columns(rank=pl.col("rank") > 3), "'rank' must have only numbers"),
        (lambda f: f.with_columns(user=pl.lit(None)), "'user' has empty cells"),
        (lambda f: "lists.xlsx", "lists are read from .csv"),
        (lambda f: "absent.csv", "cannot be read"),
        (lambda f: [1, 2], "a frame or file of lists, got list"),
    ],
)
def test_tables_without_lists_are_refused(
    split: eq.Split, lists: pl.DataFrame, change: Any, message: str
) -> None:
    with pytest.raises(EquipoiseError, match=message):
        eq.evaluate(change(lists), split.test)


@pytest.mark.parametrize("options", [{"alpha": 0.5}, {"rules": eq.Rules(seen="include")}])
def test_lists_cannot_be_made_in_another_way(
    split: eq.Split, lists: pl.DataFrame, options: dict[str, Any]
) -> None:
    with pytest.raises(SettingError, match="lists are evaluated as given"):
        eq.evaluate(lists, split.test, **options)


def test_evaluate_takes_rules_and_the_dial(split: eq.Split, model: eq.EASE) -> None:
    rules = eq.Rules(exclude=split.train.items[:10].tolist(), pin=[793])
    result = eq.evaluate(model, split.test, rules=rules, alpha=0.5, batch_size=7)
    frame = model.recommend(split.test.history, k=20, rules=rules, alpha=0.5).to_frame()
    assert_same(result, eq.evaluate(frame, split.test, train=split.train))
    assert result.settings["alpha"] == 0.5
    assert result.settings["rules"] == rules.settings()
    assert result["ndcg@20"] != eq.evaluate(model, split.test)["ndcg@20"]
    again = eq.evaluate(model, split.test, rules=eq.Rules(seen="include"))
    assert not again.exclude_seen


def test_a_result_under_rules_is_saved_with_them(
    split: eq.Split, model: eq.EASE, tmp_path: Path
) -> None:
    result = eq.evaluate(model, split.test, rules=eq.Rules(pin=[793]), bootstrap=0)
    result.save(tmp_path / "result")
    assert eq.Result.load(tmp_path / "result").settings["rules"] == {"pin": [793]}


def test_weights_do_not_change_the_identity_of_a_part(split: eq.Split) -> None:
    def heavier(data: Interactions) -> Interactions:
        return Interactions(data.matrix * 3, data.users, data.items)

    heavy = eq.split.from_parts(
        heavier(split.train),
        test=(heavier(split.test.history), heavier(split.test.target)),
        protocol="strong",
    )
    one = eq.evaluate(eq.Popularity().fit(split.train), split.test)
    two = eq.evaluate(eq.EASE(l2=5.0).fit(heavy.train), heavy.test)
    assert eq.compare([one, two]).to_frame()["n_users"][0] == split.test.n_users
    fewer = split.test.target.rows(np.arange(30))
    part = (split.test.history.rows(np.arange(30)), fewer)
    other = eq.evaluate(eq.Popularity().fit(split.train), part)
    with pytest.raises(DataError, match="on the same part of the same split"):
        eq.compare([one, other])


def test_ids_of_lists_are_never_changed(tmp_path: Path) -> None:
    """The ids of a part are text: 7 is "7", and "007" is another item."""
    history = eq.read([("1", "5"), ("2", "5")])
    target = eq.read([("1", "7"), ("2", "7")])
    file = tmp_path / "lists.csv"
    for item, recall in (("7", 1.0), ("007", 0.0), ("7.0", 0.0), (" 7", 0.0)):
        file.write_text(f"user,item,rank\n1,{item},1\n2,{item},1\n")
        assert eq.evaluate(file, (history, target), 1, bootstrap=0)["recall@1"] == recall
    floats = pl.DataFrame({"user": [1.0, 2.0], "item": [7.0, 7.0], "rank": [1, 1]})
    assert eq.evaluate(floats, (history, target), 1, bootstrap=0)["recall@1"] == 1.0
