"""Cells: the comparison with planted differences, and printed numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from equipoise.errors import DataError
from equipoise.reproduce.cells import comparison, is_done, merged, read_results, status
from equipoise.reproduce.config import Config, Row, load_config, names, number
from equipoise.reproduce.figures import read_points

PAPER = Path(__file__).resolve().parents[2] / "paper"
COLUMNS = ["dataset", "row", "ndcg", "users", "interactions", "density"]


@pytest.mark.parametrize(
    ("published", "ours", "note", "expected"),
    [
        (0.1911, 0.19105, "", "equal"),
        (0.1911, 0.19124, "", "equal"),
        (0.1911, 0.19126, "", "differs"),
        (0.1911, 0.1926, "ties", "explained"),
        (None, 0.1926, "", "not published"),
    ],
)
def test_status_allows_one_unit_of_the_last_digit(
    published: float | None, ours: float, note: str, expected: str
) -> None:
    assert status(published, ours, note) == expected


@pytest.mark.parametrize(
    ("printed", "value", "unit"),
    [("0.44", 0.44, 0.01), ("56.9M", 56.9e6, 1e5), ("0.36%", 0.0036, 1e-4), ("139", 139.0, 1.0)],
)
def test_printed_numbers_keep_their_precision(printed: str, value: float, unit: float) -> None:
    assert number(printed) == pytest.approx((value, unit), rel=1e-12)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match=r"'n/a' is no published number"):
        number("n/a")


@pytest.fixture
def config() -> Config:
    printed = ["Gowalla", "LAE", "0.1706", "29858", "1.03M", "0.08%"]
    return Config(
        name="planted",
        title="planted",
        kind="table",
        protocol="strong",
        datasets=["Gowalla"],
        columns={name: name for name in COLUMNS[2:]},
        rows=[Row("Gowalla", "LAE", {"model": "LAE"})],
        published=pl.DataFrame([printed], schema=COLUMNS, orient="row"),
        reasons={"ndcg": "ties"},
        reason_limit=0.001,
    )


@pytest.mark.parametrize(
    ("column", "ours", "expected"),
    [
        ("ndcg", 0.17065, "equal"),
        ("ndcg", 0.1710, "explained"),
        ("ndcg", 0.1750, "differs"),
        ("users", 29857, "equal"),
        ("users", 29000, "differs"),
        ("interactions", 1027370, "equal"),
        ("interactions", 1100000, "differs"),
        ("density", 0.00084, "equal"),
        ("density", 0.0010, "differs"),
        ("recall", 0.2, "not published"),
    ],
)
def test_planted_differences_are_found(
    config: Config, column: str, ours: float, expected: str
) -> None:
    cell = comparison(config, config.rows[0], column, ours)
    assert cell["status"] == expected
    assert bool(cell["note"]) == (expected == "explained")


def test_new_cells_take_the_place_of_old_ones() -> None:
    old = pl.DataFrame(
        {"dataset": ["a", "a"], "row": ["r", "s"], "column": ["c", "c"], "n": [1, 2]}
    )
    new = old[:1].with_columns(n=pl.lit(3, pl.Int64))
    assert sorted(merged(old, new).rows()) == [("a", "r", "c", 3), ("a", "s", "c", 2)]


def test_other_settings_are_not_done(config: Config) -> None:
    done = pl.DataFrame(
        {"dataset": ["Gowalla"], "row": ["LAE"], "settings": ['{"model": "EASE"}'], "ours": [0.1]}
    )
    assert not is_done(done, config.rows[0])
    assert is_done(done.with_columns(settings=pl.lit('{"model": "LAE"}')), config.rows[0])


def test_unknown_table_names_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"known: table1, table2, table3.*, figure1, .*figure9"):
        load_config(PAPER / "table99.toml")


def test_every_table_and_figure_of_the_paper_has_a_config() -> None:
    tables = [f"table{n}" for n in (1, 2, 3, 4, 5, 6, 8)]
    assert {*tables, *(f"figure{n}" for n in range(1, 10))} <= set(names(PAPER))


@pytest.mark.parametrize("read", [read_results, read_points])
@pytest.mark.parametrize(
    "content",
    [
        b"name,value\nmine,1\n",
        b"dataset,row,column\nGowalla,EASE,ndcg\n",
        b"my notes",
        b"\x89PNG\x00\xff\n" * 9,
        b",".join([b"a"] * 14) + b"\n",
    ],
)
def test_a_file_that_is_no_table_of_ours_is_refused(
    read: Callable[[Path], pl.DataFrame], content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "out.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"out.csv cannot be read: .*; choose another .* remove"):
        read(file)


@pytest.mark.parametrize("read", [read_results, read_points])
def test_an_empty_file_and_none_hold_no_lines(
    read: Callable[[Path], pl.DataFrame], tmp_path: Path
) -> None:
    (tmp_path / "empty.csv").touch()
    assert read(tmp_path / "empty.csv").equals(read(tmp_path / "none.csv"))
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)


def test_results_are_read_from_the_path_itself_even_if_it_looks_like_a_pattern(
    tmp_path: Path,
) -> None:
    frame = read_results(tmp_path / "none.csv")
    row = {name: None if kind == pl.String else 1 for name, kind in frame.schema.items()}
    stored = pl.DataFrame([row], schema=frame.schema)
    frame.write_csv(tmp_path / "r1.csv")
    stored.write_csv(tmp_path / "r[1].csv")
    assert read_results(tmp_path / "r[1].csv").equals(stored)
