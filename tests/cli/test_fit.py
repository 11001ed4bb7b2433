from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Answer, Run

import equipoise as eq


@pytest.mark.parametrize(
    ("options", "model"),
    [
        (["--l2", 5], eq.EASE(l2=5.0)),
        (["-m", "lae", "--l2", 5, "-n", "sym", "--dropout", 0.4], None),
        (["-m", "rlae", "--diag-bound", 0.3], eq.RLAE(diag_bound=0.3)),
        (["-m", "edlae"], eq.EDLAE()),
        (["-m", "dlae", "--dropout", 0.2], eq.DLAE(dropout=0.2)),
        (["-m", "rdlae", "-n", "rw"], eq.RDLAE(normalizer=eq.RandomWalk())),
        (["-n", "col", "--gamma", 0.2], eq.EASE(dropout="auto", normalizer=eq.ColumnNorm(0.2))),
        (["-n", "user", "--beta", 0.2], eq.EASE(dropout="auto", normalizer=eq.UserNorm(0.2))),
        (["-n", "item", "--alpha", 0.2], eq.EASE(dropout="auto", normalizer=eq.ItemNorm(0.2))),
        (["-n", "dan", "--alpha", 0.2], eq.EASE(dropout="auto", normalizer=eq.DAN(0.2, "auto"))),
        (["-m", "popularity"], eq.Popularity()),
        (
            ["-m", "item-knn", "--set", "shrink=3", "--neighbours", 4],
            eq.ItemKNN(neighbours=4, shrink=3),
        ),
        (["-m", "gf-cf", "--set", "n_factors=3"], eq.GFCF(n_factors=3)),
        (
            ["-m", "bspm", "--set", "n_factors=3", "--set", "solver=rk4"],
            eq.BSPM(n_factors=3, solver="rk4"),
        ),
        (["-m", "turbo-cf", "--set", "user-exponent=0.6"], eq.TurboCF(user_exponent=0.6)),
        (["-m", "svd-ae", "--set", "n_factors=2"], eq.SVDAE(n_factors=2)),
        (["-m", "sgfcf", "--set", "n_factors=2"], eq.SGFCF(n_factors=2)),
        (
            ["--l2", 5, "--set", "lowpass.rank=2", "--set", "lowpass.strength=0.3"],
            eq.EASE(l2=5.0, lowpass=eq.LowPass(rank=2, strength=0.3)),
        ),
    ],
)
def test_options_describe_the_model(
    options: list[Any], model: Any, tmp_path: Path, answer: Answer
) -> None:
    if model is None:
        model = eq.LAE(l2=5.0, dropout=0.4, normalizer=eq.Symmetric())
    document = answer("fit", "split", tmp_path / "model", *options, "--no-search")
    assert document["settings"] == model.settings()
    assert eq.load(tmp_path / "model").settings() == model.settings()


def test_fit_on_a_split_uses_its_train_part(shop: Path, run: Run, tmp_path: Path) -> None:
    done = run("fit", "split", tmp_path / "model")
    train = eq.Split.load(shop / "split").train
    assert eq.load(tmp_path / "model").data_fingerprint_ == train.fingerprint
    assert "using the train part of the split" in done.stderr


def test_fit_in_float64_is_saved_so(run: Run, tmp_path: Path) -> None:
    run("fit", "split", tmp_path / "model", "--dtype", "float64", "--threads", 1)
    assert eq.load(tmp_path / "model").inverse_.dtype == np.float64


def test_half_saves_16_bits(answer: Answer, run: Run, tmp_path: Path) -> None:
    document = answer("fit", "split", tmp_path / "model", "--l2", 5, "--half")
    model = eq.load(tmp_path / "model")
    assert model.inverse_.values.dtype == np.int16
    assert document["loss"] == model.loss_
    done = run("fit", "split", tmp_path / "other", "--model", "popularity", "--half")
    assert done.exit_code == 2
    assert "--half is for linear autoencoders, not Popularity" in done.stderr


def test_a_fit_that_is_too_large_names_an_engine_that_fits(run: Run, tmp_path: Path) -> None:
    done = run("fit", "split", tmp_path / "model", "--memory", "1KB")
    assert done.exit_code == 1
    assert "10 items need" in done.stderr
    assert not (tmp_path / "model").exists()


def test_automatic_exponents_are_printed(run: Run, tmp_path: Path) -> None:
    done = run("fit", "split", tmp_path / "model", "-n", "dan", "--no-search")
    assert "automatic settings: EASE l2=" in done.stderr
    assert "DAN(alpha=0." in done.stderr


def test_plan_tells_bytes_and_verdict(run: Run, answer: Answer) -> None:
    sizes = ["--users", 1000, "--items", 40_981, "--interactions", 1_000_000, "--engine", "dense"]
    document = answer("plan", *sizes, "--memory", "6GB")
    assert document["peak_bytes"] > 4 * 40_981**2
    assert document["fits"] is False
    assert "does not fit: 40,981 items need" in run("plan", *sizes, "--memory", "6GB").stdout
    assert answer("plan", "events.csv")["fits"] is True


def test_plan_suggests_a_command(run: Run, answer: Answer) -> None:
    sizes = ["--users", 90_000, "--items", 60_000, "--interactions", 1_000_000, "--memory", "6GB"]
    done = run("plan", *sizes, "--engine", "dense")
    assert "; --engine tiled fits on --device cpu (" in done.stdout
    assert "--engine tiled" in answer("plan", *sizes, "--engine", "dense")["nearest"]
    done = run("plan", *sizes[:-1], "1MB", "--engine", "dense")
    assert "items with --min-item" in done.stdout
    assert "=" not in done.stdout


def test_update_equals_a_refit(shop: Path, answer: Answer, tmp_path: Path) -> None:
    out = tmp_path / "model"
    document = answer("update", "model", "--add", "new.csv", "--out", out)
    train = eq.Split.load(shop / "split").train
    changed = train.union(eq.read(shop / "new.csv", on_bad="skip"))
    assert document["users"] == train.n_users + 1
    refit = eq.EASE(l2=5.0, dropout=0.0).fit(changed)
    histories = [["tea"], ["fig", "jam"]]
    assert eq.load(out).recommend(histories).items == refit.recommend(histories).items


def test_a_user_named_twice_is_forgotten_once(shop: Path, answer: Answer, tmp_path: Path) -> None:
    before = eq.load(shop / "model").interactions_
    first = str(before.users[0])
    out = tmp_path / "smaller"
    answer("update", "model", "--forget", first, "--forget", first, "--out", out)
    assert eq.load(out).interactions_.n_users == before.n_users - 1


def test_update_forgets_and_removes(shop: Path, answer: Answer, tmp_path: Path) -> None:
    train = eq.Split.load(shop / "split").train
    first, second = train.users[:2].tolist()
    item = train.history(second)[0]
    (tmp_path / "gone.csv").write_text(f"user_id,item_id\n{second},{item}\n")
    out = tmp_path / "model"
    answer("update", "model", "--forget", first, "--remove", tmp_path / "gone.csv", "--out", out)
    left = eq.load(out).interactions_
    assert first not in left.user_index
    assert item not in left.history(second)
    assert left.n_interactions == train.n_interactions - len(train.history(first)) - 1


def test_update_works_in_place(answer: Answer, tmp_path: Path) -> None:
    answer("fit", "split", tmp_path / "model")
    before = eq.load(tmp_path / "model").interactions_.n_users
    answer("update", tmp_path / "model", "--add", "new.csv")
    assert eq.load(tmp_path / "model").interactions_.n_users == before + 1


def test_a_yardstick_is_updated_by_a_new_fit(run: Run, tmp_path: Path) -> None:
    run("fit", "split", tmp_path / "model", "-m", "popularity")
    done = run("update", tmp_path / "model", "--add", "new.csv")
    assert done.exit_code == 0
    assert "new" in eq.load(tmp_path / "model").interactions_.users


def test_without_options_settings_are_chosen_and_printed(
    run: Run, tmp_path: Path, shop: Path
) -> None:
    done = run("fit", "events.csv", tmp_path / "model", "--criterion", "leave-one-out")
    assert done.exit_code == 0, done.output
    model = eq.load(tmp_path / "model")
    assert "chosen: of 336 settings" in done.stdout
    assert "on new users: ndcg@20 0." in done.stdout
    assert model.estimate_ is not None
    assert model.data_fingerprint_ == eq.read(shop / "events.csv").fingerprint


def test_a_fit_that_chooses_answers_in_json(answer: Answer, tmp_path: Path) -> None:
    document = answer("fit", "split", tmp_path / "model", "--trials", 2, "--prefer", "accuracy")
    assert document["solves"] == 2
    assert document["estimate"]["metric"] == "ndcg@20"
    assert document["estimate"]["error"] > 0
    assert document["chosen"].endswith("the best ndcg@20")


def test_settings_without_an_option_are_searched_and_printed(
    run: Run, answer: Answer, tmp_path: Path
) -> None:
    options = ("--model", "rlae", "--l2", 5, "--alpha", 0.2, "--prefer", "tail")
    document = answer("fit", "split", tmp_path / "model", *options)
    model = eq.load(tmp_path / "model")
    assert (type(model), model.l2, model.normalizer.alpha) == (eq.RLAE, 5.0, 0.2)
    assert document["solves"] == 5
    assert document["searched"] == ["beta", "dropout", "diag_bound"]
    names = {"l2": "--l2 5", "alpha": "--alpha 0.2", "family": "--model rlae"}
    assert document["fixed"] == names
    assert document["estimate"]["value"] > 0
    done = run("fit", "split", tmp_path / "other", "--l2", 5, "--trials", 1)
    assert done.exit_code == 0, done.output
    assert "searched with 1 solve: family, alpha, beta, dropout, diag_bound" in done.stdout
    assert "set by options: --l2 5" in done.stdout
    options = ("--l2", 5, "--dropout", 0, "-n", "dan", "--decay", "30d", "--trials", 1)
    document = answer("fit", "split", tmp_path / "third", *options)
    assert document["searched"] == ["alpha", "beta"]
    assert document["fixed"]["family"].startswith("ease")
    assert document["fixed"]["decay"] == "--decay 30d"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--l2", 5, "--dropout", 0], "options set every setting"),
        (["--l2", 5, "--no-search"], "--no-search"),
        (["--refine"], "--refine is for a single fit"),
        (["--engine", "neighbourhood"], "equipoise tune SPLIT OUT --engine neighbourhood"),
        (["--model", "item-knn"], "equipoise tune SPLIT OUT --family item-knn"),
    ],
)
def test_a_fit_that_searches_nothing_says_why(
    options: list[Any], reason: str, run: Run, tmp_path: Path
) -> None:
    done = run("fit", "split", tmp_path / "model", *options)
    assert done.exit_code == 0, done.output
    assert "no search: " in done.stderr
    assert reason in done.stderr
    assert eq.load(tmp_path / "model").estimate_ is None
    done = run("fit", "split", tmp_path / "other", *options, "--prefer", "tail")
    assert done.exit_code == 2
    assert "--prefer is for a search, and nothing is searched" in done.stderr


@pytest.fixture
def hours(tmp_path: Path) -> Path:
    """A table of hours that say nothing about taste: few pairs have nearly all of them."""
    rng = np.random.default_rng(2)
    lines = ["user,item,hours"]
    for user in range(120):
        low = 10 * (user % 2)
        for item in rng.choice(np.arange(low, low + 14), size=7, replace=False):
            lines.append(f"{user},{item},{np.exp(4 * rng.standard_normal()):.4f}")
    path = tmp_path / "hours.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_weights_are_compared_and_the_choice_is_printed(
    hours: Path, run: Run, answer: Answer, tmp_path: Path
) -> None:
    done = run("fit", hours, tmp_path / "model", "--weight", "hours", "--prefer", "accuracy")
    assert done.exit_code == 0, done.output
    model = eq.load(tmp_path / "model")
    assert model.signals.transform in ("binary", "log1p")
    assert f"weights: {model.signals.transform} was chosen; ndcg@20" in done.stdout
    assert "weights (transform)" in done.stdout
    plain = run("fit", hours, tmp_path / "raw", "--weight", "hours", "--no-search")
    assert eq.load(tmp_path / "raw").signals is None
    assert "weights are used as they are; --signals log1p or binary" in plain.stderr
    named = answer("fit", hours, tmp_path / "log", "--weight", "hours", "--signals", "log1p")
    assert named["fixed"] == {"transform": "--signals log1p"}
    assert eq.load(tmp_path / "log").signals.transform == "log1p"
    fixed = ("--l2", 5, "--dropout", 0.2, "--json")
    assert run("fit", hours, tmp_path / "l2", "--weight", "hours", *fixed).exit_code == 0
    assert eq.load(tmp_path / "l2").signals.transform != "sum"


def test_signals_can_be_set_by_name(answer: Answer, run: Run, tmp_path: Path) -> None:
    options = ("--set", "decay=30d", "--set", "floor=0", "--set", "transform=count")
    answer("fit", "events.csv", tmp_path / "model", "--no-search", *options)
    expected = eq.Signals(transform="count", decay="30d", floor=0)
    assert eq.load(tmp_path / "model").signals == expected
    answer("fit", "events.csv", tmp_path / "zero", "--no-search", "--decay", "30d", "--floor", 0)
    assert eq.load(tmp_path / "zero").signals.floor == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "fit events.csv {new} --decay 14",
            "--decay 14 has no unit; write 14d for days, 14s for seconds",
        ),
        (
            "fit events.csv {new} --set decay=14",
            "--decay 14 has no unit; write 14d for days, 14s for seconds",
        ),
        (
            "fit events.csv {new} --budget 10",
            "--budget 10 has no unit; write 10d for days, 10s for seconds",
        ),
        ("fit events.csv {new} --model eese", "Did you mean 'ease'?"),
        ("tune split {new} --family eese", "did you mean 'ease'?"),
        ("evaluate split --model gfcf", "Did you mean 'gf-cf'?"),
    ],
)
def test_a_misspelled_value_gets_a_suggestion(
    command: str, message: str, run: Run, tmp_path: Path
) -> None:
    done = run(*command.format(new=tmp_path / "new").split())
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("form", ["with", "beside", "none"])
def test_training_data_go_where_the_option_says(run: Run, tmp_path: Path, form: str) -> None:
    out = tmp_path / "model"
    run("fit", "split", out, "--no-search", "--l2", 5, "--data", form)
    assert bool(list(out.glob("block_*"))) == (form == "beside")
    assert eq.load(out).data_.in_memory == (form == "with")
