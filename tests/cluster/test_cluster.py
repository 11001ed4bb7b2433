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

import equipoise as eq
from equipoise.cluster.solving import WorkerSolver
from equipoise.cluster.spread import Spread
from equipoise.cluster.workers import results, submit

CHUNK = 150  # rows of a block, so that a few hundred rows make several


def events(n_rows: int = 600, seed: int = 0) -> pl.DataFrame:
    """Return rows with repeats, times, weights and types; users are text, items integers."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user_id": [f"u{each:03d}" for each in rng.integers(0, 60, n_rows)],
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


def same(found: eq.Interactions, wanted: eq.Interactions) -> bool:
    return found.fingerprint == wanted.fingerprint and found.notes == wanted.notes


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
    found = eq.cluster.read(folder, client=client, block_rows=CHUNK, **options)
    assert len(found.blocks) == 4
    assert same(found.gather(), eq.read(folder, **options))


def test_sessions_are_cut_as_on_one_machine(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [250])
    found = eq.cluster.read(folder, client=client, block_rows=CHUNK, gap="100d")
    assert same(found.gather(), eq.read(folder, gap="100d"))


def test_positions_do_not_depend_on_parts_or_their_order(client, tmp_path):
    frame = events().select("user_id", "item_id").unique(maintain_order=True)
    whole = eq.read(frame)
    mixed = frame.sample(fraction=1.0, shuffle=True, seed=1)
    for number, (table, cuts) in enumerate([(frame, []), (mixed, [1, 50, 51]), (mixed, [0, 90])]):
        folder = parts(tmp_path / str(number), table, cuts)
        found = eq.cluster.read(folder, client=client, block_rows=70).gather()
        assert found.fingerprint == whole.fingerprint


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("samples", [1, 4, 16_384])
def test_blocks_have_equal_shares_of_the_rows(client, tmp_path, monkeypatch, samples, text):
    monkeypatch.setattr("equipoise.cluster.ingest.MOST_SAMPLES", samples)
    rng = np.random.default_rng(5)
    user = np.append(rng.zipf(1.3, 500).clip(1, 200), np.full(150, 90))  # some have many rows
    kind = pl.String if text else pl.Int64
    frame = pl.DataFrame({"user": pl.Series(user).cast(kind), "item": rng.integers(0, 9, 650)})
    folder = parts(tmp_path / "data", frame, [3, 400, 401])
    found = eq.cluster.read(folder, client=client, block_rows=50)
    rows = frame.group_by("user").len().sort("user")["len"].to_numpy()
    number = (np.cumsum(rows) - rows) * 13 // 650
    wanted = np.unique(number, return_counts=True)[1]
    np.testing.assert_array_equal(found.block_users, wanted)


def test_empty_parts_are_counted(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300], "csv")
    (folder / "part-05.csv").write_text("")
    found = eq.cluster.read(folder, client=client, block_rows=CHUNK)
    assert "1 of 3 parts are empty" in found.notes
    assert same(found.gather(), eq.read(folder))


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
    found = eq.cluster.read(folder, client=client).gather()
    assert found.users.tolist() == ["10", "9", "a"]
    assert same(found, eq.read(folder))


def test_text_that_is_no_integer_is_refused_after_integers(client, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    pl.DataFrame({"user": [1, 2], "item": [1, 2]}).write_parquet(folder / "part-0.parquet")
    pl.DataFrame({"user": ["7", "x"], "item": [2, 3]}).write_parquet(folder / "part-1.parquet")
    with pytest.raises(eq.DataError, match=r"part-1.parquet holds 'x' where the parts before"):
        eq.cluster.read(folder, client=client)


def test_a_frame_of_dask_is_read(client, tmp_path):
    frames = pytest.importorskip("dask.dataframe")
    pandas = events().to_pandas()
    found = eq.cluster.read(frames.from_pandas(pandas, npartitions=3), client=client)
    assert same(found.gather(), eq.read(pandas))


def test_addresses_of_fsspec_are_read(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300])
    url = f"file://{folder}/part-*.parquet"
    assert eq.cluster.read(url, client=client).gather().fingerprint == eq.read(folder).fingerprint
    (folder / "part-01.parquet").write_bytes(b"PAR1 but broken")
    with pytest.raises(eq.DataError, match=r"file://.*part-01.parquet is not a whole Parquet"):
        eq.cluster.read(url, client=client)


def test_files_of_a_remote_folder_are_those_of_a_folder_here(client, tmp_path):
    folder = parts(tmp_path / "_data", events(), [300], "csv")
    for name in ("_SUCCESS", ".part-00.csv.crc", "_temporary.csv"):
        (folder / name).write_text("not data\n")
    found = eq.cluster.read(f"file://{folder}", client=client)
    assert same(found.gather(), eq.read(folder))


def test_a_relative_path_is_that_of_this_process(client, tmp_path, monkeypatch):
    folder = parts(tmp_path / "data", events(), [300])
    monkeypatch.chdir(tmp_path)
    for source in (
        "data",
        "data/part-*.parquet",
        ["data/part-00.parquet", "data/part-01.parquet"],
    ):
        assert same(eq.cluster.read(source, client=client).gather(), eq.read(folder))


def test_what_is_no_table_is_refused(client, local, tmp_path):
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


@pytest.mark.parametrize("how", [{"min_rating": 4}, {"on_bad": "skip"}], ids=["low", "bad"])
def test_parts_of_which_no_row_is_left_change_nothing(client, tmp_path, how):
    """Neither where blocks are cut nor the kind of the ids."""
    rng = np.random.default_rng(2)
    columns = {"user": rng.integers(0, 40, 300), "rating": rng.integers(1, 6, 300)}
    frame = pl.DataFrame({**columns, "item": rng.integers(0, 20, 300)})
    unusable = {"user": None} if "on_bad" in how else {"rating": 1}
    first = [pl.lit(value).alias(name) for name, value in unusable.items()]
    folder = parts(tmp_path / "data", frame, [], "csv")
    frame[:9].with_columns(first).write_csv(folder / "a.csv")
    (folder / "z.csv").write_text(",".join(frame.columns) + "\n" + "1\n" * ("on_bad" in how))
    found = eq.cluster.read(folder, client=client, block_rows=CHUNK // 3, **how)
    assert len(found.blocks) > 1
    assert same(found.gather(), eq.read(folder, **how))


def test_labels_are_those_of_the_library(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300])
    titles = {each: f"title {each}" for each in range(1, 31)}
    found = eq.cluster.read(folder, client=client, labels=titles).gather()
    wanted = eq.read(folder, labels=titles)
    assert found.notes == wanted.notes
    assert found.labels.equals(wanted.labels)


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
    found = eq.cluster.read(folder, client=client, on_bad="skip").gather()
    assert same(found, eq.read(folder, on_bad="skip"))


def test_schemas_that_disagree_are_named(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300])
    events().rename({"amount": "price"}).write_parquet(folder / "part-01.parquet")
    with pytest.raises(eq.DataError, match="parts need one schema"):
        eq.cluster.read(folder, client=client)


def test_times_of_two_units_are_named(client, tmp_path):
    folder = parts(tmp_path / "data", events(), [300])
    later = events()[300:].with_columns(pl.col("ts") * 1000)
    later.write_parquet(folder / "part-01.parquet")
    with pytest.raises(eq.DataError, match=r"seconds .*part-00.* but .*milliseconds"):
        eq.cluster.read(folder, client=client)


def test_statistics_equal_those_of_one_machine(data, local):
    found, wanted = data.describe().to_dict(), eq.describe(local).to_dict()
    for name in ("homophily", "homophily_low", "homophily_high"):
        assert found.pop(name) == pytest.approx(wanted.pop(name), rel=1e-12)
    assert found == wanted
    sampled, wanted = data.describe(exact=False), eq.describe(local, exact=False)
    assert sampled.homophily == pytest.approx(wanted.homophily, rel=1e-12)
    assert sampled.homophily_low == pytest.approx(wanted.homophily_low, rel=1e-9)
    assert sampled.homophily_low < sampled.homophily_high


@pytest.mark.parametrize(("min_user", "min_item"), [(5, 4), (0, 9), (6, 0), (0, 0)])
def test_the_core_equals_that_of_one_machine(data, local, min_user, min_item):
    found = data.filter(min_user=min_user, min_item=min_item)
    wanted = local.filter(min_user=min_user, min_item=min_item)
    assert (found.n_users, found.n_items) == (wanted.n_users, wanted.n_items)
    assert found.n_interactions == wanted.n_interactions
    assert same(found.gather(), wanted)


def test_a_core_of_nothing_is_refused(data):
    with pytest.raises(eq.DataError, match="nothing is left with min_user=1000"):
        data.filter(min_user=1000)


@pytest.mark.parametrize("protocol", ["strong", "weak", "time_cut"])
def test_splits_equal_those_of_one_machine(data, local, protocol):
    found, wanted = data.split(protocol), getattr(eq.split, protocol)(local)
    assert found.train.fingerprint == wanted.train.fingerprint
    assert found.test.fingerprint == wanted.test.fingerprint


def test_a_fit_here_has_the_same_bits(data, local):
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3))
    found = eq.cluster.fit(model, data)
    assert np.array_equal(
        found.weights_, eq.cluster.fit(model, local, client=data.client).weights_
    )
    assert np.array_equal(found.weights_, model.fit(local).weights_)
    assert found.data_fingerprint_ == local.fingerprint


@pytest.mark.parametrize("tile_rows", [12, 30])
def test_a_fit_over_the_workers_solves_the_same_system(data, local, tile_rows, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.spread.CHUNK_PAIRS", 100)
    monkeypatch.setattr("equipoise.cluster.solving.GRAM_PAIRS", 200)
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3))
    found = eq.cluster.fit(model, data, where="workers", dtype="float64", tile_rows=tile_rows)
    wanted = model.fit(local, dtype="float64")
    # both solve (A + E) P = I with |E| of some n eps |A|, so P differs by about cond(A) n eps |P|
    A = np.linalg.inv(wanted.inverse_)
    bound = 10 * np.linalg.cond(A) * len(A) * np.finfo(np.float64).eps
    error = np.linalg.norm(found.inverse_ - wanted.inverse_) / np.linalg.norm(wanted.inverse_)
    assert error < bound
    assert found.recommend("u001", k=5).items == wanted.recommend("u001", k=5).items


@pytest.mark.parametrize(
    ("neighbours", "weights"),
    [(4, {}), (12, {"normalizer": eq.DAN(0.2, 0.3)}), (200, {"normalizer": eq.UserNorm(0.5)})],
)
def test_neighbourhoods_over_the_workers_are_those_of_one_machine(
    data, local, neighbours, weights, monkeypatch
):
    """Three chunks of users and strips of a few items, whose sums go on from chunk to chunk."""
    monkeypatch.setattr("equipoise.cluster.spread.CHUNK_PAIRS", 100)
    monkeypatch.setattr("equipoise.cluster.neighbours.STRIP_ENTRIES", 60)
    model = eq.EASE(l2=5.0, dropout=0.3, **weights)
    near = {"engine": "neighbourhood", "neighbours": neighbours, "dtype": "float64"}
    found, wanted = eq.cluster.fit(model, data, **near), model.fit(local, **near)
    ours, theirs = found.inverse_, wanted.inverse_
    assert np.array_equal(ours.indptr, theirs.indptr)
    assert np.array_equal(ours.indices, theirs.indices)
    # sums of the same numbers, of hundreds of them at most, in single small solves
    assert np.allclose(ours.data, theirs.data, rtol=1e-10, atol=1e-13)
    assert found.audit_ == pytest.approx(wanted.audit_, abs=1e-6)
    assert found.recommend("u001", k=5).items == wanted.recommend("u001", k=5).items
    again = eq.cluster.fit(model, local, client=data.client, **near)
    assert np.array_equal(again.inverse_.indices, theirs.indices)


def test_entries_beyond_the_memory_of_a_worker_are_refused(data, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.neighbours.SHARE", 1e-9)
    with pytest.raises(eq.TooBigError, match=r"on each worker and one has .*fewer neighbours"):
        eq.cluster.fit(eq.EASE(l2=5.0), data, engine="neighbourhood", neighbours=5)


def mapped(array: np.ndarray) -> bool:
    """Whether the numbers of an array are those of a file."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array, np.memmap)


def test_data_beyond_the_memory_here_are_mapped(data, local, tmp_path, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.room.free_memory", lambda: 1000)
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3))
    found = eq.cluster.fit(model, data, where="workers", tile_rows=12, scratch=tmp_path / "large")
    assert all(map(mapped, (found.inverse_, found.data_.matrix.indices, found.data_.events.times)))
    assert same(found.data_, local)
    assert not list((tmp_path / "large").iterdir())
    found.save(tmp_path / "model")
    assert eq.load(tmp_path / "model").recommend("u001").items == found.recommend("u001").items
    monkeypatch.setattr("equipoise.cluster.room.free_disk", lambda folder: 1000)
    with pytest.raises(eq.TooBigError, match="give a folder on a larger disk"):
        data.gather(tmp_path / "large")


def test_the_model_of_the_workers_is_ordinary(data, tmp_path):
    found = eq.cluster.fit(eq.EASE(l2=5.0), data, where="workers", scratch=tmp_path / "scratch")
    found.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert again.recommend("u001").items == found.recommend("u001").items
    found.update(removed=["u001"])
    assert "u001" not in found.data_.user_index


def test_a_budget_of_memory_says_who_solves(data):
    found = eq.cluster.fit(eq.EASE(l2=5.0), data, memory=1000)
    assert not mapped(found.inverse_)  # not by tiles on the disk of this machine


def test_settings_without_a_meaning_are_refused(data, local):
    with pytest.raises(eq.SettingError, match="tile_rows= is for a fit over the workers"):
        eq.cluster.fit(eq.EASE(), data, where="here", tile_rows=8)
    with pytest.raises(
        eq.SettingError, match="a split on this machine; make it with where='here'"
    ):
        eq.cluster.tune(eq.EASE, data.split(where="workers"))
    with pytest.raises(eq.SettingError, match="lists that are there already"):
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
    wanted = eq.evaluate(model, split.test, k=[5, 10])
    found = eq.cluster.evaluate(model, split.test, [5, 10], client=data.client, batch_size=4)
    assert found.table.equals(wanted.table)
    assert found.per_user.equals(wanted.per_user)
    assert (found.name, found.settings) == (wanted.name, wanted.settings)
    model.save(tmp_path / "model")
    seen: list[tuple[int, int]] = []
    call = {"client": data.client, "batch_size": 5, "progress": lambda *at: seen.append(at)}
    saved = eq.cluster.evaluate(tmp_path / "model", split.test, [5, 10], **call)
    assert saved.table.equals(wanted.table)
    assert seen == [(min(done, 18), 18) for done in (5, 10, 15, 20)]


def test_a_split_that_stays_with_the_workers_is_that_of_one_machine(data, local, tmp_path):
    share = {"valid": 0.2, "test": 0.3, "seed": 3}
    found, wanted = data.split(where="workers", **share), eq.split.strong(local, **share)
    assert found.train.gather().fingerprint == wanted.train.fingerprint
    assert found.notes == wanted.notes
    for name in ("valid", "test"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        assert ours.history.gather().fingerprint == theirs.history.fingerprint
        assert ours.target.gather().fingerprint == theirs.target.fingerprint
    assert repr(found.test).startswith(f"Part test: {wanted.test.n_users} users")
    with pytest.raises(eq.SettingError, match="where='workers' is for 'strong', not 'weak'"):
        data.split("weak", where="workers")
    with pytest.raises(eq.SettingError, match="on the workers order is 'random'"):
        data.split(where="workers", order="time")


def test_a_part_that_stays_with_the_workers_has_the_metrics_of_one_machine(
    data, local, monkeypatch
):
    share = {"valid": 0, "test": 0.5}
    found, wanted = data.split(where="workers", **share), eq.split.strong(local, **share)
    model = eq.EASE(l2=5.0).fit(wanted.train)
    names = ["ndcg", "recall", "tail_ndcg", "active_recall", "coverage", "gini", "lift"]
    call = {"metrics": names, "groups": {"few": wanted.train.items[:4].tolist()}, "bootstrap": 50}
    expected = eq.evaluate(model, wanted.test, [3, 8], **call)
    seen = []
    call |= {"batch_size": 3, "progress": lambda done, total: seen.append((done, total))}
    # nothing of histories or targets may come here
    monkeypatch.setattr(eq.cluster.Partitioned, "gather", None)
    result = eq.cluster.evaluate(model, found.test, [3, 8], **call)
    assert result.table.equals(expected.table)
    assert result.per_user.equals(expected.per_user)
    assert (result.fingerprint, result.name) == (expected.fingerprint, expected.name)
    assert seen[-1] == (expected.n_users, expected.n_users)


def test_histories_and_targets_of_two_folders_are_evaluated(client, local, tmp_path):
    """Their blocks are cut at other users, and the targets have fewer items."""
    split = eq.split.strong(local, valid=0, test=0.5)
    model = eq.EASE(l2=5.0).fit(split.train)
    pair = []
    for name, side in (("history", split.test.history), ("target", split.test.target)):
        frame = side.to_frame().select("user", "item")
        folder = parts(tmp_path / name, frame, [20])
        pair.append(eq.cluster.read(folder, client=client, block_rows=17))
    assert len(pair[0].blocks) > len(pair[1].blocks) > 1
    history = split.test.history.with_items(pair[0].items, unknown="skip")
    target = split.test.target.with_items(pair[1].items, unknown="skip")
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
    """Their ids are text in the order of users who are numbers, so not in the order of text."""
    frame = events().with_columns(pl.col("user_id").str.slice(1).cast(pl.Int64))
    folder = parts(tmp_path / "data", frame, [300])
    there = eq.cluster.read(folder, client=client, block_rows=100, gap="200d")
    share = {"valid": 0, "test": 0.5}
    split = eq.split.strong(eq.read(folder, gap="200d"), **share)
    model = eq.EASE(l2=5.0).fit(split.train)
    found = eq.cluster.evaluate(model, there.split(where="workers", **share).test, 5)
    assert found.table.equals(eq.evaluate(model, split.test, 5).table)


FORMS = {
    "one user": ("u001", {}),
    "users": (["u001", "nobody", "u002", "u003"], {"unknown_users": "skip"}),
    "names": ({"u001": [1, 2], "new": [3], "u002": [4]}, {"candidates": {"new": [1, 2, 5]}}),
    "histories": ([[1, 2], [3], [4, 5]], {"exclude": np.array([1, 2])}),
    "histories and rules of users": ([[1], [2]], {"rules": {"users": {"0": {"include": [3]}}}}),
}


@pytest.mark.parametrize(("wanted", "options"), FORMS.values(), ids=FORMS)
def test_lists_are_those_of_any_form_of_users(data, local, tmp_path, wanted, options):
    model = eq.EASE(l2=5.0).fit(local)
    users = model.recommend_to(tmp_path / "lists.parquet", wanted, 4, **options)
    call = {"client": data.client, "users_per_file": 1, **options}
    assert eq.cluster.recommend_to(model, tmp_path / "lists", wanted, 4, **call) == users
    found = pl.read_parquet(tmp_path / "lists" / "*.parquet")
    assert found.equals(pl.read_parquet(tmp_path / "lists.parquet"))


def test_a_list_of_items_for_each_user_is_refused(data, local, tmp_path):
    model = eq.EASE(l2=5.0).fit(local)
    call = {"client": data.client, "candidates": [[1, 2], [3]]}
    with pytest.raises(eq.SettingError, match="give a mapping from users to lists"):
        eq.cluster.recommend_to(model, tmp_path / "lists", ["u001", "u002"], 4, **call)
    assert not (tmp_path / "lists").exists()
    with pytest.raises(eq.DataError, match="there is no user to recommend to"):
        eq.cluster.recommend_to(model, tmp_path / "lists", [], 4, client=data.client)


def test_a_folder_goes_on_with_the_same_lists_alone(data, local, tmp_path):
    model = eq.EASE(l2=5.0).fit(local)
    rules = tmp_path / "rules.toml"
    rules.write_text("exclude = [1]\n")
    stock = np.arange(2000)  # numpy shows both ends of so many
    call = {"client": data.client, "rules": rules, "candidates": stock, "unknown_items": "skip"}
    out = tmp_path / "lists"
    eq.cluster.recommend_to(model, out, k=4, **call)
    (out / ".part-000000.parquet.0123").write_text("of a worker that was lost")
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
    wanted = pl.read_parquet(tmp_path / "lists.parquet")
    assert pl.read_parquet(files).equals(wanted)
    # an interrupted run: one file is missing, and the others are left alone
    files[1].unlink()
    before = [file.stat().st_mtime_ns for file in files if file.exists()]
    eq.cluster.recommend_to(tmp_path / "model", out, k=5, **call)
    after = [file.stat().st_mtime_ns for file in files]
    assert pl.read_parquet(files).equals(wanted)
    assert [after[0], *after[2:]] == before
    with pytest.raises(eq.SettingError, match="lists of another model, of other users or with"):
        eq.cluster.recommend_to(tmp_path / "model", out, k=6, **call)


def test_lists_of_histories_and_of_named_users(data, local, tmp_path, monkeypatch):
    model = eq.EASE(l2=5.0).fit(local)
    histories = local.rows(np.arange(10))
    users = local.users[:7].tolist()
    for name, wanted in (("histories", histories), ("users", users)):
        model.recommend_to(tmp_path / f"{name}.parquet", wanted, k=4)
        call = {"client": data.client, "users_per_file": 3}
        count = eq.cluster.recommend_to(model, tmp_path / name, wanted, 4, **call)
        assert count == len(users if name == "users" else histories.users)
        found = pl.read_parquet(tmp_path / name / "*.parquet")
        assert found.equals(pl.read_parquet(tmp_path / f"{name}.parquet"))
    # histories that workers hold stay there
    monkeypatch.setattr(eq.cluster.Partitioned, "gather", None)
    model.recommend_to(tmp_path / "all.parquet", local, k=4)
    del call["client"]  # that of the data
    assert eq.cluster.recommend_to(model, tmp_path / "blocks", data, 4, **call) == local.n_users
    found = pl.read_parquet(tmp_path / "blocks" / "*.parquet")
    assert found.equals(pl.read_parquet(tmp_path / "all.parquet"))


def test_a_search_has_the_ledger_and_the_answer_of_one_machine(data, local, tmp_path):
    split = eq.split.strong(local, valid=0.2, test=0.2)
    grid = {"l2": [1, 10, 100], "dropout": [0.0, 0.5], "alpha": [0, 0.3]}
    wanted = eq.tune([eq.EASE, eq.LAE], split, grid=grid, storage=tmp_path / "here")
    call = {"grid": grid, "client": data.client, "storage": tmp_path / "there"}
    found = eq.cluster.tune([eq.EASE, eq.LAE], split, **call)
    assert found.trials.equals(wanted.trials)
    assert found.best == wanted.best
    assert np.array_equal(found.model.weights_, wanted.model.weights_)
    # either goes on where the other was
    again = eq.tune([eq.EASE, eq.LAE], split, grid=grid, storage=tmp_path / "there")
    assert (again.solves, again.resumed) == (0, 6)


def test_a_search_with_early_stops_is_the_same(data, local):
    split = eq.split.strong(local, valid=0.2, test=0.2)
    call = {"grid": {"l2": [1, 3, 10, 30, 100]}, "early_stop": True}
    wanted = eq.tune(eq.EASE, split, **call)
    found = eq.cluster.tune(eq.EASE, split, client=data.client, **call)
    assert found.trials.equals(wanted.trials)


def test_tiles_of_a_search_lie_apart_and_are_removed(data, local, tmp_path):
    split = eq.split.strong(local, valid=0.2, test=0.2)
    grid = {"l2": [1, 10, 100], "dropout": [0.0, 0.5]}
    call = {"grid": grid, "engine": "tiled"}
    wanted = eq.tune(eq.EASE, split, scratch=tmp_path / "here", **call)
    found = eq.cluster.tune(eq.EASE, split, client=data.client, scratch=tmp_path / "there", **call)
    assert found.trials.equals(wanted.trials)
    assert not (tmp_path / "there" / "search").exists()


def test_a_search_on_workers_of_several_threads_is_the_same(rng):
    distributed = pytest.importorskip("distributed")
    data = eq.Interactions(rng.random((300, 120)) < 0.1)
    split = eq.split.strong(data, valid=0.2, test=0.2)
    grid = {"l2": [1, 10, 50, 100], "dropout": [0.0, 0.5]}
    wanted = eq.tune(eq.EASE, split, grid=grid)
    how = {"n_workers": 1, "threads_per_worker": 4, "processes": False, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(**how) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        found = eq.cluster.tune(eq.EASE, split, grid=grid, client=client)
    assert found.trials.equals(wanted.trials)


def test_a_search_on_data_of_the_workers_has_all_of_them(data, local):
    found = eq.cluster.tune(data, trials=2)
    assert found.best == eq.tune(local, trials=2).best
    assert found.model.data_fingerprint_ == local.fingerprint


def slow(seconds: float) -> None:
    time.sleep(seconds)
    if not seconds:
        raise ValueError("at once")


def test_waiting_keeps_nothing_on_the_workers(client, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.workers.SECONDS", 0.02)
    gc.collect()
    gc.disable()  # so that only what nobody refers to goes
    try:
        before = len(client.futures)
        results(client, [submit(client, slow, 0.1), submit(client, slow, 0.1)])
        client.sync(asyncio.sleep, 0)  # what is dropped is known there
        assert len(client.futures) == before
    finally:
        gc.enable()


def test_a_task_that_fails_is_not_waited_for_with_others(client, monkeypatch):
    monkeypatch.setattr("equipoise.cluster.workers.SECONDS", 0.05)
    others = submit(client, slow, 1.5)
    with pytest.raises(ValueError, match="at once"):
        results(client, [others, submit(client, slow, 0)])
    assert others.status == "pending"


def test_data_of_a_closed_client_are_one_clear_error(client, tmp_path):
    distributed = pytest.importorskip("distributed")
    other = distributed.Client(client.scheduler.address, set_as_default=False)
    found = eq.cluster.read(parts(tmp_path / "data", events(), []), client=other)
    other.close()
    with pytest.raises(eq.ClusterError, match="dropped the work of a client that was closed"):
        found.filter(min_user=2)


def die_always() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore")
def test_a_task_that_kills_every_worker_is_one_clear_error(client):
    scheduler = client.cluster.scheduler
    scheduler.allowed_failures, before = 0, scheduler.allowed_failures
    try:
        with pytest.raises(eq.ClusterError, match="several workers died on the same task"):
            results(client, submit(client, die_always))
    finally:
        scheduler.allowed_failures = before


def test_a_scheduler_that_is_not_there_is_one_clear_error(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("equipoise.cluster.workers.SECONDS", 1)
    with pytest.raises(eq.ClusterError, match=r"no scheduler answers at tcp://127.0.0.1:9"):
        eq.cluster.connect("tcp://127.0.0.1:9")
    with pytest.raises(eq.SettingError, match="client must be"):
        eq.cluster.connect(3)


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_goes_is_one_clear_error(tmp_path):
    """Files of lists are whole or not there, and the next run makes the others."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    )
    own = distributed.Client(cluster, set_as_default=False)
    pending = submit(own, time.sleep, 60)
    cluster.close()
    with pytest.raises(eq.ClusterError, match=r"the scheduler at .* is gone"):
        results(own, pending)
    own.close()
    with pytest.raises(eq.ClusterError, match="the client is closed"):
        eq.cluster.read(parts(tmp_path / "data", events(), []), client=own)


def test_a_failed_part_leaves_no_file_of_lists(data, local, tmp_path):
    model = eq.EASE(l2=5.0).fit(local)
    call = {"client": data.client, "users_per_file": 3}
    with pytest.raises(eq.UnknownIdError, match="nobody"):
        eq.cluster.recommend_to(model, tmp_path / "lists", ["u001", "nobody"], 4, **call)
    assert not (tmp_path / "lists").exists()
    wanted = [[1], [2], [3], [4], [999]]
    with pytest.raises(eq.UnknownIdError, match="999"):
        eq.cluster.recommend_to(model, tmp_path / "lists", wanted, 4, **call)
    names = {file.name for file in (tmp_path / "lists").iterdir()}
    assert names <= {"lists.json", "part-000000.parquet"}


def test_only_the_lower_triangle_is_held(data, rng):
    train = eq.Interactions(rng.random((300, 120)) < 0.1)
    solver = WorkerSolver(Spread.of(data.client, train), train, tile_rows=30)
    weights, penalty = np.ones(300), np.full(120, 5.0)
    tiles = solver.system(weights, penalty)
    sizes = results(data.client, [submit(data.client, np.size, each) for each in tiles.values()])
    assert sum(sizes) == 120 * (120 + 30) / 2
    P = solver.solve(weights, penalty).P
    A = train.matrix.toarray().astype(np.float64)
    A = A.T @ A + np.diag(penalty)
    bound = 10 * np.linalg.cond(A) * len(A) * np.finfo(np.float32).eps
    assert np.linalg.norm(A @ P - np.eye(120)) < bound
