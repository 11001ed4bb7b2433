"""Lists of a saved model as a Spark frame, made by Spark's own workers.

`equipoise.cluster.read` takes a Spark frame; together they go from Delta tables to Delta tables
without a row passing through the driver (docs/spark.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from equipoise.cluster.opening import open_model
from equipoise.models.saving import load

USERS = 4096  # whose lists are made at a time


def recommend_frame(
    model: str, users: DataFrame, k: int = 20, *, column: str | None = None, **options: Any
) -> DataFrame:
    """Return the k best items of each user of a Spark frame: user, item, score and rank.

    Parameters
    ----------
    model
        Folder or URL of a saved model that the workers of Spark see; each opens it once.
    users
        A frame with a column of user ids.
    k
        Length of the lists.
    column
        Name of the column of users; by default the first one.
    **options
        As for `Recommender.recommend`.

    Examples
    --------
    ::

        lists = recommend_frame("s3://lake/model", spark.table("customers"), k=20)
        lists.write.format("delta").saveAsTable("lists")
    """
    name = users.columns[0] if column is None else column
    has_numbers = load(model).item_index_.values.dtype.kind in "iu"
    kinds = [users.schema[name].dataType, LongType() if has_numbers else StringType()]
    fields = zip((name, "item", "score", "rank"), [*kinds, DoubleType(), LongType()], strict=True)
    schema = StructType([StructField(*field) for field in fields])
    item_kind = pa.int64() if has_numbers else pa.string()

    def recommend(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            kinds = [batch.schema.field(0).type, item_kind, pa.float64(), pa.int64()]
            for start in range(0, batch.num_rows, USERS):
                ids = batch.column(0).slice(start, USERS).to_pylist()
                lists = open_model(model).recommend(ids, k, **options)
                frame = lists.to_frame().select("user", "item", "score", "rank")
                columns = frame.to_arrow().columns
                cast = [values.cast(kind) for values, kind in zip(columns, kinds, strict=True)]
                yield from pa.table(cast, names=schema.names).to_batches()

    return users.select(name).mapInArrow(recommend, schema)
