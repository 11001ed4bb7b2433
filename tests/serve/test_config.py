"""Settings from a file, the environment and flags; mistakes name what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import DataError, SettingError
from equipoise.serve.config import Config

WHOLE = """
store = "postgresql://shop@db/shop"
host = "0.0.0.0"
workers = 4
refresh = "1h"
keep = "90d"

[models]
default = "model"
plain = "other"

[weights]
view = 1
buy = 10
return = -5

[limits]
k = 50

[[tokens]]
name = "shop"
secret = "env:SHOP_TOKEN"
role = "write"

[[experiments]]
name = "dial"
models = { default = 0.9, plain = 0.1 }
"""


def test_a_file_says_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "a secret of the shop")
    path = tmp_path / "serve.toml"
    path.write_text(WHOLE)
    for name, value in {"PORT": "9000", "WORKERS": "8", "DRAIN": "0.5"}.items():
        monkeypatch.setenv(f"EQUIPOISE_{name}", value)
    config = Config.read(path, {"workers": 2})
    assert config.drain == 0.5
    assert config.workers == 2
    assert config.port == 9000
    assert config.limits.k == 50
    assert config.tokens[0].secret == "a secret of the shop"
    assert config.weights["return"] == -5
    assert config.keep_seconds == 90 * 86_400


ONE_EACH = "run one service per tenant"
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"sotre": "x"}, "unknown setting 'sotre'; did you mean 'store'"),
    ({"limits": {"bath": 3}}, "unknown setting 'limits.bath'; did you mean 'batch'"),
    ({"tokens": [{"nam": "x"}]}, r"unknown setting 'tokens\[0\].nam'; did you mean 'name'"),
    ({"tokens": [{"name": "x"}]}, r"tokens\[0\].secret is missing"),
    ({"tokens": [{"name": "x", "secret": "short"}]}, "shorter than 16"),
    ({"tokens": [{"name": "x", "secret": "env:NO_SUCH"}]}, "NO_SUCH"),
    (
        {"tokens": [{"name": "x", "secret": "s" * 16, "role": "root"}]},
        "must be 'read', 'write' or 'admin'",
    ),
    ({"tokens": [{"name": "x", "secret": "s" * 16, "tenant": "t"}]}, ONE_EACH),
    ({"tokens": [{"name": "x", "secret": s * 16} for s in "ab"]}, "two tokens have the name 'x'"),
    ({"tokens": [{"name": n, "secret": "s" * 16} for n in "ab"]}, "'a' and 'b' have the same sec"),
    ({"port": "http"}, "port must be a valid integer"),
    ({"port": 70_000}, "port must be less than or equal to 65535, got 70000"),
    ({"workers": 0}, "workers must be greater than or equal to 1, got 0"),
    ({"drain": -1.0}, "drain must be greater"),
    ({"limits": {"headers": 0}}, "limits.headers must be greater than 0"),
    ({"tenants": {"t": {"a": "./x"}}}, ONE_EACH),
    ({"experiments": [{"name": "e", "models": {}, "tenant": "t"}]}, ONE_EACH),
    ({"refresh": "soon"}, "refresh must look like"),
    ({"limits": 3}, "limits must be a table, got 3"),
    ({"limits": {"k": True}}, "limits.k must be a valid integer"),
    ({"models": {}}, "no model to serve"),
    ({"models": {"../x": "y"}}, "names are made of"),
    ({"models": ["x"]}, "models must be a table"),
    ({"cors": "x"}, "cors must be a valid list"),
    ({"weights": {"view": float("nan")}}, "weights.view must be a finite number"),
    ({"tokens": [{"name": "a", "secret": "a" * 16 + "\n"}]}, "begins or ends with a space"),
    ({"experiments": [{"name": "e", "models": {"default": 1}}]}, "at least two models"),
    ({"experiments": [{"name": "e", "models": {"default": 1, "deflt": 1}}]}, "mean 'default'"),
    (
        {"experiments": [{"name": "e", "models": {"default": 1, "b": -1}}]},
        r"experiments\[0\].models.b must be greater than 0, got -1",
    ),
    ({"limits": {"k": 0}}, "limits.k must be greater than 0, got 0"),
]


@pytest.mark.parametrize(("changed", "words"), MISTAKES)
def test_an_invalid_setting_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Config.read(None, {"models": {"default": "x"}, **changed})


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        Config.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = b")
    with pytest.raises(DataError, match="not a TOML file"):
        Config.read(tmp_path / "bad.toml")
