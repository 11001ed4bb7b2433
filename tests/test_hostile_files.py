"""Everything that is saved, damaged in every field: refused, or as good as before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import equipoise as eq
from equipoise.data.events import Events
from equipoise.data.interactions import Interactions
from equipoise.data.split import Split
from equipoise.data.storage import SEAL, file_entry
from equipoise.errors import EquipoiseError, FileFormatError, SolveError
from equipoise.evaluation.results import Result
from equipoise.models.base import Recommender
from equipoise.solve import tiled
from equipoise.solve.tiled import TileFolder
from tests.mutants import damaged, mutants, near_misses, write


def data() -> Interactions:
    """7 users x 4 items with everything that interactions can have."""
    rows = ["1100", "1010", "1111", "0110", "1000", "1101", "0100"]
    matrix = np.array([[int(cell) for cell in row] for row in rows], np.float32)
    events = [np.flatnonzero(row) for row in matrix]
    offsets = np.concatenate([[0], np.cumsum([len(event) for event in events])])
    return Interactions(
        matrix,
        [f"u{n}" for n in range(7)],
        np.arange(4) * 10,
        times=np.arange(matrix.sum()),
        catalogue=pl.DataFrame({"title": ["Tea", "Milk", None, "Rice"]}),
        events=Events(np.concatenate(events).astype(np.int32), offsets),
        notes=["a note"],
    )


def timed() -> Interactions:
    """The same pairs, and an event with a time for each."""
    plain = data()
    return Interactions(plain.matrix, plain.users, plain.items, times=plain.times)


def use_data(data: Interactions) -> None:
    assert len(data.to_frame()) == data.n_interactions
    assert (data.user_counts.sum(), data.item_counts.sum()) == (data.n_interactions,) * 2
    assert all(set(data.history(user)) <= set(data.items.tolist()) for user in data.users)
    assert data.catalogue is None or data.label(data.items[0])
    assert data.times is None or np.isfinite(data.times).all()
    assert all(note.encode() for note in data.notes)


def use_split(split: Split) -> None:
    assert repr(split).encode()
    for part in (split.train, *(side for p in split.parts for side in (p.history, p.target))):
        use_data(part)


def use_result(result: Result) -> None:
    for text in (repr(result), result.to_markdown(), result.to_latex(), result.to_json()):
        assert text.encode()
    assert all(result[name] is not None for name in result)
    assert result.to_frame().height == len(result.values)


def use_model(model: Recommender) -> None:
    use_data(model.interactions_)
    # values in range may be far from what a fit gives, and overflow on the way; ranking says so
    with np.errstate(all="ignore"), suppress(SolveError):
        lists = model.recommend(model.interactions_, k=2)
        items = set(model.interactions_.items.tolist())
        assert all(set(row) <= items for row in lists.items)
    assert json.dumps(model.settings(), allow_nan=False)
    assert model.label.encode()


def fitted(model: Any, **options: Any) -> Callable[[], Recommender]:
    return lambda: model.fit(data(), **options)


def evaluated() -> Result:
    split = eq.split.weak(data(), test=0.3)
    metrics = ["ndcg", "head_recall", "coverage"]
    model = eq.EASE(l2=1.0, normalizer=eq.DAN(0.2, 0.3)).fit(split.train)
    return eq.evaluate(model, split.test, [1, 2], metrics=metrics, bootstrap=5)


def trained(name: str, **settings: Any) -> Callable[[], Recommender]:
    def make() -> Recommender:
        pytest.importorskip("torch")
        return getattr(eq, name)(epochs=1, **settings).fit(data(), threads=1)

    return make


@dataclass(frozen=True)
class Case:
    """How something is made, loaded, and seen to be in order; and what of it is damaged."""

    make: Callable[[], Any]
    load: Callable[[Path], Any]
    use: Callable[[Any], None]
    fields: tuple[tuple[str, ...], ...]
    files: str = ""


CUSTOM = eq.CustomNorm(users=np.arange(1, 8), items=[1.0, 2.0, 0.5, 1.5], penalty=[1, 2, 1, 1])
NORMALIZERS = {
    "RandomWalk": eq.EASE(l2=0.0, dropout=0.3, normalizer=eq.RandomWalk()),
    "Symmetric": eq.EASE(l2=0.0, dropout=0.3, normalizer=eq.Symmetric()),
    "ColumnNorm": eq.EASE(l2=1.0, normalizer=eq.ColumnNorm(0.4)),
    "UserNorm": eq.EASE(l2=1.0, normalizer=eq.UserNorm(0.4)),
    "ItemNorm": eq.EASE(l2=1.0, normalizer=eq.ItemNorm(0.4)),
    "CustomNorm": eq.LAE(l2=1.0, normalizer=CUSTOM),
}
MODELS = {
    "RLAE": fitted(eq.RLAE(l2=1.0)),
    "EASE+DAN": fitted(eq.EASE(l2="auto", dropout=0.3, normalizer=eq.DAN())),
    "EASE+LowPass": fitted(eq.EASE(l2=1.0, lowpass=eq.LowPass(rank=2, strength=0.2))),
    "EASE pruned": lambda: eq.EASE(l2=1.0).fit(data()).prune(2),
    "EASE halved": lambda: eq.EASE(l2=1.0).fit(data()).halve(),
    "GFCF": fitted(eq.GFCF(n_factors=2)),
    "BSPM": fitted(eq.BSPM(n_factors=2)),
    "TurboCF": fitted(eq.TurboCF(power=0.7, order=2)),
    "SVDAE": fitted(eq.SVDAE(n_factors=2)),
    "SGFCF": fitted(eq.SGFCF(n_factors=2)),
    "Popularity": fitted(eq.Popularity()),
    "ItemKNN": fitted(eq.ItemKNN(neighbours=2)),
    "SLIS sparse": fitted(eq.SLIS(l2=1.0, normalizer=eq.DAN(0.2, 0.3)), engine="sparse"),
    "SLIST dense": fitted(eq.SLIST(l2=1.0, mix=0.5, decay_time=2.0), engine="dense"),
    "LightGCN": trained("LightGCN", n_factors=2),
    "MultVAE": trained("MultVAE", hidden=3, latent=2),
}
AGED = eq.EASE(l2=1.0, trend=eq.Trend(half_life="1h"), signals=eq.Signals(history_decay="5s"))
OWN = (("meta", "settings"), ("meta", "state"))  # the training data are those of any model
NORMALIZER = tuple((*group, "normalizer") for group in OWN)
HISTORY = ("meta", "parts", "test_history")
CASES = {
    "Interactions": Case(data, Interactions.load, use_data, ((),), r".*"),
    "Split": Case(
        lambda: eq.split.weak(data(), valid=0.3, test=0.3),
        Split.load,
        use_split,
        (HISTORY, *((("meta", name)) for name in ("protocol", "seed", "notes", "fingerprint"))),
        r"test_history.*",
    ),
    "Result": Case(evaluated, Result.load, use_result, (("meta",),), r".*"),
    **{
        name: Case(make, eq.load, use_model, OWN, r"(?!train_).*") for name, make in MODELS.items()
    },
    "EASE+Trend": Case(
        lambda: AGED.fit(timed()),
        eq.load,
        use_model,
        (("meta", "settings", "trend"), ("meta", "settings", "signals"), ("meta", "trend")),
        r"trend.*",
    ),
    **{
        name: Case(fitted(model), eq.load, use_model, NORMALIZER)
        for name, model in NORMALIZERS.items()
    },
}


Saved = tuple[Case, Path, dict[str, Any]]


def save(name: str, path: Path) -> Saved:
    """Return a case, its directory and its manifest."""
    case = CASES[name]
    case.make().save(path)
    return case, path, json.loads((path / "manifest.json").read_text())


def refused_or_sound(case: Case, path: Path) -> bool:
    """Load; anything but a refusal in words, or something in order, is a failed test."""
    try:
        loaded = case.load(path)
    except FileFormatError as error:
        refusal = error
    else:
        case.use(loaded)
        return True
    # the reason was found by a check, not by an operation that happened to fail
    assert isinstance(refusal.__cause__, EquipoiseError | None) or "cannot be read" in str(refusal)
    assert str(refusal).encode()
    return False


@pytest.mark.parametrize("name", CASES)
def test_a_manifest_with_any_field_damaged_is_refused_or_harmless(
    name: str, tmp_path: Path
) -> None:
    case, path, sound = save(name, tmp_path / "it")
    for under in case.fields:
        for damage, mutant in mutants(sound, under):
            write(path / "manifest.json", mutant)
            with reporting(damage):
                refused_or_sound(case, path)
    older = {field: value for field, value in sound.items() if field != SEAL}
    (path / "manifest.json").write_text(json.dumps(older))
    assert refused_or_sound(case, path), "older versions have no seal"


@pytest.mark.parametrize("name", ["Interactions", "Split", "Result", "EASE+DAN", "CustomNorm"])
def test_a_manifest_whose_values_were_changed_after_saving_is_refused(
    name: str, tmp_path: Path
) -> None:
    case, path, sound = save(name, tmp_path / "it")
    for damage, mutant in near_misses(sound):
        (path / "manifest.json").write_text(json.dumps(mutant))
        with reporting(damage), pytest.raises(FileFormatError):
            case.load(path)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.files])
def test_files_that_are_not_what_was_saved_are_refused_or_harmless(
    name: str, tmp_path: Path
) -> None:
    case, path, sound = save(name, tmp_path / "it")
    for part, entry in sound["files"].items():
        file = path / entry["file"]
        before = file.read_bytes()
        for damage, content in variants(file) if re.fullmatch(case.files, part) else ():
            if isinstance(content, pl.DataFrame):
                content.write_parquet(file)
            elif isinstance(content, bytes):
                file.write_bytes(content)
            else:
                np.save(file, content)
            changed = {**sound["files"], part: file_entry(file)}
            write(path / "manifest.json", {**sound, "files": changed})
            with reporting(f"{part}: {damage}"):
                refused_or_sound(case, path)
        file.write_bytes(before)
    write(path / "manifest.json", sound)
    assert refused_or_sound(case, path)


@contextmanager
def reporting(damage: str) -> Iterator[None]:
    """Name the damage where a test fails."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"with {damage}")
        raise


def variants(file: Path) -> list[tuple[str, Any]]:
    """Other contents of an array or a table."""
    if file.suffix == ".npy":
        return list(damaged(np.load(file)))
    return damaged_tables(pl.read_parquet(file))


def damaged_tables(table: pl.DataFrame) -> list[tuple[str, Any]]:
    """Tables with rows, columns, types and values that they should not have."""
    first = table.columns[0]
    return [
        ("short", table.head(table.height - 1)),
        ("long", pl.concat([table, table.tail(1)])),
        ("doubled", pl.concat([table.head(1)] * table.height)),
        ("empty", table.head(0)),
        ("null", table.with_columns(pl.lit(None).alias(first))),
        ("floats", table.with_columns(pl.lit(0.5).alias(first))),
        ("lists", table.with_columns(pl.lit([1]).alias(first))),
        ("renamed", table.rename({first: "other"})),
        ("no columns", table.select([])),
        ("one more", table.with_columns(pl.lit(1).alias("more"))),
        ("not Parquet", b"PAR1 and nothing else PAR1"),
        ("nothing", b""),
    ]


def test_a_search_with_any_field_damaged_is_refused_or_goes_on(tmp_path: Path) -> None:
    split = eq.split.weak(data(), valid=0.3, test=0.3)
    storage = tmp_path / "search.jsonl"

    def tune() -> eq.Tuned:
        return eq.tune(
            eq.EASE, split, grid={"l2": [1.0, 3.0], "alpha": [0.0, 0.3]}, storage=storage
        )

    tune()
    lines = [json.loads(line) for line in storage.read_text().splitlines()]
    for place in range(3):  # the search, who worked on it, a solve
        for damage, mutant in mutants(lines[place]):
            damaged_lines = [json.dumps(line) for line in lines]
            write(storage, mutant)
            damaged_lines[place] = storage.read_text()
            storage.write_text("\n".join(damaged_lines) + "\n")
            with reporting(damage), suppress(EquipoiseError):
                tuned = tune()
                use_model(tuned.model)
                assert repr(tuned).encode()
        for damage, mutant in near_misses(lines[place]):
            damaged_lines = [json.dumps(line) for line in lines]
            damaged_lines[place] = json.dumps(mutant)
            storage.write_text("\n".join(damaged_lines) + "\n")
            with reporting(damage), pytest.raises(EquipoiseError):
                tune()


def test_a_tiled_solve_with_any_field_of_its_state_damaged_is_refused_or_right(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    X = data().matrix
    problem = X, rng.random(7) + 0.5, rng.random(4) + 5
    expected, _, _ = tiled.invert(*problem, tile_rows=2, problem={"data": "these"})

    class Killed(BaseException):
        pass

    def stop(state: tiled.SolveProgress) -> None:
        if state.step == 5:
            raise Killed

    with pytest.raises(Killed):
        tiled.invert(
            *problem, tile_rows=2, problem={"data": "these"}, scratch=tmp_path, progress=stop
        )
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    state = json.loads((tmp_path / "state.json").read_text())
    for damage, mutant in mutants(state):
        write(tmp_path / "state.json", mutant)
        with reporting(damage), suppress(EquipoiseError):
            inverse, _, _ = tiled.invert(
                *problem, tile_rows=2, problem={"data": "these"}, scratch=tmp_path
            )
            np.testing.assert_array_equal(inverse, expected)
        for file in set(tmp_path.iterdir()) - set(before):
            file.unlink()
        for file, content in before.items():
            file.write_bytes(content)
    for damage, mutant in near_misses(state):
        (tmp_path / "state.json").write_text(json.dumps(mutant))
        with reporting(damage), pytest.raises(EquipoiseError):
            TileFolder(tmp_path, {"data": "these"}, 4, 2, "float32")
