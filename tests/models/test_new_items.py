"""Features in the solve, and items without users."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.models.described import described
from tests.tolerance import assert_close

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.storage import sealed
from equipoise.models.leaving_out import lists_without
from equipoise.models.linear import LinearAutoencoder

SETTINGS = eq.Features(
    strength=2.0, map="both", rarity=1.0, mu=1.0, share=0.3, neighbours=5, scale=1.0
)
FAMILIES = [eq.LAE, eq.EASE, eq.RLAE]


def model(
    features: eq.Features | None = SETTINGS, family: type[LinearAutoencoder] = eq.EASE
) -> LinearAutoencoder:
    return family(l2=5.0, dropout=0.2, normalizer=eq.DAN(0.2, 0.3), features=features)


def hiding(data: Interactions, hidden: list[int]) -> Interactions:
    """Return the data without any event of these items, which stay as columns."""
    return data.entries(~np.isin(data.matrix.indices, hidden))


@pytest.fixture(scope="module")
def data() -> Interactions:
    return described()


@pytest.fixture(scope="module")
def train(data: Interactions) -> Interactions:
    return hiding(data, [4, 17, 30])


@pytest.mark.parametrize("family", FAMILIES)
def test_solve_satisfies_its_optimality_conditions_with_features(
    data: Interactions, family: type[LinearAutoencoder]
) -> None:
    fitted = model(family=family).fit(data, dtype="float64")
    X, F = data.matrix.toarray().astype(float), fitted.item_features_.rows.toarray().astype(float)
    weights = fitted.normalizer_.user_weights(data)
    G = X.T @ (weights[:, None] * X) + 2.0 * F @ F.T
    B = np.eye(len(F)) - fitted.inverse_ * fitted._column_scale(fitted.diagonal_, fitted.penalty_)
    gradient = (G + np.diag(fitted.penalty_)) @ B - G
    np.fill_diagonal(gradient, 0)
    # F is stored in float32, G is summed in float64
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


@pytest.mark.parametrize("engine", ["dual", "tiled"])
def test_engines_agree_with_features(data: Interactions, engine: str) -> None:
    dense = model().fit(data, dtype="float64", engine="dense")
    other = model().fit(data, dtype="float64", engine=engine)
    assert_close(other.weights_, dense.weights_, "float64", scale=1.0)


def test_neighbourhoods_of_all_items_agree_with_features(data: Interactions) -> None:
    settings = dataclasses.replace(SETTINGS, map="nearest")
    dense = model(settings).fit(data, dtype="float64")
    other = model(settings).fit(data, dtype="float64", engine="neighbourhood", neighbours=39)
    assert_close(other.weights_, dense.weights_, "float64", scale=1.0)


def test_weight_zero_without_new_items_is_the_model_without_features(data: Interactions) -> None:
    plain = model(None).fit(data)
    described_model = model(dataclasses.replace(SETTINGS, strength=0.0)).fit(data)
    assert np.array_equal(plain.inverse_, described_model.inverse_)
    lists, plain_lists = described_model.rank(data, 10), plain.rank(data, 10)
    assert np.array_equal(lists.items, plain_lists.items)
    assert np.array_equal(lists.scores, plain_lists.scores)


def test_scores_of_known_items_do_not_depend_on_new_ones(train: Interactions) -> None:
    with_new = model(dataclasses.replace(SETTINGS, strength=0.0)).fit(train)
    known = train.item_counts > 0
    scores = with_new.score(train)[:, known]
    assert np.array_equal(scores, model(None).fit(train).score(train)[:, known])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_user_left_out_is_a_refit_without_the_user(
    data: Interactions, family: type[LinearAutoencoder]
) -> None:
    fitted = model(family=family).fit(data, dtype="float64")
    for row in (0, 7, 42):
        user = data.rows([row])
        history = user.entries(np.arange(user.n_interactions) % 2 == 0)
        (items,), (scores,) = lists_without([fitted], history, 10)
        other_users = data.rows(np.delete(np.arange(data.n_users), row))
        refit = dataclasses.replace(fitted).fit(other_users, dtype="float64")
        ranked = refit.rank(history, 10)
        assert items[0].tolist() == ranked.items[0].tolist()
        # P of 40 items carries errors of 1e-15, and LAE scores are differences of its rows
        np.testing.assert_allclose(scores[0], ranked.scores[0], rtol=1e-9)


def test_update_is_a_refit_with_the_same_vocabulary(data: Interactions) -> None:
    parts = data.rows(np.arange(140)), data.rows(np.arange(140, 150))
    updated = model().fit(parts[0], dtype="float64").update(added=parts[1])
    refit = model().fit(data, dtype="float64")
    assert_close(updated.weights_, refit.weights_, "float64", scale=1.0)
    assert np.array_equal(updated.rank(data, 10).items, refit.rank(data, 10).items)


def test_new_item_that_gets_events_becomes_known(data: Interactions, train: Interactions) -> None:
    fitted = model().fit(train, dtype="float64")
    events = data.entries(np.isin(data.matrix.indices, [17]))
    updated = fitted.update(added=events.rows(events.user_counts > 0))
    refit = model().fit(hiding(data, [4, 30]), dtype="float64")
    assert_close(updated.weights_, refit.weights_, "float64", scale=1.0)
    np.testing.assert_allclose(updated.score(data), refit.score(data), rtol=1e-5, atol=1e-7)


def test_column_of_a_new_item_is_the_formula(train: Interactions) -> None:
    fitted = model(dataclasses.replace(SETTINGS, map="ridge")).fit(train, dtype="float64")
    features = fitted.item_features_
    F = features.map_rows.toarray().astype(float)
    source, target = fitted.scales(0.5)
    W = source[:, None] * fitted.inverse_ * target
    np.fill_diagonal(W, 0)
    new = features.map_vocabulary.encode(train.catalogue).toarray()[[4, 17, 30]]
    K = F @ np.linalg.solve(F.T @ F + np.eye(F.shape[1]), new.T)
    expected = train.matrix.toarray() @ (W @ K + 0.3 * K)
    # the columns of features are made in float32
    np.testing.assert_allclose(fitted.score(train)[:, [4, 17, 30]], expected, rtol=1e-3, atol=1e-5)


def test_nearest_is_the_mean_of_the_columns_of_similar_items(train: Interactions) -> None:
    fitted = model(dataclasses.replace(SETTINGS, map="nearest")).fit(train, dtype="float64")
    features = fitted.item_features_
    F = features.map_rows.toarray()
    W = fitted.scales(0.5)[0][:, None] * fitted.inverse_ * fitted.scales(0.5)[1]
    np.fill_diagonal(W, 0)
    new = features.map_vocabulary.encode(train.catalogue).toarray()[4]
    similar = F @ new
    nearest = np.argsort(-similar)[:5]
    weights = similar[nearest] / similar[nearest].sum() * np.linalg.norm(new)
    column = (W[:, nearest] + 0.3 * np.eye(40)[:, nearest]) @ weights
    # similarities are rounded to five digits
    expected = train.matrix.toarray() @ column
    np.testing.assert_allclose(fitted.score(train)[:, 4], expected, rtol=1e-3, atol=1e-5)


def test_features_rank_new_items_by_the_taste_of_the_user() -> None:
    split = eq.split.new_items(described(400, 100), share=0.2, seed=1)
    hidden = split.train.items[split.train.item_counts == 0].tolist()
    only = eq.Rules(include=hidden)
    values = [
        eq.evaluate(m.fit(split.train), split.test, k=5, rules=only, bootstrap=0)["new_ndcg@5"]
        for m in (model(None), model())
    ]
    assert values[1] > 1.25 * values[0]


def test_saved_model_ranks_new_items_alike(train: Interactions, tmp_path: Path) -> None:
    fitted = model().fit(train)
    fitted.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model")
    assert loaded.settings() == fitted.settings()
    lists, again = fitted.rank(train, 40), loaded.rank(train, 40)
    assert np.array_equal(lists.items, again.items)
    assert np.array_equal(lists.scores, again.scores, equal_nan=True)


def test_contributions_to_a_new_item_sum_to_its_score(train: Interactions) -> None:
    fitted = model().fit(train)
    explanation = fitted.explain(["i1", "i2", "i3"], "i17")
    assert explanation.score == pytest.approx(sum(explanation.contributions))
    position = fitted.item_index_.position("i17")
    assert explanation.score == fitted.score([["i1", "i2", "i3"]])[0, position]


def test_explanation_of_a_new_item_names_shared_attributes(train: Interactions) -> None:
    fitted = model().fit(train)
    themes = train.catalogue["themes"].to_list()
    alike = next(n for n in (1, 2, 3, 5, 6, 7) if set(themes[n]) & set(themes[17]))
    explanation = fitted.explain([f"i{alike}"], "i17")
    (shared,) = explanation.shared
    theme = sorted(set(themes[alike]) & set(themes[17]))[0]
    assert ("themes", theme) in shared
    assert fitted.explain(["i1"], "i2").shared is None


def test_similar_works_for_new_items(train: Interactions) -> None:
    fitted = model().fit(train)
    lists = fitted.similar(["i17", "i1"], k=5)
    assert all(len(items) == 5 for items in lists.items)
    assert lists.source == ["model", "model"]
    assert "i17" not in lists.items[0]


def test_a_new_item_in_a_history_counts_as_seen_and_as_what_it_is_like(
    train: Interactions,
) -> None:
    fitted = model().fit(train)
    (items,) = fitted.recommend([["i17"]], k=40).items
    assert "i17" not in items
    mixture = fitted._new_columns.term.mixtures.weights[:, [1]].toarray().ravel()
    row = eq.Interactions(mixture[None, :], items=train.items[:40].tolist())
    weighted = fitted.score(row)
    np.testing.assert_allclose(fitted.score([["i17"]]), weighted, rtol=1e-4, atol=1e-6)


def test_dial_scales_new_items_alone(train: Interactions) -> None:
    fitted = model().fit(train)
    rows = ["u1", "u2", "u3"]
    shown = [fitted.recommend(rows, k=40, new_items=dial) for dial in (0, 1, 3)]
    new = {"i4", "i17", "i30"}
    assert not new & {item for items in shown[0].items for item in items}
    places = [[items.index("i17") for items in lists.items] for lists in shown[1:]]
    assert all(high <= low for low, high in zip(*places, strict=True))
    assert shown[1].items == fitted.recommend(rows, k=40).items


def test_rank_obeys_the_dial(train: Interactions) -> None:
    fitted = model().fit(train)
    history = train.rows(np.arange(3))
    new = np.flatnonzero(train.item_counts == 0)
    assert np.isin(fitted.rank(history, 40).items, new).any()
    assert not np.isin(fitted.rank(history, 40, new_items=0).items, new).any()


def test_dial_needs_features(data: Interactions) -> None:
    with pytest.raises(eq.SettingError, match=r"fit it with features=eq\.Features\(\)"):
        model(None).fit(data).recommend(["u1"], new_items=2.0)


def test_item_without_a_description_is_never_listed(train: Interactions) -> None:
    blank = train.catalogue.with_columns(
        pl.when(pl.int_range(40) == 17).then(None).otherwise(pl.col(name)).alias(name)
        for name in train.catalogue.columns
    )
    fitted = model().fit(train._replace(catalogue=blank))
    lists = fitted.recommend(train.users.tolist(), k=40).items
    assert not any("i17" in items for items in lists)
    assert any("i4" in items for items in lists)


def test_automatic_settings_are_numbers_after_the_fit(train: Interactions) -> None:
    fitted = model(eq.Features()).fit(train)
    settings = vars(fitted.features_)
    assert "auto" not in settings.values()
    figures = fitted.item_features_.figures
    assert {"weight 0", "ridge", "nearest", "both", "scale 1"} <= set(figures)
    best = max(("ridge", "nearest", "both"), key=lambda name: figures[name])
    assert settings["map"] == best


def test_tune_searches_the_weight_of_features(data: Interactions) -> None:
    split = eq.split.strong(data, valid=0.2, test=0.1)
    tuned = eq.tune(model(), split, grid={"feature_strength": [0.0, 2.0]})
    assert tuned.trials["feature_strength"].to_list() == [0.0, 2.0]
    assert tuned.trials["ndcg@20"].n_unique() == 2
    assert tuned.model.features_.strength == tuned.trials.sort("ndcg@20")["feature_strength"][-1]


def test_a_search_leaves_automatic_settings_of_features_to_the_last_fit(
    train: Interactions,
) -> None:
    tuned = eq.tune(model(eq.Features()), train, grid={"l2": [5.0, 20.0]})
    assert "auto" not in vars(tuned.model.features_).values()
    lists = tuned.model.recommend(train.users.tolist(), k=40).items
    assert any("i17" in items for items in lists)


def test_pruned_and_halved_models_rank_new_items(train: Interactions) -> None:
    fitted = model().fit(train)
    full = fitted.score(train)
    for reduced in (fitted.prune(39), fitted.halve()):
        np.testing.assert_allclose(reduced.score(train), full, rtol=0.05, atol=2e-3)


def test_trend_of_a_new_item_is_that_of_similar_items(train: Interactions) -> None:
    times = np.arange(train.n_interactions, dtype=float) * 3600
    timed = Interactions(
        train.matrix, train.users, train.items, times=times, catalogue=train.catalogue
    )
    trended = eq.EASE(l2=5.0, features=SETTINGS, trend=eq.Trend()).fit(timed)
    counts = trended.trend_.all_counts
    assert (counts[[4, 17, 30]] > 0).all()
    assert counts[:4].tolist() == trended.trend_.counts[:4].tolist()
    lists = trended.recommend(timed.users.tolist(), k=20).items
    assert any("i17" in items for items in lists)


NEW = {
    "item": ["n1", "n2", "n3"],
    "title": ["The sun and the river 99", "The snow and the wind 98", None],
    "themes": [["sun", "river"], ["snow", "wind"], None],
    "price": [9.5, 12.0, None],
}


def test_added_items_rank_as_those_that_were_there_at_the_fit(
    data: Interactions, train: Interactions
) -> None:
    # the same three items, once as columns without users and once added later
    known = np.flatnonzero(train.item_counts > 0)
    frame = train.catalogue[[4, 17, 30]].insert_column(0, pl.Series("item", ["i4", "i17", "i30"]))
    added = model().fit(train.columns(known), dtype="float64").add_items(frame)
    at_fit = model().fit(train, dtype="float64")
    scores = pl.DataFrame(added.score(train), schema=added.item_index_.values.tolist())
    expected = at_fit.score(train)
    # the vocabulary of one knows three items more
    for item in ("i1", "i20", "i4", "i17"):
        ranked, of_features = (
            scores[item].to_numpy(),
            expected[:, at_fit.item_index_.position(item)],
        )
        assert np.corrcoef(ranked, of_features)[0, 1] > 0.95


def test_new_items_of_the_catalogue_are_there_after_the_fit(data: Interactions) -> None:
    full = data.with_catalogue(
        data.catalogue.clone()
        .insert_column(0, data.item_index.to_series().alias("item"))
        .vstack(pl.DataFrame(NEW, schema_overrides={"price": pl.Float64}))
    )
    assert full.new_items.height == 3
    fitted = model().fit(full)
    assert fitted.item_index_.values.tolist() == [*data.items.tolist(), "n1", "n2", "n3"]
    lists = fitted.recommend(data.users.tolist(), k=43).items
    shown = {item for items in lists for item in items}
    assert {"n1", "n2"} <= shown
    assert "n3" not in shown


def test_added_items_work_in_every_question(data: Interactions, tmp_path: Path) -> None:
    fitted = model().fit(data)
    before = fitted.score(data)
    fitted.add_items(pl.DataFrame(NEW))
    assert np.array_equal(fitted.score(data)[:, :40], before)
    lists = fitted.recommend(data, k=43, reasons=2)
    assert any("n1" in items for items in lists.items)
    assert fitted.recommend(["u1"], candidates=["n1", "i3"], k=2).items[0].count("n1") == 1
    assert "n1" not in fitted.recommend(["u1"], exclude=["n1"], k=43).items[0]
    assert fitted.recommend([["n1"]], k=3).source == ["model"]
    themed = fitted.recommend(["u1"], rules=eq.Rules(include={"themes": "sun"}), k=43)
    assert "n1" in themed.items[0]
    assert len(fitted.similar("n1", k=4).items[0]) == 4
    assert fitted.similar("n1").names == ["The sun and the river 99"]
    assert fitted.recommend_to(tmp_path / "lists.parquet", k=43) == data.n_users
    written = pl.read_parquet(tmp_path / "lists.parquet")
    assert "The sun and the river 99" in written["title"].to_list()
    fitted.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert again.item_index_.values.tolist() == fitted.item_index_.values.tolist()
    same = again.recommend(data, k=43)
    assert same.items == lists.items


def test_adding_an_item_again_replaces_its_attributes(data: Interactions) -> None:
    fitted = model().fit(data).add_items(NEW)
    first = fitted.score(data)
    fitted.add_items({"item": ["n3"], "themes": [["sun", "river"]]})
    second = fitted.score(data)
    assert np.array_equal(first[:, :42], second[:, :42])
    assert np.isneginf(first[:, 42]).all()
    assert np.isfinite(second[:, 42]).all()


def test_adding_attributes_of_a_known_item_leaves_scores_as_they_are(data: Interactions) -> None:
    fitted = model().fit(data)
    before = fitted.score(data)
    fitted.add_items({"item": ["i3"], "title": ["Another name"]})
    assert np.array_equal(fitted.score(data), before)
    assert fitted.interactions_.label("i3") == "Another name"


def test_added_item_becomes_known_by_an_update(data: Interactions, tmp_path: Path) -> None:
    fitted = model().fit(data, dtype="float64").add_items(NEW)
    fitted.update(added=eq.read([("u1", "n2"), ("u2", "n2"), ("new", "i3"), ("new", "n2")]))
    assert fitted.interactions_.items.tolist() == [*data.items.tolist(), "n2"]
    assert fitted.item_index_.values.tolist()[-2:] == ["n1", "n3"]
    assert fitted.item_counts_[40] == 3
    X = fitted.interactions_.matrix.toarray().astype(float)
    weights = fitted.normalizer_.user_weights(fitted.interactions_)
    F = fitted.item_features_.rows.toarray().astype(float)
    assert F[40].any()
    A = X.T @ (weights[:, None] * X) + 2.0 * F @ F.T + np.diag(fitted.penalty_)
    # F is stored in float32
    np.testing.assert_allclose(A @ fitted.inverse_, np.eye(41), atol=1e-6)


def test_update_takes_changed_attributes_of_known_items_into_the_solve(
    data: Interactions,
) -> None:
    fitted = model().fit(data, dtype="float64")
    before = fitted.item_features_.rows[[3]].toarray()
    fitted.add_items({"item": ["i3"], "themes": [["moon", "rain"]]})
    assert np.array_equal(fitted.item_features_.rows[[3]].toarray(), before)
    fitted.update(added=eq.read([("u1", "i5"), ("u2", "i5")]))
    assert not np.array_equal(fitted.item_features_.rows[[3]].toarray(), before)
    X = fitted.interactions_.matrix.toarray().astype(float)
    F = fitted.item_features_.rows.toarray().astype(float)
    weights = fitted.normalizer_.user_weights(fitted.interactions_)
    A = X.T @ (weights[:, None] * X) + 2.0 * F @ F.T + np.diag(fitted.penalty_)
    # F is stored in float32
    np.testing.assert_allclose(A @ fitted.inverse_, np.eye(40), atol=1e-6)


def test_a_failed_addition_leaves_the_model_as_it_was(data: Interactions) -> None:
    fitted = model().fit(data).add_items(NEW)
    before = dict(vars(fitted))
    with pytest.raises(eq.DataError):
        fitted.add_items({"item": ["n9"], "price": ["not a number"]})
    assert vars(fitted) == before


def test_items_are_added_to_models_with_features_alone(data: Interactions) -> None:
    with pytest.raises(eq.SettingError, match="has no features to describe new items"):
        model(None).fit(data).add_items(NEW)


def test_signals_and_new_items_go_together(data: Interactions) -> None:
    fitted = eq.EASE(l2=5.0, features=SETTINGS, signals=eq.Signals(transform="bm25")).fit(data)
    fitted.add_items(NEW)
    assert fitted.recommend([["n1", "i3"]], k=5).source == ["model"]
    assert "n2" in {item for items in fitted.recommend(data, k=43).items for item in items}


def test_features_need_a_catalogue(toy: Interactions) -> None:
    with pytest.raises(eq.DataError, match="features need a catalogue"):
        eq.EASE(features=eq.Features()).fit(toy)


def test_map_that_an_engine_cannot_give_is_refused_before_the_fit(data: Interactions) -> None:
    with pytest.raises(eq.SettingError, match='use map="nearest" or "auto"'):
        model().fit(data, engine="neighbourhood", neighbours=10)


def test_reuse_shares_the_solve_of_equal_features_only(data: Interactions) -> None:
    fitted = model().fit(data)
    again = model(family=eq.LAE).reuse(fitted)
    assert again.inverse_ is fitted.inverse_
    assert np.array_equal(
        again.rank(data, 5).items, model(family=eq.LAE).fit(data).rank(data, 5).items
    )
    for other in (None, dataclasses.replace(SETTINGS, strength=1.0)):
        with pytest.raises(eq.SettingError, match="reuse needs the same features"):
            model(other).reuse(fitted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta["state"]["features"]["settings"].update(map="auto"), "are damaged"),
        (lambda meta: meta["state"]["features"]["vocabulary"].update(level=0), "not positive"),
        (lambda meta: meta["state"]["features"]["settings"].update(mu=-1), "mu must be"),
        (lambda meta: meta["state"]["features"].pop("vocabulary"), "vocabulary' is missing"),
        (lambda meta: meta["state"].pop("features"), "'state.features' is missing"),
    ],
)
def test_damaged_features_are_refused(
    train: Interactions, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    folder = tmp_path / "model"
    model().fit(train).save(folder)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["meta"])
    del manifest["seal"]
    path.write_text(json.dumps(sealed(manifest)))
    with pytest.raises(eq.FileFormatError, match=message):
        eq.load(folder)


@pytest.mark.parametrize("name", ["features_idf", "features_columns", "features_rows_data"])
def test_damaged_arrays_of_features_are_refused(
    train: Interactions, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "model"
    model().fit(train).save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    file = folder / manifest["files"][name]["file"]
    array = np.load(file).copy()
    array.flat[0] = np.nan
    np.save(file, array)
    with pytest.raises(eq.FileFormatError):
        eq.load(folder)


def test_ids_may_be_in_a_column_of_any_name(data: Interactions) -> None:
    fitted = model().fit(data)
    fitted.add_items({"code": ["n5"], "themes": [["sun"]], "title": ["A sun"]}, id="code")
    assert "n5" in fitted.item_index_.values
