"""Figures for print: three files, the same each time, readable without colour."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import polars as pl
import pytest

from equipoise.errors import DataError, MissingExtraError
from equipoise.report.figures import draw_bars, draw_lines

pytest.importorskip("matplotlib")

FRAME = pl.DataFrame(
    {
        "alpha": [0.0, 0.1, 0.2] * 4,
        "items": ["head"] * 3 + ["tail"] * 3 + ["head"] * 3 + ["tail"] * 3,
        "data": ["Gowalla"] * 6 + ["Yelp2018"] * 6,
        "ndcg": [n / 10 for n in range(12)],
    }
)


def test_lines_write_svg_png_and_the_frame(tmp_path: Path) -> None:
    files = draw_lines(
        FRAME, tmp_path / "deep" / "alpha", x="alpha", y="ndcg", series="items", panel="data"
    )
    assert [file.name for file in files] == ["alpha.svg", "alpha.png", "alpha.csv"]
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert pl.read_csv(files[2]).equals(FRAME)
    words = [node.text for node in ET.parse(files[0]).iter() if node.tag.endswith("text")]
    assert {"Gowalla", "Yelp2018", "head", "tail", "alpha", "ndcg"} <= set(words)


def test_series_differ_without_colour(tmp_path: Path) -> None:
    lines = draw_lines(FRAME[:6], tmp_path / "lines", x="alpha", y="ndcg", series="items")
    assert "stroke-dasharray" in lines[0].read_text()
    bars = draw_bars(FRAME[:6], tmp_path / "bars", x="alpha", y="ndcg", series="items")
    assert "<pattern" in bars[0].read_text()


def test_the_same_frame_gives_the_same_files(tmp_path: Path) -> None:
    one, other = (
        draw_bars(FRAME, tmp_path / name, x="items", y="ndcg", series="data")
        for name in ("one", "other")
    )
    for mine, yours in zip(one, other, strict=True):
        assert mine.read_bytes() == yours.read_bytes()


def test_curves_with_a_band_and_a_logarithmic_axis(tmp_path: Path) -> None:
    frame = pl.DataFrame({"rank": [1, 10, 100], "value": [9.0, 3.0, 1.0]}).with_columns(
        low=pl.col("value") * 0.5, high=pl.col("value") * 2
    )
    options = {"markers": False, "log": ("x", "y"), "low": "low", "high": "high"}
    files = draw_lines(
        frame, tmp_path / "values", x="rank", y="value", labels=("rank", "size"), **options
    )
    assert all(file.stat().st_size > 50 for file in files)


def test_a_missing_column_or_empty_frame_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'gamma'; it has alpha, items"):
        draw_lines(FRAME, tmp_path / "x", x="gamma", y="ndcg")
    with pytest.raises(DataError, match="nothing to draw"):
        draw_bars(FRAME[:0], tmp_path / "x", x="alpha", y="ndcg")


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install equipoise\[report\]"):
        draw_lines(FRAME, tmp_path / "x", x="alpha", y="ndcg")
