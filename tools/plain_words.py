"""Count identifiers that do not describe their content, such as `found` or `wanted`.

``python tools/plain_words.py src tests`` prints the rate per 1,000 identifiers of each folder and
its worst files. With ``--most RATE``, folders above that rate are an error and every place in them
is listed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WORDS = """
found each kept own wanted some given held how whole made told asked taken said mine theirs
others rest whose what which thing things stuff them those these
"""
VAGUE = frozenset(WORDS.split())
WORST_FILES = 3


class Place(NamedTuple):
    """An identifier and where it is written."""

    path: Path
    line: int
    name: str


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of the variables, arguments, attributes, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name


def is_vague(name: str) -> bool:
    """Tell whether a name is a vague word, apart from case, underscores and digits at its ends.

    >>> is_vague("_found"), is_vague("each2"), is_vague("found_rows")
    (True, True, False)
    """
    return name.strip("_0123456789").lower() in VAGUE


def check_folder(folder: Path) -> tuple[int, list[Place]]:
    """Return the number of identifiers in a folder's Python files, and the vague ones."""
    total = 0
    vague = []
    for path in sorted(folder.rglob("*.py")):
        for line, name in identifiers(path.read_text(encoding="utf-8")):
            total += 1
            if is_vague(name):
                vague.append(Place(path, line, name))
    return total, vague


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--most", type=float, metavar="RATE", help="highest rate per 1,000")
    options = parser.parse_args(arguments)
    above = []
    for folder in options.folders:
        total, vague = check_folder(folder)
        if not total:
            sys.exit(f"{folder} has no Python files with identifiers; name another folder")
        rate = 1000 * len(vague) / total
        print(f"{folder}: {rate:.1f} vague names per 1,000 of {total:,} identifiers")
        for path, count in Counter(place.path for place in vague).most_common(WORST_FILES):
            print(f"{count:6}  {path}")
        if options.most is not None and rate > options.most:
            above.append(str(folder))
            for place in sorted(vague):
                print(f"{place.path}:{place.line}: {place.name}")
    if above:
        sys.exit(
            f"more than {options.most:g} vague names per 1,000 in {', '.join(above)}: "
            "rename them after their content"
        )


if __name__ == "__main__":
    main()
