from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import equipoise
from equipoise.cli import doctor


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for everything but torch, whose import takes seconds."""
    real = doctor.importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )


def test_doctor_knows_the_machine(
    answer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    (tmp_path / "movielens-100k").mkdir()
    (tmp_path / "movielens-100k" / "file").write_bytes(b"12345")
    document = answer("doctor")
    assert document["versions"]["equipoise"] == equipoise.__version__
    assert "missing" not in document["versions"].values()
    assert document["cores"] >= 1
    assert 0 < document["memory"]["free"] <= document["memory"]["total"]
    assert document["blas"]
    assert document["cache"] == {"folder": str(tmp_path), "holds": {"movielens-100k": 5}}
    assert document["self_test"]["passed"] is True
    assert document["extras"]["gpu"]["missing"] == ["torch"]


def test_doctor_names_the_remedy_for_missing_extras(run: Callable[..., Result]) -> None:
    shown = run("doctor").stdout
    assert "missing torch: pip install 'equipoise[gpu]'" in shown
    assert "self-test" in shown


def test_a_broken_torch_does_not_stop_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *arguments: Any) -> Any:
        if name == "torch":
            raise OSError("libcudart.so.13: cannot open shared object file")
        return real(name, *arguments)

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(builtins, "__import__", broken)
    assert doctor._gpu() == (
        "torch cannot be imported: libcudart.so.13: cannot open shared object file"
    )
