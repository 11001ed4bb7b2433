"""What holds for all neural models: training, stopping, resuming, saving, tuning."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.neural_cases import CASES, GRAPH, clustered
from tests.mutants import mutants, write

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.split.parts import Split
from equipoise.errors import (
    DataError,
    EquipoiseError,
    FileFormatError,
    MissingExtraError,
    SettingError,
    SolveError,
)
from equipoise.models.neural.base import Epoch, NeuralModel

torch = pytest.importorskip("torch")


@pytest.fixture(params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def split() -> Split:
    return eq.split.weak(clustered(), valid=0.2, test=0.2)


@pytest.fixture(scope="module")
def fitted(split: Split) -> dict[str, NeuralModel]:
    return {
        name: make().fit(split.train, valid=split.valid, threads=1) for name, make in CASES.items()
    }


def same_arrays(one: NeuralModel, two: NeuralModel) -> bool:
    names = set(one.arrays_) | set(two.arrays_)
    return all(np.array_equal(one.arrays_[name], two.arrays_[name]) for name in names)


LONGER = {
    "MultVAE": {"epochs": 40, "learning_rate": 3e-3, "hidden": 64, "latent": 16},
    "LightGCN": {"epochs": 15, "learning_rate": 1e-2, "n_factors": 16},
    "XSimGCL": {"epochs": 15, "learning_rate": 1e-2, "n_factors": 16, "strength": 0.05},
}


def test_training_lowers_the_loss_and_beats_popularity(name: str, split: Split) -> None:
    model = CASES[name](**LONGER[name]).fit(split.train, valid=split.valid, threads=1)
    losses = [entry["loss"] for entry in model.history_]
    assert losses[-1] < losses[0]
    popular = eq.evaluate(eq.Popularity().fit(split.train), split.test, bootstrap=0)
    result = eq.evaluate(model, split.test, bootstrap=0)
    assert result["ndcg@20"] > 1.3 * popular["ndcg@20"]


@pytest.fixture(params=["small", pytest.param("ml-latest-small", marks=pytest.mark.data)])
def ratings(request: pytest.FixtureRequest, shared_data: Path, tmp_path: Path) -> Path:
    """A table of ratings as MovieLens has it: the real one, or one of users in groups."""
    if request.param != "small":
        return shared_data / request.param / "ratings.csv"
    liked = clustered()
    rows = [f"{user},{item},5.0,9" for user, item in zip(*liked.matrix.nonzero(), strict=True)]
    rows += [f"{user},{user % liked.n_items},2.0,9" for user in range(liked.n_users)]
    file = tmp_path / "ratings.csv"
    file.write_text("userId,movieId,rating,timestamp\n" + "\n".join(dict.fromkeys(rows)))
    return file


def test_models_beat_popularity_on_a_table_of_ratings(name: str, ratings: Path) -> None:
    data = eq.read(ratings, min_rating=4)
    part = eq.split.weak(data.filter(min_user=5, min_item=20), test=0.2)
    options: dict[str, Any] = {**LONGER[name], "batch_size": 100 if name == "MultVAE" else 512}
    options["epochs"] = 20 if name == "MultVAE" else 4
    model = CASES[name](**options).fit(part.train, threads=1)
    popular = eq.evaluate(eq.Popularity().fit(part.train), part.test, bootstrap=0)
    assert eq.evaluate(model, part.test, bootstrap=0)["ndcg@20"] > popular["ndcg@20"]


def test_same_seed_gives_the_same_bits_and_another_does_not(name: str, split: Split) -> None:
    one, two, other = (
        CASES[name](seed=seed, epochs=2).fit(split.train, threads=1) for seed in (5, 5, 6)
    )
    assert same_arrays(one, two)
    assert not same_arrays(one, other)


def test_metrics_in_training_agree_with_evaluate(
    name: str, fitted: dict[str, NeuralModel], split: Split
) -> None:
    model = fitted[name]
    best = model.history_[model.epoch_ - 1]
    result = eq.evaluate(model, split.valid, bootstrap=0)
    assert best["recall"] == pytest.approx(result["recall@20"], abs=2e-3)  # near-equal scores
    assert best["ndcg"] == pytest.approx(result["ndcg@20"], abs=2e-3)


def test_best_epoch_is_kept_and_training_stops_without_gain(name: str, split: Split) -> None:
    model = CASES[name](epochs=60, patience=2, learning_rate=0.05)
    model.fit(split.train, valid=split.valid, threads=1)
    seen = [entry["ndcg"] for entry in model.history_]
    assert model.epoch_ == 1 + int(np.argmax(seen))
    assert len(seen) == model.epoch_ + 2 < 60
    shorter = CASES[name](epochs=60, patience=2, learning_rate=0.05)
    shorter.fit(split.train, threads=1, progress=lambda epoch: epoch.epoch == model.epoch_)
    assert same_arrays(shorter, model)


def test_last_epoch_is_kept_without_a_validation_part(name: str, split: Split) -> None:
    seen: list[Epoch] = []
    model = CASES[name](epochs=3).fit(split.train, threads=1, progress=seen.append)
    assert model.epoch_ == 3
    assert [(epoch.epoch, epoch.epochs, epoch.ndcg) for epoch in seen] == [
        (n, 3, None) for n in (1, 2, 3)
    ]


class Interrupted(Exception):
    """Stands for a killed process."""


def test_resumed_run_equals_an_uninterrupted_one(name: str, split: Split, tmp_path: Path) -> None:
    def stop(epoch: Epoch) -> None:
        if epoch.epoch == 5:
            raise Interrupted

    options: dict[str, Any] = {"valid": split.valid, "threads": 1}
    uninterrupted = CASES[name](epochs=7, patience=None).fit(split.train, **options)
    options.update(checkpoint=tmp_path / "state", checkpoint_every=2)
    with pytest.raises(Interrupted):
        CASES[name](epochs=7, patience=None).fit(split.train, progress=stop, **options)
    seen: list[int] = []
    again = CASES[name](epochs=7, patience=None)
    again.fit(split.train, progress=lambda epoch: seen.append(epoch.epoch), **options)
    assert seen == [5, 6, 7]
    assert same_arrays(again, uninterrupted)
    assert again.history_ == uninterrupted.history_
    assert again.epoch_ == uninterrupted.epoch_
    finished = CASES[name](epochs=7, patience=None).fit(split.train, **options)
    assert same_arrays(finished, uninterrupted)


def test_checkpoint_of_other_settings_or_data_is_refused(split: Split, tmp_path: Path) -> None:
    make, state = CASES["LightGCN"], tmp_path / "state"
    make(epochs=1).fit(split.train, checkpoint=state, threads=1)
    with pytest.raises(DataError, match=r"another fit: its settings\.epochs is 1, not 2"):
        make(epochs=2).fit(split.train, checkpoint=state, threads=1)
    with pytest.raises(DataError, match="another fit: its data is"):
        make(epochs=1).fit(split.train.rows(np.arange(150)), checkpoint=state, threads=1)
    with pytest.raises(DataError, match="another fit: its validation is"):
        make(epochs=1).fit(split.train, valid=split.valid, checkpoint=state, threads=1)
    model = make(epochs=2).fit(split.train, checkpoint=state, resume=False, threads=1)
    assert len(model.history_) == 2


@pytest.mark.parametrize("resume", [True, False])
def test_a_checkpoint_that_could_not_be_written_is_refused_before_training(
    split: Split, tmp_path: Path, resume: bool
) -> None:
    file, folder, model = tmp_path / "notes", tmp_path / "letters", tmp_path / "model"
    file.write_text("a note")
    folder.mkdir()
    (folder / "letter.txt").write_text("a letter")
    eq.Popularity().fit(split.train).save(model)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for path in (file, folder, model):
        with pytest.raises(DataError, match=f"{path.name} (is a file|exists and is not|holds)"):
            CASES["LightGCN"](epochs=2).fit(
                split.train, checkpoint=path, resume=resume, threads=1, progress=pytest.fail
            )
    assert {path: path.read_bytes() for path in before} == before


def test_damaged_checkpoint_is_refused(split: Split, tmp_path: Path) -> None:
    make, state = CASES["LightGCN"], tmp_path / "state"
    make(epochs=1).fit(split.train, checkpoint=state, threads=1)
    manifest = json.loads((state / "manifest.json").read_text())
    (state / "manifest.json").write_text(
        json.dumps({**manifest, "meta": {**manifest["meta"], "history": 3}})
    )
    with pytest.raises(FileFormatError, match="damaged"):
        make(epochs=1).fit(split.train, checkpoint=state, threads=1)
    next(state.glob("now_table-*")).write_bytes(b"nonsense")
    with pytest.raises(FileFormatError):
        make(epochs=1).fit(split.train, checkpoint=state, threads=1)


def test_checkpoint_with_any_field_damaged_is_refused_or_goes_on(
    split: Split, tmp_path: Path
) -> None:
    state, few = tmp_path / "state", split.train.rows(np.arange(20))

    def train() -> NeuralModel:
        return CASES["LightGCN"](epochs=1).fit(few, checkpoint=state, threads=1)

    train()
    sound = json.loads((state / "manifest.json").read_text())
    for place in ("epoch", "update", "best_epoch", "without_gain", "history"):
        for _, mutant in mutants(sound, ("meta", place)):
            write(state / "manifest.json", mutant)
            with suppress(EquipoiseError):
                assert len(train().score(few)) == 20
            write(state / "manifest.json", sound)


@pytest.mark.parametrize("name", GRAPH)
def test_graph_models_refuse_users_without_vectors(
    name: str, fitted: dict[str, NeuralModel]
) -> None:
    strong = eq.split.strong(clustered(), valid=0.1, test=0.1)
    with pytest.raises(
        DataError, match=f"{name} ranks only for the users and histories it was fitted on"
    ):
        fitted[name].recommend([[0, 1, 2, 3, 59]])
    model = CASES[name](epochs=1).fit(strong.train, threads=1)
    with pytest.raises(DataError, match="only for the users and histories it was fitted on"):
        eq.evaluate(model, strong.test, bootstrap=0)
    with pytest.raises(DataError, match=f"{name} has vectors only for users who are"):
        CASES[name]().fit(strong.train, valid=strong.valid)


def test_multvae_ranks_for_users_outside_the_training_data() -> None:
    split = eq.split.strong(clustered(), valid=0.2, test=0.1)
    model = CASES["MultVAE"]().fit(split.train, valid=split.valid, threads=1)
    best = model.history_[model.epoch_ - 1]
    result = eq.evaluate(model, split.valid, bootstrap=0)
    assert best["recall"] == pytest.approx(result["recall@20"], abs=2e-3)  # near-equal scores
    assert best["ndcg"] == pytest.approx(result["ndcg@20"], abs=2e-3)
    assert np.isfinite(model.score([[0, 3], [59]])).all()


def test_a_loss_that_is_not_a_number_is_an_error(split: Split) -> None:
    model = eq.MultVAE(hidden=8, latent=4, learning_rate=1e6, epochs=20, dropout=0.0)
    with pytest.raises(SolveError, match="lower learning_rate"):
        model.fit(split.train, threads=1)


def test_missing_torch_names_the_extra(
    name: str, toy: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'equipoise\[neural\]'"):
        CASES[name]().fit(toy)


def test_what_was_learned_is_saved_and_ranks_without_torch(
    name: str, fitted: dict[str, NeuralModel], split: Split, tmp_path: Path
) -> None:
    model = fitted[name]
    model.save(tmp_path / "model")
    loaded = eq.load(tmp_path / "model")
    assert (loaded.epoch_, loaded.history_) == (model.epoch_, model.history_)
    np.testing.assert_array_equal(loaded.score(split.train), model.score(split.train))
    code = (
        "import sys; sys.modules['torch'] = None; import equipoise as eq; "
        "print(eq.load(sys.argv[1]).recommend(['u7'], k=5).items[0])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(model.recommend(["u7"], k=5).items[0])


def test_scores_have_no_explanation_and_no_dial(name: str, fitted: dict[str, NeuralModel]) -> None:
    with pytest.raises(DataError, match=f"{name} cannot explain a score"):
        fitted[name].explain("u1", 3)
    with pytest.raises(SettingError, match="no popularity dial"):
        fitted[name].recommend(["u1"], alpha=0.5)


def test_each_model_has_a_space_to_tune(name: str) -> None:
    pytest.importorskip("optuna")
    split = eq.split.weak(clustered(40, 15), valid=0.2, test=0.2)
    prototype = getattr(eq, name)(epochs=2)  # sizes and the other settings are the defaults
    tuned = eq.tune(prototype, split, trials=2, seed=0, threads=1)
    assert tuned.trials.height == 2
    space = tuned.model.search_space
    assert all(getattr(tuned.model, name) in values for name, values in space.items())


def test_a_refit_on_all_data_trains_as_long_as_was_best_on_the_valid_part(split: Split) -> None:
    model = CASES["MultVAE"](epochs=6, evaluate_every=1)
    options: dict[str, Any] = {"grid": {"learning_rate": [0.05]}, "threads": 1}
    on_train = eq.tune(model, split, **options).model
    refit = eq.tune(model, split, refit="all", **options).model
    assert refit.epoch_ == len(refit.history_) == on_train.epoch_
    assert all(entry["ndcg"] is None for entry in refit.history_)
    assert refit.data_.n_interactions > on_train.data_.n_interactions


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        (CASES, {"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
        (CASES, {"epochs": 1.5}, "epochs must be a whole number"),
        (CASES, {"patience": 0}, "patience must be a whole number >= 1"),
        (CASES, {"seed": -1}, "seed must be a whole number >= 0"),
        (CASES, {"learning_rate": 0.0}, "learning_rate must be > 0"),
        (CASES, {"evaluate_every": True}, "evaluate_every must be a whole number"),
        (["MultVAE"], {"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        (["MultVAE"], {"annealing": 1.5}, r"annealing must lie in \[0, 1\], got 1.5"),
        (["MultVAE"], {"beta": -0.1}, "beta must be >= 0"),
        (["MultVAE"], {"hidden": 0}, "hidden must be a whole number >= 1"),
        (["MultVAE"], {"latent": 2.5}, "latent must be a whole number >= 1"),
        (GRAPH, {"layers": 0}, "layers must be a whole number >= 1"),
        (GRAPH, {"n_factors": 0}, "n_factors must be a whole number >= 1"),
        (GRAPH, {"l2": -0.1}, "l2 must be >= 0"),
        (["XSimGCL"], {"view": 4}, "view must be a whole number from 1 to 3, got 4"),
        (["XSimGCL"], {"temperature": 0.0}, "temperature must be > 0"),
        (["XSimGCL"], {"strength": -1.0}, "strength must be >= 0"),
        (["XSimGCL"], {"noise": -1.0}, "noise must be >= 0"),
    ],
)
def test_settings_outside_their_range_are_refused(
    models: Any, settings: dict[str, Any], message: str
) -> None:
    for name in models:
        with pytest.raises(SettingError, match=message):
            CASES[name](**settings)


def test_data_that_cannot_be_fitted_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="needs Interactions"):
        CASES[name]().fit([[1, 0]])
    with pytest.raises(SettingError, match=r"as split\.valid, got Interactions"):
        CASES[name]().fit(clustered(), valid=clustered())
    with pytest.raises(DataError, match="at least one interaction"):
        CASES[name]().fit(Interactions(np.zeros((2, 3), np.float32)))
    with pytest.raises(SettingError, match="device must be"):
        CASES[name]().fit(clustered(), device="abacus")
    with pytest.raises(SettingError, match="checkpoint_every"):
        CASES[name]().fit(clustered(), checkpoint_every=0)


@pytest.mark.gpu
def test_training_on_a_gpu_gives_about_the_same_quality(name: str, split: Split) -> None:
    model = CASES[name](**LONGER[name]).fit(split.train, valid=split.valid, device="cuda")
    popular = eq.evaluate(eq.Popularity().fit(split.train), split.test, bootstrap=0)
    result = eq.evaluate(model, split.test, bootstrap=0)
    assert result["ndcg@20"] > 1.3 * popular["ndcg@20"]
