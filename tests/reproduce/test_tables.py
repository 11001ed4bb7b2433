from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from equipoise.errors import DataError
from equipoise.interactions import Interactions
from equipoise.models.autoencoder import LinearAutoencoder
from equipoise.reproduce import load_config, run_table
from equipoise.reproduce.tables import status

PAPER = Path(__file__).resolve().parents[2] / "paper"
TABLES = sorted(file.stem for file in PAPER.glob("*.toml"))


@pytest.fixture
def small(tmp_path: Path, synthetic: Interactions) -> Path:
    """The synthetic data as a published strong and weak split, under a name of the paper."""
    rng = np.random.default_rng(5)

    def save(name: str, data: Interactions) -> None:
        rows = np.repeat(np.arange(data.n_users), data.user_counts)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            tmp_path / f"{name}.npz",
            users=np.arange(300, dtype=np.int32)[synthetic.user_index.positions(data.users)[rows]],
            items=data.matrix.indices.astype(np.int32),
        )

    target = rng.random(synthetic.n_interactions) < 0.2
    save("gowalla/weak/train", synthetic.entries(~target))
    save("gowalla/weak/test", synthetic.entries(target))
    save("gowalla/strong/train", synthetic.rows(np.arange(220)))
    for name, rows in (("valid", np.arange(220, 260)), ("test", np.arange(260, 300))):
        held = synthetic.rows(rows)
        wanted = rng.random(held.n_interactions) < 0.25
        save(f"gowalla/strong/{name}_in", held.entries(~wanted))
        save(f"gowalla/strong/{name}_target", held.entries(wanted))
    return tmp_path


@pytest.mark.parametrize("name", TABLES)
def test_every_table_runs_on_small_data_and_says_what_was_not_run(
    name: str, small: Path, tmp_path: Path
) -> None:
    config = load_config(PAPER / f"{name}.toml")
    results = run_table(config, small, tmp_path / "out.csv", command="a test")
    assert results.height == len(config.rows) * len(config.columns)
    present = [row for row in config.rows if row.dataset == "Gowalla" and row.settings]
    ran = results.filter(pl.col("ours").is_not_null())
    assert ran.height == len(present) * len(config.columns)
    assert ran["ours"].is_between(0, 1).all()
    rest = results.filter(pl.col("ours").is_null())
    assert set(rest["status"]) <= {"not run here"}


def test_rows_that_share_a_system_share_the_solve(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(PAPER / "table3.toml")
    fits = []
    original = LinearAutoencoder.fit
    monkeypatch.setattr(
        LinearAutoencoder,
        "fit",
        lambda self, *a, **k: (fits.append(1), original(self, *a, **k))[1],
    )
    run_table(config, small, tmp_path / "out.csv")
    # 9 rows; EASE and RLAE share l2 80, EASE_DAN and RLAE_DAN share their system
    assert len(fits) == 7


def test_finished_rows_are_not_run_again(small: Path, tmp_path: Path, monkeypatch) -> None:
    config = load_config(PAPER / "table8.toml")
    first = run_table(config, small, tmp_path / "out.csv")
    monkeypatch.setattr(LinearAutoencoder, "fit", pytest.fail)
    assert run_table(config, small, tmp_path / "out.csv").equals(first)


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


def test_unknown_table_names_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"known: .*table3"):
        load_config(PAPER / "table99.toml")
