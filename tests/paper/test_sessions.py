"""Table 7: random parts of sessions, a search on validation, and what DAN did."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.models.sessions import drawn
from tests.paper.conftest import PAPER

from equipoise.data.interactions import Interactions
from equipoise.data.split import Part, Split, reveal
from equipoise.errors import DataError
from reproduce.config import Config, load_config
from reproduce.results import CELLS, read_lines
from reproduce.runner import completed, run
from reproduce.sessions import (
    Search,
    answer,
    best,
    is_plain,
    make,
    measure,
    paired_error,
    target_weights,
)

GRID = {"row_norm": ["l1", None], "l2": [3.0], "dropout": [0.0], "beta": [0.0, 1.0]}
GRID["alpha"] = [0.0, 0.3]
COLUMNS = ("aoa_", "tail_", "unbiased_")


def save(folder: Path, sessions: Interactions) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    events = sessions._sequences
    assert events is not None
    cut = len(events) * 9 // 10
    border = events.offsets[cut]
    parts = {
        "train": (events.items[:border], events.offsets[: cut + 1]),
        "test": (events.items[border:], events.offsets[cut:] - border),
    }
    for name, (items, offsets) in parts.items():
        np.savez_compressed(folder / f"{name}_sessions.npz", items=items, offsets=offsets)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    save(tmp_path / "data" / "diginetica", drawn(400, 30, seed=3))
    return tmp_path / "data"


@pytest.fixture
def config() -> Config:
    """Table 7 without settings, and with a small grid."""
    table = load_config(PAPER / "table7.toml")
    rows = [dataclasses.replace(row, settings=None) for row in table.rows]
    options = {"seed": 0, "events": 100, "grid": GRID}
    return dataclasses.replace(table, rows=rows, options=options)


def solves(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if '"points"' in line]


@pytest.fixture
def finished(config: Config, data: Path, tmp_path: Path) -> pl.DataFrame:
    return run(config, data, tmp_path / "out" / "table7.csv", command="a test")


def test_every_row_whose_data_are_there_is_searched_and_measured(
    config: Config, finished: pl.DataFrame
) -> None:
    assert dict(finished.schema) == CELLS
    assert finished.height == len(config.rows) * len(config.columns)
    ran = finished.filter(pl.col("ours").is_not_null())
    assert set(ran["dataset"]) == {"Diginetica"}
    assert ran.height == 6 * len(config.columns)
    assert ran["ours"].is_between(0, 1).all()
    assert set(finished.filter(pl.col("dataset") != "Diginetica")["status"]) == {"not run here"}
    for name, settings in ran.select("row", "settings").iter_rows():
        chosen = json.loads(settings)
        assert chosen["model"] == name.removesuffix("_DAN")
        if name == chosen["model"]:
            assert chosen["normalizer"]["name"] == "NoNorm"


def test_a_run_that_was_stopped_goes_on_from_its_files(
    config: Config,
    data: Path,
    tmp_path: Path,
    finished: pl.DataFrame,
) -> None:
    out = tmp_path / "out" / "table7.csv"
    searches = {path: len(solves(path)) for path in out.parent.rglob("*.jsonl")}
    assert {path.name.split("-")[1] for path in searches} == {"SLIS", "SLIT", "SLIST"}
    words = out.with_suffix(".md").read_text()
    stored = pl.read_csv(out)
    stored.filter(~pl.col("row").is_in(["SLIST", "SLIST_DAN"])).write_csv(out)
    messages: list[str] = []
    again = run(config, data, out, command="a test", say=messages.append)
    assert again["ours"].equals(finished["ours"])
    assert len(messages) == 2
    assert {path: len(solves(path)) for path in out.parent.rglob("*.jsonl")} == searches
    assert out.with_suffix(".md").read_text() == words
    assert run(config, data, out, say=messages.append).equals(again)
    assert len(messages) == 2
    assert completed(config, read_lines(out, CELLS)).equals(again)


def test_rows_with_settings_are_not_searched(config: Config, data: Path, tmp_path: Path) -> None:
    settings = {"model": "SLIS", "row_norm": "none", "l2": 5.0}  # as a TOML file writes them
    rows = [
        dataclasses.replace(row, settings=settings)
        for row in config.rows
        if (row.dataset, row.name) == ("Diginetica", "SLIS")
    ]
    table = dataclasses.replace(config, rows=rows)
    results = run(table, data, tmp_path / "table7.csv")
    assert results["ours"].null_count() == 0
    full = make("SLIS", {"row_norm": None, "l2": 5.0}).settings()
    assert results["settings"].unique().to_list() == [json.dumps(full)]
    assert not list(tmp_path.rglob("*.jsonl"))
    assert completed(table, read_lines(tmp_path / "table7.csv", CELLS)).equals(results)


def search_on(train: Interactions, valid: Interactions, folder: Path) -> Search:
    history, target = (
        side.with_items(train.item_index, unknown_items="skip") for side in reveal(valid)
    )
    part = Part(history, target, "session", "valid")
    return Search(Split(train, part, part, "session"), folder, "toy-", grid=GRID)


def test_settings_without_dan_are_the_best_of_the_same_grid(tmp_path: Path) -> None:
    train = drawn(300, 25, seed=1)
    search = search_on(train, drawn(40, 25, seed=2), tmp_path)
    base = {"l2": 3.0, "decay_inference": 1.0}
    plain, dan = search.pair("SLIS", base)
    tried_points = search.try_grid("SLIS", "grid", base, GRID)
    order = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    assert [{name: point[name] for name in GRID} for point in tried_points] == order
    near = [path.name for path in sorted(tmp_path.glob("toy-SLIS-near-*"))]
    assert near[-1] == "toy-SLIS-near-without.jsonl"
    solved = [
        json.loads(line)["points"]
        for path in tmp_path.glob("toy-SLIS-*.jsonl")
        for line in solves(path)
    ]
    # one fit for each row_norm and beta, then a third and three times the l2 around the choices
    assert len(solved) == 4 + 2 * len(near)
    all_points = [point for solve_points in solved for point in solve_points]
    pair = search.split.valid.history, search.split.valid.target
    for chosen, among in ((dan, all_points), (plain, filter(is_plain, all_points))):
        value = measure(make("SLIS", chosen).fit(train), pair)[0]["mrr@20"]
        assert value == pytest.approx(max(point["mrr@20"] for point in among))
    assert is_plain(plain)


def test_of_equal_points_the_first_of_the_grid_is_chosen() -> None:
    points = [{"l2": 1.0, "mrr@20": 0.1}, {"l2": 3.0, "mrr@20": 0.2}, {"l2": 9.0, "mrr@20": 0.2}]
    assert best(points) == {"l2": 3.0}


def test_a_search_takes_no_other_file_and_no_values_of_other_data(tmp_path: Path) -> None:
    train, other = drawn(60, 25, seed=1), drawn(60, 25, seed=2)
    path = tmp_path / "toy-SLIT-own.jsonl"
    path.write_bytes(b"my notes")
    with pytest.raises(DataError, match=r"toy-SLIT-own\.jsonl"):
        search_on(train, train, tmp_path).tune_model("SLIT", {})
    assert path.read_bytes() == b"my notes"
    path.unlink()
    search_on(train, train, tmp_path).tune_model("SLIT", {})
    before = path.read_bytes()
    for data in ((other, train), (train, other)):
        with pytest.raises(DataError, match="belongs to other data"):
            search_on(*data, tmp_path).tune_model("SLIT", {})
    assert path.read_bytes() == before


def test_an_answer_never_takes_the_place_of_another_text(
    config: Config, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("# My shop\n")
    with pytest.raises(DataError, match=r"README.md is no answer of an earlier run"):
        run(config, data, tmp_path / "README.csv")
    assert (tmp_path / "README.md").read_text() == "# My shop\n"
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "data"}


def test_unbiased_values_weigh_hits_by_how_rarely_their_item_is_a_target() -> None:
    train = drawn(200, 25, seed=4)
    counts = np.zeros(25)
    for row in range(train.n_users):
        for item in train._sequences[row][1:]:
            counts[item] += 1
    np.testing.assert_allclose(target_weights(train), np.maximum(counts, 1) ** -1.5)
    history, target = reveal(train.rows(np.arange(30)))
    model = make("SLIT", {"l2": 2.0}).fit(train)
    values, _ = measure(model, (history, target))
    lists = model.rank(history, 20).items
    targets = target.matrix.indices
    total = reciprocal = 0.0
    for ranked, item in zip(lists.tolist(), targets.tolist(), strict=True):
        if item in ranked:
            weight = max(counts[item], 1) ** -1.5
            total += weight
            reciprocal += weight / (1 + ranked.index(item))
    assert values["unbiased_recall@20"] == pytest.approx(total / len(targets))
    assert values["unbiased_mrr@20"] == pytest.approx(reciprocal / len(targets))


def cells(changes: dict[str, tuple[float, float, float]]) -> pl.DataFrame:
    lines = []
    for model, change in changes.items():
        for row, step in ((model, 0), (f"{model}_DAN", 1)):
            for head, by in zip(COLUMNS, change, strict=True):
                for metric in ("recall@20", "mrr@20"):
                    value = {"published": 0.4, "ours": 0.5 + step * by}
                    lines.append({"dataset": "A", "row": row, "column": head + metric, **value})
    return pl.DataFrame(lines, schema={name: CELLS[name] for name in lines[0]})


def test_the_answer_names_what_speaks_against_it(tmp_path: Path) -> None:
    results = cells({"SLIS": (-0.1, 0.1, 0.1), "SLIST": (-0.05, -0.1, 0.1)})
    text = answer(results, tmp_path)
    assert "- DAN raises tail MRR@20: no, in 1 of 2 cases, not SLIST on A." in text
    assert "- DAN raises unbiased MRR@20: yes, in 2 of 2 cases." in text
    assert "- It does not lower overall MRR@20 of SLIST: no, in 0 of 1 cases, not A." in text
    assert "| A | SLIS | lowered, -20.0% | raised, +20.0% | raised, +20.0% |" in text
    good = answer(cells({"SLIST": (0.0, 0.1, 0.1)}), tmp_path)
    assert "- It does not lower overall MRR@20 of SLIST: yes, in 1 of 1 cases." in good


def test_the_error_of_a_change_is_that_of_pairs(tmp_path: Path) -> None:
    before, after = np.array([0.5, 0.0, 1.0, 0.25]), np.array([1.0, 0.0, 1.0, 0.5])
    for row, values in (("SLIS", before), ("SLIS_DAN", after)):
        pl.DataFrame({"mrr@20": values}).write_parquet(tmp_path / f"A-{row}.parquet")
    expected = np.std([0.5, 0.0, 0.0, 0.25], ddof=1) / 2
    assert paired_error(tmp_path, "A", "SLIS", "all") == pytest.approx(expected)
    assert paired_error(tmp_path, "A", "SLIT", "all") is None
