"""An S3-compatible server: read, fit, save and write lists there, with a worker killed between."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.cluster.conftest import local_cluster

import equipoise as eq
from equipoise.cluster import planning
from equipoise.cluster.loading import load_part
from equipoise.cluster.planning import Reading, Slice
from equipoise.cluster.targets import Target, write_bytes
from equipoise.data.read_options import ReadOptions
from equipoise.data.readers.folders import TableFile

pytest.importorskip("s3fs")
pytest.importorskip("moto")
import s3fs

BUCKET = "s3://lake"


@pytest.fixture(scope="module", autouse=True)
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the server, and let this process and the workers find it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    url = f"http://127.0.0.1:{port}"
    settings = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "EQUIPOISE_DATA": str(tmp_path_factory.mktemp("cache")),
    }
    with pytest.MonkeyPatch.context() as patch, subprocess.Popen(command, **quiet) as server:
        for name, value in settings.items():
            patch.setenv(name, value)
        try:
            while True:
                try:
                    urllib.request.urlopen(url, timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None
                    time.sleep(0.1)
            s3fs.S3FileSystem().mkdir("lake")
            yield url
        finally:
            server.kill()


@pytest.fixture(scope="module")
def client(endpoint: str) -> Iterator[object]:
    """Return a client of workers that find the server; those of other modules do not."""
    with local_cluster() as client:
        yield client


def events(n_rows: int = 900, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"user": rng.integers(0, 60, n_rows), "item": rng.integers(0, 25, n_rows)}
    return pl.DataFrame(columns).unique(maintain_order=True)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, endpoint: str) -> Path:
    """Return a local folder of events by day, which is also in the bucket."""
    folder = tmp_path_factory.mktemp("local") / "events"
    for number in range(3):
        place = folder / f"day=2026-01-0{number + 1}"
        place.mkdir(parents=True)
        events(300, number).write_parquet(place / "part.parquet")
    s3fs.S3FileSystem().put(str(folder), "lake/events", recursive=True)
    return folder


def test_read_fit_save_and_lists_equal_those_of_local_files(client, local, fault, tmp_path):
    expected = eq.read(local)
    assert expected.events.times is not None
    data = eq.cluster.read(f"{BUCKET}/events", client=client, block_rows=200)
    with fault("count_core", 1, tmp_path / "died"):
        core = data.filter(min_user=2)
    assert (tmp_path / "died").exists()
    gathered = core.gather()
    assert gathered.fingerprint == expected.filter(min_user=2).fingerprint
    model = eq.EASE(l2=5.0).fit(gathered)
    for _ in range(2):  # the second save replaces the first
        model.save(f"{BUCKET}/model")
    names = s3fs.S3FileSystem().ls("lake/model", refresh=True)
    model.save(tmp_path / "model")
    assert len(names) == len(list((tmp_path / "model").iterdir()))
    loaded = eq.load(f"{BUCKET}/model")
    assert np.array_equal(loaded.weights_, model.weights_)
    call = {"client": client, "k": 4, "users_per_file": 20}
    with fault("write_lists", 2, tmp_path / "died, too"):
        n_users = eq.cluster.recommend_to(f"{BUCKET}/model", f"{BUCKET}/lists", **call)
    assert (tmp_path / "died, too").exists()
    model.recommend_to(tmp_path / "lists.parquet", k=4)
    system = s3fs.S3FileSystem()
    files = sorted(system.glob("lake/lists/part-*.parquet"))
    lists = pl.concat(pl.read_parquet(system.cat(file)) for file in files)
    assert lists.equals(pl.read_parquet(tmp_path / "lists.parquet"))
    assert n_users == model.data_.n_users
    assert eq.cluster.recommend_to(f"{BUCKET}/model", f"{BUCKET}/lists", **call) == n_users
    with pytest.raises(eq.SettingError, match="holds lists of another model"):
        eq.cluster.recommend_to(f"{BUCKET}/model", f"{BUCKET}/lists", **{**call, "k": 5})
    assert not list(Path.cwd().glob("s3:*"))


def test_data_beside_a_model_in_the_bucket_are_read_by_the_workers(client, local, fault, tmp_path):
    expected = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3)).fit(
        eq.read(local), engine="neighbourhood", neighbours=8
    )
    expected.recommend_to(tmp_path / "lists.parquet", k=4)
    data = eq.cluster.read(f"{BUCKET}/events", client=client, block_rows=200)
    near = {"engine": "neighbourhood", "neighbours": 8}
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3))
    system, url = s3fs.S3FileSystem(), f"{BUCKET}/beside"
    for number in range(2):  # the second save replaces the first
        with fault("save_block", 1, tmp_path / f"died {number}"):
            eq.cluster.fit(model, data, **near).save(url)
        assert (tmp_path / f"died {number}").exists()
    blocks = system.glob("lake/beside/block_*")
    assert len(blocks) == len(data.blocks)
    loaded = eq.load(url, verify=True)
    cache = Path(os.environ["EQUIPOISE_DATA"])
    assert not list(cache.rglob("block_*"))  # loading copies the weights alone
    assert np.array_equal(loaded.inverse_.indices, expected.inverse_.indices)
    users = expected.data_.users[[40, 3]].tolist()
    lists = loaded.recommend(users, k=4).to_frame()
    assert lists.equals(expected.recommend(users, k=4).to_frame())
    call = {"client": client, "k": 4, "users_per_file": 20}
    with fault("write_lists", 2, tmp_path / "died, too"):
        eq.cluster.recommend_to(url, f"{BUCKET}/lists beside", **call)
    assert (tmp_path / "died, too").exists()
    files = sorted(system.glob("lake/lists beside/part-*.parquet"))
    lists = pl.concat(pl.read_parquet(system.cat(file)) for file in files)
    assert lists.equals(pl.read_parquet(tmp_path / "lists.parquet"))
    loaded.update(removed=users)
    loaded.save(url, data="none")
    assert not system.glob("lake/beside/block_*", refresh=True)
    assert eq.load(url).recommend([[1, 2]], k=3).items == loaded.recommend([[1, 2]], k=3).items


def test_an_unsaved_model_is_shared_through_the_bucket(client, local, tmp_path):
    model = eq.EASE(l2=5.0).fit(eq.read(local))
    eq.cluster.recommend_to(model, tmp_path / "lists", k=3, client=client, shared=BUCKET)
    model.recommend_to(tmp_path / "lists.parquet", k=3)
    lists = pl.read_parquet(tmp_path / "lists" / "*.parquet")
    assert lists.equals(pl.read_parquet(tmp_path / "lists.parquet"))
    assert not s3fs.S3FileSystem().glob("lake/equipoise-*")


def test_only_needed_columns_are_fetched(monkeypatch):
    rng = np.random.default_rng(0)
    wide = {f"feature {number}": rng.random(20_000) for number in range(20)}
    frame = pl.DataFrame(
        {"user": rng.integers(0, 99, 20_000), "item": rng.integers(0, 99, 20_000)} | wide
    )
    frame.write_parquet(f"{BUCKET}/wide.parquet", storage_options={"aws_allow_http": "true"})
    size = s3fs.S3FileSystem().info("lake/wide.parquet")["size"]
    fetched = []
    fetch_range = s3fs.core.S3File._fetch_range

    def count(self, start, end):
        fetched.append(end - start)
        return fetch_range(self, start, end)

    monkeypatch.setattr(s3fs.core.S3File, "_fetch_range", count)
    entry = Slice(TableFile(f"{BUCKET}/wide.parquet"), size)
    part = load_part([entry], Reading(ReadOptions()))
    assert part.n_rows == 20_000
    assert sum(fetched) < size / 15


def test_text_and_catalogues_of_a_bucket_are_read(client, local, monkeypatch):
    for name, value in {"PART_ROWS": 200, "LEAST_ROWS": 200, "FILE_ROWS": 20}.items():
        monkeypatch.setattr(planning, name, value)
    monkeypatch.setitem(planning.BYTES_PER_ROW, "text", 5.0)
    system = s3fs.S3FileSystem()
    with system.open("lake/text/events.csv", "wb") as file:
        events().write_csv(file)
    with system.open("lake/text/more.csv", "wb") as file:
        events(20, 7).write_csv(file)
    with system.open("lake/items.csv", "wb") as file:
        file.write(b"item,title\n" + b"".join(b"%d,title %d\n" % (n, n) for n in range(25)))
    options = {"storage_options": {"key": "key", "secret": "secret"}}
    data = eq.cluster.read(
        f"{BUCKET}/text", client=client, catalogue=f"{BUCKET}/items.csv", **options
    )
    expected = eq.read(pl.concat([events(), events(20, 7)]))
    assert data.gather().fingerprint == expected.fingerprint
    assert data.catalogue["title"][3] == "title 3"


def test_deleted_rows_of_a_delta_table_in_a_bucket_are_not_read(client):
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(f"{BUCKET}/delta", events())
    deltalake.DeltaTable(f"{BUCKET}/delta").delete("user < 30")
    expected = eq.read(events().filter(pl.col("user") >= 30))
    options = {"key": "key", "secret": "secret"}
    data = eq.cluster.read(f"{BUCKET}/delta", client=client, storage_options=options)
    assert data.gather().fingerprint == expected.fingerprint


def test_addresses_that_cannot_be_opened_are_clear_errors(client, local):
    for source in (f"{BUCKET}/nothing", f"{BUCKET}/events/*.csv", "s3://no-such-bucket/a"):
        with pytest.raises(eq.DataError, match="no table matches"):
            eq.cluster.read(source, client=client)
    with pytest.raises(eq.DataError, match="written: The specified bucket does not"):
        Target.of("s3://no-such-bucket/lists").write("part", write_bytes(b""))
    with pytest.raises(eq.DataError, match=r"cannot be opened: Protocol not known"):
        eq.cluster.read("nfs9://host/events", client=client)
    with pytest.raises(eq.FileFormatError, match="is not a saved directory"):
        eq.load(f"{BUCKET}/no-model")
    model = eq.EASE(l2=5.0).fit(eq.read(local))
    with pytest.raises(eq.DataError, match="is not a saved equipoise-model"):
        model.save(f"{BUCKET}/events")
    with pytest.raises(eq.SettingError, match=r"got the address 's3://lake/lists.csv'"):
        model.recommend_to("s3://lake/lists.csv")
    with pytest.raises(eq.SettingError, match=r"got the address 's3:/lake/model'"):
        model.save(Path("s3://lake/model"))  # as the command would
    with pytest.raises(eq.SettingError, match=r"got the address 's3:/lake/lists'"):
        eq.cluster.recommend_to(model, Path("s3://lake/lists"), client=client)


def test_files_that_this_machine_does_not_see_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.targets.PATIENCE", 0)
    (tmp_path / "part-000000.parquet").touch()
    target = Target.of(tmp_path)
    target.require(["part-000000.parquet"], ["here"])
    with pytest.raises(eq.DataError, match=r"1 of 2 files .* wrote on a, b\. Give a folder that"):
        target.require(["part-000000.parquet", "part-000001.parquet"], ["b", "a", "b"])
