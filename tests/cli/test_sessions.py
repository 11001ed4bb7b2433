"""Session models on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import call

import equipoise as eq

LOG = (
    "visit,page,when\n1,tea,10\n1,milk,20\n2,tea,100\n2,milk,110\n2,cake,120\n3,cake,9\n3,tea,21\n"
)
READ = ("--session", "visit", "--item", "page", "--time", "when")


@pytest.fixture
def visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(LOG)
    options = ("--model", "slist", "--l2", 1, "--mix", 0.3, "--decay-inference", 0)
    done = call("fit", "log.csv", "model", *READ, *options, "--row-norm", "none")
    assert done.exit_code == 0, done.output
    return tmp_path


def test_fit_takes_the_settings_of_a_session_model(visits: Path) -> None:
    model = eq.load(visits / "model")
    expected = eq.SLIST(l2=1.0, mix=0.3, decay_inference=None, row_norm=None)
    assert model.settings() == expected.settings()


def test_recommend_takes_a_session_with_its_order_and_repeats(visits: Path) -> None:
    done = call("recommend", "model", "--session", "tea,milk,tea", "-k", 3, "--json")
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    expected = eq.load(visits / "model").recommend(session=["tea", "milk", "tea"], k=3)
    assert [row["item"] for row in found["items"]] == expected.items[0]
    assert "tea" in expected.items[0]


def test_explain_names_the_clicks(visits: Path) -> None:
    done = call("explain", "model", "cake", "--session", "tea,milk", "--json")
    found = json.loads(done.stdout)
    assert sorted(found["sources"]) == ["milk", "tea"]
    assert sum(found["contributions"]) == found["score"]


def test_what_only_sessions_have_is_refused_elsewhere(visits: Path) -> None:
    done = call("fit", "log.csv", "other", *READ, "--model", "ease", "--mix", 0.5)
    assert done.exit_code == 2
    assert "--model ease has no --mix" in done.output
    done = call("fit", "log.csv", "other", *READ, "--model", "slit", "--mix", 0.5)
    assert "--model slit has no --mix" in done.output
    done = call("fit", "log.csv", "other", *READ, "--model", "popularity")
    assert done.exit_code == 0, done.output
    done = call("recommend", "other", "--session", "tea")
    assert done.exit_code == 2
    assert "--session needs slis, slit or slist" in done.output
