"""Models with their training data in memory, in blocks beside them, or without any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.models.described import described
from tests.models.test_contract import NAMES, fit_model

import equipoise as eq
from equipoise.data import blocks
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions

# scores that come from the histories of training users, or from their sums
NEED_DATA = ["dual", "LowPass", "ItemKNN", "ItemKNN auto", "GFCF", "GFCF linear", "BSPM"]
NEED_DATA += ["TurboCF order", "SVDAE", "SGFCF"]
HISTORIES = [[1, 2, 3], [5], [7, 9, 11, 13]]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_PAIRS", 150)


@pytest.fixture(scope="module")
def log() -> eq.Interactions:
    """Events with times, types, weights, repeats and returns of users with text ids."""
    rng = np.random.default_rng(0)
    n_rows = 800
    frame = pl.DataFrame(
        {
            "user_id": [f"u{number:03d}" for number in rng.integers(0, 60, n_rows)],
            "item_id": rng.zipf(1.3, n_rows).clip(1, 30),
            "ts": rng.integers(1_600_000_000, 1_700_000_000, n_rows),
            "amount": rng.choice([1.0, 2.0, -1.0], n_rows, p=[0.6, 0.3, 0.1]),
            "event": rng.choice(["view", "buy"], n_rows),
        }
    )
    return eq.read(frame, user="user_id", item="item_id", time="ts", weight="amount", type="event")


@pytest.fixture(scope="module")
def data(synthetic: Interactions) -> Interactions:
    """The synthetic interactions in an order of their own, so that session models can learn."""
    rng = np.random.default_rng(3)
    rows = np.split(synthetic.matrix.indices, synthetic.matrix.indptr[1:-1])
    clicks = np.concatenate([rng.permutation(row) for row in rows]).astype(np.int32)
    events = Events(clicks, synthetic.matrix.indptr.astype(np.int64))
    return Interactions(synthetic.matrix, synthetic.users, synthetic.items, events=events)


@pytest.mark.parametrize("form", ["beside", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_every_model_answers_as_with_its_data_or_refuses_to_leave_them(data, tmp_path, name, form):
    model = fit_model(name, data)
    users = data.users[[3, 50, 3, 120]].tolist()
    if form == "none" and (name in NEED_DATA or not model.fold_in or model.ordered):
        with pytest.raises(eq.SettingError, match="ranks with its training data"):
            model.save(tmp_path / "model", data=form)
        assert not (tmp_path / "model").exists()
        return
    model.save(tmp_path / "model", data=form)
    loaded = eq.load(tmp_path / "model", verify=True)
    assert not loaded.data_.in_memory
    assert loaded.data_fingerprint_ == data.fingerprint
    if model.fold_in:
        histories = [data.items[[1, 5, 9]].tolist(), data.items[[2]].tolist()]
        lists = loaded.recommend(histories, k=5).to_frame()
        assert lists.equals(model.recommend(histories, k=5).to_frame())
    if form == "none":
        with pytest.raises(eq.MissingDataError, match="needs them; pass histories in place"):
            loaded.recommend(users)
        return
    lists = loaded.recommend(users, k=5).to_frame()
    assert lists.equals(model.recommend(users, k=5).to_frame())
    for model_form, file in ((loaded, "beside.csv"), (model, "with.csv")):
        model_form.recommend_to(tmp_path / file, k=3, batch_size=50)
    assert (tmp_path / "beside.csv").read_bytes() == (tmp_path / "with.csv").read_bytes()


def save_and_load(model, folder: Path, form: str):
    model.save(folder, data=form)
    return eq.load(folder)


def test_blocks_give_back_every_event(log, tmp_path):
    loaded = save_and_load(eq.Popularity().fit(log), tmp_path / "model", "beside")
    assert len(loaded.data_.blocks.block_users) == 3
    assert "_loaded" not in vars(loaded.data_)
    again = loaded.data_.loaded("the test")
    assert again.fingerprint == log.fingerprint
    assert again.notes == log.notes
    assert loaded.data_.weighted == log.weighted
    positions = np.array([40, 2, 17])
    rows = save_and_load(loaded, tmp_path / "copy", "beside").data_.rows(positions)
    assert rows.fingerprint == log.rows(positions).fingerprint


def test_users_of_a_block_are_read_without_the_others(log, tmp_path, monkeypatch):
    model = eq.EASE(l2=5.0).fit(log)
    loaded = save_and_load(model, tmp_path / "model", "beside")
    read = []
    plain = blocks.SavedBlocks.read
    monkeypatch.setattr(
        blocks.SavedBlocks, "read", lambda self, *args: read.append(args[0]) or plain(self, *args)
    )
    assert loaded.recommend("u003", 4).items == model.recommend("u003", 4).items
    assert read == [0]
    with pytest.raises(eq.UnknownIdError, match="unknown user 'nobody'"):
        loaded.recommend(["nobody"])
    popular = {"unknown_users": "popular", "k": 3}
    mixed = ["nobody", "u010"]
    expected = model.recommend(mixed, **popular).to_frame()
    assert loaded.recommend(mixed, **popular).to_frame().equals(expected)


SIGNALS = {
    "decay": eq.Signals(weights={"view": 1, "buy": 5}, transform="log1p", decay="100d"),
    "history decay": eq.Signals(decay="100d", history_decay=None),
    "bm25": eq.Signals(transform="bm25"),
    "returns": eq.Signals(returns="negative"),
}


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("form", ["beside", "none"])
def test_signals_and_trends_rank_as_with_the_data(log, tmp_path, form, name):
    trend = eq.Trend(half_life="100d", share=0.3)
    model = eq.EASE(l2=5.0, signals=SIGNALS[name], trend=trend, normalizer=eq.DAN()).fit(log)
    if form == "none" and name == "bm25":
        with pytest.raises(eq.SettingError, match="ranks with its training data"):
            model.save(tmp_path / "model", data=form)
        return
    loaded = save_and_load(model, tmp_path / "model", form)
    assert np.array_equal(loaded.weights_, model.weights_)
    lists = loaded.recommend(HISTORIES, 4).to_frame()
    assert lists.equals(model.recommend(HISTORIES, 4).to_frame())
    if form == "beside":
        users = ["u007", "u003"]
        expected = model.recommend(users, 4).to_frame()
        assert loaded.recommend(users, 4).to_frame().equals(expected)
        loaded.recommend_to(tmp_path / "beside.csv", k=4)
        model.recommend_to(tmp_path / "with.csv", k=4)
        assert (tmp_path / "beside.csv").read_bytes() == (tmp_path / "with.csv").read_bytes()
        loaded.update(removed=["u004"])
        assert np.array_equal(loaded.weights_, model.update(removed=["u004"]).weights_)


def test_changes_use_the_blocks_and_say_what_is_missing_without(log, tmp_path):
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3)).fit(log)
    folder = tmp_path / "model"
    without = save_and_load(model, tmp_path / "none", "none")
    for work, call in {
        "update": lambda: without.update(removed=["u003"]),
        "leave-one-out": lambda: eq.leave_one_out(without, users=5),
        "vectors of its users": lambda: without.vectors(rank=4),
        "recommending to users by id": lambda: without.recommend("u003"),
        "a list for each of its users": lambda: without.recommend_to(tmp_path / "lists.csv"),
        "the rows of its users": lambda: without.prune(5),
        "saving them with it": lambda: without.save(folder, data="with"),
        "saving them beside it": lambda: without.save(folder, data="beside"),
    }.items():
        with pytest.raises(eq.MissingDataError, match=rf"data='none'\), and {work} needs them"):
            call()
    assert without.similar(1, k=3).items == model.similar(1, k=3).items
    assert without.explain([1, 2], 5).score == model.explain([1, 2], 5).score
    beside = save_and_load(model, folder, "beside")
    expected = eq.leave_one_out(model, users=20)
    assert eq.leave_one_out(beside, users=20)["ndcg@20"] == expected["ndcg@20"]
    assert beside.vectors(rank=4).overlap == model.vectors(rank=4).overlap
    assert beside.prune(5).loss_ == model.prune(5).loss_
    before = {file.name for file in folder.iterdir()}
    beside = eq.load(folder)
    beside.save(folder)  # the blocks stay as they are
    block_files = {name for name in before if name.startswith("block_")}
    assert block_files < {file.name for file in folder.iterdir()}
    beside = eq.load(folder)
    beside.update(removed=["u003"])
    model.update(removed=["u003"])
    assert np.array_equal(beside.weights_, model.weights_)
    assert beside.data_.fingerprint == model.data_.fingerprint
    beside.save(folder, data="beside")  # without the user who was forgotten
    assert not block_files & {file.name for file in folder.iterdir()}
    with pytest.raises(eq.UnknownIdError, match="unknown user 'u003'"):
        eq.load(folder).recommend("u003")


def test_new_items_of_a_model_without_data(tmp_path):
    data = described()
    model = eq.EASE(l2=5.0, features=eq.Features(strength=2.0)).fit(data)
    history = [data.items[:3].tolist()]
    for form in ("beside", "none"):
        loaded = save_and_load(model, tmp_path / form, form)
        assert loaded.item_index_.values.tolist() == model.item_index_.values.tolist()
        lists = loaded.recommend(history, 8).to_frame()
        assert lists.equals(model.recommend(history, 8).to_frame())
    user = data.users[:2].tolist()
    beside = eq.load(tmp_path / "beside")
    assert beside.recommend(user, 8).items == model.recommend(user, 8).items


def test_damaged_blocks_are_errors(log, tmp_path):
    model = eq.EASE(l2=5.0).fit(log)
    folder = tmp_path / "model"
    model.save(folder, data="beside")
    first = min(folder.glob("block_*"))
    content = first.read_bytes()
    first.write_bytes(content[:-30] + bytes(30))
    with pytest.raises(eq.FileFormatError, match="checksum differs"):
        eq.load(folder).recommend("u000")
    with pytest.raises(eq.FileFormatError, match="checksum differs"):
        eq.load(folder, verify=True)
    first.unlink()
    loaded = eq.load(folder)
    assert loaded.recommend([[1]], 3).items == model.recommend([[1]], 3).items
    with pytest.raises(eq.MissingDataError, match="the model was saved again, or its blocks"):
        loaded.recommend("u000")


def test_saving_beside_fails_without_a_trace(log, tmp_path, monkeypatch):
    model = eq.EASE(l2=5.0).fit(log)
    folder = tmp_path / "model"
    model.save(folder)
    before = sorted(file.name for file in folder.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("equipoise.models.saving._restored", lambda stored: 1 / 0)
        with pytest.raises(eq.DataError, match="nothing was changed"):
            model.save(folder, data="beside")
    assert sorted(file.name for file in folder.iterdir()) == before
    with pytest.raises(eq.SettingError, match="data must be 'with', 'beside' or 'none'"):
        model.save(folder, data="near")
