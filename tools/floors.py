"""Print the core dependencies at the lowest versions that pyproject.toml allows.

``pip install $(python tools/floors.py)`` installs them: `make floors`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[^\]]*\])?")


def lowest(requirement: str) -> str:
    """Pin a requirement to its lowest version, that of its bound `>=`.

    >>> lowest("numba>=0.61,<0.69"), lowest("tool[fast] >= 2 ; python_version > '3'")
    ('numba==0.61', 'tool[fast]==2')
    """
    name = NAME.match(requirement)
    bounds = re.findall(r">=\s*([^\s,;]+)", requirement.partition(";")[0])
    if name is None or len(bounds) != 1:
        raise SystemExit(
            f"{requirement!r} in {PROJECT.name} needs one bound >=, as in 'name>=1.2'"
        )
    return f"{name[0]}=={bounds[0]}"


def floors() -> list[str]:
    """Return the lowest version of each core dependency."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return [lowest(requirement) for requirement in project["dependencies"]]


if __name__ == "__main__":
    print(*floors())
