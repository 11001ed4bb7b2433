"""What `tune` refuses, and in which words."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.evaluation import ListMetrics
from equipoise.interactions import Interactions
from equipoise.split import Split

GRID = {"l2": [2.0, 20.0]}


@pytest.fixture(scope="module")
def split(synthetic: Interactions) -> Split:
    return eq.split.strong(synthetic, valid=0.2, test=0.2)


@pytest.mark.parametrize("name", ["ndgc@20", "ndcg", "ndcg@0", "diversity@20", "active_ndcg@5", 3])
def test_unknown_metrics_are_refused(split: Split, name: Any) -> None:
    with pytest.raises(SettingError, match=r"metric|tuned for"):
        eq.tune(eq.EASE, split, grid=GRID, metric=name)


def test_bad_input_is_refused(split: Split, synthetic: Interactions) -> None:
    with pytest.raises(DataError, match=r"no valid part .* valid=0\.1"):
        eq.tune(eq.EASE, dataclasses.replace(split, valid=None))
    with pytest.raises(SettingError, match="needs a split"):
        eq.tune(eq.EASE, synthetic)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="too small: one fit takes about"):
        eq.tune(eq.EASE, split, grid=GRID, budget="0.000001s")
    with pytest.raises(SettingError, match="budget must look like"):
        eq.tune(eq.EASE, split, budget="soon")
    with pytest.raises(SettingError, match="no 'gamma' to tune"):
        eq.tune(eq.EASE, split, grid={"gamma": [0.1]})
    with pytest.raises(SettingError, match="no values for 'l2'"):
        eq.tune(eq.EASE, split, grid={"l2": []})
    with pytest.raises(SettingError, match="same normalizer"):
        eq.tune([eq.EASE(), eq.LAE(normalizer=eq.DAN())], split)
    with pytest.raises(SettingError, match="there is no model 'eas'"):
        eq.tune("eas", split)
    with pytest.raises(SettingError, match="Popularity needs a grid over its settings"):
        eq.tune(eq.Popularity, split)
    with pytest.raises(SettingError, match="only linear autoencoders can be tuned several"):
        eq.tune([eq.ItemKNN, eq.GFCF], split)
    with pytest.raises(SettingError, match="no 'strength' to tune"):
        eq.tune(eq.EASE, split, grid={"strength": [0.1]})
    with pytest.raises(SettingError, match="values of 'normalizer' in a grid must be numbers"):
        eq.tune(eq.SLIS, split, grid={"normalizer": [eq.DAN(0.1, 0.1)]})
    with pytest.raises(SettingError, match="trials must be a whole number >= 1"):
        eq.tune(eq.EASE, split, trials=0)


def test_a_grid_takes_arrays_of_numbers(split: Split, tmp_path: Path) -> None:
    grid = {"neighbours": np.array([3, 5])}
    found = eq.tune(eq.ItemKNN, split, grid=grid, storage=tmp_path / "search.jsonl")
    assert found.trials["neighbours"].to_list() == [3, 5]


def test_part_without_tail_targets_is_refused(split: Split) -> None:
    head = np.argsort(-split.train.item_counts)[:10]
    target = split.valid.target
    kept = np.isin(target.matrix.indices, head)
    rows = target.entries(kept)
    some = rows.user_counts > 0
    part = dataclasses.replace(
        split.valid, history=split.valid.history.rows(some), target=rows.rows(some)
    )
    with pytest.raises(DataError, match="no target of the valid part is in the tail"):
        ListMetrics.of(part, split.train.item_counts, ["tail_ndcg@20"])


def test_optuna_is_asked_for_before_the_first_solve(
    split: Split, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    storage = tmp_path / "search.jsonl"
    with pytest.raises(eq.EquipoiseError, match=r"equipoise\[tune\]"):
        eq.tune(eq.EASE, split, trials=20, storage=storage)
    assert not storage.exists()


def test_damaged_storage_is_refused(split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "search.jsonl"
    eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage)
    whole = storage.read_text()
    for broken in ("{}\n", "[]\n", '{"format": "other"}\n', whole + "{}\n", whole + "nonsense\n"):
        storage.write_text(broken)
        with pytest.raises(FileFormatError):
            eq.tune(eq.EASE, split, grid={"l2": [1.0]}, storage=storage)
