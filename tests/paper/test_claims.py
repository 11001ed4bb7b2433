"""Sentences of figures, from points whose answer is known."""

from __future__ import annotations

import polars as pl
import pytest
from tests.paper.conftest import PAPER

from reproduce.claims import claims
from reproduce.config import load_config
from reproduce.drawing import drops, picture

Row = tuple[str, str, str, float | None, float]


def points(curve: str, rows: list[Row]) -> pl.DataFrame:
    schema = ["dataset", "series", "group", "x", "y"]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(curve=pl.lit(curve), point=pl.lit("p"), label=pl.lit(""))


def noisy(lae: float, dan: float) -> pl.DataFrame:
    rows: list[Row] = []
    for group in ("all", "tail"):
        for name, left in (("LAE", lae), ("LAE_DAN", dan)):
            rows += [("Gowalla", name, group, 0.0, 0.2)]
            rows += [("Gowalla", name, group, 20.0, 0.2 * share) for share in (left, left - 0.1)]
    return points("noise", rows)


def test_drops_are_means_over_seeds() -> None:
    frame = drops(noisy(0.6, 0.9)).filter((pl.col("series") == "LAE") & (pl.col("x") == 20))
    row = frame.filter(pl.col("group") == "tail").to_dicts()[0]
    values = [row[name] for name in ("drop", "low", "high", "ndcg@20", "seeds")]
    assert values == pytest.approx([45.0, 40.0, 50.0, 0.11, 2])


@pytest.mark.parametrize(("lae", "dan", "verdict"), [(0.6, 0.9, "yes"), (0.9, 0.6, "no")])
def test_the_ordering_under_noise_is_judged(lae: float, dan: float, verdict: str) -> None:
    config = load_config(PAPER / "figure7.toml")
    texts = claims(config, noisy(lae, dan))
    assert len(texts) == 2
    assert all(f"(LAE drops most) holds: {verdict}." in text for text in texts)
    assert all("LAE 0.1" in text.split("that is left: ")[1] for text in texts)


@pytest.mark.parametrize(("tail", "verdict"), [((0.01, 0.02), "yes"), ((0.02, 0.01), "no")])
def test_the_tail_over_alpha_is_judged(tail: tuple[float, float], verdict: str) -> None:
    rows: list[Row] = []
    for x, value in zip((0.0, 0.1), tail, strict=True):
        rows += [("Yelp2018", "LAE_DAN", "tail", x, value)]
        rows += [("Yelp2018", "LAE_DAN", group, x, 0.1 - x / 10) for group in ("all", "head")]
    text = claims(load_config(PAPER / "figure5.toml"), points("alpha", rows))[0]
    assert "best at alpha = 0," in text
    assert text.endswith(f"with every step of alpha: {verdict}.")


@pytest.mark.parametrize(("high", "verdict"), [(0.4, "yes"), (0.31, "no")])
def test_gains_of_the_groups_are_compared(high: float, verdict: str) -> None:
    rows: list[Row] = []
    for dataset, before, after in (("ML-1M", 0.3, high), ("Gowalla", 0.1, 0.11)):
        for group in ("all", "head", "tail"):
            rows += [(dataset, "W/O Norm.", group, None, before)]
            rows += [(dataset, "W/ Norm.", group, None, after)]
    config = load_config(PAPER / "figure2.toml")
    frame = points("models", rows)
    assert claims(config, frame)[-1].endswith(f"holds on the data at hand: {verdict}.")
    shown = picture(config, frame)[0]
    assert shown["panel"].unique(maintain_order=True).to_list() == list(config.options["panels"])


def test_eigenvalues_that_rise_are_found() -> None:
    rows = [("ML-1M", f"beta {b}", "", x, b / x) for b in (1, 2) for x in (1.0, 2.0)]
    rows += [("ML-1M", f"beta {b}", "mean", 2.0, b / 2) for b in (1, 2)]
    text = claims(load_config(PAPER / "figure4.toml"), points("eigenvalues", rows))[0]
    assert text.endswith("falls as beta grows: no.")
    assert "all 2 eigenvalues: beta 1 0.5000, beta 2 1.0000" in text
