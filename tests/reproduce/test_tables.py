from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from equipoise.models.linear import LinearAutoencoder
from equipoise.reproduce import load_config, run_table

PAPER = Path(__file__).resolve().parents[2] / "paper"
TABLES = [file.stem for file in sorted(PAPER.glob("*.toml")) if load_config(file).kind == "table"]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_runs_on_small_data_and_says_what_was_not_run(
    name: str, small: Path, tmp_path: Path
) -> None:
    config = load_config(PAPER / f"{name}.toml")
    results = run_table(config, small, tmp_path / "out.csv", command="a test")
    assert results.height == len(config.rows) * len(config.columns)
    gowalla = [row for row in config.rows if row.dataset == "Gowalla" and row.settings]
    present = [row for row in gowalla if not row.card]
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


def test_neural_rows_wait_for_a_card_and_run_like_the_others(small: Path, tmp_path: Path) -> None:
    config = load_config(PAPER / "table4.toml")
    rows = [row for row in config.rows if row.card and row.dataset == "Gowalla"]
    assert [row.name for row in rows] == ["MultVAE", "LightGCN", "XSimGCL"]
    waiting = run_table(replace(config, rows=rows), small, tmp_path / "waiting.csv")
    assert set(waiting["status"]) == {"not run here"}
    quick = [replace(row, card=False, settings={**row.settings, "epochs": 1}) for row in rows]
    results = run_table(replace(config, rows=quick), small, tmp_path / "out.csv")
    assert results["ours"].is_between(0, 1).all()
    assert results["machine"].str.contains("cores").all()


def test_finished_rows_are_not_run_again(small: Path, tmp_path: Path, monkeypatch) -> None:
    config = load_config(PAPER / "table8.toml")
    first = run_table(config, small, tmp_path / "out.csv")
    monkeypatch.setattr(LinearAutoencoder, "fit", pytest.fail)
    assert run_table(config, small, tmp_path / "out.csv").equals(first)


def test_progress_says_how_many_rows_are_left(small: Path, tmp_path: Path) -> None:
    said: list[str] = []
    config = load_config(PAPER / "table8.toml")
    run_table(config, small, tmp_path / "out.csv", progress=said.append)
    assert f"(1 of {len(said)}, about" in said[0]
    assert said[-1].endswith(f"({len(said)} of {len(said)})")


def test_a_folder_of_the_mult_vae_script_fills_table_2(tmp_path: Path, no_cache: None) -> None:
    folder = tmp_path / "ml-20m" / "pro_sg"
    folder.mkdir(parents=True)
    (folder / "unique_sid.txt").write_text("\n".join(str(item) for item in range(30)))
    pairs = [(user, (user * 7 + step * step) % 30) for user in range(40) for step in range(6)]
    lines = "".join(f"{user},{item}\n" for user, item in pairs)
    (folder / "train.csv").write_text(f"uid,sid\n{lines}")
    for number, name in ((40, "validation"), (41, "test")):
        (folder / f"{name}_tr.csv").write_text(f"uid,sid\n{number},1\n{number},2\n")
        (folder / f"{name}_te.csv").write_text(f"uid,sid\n{number},3\n")
    config = load_config(PAPER / "table2.toml")
    results = run_table(config, tmp_path, tmp_path / "out.csv")
    ran = results.filter(pl.col("ours").is_not_null())
    assert set(ran["dataset"]) == {"ML-20M"}
    assert set(ran["row"]) == {"LAE", "EASE", "RLAE", "DLAE", "EDLAE", "RDLAE"}
