"""Saved models: readable for ever, and refused when tampered with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.data import storage
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, FileFormatError
from equipoise.evaluation.results import Result
from equipoise.models.saving import build

GOLDEN = Path(__file__).parent / "golden-model-v1"
COUNTED = Path("/proc/self/io")


@pytest.fixture
def saved(toy: Interactions, tmp_path: Path) -> Path:
    eq.EASE(l2=1.0, dropout=0.3, normalizer=eq.DAN(0.2, 0.3)).fit(toy).save(tmp_path / "m")
    return tmp_path / "m"


def bytes_read() -> int:
    """Bytes that this process has read from files so far; mapped ones do not count."""
    return int(COUNTED.read_text().split("rchar:")[1].split()[0])


def edit(path: Path, change) -> None:
    """Change the manifest in place."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def replace_array(path: Path, name: str, array: np.ndarray, *, pickled: bool = False) -> None:
    """Put another array in the place of a file, with a manifest that agrees with it."""
    import hashlib

    manifest = json.loads((path / "manifest.json").read_text())
    file = path / manifest["files"][name]["file"]
    np.save(file, array, allow_pickle=pickled)
    manifest["files"][name]["bytes"] = file.stat().st_size
    manifest["files"][name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_golden_model_of_format_1_still_answers_the_same() -> None:
    model = eq.load(GOLDEN, verify=True)
    expected = json.loads((GOLDEN.parent / "golden-model-v1.json").read_text())
    # later versions may know more settings, the recorded ones stay
    assert expected["settings"].items() <= model.settings().items()
    lists = model.recommend(model.interactions_, k=2)
    assert lists.items == expected["items"]
    np.testing.assert_allclose(
        np.concatenate(lists.scores), np.concatenate(expected["scores"]), rtol=1e-5
    )


@pytest.mark.parametrize("kind", [eq.DLAE, eq.EDLAE, eq.RDLAE])
def test_denoising_forms_keep_their_name_on_disk(
    tmp_path: Path, toy: Interactions, kind: type[eq.LAE]
) -> None:
    model = kind(l2=2.0, dropout=0.3).fit(toy)
    model.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert type(again) is kind
    assert again.settings() == model.settings()
    np.testing.assert_array_equal(again.weights_, model.weights_)


def test_attributes_and_titles_survive(tmp_path: Path, toy: Interactions) -> None:
    import polars as pl

    catalogue = pl.DataFrame({"title": ["Tea", "Milk", None, "Rice"]})
    data = Interactions(toy.matrix, toy.users, toy.items, catalogue=catalogue)
    model = eq.EASE(l2=1.0).fit(data)
    model.save(tmp_path / "m")
    lists = eq.load(tmp_path / "m").recommend([["tea"]], k=3)
    assert set(lists.titles[0]) == {"Milk", "salt", "Rice"}
    reason = eq.load(tmp_path / "m").explain(["tea", "milk"], "rice")
    assert set(reason.titles) == {"Tea", "Milk"}


def test_save_replaces_an_earlier_model(saved: Path, toy: Interactions) -> None:
    eq.LAE(l2=9.0).fit(toy).save(saved)
    assert eq.load(saved).settings()["model"] == "LAE"
    names = {
        entry["file"]
        for entry in json.loads((saved / "manifest.json").read_text())["files"].values()
    }
    arrays = {file.name for file in saved.iterdir() if file.suffix in (".npy", ".parquet")}
    assert arrays == names


def test_custom_weights_survive(tmp_path: Path, toy: Interactions) -> None:
    norm = eq.CustomNorm(items=[1.0, 2.0, 0.5, 1.5])
    model = eq.LAE(l2=1.0, normalizer=norm).fit(toy)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(eq.load(tmp_path / "m").weights_, model.weights_)


def test_weights_of_any_number_of_users_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "LARGEST_MANIFEST", 10_000)
    rng = np.random.default_rng(0)
    data = Interactions((rng.random((3000, 4)) < 0.5).astype(np.float32))
    norm = eq.CustomNorm(users=rng.random(3000) + 0.5)
    model = eq.LAE(l2=1.0, normalizer=norm).fit(data)
    model.save(tmp_path / "m")
    back = eq.load(tmp_path / "m")
    assert back.settings() == model.settings()
    np.testing.assert_array_equal(back.normalizer_.users, norm.users)
    np.testing.assert_array_equal(back.weights_, model.weights_)
    result = eq.evaluate(model, eq.split.weak(data).test, 2, bootstrap=0)
    result.save(tmp_path / "r")
    assert Result.load(tmp_path / "r").settings == result.settings


def test_a_model_that_could_not_be_loaded_does_not_replace_one_that_can(
    saved: Path, toy: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(file.name for file in saved.iterdir())

    class Forgetful(eq.Popularity):
        def _restore(self, state, stored) -> None:
            raise KeyError("what was it")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "LARGEST_MANIFEST", 5000)
        noted = Interactions(toy.matrix, toy.users, toy.items, notes=["a note "] * 1000)
        with pytest.raises(DataError, match="larger than any manifest; nothing was changed"):
            eq.LAE(l2=1.0).fit(noted).save(saved)
    with pytest.raises(DataError, match=r"could not be loaded again.*nothing was changed"):
        Forgetful().fit(toy).save(saved)
    unfit = eq.LAE(l2=1.0).fit(toy)
    unfit.inverse_ = np.full((4, 4), np.nan)
    with pytest.raises(DataError, match=r"'inverse' holds NaN.*nothing was changed"):
        unfit.save(saved)
    assert sorted(file.name for file in saved.iterdir()) == before
    assert eq.load(saved, verify=True).settings()["model"] == "EASE"


def test_a_class_that_takes_the_name_of_another_is_not_saved(
    saved: Path, toy: Interactions
) -> None:
    namesake = type("Popularity", (eq.Popularity,), {})
    with pytest.raises(DataError, match="Popularity is also the name of another class"):
        namesake().fit(toy).save(saved)
    assert eq.load(saved).settings()["model"] == "EASE"


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the file of the inverse in place, with a manifest that knows nothing of it."""
    file = next(path.glob("inverse-*.npy"))
    file.write_bytes(change(file.read_bytes()))


# what the error says, the damage, and what it takes besides the path
REFUSED: list[tuple[Any, ...]] = [
    ("not allowed", edit, lambda m: m["files"]["inverse"].update(file="../evil.npy")),
    ("not allowed", edit, lambda m: m["files"]["inverse"].update(file="/etc/passwd")),
    ("unknown kind", edit, lambda m: m["meta"]["settings"].update(model="Popen")),
    ("unknown kind|settings", edit, lambda m: m["meta"]["settings"].update(model="Recommender")),
    ("not those of EASE", edit, lambda m: m["meta"]["settings"].update(secret=1)),
    ("l2 must be >= 0", edit, lambda m: m["meta"]["settings"].update(l2=-4)),
    ("unknown kind", edit, lambda m: m["meta"]["settings"].update(normalizer={"name": "os"})),
    ("unknown kind", edit, lambda m: m["meta"]["settings"].update(normalizer=7)),
    ("damaged", edit, lambda m: m["meta"]["state"].update(normalizer={"name": "DAN", "x": 1})),
    ("field .state. is missing", edit, lambda m: m["meta"].pop("state")),
    ("field .settings. must be a group", edit, lambda m: m["meta"].update(settings=[1])),
    ("shape|rows", edit, lambda m: m["meta"]["train"].update(shape=[7, 5])),
    ("upgrade", edit, lambda m: m.update(version=99)),
    ("expected 'equipoise-model'", edit, lambda m: m.update(format="other")),
    ("no array 'diagonal'", edit, lambda m: m["files"].pop("diagonal")),
    ("bytes", rewrite, lambda content: content[:-8]),
    ("checksum", rewrite, lambda content: content[:-4] + b"\x00\x00\x80\x7f"),
    ("shape", replace_array, "inverse", np.zeros((3, 3), np.float32)),
    ("NaN", replace_array, "inverse", np.full((4, 4), np.nan, np.float32)),
    ("shape|found int64", replace_array, "inverse", np.zeros((4, 4), np.int64)),
    ("found float16", replace_array, "inverse", np.eye(4, dtype=np.float16)),
    ("row by row", replace_array, "inverse", np.asfortranarray(np.arange(16.0).reshape(4, 4))),
    ("found ", replace_array, "penalty", np.full(4, 1e-300, np.longdouble)),
    ("NaN or infinite", replace_array, "diagonal", np.array([1.0, 2.0, np.inf, 1.0])),
    ("not positive", replace_array, "diagonal", np.array([1.0, 2.0, -1.0, 1.0])),
    ("damaged", replace_array, "train_indices", np.full(15, 77, np.int32)),
]


@pytest.mark.parametrize(
    ("message", "damage", "options"),
    [
        pytest.param(message, damage, options, id=f"{damage.__name__}: {message}")
        for message, damage, *options in REFUSED
    ],
)
def test_a_saved_model_that_was_changed_is_refused(
    saved: Path, message: str, damage: Callable[..., None], options: list[Any]
) -> None:
    damage(saved, *options)
    with pytest.raises(FileFormatError, match=message):
        eq.load(saved)


def test_pickled_arrays_are_never_opened(saved: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    replace_array(saved, "inverse", np.array([Trap()], dtype=object), pickled=True)
    with pytest.raises(FileFormatError, match="cannot be read"):
        eq.load(saved)
    assert not (tmp_path / "sprung").exists()


def test_loading_maps_the_inverse_instead_of_reading_it(saved: Path) -> None:
    assert isinstance(eq.load(saved).inverse_, np.memmap)


@pytest.mark.skipif(not COUNTED.exists(), reason="this system does not count what is read")
def test_opening_a_large_model_reads_a_small_part_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = Interactions((rng.random((50, 3000)) < 0.02).astype(np.float32))
    eq.EASE(l2=1.0).fit(data, engine="dense").save(tmp_path / "m")
    inverse = 4 * 3000**2
    before = bytes_read()
    eq.load(tmp_path / "m")
    opened = bytes_read()
    eq.load(tmp_path / "m", verify=True)
    assert opened - before < inverse / 10
    assert bytes_read() - opened > inverse


@pytest.mark.parametrize(
    ("old", "n_factors"),
    [
        ({"model": "GFCF", "factors": 7, "strength": 0.1}, 7),
        ({"model": "SGFCF", "factors": 3}, 3),
        ({"model": "SVDAE", "share": 0.02, "factors": None, "power_iterations": 2}, 0.02),
        ({"model": "SVDAE", "factors": 8, "share": 0.02}, 8),
    ],
)
def test_settings_under_their_old_names_still_build(old: dict[str, Any], n_factors: float) -> None:
    assert build(old).settings()["n_factors"] == n_factors


@pytest.mark.parametrize(("l2", "dropout"), [("auto", "auto"), (3.0, 0.0)])
def test_models_saved_without_a_dropout_keep_its_meaning(l2: Any, dropout: Any) -> None:
    old = {"model": "EASE", "l2": l2, "dropout": None}
    assert build(old).settings()["dropout"] == dropout


def test_a_save_under_old_names_still_loads(tmp_path: Path, toy: Interactions) -> None:
    model = eq.GFCF(n_factors=2).fit(toy)
    model.save(tmp_path / "m")

    def rename(manifest: dict[str, Any]) -> None:
        settings = manifest["meta"]["settings"]
        settings["factors"] = settings.pop("n_factors")
        del manifest["seal"]  # of the content before

    edit(tmp_path / "m", rename)
    again = eq.load(tmp_path / "m")
    assert again.settings() == model.settings()
    np.testing.assert_array_equal(again.score(toy), model.score(toy))
