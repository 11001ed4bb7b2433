"""The page on rules runs, its TOML example included."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import equipoise as eq

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "rules.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_page_on_rules_runs(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, names)
    shown = names["model"].recommend(["ann"], k=3, rules=names["rules"]).items
    assert f"# {shown}" in PAGE
    assert names["model"].recommend([["rice"]], k=3, rules=names["chosen"]).items == [["tea"]]
    assert names["theirs"].name == "theirs"
    (toml,) = blocks("toml")
    (tmp_path / "rules.toml").write_text(toml, encoding="utf-8")
    rules = eq.Rules.load(tmp_path / "rules.toml")
    assert rules.settings().keys() == {
        "include",
        "exclude",
        "users",
        "boost",
        "at_most",
        "pin",
        "diversity",
        "seen",
    }


def test_the_page_names_every_rule() -> None:
    table = PAGE.partition("## Available rules")[2].partition("Items are chosen")[0]
    assert all(f"`{name}`" in table for name in eq.Rules.__dataclass_fields__)
