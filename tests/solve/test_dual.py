"""The dual engine: a users x users system gives the same model as the items x items one."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from tests.tolerance import assert_close, assert_same_lists

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.errors import FileFormatError, SettingError, SolveError, TooBigError
from equipoise.normalize import Normalizer
from equipoise.solve import dense, planning
from equipoise.solve.dual import Dual, DualMatrix

NORMALIZERS = [
    eq.NoNorm(),
    eq.RandomWalk(),
    eq.Symmetric(),
    eq.ColumnNorm(0.4),
    eq.UserNorm(0.7),
    eq.ItemNorm(0.3),
    eq.DAN(0.2, 0.3),
]
PENALTIES = [(5.0, 0.0), (0.0, 0.5), (2.0, 0.3)]
FAMILIES = [eq.LAE, eq.EASE, eq.RLAE]
UNIT = np.finfo(np.float64).eps / 2


@pytest.fixture(scope="module")
def data() -> Interactions:
    """40 users x 90 items: an item nobody used, a user twice, weights, two users with no items."""
    rng = np.random.default_rng(11)
    X = (rng.random((40, 90)) < np.linspace(0.5, 0.03, 90)) * rng.uniform(0.5, 2.0, (40, 90))
    X[:, 60] = 0
    X[7], X[20], X[33] = X[6], 0, 0
    items = [f"i{n}" for n in range(90)]
    return Interactions(X.astype(np.float32), [f"u{n}" for n in range(40)], items)


def rounding(A: np.ndarray) -> float:
    """A bound of how far apart two solves are, relative to the inverse.

    A solve of size n by Cholesky has a backward error of at most about 4 n^2 roundings, which the
    condition number turns into a forward error (Higham, chapters 10 and 14); so have both sides.
    """
    return float(8 * len(A) ** 2 * UNIT * np.linalg.cond(A))


def exact(model: eq.LAE, data: Interactions) -> tuple[np.ndarray, float]:
    """P by its definition, and a bound of the rounding errors of two solves, relative to P."""
    X = data.matrix.toarray().astype(np.float64)
    A = X.T @ (model.normalizer_.user_weights(data)[:, None] * X) + np.diag(model.penalty_)
    return np.linalg.inv(A), rounding(A)


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize(("l2", "dropout"), PENALTIES)
def test_every_family_is_that_of_the_dense_engine(
    data: Interactions, normalizer: Normalizer, l2: float, dropout: float
) -> None:
    settings = {"l2": l2, "dropout": dropout, "normalizer": normalizer}
    for family in FAMILIES:
        here = family(**settings).fit(data, engine="dense", dtype="float64")
        there = family(**settings).fit(data, engine="dual", dtype="float64")
        assert isinstance(there.inverse_, DualMatrix)
        P, bound = exact(there, data)
        size = np.abs(P).max()
        assert np.abs(there.solution_.toarray() - P).max() < bound * size
        assert np.abs(there.diagonal_ - np.diag(P)).max() < bound * size
        scores, W = here.score(data), np.abs(here.weights_)
        # a weight has the error of P beside that of 1/diagonal; a score sums those of a history
        error = bound * size * (1 / np.diag(P)).max() * W.max()
        allowed = 4 * error * np.abs(data.matrix).sum(axis=1).max()
        assert np.abs(there.weights_ - here.weights_).max() < 4 * error
        assert np.abs(there.score(data) - scores).max() < allowed
        assert np.isfinite(scores).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lists_and_explanations_are_those_of_the_dense_engine(
    data: Interactions, dtype: str
) -> None:
    settings = {"l2": 3.0, "dropout": 0.2, "normalizer": eq.DAN(0.2, 0.3)}
    here = eq.EASE(**settings).fit(data, engine="dense", dtype=dtype)
    there = eq.EASE(**settings).fit(data, engine="dual", dtype=dtype)
    assert there.score(data).dtype == np.dtype(dtype)
    scale = np.abs(here.score(data)).max()
    for alpha in (None, 0.0, 0.6):
        expected = here.score(data, alpha=alpha)
        assert_close(there.score(data, alpha=alpha), expected, dtype, scale=np.abs(expected).max())
        lists = (model.rank(data, 10, alpha=alpha) for model in (there, here))
        assert_same_lists(*lists, expected, dtype)
    one, two = there.explain("u3", "i5"), here.explain("u3", "i5")
    assert_close(one.score, two.score, dtype, scale=scale)
    parts = [dict(zip(e.sources, e.contributions, strict=True)) for e in (one, two)]
    assert parts[0].keys() == parts[1].keys()
    for item, value in parts[1].items():
        assert_close(parts[0][item], value, dtype, scale=scale)
    similar = [model.similar("i5", k=5) for model in (there, here)]
    assert_close(similar[0].scores, similar[1].scores, dtype, scale=scale)


def test_users_without_weight_are_ignored(data: Interactions) -> None:
    weights, penalty = np.linspace(0.5, 2.0, data.n_users), np.linspace(1.0, 3.0, data.n_items)
    weights[[1, 5, 6]] = 0.0
    P_dual, _ = Dual(data.matrix, weights).solve(penalty, "float64")
    X = data.matrix.toarray().astype(np.float64)
    A = X.T @ (weights[:, None] * X) + np.diag(penalty)
    P, bound = np.linalg.inv(A), rounding(A)
    assert np.abs(P_dual.rows(0, data.n_items) - P).max() < bound * np.abs(P).max()
    users = (data.user_counts > 0) & (weights > 0)
    assert P_dual.core.shape == (users.sum(),) * 2


def test_a_list_does_not_depend_on_the_other_users_or_threads(
    data: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.ranking import ranker, terms

    model = eq.EASE(l2=3.0).fit(data, engine="dual")
    together = model.score(data)
    alone = np.vstack([model.score(data.rows([row])) for row in range(data.n_users)])
    np.testing.assert_array_equal(alone, together)
    lists = model.rank(data, 20, threads=1)
    monkeypatch.setattr(ranker, "SMALL", 0)
    monkeypatch.setattr(ranker, "BLOCK", 7)
    monkeypatch.setattr(terms, "CORE_COLUMNS", 5)
    for threads in (1, 2):
        again = model.rank(data, 20, threads=threads)
        np.testing.assert_array_equal(again.items, lists.items)
        np.testing.assert_array_equal(again.scores, lists.scores)


def test_items_of_the_history_add_nothing_to_their_own_score(data: Interactions) -> None:
    model = eq.LAE(l2=3.0).fit(data, engine="dual", dtype="float64")
    self_scores = np.diag(model.score([[item] for item in data.items.tolist()]))
    scale = np.abs(model.inverse_.inner_diagonal).max() / 3.0
    assert np.abs(self_scores).max() < 100 * data.n_users * UNIT * scale


def test_models_share_the_solve(data: Interactions) -> None:
    settings = {"l2": 3.0, "dropout": 0.2}
    first = eq.EASE(**settings, normalizer=eq.DAN(0.2, 0.3)).fit(data, engine="dual")
    other = eq.RLAE(**settings, normalizer=eq.DAN(0.5, 0.3), diag_bound=0.4).reuse(first)
    assert other.inverse_ is first.inverse_
    fresh = eq.RLAE(**settings, normalizer=eq.DAN(0.5, 0.3), diag_bound=0.4)
    fresh.fit(data, engine="dual")
    np.testing.assert_array_equal(fresh.score(data), other.score(data))


def test_a_search_has_the_same_result_as_with_the_dense_engine(data: Interactions) -> None:
    active = data.rows(data.user_counts > 0)
    split = eq.split.strong(Interactions(active.matrix != 0), valid=0.3, test=0.2)
    grid = {"l2": [1.0, 10.0], "dropout": [0.0, 0.3], "alpha": [0.0, 0.3]}
    results = [
        eq.tune([eq.EASE, eq.LAE], split, grid=grid, engine=name, dtype="float64")
        for name in ("dual", "dense")
    ]
    assert isinstance(results[0].model.inverse_, DualMatrix)
    assert results[0].solves == results[1].solves
    # the valid users have different scores for all items, so rounding moves no list
    assert results[0].trials.equals(results[1].trials)


def test_it_is_saved_small_and_mapped(data: Interactions, tmp_path: Path) -> None:
    lowpass = eq.LowPass(rank=4)
    model = eq.RLAE(l2=3.0, normalizer=eq.DAN(), lowpass=lowpass).fit(data, engine="dual")
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model", verify=True)
    assert isinstance(again.inverse_.core, np.memmap)
    np.testing.assert_array_equal(again.score(data), model.score(data))
    np.testing.assert_array_equal(again.score(data, alpha=0.7), model.score(data, alpha=0.7))
    assert again.solution_.dtype == np.float32
    assert again.residual_ == model.residual_
    again.save(tmp_path / "twice")
    np.testing.assert_array_equal(eq.load(tmp_path / "twice").score(data), model.score(data))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("inverse_core", np.eye(37), "'inverse_core' should have shape"),
        ("inverse_core", np.full((38, 38), np.nan), "'inverse_core' holds NaN"),
        ("inverse_core", np.eye(38, dtype=np.float32), "float32, not float64"),
        ("inverse_own", np.full(90, np.inf), "'inverse_own' holds NaN"),
    ],
)
def test_a_damaged_save_is_refused(
    data: Interactions, tmp_path: Path, name: str, array: np.ndarray, message: str
) -> None:
    from tests.models.test_saving import replace_array

    eq.EASE(l2=3.0).fit(data, engine="dual").save(tmp_path / "model")
    replace_array(tmp_path / "model", name, array)
    with pytest.raises(FileFormatError, match=message):
        eq.load(tmp_path / "model")


def test_a_save_of_an_unknown_form_is_refused(data: Interactions, tmp_path: Path) -> None:
    from tests.models.test_saving import edit

    eq.EASE(l2=3.0).fit(data, engine="dual").save(tmp_path / "model")
    edit(tmp_path / "model", lambda m: m["meta"]["state"].update(inverse="triple"))
    with pytest.raises(FileFormatError, match="unknown kind 'triple'"):
        eq.load(tmp_path / "model")


def test_an_update_equals_a_refit(data: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "SMALL", 0)  # so that "auto" has the choice at this size
    monkeypatch.setattr(planning, "DUAL_ITEMS_PER_USER", 2)
    model = eq.EASE(l2=3.0, dropout=0.2, normalizer=eq.DAN(0.2, 0.3))
    model.fit(data.rows(np.arange(30)), dtype="float64")
    assert isinstance(model.inverse_, DualMatrix)
    twin, before = copy.copy(model), model.score(data.rows(np.arange(5)))
    fresh_items = eq.read([("u3", "new"), ("zoe", "new"), ("zoe", "i1")])
    model.update(data.rows(np.arange(30, 40)), removed=["u1", "u2"]).update(fresh_items)
    assert isinstance(model.inverse_, DualMatrix)
    fresh = eq.EASE(l2=3.0, dropout=0.2, normalizer=eq.DAN(0.2, 0.3))
    fresh.fit(model.interactions_, dtype="float64", engine="dense")
    W = fresh.weights_
    assert_close(model.weights_, W, "float64", scale=np.abs(W).max())
    np.testing.assert_array_equal(twin.score(data.rows(np.arange(5))), before)


def test_it_is_pruned_like_the_dense_one(data: Interactions) -> None:
    settings = {"l2": 3.0, "normalizer": eq.DAN(0.2, 0.3)}
    here = eq.EASE(**settings).fit(data, engine="dense", dtype="float64").prune(7)
    there = eq.EASE(**settings).fit(data, engine="dual", dtype="float64").prune(7)
    assert sp.issparse(there.inverse_)
    assert there.loss_["weight"] == pytest.approx(here.loss_["weight"], rel=1e-7)
    assert (np.count_nonzero(there.weights_, axis=0) <= 7).all()


def test_it_is_evaluated(data: Interactions) -> None:
    active = Interactions(data.rows(data.user_counts > 0).matrix != 0)
    split = eq.split.weak(active)
    here, there = (
        eq.EASE(l2=3.0).fit(split.train, engine=name, dtype="float64")
        for name in ("dense", "dual")
    )
    one, two = (eq.evaluate(model, split.test, bootstrap=0) for model in (here, there))
    for metric in ("ndcg@20", "recall@20", "tail_ndcg@20"):
        assert two[metric] == pytest.approx(one[metric], rel=1e-12)


def test_products_with_it_are_those_with_the_array(data: Interactions) -> None:
    model = eq.EASE(l2=3.0).fit(data, engine="dual", dtype="float64")
    P, bound = exact(model, data)
    for right in (np.linspace(-1, 1, 90), np.eye(90)[:, :3]):
        error = np.abs(model.inverse_ @ right - P @ right).max()
        assert error < bound * np.abs(P).max() * np.abs(right).sum(axis=0).max()


def test_refinement_and_residual_are_those_of_the_whole_system(data: Interactions) -> None:
    plain, refined = (
        eq.EASE(l2=3.0).fit(data, engine="dual", refine=refine) for refine in (False, True)
    )
    P, bound = exact(plain, data)
    for model in (plain, refined):
        assert model.residual_ < bound
        assert np.abs(model.solution_.toarray() - P).max() < 1e-6 * np.abs(P).max()


def test_a_system_that_cannot_be_solved_is_refused(data: Interactions) -> None:
    huge = Interactions(data.matrix * np.float32(1e4))
    with pytest.raises(SolveError, match="raise l2 or dropout"):
        eq.LAE(l2=1e-12).fit(huge, engine="dual")


def test_the_plan_takes_it_where_users_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda: 8 * 10**9)
    monkeypatch.setattr(planning, "solve_rate", lambda _: 1e11)
    grocery = {"n_users": 2_469, "n_items": 68_509, "n_interactions": 1_300_000}
    plan = eq.plan(**grocery)
    assert plan.engine == "dual"
    assert plan.peak_bytes < 1.5e9
    assert plan.seconds < 1
    assert str(plan).startswith("dual engine, 68,509 items, float32: ")
    few = {"n_users": 5_000, "n_interactions": 10**5}
    limit = planning.DUAL_ITEMS_PER_USER * 5_000
    assert eq.plan(**few, n_items=limit).engine == "dual"
    assert eq.plan(**few, n_items=limit - 1).engine == "dense"
    # both take a moment, and an array is handier
    assert eq.plan(n_users=10, n_items=dense.SMALL, n_interactions=100).engine == "dense"
    # where the dense engine does not fit, it is the faster one that does
    tight = eq.plan(n_users=9_000, n_items=10_000, n_interactions=10**5, memory="3GB")
    assert tight.engine == "dense"
    tight = eq.plan(n_users=9_000, n_items=60_000, n_interactions=10**5, memory="3GB")
    assert tight.engine == "dual"
    # chosen by name
    assert eq.plan(n_users=9, n_items=5, n_interactions=5, engine="dual").engine == "dual"


def test_too_little_memory_names_the_engine_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda: 8 * 10**9)
    monkeypatch.setattr(planning, "free_disk", lambda _: 0)
    size = {"n_users": 20_000, "n_items": 60_000, "n_interactions": 10**5}
    with pytest.raises(TooBigError, match=r"60,000 items need 14 GB .* engine='dual' fits"):
        eq.plan(**size, engine="dense").require()
    with pytest.raises(TooBigError, match=r"3.2 GB in the dual engine .* engine='neighbourhood'"):
        eq.plan(**size, engine="dual", memory="1GB").require()


def test_it_takes_no_options_of_other_engines(data: Interactions, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"scratch is for the tiled .*, not for dual"):
        eq.EASE(l2=1.0).fit(data, engine="dual", scratch=tmp_path)
    with pytest.raises(SettingError, match="precision is for the gpu engine"):
        eq.EASE(l2=1.0).fit(data, engine="dual", precision="float32")
    model = eq.EASE(l2=1.0).fit(data, engine="dual")
    assert model.to("cpu") is model
    with pytest.raises(SettingError, match=r"ranks on device='cpu'"):
        model.to("cuda")


def test_memory_stays_far_below_that_of_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    wide = Interactions(sp.random_array((60, 30_000), density=0.002, rng=rng, dtype=np.float32))
    model = eq.EASE(l2=1.0).fit(wide)
    assert isinstance(model.inverse_, DualMatrix)
    assert model.solution_.nbytes < 4 * wide.n_items**2 / 1000
    assert len(model.recommend(wide.users[:3].tolist(), k=5).items[2]) == 5
    monkeypatch.setattr("equipoise.models.linear.free_memory", lambda: 10**9)
    with pytest.raises(TooBigError, match="recommend works without it"):
        _ = model.weights_


def test_the_small_system_can_be_solved_on_a_device(data: Interactions) -> None:
    pytest.importorskip("torch")
    weights, penalty = np.linspace(0.5, 1.0, 40), np.linspace(1.0, 2.0, 90)
    here, _ = Dual(data.matrix, weights).solve(penalty, "float64")
    there = Dual(data.matrix, weights)
    there.device = "cpu:0"  # torch's processor, in place of a GPU
    solved, _ = there.solve(penalty, "float64")
    allowed = rounding(here.core) * np.abs(here.core).max()
    assert np.abs(solved.core - here.core).max() < allowed
