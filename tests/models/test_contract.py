"""What every model promises, whatever it is inside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.errors import DataError, NotFittedError, SettingError, UnknownIdError
from equipoise.interactions import Interactions
from equipoise.models import Recommender

MODELS = {
    "LAE": lambda: eq.LAE(l2=5.0),
    "EASE+DAN": lambda: eq.EASE(l2=2.0, dropout=0.4, normalizer=eq.DAN(0.2, 0.3)),
    "RLAE Sym": lambda: eq.RLAE(l2=0.0, dropout=0.5, normalizer=eq.Symmetric(), diag_bound=0.2),
    "EASE Col": lambda: eq.EASE(l2=3.0, normalizer=eq.ColumnNorm(0.3)),
    "DLAE": lambda: eq.DLAE(l2=1.0),
    "EDLAE+DAN": lambda: eq.EDLAE(l2=2.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3)),
    "RDLAE": lambda: eq.RDLAE(l2=1.0, diag_bound=0.3),
    "EASE auto": lambda: eq.EASE(l2=3.0, normalizer=eq.DAN()),
    "Popularity": lambda: eq.Popularity(),
    "ItemKNN": lambda: eq.ItemKNN(neighbours=20, shrink=1.0),
}
LINEAR = [name for name in MODELS if name not in ("Popularity", "ItemKNN")]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, synthetic: Interactions) -> Recommender:
    return MODELS[request.param]().fit(synthetic)


@pytest.fixture(params=LINEAR)
def linear(request: pytest.FixtureRequest, synthetic: Interactions) -> eq.EASE:
    return MODELS[request.param]().fit(synthetic)


def test_recommend_never_returns_seen_items(model: Recommender, synthetic: Interactions) -> None:
    found = model.recommend(synthetic.users, k=10)
    for user, items in zip(found.users, found.items, strict=True):
        assert not set(items) & set(synthetic.history(user))


def test_lists_are_sorted_and_as_long_as_asked(model: Recommender) -> None:
    found = model.recommend(["u0", "u7"], k=15)
    for items, scores in zip(found.items, found.scores, strict=True):
        assert len(items) == len(set(items)) == 15
        assert (np.diff(scores) <= 0).all()
    assert found.source == ["model", "model"]


def test_known_users_and_their_histories_get_the_same_lists(
    model: Recommender, synthetic: Interactions
) -> None:
    users = ["u3", "u14", "u15"]
    known = model.recommend(users, k=8)
    histories = model.recommend([synthetic.history(user) for user in users], k=8)
    named = model.recommend({user: synthetic.history(user) for user in users}, k=8)
    as_data = model.recommend(synthetic.select(users=users), k=8)
    assert known.items == histories.items == named.items == as_data.items
    assert known.users == named.users == as_data.users == users
    assert histories.users == [0, 1, 2]


def test_top_scores_agree_with_score(model: Recommender, synthetic: Interactions) -> None:
    dense = model.score(["u5"])[0]
    found = model.recommend(["u5"], k=80)
    place = synthetic.item_index.positions(found.items[0])
    np.testing.assert_array_equal(dense[place], found.scores[0])


def test_excluded_items_and_candidates_are_honoured(
    model: Recommender, synthetic: Interactions
) -> None:
    first = model.recommend(["u1", "u2"], k=5).items
    without = model.recommend(["u1", "u2"], k=5, exclude=first[0])
    assert not set(without.items[0]) & set(first[0])
    each = model.recommend(["u1", "u2"], k=5, exclude=first)
    for old, new in zip(first, each.items, strict=True):
        assert not set(old) & set(new)
    allowed = synthetic.items[:30].tolist()
    only = model.recommend(["u1", "u2"], k=40, candidates=allowed)
    assert all(set(row) <= set(allowed) for row in only.items)
    pair = model.recommend(["u1", "u2"], k=40, candidates=[allowed[:10], allowed[10:]])
    assert set(pair.items[0]) <= set(allowed[:10])
    assert set(pair.items[1]) <= set(allowed[10:])
    assert pair.users == ["u1", "u2"]


def test_seen_items_can_be_kept(model: Recommender, synthetic: Interactions) -> None:
    found = model.recommend(["u4"], k=80, exclude_seen=False)
    assert set(found.items[0]) == set(synthetic.items.tolist())


def test_empty_history_gets_popular_items_and_says_so(
    model: Recommender, synthetic: Interactions
) -> None:
    found = model.recommend([[], synthetic.items[:3].tolist()], k=4)
    best = np.argsort(-synthetic.item_counts, kind="stable")[:4]
    assert found.items[0] == synthetic.items[best].tolist()
    assert found.source == ["popular", "model"]


def test_unknown_ids_are_named_or_skipped(model: Recommender) -> None:
    with pytest.raises(UnknownIdError, match="nobody"):
        model.recommend(["u1", "nobody"])
    with pytest.raises(UnknownIdError, match="-5"):
        model.recommend([[13, -5]])
    assert model.recommend(["u1", "nobody"], unknown="skip").users == ["u1"]
    assert len(model.recommend([[13, -5]], k=3, unknown="skip").items[0]) == 3


def test_users_and_histories_cannot_be_mixed(model: Recommender) -> None:
    with pytest.raises(DataError, match="mixture"):
        model.recommend(["u1", [13, 23]])


def test_frame_is_long_with_ranks_from_one(model: Recommender) -> None:
    frame = model.recommend(["u1", "u2"], k=3).to_frame()
    assert frame.columns == ["user", "item", "score", "rank"]
    assert frame["user"].to_list() == ["u1"] * 3 + ["u2"] * 3
    assert frame["rank"].to_list() == [1, 2, 3, 1, 2, 3]
    details = model.recommend([[]], k=2).to_frame(details=True)
    assert details["source"].to_list() == ["popular", "popular"]


def test_similar_items_leave_the_item_itself_out(model: Recommender) -> None:
    found = model.similar(13, k=5)
    assert 13 not in found.items[0]
    assert len(found.items[0]) == 5
    assert found.users == [13]


def test_contributions_add_up_to_the_score_exactly(
    model: Recommender, synthetic: Interactions
) -> None:
    found = model.recommend(["u9"], k=5)
    for item, score in zip(found.items[0], found.scores[0], strict=True):
        reason = model.explain("u9", item)
        assert reason.score == score
        assert sum(reason.contributions) == score
        assert set(reason.sources) == set(synthetic.history("u9"))
        sizes = np.abs(reason.contributions)
        assert (np.diff(sizes) <= 1e-6 * sizes[0]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [None, 0.5])
@pytest.mark.parametrize("lowpass", [None, eq.LowPass(rank=9)])
def test_contributions_add_up_in_the_precision_of_the_model(
    dtype: str, alpha: float | None, lowpass: eq.LowPass | None, synthetic: Interactions
) -> None:
    model = eq.EASE(l2=2.0, dropout=0.4, normalizer=eq.DAN(0.2, 0.3), lowpass=lowpass)
    model.fit(synthetic, dtype=dtype)
    users = synthetic.users[:25]
    scores = model.score(users, alpha=alpha)
    for user, row in zip(users.tolist(), scores, strict=True):
        for place in (0, 7, 31, 79):
            reason = model.explain(user, int(synthetic.items[place]), alpha=alpha)
            assert reason.score == row[place]
            size = float(np.abs(reason.contributions).sum())
            length = len(reason.sources)
            error = abs(float(np.sum(reason.contributions)) - row[place])
            assert error <= length * np.spacing(size)
            if min(abs(part) for part in reason.contributions if part) <= abs(row[place]):
                assert np.cumsum(reason.contributions)[-1] == row[place]
            if lowpass is None:
                # a score is a sum of `length` products, so that many roundings move digits
                alone = model.score([[item] for item in reason.sources], alpha=alpha)[:, place]
                rounding = length * float(np.spacing(np.asarray(size, dtype)))
                np.testing.assert_allclose(reason.contributions, alone, rtol=0, atol=rounding)


def test_same_lists_for_any_threads_and_batches(
    model: Recommender, synthetic: Interactions
) -> None:
    whole = model.recommend(synthetic, k=10, threads=1)
    again = model.recommend(synthetic, k=10, threads=2)
    parts = [model.recommend(synthetic.rows(np.arange(n, 300, 7)), k=10) for n in range(7)]
    assert whole.items == again.items
    for n, part in enumerate(parts):
        assert part.items == whole.items[n::7]
        for one, two in zip(part.scores, whole.scores[n::7], strict=True):
            np.testing.assert_array_equal(one, two)


def test_parquet_stream_holds_the_same_lists(
    model: Recommender, synthetic: Interactions, tmp_path
) -> None:
    import polars as pl

    people = model.recommend_to(tmp_path / "all.parquet", k=6, batch_size=37)
    assert people == 300
    written = pl.read_parquet(tmp_path / "all.parquet")
    assert written.equals(model.recommend(synthetic, k=6).to_frame())
    assert [file.name for file in tmp_path.iterdir()] == ["all.parquet"]


def test_saved_and_loaded_model_answers_the_same(
    model: Recommender, synthetic: Interactions, tmp_path
) -> None:
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert type(again) is type(model)
    assert again.settings() == model.settings()
    assert again.data_fingerprint_ == model.data_fingerprint_
    one, two = model.recommend(synthetic, k=10), again.recommend(synthetic, k=10)
    assert one.items == two.items
    for a, b in zip(one.scores, two.scores, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", MODELS)
def test_asking_before_fitting_says_so(name: str) -> None:
    with pytest.raises(NotFittedError, match="call fit first"):
        MODELS[name]().recommend(["u1"])


def test_fit_cut_short_at_any_point_leaves_the_fitted_model_as_it_was(
    model: Recommender, synthetic: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, before = dict(vars(model)), model.score(["u3", "u4"])
    for last in [name for name in state if name.endswith("_")]:

        def cut_short(self: Recommender, name: str, value: object, last: str = last) -> None:
            object.__setattr__(self, name, value)
            if name == last:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(model), "__setattr__", cut_short)
            with pytest.raises(KeyboardInterrupt):
                model.fit(synthetic.rows(np.arange(100)))
        assert all(vars(model)[name] is value for name, value in state.items())
        np.testing.assert_array_equal(model.score(["u3", "u4"]), before)


@pytest.mark.parametrize("k", [0, -3])
def test_k_must_be_positive(model: Recommender, k: int) -> None:
    with pytest.raises(SettingError, match="k must be >= 1"):
        model.recommend(["u1"], k=k)


def test_dial_turns_lists_towards_the_tail_without_a_refit(
    linear: eq.EASE, synthetic: Interactions
) -> None:
    counts = dict(zip(synthetic.items.tolist(), synthetic.item_counts.tolist(), strict=True))
    means = []
    for alpha in (-0.5, 0.0, 0.5, 1.0):
        found = linear.recommend(synthetic, k=10, alpha=alpha)
        means.append(np.mean([counts[item] for row in found.items for item in row]))
    assert means == sorted(means, reverse=True)
    assert means[0] > means[-1]


@given(
    rows=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=2, max_size=8),
    alpha=st.floats(0, 1),
    beta=st.floats(0, 1),
)
@settings(max_examples=25, deadline=None)
def test_scores_are_finite_whatever_the_counts(
    rows: list[list[bool]], alpha: float, beta: float
) -> None:
    """Items nobody used and users without items included."""
    data = Interactions(np.array(rows, dtype=float))
    for family in (eq.LAE, eq.EASE, eq.RLAE):
        for penalty in ({"l2": 1.0}, {"l2": 0.0, "dropout": 0.5}):
            model = family(normalizer=eq.DAN(alpha, beta), **penalty).fit(data)
            assert np.isfinite(model.weights_).all()
            assert np.isfinite(model.score(data)).all()
