"""Sizes known before anything is allocated, and the choice of an engine."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import SettingError, TooBigError
from equipoise.models import updating
from equipoise.runtime.machine import duration, gigabytes, parse_memory
from equipoise.solve import planning, svd
from equipoise.solve.planning import Size, dense_cost, tiled_cost, update_cost

GOWALLA = {"n_users": 29_858, "n_items": 40_981, "n_interactions": 1_027_370}


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 8 GB free, 50 GB of disk and 100 Gflop a second."""
    monkeypatch.setattr(planning, "free_memory", lambda: 8 * 10**9)
    monkeypatch.setattr(planning, "free_disk", lambda _: 50 * 10**9)
    monkeypatch.setattr(planning, "solve_rate", lambda _: 1e11)


def test_dense_engine_is_chosen_when_it_fits() -> None:
    plan = eq.plan(**GOWALLA)
    assert plan.engine == "dense"
    assert plan.fits
    assert 4 * 40_981**2 < plan.peak_bytes < 1.01 * 4 * 40_981**2
    assert plan.disk_bytes == 0
    plan.require()


def test_tiles_are_chosen_when_dense_does_not_fit() -> None:
    plan = eq.plan(**GOWALLA, memory="3GB")
    assert plan.engine == "tiled"
    assert plan.peak_bytes <= plan.budget_bytes == 3 * 10**9
    assert 6 * 40_981**2 < plan.disk_bytes < 1.2 * 6 * 40_981**2
    assert 3 * 4 * plan.tile_rows**2 < plan.peak_bytes
    plan.require()


def test_tiles_of_a_20_000_item_system_use_the_budget_well() -> None:
    plan = eq.plan(n_users=30_000, n_items=20_000, n_interactions=10**6, memory="700MB")
    assert plan.engine == "tiled"
    assert 0.7 * 700e6 < plan.peak_bytes < 700e6


def test_too_small_a_disk_leaves_the_dense_engine_with_its_error() -> None:
    with pytest.raises(TooBigError, match=r"90,000 items need 32 GB in the dense engine"):
        eq.plan(n_users=10**5, n_items=90_000, n_interactions=10, memory="3GB").require()
    tiles = eq.plan(n_users=10**5, n_items=90_000, n_interactions=10, engine="tiled")
    with pytest.raises(TooBigError, match=r"need 53 GB of disk in the tiled .* a larger disk"):
        tiles.require()


def test_error_names_size_budget_and_the_engine_that_fits() -> None:
    plan = eq.plan(**GOWALLA, memory="3GB", engine="dense")
    message = "40,981 items need 6.8 GB in the dense engine and 3 GB may be used; engine='tiled'"
    with pytest.raises(TooBigError, match=re.escape(message)):
        plan.require()


def test_error_names_the_size_that_would_fit_when_no_engine_does() -> None:
    plan = eq.plan(n_users=10, n_items=90_000, n_interactions=10, dtype="float64", memory="1MB")
    advice = r"keep at most 344 items .*dtype='float32'"
    with pytest.raises(TooBigError, match=advice):
        plan.require()


def test_gpu_engine_counts_one_matrix_and_little_more() -> None:
    # on the processor, where the same steps can run
    plan = eq.plan(**GOWALLA, engine="gpu")
    assert plan.engine == "gpu"
    assert 4 * 40_981**2 < plan.peak_bytes < 1.10 * 4 * 40_981**2
    with pytest.raises(TooBigError, match=r"in the gpu engine and 5 GB .* the dense engine"):
        eq.plan(**GOWALLA, engine="gpu", memory="5GB").require()


@pytest.mark.parametrize("budget", [10**6, 10**7, 10**8, 10**9])
@pytest.mark.parametrize("n_items", [1, 100, 256, 257, 5_000, 30_000])
def test_tiles_never_take_more_than_the_budget(n_items: int, budget: int) -> None:
    size = Size(100, n_items, 500, "float32")
    cost = tiled_cost(size, budget)
    smallest = 3 * min(256, n_items) ** 2 * 4 + size.data_bytes
    assert (cost.peak_bytes <= budget) == (smallest <= 0.9 * budget)
    assert cost.tile_rows <= n_items


def test_tiles_stay_within_what_threads_of_lapack_can_take() -> None:
    size = Size(100, 200_000, 500, "float32")
    assert tiled_cost(size, 10**12).tile_rows <= 20_000


def test_more_memory_never_takes_longer() -> None:
    size = Size(100_000, 40_000, 10**6, "float32")
    moved = [tiled_cost(size, 10**9 * budget).moved_bytes for budget in (1, 2, 4, 8)]
    assert moved == sorted(moved, reverse=True)
    assert dense_cost(size).moved_bytes == 0
    assert dense_cost(size).speed > tiled_cost(size, 10**9).speed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"engine": "magic"},
            "engine must be 'auto', 'dense', 'dual', 'tiled', 'gpu' or 'neighbourhood', got 'mag",
        ),
        ({"device": "tpu"}, "device must be 'cpu', 'cuda' or 'cuda:1', got 'tpu'"),
        ({"engine": "dense", "device": "cuda"}, "the dense engine runs on device='cpu'"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64'"),
        ({"memory": "lots"}, "memory must look like '6GB'"),
        ({"n_items": 0}, "n_items must be a whole number >= 1, got 0"),
        ({"n_interactions": -1}, "n_interactions must be a whole number >= 0, got -1"),
        ({"n_users": None}, "plan needs data, or n_users"),
        ({"lowpass_rank": -1}, "lowpass_rank must be a whole number >= 0, got -1"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        eq.plan(**{**GOWALLA, **options})


def test_fit_refuses_before_it_allocates(synthetic: Interactions) -> None:
    with pytest.raises(TooBigError, match="80 items need"):
        eq.EASE(l2=5.0).fit(synthetic, memory="10KB")


def test_free_disk_is_that_of_a_folder_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert planning.free_disk(tmp_path / "not" / "yet") > 0
    assert planning.free_disk(None) > 0


def test_plan_reads_as_a_sentence() -> None:
    text = str(eq.plan(**GOWALLA, memory="3GB"))
    assert text.startswith("tiled engine, 40,981 items, float32: ")
    assert "GB of disk" in text
    assert gigabytes(6.7e9) == "6.7 GB"
    assert duration(75) == "1 min 15 s"
    assert parse_memory("2GiB") == 2**31


def test_machine_is_measured_only_when_the_time_is_read(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    monkeypatch.setattr(planning, "solve_rate", lambda dtype: measured.append(dtype) or 1e9)
    plan = eq.plan(synthetic)
    eq.EASE(l2=5.0).fit(synthetic)
    assert not measured
    assert plan.seconds == plan.flops / 1e9
    assert measured == ["float32"]


def drawn(n_users: int, n_items: int, per_user: int = 6) -> Interactions:
    rng = np.random.default_rng(3)
    columns = np.concatenate(
        [rng.choice(n_items, per_user, replace=False) for _ in range(n_users)]
    )
    offsets = np.arange(n_users + 1) * per_user
    ones = np.ones(len(columns), np.float32)
    return Interactions(sp.csr_array((ones, columns, offsets), shape=(n_users, n_items)))


def peak_bytes(task: Callable[[], object]) -> int:
    """Return the memory a task takes at its peak, beyond what there is before."""
    tracemalloc.start()
    try:
        task()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("n_users", "n_items", "rank", "dense_side"),
    [(900, 400, 30, 1500), (400, 900, 30, 1500), (900, 400, 40, 100), (400, 900, 40, 100)],
)
def test_companion_takes_no_more_memory_than_planned(
    n_users: int,
    n_items: int,
    rank: int,
    dense_side: int,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(svd, "DENSE", dense_side)
    monkeypatch.setattr(svd, "RESTARTS", 2)  # more need the same again
    monkeypatch.setattr(svd, "BLOCK", 16)
    data = drawn(n_users, n_items)
    size = Size(n_users, n_items, data.n_interactions, dtype, rank)
    data.fingerprint  # noqa: B018  computed once for all models
    peak = peak_bytes(lambda: eq.LowPass(rank=rank, strength=0.2).fit(data, dtype))
    assert peak <= size.companion_bytes + size.data_bytes
    assert size.companion_bytes <= 3 * peak


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("companion", [None, eq.LowPass(rank=20, strength=0.2)])
@pytest.mark.parametrize(("coming", "leaving"), [(60, 0), (0, 60), (30, 30), (1, 0)])
def test_update_takes_no_more_memory_than_planned(
    coming: int, leaving: int, companion: eq.LowPass | None, dtype: str
) -> None:
    data = drawn(1060, 400)
    model = eq.EASE(l2=5.0, lowpass=companion).fit(data.rows(np.arange(1000)), dtype=dtype)
    added = data.rows(np.arange(1000, 1000 + coming)) if coming else None
    removed = data.users[:leaving].tolist() if leaving else None
    rank = 0 if companion is None else companion.rank
    size = Size(1000 + coming, 400, 6 * (1000 + coming), dtype, rank)
    planned = update_cost(size, coming + leaving).peak_bytes
    assert peak_bytes(lambda: model.update(added, removed)) <= planned
    assert 400**2 * np.dtype(dtype).itemsize < planned


def test_companion_is_part_of_the_plan() -> None:
    plain, more = eq.plan(**GOWALLA), eq.plan(**GOWALLA, lowpass_rank=500)
    assert more.engine == "dense"
    size = Size(*GOWALLA.values(), "float32", 500)
    assert more.peak_bytes - plain.peak_bytes == size.companion_bytes > 4 * 500 * 40_981
    tiles = eq.plan(**GOWALLA, lowpass_rank=500, memory="3GB")
    assert tiles.engine == "tiled"
    assert tiles.peak_bytes <= 3 * 10**9
    # the tiles are gone by then, so both need not fit together
    assert size.companion_bytes < eq.plan(**GOWALLA, memory="3GB").peak_bytes


def test_a_companion_of_a_million_items_has_bounded_memory_and_time() -> None:
    million = {"n_users": 10**6, "n_items": 10**6, "n_interactions": 3 * 10**7}
    plan = partial(eq.plan, engine="neighbourhood", neighbours=100, memory="16GB", **million)
    plain, more = plan(), plan(lowpass_rank=64)
    assert plain.peak_bytes < more.peak_bytes < 6e9
    assert plain.flops < more.flops < 2 * plain.flops
    assert plan(lowpass_rank=128).flops > more.flops


def test_companion_without_room_is_refused_before_the_solve(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = eq.plan(synthetic, dtype="float32").peak_bytes
    monkeypatch.setattr(planning.dense, "weighted_gram", pytest.fail)
    model = eq.EASE(l2=5.0, lowpass=eq.LowPass(rank=40, strength=0.2))
    with pytest.raises(TooBigError, match="take a LowPass of a smaller rank than 40"):
        model.fit(synthetic, memory=plain + 1000)


def test_companion_of_a_model_on_a_card_needs_memory_of_the_machine(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Size, "companion_bytes", 10**12)  # more than the machine has free
    model = eq.EASE(l2=5.0, lowpass=eq.LowPass(rank=40, strength=0.2))
    with pytest.raises(TooBigError, match=r"LowPass of rank 40 needs .* take a smaller rank"):
        model.fit(synthetic, engine="gpu")


def test_update_of_a_tiled_model_without_room_solves_in_tiles_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = drawn(705, 500)
    old, new = data.rows(np.arange(700)), data.rows(np.arange(700, 705))
    model = eq.EASE(l2=5.0).fit(old, engine="tiled", memory="2MB", scratch=tmp_path / "tiles")
    assert not model.inverse_.flags.writeable
    size = Size(705, 500, data.n_interactions, "float32")
    little = tiled_cost(size, 1).peak_bytes
    assert little < dense_cost(size).peak_bytes < update_cost(size, 5).peak_bytes
    for module in (updating, planning):
        monkeypatch.setattr(module, "free_memory", lambda: little)
    model.update(new)
    assert isinstance(model.inverse_, np.memmap)
    assert model.interactions_.n_users == 705


def test_update_that_fits_nowhere_is_refused_and_leaves_the_model(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = synthetic.rows(np.arange(295)), synthetic.rows(np.arange(295, 300))
    model = eq.EASE(l2=5.0).fit(old)
    before = model.score(old)
    for module in (updating, planning):
        monkeypatch.setattr(module, "free_memory", lambda: 10_000)
    with pytest.raises(TooBigError, match=r"80 items need .* keep at most"):
        model.update(new)
    np.testing.assert_array_equal(model.score(old), before)
