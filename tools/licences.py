"""List the run-time dependencies of equipoise: name, version, licence, and extras that need them.

`python tools/licences.py` prints a Markdown table of this environment, `--json` a software bill of
materials in CycloneDX 1.5 format. A GPL or AGPL licence, or a package without a licence, is an
error.
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
    """An installed package and the extras of equipoise that need it; "" stands for the core."""

    name: str
    version: str
    licence: str
    extras: tuple[str, ...]


def packages() -> tuple[list[Package], list[str]]:
    """Return the packages of this environment, sorted by name, and the names of missing ones."""
    extras_by_package: dict[str, set[str]] = {}
    missing: set[str] = set()
    for requirement, extra in needed("equipoise"):
        waiting = [requirement]
        while waiting:
            required = waiting.pop()
            key = re.sub(r"[-_.]+", "-", required.name).lower()
            if extra in extras_by_package.setdefault(key, set()):
                continue
            extras_by_package[key].add(extra)
            try:
                inner = needed(required.name, required.extras)
                waiting += [need for need, of in inner if of in ("", *required.extras)]
            except PackageNotFoundError:
                missing.add(key)
    installed = {key: distribution(key) for key in sorted(extras_by_package.keys() - missing)}
    return [
        Package(
            package.metadata["Name"],
            package.version,
            licence(package),
            tuple(sorted(extras_by_package[key])),
        )
        for key, package in installed.items()
    ], sorted(missing)


def needed(name: str, extras: set[str] | None = None) -> list[tuple[Requirement, str]]:
    """Return the requirements of a package on this machine, each with the extra that needs it."""
    package = distribution(name)
    offered = ["", *(package.metadata.get_all("Provides-Extra") or [])]
    return list(_needed(package, offered if extras is None else ["", *extras]))


def _needed(package: Distribution, extras: list[str]) -> Iterator[tuple[Requirement, str]]:
    for requirement in map(Requirement, package.requires or []):
        for extra in extras:
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                yield requirement, extra
                break


def licence(package: Distribution) -> str:
    """Return the licence that a package declares, as one line."""
    meta = package.metadata
    stated = meta.get("License-Expression") or ""
    classified = [
        classifier.rpartition(" :: ")[2]
        for classifier in meta.get_all("Classifier") or []
        if classifier.startswith(LICENCE)
    ]
    first = (meta.get("License") or "").strip().splitlines()[:1]
    return stated or ", ".join(classified) or (first[0] if first else "") or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a bill of materials")
    as_json = parser.parse_args().json
    dependencies, missing = packages()
    if as_json:
        parts = [
            {
                "type": "library",
                "name": package.name,
                "version": package.version,
                "purl": f"pkg:pypi/{package.name.lower()}@{package.version}",
                "licenses": [{"license": {"name": package.licence}}],
            }
            for package in dependencies
        ]
        print(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "components": parts}))
    else:
        print("| package | version | licence | needed by |\n|---|---|---|---|")
        for package in dependencies:
            by = ", ".join(extra or "the core" for extra in package.extras)
            print(f"| {package.name} | {package.version} | {package.licence} | {by} |")
    if missing:
        print(f"not installed here: {', '.join(missing)}", file=sys.stderr)
    refused = [p.name for p in dependencies if REFUSED.search(p.licence) or p.licence == "unknown"]
    if refused:
        sys.exit(f"GPL, AGPL or unknown licence, remove the dependency: {', '.join(refused)}")


if __name__ == "__main__":
    main()
