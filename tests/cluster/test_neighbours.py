"""Neighbourhoods over the workers with little memory: passes over strips of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.cluster import neighbours as module
from equipoise.cluster.workers import submit


@pytest.fixture(scope="module")
def data() -> eq.Interactions:
    """Users with few items of a long tail, some of the items alike."""
    rng = np.random.default_rng(3)
    pattern = rng.random((400, 90)) < np.linspace(0.3, 0.01, 90)
    pattern[:, 50:53] = pattern[:, 50:51]
    values = pattern * (1 + rng.integers(0, 3, pattern.shape))
    return eq.Interactions(sp.csr_array(values.astype(np.float32)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The calls that are sent to the workers, in strips of few rows and chunks of few users."""
    sent: list[tuple[str, Any]] = []

    def noted(client: Any, function: Any, *args: Any) -> Any:
        sent.append((function.__name__, args))
        return submit(client, function, *args)

    monkeypatch.setattr(module, "submit", noted)
    monkeypatch.setattr("equipoise.cluster.spread.CHUNK_PAIRS", 1500)
    monkeypatch.setattr(module, "FAN_IN", 2)
    monkeypatch.setattr(module, "STRIPS", 4)
    return sent


def assert_same_bits(a: Any, b: Any) -> None:
    for name in ("indptr", "indices", "data", "diagonal_"):
        np.testing.assert_array_equal(getattr(a.inverse_, name), getattr(b.inverse_, name))


@pytest.mark.parametrize(
    ("neighbours", "normalizer", "dtype"),
    [
        (4, eq.NoNorm(), "float32"),
        (20, eq.DAN(0.2, 0.3), "float64"),
        (300, eq.UserNorm(0.5), "float32"),
    ],
)
def test_passes_have_the_bits_of_one_pass_and_of_one_machine(
    client: Any,
    data: eq.Interactions,
    calls: list[tuple[str, Any]],
    neighbours: int,
    normalizer: eq.Normalizer,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = eq.EASE(l2=5.0, dropout=0.3, normalizer=normalizer)
    options: dict[str, Any] = {
        "engine": "neighbourhood",
        "neighbours": neighbours,
        "dtype": dtype,
    }
    here = eq.EASE(l2=5.0, dropout=0.3, normalizer=normalizer).fit(data, **options)
    together = eq.cluster.fit(model, data, client=client, **options)
    assert_same_bits(together, here)
    assert "gather" not in dict(calls)
    # whole numbers are summed in a tree, others one chunk of users after another
    merged = [args for name, args in calls if name == "add_rows" and args[1] is None]
    assert bool(merged) == isinstance(normalizer, eq.NoNorm)
    monkeypatch.setattr(module, "SHARE", 1e-12)  # not in one pass,
    monkeypatch.setattr(module, "PART", 1e-12)  # and no strips that are joined
    for n_targets, n_groups in ((10, 9), (1000, 4)):
        monkeypatch.setattr(
            module.NeighbourhoodSolver, "_group_size", lambda *_, size=n_targets: size
        )
        calls.clear()
        apart = eq.cluster.fit(model, data, client=client, **options)
        names = [name for name, _ in calls]
        n_strips = names.count("join_strips")
        assert n_strips >= 4
        assert names.count("supports_in") >= n_groups
        assert names.count("gather") == n_strips * names.count("supports_in")
        assert_same_bits(apart, here)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gather", "solve_group"])
def test_a_worker_killed_in_a_pass_changes_nothing(
    client: Any,
    data: eq.Interactions,
    fault: Any,
    task: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SHARE", 1e-12)
    monkeypatch.setattr(module, "PART", 1e-12)
    monkeypatch.setattr(module, "STRIPS", 3)
    monkeypatch.setattr(module.NeighbourhoodSolver, "_group_size", lambda *_: 40)
    near: dict[str, Any] = {"engine": "neighbourhood", "neighbours": 5}
    with fault(task, 2, tmp_path / "died"):
        fitted = eq.cluster.fit(eq.EASE(l2=5.0), data, client=client, **near)
    assert (tmp_path / "died").exists()
    assert_same_bits(fitted, eq.EASE(l2=5.0).fit(data, **near))


def test_groups_of_targets_are_as_large_as_the_memory_of_a_worker_allows(
    client: Any,
    data: eq.Interactions,
    calls: list[tuple[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"client": client, "engine": "neighbourhood", "neighbours": 20}
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3))
    monkeypatch.setattr(module, "PART", 0.5)
    monkeypatch.setattr(module, "TARGET_GROUPS", 1)
    target = 4 * 20 + 3 * 21**2 * 8
    least = (module.NUMBER_BYTES * data.n_items + target) / module.SHARE
    partners = (data.matrix != 0).T @ (data.user_counts - 1)
    needed = 8 * np.minimum(partners, 60).sum() / module.SHARE
    assert least < needed
    expected = eq.cluster.fit(model, data, **options)
    for memory, most in ((least + 1, 1), (needed - 1, 3)):
        monkeypatch.setattr(module, "smallest_memory", lambda _, size=memory: size)
        calls.clear()
        assert_same_bits(eq.cluster.fit(model, data, **options), expected)
        groups = [args[2] for name, args in calls if name == "supports_in"]
        assert max(map(len, groups)) == most
        assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(data.n_items))
    monkeypatch.setattr(module, "smallest_memory", lambda _: least - 1)
    with pytest.raises(eq.TooBigError, match=r"on each worker and one has .*fewer neighbours"):
        eq.cluster.fit(model, data, **options)


@pytest.mark.parametrize("n_chunks", [1, 2, 3, 8, 17, 100])
def test_sums_in_a_tree_take_every_chunk_once_and_in_order(n_chunks: int) -> None:
    def add(earlier: list[list[int]], chunk: int | None, is_last: bool) -> list[int]:
        assert len(earlier) <= module.FAN_IN
        calls.append(is_last)
        return [n for part in earlier for n in part] + ([] if chunk is None else [chunk])

    for tree in (module.add_in_tree, module.add_in_chain):
        calls: list[bool] = []
        assert tree(add, list(range(n_chunks))) == list(range(n_chunks))
        assert calls == [False] * (len(calls) - 1) + [True]


def test_the_client_holds_a_few_groups_of_columns_at_a_time(
    client: Any, data: eq.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def noted(groups: Any, *args: Any) -> Any:
        def one_by_one() -> Any:
            for number, group in enumerate(groups):
                assert isinstance(group, tuple)
                taken.append(number)
                yield group

        return join(one_by_one(), *args)

    join = module._join_columns
    monkeypatch.setattr(module, "_join_columns", noted)
    near: dict[str, Any] = {"engine": "neighbourhood", "neighbours": 5}
    fitted = eq.cluster.fit(eq.EASE(l2=5.0), data, client=client, **near)
    assert taken == list(range(module.TARGET_GROUPS))
    assert_same_bits(fitted, eq.EASE(l2=5.0).fit(data, **near))
