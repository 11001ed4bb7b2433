"""The neighbourhood engine: exact with all items, valid with few, the same bits everywhere."""

from __future__ import annotations

import os
import signal
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, FileFormatError, SettingError, SolveError, TooBigError
from equipoise.runtime.machine import limited
from equipoise.runtime.resume import Journal
from equipoise.solve import neighbourhood
from equipoise.solve.neighbourhood import Columns

Vector = npt.NDArray[np.float64]
FAMILIES = [eq.LAE, eq.EASE, eq.RLAE, eq.DLAE, eq.EDLAE, eq.RDLAE]
NORMALIZERS = [
    eq.NoNorm(),
    eq.RandomWalk(),
    eq.Symmetric(),
    eq.ColumnNorm(0.4),
    eq.UserNorm(0.3),
    eq.ItemNorm(0.2),
    eq.DAN(0.2, 0.3),
]


def system(rng: np.random.Generator, n_users: int = 120, n_items: int = 40) -> Any:
    """X with weights of its own, some below 0, weights of users, penalties; 7 has no users."""
    pattern = rng.random((n_users, n_items)) < 0.12
    pattern[:, 7] = False
    values = (1 + rng.random(pattern.shape)) * np.where(rng.random(pattern.shape) < 0.1, -1, 1)
    X = sp.csr_array((pattern * values).astype(np.float32))
    return X, rng.random(n_users) + 0.5, rng.random(n_items) * 5 + 1


def formed(X: Any, weights: Vector, penalty: Vector) -> Vector:
    dense = X.toarray().astype(np.float64)
    return np.asarray((dense.T * weights) @ dense + np.diag(penalty))


def dense(columns: Columns) -> Vector:
    return np.asarray(columns.off_diagonal.toarray() + np.diag(columns.diagonal()))


def by_hand(A: Vector, neighbours: int) -> Vector:
    """Column by column with `numpy.linalg.solve`; equal correlations by position."""
    n_items = len(A)
    P = np.zeros_like(A)
    for j in range(n_items):
        # the engine compares in single precision, without the factor that all have in common
        size = (np.abs(A[j]) / np.sqrt(np.diag(A))).astype(np.float32)
        partners = [i for i in np.argsort(-size, kind="stable") if i != j and A[i, j] != 0]
        N = [*partners[:neighbours], j]
        P[N, j] = np.linalg.solve(A[np.ix_(N, N)], np.eye(len(N))[-1])
    return P


def assert_same_bits(a: Columns, b: Columns) -> None:
    for name in ("data", "indices", "indptr", "diagonal_"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize(
    "normalizer", NORMALIZERS, ids=lambda normalizer: type(normalizer).__name__
)
def test_with_all_items_it_is_the_exact_engine(normalizer: Any, synthetic: Interactions) -> None:
    # l2 large enough for a condition number below 1e4: twelve digits are left
    first = eq.LAE(l2=5.0, dropout=0.3, normalizer=normalizer)
    exact = first.fit(synthetic, dtype="float64").solution_.toarray()
    near = eq.LAE(l2=5.0, dropout=0.3, normalizer=normalizer)
    near.fit(synthetic, dtype="float64", engine="neighbourhood", neighbours=synthetic.n_items)
    np.testing.assert_allclose(near.solution_.toarray(), exact, rtol=0, atol=1e-12)
    assert near.audit_["weights"] == pytest.approx(1, abs=1e-8)
    for family in FAMILIES:
        near_weights, exact_weights = (
            family(l2=5.0, dropout=0.3, normalizer=normalizer).reuse(model).weights_
            for model in (near, first)
        )
        np.testing.assert_allclose(
            near_weights, exact_weights, rtol=0, atol=1e-10 * np.abs(exact_weights).max()
        )


def test_in_single_precision_it_is_the_exact_engine_to_rounding(synthetic: Interactions) -> None:
    settings: dict[str, Any] = {"l2": 5.0, "dropout": 0.3, "normalizer": eq.DAN(0.2, 0.3)}
    near = eq.EASE(**settings).fit(synthetic, engine="neighbourhood", neighbours=79)
    exact = eq.EASE(**settings).fit(synthetic, dtype="float64").solution_.toarray()
    A = np.linalg.inv(exact)
    # backward stable: an error of n roundings of A, carried over by its condition number
    bound = len(A) * np.finfo(np.float32).eps * np.linalg.cond(A)
    error = np.linalg.norm(near.solution_.toarray() - exact, 2) / np.linalg.norm(exact, 2)
    assert error < bound < 0.02


@pytest.mark.parametrize("neighbours", [1, 3, 9, 17])
def test_a_column_solves_the_system_of_its_support(
    neighbours: int, rng: np.random.Generator
) -> None:
    problem = system(rng)
    columns = neighbourhood.solve(*problem, neighbours, row_entries=39, dtype="float64")
    np.testing.assert_allclose(dense(columns), by_hand(formed(*problem), neighbours), atol=1e-13)


@pytest.mark.parametrize("alike", [False, True])
def test_entries_that_are_not_stored_count_as_zero(alike: bool, rng: np.random.Generator) -> None:
    X, weights, penalty = system(rng)
    if alike:  # many items have the same A_ii: both rows store the entry
        X, weights, penalty = abs(X) > 0, np.ones(len(weights)), np.full(len(penalty), 3.0)
        X = sp.csr_array(X.astype(np.float32))
    A = formed(X, weights, penalty)
    is_stored = np.eye(len(A), dtype=bool)
    for j in range(len(A)):  # a row stores entries of items with at least its own A_jj
        size = (np.abs(A[j]) / np.sqrt(np.diag(A))).astype(np.float32)
        candidates = np.flatnonzero((np.diag(A) >= A[j, j]) & (np.arange(len(A)) != j))
        is_stored[j, candidates[np.argsort(-size[candidates], kind="stable")[:9]]] = True
    is_stored |= is_stored.T
    columns = neighbourhood.solve(X, weights, penalty, 6, row_entries=9, dtype="float64")
    expected = np.zeros_like(A)
    for j in range(len(A)):
        N = [*np.flatnonzero(columns.by_target()[:, [j]].toarray().ravel()), j]
        cut = np.where(is_stored, A, 0)
        cut[j], cut[:, j] = A[j], A[:, j]  # except for the target with its neighbours
        expected[N, j] = np.linalg.solve(cut[np.ix_(N, N)], np.eye(len(N))[-1])
    np.testing.assert_allclose(dense(columns), expected, atol=1e-12)


def test_an_item_without_users_stands_alone(rng: np.random.Generator) -> None:
    problem = system(rng)
    columns = neighbourhood.solve(*problem, 10, dtype="float64")
    P = dense(columns)
    assert not np.any(np.delete(P[7], 7))
    assert not np.any(np.delete(P[:, 7], 7))
    assert P[7, 7] == pytest.approx(1 / problem[2][7], rel=1e-15)


def test_few_partners_make_a_small_support() -> None:
    X = sp.csr_array(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], np.float32))
    columns = neighbourhood.solve(X, np.ones(3), np.ones(4), 2, dtype="float64")
    support = [set(column.nonzero()[0]) for column in columns.by_target().toarray().T]
    assert support == [{1}, {0, 2}, {1}, set()]


def test_equal_correlations_are_taken_by_position() -> None:
    # items 1 to 5 are equally correlated with item 0; two of them fit
    rows = [[1, *(i == j for j in range(5))] for i in range(5)]
    X = sp.csr_array(np.array(rows, np.float32))
    columns = neighbourhood.solve(X, np.ones(5), np.ones(6), 2)
    np.testing.assert_array_equal(columns.by_target()[:, [0]].nonzero()[0], [1, 2])


def test_permuted_items_give_permuted_weights(rng: np.random.Generator) -> None:
    X, weights, penalty = system(rng)  # weighted entries: no two correlations are equal
    order = rng.permutation(X.shape[1])
    columns = neighbourhood.solve(X, weights, penalty, 8, dtype="float64")
    moved = neighbourhood.solve(
        sp.csr_array(X[:, order]), weights, penalty[order], 8, dtype="float64"
    )
    np.testing.assert_allclose(dense(moved), dense(columns)[np.ix_(order, order)], atol=1e-13)


def test_threads_and_stripes_do_not_change_a_bit(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    problem = system(rng)
    expected = neighbourhood.solve(*problem, 8)
    for threads, stripes in ((1, 64), (3, 64), (2, 1), (2, 7)):
        monkeypatch.setattr(neighbourhood, "STRIPES", stripes)
        with limited(threads):
            assert_same_bits(neighbourhood.solve(*problem, 8), expected)
    on_disk = neighbourhood.solve(*problem, 8, on_disk=True)
    assert_same_bits(on_disk, expected)
    assert_same_bits(neighbourhood.solve(*problem, 8, scratch=tmp_path), expected)
    assert not list(tmp_path.iterdir())


def test_each_stripe_writes_to_one_place_of_its_files(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So that a stripe is on the disk without writing the files again from the start."""
    written: dict[str, list[tuple[int, int]]] = {"items": [], "sources": []}
    arrays: dict[str, npt.NDArray[Any]] = {}
    new_array, add = Journal.array, Journal.add

    def noted(journal: Journal, name: str, size: int, dtype: str) -> npt.NDArray[Any]:
        arrays[name] = new_array(journal, name, size, dtype)
        if name in written:
            arrays[name][:] = -1
        return arrays[name]

    def compared(journal: Journal, stage: str, part: int) -> None:
        name = "items" if stage == "lists" else "sources"
        ends = [end for _, end in written[name]]
        places = np.flatnonzero(arrays[name] >= 0)
        new = places[places >= max(ends, default=0)]
        if len(new):
            assert len(new) == new[-1] + 1 - new[0]
            written[name].append((int(new[0]), int(new[-1]) + 1))
        add(journal, stage, part)

    monkeypatch.setattr(neighbourhood, "STRIPES", 8)
    monkeypatch.setattr(Journal, "array", noted)
    monkeypatch.setattr(Journal, "add", compared)
    with limited(1):
        columns = neighbourhood.solve(*system(rng), 8, scratch=tmp_path)
    for spans in written.values():
        assert len(spans) == 8
        assert [low for low, _ in spans] == [0, *(high for _, high in spans[:-1])]
    assert written["sources"][-1][1] == len(columns.indices)


def test_a_missing_array_does_not_count_as_done(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.array("values", 4, "float32")[:] = 1
        journal.add("rows", 0)
    with Journal(tmp_path) as journal:
        assert journal.array("values", 4, "float32").tolist() == [1, 1, 1, 1]
        assert journal.has("rows", 0)
        journal.array("later", 4, "float32")  # one that no earlier run had begun
    (tmp_path / "neighbourhood-values.npy").unlink()
    with Journal(tmp_path) as journal, pytest.raises(FileFormatError, match="is missing; remove"):
        journal.array("values", 4, "float32")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child process")
@pytest.mark.parametrize("stripe", [5, 64 + 9])
def test_a_killed_solve_is_resumed(stripe: int, rng: np.random.Generator, tmp_path: Path) -> None:
    problem = system(rng)
    with limited(1):
        expected = neighbourhood.solve(*problem, 8)
        child = os.fork()
        if child == 0:  # dies after this stripe
            neighbourhood.solve(*problem, 8, scratch=tmp_path, progress=_die_at(stripe))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        with pytest.raises(DataError, match="holds another fit"):
            neighbourhood.solve(*problem, 9, scratch=tmp_path)
        steps: list[float] = []
        columns = neighbourhood.solve(
            *problem, 8, scratch=tmp_path, progress=lambda state: steps.append(state.share)
        )
    assert_same_bits(columns, expected)
    assert steps == [number / 128 for number in range(1, 129)]
    assert not list(tmp_path.iterdir())


def _die_at(stripe: int) -> Any:
    def progress(state: Any) -> None:
        if state.step == stripe:
            os.kill(os.getpid(), signal.SIGKILL)

    return progress


def test_memory_stays_inside_the_plan() -> None:
    rng = np.random.default_rng(1)
    pattern = sp.random_array((3000, 4000), density=0.004, rng=rng, dtype=np.float32, format="csr")
    pattern.data[:] = 1
    data = Interactions(pattern)
    plan = eq.plan(data, engine="neighbourhood", neighbours=60)
    model = eq.EASE(l2=10.0)
    model.fit(data, engine="neighbourhood", neighbours=60)  # compiles
    tracemalloc.start()
    try:
        model.fit(data, engine="neighbourhood", neighbours=60)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < plan.peak_bytes < 4000**2 * 4


def test_with_little_memory_entries_are_in_files_and_one_thread_checks(
    synthetic: Interactions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = {"n_users": 10**7, "n_items": 10**7, "n_interactions": 12 * 10**7}
    plan = partial(eq.plan, **sizes, engine="neighbourhood", neighbours=100)
    monkeypatch.setattr("equipoise.solve.planning.free_disk", lambda _: 10**12)
    with limited(4):
        wide, narrow = plan(memory="100GB"), plan(memory="20GB")
        on_disk = plan(memory="100GB", scratch=tmp_path)
    assert (wide.disk_bytes, wide.audit_threads) == (0, 2)
    assert (narrow.disk_bytes, narrow.audit_threads) == (on_disk.disk_bytes, 1)
    assert on_disk.audit_threads == 2
    assert narrow.fits
    assert narrow.peak_bytes < on_disk.peak_bytes < wide.peak_bytes
    assert narrow.disk_bytes == 10**7 * (300 + 100) * 8
    # a fit within such a plan has the same bits
    near: dict[str, Any] = {"engine": "neighbourhood", "neighbours": 9}
    with limited(2):
        least = eq.plan(synthetic, **near, memory=1).peak_bytes
        plans = [eq.plan(synthetic, **near, memory=size) for size in (10 * least, least)]
        fits = [
            eq.EASE(l2=5.0).fit(synthetic, **near, memory=size) for size in (10 * least, least)
        ]
    assert [plan.audit_threads for plan in plans] == [2, 1]
    assert_same_bits(fits[0].inverse_, fits[1].inverse_)
    assert fits[0].audit_ == fits[1].audit_
    assert type(fits[1].inverse_.data) is np.ndarray


def test_too_little_memory_is_an_error_with_the_number_that_fits(synthetic: Interactions) -> None:
    sizes = {"n_users": 10**6, "n_items": 10**6, "n_interactions": 3 * 10**7}
    options: dict[str, Any] = {"engine": "neighbourhood", "memory": "3GB"}
    with pytest.raises(TooBigError, match=r"300 neighbours need .* neighbours=\d+ fits") as error:
        eq.plan(**sizes, **options, neighbours=300).require()
    room = int(str(error.value).rsplit("neighbours=", 1)[1].split()[0])
    assert eq.plan(**sizes, **options, neighbours=room).fits
    assert not eq.plan(**sizes, **options, neighbours=room + 1).fits
    with pytest.raises(TooBigError, match="give more memory"):
        eq.EASE(l2=1.0).fit(synthetic, engine="neighbourhood", memory="2KB")


def test_a_catalogue_that_is_too_big_gets_it_as_advice_only() -> None:
    plan = eq.plan(n_users=10**6, n_items=10**6, n_interactions=3 * 10**7, memory="8GB")
    assert plan.engine == "dense"
    assert not plan.fits
    with pytest.raises(TooBigError, match=r"engine='neighbourhood' with neighbours=.*approximate"):
        plan.require()


def test_neighbours_follow_from_memory_and_time() -> None:
    sizes = {"n_users": 10**6, "n_items": 10**6, "n_interactions": 3 * 10**7}
    short = eq.plan(**sizes, engine="neighbourhood", memory="3GB")
    long = eq.plan(**sizes, engine="neighbourhood", memory="30GB")
    assert short.fits
    assert 0 < short.neighbours < long.neighbours == 200
    half = int(long.seconds / 2)
    hour, day = (
        eq.plan(**sizes, engine="neighbourhood", memory="30GB", neighbours=time)
        for time in (f"{half}s", "10000d")
    )
    assert hour.seconds <= half
    assert 0 < hour.neighbours < day.neighbours == 200
    with pytest.raises(SettingError, match="too short"):
        eq.plan(**sizes, engine="neighbourhood", memory="30GB", neighbours="0.001s")


def test_options_that_do_not_belong_together_are_refused(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0)
    for options, words in (
        ({"neighbours": 5}, "neighbours is for engine='neighbourhood'"),
        ({"engine": "neighbourhood", "neighbours": 0}, "neighbours must be a whole number"),
        ({"engine": "neighbourhood", "neighbours": "soon"}, "must look like '10m'"),
        ({"engine": "neighbourhood", "refine": True}, "cannot refine"),
    ):
        with pytest.raises(SettingError, match=words):
            model.fit(synthetic, **options)


def test_audit_compares_with_exact_columns(synthetic: Interactions) -> None:
    near = eq.EASE(l2=5.0, dropout=0.3).fit(synthetic, engine="neighbourhood", neighbours=12)
    exact = eq.EASE(l2=5.0, dropout=0.3).fit(synthetic, dtype="float64")
    audit = near.audit(synthetic.n_items)
    # by hand, for all targets
    W, V = (matrix.solution_.toarray().astype(np.float64) for matrix in (near, exact))
    W, V = (-matrix / np.diag(matrix) for matrix in (W, V))
    for matrix in (W, V):
        np.fill_diagonal(matrix, 0)
    cosines = (W * V).sum(axis=0) / np.linalg.norm(W, axis=0) / np.linalg.norm(V, axis=0)
    assert audit["weights"] == pytest.approx(cosines.mean(), abs=1e-4)
    assert audit["targets"] == synthetic.n_items
    # the list of an item: the exact P_ij and ours, both over our P_jj
    diagonal = near.diagonal_
    rows = W, V * exact.diagonal_ / diagonal
    lists, exact_lists = (
        [set(np.argsort(-row, kind="stable")[: min(20, int((row > 0).sum()))]) for row in matrix]
        for matrix in rows
    )
    shared = [len(a & b) / len(b) for a, b in zip(lists, exact_lists, strict=True)]
    assert audit["overlap@20"] == pytest.approx(np.mean(shared), abs=1e-3)
    assert 0.9 < audit["scores"] < 1
    assert near.audit_["weights"] == pytest.approx(cosines.mean(), abs=0.1)
    with pytest.raises(SettingError, match="was solved exactly"):
        exact.audit()
    assert exact.audit_ == {}


def test_the_audit_notices_a_planted_fault(synthetic: Interactions) -> None:
    model = eq.EASE(l2=5.0, dropout=0.3).fit(synthetic, engine="neighbourhood", neighbours=40)
    before = model.audit()
    P = model.inverse_
    parts = {name: getattr(P, name) for name in ("data", "indices", "indptr", "diagonal_")}
    faults = {
        "signs": parts | {"data": -P.data},
        "targets": parts | {"indices": (P.indices + 1) % P.shape[0]},
        "diagonal": parts | {"diagonal_": 3 * P.diagonal_},
    }
    assert before["residual"] < 0.1
    for fault in faults.values():
        model.inverse_ = Columns(**fault, neighbours=P.neighbours)
        with pytest.raises(SolveError, match="not accurate"):
            model.audit()


def test_it_saves_and_loads_and_ranks_from_the_files(
    synthetic: Interactions, tmp_path: Path
) -> None:
    model = eq.EASE(l2=5.0, normalizer=eq.DAN(0.2, 0.3))
    model.fit(synthetic, engine="neighbourhood", neighbours=12)
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert isinstance(again, eq.EASE)
    assert isinstance(again.inverse_.data, np.memmap)
    assert again.audit_ == model.audit_
    assert again.residual_ == model.residual_
    users = synthetic.users[:9].tolist()
    assert again.recommend(users).items == model.recommend(users).items
    assert again.audit() == model.audit()
    with pytest.raises(SettingError, match="fewer neighbours"):
        again.prune(5)


def refit_on(model: Any, data: Interactions) -> Vector:
    """P of these data on the supports of a model, by hand."""
    A = formed(data.matrix, model.normalizer_.user_weights(data), model.penalty_)
    P = np.zeros_like(A)
    pattern = model.inverse_.by_target().toarray() != 0
    for j in range(len(A)):
        N = [*np.flatnonzero(pattern[:, j]), j]
        P[N, j] = np.linalg.solve(A[np.ix_(N, N)], np.eye(len(N))[-1])
    return P


@pytest.mark.parametrize("change", ["add", "remove", "both"])
def test_an_update_is_a_fit_on_the_same_supports(change: str, synthetic: Interactions) -> None:
    options: dict[str, Any] = {"engine": "neighbourhood", "dtype": "float64", "neighbours": 40}
    model = eq.EASE(l2=5.0, dropout=0.2, normalizer=eq.DAN(0.2, 0.3)).fit(synthetic, **options)
    before = model.inverse_
    items = synthetic.items
    added = eq.read([("new", items[3]), ("new", items[40]), ("u5", items[70])])
    model.update(
        added if change != "remove" else None,
        ["u0", "u1"] if change != "add" else None,
    )
    after = model.inverse_
    np.testing.assert_array_equal(after.indptr, before.indptr)
    np.testing.assert_array_equal(after.indices, before.indices)
    np.testing.assert_allclose(
        model.solution_.toarray(), refit_on(model, model.interactions_), atol=1e-13
    )


def test_an_update_leaves_targets_alone_that_it_does_not_touch() -> None:
    block = np.kron(np.eye(2), np.ones((4, 4)))
    rows = np.vstack([block, block[:, ::-1][:, ::-1] * (np.arange(8) % 3 > 0)])
    data = Interactions(rows.astype(np.float32), [f"u{n}" for n in range(16)], list("abcdefgh"))
    model = eq.EASE(l2=1.0).fit(data, engine="neighbourhood", neighbours=3)
    before = model.inverse_
    model.update(eq.read([("late", "a"), ("late", "i"), ("u0", "a"), ("late", "b")]))
    after = model.solution_.toarray()
    assert after.shape == (9, 9)
    np.testing.assert_array_equal(after[4:8, 4:8], dense(before)[4:8, 4:8])
    assert after[8, 8] > 0
    assert set(np.flatnonzero(after[:8, 8])) == {0, 1}
    np.testing.assert_allclose(after, refit_on(model, model.interactions_), atol=1e-6)


def test_a_search_shares_its_solves(synthetic: Interactions) -> None:
    split = eq.split.strong(synthetic, valid=0.2, test=0.2)
    grid = {"l2": [5, 50], "alpha": [0, 0.3]}
    result = eq.tune([eq.EASE, eq.LAE], split, grid=grid, engine="neighbourhood", neighbours=20)
    assert result.solves == 2
    assert result.trials.height == 8
    assert result.model.inverse_.neighbours == 20
    assert result.model.audit_
    alone = result.model._vary({}).fit(split.train, engine="neighbourhood", neighbours=20)
    np.testing.assert_array_equal(alone.inverse_.data, result.model.inverse_.data)


def test_a_companion_needs_a_number_before_the_solve(synthetic: Interactions) -> None:
    options: Any = {"engine": "neighbourhood", "neighbours": 9}

    def solved(_: Any) -> None:
        pytest.fail("it solved before it refused")

    model = eq.EASE(l2=5.0, lowpass=eq.LowPass(rank=4))
    with pytest.raises(SettingError, match=r"give a number, such as LowPass\(strength=0.2\)"):
        model.fit(synthetic, **options, progress=solved)
    split = eq.split.strong(synthetic, valid=0.2, test=0.2)
    with pytest.raises(SettingError, match="give a number"):
        eq.tune(model, split, grid={"l2": [5.0]}, **options)
    result = eq.tune(model, split, grid={"strength": [0.0, 0.3]}, **options)
    assert result.solves == 1
    assert result.trials["strength"].to_list() == [0.0, 0.3]


def test_the_command_fits_with_neighbours(synthetic: Interactions, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from equipoise.cli.app import app

    synthetic.save(tmp_path / "data")
    arguments = ["fit", str(tmp_path / "data"), str(tmp_path / "model"), "--l2", "5", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--engine", "neighbourhood", "--neighbours", "9"])
    assert done.exit_code == 0, done.output
    assert '"overlap@20"' in done.output
    model = eq.load(tmp_path / "model")
    assert model.inverse_.neighbours == 9  # type: ignore[attr-defined]
