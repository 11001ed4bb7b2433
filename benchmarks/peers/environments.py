"""Create a virtual environment for each library that equipoise is compared with.

    python benchmarks/peers/environments.py FOLDER [NAME ...]

The environment FOLDER/NAME uses the first of the library's Python versions that this machine has.
Existing environments are reused. If an installation fails, its error is written to
FOLDER/NAME.error and shown in the table; remove that file to try again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = (*PROJECT["dependencies"], "pytest")  # to run equipoise's own tests beside the library
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Environment:
    """Packages to install, and Python versions in order of preference."""

    packages: tuple[str, ...]
    pythons: tuple[str, ...] = ("3.11", "3.12", "3.13")


ENVIRONMENTS = {
    "implicit": Environment(("implicit", "pandas")),
    "irspack": Environment(("irspack",)),
    "RecTools": Environment(("rectools", *OURS), ("3.13", "3.12", "3.11")),  # numpy 2 from 3.13 on
    "LensKit": Environment((TORCH, "lenskit", *OURS), ("3.13", "3.12", "3.11")),
    "Cornac": Environment(("cornac",)),
    "RecPack": Environment((TORCH, "recpack")),
    # the version ranges of RecBole allow versions with which it cannot be imported
    "RecBole": Environment((TORCH, "recbole", "setuptools<81", "numpy<2", "pandas<3")),
    # built from source with libsuitesparse-dev; 0.5 requires a newer SuiteSparse than Debian has
    "sansa": Environment(("sansa", "scikit-sparse<0.5")),
    # for new_items.py; the fork that RecTools maintains, as LightFM itself does not build any more
    "LightFM": Environment(("rectools-lightfm", "numpy", "scipy"), ("3.12", "3.11", "3.13")),
    "Surprise": Environment(("scikit-surprise", "pandas")),
    "MLflow": Environment(("mlflow", "pandas", *OURS)),
}


def interpreter(versions: tuple[str, ...]) -> str:
    """Return the first of these Python versions that runs here, or the current interpreter."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in versions:
        pyenv_pythons = map(str, pyenv.glob(f"{version}.*/bin/python"))
        for path in filter(None, [shutil.which(f"python{version}"), *pyenv_pythons]):
            if not subprocess.run([path, "--version"], capture_output=True).returncode:
                return path
    return sys.executable


def python_of(folder: Path, name: str) -> Path:
    """Return the Python interpreter of an environment."""
    return folder / name / "bin" / "python"


def make(folder: Path, name: str) -> str:
    """Create one environment; return its error, "" on success."""
    error, done = folder / f"{name}.error", folder / name / ".done"
    if error.exists():
        return error.read_text(encoding="utf-8")
    if done.exists():
        return ""
    environment = ENVIRONMENTS[name]
    folder.mkdir(parents=True, exist_ok=True)
    python = interpreter(environment.pythons)
    for command in (
        [python, "-m", "venv", "--clear", str(folder / name)],
        [str(python_of(folder, name)), "-m", "pip", "install", "--quiet", *environment.packages],
    ):
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            lines = [line.strip() for line in run.stderr.splitlines() if "error" in line.lower()]
            error.write_text("\n".join(lines[:6]), encoding="utf-8")
            return "\n".join(lines[:6])
    done.touch()
    return ""


def make_all(folder: Path, names: list[str]) -> dict[str, str]:
    """Create environments in parallel, since they mostly wait for the disk and the network."""
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(names, pool.map(lambda name: make(folder, name), names), strict=True))


if __name__ == "__main__":
    where, names = Path(sys.argv[1]), sys.argv[2:] or list(ENVIRONMENTS)
    for name, error in make_all(where, names).items():
        print(f"{name}: {error or 'ready'}", flush=True)
