"""What is released fits together: versions, pinned requirements, licences."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import equipoise as eq

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOOL = ROOT / "tools" / "licences.py"
FLOORS = ROOT / "tools" / "floors.py"


def test_the_version_is_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert PROJECT["project"]["version"] == eq.__version__
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [eq.__version__]


def test_every_development_requirement_is_pinned_within_its_range() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").split()
    names = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines]
    pinned = dict(zip(names, (line.partition("==")[2] for line in lines), strict=True))
    requirements = [*PROJECT["project"]["dependencies"]]
    requirements += [
        entry
        for group in PROJECT["dependency-groups"].values()
        for entry in group
        if isinstance(entry, str)
    ]
    for requirement in map(Requirement, requirements):
        version = pinned[re.sub(r"[-_.]+", "-", requirement.name).lower()]
        assert requirement.specifier.contains(version), requirement


def test_the_floors_are_the_lowest_versions_that_each_core_requirement_allows() -> None:
    done = subprocess.run(
        [sys.executable, str(FLOORS)], capture_output=True, text=True, check=True
    )
    floors = [Requirement(text) for text in done.stdout.split()]
    requirements = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    assert [floor.name for floor in floors] == [requirement.name for requirement in requirements]
    for floor, requirement in zip(floors, requirements, strict=True):
        (pin,) = floor.specifier
        assert pin.operator == "=="
        assert f">={pin.version}" in map(str, requirement.specifier)
        assert requirement.specifier.contains(pin.version)


@pytest.mark.parametrize(
    ("requirement", "floor"),
    [
        ("numpy>=2.0", "numpy==2.0"),
        ("numba>=0.61,<0.69", "numba==0.61"),
        ("numba<0.69, >=0.61", "numba==0.61"),
        ("psycopg[binary] >= 3.2", "psycopg[binary]==3.2"),
        ("uvloop>=0.20; python_version >= '3.11'", "uvloop==0.20"),
    ],
)
def test_a_floor_is_read_from_any_form_of_a_requirement(requirement: str, floor: str) -> None:
    assert runpy.run_path(str(FLOORS))["lowest"](requirement) == floor


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3", "numpy==2.0", "numpy>=2,>=2.1"])
def test_a_requirement_without_one_lowest_version_is_refused(requirement: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(repr(requirement))):
        runpy.run_path(str(FLOORS))["lowest"](requirement)


def test_numba_whose_private_parts_are_used_has_an_upper_bound() -> None:
    (numba,) = (
        requirement
        for requirement in map(Requirement, PROJECT["project"]["dependencies"])
        if requirement.name == "numba"
    )
    assert any(bound.operator == "<" for bound in numba.specifier)


def test_the_bill_of_materials_holds_the_core_with_licences() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--json"], capture_output=True, text=True, check=True
    )
    parts = {part["name"]: part for part in json.loads(done.stdout)["components"]}
    for entry in PROJECT["project"]["dependencies"]:
        part = parts[Requirement(entry).name]
        assert part["licenses"][0]["license"]["name"] != "unknown"
        assert part["purl"].startswith("pkg:pypi/")


@pytest.mark.parametrize(
    ("licence", "refused"),
    [
        ("GPL-3.0-only", True),
        ("GNU Affero General Public License v3 (AGPLv3+)", True),
        ("AGPL-3.0", True),
        ("LGPL-2.1-or-later", False),
        ("MIT", False),
    ],
)
def test_licences_of_the_gpl_family_are_refused(licence: str, refused: bool) -> None:
    pattern = runpy.run_path(str(TOOL))["REFUSED"]
    assert bool(pattern.search(licence)) is refused
