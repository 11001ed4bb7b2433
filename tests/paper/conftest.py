"""Small data in the published formats, under the names of the paper."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.data.interactions import Interactions
from reproduce.config import Config, load_config

PAPER = Path(__file__).resolve().parents[2] / "paper"


def save_pairs(path: Path, data: Interactions, users: Interactions) -> None:
    """Write a part as the published splits are: pairs of whole numbers."""
    rows = np.repeat(np.arange(data.n_users), data.user_counts)
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(users.n_users, dtype=np.int32)[users.user_index.positions(data.users)]
    items = data.matrix.indices.astype(np.int32)
    np.savez_compressed(path.with_suffix(".npz"), users=numbers[rows], items=items)


def save_weak(folder: Path, data: Interactions, rng: np.random.Generator) -> None:
    target = rng.random(data.n_interactions) < 0.2
    save_pairs(folder / "train", data.entries(~target), data)
    save_pairs(folder / "test", data.entries(target), data)


def save_strong(folder: Path, data: Interactions, rng: np.random.Generator) -> None:
    save_pairs(folder / "train", data.rows(np.arange(220)), data)
    for name, rows in (("valid", np.arange(220, 260)), ("test", np.arange(260, 300))):
        held_out = data.rows(rows)
        is_target = rng.random(held_out.n_interactions) < 0.25
        save_pairs(folder / f"{name}_in", held_out.entries(~is_target), data)
        save_pairs(folder / f"{name}_target", held_out.entries(is_target), data)


def save_movies(folder: Path, data: Interactions) -> None:
    """Write the data as MovieLens latest-small is."""
    folder.mkdir(parents=True)
    rows = np.repeat(np.arange(1, data.n_users + 1), data.user_counts)
    pairs = zip(rows, data.matrix.indices, strict=True)
    lines = [f"{user},{item + 1},5.0,9" for user, item in pairs]
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(lines))
    titles = [f"{item + 1},Film {item + 1} (1999),Drama" for item in range(data.n_items)]
    (folder / "movies.csv").write_text("movieId,title,genres\n" + "\n".join(titles))


def shortened(name: str) -> Config:
    """A table or figure of the paper with fewer values on its axes and fewer turns."""
    config = load_config(PAPER / f"{name}.toml")
    fewer = {"alpha": [0.0, 0.3], "beta": [0.0, 0.5], "noise": [0, 20], "seeds": 2, "repeats": 2}
    options = {key: fewer.get(key, value) for key, value in config.options.items()}
    return replace(config, options=options)


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was fetched on this machine earlier is out of sight."""
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "nothing-fetched"))


@pytest.fixture
def small(tmp_path: Path, synthetic: Interactions, no_cache: None) -> Path:
    """A folder of data: Gowalla in both protocols, ML-1M strong, titles of latest-small."""
    rng = np.random.default_rng(5)
    save_weak(tmp_path / "gowalla" / "weak", synthetic, rng)
    save_strong(tmp_path / "gowalla" / "strong", synthetic, rng)
    save_strong(tmp_path / "ml-1m" / "strong", synthetic, rng)
    save_movies(tmp_path / "ml-latest-small", synthetic)
    return tmp_path


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """The configs and the published numbers, without results."""
    folder = tmp_path / "paper"
    shutil.copytree(PAPER / "published", folder / "published")
    for file in PAPER.glob("*.toml"):
        shutil.copy(file, folder)
    return folder
