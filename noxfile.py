"""Checks of a release: run all with `make wheelcheck`, or one with `nox -s NAME`."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
BUILD = ["-m", "build", "--no-isolation", "--outdir"]
nox.options.sessions = ["build", "wheel", "lowest"]
nox.options.error_on_missing_interpreters = False
nox.options.default_venv_backend = "venv"


def dist() -> Path:
    """Return the wheel that the session `build` wrote."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


@nox.session(venv_backend="none")
def build(session: nox.Session) -> None:
    """Build wheel and sdist twice with the date of the last commit and compare the files."""
    commit_time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    env = {**os.environ, "SOURCE_DATE_EPOCH": commit_time}
    hashes = []
    for folder in (ROOT / "dist", Path(session.create_tmp()) / "again"):
        for old in folder.glob("equipoise-*"):
            old.unlink()
        session.run(sys.executable, *BUILD, str(folder), env=env, external=True)
        contents = {path.name: path.read_bytes() for path in folder.glob("equipoise-*")}
        hashes.append({name: hashlib.sha256(data).hexdigest() for name, data in contents.items()})
    if hashes[0] != hashes[1] or len(hashes[0]) != 2:
        session.error(f"two builds differ: {hashes}")
    session.log(f"two builds are equal: {hashes[0]}")


@nox.session(python=PYTHONS)
def wheel(session: nox.Session) -> None:
    """Install the wheel without extras and run the smoke test."""
    session.install(str(dist()))
    session.run("python", "-m", "pip", "check")
    session.run("python", "tools/smoke.py")


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the smoke test with the lowest dependency versions that pyproject.toml allows."""
    oldest = subprocess.run(
        [sys.executable, "tools/floors.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    session.install(str(dist()), *oldest)
    session.run("python", "-m", "pip", "check")
    session.run("python", "tools/smoke.py")
