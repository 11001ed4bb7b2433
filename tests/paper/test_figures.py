"""Numbers of figures agree with what they stand for; pictures can be read in black and white."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.paper.conftest import shortened

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.evaluation.metrics import head_items
from reproduce.figures import (
    densities,
    mean_weights,
    typical_user,
    weight_eigenvalues,
)
from reproduce.runner import run

pytest.importorskip("matplotlib")
SETTINGS: dict[str, Any] = {
    "model": "LAE",
    "l2": 3.0,
    "dropout": 0.3,
    "normalizer": {"name": "DAN", "alpha": 0.2, "beta": 0.4},
}


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_mean_weights_are_those_of_the_dense_matrix(synthetic: Interactions, alpha: float) -> None:
    model = eq.EASE(l2=2.0, dropout=0.4, normalizer=eq.ItemNorm(alpha))
    model.fit(synthetic, dtype="float64")
    np.testing.assert_allclose(mean_weights(model), model.weights_.mean(axis=0), rtol=1e-7)


def dense_eigenvalues(data: Interactions) -> Any:
    X = data.matrix.toarray().astype(np.float64)
    weights = data.user_counts.astype(float) ** -0.4
    G = X.T @ (weights[:, None] * X)
    L = np.diag(3.0 + 0.3 / 0.7 * data.item_counts)
    return np.sort(np.linalg.eigvals(np.linalg.solve(G + L, G)).real)[::-1]


@pytest.mark.parametrize("users", [300, 40])
def test_eigenvalues_are_those_of_b_from_either_side(synthetic: Interactions, users: int) -> None:
    data = synthetic.rows(np.arange(users)).columns(synthetic.item_counts > 0)
    data = data.columns(data.item_counts > 0)
    points = weight_eigenvalues(data, SETTINGS, "cpu")
    assert len(points) == data.n_items
    # in float32: absolute, because the smallest are 0
    np.testing.assert_allclose(points, dense_eigenvalues(data), atol=2e-6)


def test_larger_beta_means_smaller_eigenvalues(synthetic: Interactions) -> None:
    steps = []
    for beta in (0.0, 0.5, 1.0):
        settings = {**SETTINGS, "normalizer": {"name": "DAN", "alpha": 0.0, "beta": beta}}
        steps.append(weight_eigenvalues(synthetic, settings, "cpu"))
    assert (steps[0] > steps[1]).all()
    assert (steps[1] > steps[2]).all()


def test_densities_have_an_area_of_about_one(rng: np.random.Generator) -> None:
    means = np.concatenate([rng.normal(2, 0.3, 300), rng.normal(0, 0.5, 900)])
    lines = densities(means, np.arange(1200) < 300)
    for group, centre in (("head", 2.0), ("tail", 0.0)):
        x, y = (np.array([line[key] for line in lines if line["group"] == group]) for key in "xy")
        # a little lies outside the drawn range
        assert np.trapezoid(y, x) == pytest.approx(1.0, abs=0.03)
        assert x[np.argmax(y)] == pytest.approx(centre, abs=0.2)


def test_the_user_is_like_that_of_the_paper(synthetic: Interactions) -> None:
    user = typical_user(synthetic, 5)
    row = int(synthetic.user_index.positions([user])[0])
    short = (synthetic.user_counts >= 5) & (synthetic.user_counts <= 10)
    assert short[row]
    tail = synthetic.matrix @ (~head_items(synthetic.item_counts)).astype(float)
    gaps = np.abs(tail / synthetic.user_counts - 0.8)
    assert gaps[row] == gaps[short].min()


def drawn(name: str, data: Path, place: Path) -> Path:
    """Run a figure and return its files, without their endings."""
    run(shortened(name), data, place / "results" / f"{name}.csv")
    return place / "figures" / name


@pytest.mark.parametrize(
    ("name", "mark", "words"),
    [
        ("figure5", "stroke-dasharray", {"ML-1M (for ML-20M)", "head items", "alpha", "NDCG@20"}),
        ("figure1", "<pattern", {"Gowalla", "tail items", "W/O Norm.", "NDCG@20"}),
    ],
)
def test_series_differ_without_colour_and_everything_is_named(
    name: str, mark: str, words: set[str], small: Path, tmp_path: Path
) -> None:
    stem = drawn(name, small, tmp_path / "one")
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    picture = stem.with_suffix(".svg")
    assert mark in picture.read_text()
    written = {node.text for node in ET.parse(picture).iter() if node.tag.endswith("text")}
    assert words <= written
    assert pl.read_csv(stem.with_suffix(".csv"))["ndcg@20"].is_between(0, 1).all()
    again = drawn(name, small, tmp_path / "other")
    for end in (".svg", ".png", ".csv"):
        assert again.with_suffix(end).read_bytes() == stem.with_suffix(end).read_bytes()


def test_without_matplotlib_the_points_are_written(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = shortened("figure5"), tmp_path / "p" / "results" / "figure5.csv"
    messages: list[str] = []
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        run(config, small, out, say=messages.append)
    assert "the picture was not drawn" in messages[-1]
    assert "pip install 'equipoise[report]'" in messages[-1]
    folder = tmp_path / "p" / "figures"
    assert [file.name for file in folder.iterdir()] == ["figure5.csv"]
    run(config, tmp_path / "empty", out)
    assert (folder / "figure5.svg").is_file()


def test_a_figure_without_data_says_so(tmp_path: Path, no_cache: None) -> None:
    messages: list[str] = []
    points = run(shortened("figure8"), tmp_path, tmp_path / "r" / "x.csv", say=messages.append)
    assert not points.height
    assert messages == ["figure8: nothing to draw, none of its data sets is at hand"]
