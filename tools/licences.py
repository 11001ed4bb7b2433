"""List what equipoise needs at run time: name, version, licence, and for which extra.

`python tools/licences.py` prints a Markdown table of this environment, `--json` a software bill of
materials in the form of CycloneDX 1.5. A licence of the GPL family, or a package without one, is
an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import NamedTuple

from packaging.requirements import Requirement

REFUSED = re.compile(r"\bA?GPL|(?<!Lesser )General Public", re.IGNORECASE)  # not the LGPL
LICENCE = "License :: "


class Package(NamedTuple):
    """An installed package and the extras of equipoise that need it; "" is the core."""

    name: str
    version: str
    licence: str
    extras: tuple[str, ...]


def packages() -> tuple[list[Package], list[str]]:
    """Return the packages of this environment in order of their names, and what is missing."""
    asked: dict[str, set[str]] = {}
    missing: set[str] = set()
    for requirement, extra in needed("equipoise"):
        waiting = [requirement]
        while waiting:
            each = waiting.pop()
            key = re.sub(r"[-_.]+", "-", each.name).lower()
            if extra in asked.setdefault(key, set()):
                continue
            asked[key].add(extra)
            try:
                inner = needed(each.name, each.extras)
                waiting += [one for one, of in inner if of in ("", *each.extras)]
            except PackageNotFoundError:
                missing.add(key)
    found = [distribution(name) for name in sorted(asked) if name not in missing]
    keys = sorted(name for name in asked if name not in missing)
    return [
        Package(each.metadata["Name"], each.version, licence(each), tuple(sorted(asked[key])))
        for key, each in zip(keys, found, strict=True)
    ], sorted(missing)


def needed(name: str, extras: set[str] | None = None) -> list[tuple[Requirement, str]]:
    """Return what a package requires on this machine, each with the extra that asks for it."""
    held = distribution(name)
    offered = ["", *(held.metadata.get_all("Provides-Extra") or [])]
    return list(_needed(held, offered if extras is None else ["", *extras]))


def _needed(held: Distribution, extras: list[str]) -> Iterator[tuple[Requirement, str]]:
    for requirement in map(Requirement, held.requires or []):
        for extra in extras:
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                yield requirement, extra
                break


def licence(held: Distribution) -> str:
    """Return the licence that a package declares, in one line."""
    meta = held.metadata
    stated = meta.get("License-Expression") or ""
    classified = [
        each.rpartition(" :: ")[2]
        for each in meta.get_all("Classifier") or []
        if each.startswith(LICENCE)
    ]
    first = (meta.get("License") or "").strip().splitlines()[:1]
    return stated or ", ".join(classified) or (first[0] if first else "") or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a bill of materials")
    as_json = parser.parse_args().json
    found, missing = packages()
    if as_json:
        parts = [
            {
                "type": "library",
                "name": each.name,
                "version": each.version,
                "purl": f"pkg:pypi/{each.name.lower()}@{each.version}",
                "licenses": [{"license": {"name": each.licence}}],
            }
            for each in found
        ]
        print(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "components": parts}))
    else:
        print("| package | version | licence | needed by |\n|---|---|---|---|")
        for each in found:
            by = ", ".join(extra or "the core" for extra in each.extras)
            print(f"| {each.name} | {each.version} | {each.licence} | {by} |")
    if missing:
        print(f"not installed here: {', '.join(missing)}", file=sys.stderr)
    refused = [p.name for p in found if REFUSED.search(p.licence) or p.licence == "unknown"]
    if refused:
        sys.exit(f"not to be depended on, or of no known licence: {', '.join(refused)}")


if __name__ == "__main__":
    main()
