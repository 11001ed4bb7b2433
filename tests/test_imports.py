"""Importing costs little, every public name resolves, and nothing imports upward."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import equipoise
from equipoise.cli.app import COMMANDS, app

SOURCE = Path(equipoise.__file__).parent
HEAVY = ["torch", "matplotlib", "optuna", "fastapi", "numba", "polars", "scipy", "rich", "typer"]
EXTRAS = ["torch", "matplotlib", "jinja2", "optuna", "fastapi", "sqlalchemy", "dask"]
# Data flows down: a module may import from its own line and from those above it.
ORDER = [
    ["errors"],
    ["checks", "names", "runtime", "display.drawing"],
    ["display.notebook"],
    ["data.ids", "data.matrix", "data.remote"],
    ["data.events"],
    ["data.pairs"],
    ["data.storage", "data.read_options"],
    ["data.tables"],
    ["data.columns"],
    ["data.attributes"],
    ["data.catalogue"],
    ["data.interactions", "runtime.resume"],
    ["data.training"],
    ["data.blocks"],
    ["data.readers"],
    ["data.datasets"],
    ["data.statistics", "display.plot"],
    ["data.split"],
    ["data.signals"],
    ["normalize", "automatic"],
    ["solve"],
    ["ranking"],
    ["evaluation.metrics", "evaluation.resampling"],
    ["models"],
    ["evaluation"],
    ["tuning"],
    ["report"],
    ["serve", "cluster", "wrappers"],
    ["cli", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


def loaded(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert not loaded("import equipoise") & set(HEAVY)


def called(*words: str) -> set[str]:
    """Names of the modules that the command has loaded when it ends."""
    code = (
        "import atexit, sys; from equipoise.cli.app import main; "
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        f"sys.argv = {['equipoise', *words]}; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def commands(modules: set[str]) -> set[str]:
    """Return the modules of commands among these."""
    return {name.removeprefix("equipoise.cli.") for name in modules} & {*COMMANDS.values()}


def test_the_help_of_the_command_imports_nothing_heavy() -> None:
    present = called("--help")
    assert not present & {"numpy", "scipy", "polars", "numba", "torch", "rich.progress"}


def test_the_help_of_one_command_imports_no_other() -> None:
    present = called("doctor", "--help")
    assert not present & {"numpy", "scipy", "polars", "numba", "torch"}
    assert commands(present) == {"doctor"}


def test_a_command_is_summarised_by_the_first_line_of_its_help() -> None:
    group = get_command(app)
    shown = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "300"}).output.split())
    assert list(group.commands) == list(COMMANDS)  # type: ignore[attr-defined]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        summary = inspect.cleandoc(command.help).split("\n\n")[0]
        assert f"{name} {' '.join(summary.split())}" in shown


def test_no_public_name_needs_an_extra() -> None:
    present = loaded("import equipoise; [getattr(equipoise, n) for n in equipoise.__all__]")
    assert not present & set(EXTRAS)


@pytest.mark.parametrize("name", equipoise.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(equipoise, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = equipoise.nonsense


def test_dir_lists_the_public_names() -> None:
    assert set(equipoise.__all__) == set(dir(equipoise))


def level(module: str) -> int:
    """Return the line of the order that a module belongs to: that of its longest name in it."""
    parts = module.split(".")
    names = (".".join(parts[:size]) for size in range(len(parts), 0, -1))
    return next((LEVEL[name] for name in names if name in LEVEL), -1)


def modules() -> dict[str, Path]:
    """Return the file of every module, by its dotted name inside the package."""
    paths = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
    dotted = {path: ".".join(path.with_suffix("").parts) for path in paths}
    return {name.removesuffix(".__init__"): SOURCE / path for path, name in dotted.items()}


def test_the_order_knows_every_module() -> None:
    empty = {"data", "display"}  # packages whose modules stand on several lines
    assert {name for name in modules() if level(name) < 0} == {"__init__", *empty}


def imports(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, inside functions too; not those for types."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (
            name.removeprefix("equipoise.") for name in names if name.startswith("equipoise.")
        )


def test_no_module_imports_upward() -> None:
    upward = {
        f"{importing} imports {imported}"
        for importing, path in modules().items()
        if importing != "__init__"
        for imported in imports(path)
        if level(imported) > level(importing)
    }
    assert not upward


def packages() -> list[str]:
    folders = [path.parent.relative_to(SOURCE.parent) for path in SOURCE.rglob("__init__.py")]
    return sorted(".".join(path.parts) for path in folders)


@pytest.mark.parametrize("name", packages())
def test_no_name_of_a_package_hides_a_module(name: str) -> None:
    package = importlib.import_module(name)
    hidden = [
        module.name
        for module in pkgutil.iter_modules(package.__path__)
        if not isinstance(getattr(package, module.name, package), ModuleType)
    ]
    assert not hidden
