"""The recipes fit the service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.serve.config import Config

ROOT = Path(__file__).resolve().parents[2]


def test_the_settings_of_the_recipe_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_TOKEN", "a token of the shop")
    monkeypatch.setenv("EQUIPOISE_ADMIN", "a token of the operator")
    config = Config.read(ROOT / "deploy" / "serve.toml", environment={})
    assert [token.role for token in config.tokens] == ["write", "admin"]
    assert config.workers == 2


def test_the_guide_names_every_route_and_setting() -> None:
    guide = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    for name in Config.__dataclass_fields__:
        assert f"`{name}" in guide, name
    source = (ROOT / "src" / "equipoise" / "serve" / "app.py").read_text(encoding="utf-8")
    for route in re.findall(r'@app\.\w+\("(/v1/[^"{]*)', source):
        assert route.rstrip("/") in guide, route
