"""A local Spark: its frame is read on a cluster, and its workers make the lists."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq

pytest.importorskip("distributed")
sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)

from equipoise.cluster.workers import start_local  # noqa: E402
from equipoise.wrappers.spark import recommend_frame  # noqa: E402


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    source = str(Path(eq.__file__).parents[1])
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", source, prepend=":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = sql.SparkSession.builder.master("local[1]").appName("equipoise")
        settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.mark.filterwarnings("ignore")
def test_lists_of_a_spark_frame_are_those_of_the_library(spark: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"user": rng.integers(0, 40, 400), "item": [f"i{n}" for n in rng.integers(0, 20, 400)]}
    )
    expected = eq.read(frame)
    rows = spark.createDataFrame(frame.rows(), frame.columns)
    with (
        start_local(1, dashboard_address=None) as cluster,
        eq.cluster.connect(cluster.scheduler_address) as client,
    ):
        data = eq.cluster.read(rows, client=client, shared=tmp_path)
        assert data.gather().fingerprint == expected.fingerprint
        with pytest.raises(eq.SettingError, match="give a folder or URL that both see"):
            eq.cluster.read(rows, client=client)
    model = eq.EASE(l2=3.0).fit(expected)
    model.save(tmp_path / "model")
    users = spark.createDataFrame([(user,) for user in expected.users.tolist()], ["customer"])
    lists = recommend_frame(str(tmp_path / "model"), users, k=4).toPandas()
    assert lists.columns.tolist() == ["customer", "item", "score", "rank"]
    alone = model.recommend(expected.users.tolist(), k=4).to_frame()
    assert lists["item"].tolist() == alone["item"].to_list()
    np.testing.assert_allclose(lists["score"], alone["score"].to_numpy(), rtol=1e-6)
