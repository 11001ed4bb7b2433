"""Models whose training data stay with the workers, lie beside the model, or are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.cluster.partitioned import Partitioned

NEAR = {"engine": "neighbourhood", "neighbours": 8}
FORMS = ("with", "beside", "none")
HISTORIES = [[1, 2, 3], [5], [29, 7]]


def events(n_rows: int = 800) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "user": [f"u{number:03d}" for number in rng.integers(0, 60, n_rows)],
            "item": rng.integers(0, 30, n_rows),
            "ts": rng.integers(0, 1_000_000, n_rows),
            "weight": rng.random(n_rows),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events") / "events"
    folder.mkdir()
    for number in range(3):
        events()[number * 300 : number * 300 + 300].write_parquet(folder / f"{number}.parquet")
    return folder


@pytest.fixture(scope="module")
def local(folder: Path) -> eq.Interactions:
    return eq.read(folder, weight="weight")


@pytest.fixture(scope="module")
def data(folder: Path, client: Any) -> Partitioned:
    return eq.cluster.read(folder, client=client, block_rows=150, weight="weight")


def lists_of(folder: Path) -> pl.DataFrame:
    return pl.concat(map(pl.read_parquet, sorted(folder.glob("part-*.parquet"))))


MODELS = {
    "automatic": lambda: eq.EASE(dropout="auto", normalizer=eq.DAN()),
    "trend": lambda: eq.EASE(
        l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3), trend=eq.Trend(half_life="1d")
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_lists_have_the_same_bits_wherever_the_data_are(data, local, tmp_path, name):
    expected = MODELS[name]().fit(local, **NEAR)
    expected.recommend_to(tmp_path / "lists.parquet", k=5)
    lists = pl.read_parquet(tmp_path / "lists.parquet")
    known = ["u003", "u040", "u003"]
    for form in FORMS:
        fitted = eq.cluster.fit(MODELS[name](), data, data=form, **NEAR)
        assert fitted.data_.in_memory == (form == "with")
        assert (fitted.l2_, fitted.dropout_) == (expected.l2_, expected.dropout_)
        assert fitted.normalizer_ == expected.normalizer_
        assert np.array_equal(fitted.penalty_, expected.penalty_)
        assert np.array_equal(fitted.inverse_.indices, expected.inverse_.indices)
        assert np.array_equal(fitted._fallback_scores, expected._fallback_scores)
        if expected.trend_ is not None:
            assert fitted.trend_.spread == expected.trend_.spread
        fitted.save(tmp_path / form)
        for model in (fitted, eq.load(tmp_path / form, verify=True)):
            answers = model.recommend(HISTORIES, 5).to_frame()
            assert answers.equals(expected.recommend(HISTORIES, 5).to_frame())
            assert np.array_equal(model.weights_, fitted.weights_)
            if form != "none":
                answers = model.recommend(known, 5).to_frame()
                assert answers.equals(expected.recommend(known, 5).to_frame())
        if form == "none":
            with pytest.raises(eq.MissingDataError, match="recommending to users by id needs"):
                fitted.recommend(known)
            eq.cluster.recommend_to(fitted, tmp_path / "of data", data, k=5)
            assert lists_of(tmp_path / "of data").equals(lists)
            continue
        for number, model in enumerate((fitted, tmp_path / form)):
            out = tmp_path / f"lists {form} {number}"
            call = {"k": 5, "client": data.client, "users_per_file": 7}
            assert eq.cluster.recommend_to(model, out, **call) == local.n_users
            assert lists_of(out).equals(lists)
            removed = min(out.glob("part-*"))
            removed.unlink()
            eq.cluster.recommend_to(model, out, **call)  # writes the missing file alone
            assert lists_of(out).equals(lists)


def test_the_exact_inverse_is_the_same_wherever_the_data_are(data):
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3))
    with_data, *elsewhere = (
        eq.cluster.fit(model, data, data=form, where="workers", tile_rows=12) for form in FORMS
    )
    assert all(np.array_equal(other.weights_, with_data.weights_) for other in elsewhere)
    assert not eq.cluster.fit(model, data, where="workers").data_.in_memory
    default = eq.cluster.fit(model, data)  # solved on this machine
    assert default.data_.in_memory
    for form in ("beside", "none"):
        here = eq.cluster.fit(model, data, data=form)
        assert np.array_equal(here.weights_, default.weights_)
        assert here.data_fingerprint_ == default.data_fingerprint_


def test_changes_read_the_blocks_of_the_workers_and_of_the_files(data, local, tmp_path):
    fitted = eq.cluster.fit(eq.EASE(l2=5.0), data, **NEAR)
    fitted.save(tmp_path / "model")
    expected = eq.EASE(l2=5.0).fit(local, **NEAR).update(removed=["u003"])
    for model in (fitted, eq.load(tmp_path / "model")):
        model.update(removed=["u003"])
        assert model.data_.fingerprint == expected.data_.fingerprint
        assert np.array_equal(model.inverse_.indices, expected.inverse_.indices)
    without = eq.cluster.fit(eq.EASE(l2=5.0), data, data="none", **NEAR)
    with pytest.raises(eq.MissingDataError, match="and update needs them; pass histories"):
        without.update(removed=["u003"])
    exact = eq.cluster.fit(eq.EASE(l2=5.0), data, where="workers")
    with_data = eq.cluster.fit(eq.EASE(l2=5.0), data, where="workers", data="with")
    judged, expected = (eq.leave_one_out(model, users=20) for model in (exact, with_data))
    assert judged.values == expected.values


def test_a_part_on_the_workers_judges_a_model_without_data(data):
    split = data.split("strong", where="workers", valid=0, test=0.3)
    results = [
        eq.cluster.evaluate(
            eq.cluster.fit(eq.EASE(l2=5.0), split.train, data=form, **NEAR), split.test
        )
        for form in FORMS
    ]
    assert results[0].values == results[1].values == results[2].values


def test_no_user_of_the_data_comes_to_this_machine(data, tmp_path, monkeypatch):
    """From the fit to written lists, no array has the size of the users or of the rows."""
    largest = []
    gather = type(data.client).gather

    def measured(self, futures, *args, **options):
        fetched = gather(self, futures, *args, **options)
        results = fetched if isinstance(fetched, list) else [fetched]
        largest.extend(
            (part.n_users if isinstance(part, eq.Interactions) else np.size(part))
            for result in results
            for part in (result if isinstance(result, tuple) else [result])
        )
        return fetched

    monkeypatch.setattr(type(data.client), "gather", measured)
    monkeypatch.setattr(Partitioned, "gather", lambda *_: pytest.fail("gathered"))
    monkeypatch.setattr(Partitioned, "user_counts", property(lambda _: pytest.fail("counts")))
    monkeypatch.setattr("equipoise.cluster.neighbours.TARGET_GROUPS", 30)
    monkeypatch.setattr("equipoise.solve.audit.USERS", 1)
    fitted = eq.cluster.fit(eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3)), data, **NEAR)
    fitted.save(tmp_path / "model")
    del fitted
    eq.cluster.recommend_to(tmp_path / "model", tmp_path / "lists", k=3, client=data.client)
    assert largest


def test_forms_that_cannot_be_are_refused(data, local):
    weighed = eq.EASE(l2=5.0, signals=eq.Signals(transform="log1p"))
    with pytest.raises(eq.SettingError, match="signals weigh all data together, so data='none'"):
        eq.cluster.fit(weighed, data, data="none")
    assert eq.cluster.fit(weighed, data, where="workers").data_.in_memory  # the default
    with pytest.raises(eq.SettingError, match="data='beside' is for data that workers hold"):
        eq.cluster.fit(eq.EASE(l2=5.0), local, data="beside", client=data.client)
    with pytest.raises(eq.SettingError, match="data must be 'with', 'beside' or 'none'"):
        eq.cluster.fit(eq.EASE(l2=5.0), data, data="near")
    without = eq.cluster.fit(eq.EASE(l2=5.0), local, data="none", client=data.client)
    with pytest.raises(eq.MissingDataError, match="by id needs them"):
        eq.cluster.recommend_to(without, "lists", client=data.client)


def test_a_companion_gathers_the_data_and_leaves_them_again(data, local):
    model = eq.EASE(l2=5.0, lowpass=eq.LowPass(rank=4, strength=0.2))
    expected = eq.cluster.fit(model, data, where="workers")
    assert expected.data_.in_memory
    fitted = eq.cluster.fit(model, data, where="workers", data="beside")
    assert "_loaded" not in vars(fitted.data_)
    assert np.array_equal(fitted.score(local), expected.score(local))


def test_a_folder_of_one_machine_is_an_error(data, tmp_path, monkeypatch):
    fitted = eq.cluster.fit(eq.EASE(l2=5.0), data, **NEAR)
    monkeypatch.setattr("equipoise.cluster.targets.PATIENCE", 0)
    monkeypatch.setattr("equipoise.cluster.targets.Target.names", lambda self: set())
    with pytest.raises(eq.DataError, match="Give a folder that all machines share"):
        fitted.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_a_worker_killed_while_it_writes_blocks_changes_nothing(data, fault, tmp_path):
    fitted = eq.cluster.fit(eq.EASE(l2=5.0), data, **NEAR)
    for number, task in enumerate(["save_block", "add_item_sums"]):
        with fault(task, 2, tmp_path / f"died {task}"):
            again = eq.cluster.fit(eq.EASE(l2=5.0), data, **NEAR)
            again.save(tmp_path / f"model {number}")
        assert (tmp_path / f"died {task}").exists()
        loaded = eq.load(tmp_path / f"model {number}", verify=True)
        assert np.array_equal(loaded.inverse_.data, fitted.inverse_.data)
        assert loaded.data_.loaded("the test").fingerprint == data.gather().fingerprint
        assert not [
            file.name for file in (tmp_path / f"model {number}").iterdir() if file.name[0] == "."
        ]
