"""Cells: the comparison with planted differences, printed numbers, and the files of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.paper.conftest import PAPER

from equipoise.errors import DataError
from reproduce.config import Config, Row, load_config, names, number
from reproduce.results import CELLS, POINTS, as_frame, judge, put, read_lines, status

PRINTED = {"ndcg": "0.1706", "users": "29858", "interactions": "1.03M", "density": "0.08%"}
SCHEMAS = pytest.mark.parametrize("schema", [CELLS, POINTS], ids=["cells", "points"])


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


@pytest.fixture
def config() -> Config:
    return Config(
        name="planted",
        title="planted",
        kind="table",
        protocol="strong",
        datasets=["Gowalla"],
        columns={name: name for name in PRINTED},
        rows=[Row("Gowalla", "LAE", {"model": "LAE"})],
        published={("Gowalla", "LAE", name): text for name, text in PRINTED.items()},
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
        ("ndcg", None, "not run here"),
    ],
)
def test_planted_differences_are_found(
    config: Config, column: str, ours: float | None, expected: str
) -> None:
    cell = judge(config, config.rows[0], column, ours)
    assert cell["status"] == expected
    assert bool(cell["note"]) == (expected == "explained")


def test_new_cells_take_the_place_of_old_ones_with_any_settings(tmp_path: Path) -> None:
    done = read_lines(tmp_path / "none.csv", CELLS)
    rows = [Row("a", name, {"model": model}) for name, model in ("rL", "sL", "rE")]
    for place, row in enumerate(rows):
        put(done, row, [{"column": "c", "ours": place}], {"command": "a test"})
    assert [row.id in done for row in rows] == [False, True, True]
    frame = as_frame(done, CELLS)
    assert frame.select("dataset", "row", "column", "ours").rows() == [
        ("a", "s", "c", 1.0),
        ("a", "r", "c", 2.0),
    ]
    frame.write_csv(tmp_path / "r.csv")
    assert as_frame(read_lines(tmp_path / "r.csv", CELLS), CELLS).equals(frame)


def test_every_table_and_figure_of_the_paper_has_a_config() -> None:
    tables = [f"table{n}" for n in range(1, 9)]
    assert {*tables, *(f"figure{n}" for n in range(1, 10))} <= set(names(PAPER))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: number("n/a"), r"'n/a' is no published number"),
        (
            lambda: load_config(PAPER / "table99.toml"),
            r"known: table1, table2, table3.*, figure1, .*figure9",
        ),
        (lambda: read_lines(PAPER, CELLS), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(call: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


@SCHEMAS
@pytest.mark.parametrize(
    "content",
    [
        b"name,value\nmine,1\n",
        b"dataset,row,column\nGowalla,EASE,ndcg\n",
        b"dataset,curve\nGowalla,alpha\n" + b"a," * 40,
        b"my notes",
        b"\x89PNG\x00\xff\n" * 9,
        b",".join([b"a"] * 14) + b"\n",
    ],
)
def test_a_file_that_is_not_our_table_is_refused(
    schema: dict[str, Any], content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "out.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"out.csv cannot be read: .*; choose another .* remove"):
        read_lines(file, schema)


@SCHEMAS
def test_an_empty_file_and_none_hold_no_lines(schema: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    assert read_lines(tmp_path / "empty.csv", schema) == {}
    assert read_lines(tmp_path / "none.csv", schema) == {}


def test_results_are_read_from_the_path_itself_even_if_it_looks_like_a_pattern(
    tmp_path: Path,
) -> None:
    row = {name: "a" if kind == pl.String else 1.0 for name, kind in CELLS.items()}
    stored = pl.DataFrame([row], schema=CELLS)
    stored.clear().write_csv(tmp_path / "r1.csv")
    stored.write_csv(tmp_path / "r[1].csv")
    assert as_frame(read_lines(tmp_path / "r[1].csv", CELLS), CELLS).equals(stored)
