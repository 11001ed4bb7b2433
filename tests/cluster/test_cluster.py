"""Every phase on two worker processes equals the library on one machine."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.models.described import described

import equipoise as eq
from equipoise.cluster.solving import WorkerSolver
from equipoise.cluster.spread import Spread
from equipoise.cluster.workers import fetch, submit

CHUNK = 150  # rows of a block, so that a few hundred rows make several


def events(n_rows: int = 600, seed: int = 0) -> pl.DataFrame:
    """Return rows with repeats, times, weights and types; users are text, items integers."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user_id": [f"u{number:03d}" for number in rng.integers(0, 60, n_rows)],
            "item_id": rng.zipf(1.4, n_rows).clip(1, 30),
            "ts": rng.integers(1_600_000_000, 1_700_000_000, n_rows),
            "amount": rng.integers(1, 5, n_rows).astype(float),
            "event": rng.choice(["view", "buy"], n_rows),
        }
    )


def parts(folder: Path, frame: pl.DataFrame, cuts: list[int], kind: str = "parquet") -> Path:
    """Write the rows between the cuts as the parts of a folder."""
    folder.mkdir()
    bounds = [0, *cuts, frame.height]
    for number, (low, high) in enumerate(pairwise(bounds)):
        file = folder / f"part-{number:02d}.{kind}"
        write = {"parquet": "write_parquet", "csv": "write_csv", "jsonl": "write_ndjson"}[kind]
        getattr(frame[low:high], write)(file)
    return folder


def is_same(data: eq.Interactions, expected: eq.Interactions) -> bool:
    return data.fingerprint == expected.fingerprint and data.notes == expected.notes


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> eq.Interactions:
    return eq.read(parts(tmp_path_factory.mktemp("local") / "data", events(), [200, 400]))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, client: object) -> eq.cluster.Partitioned:
    folder = parts(tmp_path_factory.mktemp("cluster") / "data", events(), [200, 400])
    return eq.cluster.read(folder, client=client, block_rows=CHUNK)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("options", [{}, {"weight": "amount"}, {"time": False, "type": False}])
def test_reading_equals_the_reader_of_the_library(client, tmp_path, kind, options):
    folder = parts(tmp_path / "data", events(), [100, 101, 450], kind)
    partitioned = eq.cluster.read(folder, client=client, block_rows=CHUNK, **options)
    assert len(partitioned.blocks) == 4
    assert is_same(partitioned.gather(), eq.read(folder, **options))


def test_sessions_are_cut_as_on_one_machine(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [250])
    partitioned = eq.cluster.read(folder, client=client, block_rows=CHUNK, gap="100d")
    assert is_same(partitioned.gather(), eq.read(folder, gap="100d"))


def test_positions_do_not_depend_on_parts_or_their_order(client, tmp_path):
    frame = events().select("user_id", "item_id").unique(maintain_order=True)
    expected = eq.read(frame)
    mixed = frame.sample(fraction=1.0, shuffle=True, seed=1)
    for number, (table, cuts) in enumerate([(frame, []), (mixed, [1, 50, 51]), (mixed, [0, 90])]):
        folder = parts(tmp_path / str(number), table, cuts)
        gathered = eq.cluster.read(folder, client=client, block_rows=70).gather()
        assert gathered.fingerprint == expected.fingerprint


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("samples", [1, 4, 16_384])
def test_blocks_have_equal_shares_of_the_rows(client, tmp_path, monkeypatch, samples, text):
    monkeypatch.setattr("equipoise.cluster.ingest.MAX_SAMPLE", samples)
    rng = np.random.default_rng(5)
    user = np.append(
        rng.zipf(1.3, 500).clip(1, 200), np.full(150, 90)
    )  # a few users have many rows
    kind = pl.String if text else pl.Int64
    frame = pl.DataFrame({"user": pl.Series(user).cast(kind), "item": rng.integers(0, 9, 650)})
    folder = parts(tmp_path / "data", frame, [3, 400, 401])
    partitioned = eq.cluster.read(folder, client=client, block_rows=50)
    rows = frame.group_by("user").len().sort("user")["len"].to_numpy()
    number = (np.cumsum(rows) - rows) * 13 // 650
    expected_users = np.unique(number, return_counts=True)[1]
    np.testing.assert_array_equal(partitioned.block_users, expected_users)


def test_empty_parts_are_counted(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300], "csv")
    (folder / "part-05.csv").write_text("")
    partitioned = eq.cluster.read(folder, client=client, block_rows=CHUNK)
    assert "1 of 3 parts are empty" in partitioned.notes
    assert is_same(partitioned.gather(), eq.read(folder))


def test_a_table_without_rows_is_refused(client, tmp_path):
    folder = parts(tmp_path / "data", events()[:0], [])
    with pytest.raises(eq.DataError, match=r"data has no rows; nothing can be read"):
        eq.cluster.read(folder, client=client)
    (folder / "part-00.parquet").unlink()
    (folder / "part-00.csv").write_text("")
    with pytest.raises(eq.DataError, match=r"all 1 parts of .* are empty"):
        eq.cluster.read(folder, client=client)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_integers_and_text_in_parts_become_one_kind_of_ids(client, tmp_path, kind):
    folder = tmp_path / "data"
    folder.mkdir()
    write = "write_csv" if kind == "csv" else "write_parquet"
    text = pl.DataFrame({"user": ["a", "10"], "item": [1, 2]})
    numbers = pl.DataFrame({"user": [10, 9], "item": [2, 3]})
    getattr(text, write)(folder / f"part-0.{kind}")
    getattr(numbers, write)(folder / f"part-1.{kind}")
    gathered = eq.cluster.read(folder, client=client).gather()
    assert gathered.users.tolist() == ["10", "9", "a"]
    assert is_same(gathered, eq.read(folder))


def test_text_that_is_no_integer_is_refused_after_integers(client, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    pl.DataFrame({"user": [1, 2], "item": [1, 2]}).write_parquet(folder / "part-0.parquet")
    pl.DataFrame({"user": ["7", "x"], "item": [2, 3]}).write_parquet(folder / "part-1.parquet")
    with pytest.raises(eq.DataError, match=r"part-1.parquet holds 'x' where the parts before"):
        eq.cluster.read(folder, client=client)


def test_dask_frames_are_read(client, tmp_path):
    frames = pytest.importorskip("dask.dataframe")
    pandas = events().to_pandas()
    partitioned = eq.cluster.read(frames.from_pandas(pandas, npartitions=3), client=client)
    assert is_same(partitioned.gather(), eq.read(pandas))


def test_fsspec_urls_are_read(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300])
    url = f"file://{folder}/part-*.parquet"
    assert eq.cluster.read(url, client=client).gather().fingerprint == eq.read(folder).fingerprint
    (folder / "part-01.parquet").write_bytes(b"PAR1 but broken")
    with pytest.raises(eq.DataError, match=r"file://.*part-01.parquet is not a complete Parquet"):
        eq.cluster.read(url, client=client)


def test_a_remote_folder_has_the_same_files_as_a_local_one(client, tmp_path):
    folder = parts(tmp_path / "_data", events(), [300], "csv")
    for name in ("_SUCCESS", ".part-00.csv.crc", "_temporary.csv"):
        (folder / name).write_text("not data\n")
    partitioned = eq.cluster.read(f"file://{folder}", client=client)
    assert is_same(partitioned.gather(), eq.read(folder))


def test_relative_paths_start_from_the_folder_of_this_process(client, tmp_path, monkeypatch):
    folder = parts(tmp_path / "data", events(), [300])
    monkeypatch.chdir(tmp_path)
    for source in (
        "data",
        "data/part-*.parquet",
        ["data/part-00.parquet", "data/part-01.parquet"],
    ):
        assert is_same(eq.cluster.read(source, client=client).gather(), eq.read(folder))


def test_sources_other_than_tables_are_refused(client, local, tmp_path):
    local.save(tmp_path / "saved")
    eq.split.strong(local).save(tmp_path / "split")
    (tmp_path / "lists.txt").write_text("0 1 2\n1 2\n")
    for name in ("saved", "split", "lists.txt"):
        with pytest.raises(
            eq.DataError, match=r"is not read by workers.*give it to equipoise.read"
        ):
            eq.cluster.read(tmp_path / name, client=client)
    with pytest.raises(eq.SettingError, match="format='movielens' is not read by workers"):
        eq.cluster.read(parts(tmp_path / "data", events(), []), client=client, format="movielens")


@pytest.mark.parametrize("options", [{"min_rating": 4}, {"on_bad": "skip"}], ids=["low", "bad"])
def test_parts_without_usable_rows_change_nothing(client, tmp_path, options):
    """They influence neither the cuts between blocks nor the kind of the ids."""
    rng = np.random.default_rng(2)
    columns = {"user": rng.integers(0, 40, 300), "rating": rng.integers(1, 6, 300)}
    frame = pl.DataFrame({**columns, "item": rng.integers(0, 20, 300)})
    unusable = {"user": None} if "on_bad" in options else {"rating": 1}
    first = [pl.lit(value).alias(name) for name, value in unusable.items()]
    folder = parts(tmp_path / "data", frame, [], "csv")
    frame[:9].with_columns(first).write_csv(folder / "a.csv")
    (folder / "z.csv").write_text(",".join(frame.columns) + "\n" + "1\n" * ("on_bad" in options))
    partitioned = eq.cluster.read(folder, client=client, block_rows=CHUNK // 3, **options)
    assert len(partitioned.blocks) > 1
    assert is_same(partitioned.gather(), eq.read(folder, **options))


def test_attributes_are_those_of_the_library(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300])
    titles = {item: f"title {item}" for item in (*range(1, 31), 1000)}
    data = eq.cluster.read(folder, client=client, catalogue=titles)
    gathered, expected = data.gather(), eq.read(folder, catalogue=titles)
    assert gathered.notes == expected.notes
    assert gathered.catalogue.equals(expected.catalogue)
    assert data.catalogue.equals(expected.catalogue)
    assert 1000 in gathered.new_items["item"].to_list()
    assert gathered.new_items.equals(expected.new_items)
    assert gathered.attributes == expected.attributes
    assert data.describe().n_new_items == expected.new_items.height
    assert data.filter(min_item=2).gather().new_items.equals(expected.new_items)


def test_a_bad_row_is_named_with_its_file(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300], "csv")
    file = folder / "part-01.csv"
    file.write_text(file.read_text() + ",3,1600000000,1.0,view\n")
    with pytest.raises(eq.DataError) as here:
        eq.read(folder)
    with pytest.raises(eq.DataError) as there:
        eq.cluster.read(folder, client=client)
    assert str(there.value) == str(here.value)
    assert "part-01.csv, line 302" in str(there.value)
    gathered = eq.cluster.read(folder, client=client, on_bad="skip").gather()
    assert is_same(gathered, eq.read(folder, on_bad="skip"))


def test_parts_with_different_columns_are_refused(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300])
    events().rename({"event": "kind"}).write_parquet(folder / "part-01.parquet")
    with pytest.raises(eq.DataError, match="parts need the same columns"):
        eq.cluster.read(folder, client=client)
    partitioned = eq.cluster.read(folder, client=client, type=False)  # then it is not used
    assert is_same(partitioned.gather(), eq.read(folder, type=False))


def test_parts_with_different_time_units_are_refused(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300])
    later = events()[300:].with_columns(pl.col("ts") * 1000)
    later.write_parquet(folder / "part-01.parquet")
    with pytest.raises(eq.DataError, match=r"seconds .*part-00.* but .*milliseconds"):
        eq.cluster.read(folder, client=client)


def test_statistics_equal_those_of_one_machine(data, local):
    statistics, expected = data.describe().to_dict(), eq.describe(local).to_dict()
    for name in ("homophily", "homophily_low", "homophily_high"):
        assert statistics.pop(name) == pytest.approx(expected.pop(name), rel=1e-12)
    assert statistics == expected
    sampled, expected = data.describe(exact=False), eq.describe(local, exact=False)
    assert sampled.homophily == pytest.approx(expected.homophily, rel=1e-12)
    assert sampled.homophily_low == pytest.approx(expected.homophily_low, rel=1e-9)
    assert sampled.homophily_low < sampled.homophily_high


@pytest.mark.parametrize(("min_user", "min_item"), [(5, 4), (0, 9), (6, 0), (0, 0)])
def test_the_core_equals_that_of_one_machine(data, local, min_user, min_item):
    core = data.filter(min_user=min_user, min_item=min_item)
    expected = local.filter(min_user=min_user, min_item=min_item)
    assert (core.n_users, core.n_items) == (expected.n_users, expected.n_items)
    assert core.n_interactions == expected.n_interactions
    assert is_same(core.gather(), expected)


def test_an_empty_core_is_refused(data):
    with pytest.raises(eq.DataError, match="nothing is left with min_user=1000"):
        data.filter(min_user=1000)


@pytest.mark.parametrize("protocol", ["strong", "weak", "time_cut"])
def test_splits_equal_those_of_one_machine(data, local, protocol):
    split, expected = data.split(protocol), getattr(eq.split, protocol)(local)
    assert split.train.fingerprint == expected.train.fingerprint
    assert split.test.fingerprint == expected.test.fingerprint


def test_a_fit_here_has_the_same_bits(data, local):
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3))
    fitted = eq.cluster.fit(model, data)
    assert np.array_equal(
        fitted.weights_, eq.cluster.fit(model, local, client=data.client).weights_
    )
    assert np.array_equal(fitted.weights_, model.fit(local).weights_)
    assert fitted.data_fingerprint_ == local.fingerprint


@pytest.mark.parametrize("tile_rows", [12, 30])
def test_a_fit_over_the_workers_solves_the_same_system(data, local, tile_rows, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.spread.CHUNK_PAIRS", 100)
    monkeypatch.setattr("equipoise.cluster.solving.GRAM_PAIRS", 200)
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3))
    fitted = eq.cluster.fit(model, data, where="workers", dtype="float64", tile_rows=tile_rows)
    expected = model.fit(local, dtype="float64")
    # both solve (A + E) P = I with |E| of some n eps |A|, so P differs by about cond(A) n eps |P|
    A = np.linalg.inv(expected.inverse_)
    bound = 10 * np.linalg.cond(A) * len(A) * np.finfo(np.float64).eps
    error = np.linalg.norm(fitted.inverse_ - expected.inverse_) / np.linalg.norm(expected.inverse_)
    assert error < bound
    assert fitted.recommend("u001", k=5).items == expected.recommend("u001", k=5).items


@pytest.mark.parametrize("engine", ["auto", "neighbourhood"])
def test_features_of_items_take_part_in_a_fit_over_the_workers(data, engine):
    local = described()
    kind = "nearest" if engine == "neighbourhood" else "both"
    features = eq.Features(
        strength=2.0, map=kind, rarity=1.0, mu=1.0, share=0.3, neighbours=5, scale=1.0
    )
    model = eq.EASE(l2=5.0, dropout=0.3, features=features)
    options = {"engine": engine, "neighbours": 39} if engine == "neighbourhood" else {}
    fitted = eq.cluster.fit(
        model.clone(), local, where="workers", client=data.client, dtype="float64", **options
    )
    alone = model.fit(local, dtype="float64", **options)
    new = {"item": ["n1"], "themes": [["sun", "rain"]]}
    scores, expected = (m.add_items(new).score(local) for m in (fitted, alone))
    # the columns of features are made in float32
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("where", ["here", "workers"])
def test_a_model_with_a_trend_is_fitted_and_ranks_as_on_one_machine(data, local, tmp_path, where):
    trend = eq.Trend(half_life="200d", power=0.6, share=0.4)
    signals = eq.Signals(decay="300d", history_decay="90d")
    model = eq.EASE(l2=5.0, trend=trend, signals=signals)
    fitted = eq.cluster.fit(model, data, where=where, dtype="float64")
    alone = eq.EASE(l2=5.0, trend=trend, signals=signals).fit(local, dtype="float64")
    np.testing.assert_array_equal(fitted.trend_.counts, alone.trend_.counts)
    np.testing.assert_allclose(fitted.score(local), alone.score(local), rtol=1e-9, atol=1e-12)
    if where == "workers":
        return
    split = eq.split.time_cut(local, valid=0)
    judged = eq.EASE(l2=5.0, trend=trend, signals=signals).fit(split.train)
    result = eq.cluster.evaluate(judged, split.test, client=data.client, bootstrap=0)
    assert result.values == eq.evaluate(judged, split.test, bootstrap=0).values
    eq.cluster.recommend_to(alone, tmp_path / "lists", k=5, client=data.client, reasons=2)
    lists = pl.read_parquet(tmp_path / "lists" / "*.parquet")
    assert lists.equals(alone.recommend(local.users, k=5, reasons=2).to_frame(details=True))


@pytest.mark.parametrize(
    ("neighbours", "weights"),
    [(4, {}), (12, {"normalizer": eq.DAN(0.2, 0.3)}), (200, {"normalizer": eq.UserNorm(0.5)})],
)
def test_neighbourhoods_over_the_workers_are_those_of_one_machine(
    data, local, neighbours, weights, monkeypatch
):
    """Sums of several strips of items continue over three chunks of users."""
    monkeypatch.setattr("equipoise.cluster.spread.CHUNK_PAIRS", 100)
    monkeypatch.setattr("equipoise.cluster.neighbours.STRIP_ENTRIES", 60)
    model = eq.EASE(l2=5.0, dropout=0.3, **weights)
    options = {"engine": "neighbourhood", "neighbours": neighbours, "dtype": "float64"}
    expected = model.fit(local, **options)  # first, so that workers load compiled kernels
    fitted = eq.cluster.fit(model, data, **options)
    inverse, expected_inverse = fitted.inverse_, expected.inverse_
    assert np.array_equal(inverse.indptr, expected_inverse.indptr)
    assert np.array_equal(inverse.indices, expected_inverse.indices)
    # small solves on sums of the same numbers, hundreds of them at most
    assert np.allclose(inverse.data, expected_inverse.data, rtol=1e-10, atol=1e-13)
    assert fitted.audit_ == pytest.approx(expected.audit_, abs=1e-6)
    assert fitted.recommend("u001", k=5).items == expected.recommend("u001", k=5).items
    again = eq.cluster.fit(model, local, client=data.client, **options)
    assert np.array_equal(again.inverse_.indices, expected_inverse.indices)


def test_entries_beyond_the_memory_of_a_worker_are_refused(data, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.neighbours.SHARE", 1e-9)
    with pytest.raises(eq.TooBigError, match=r"on each worker and one has .*fewer neighbours"):
        eq.cluster.fit(eq.EASE(l2=5.0), data, engine="neighbourhood", neighbours=5)


def is_mapped(array: np.ndarray) -> bool:
    """Return whether an array is mapped from a file."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array, np.memmap)


def test_data_beyond_the_memory_here_are_mapped(data, local, tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.allocation.free_memory", lambda: 1000)
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3))
    options = {"where": "workers", "tile_rows": 12, "scratch": tmp_path / "large"}
    fitted = eq.cluster.fit(model, data, data="with", **options)
    assert all(
        map(is_mapped, (fitted.inverse_, fitted.data_.matrix.indices, fitted.data_.events.times))
    )
    assert is_same(fitted.data_, local)
    assert not list((tmp_path / "large").iterdir())
    fitted.save(tmp_path / "model")
    assert eq.load(tmp_path / "model").recommend("u001").items == fitted.recommend("u001").items
    monkeypatch.setattr("equipoise.cluster.allocation.free_disk", lambda folder: 1000)
    with pytest.raises(eq.TooBigError, match="give a folder on a larger disk"):
        data.gather(tmp_path / "large")


def test_a_model_fitted_on_workers_saves_and_updates_like_any_other(data, tmp_path):
    fitted = eq.cluster.fit(eq.EASE(l2=5.0), data, where="workers", scratch=tmp_path / "scratch")
    fitted.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model")
    assert loaded.recommend("u001").items == fitted.recommend("u001").items
    fitted.update(removed=["u001"])
    assert "u001" not in fitted.data_.user_index


def test_a_small_memory_budget_moves_the_solve_to_the_workers(data):
    fitted = eq.cluster.fit(eq.EASE(l2=5.0), data, memory=1000)
    assert not is_mapped(fitted.inverse_)  # not by tiles on the disk of this machine


def test_settings_that_do_not_apply_are_refused(data, local):
    with pytest.raises(eq.SettingError, match="tile_rows= is for a fit over the workers"):
        eq.cluster.fit(eq.EASE(), data, where="here", tile_rows=8)
    with pytest.raises(
        eq.SettingError, match="a split on this machine; make it with where='here'"
    ):
        eq.cluster.tune(eq.EASE, data.split(where="workers"))
    with pytest.raises(eq.SettingError, match="evaluate existing lists"):
        eq.cluster.evaluate(pl.DataFrame({"user": [1]}), eq.split.strong(local).test)
    with pytest.raises(eq.SettingError, match="where='workers' is for linear autoencoders"):
        eq.cluster.fit(eq.Popularity(), data, where="workers")
    with pytest.raises(eq.SettingError, match="engine= is for a fit on this machine"):
        eq.cluster.fit(eq.EASE(), data, where="workers", engine="dense")
    with pytest.raises(eq.SettingError, match="need client="):
        eq.cluster.fit(eq.EASE(), local)


def test_evaluation_equals_that_of_one_machine(data, local, tmp_path):
    split = eq.split.strong(local, valid=0, test=0.3)
    model = eq.EASE(l2=5.0).fit(split.train)
    expected = eq.evaluate(model, split.test, k=[5, 10])
    result = eq.cluster.evaluate(model, split.test, [5, 10], client=data.client, batch_size=4)
    assert result.table.equals(expected.table)
    assert result.per_user.equals(expected.per_user)
    assert (result.name, result.settings) == (expected.name, expected.settings)
    model.save(tmp_path / "model")
    progress: list[tuple[int, int]] = []
    options = {"client": data.client, "batch_size": 5, "progress": lambda *at: progress.append(at)}
    saved = eq.cluster.evaluate(tmp_path / "model", split.test, [5, 10], **options)
    assert saved.table.equals(expected.table)
    assert progress == [(min(done, 18), 18) for done in (5, 10, 15, 20)]


def test_a_split_that_stays_with_the_workers_is_that_of_one_machine(data, local, tmp_path):
    shares = {"valid": 0.2, "test": 0.3, "seed": 3}
    split, expected = data.split(where="workers", **shares), eq.split.strong(local, **shares)
    assert split.train.gather().fingerprint == expected.train.fingerprint
    assert split.notes == expected.notes
    for name in ("valid", "test"):
        part, expected_part = getattr(split, name), getattr(expected, name)
        assert part.history.gather().fingerprint == expected_part.history.fingerprint
        assert part.target.gather().fingerprint == expected_part.target.fingerprint
    assert repr(split.test).startswith(f"Part test: {expected.test.n_users} users")
    with pytest.raises(eq.SettingError, match="where='workers' is for 'strong', not 'weak'"):
        data.split("weak", where="workers")
    with pytest.raises(eq.SettingError, match="on the workers order is 'random'"):
        data.split(where="workers", order="time")


def test_a_part_that_stays_with_the_workers_has_the_metrics_of_one_machine(
    data, local, monkeypatch
):
    share = {"valid": 0, "test": 0.5}
    split, local_split = data.split(where="workers", **share), eq.split.strong(local, **share)
    model = eq.EASE(l2=5.0).fit(local_split.train)
    names = ["ndcg", "recall", "tail_ndcg", "active_recall", "coverage", "gini", "lift"]
    call = {
        "metrics": names,
        "groups": {"few": local_split.train.items[:4].tolist()},
        "bootstrap": 50,
    }
    expected = eq.evaluate(model, local_split.test, [3, 8], **call)
    seen = []
    call |= {"batch_size": 3, "progress": lambda done, total: seen.append((done, total))}
    # histories and targets must stay on the workers
    monkeypatch.setattr(eq.cluster.Partitioned, "gather", None)
    result = eq.cluster.evaluate(model, split.test, [3, 8], **call)
    assert result.table.equals(expected.table)
    assert result.per_user.equals(expected.per_user)
    assert (result.fingerprint, result.name) == (expected.fingerprint, expected.name)
    assert seen[-1] == (expected.n_users, expected.n_users)


def test_histories_and_targets_of_two_folders_are_evaluated(client, local, tmp_path):
    """Blocks of histories and targets end at different users; the targets have fewer items."""
    split = eq.split.strong(local, valid=0, test=0.5)
    model = eq.EASE(l2=5.0).fit(split.train)
    pair = []
    for name, side in (("history", split.test.history), ("target", split.test.target)):
        frame = side.to_frame().select("user", "item")
        folder = parts(tmp_path / name, frame, [20])
        pair.append(eq.cluster.read(folder, client=client, block_rows=17))
    assert len(pair[0].blocks) > len(pair[1].blocks) > 1
    history = split.test.history.with_items(pair[0].items, unknown_items="skip")
    target = split.test.target.with_items(pair[1].items, unknown_items="skip")
    expected = eq.evaluate(model, (history, target), 5)
    result = eq.cluster.evaluate(model, tuple(pair), 5)
    assert result.table.equals(expected.table)
    assert result.fingerprint == expected.fingerprint
    with pytest.raises(eq.DataError, match="must hold the same users"):
        eq.cluster.evaluate(model, (pair[0].filter(min_user=4), pair[1]), 5)
    with pytest.raises(eq.SettingError, match="both Partitioned or both not"):
        eq.cluster.evaluate(model, (pair[0], target), 5)
    call = {"seed": -1, "progress": lambda *_: pytest.fail("it ranked")}
    with pytest.raises(eq.SettingError, match="seed must be"):
        eq.cluster.evaluate(model, tuple(pair), 5, **call)


def test_sessions_that_stay_with_the_workers_are_evaluated(client, tmp_path):
    """Session ids are text, ordered by users who are numbers, so not in the order of text."""
    frame = events().with_columns(pl.col("user_id").str.slice(1).cast(pl.Int64))
    folder = parts(tmp_path / "data", frame, [300])
    partitioned = eq.cluster.read(folder, client=client, block_rows=100, gap="200d")
    share = {"valid": 0, "test": 0.5}
    split = eq.split.strong(eq.read(folder, gap="200d"), **share)
    model = eq.EASE(l2=5.0).fit(split.train)
    result = eq.cluster.evaluate(model, partitioned.split(where="workers", **share).test, 5)
    assert result.table.equals(eq.evaluate(model, split.test, 5).table)


FORMS = {
    "one user": ("u001", {}),
    "users": (["u001", "nobody", "u002", "u003"], {"unknown_users": "skip"}),
    "names": ({"u001": [1, 2], "new": [3], "u002": [4]}, {"candidates": {"new": [1, 2, 5]}}),
    "histories": ([[1, 2], [3], [4, 5]], {"exclude": np.array([1, 2])}),
    "histories and rules of users": ([[1], [2]], {"rules": {"users": {"0": {"include": [3]}}}}),
}


@pytest.mark.parametrize(("requests", "options"), FORMS.values(), ids=FORMS)
def test_lists_are_those_of_any_form_of_users(data, local, tmp_path, requests, options):
    model = eq.EASE(l2=5.0).fit(local)
    n_users = model.recommend_to(tmp_path / "lists.parquet", requests, 4, **options)
    call = {"client": data.client, "users_per_file": 1, **options}
    assert eq.cluster.recommend_to(model, tmp_path / "lists", requests, 4, **call) == n_users
    lists = pl.read_parquet(tmp_path / "lists" / "*.parquet")
    assert lists.equals(pl.read_parquet(tmp_path / "lists.parquet"))


def test_a_list_of_items_for_each_user_is_refused(data, local, tmp_path):
    model = eq.EASE(l2=5.0).fit(local)
    call = {"client": data.client, "candidates": [[1, 2], [3]]}
    with pytest.raises(eq.SettingError, match="give a mapping from users to lists"):
        eq.cluster.recommend_to(model, tmp_path / "lists", ["u001", "u002"], 4, **call)
    assert not (tmp_path / "lists").exists()
    with pytest.raises(eq.DataError, match="there is no user to recommend to"):
        eq.cluster.recommend_to(model, tmp_path / "lists", [], 4, client=data.client)


def test_a_folder_of_lists_resumes_only_the_same_call(data, local, tmp_path):
    model = eq.EASE(l2=5.0).fit(local)
    rules = tmp_path / "rules.toml"
    rules.write_text("exclude = [1]\n")
    stock = np.arange(2000)  # NumPy abbreviates the text of so many
    call = {"client": data.client, "rules": rules, "candidates": stock, "unknown_items": "skip"}
    out = tmp_path / "lists"
    eq.cluster.recommend_to(model, out, k=4, **call)
    (out / ".part-000000.parquet.0123").write_text("unfinished file of a lost worker")
    eq.cluster.recommend_to(model, out, k=4, **call)
    assert {file.name for file in out.iterdir()} == {"lists.json", "part-000000.parquet"}
    other = stock.copy()
    other[1000] = 7
    near = eq.EASE(l2=5.0).fit(local, engine="neighbourhood", neighbours=3)
    for changed, options in ((model, {"candidates": other}), (near, {})):
        with pytest.raises(eq.SettingError, match="holds lists of another model, of other users"):
            eq.cluster.recommend_to(changed, out, k=4, **{**call, **options})
    rules.write_text("exclude = [2]\n")
    with pytest.raises(eq.SettingError, match="or with other settings"):
        eq.cluster.recommend_to(model, out, k=4, **call)


def test_lists_are_written_once_and_equal_those_of_one_machine(data, tmp_path):
    model = eq.cluster.fit(eq.EASE(l2=5.0), data)
    model.save(tmp_path / "model")
    model.recommend_to(tmp_path / "lists.parquet", k=5)
    out = tmp_path / "lists"
    call = {"client": data.client, "users_per_file": 25}
    assert eq.cluster.recommend_to(tmp_path / "model", out, k=5, **call) == data.n_users
    files = sorted(out.glob("part-*.parquet"))
    assert len(files) == -(-data.n_users // 25)
    expected = pl.read_parquet(tmp_path / "lists.parquet")
    assert pl.read_parquet(files).equals(expected)
    # after an interruption one file is missing; existing files are not written again
    files[1].unlink()
    before = [file.stat().st_mtime_ns for file in files if file.exists()]
    eq.cluster.recommend_to(tmp_path / "model", out, k=5, **call)
    after = [file.stat().st_mtime_ns for file in files]
    assert pl.read_parquet(files).equals(expected)
    assert [after[0], *after[2:]] == before
    with pytest.raises(eq.SettingError, match="lists of another model, of other users or with"):
        eq.cluster.recommend_to(tmp_path / "model", out, k=6, **call)


def test_lists_of_histories_and_of_named_users(data, local, tmp_path, monkeypatch):
    model = eq.EASE(l2=5.0).fit(local)
    histories = local.rows(np.arange(10))
    users = local.users[:7].tolist()
    for name, requests in (("histories", histories), ("users", users)):
        model.recommend_to(tmp_path / f"{name}.parquet", requests, k=4)
        call = {"client": data.client, "users_per_file": 3}
        count = eq.cluster.recommend_to(model, tmp_path / name, requests, 4, **call)
        assert count == len(users if name == "users" else histories.users)
        lists = pl.read_parquet(tmp_path / name / "*.parquet")
        assert lists.equals(pl.read_parquet(tmp_path / f"{name}.parquet"))
    # histories on the workers stay there
    monkeypatch.setattr(eq.cluster.Partitioned, "gather", None)
    model.recommend_to(tmp_path / "all.parquet", local, k=4)
    del call["client"]  # taken from the data
    assert eq.cluster.recommend_to(model, tmp_path / "blocks", data, 4, **call) == local.n_users
    lists = pl.read_parquet(tmp_path / "blocks" / "*.parquet")
    assert lists.equals(pl.read_parquet(tmp_path / "all.parquet"))


def test_a_search_has_the_ledger_and_the_answer_of_one_machine(data, local, tmp_path):
    split = eq.split.strong(local, valid=0.2, test=0.2)
    grid = {"l2": [1, 10, 100], "dropout": [0.0, 0.5], "alpha": [0, 0.3]}
    expected = eq.tune([eq.EASE, eq.LAE], split, grid=grid, storage=tmp_path / "here")
    call = {"grid": grid, "client": data.client, "storage": tmp_path / "there"}
    tuned = eq.cluster.tune([eq.EASE, eq.LAE], split, **call)
    assert tuned.trials.equals(expected.trials)
    assert tuned.best == expected.best
    assert np.array_equal(tuned.model.weights_, expected.model.weights_)
    # a search of either kind resumes the other
    again = eq.tune([eq.EASE, eq.LAE], split, grid=grid, storage=tmp_path / "there")
    assert (again.solves, again.resumed) == (0, 6)


def test_a_search_with_early_stops_is_the_same(data, local):
    split = eq.split.strong(local, valid=0.2, test=0.2)
    call = {"grid": {"l2": [1, 3, 10, 30, 100]}, "early_stop": True}
    expected = eq.tune(eq.EASE, split, **call)
    tuned = eq.cluster.tune(eq.EASE, split, client=data.client, **call)
    assert tuned.trials.equals(expected.trials)


def test_workers_of_a_search_keep_tiles_in_separate_folders_and_remove_them(data, local, tmp_path):
    split = eq.split.strong(local, valid=0.2, test=0.2)
    grid = {"l2": [1, 10, 100], "dropout": [0.0, 0.5]}
    call = {"grid": grid, "engine": "tiled"}
    expected = eq.tune(eq.EASE, split, scratch=tmp_path / "here", **call)
    tuned = eq.cluster.tune(eq.EASE, split, client=data.client, scratch=tmp_path / "there", **call)
    assert tuned.trials.equals(expected.trials)
    assert not (tmp_path / "there" / "search").exists()


def test_a_search_on_workers_of_several_threads_is_the_same(rng):
    distributed = pytest.importorskip("distributed")
    data = eq.Interactions(rng.random((300, 120)) < 0.1)
    split = eq.split.strong(data, valid=0.2, test=0.2)
    grid = {"l2": [1, 10, 50, 100], "dropout": [0.0, 0.5]}
    expected = eq.tune(eq.EASE, split, grid=grid)
    options = {
        "n_workers": 1,
        "threads_per_worker": 4,
        "processes": False,
        "dashboard_address": ":0",
    }
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        tuned = eq.cluster.tune(eq.EASE, split, grid=grid, client=client)
    assert tuned.trials.equals(expected.trials)


def test_a_search_on_partitioned_data_uses_all_of_them(data, local):
    tuned = eq.cluster.tune(data, trials=2)
    assert tuned.best == eq.tune(local, trials=2).best
    assert tuned.model.data_fingerprint_ == local.fingerprint


def sleep_or_fail(seconds: float) -> None:
    time.sleep(seconds)
    if not seconds:
        raise ValueError("at once")


def test_waiting_keeps_nothing_on_the_workers(client, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.workers.TIMEOUT", 0.02)
    gc.collect()
    gc.disable()  # free only objects without references
    try:
        before = len(client.futures)
        fetch(client, [submit(client, sleep_or_fail, 0.1), submit(client, sleep_or_fail, 0.1)])
        client.sync(asyncio.sleep, 0)  # let the scheduler hear of released futures
        assert len(client.futures) == before
    finally:
        gc.enable()


def test_an_error_is_raised_without_waiting_for_other_tasks(client, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.workers.TIMEOUT", 0.05)
    slow_task = submit(client, sleep_or_fail, 1.5)
    with pytest.raises(ValueError, match="at once"):
        fetch(client, [slow_task, submit(client, sleep_or_fail, 0)])
    assert slow_task.status == "pending"


def test_data_of_a_closed_client_raise_a_clear_error(client, tmp_path):
    distributed = pytest.importorskip("distributed")
    other = distributed.Client(client.scheduler.address, set_as_default=False)
    partitioned = eq.cluster.read(parts(tmp_path / "data", events(), []), client=other)
    other.close()
    with pytest.raises(eq.ClusterError, match="dropped the work of a client that was closed"):
        partitioned.filter(min_user=2)


@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_does_not_change_the_data(client, fault, tmp_path):
    """The quick case of test_faults.py; tests that need two workers come before it."""
    folder = parts(tmp_path / "data", events(60), [30])
    with fault("cut_run", 1, tmp_path / "died"):
        gathered = eq.cluster.read(folder, client=client, block_rows=20).gather()
    assert (tmp_path / "died").exists()
    assert is_same(gathered, eq.read(folder))


def die_always() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_task_that_kills_every_worker_raises_a_clear_error(client):
    scheduler = client.cluster.scheduler
    scheduler.allowed_failures, before = 0, scheduler.allowed_failures
    try:
        with pytest.raises(eq.ClusterError, match="several workers died on the same task"):
            fetch(client, submit(client, die_always))
    finally:
        scheduler.allowed_failures = before


def test_an_unreachable_scheduler_raises_a_clear_error(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("equipoise.cluster.workers.TIMEOUT", 1)
    with pytest.raises(eq.ClusterError, match=r"no scheduler answers at tcp://127.0.0.1:9"):
        eq.cluster.connect("tcp://127.0.0.1:9")
    with pytest.raises(eq.SettingError, match="client must be"):
        eq.cluster.connect(3)


@pytest.mark.filterwarnings("ignore")
def test_a_lost_scheduler_raises_a_clear_error(tmp_path):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    )
    client = distributed.Client(cluster, set_as_default=False)
    pending = submit(client, time.sleep, 60)
    cluster.close()
    with pytest.raises(eq.ClusterError, match=r"the scheduler at .* is gone"):
        fetch(client, pending)
    client.close()
    with pytest.raises(eq.ClusterError, match="the client is closed"):
        eq.cluster.read(parts(tmp_path / "data", events(), []), client=client)


def test_a_failed_part_leaves_no_file_of_lists(data, local, tmp_path):
    model = eq.EASE(l2=5.0).fit(local)
    call = {"client": data.client, "users_per_file": 3}
    with pytest.raises(eq.UnknownIdError, match="nobody"):
        eq.cluster.recommend_to(model, tmp_path / "lists", ["u001", "nobody"], 4, **call)
    assert not (tmp_path / "lists").exists()
    histories = [[1], [2], [3], [4], [999]]
    with pytest.raises(eq.UnknownIdError, match="999"):
        eq.cluster.recommend_to(model, tmp_path / "lists", histories, 4, **call)
    names = {file.name for file in (tmp_path / "lists").iterdir()}
    assert names <= {"lists.json", "part-000000.parquet"}


def test_only_the_lower_triangle_is_held(data, rng):
    train = eq.Interactions(rng.random((300, 120)) < 0.1)
    solver = WorkerSolver(Spread(data.client, train), train, tile_rows=30)
    weights, penalty = np.ones(300), np.full(120, 5.0)
    tiles = solver.system(weights, penalty)
    sizes = fetch(data.client, [submit(data.client, np.size, tile) for tile in tiles.values()])
    assert sum(sizes) == 120 * (120 + 30) / 2
    P = solver.solve(weights, penalty).P
    A = train.matrix.toarray().astype(np.float64)
    A = A.T @ A + np.diag(penalty)
    bound = 10 * np.linalg.cond(A) * len(A) * np.finfo(np.float32).eps
    assert np.linalg.norm(A @ P - np.eye(120)) < bound
