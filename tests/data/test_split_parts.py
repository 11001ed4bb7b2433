"""Parts and splits as objects: what they refuse, say, save and load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.data.split import Part, Split
from equipoise.errors import DataError, FileFormatError, SettingError, UnknownIdError


def labelled(rows: int = 20) -> Interactions:
    """Sessions of three events over four items, with times and titles."""
    events = np.array([[n % 4, (n + 1) % 4, (n + 2) % 4] for n in range(rows)], np.int32)
    dense = np.zeros((rows, 4))
    np.put_along_axis(dense, events, 1, axis=1)
    return Interactions(
        dense,
        [f"s{n}" for n in range(rows)],
        times=np.arange(3 * rows) % 3 * rows + np.arange(3 * rows) // 3,
        catalogue=pl.DataFrame({"title": list("abcd")}),
        events=Events(events.ravel(), np.arange(0, 3 * rows + 1, 3)),
        notes=["made by hand"],
    )


SPLITS: dict[str, Callable[[Interactions], Split]] = {
    "strong": eq.split.strong,
    "weak": lambda data: eq.split.weak(data, valid=0.2),
    "last": eq.split.leave_last_out,
    "time": eq.split.time_cut,
    "session": eq.split.sessions,
}


@pytest.mark.parametrize("protocol", SPLITS)
def test_a_split_survives_a_round_trip(tmp_path: Path, protocol: str) -> None:
    split = SPLITS[protocol](labelled())
    split.save(tmp_path)
    back = Split.load(tmp_path)
    assert back.fingerprint == split.fingerprint
    assert repr(back) == repr(split)
    assert (back.protocol, back.seed, back.notes) == (protocol, split.seed, split.notes)
    assert (back.valid is None) == (split.valid is None)
    assert back.train.notes == ("made by hand",)
    for part, loaded in zip(split.parts, back.parts, strict=True):
        assert (part.name, part.protocol) == (loaded.name, loaded.protocol)
        assert loaded.fingerprint == part.fingerprint
        assert loaded.history.item_index is back.train.item_index, "items are stored once"
        assert loaded.history.label(2) == "c"


def test_a_split_without_valid_survives_a_round_trip(tmp_path: Path) -> None:
    split = eq.split.weak(Interactions(np.ones((5, 5))))
    split.save(tmp_path)
    assert Split.load(tmp_path).valid is None
    assert Split.load(tmp_path).train.catalogue is None


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.pop("parts"),
        lambda meta: meta["parts"].pop("train"),
        lambda meta: meta["parts"].pop("test_target"),
        lambda meta: meta["parts"].pop("valid_target"),
        lambda meta: meta["parts"].update(train=[]),
        lambda meta: meta.update(parts=[]),
        lambda meta: meta.update(protocol="other"),
        lambda meta: meta.update(protocol=["strong"]),
        lambda meta: meta.update(seed="0"),
        lambda meta: meta.update(notes=None),
        lambda meta: meta["parts"]["test_history"].update(shape=[9, 9]),
    ],
)
def test_a_damaged_split_is_refused(tmp_path: Path, change: Callable[[Any], None]) -> None:
    eq.split.strong(labelled()).save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    change(manifest["meta"])
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileFormatError, match="is damaged"):
        Split.load(tmp_path)


def test_interactions_are_not_loaded_as_a_split(tmp_path: Path, toy: Interactions) -> None:
    toy.save(tmp_path)
    with pytest.raises(FileFormatError, match="holds 'equipoise-interactions'"):
        Split.load(tmp_path)
    with pytest.raises(DataError, match="is not a saved equipoise-split"):
        eq.split.strong(labelled()).save(tmp_path)


def test_the_repr_tells_sizes_and_notes() -> None:
    split = eq.split.weak(Interactions(np.ones((3, 5)), times=np.arange(15)))
    assert repr(split).splitlines() == [
        "Split: weak, seed 0",
        "  train 3 users x 5 items, 12 interactions (density 80%)",
        "  test 3 users, 12 history items, 3 held out",
        "  note: this split ignores time: training may contain events later than held-out ones",
    ]
    assert repr(split.test) == "Part test: 3 users, 12 history items, 3 held out"


def test_fingerprints_tell_parts_apart(synthetic: Interactions) -> None:
    split = eq.split.strong(synthetic)
    assert split.valid is not None
    swapped = Part(split.test.target, split.test.history, "strong", "test")
    prints = {split.fingerprint, split.valid.fingerprint, split.test.fingerprint}
    assert len(prints | {swapped.fingerprint}) == 4
    assert all(len(text) == 12 for text in prints)


def test_both_sides_of_a_part_have_the_same_users_and_items_and_no_empty_row() -> None:
    one = Interactions([[1, 0], [0, 1]])
    with pytest.raises(DataError, match="test have different users"):
        Part(one, Interactions([[1, 0], [0, 1]], [5, 6]), "weak", "test")
    with pytest.raises(DataError, match="test have different items"):
        Part(one, Interactions([[1, 0], [0, 1]], items=[5, 6]), "weak", "test")
    with pytest.raises(DataError, match="user 1 of test has no target"):
        Part(one, Interactions([[1, 0], [0, 0]]), "weak", "test")
    with pytest.raises(DataError, match="user 0 of test has no history"):
        Part(Interactions([[0, 0], [0, 1]]), one, "weak", "test")
    with pytest.raises(SettingError, match="protocol must be one of"):
        Part(one, one, "other", "test")
    with pytest.raises(SettingError, match="name must be 'valid' or 'test'"):
        Part(one, one, "weak", "train")
    part = Part(one, one, "weak", "test")
    with pytest.raises(DataError, match="items of test differ from those of train"):
        Split(Interactions([[1]]), None, part, "weak")
    with pytest.raises(DataError, match="nothing is left to train on"):
        Split(Interactions(np.zeros((2, 2))), None, part, "weak")


def test_published_parts_are_aligned_by_id() -> None:
    train = Interactions([[1, 1, 1]], ["t"], ["a", "b", "c"])
    history = Interactions([[1, 1], [1, 0], [0, 0]], [1, 2, 4], ["b", "a"])
    target = Interactions([[1, 0], [1, 1]], [3, 1], ["b", "c"])
    split = eq.split.from_parts(train, test=(history, target), protocol="strong")
    assert split.test.history.users.tolist() == [1]
    assert split.test.history.items.tolist() == ["a", "b", "c"]
    assert split.test.history.matrix.toarray().tolist() == [[1, 1, 0]]
    assert split.test.target.matrix.toarray().tolist() == [[0, 1, 1]]
    assert split.notes == (
        "1 user of test left out: no target",
        "1 user of test left out: no history",
        "1 pair of test both in the history and held out",
    )
    assert split.valid is None


def test_published_parts_on_unknown_items_are_an_error_or_skipped() -> None:
    train = Interactions([[1, 1]], items=["a", "b"])
    history = Interactions([[1, 1]], items=["a", "z"])
    target = Interactions([[1]], items=["b"])
    with pytest.raises(UnknownIdError, match="unknown item 'z'"):
        eq.split.from_parts(train, test=(history, target), protocol="strong")
    split = eq.split.from_parts(
        train,
        test=(history, target),
        valid=(history, target),
        protocol="strong",
        unknown_items="skip",
    )
    assert split.notes == (
        "1 pair of valid left out: train lacks the item",
        "1 pair of test left out: train lacks the item",
    )
    assert split.test.history.history(0) == ["a"]


def test_published_weak_parts_take_train_as_history() -> None:
    train = Interactions([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    test = Interactions([[0, 0, 1], [0, 0, 0], [1, 0, 0]])
    split = eq.split.from_parts(train, test=(train, test), protocol="weak")
    assert split.test.history.users.tolist() == [0, 2]
    assert split.test.target.history(2) == [0]
    assert split.notes == ()
    with pytest.raises(SettingError, match="protocol must be one of"):
        eq.split.from_parts(train, test=(train, test), protocol="loose")


def purchases(n_users: int = 60, *, weighted: bool = True) -> Interactions:
    """Repeated purchases with times and titles; items and users come in over time."""
    rng = np.random.default_rng(3)
    rows = []
    for user in range(n_users):
        first = int(rng.integers(0, 60))
        for day in sorted(rng.integers(first, 100, size=int(rng.integers(1, 9))).tolist()):
            item = int(rng.integers(0, 5 + day // 8))  # later days have new items
            rows += [(f"u{user}", f"i{item}", float(rng.integers(1, 4)), float(day))] * 2
    columns = list(zip(*rows, strict=True))
    names = ["user", "item", "weight", "time"] if weighted else ["user", "item", "time"]
    frame = pl.DataFrame(dict(zip(("user", "item", "weight", "time"), columns, strict=True)))
    titles = pl.DataFrame({"item": sorted(set(columns[1]))}).with_columns(title=pl.col("item"))
    return eq.read(frame.select(names), catalogue=titles)


def event_rows(data: Interactions) -> list[tuple[Any, ...]]:
    return sorted(data.to_frame(events=True).rows())


OUTSIDE_TEST: dict[str, Callable[[Interactions], Split]] = {
    "strong": lambda data: eq.split.strong(data, valid=0.3, test=0.2),
    "strong-time": lambda data: eq.split.strong(data, valid=0.3, test=0.2, order="time"),
    "weak": lambda data: eq.split.weak(data, valid=0.3),
    "time": lambda data: eq.split.time_cut(data, valid=0.4, test=0.2),
    "time-again": lambda data: eq.split.time_cut(data, valid=0.4, test=0.2, repeats="again"),
    "last": lambda data: eq.split.leave_last_out(data),
    "last-all": lambda data: eq.split.leave_last_out(data, valid=2, repeats="all"),
    "session": lambda data: eq.split.sessions(data, valid=0.3),
}


def expected_outside_test(name: str, split: Split, data: Interactions) -> list[tuple[Any, ...]]:
    """Return the events of the data that come before test, or belong to users outside of it."""
    rows = event_rows(data)
    tested = set(split.test.target.users.tolist())
    if name == "weak":
        hidden = {row[:2] for row in event_rows(split.test.target)}
        return [row for row in rows if row[:2] not in hidden]
    if name.startswith("time"):
        first = min(row[-1] for row in event_rows(split.test.target))
        return [row for row in rows if row[-1] < first]
    if name.startswith("last"):
        history = event_rows(split.test.history)
        return sorted([*history, *(row for row in rows if row[0] not in tested)])
    train_users = set(split.train.users.tolist())
    assert split.valid_data is not None
    train_users |= set(split.valid_data.users.tolist())
    assert not train_users & {str(user).partition(":")[0] for user in tested}
    return [row for row in rows if row[0] in train_users]


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", OUTSIDE_TEST)
def test_train_and_valid_hold_every_event_outside_test_once(
    name: str, weighted: bool, tmp_path: Path
) -> None:
    data = purchases(weighted=weighted)
    split = OUTSIDE_TEST[name](data)
    final = split.train_and_valid()
    assert event_rows(final) == expected_outside_test(name, split, data)
    assert final.n_users > split.train.n_users or name in ("weak", "last", "last-all")
    assert final.label("i1") == "i1"
    assert final.label(final.items[-1]) == final.items[-1]
    split.save(tmp_path)
    assert Split.load(tmp_path).train_and_valid().fingerprint == final.fingerprint


def test_train_and_valid_of_published_parts_are_the_union_of_the_parts() -> None:
    for name, make in OUTSIDE_TEST.items():
        split = make(purchases())
        assert split.valid is not None
        bare = Split(split.train, split.valid, split.test, split.protocol)
        final = bare.train_and_valid()
        assert final.n_interactions > split.train.n_interactions or "again" in name
        if name == "session":
            steps = split.valid.history.users.tolist()
            sessions = {step.rpartition(":")[0] for step in steps}
            assert final.n_users == split.train.n_users + len(sessions)
            for session in sessions:
                last = max((s for s in steps if s.startswith(f"{session}:")), key=_step)
                shown = split.valid.history.history(last)
                assert final.history(session) == shown + split.valid.target.history(last)
            continue
        added = event_rows(split.valid.target)
        if split.protocol == "strong":
            added += event_rows(split.valid.history)
        assert event_rows(final) == sorted([*event_rows(split.train), *added])


def _step(text: str) -> int:
    return int(text.rpartition(":")[2])


def test_users_of_published_strong_parts_stay_apart_from_users_of_train() -> None:
    train = Interactions([[1, 1, 0], [0, 1, 1]])
    shown, hidden = Interactions([[1, 0, 0]]), Interactions([[0, 1, 0]])
    pair = (shown, hidden)
    final = eq.split.from_parts(train, test=pair, valid=pair, protocol="strong").train_and_valid()
    assert final.matrix.toarray().tolist() == [[1, 1, 0], [0, 1, 1], [1, 1, 0]]


def test_pairs_of_valid_that_train_holds_already_count_once() -> None:
    train = Interactions([[2, 3, 0], [0, 1, 1]])
    target = Interactions([[0, 3, 0], [1, 0, 0]])
    split = eq.split.from_parts(
        train, test=(train, target), valid=(train, target), protocol="weak"
    )
    assert split.train_and_valid().matrix.toarray().tolist() == [[2, 3, 0], [1, 1, 1]]
