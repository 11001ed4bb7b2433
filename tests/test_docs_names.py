"""Every dotted name and every path that a document mentions exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.models import saving

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "equipoise"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "RELEASING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
FOLDERS = (ROOT, PACKAGE, ROOT / "paper", PACKAGE / "data", ROOT / "deploy")
SUFFIX = (
    "cff|csv|db|gz|html|inter|json|jsonl|lock|md|npz|parquet|pth|pyi?|service|sh|svg|toml|txt|"
    "xlsx|yaml"
)
OTHER_LIBRARIES = {"Dataset", "algo", "distributed", "mlflow", "np", "pd", "pl", "torch"}
NOT_OURS = {"model.similar_items", "vX.Y.Z"}  # a method of implicit, a version
# What the variables of the documents hold.
VARIABLES = {
    "client": "Client",
    "comparison": "Comparison",
    "data": "Interactions",
    "data_": "Interactions",
    "lists": "Recommendations",
    "result": "Result",
    "rules": "Rules",
    "split": "Split",
    "tuned": "Tuned",
    "vectors": "Vectors",
}


def resolves(root: object, parts: list[str]) -> bool:
    """Return whether the attributes lead from the root to something, through submodules too."""
    value = root
    for part in parts:
        if isinstance(value, type):
            return has_attribute(value, part)
        try:
            value = getattr(value, part)
        except AttributeError:
            module = f"{getattr(value, '__name__', '')}.{part}"
            try:
                value = importlib.import_module(module)
            except ImportError:  # a module that needs a library which is not installed
                return (PACKAGE.parent / module.replace(".", "/")).with_suffix(".py").exists()
    return True


def has_attribute(owner: type, name: str) -> bool:
    """Return whether instances have the attribute: declared, annotated or documented."""
    for base in owner.__mro__:
        if name in vars(base) or name in vars(base).get("__annotations__", {}):
            return True
        headings = re.findall(r"^    (\w+(?:, \w+)*)$", base.__doc__ or "", flags=re.MULTILINE)
        if any(name in heading.split(", ") for heading in headings):
            return True
    return False


def model_classes() -> list[type]:
    return [value for value in saving.model_classes.values() if isinstance(value, type)]


def exists(name: str) -> bool:
    """Return whether a dotted name of a document exists in the package."""
    root, *parts = name.split(".")
    if root in ("eq", "equipoise"):
        return resolves(eq, parts)
    if root == "model":
        return any(has_attribute(owner, parts[0]) for owner in model_classes())
    if root == "limits":
        return resolves(importlib.import_module("equipoise.serve.config"), ["Limits", *parts])
    if root == "hits":
        return resolves(eq.metrics, ["Hits", *parts])
    if root in VARIABLES:
        return has_attribute(getattr(eq, VARIABLES[root]), parts[0])
    if root in eq.__all__:
        return resolves(eq, [root, *parts])
    # a module, as in `ranking.terms.Term` or `dense.Gram`
    for folder in ("", *(f".{path.name}" for path in PACKAGE.iterdir() if path.is_dir())):
        try:
            module = importlib.import_module(f"equipoise{folder}.{root}")
        except ImportError:
            continue
        if resolves(module, parts):
            return True
    return False


def dotted_names(text: str) -> set[str]:
    """Return the dotted names in inline code, and those that begin with eq or equipoise."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    names = set(re.findall(r"\b(?:eq|equipoise)(?:\.[A-Za-z_]\w*)+", text))
    for code in re.findall(r"`([^`\n]+)`", prose):
        match = re.match(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?![\w/.*-])", code)
        if match and "/" not in code.split("(")[0]:
            names.add(match[1])
    return {
        name
        for name in names
        if name.split(".")[0] not in OTHER_LIBRARIES
        and not re.fullmatch(SUFFIX, name.rpartition(".")[2])
        and name not in NOT_OURS
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_dotted_name_of_a_page_exists(page: Path) -> None:
    names = dotted_names(page.read_text(encoding="utf-8"))
    assert sorted(name for name in names if not exists(name)) == []


def test_the_check_of_names_finds_what_is_missing() -> None:
    text = "`eq.split.strong`, `model.halve`, `Tuned.notes`, `tuned.notes`, `dense.Gram`, eq.EASE"
    assert all(exists(name) for name in dotted_names(text))
    assert dotted_names(text) >= {"Tuned.notes", "dense.Gram", "eq.EASE", "model.halve"}
    missing = "`eq.split.stronger`, `model.divide()`, `Tuned.remark`, `dense.Graph`, `data.evnts`"
    assert not any(exists(name) for name in dotted_names(missing))
    assert len(dotted_names(missing)) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_of_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    paths = set(re.findall(rf"(?<![\w/:.-])((?:[a-z_]+/)+[\w-]+\.(?:{SUFFIX}))\b", prose))
    missing = [
        path
        for path in sorted(paths)
        if not any((folder / path).exists() for folder in (*FOLDERS, page.parent))
    ]
    assert missing == []


def test_every_module_of_the_tree_exists() -> None:
    tree = ARCHITECTURE.read_text(encoding="utf-8").partition("## Package layout")[2]
    block = [line for line in tree.partition("\n## ")[0].splitlines() if line.startswith("    ")]
    missing = []
    folders: list[tuple[int, Path]] = []
    for line in block:
        indent = len(line) - len(line.lstrip())
        folders = [(depth, folder) for depth, folder in folders if depth < indent]
        parent = folders[-1][1] if folders else PACKAGE
        if match := re.match(r" +([a-z_/]+)/(?= |$)", line):
            folder = parent / match[1]
            parent = folder if folder.is_dir() else ROOT / match[1]
            if indent < 30:
                folders.append((indent, parent))
        for name in re.findall(r"(?<![\w/])([a-z_]+\.py)\b", line):
            # the line of docs/ names tools/ too
            homes = [parent, ROOT / "tools"] if parent == ROOT / "docs" else [parent]
            if not any((home / name).exists() for home in homes):
                missing.append(f"{parent.name}/{name}")
    assert missing == []
