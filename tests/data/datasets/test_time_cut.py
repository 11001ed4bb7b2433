"""A time cut of real shops' events equals a plain computation on their rows."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from tests.absent import absent

import equipoise as eq
from equipoise.data import datasets
from equipoise.errors import FetchError

K = 20


def rows(name: str) -> pl.DataFrame:
    """Return user, item and time of each line of the raw file, with plain polars."""
    if name not in datasets.names():
        pytest.skip(f"{name} is not in the catalogue")
    try:
        folder = datasets.fetch(name)
    except FetchError as error:
        absent(str(error))
    if name == "online-retail":
        raw = pl.read_csv(
            folder / "ecommerce_sales.csv",
            encoding="latin-1",
            schema_overrides={"InvoiceNo": pl.String, "StockCode": pl.String},
        )
        raw = raw.filter(pl.col("CustomerID").is_not_null(), pl.col("Quantity") > 0)
        moment = pl.col("InvoiceDate").str.to_datetime("%m/%d/%Y %H:%M", time_zone="UTC")
        purchases = raw.select(user="CustomerID", item="StockCode", time=moment)
    else:
        raw = pl.read_parquet(folder / "transactions.parquet")
        moment = (
            pl.col("transaction_timestamp").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
        )
        purchases = raw.select(user="household_id", item="product_id", time=moment)
    # items with enough users, so that a fit takes seconds
    counts = purchases.unique(["user", "item"]).group_by("item").len()
    return purchases.join(counts.filter(pl.col("len") >= 100), on="item", how="semi")


def listed(frame: pl.DataFrame) -> dict[Any, list[Any]]:
    """Return the items of each user."""
    return dict(frame.group_by("user").agg(pl.col("item")).rows())


def ndcg(lists: dict[Any, list[Any]], targets: dict[Any, list[Any]]) -> float:
    total = 0.0
    for user, items in targets.items():
        gains = [1 / math.log2(n + 2) for n, item in enumerate(lists[user][:K]) if item in items]
        best = [1 / math.log2(n + 2) for n in range(min(K, len(items)))]
        total += sum(gains) / sum(best)
    return total / len(targets)


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("online-retail", datetime(2011, 10, 1, tzinfo=UTC)),
        ("complete-journey", datetime(2017, 10, 1, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize("repeats", ["new", "again"])
def test_metrics_of_a_time_cut_equal_a_plain_computation(
    name: str, cut: datetime, repeats: Any
) -> None:
    log = rows(name)
    pairs = ["user", "item"]
    before = log.filter(pl.col("time") < cut).unique(pairs)
    after = log.filter(pl.col("time") >= cut).unique(pairs).join(before, on="item", how="semi")
    target_rows = after.join(before, on=pairs, how="anti" if repeats == "new" else "semi")
    target_rows = target_rows.join(before, on="user", how="semi")
    known = listed(before.join(target_rows, on="user", how="semi"))
    targets = {user: set(items) for user, items in listed(target_rows).items()}

    data = eq.read(log, user="user", item="item", time="time")
    split = eq.split.time_cut(data, test_from=cut, valid=0, repeats=repeats)
    assert split.train.n_interactions == before.height
    assert split.test.target.n_interactions == target_rows.height
    assert split.test.history.n_interactions == sum(map(len, known.values()))
    model = eq.EASE(l2=200.0).fit(split.train)
    recommended = model.recommend(known, K, exclude_seen=repeats == "new")
    lists = dict(zip(recommended.users, recommended.items, strict=True))
    result = eq.evaluate(model, split.test, k=K, metrics=["ndcg"], bootstrap=0)
    # both are means of sums of at most 20 terms over the same users
    assert result["ndcg@20"] == pytest.approx(ndcg(lists, targets), rel=1e-12)
