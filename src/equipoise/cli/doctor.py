"""The command `doctor`: the environment, missing extras and a self-test."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer

from equipoise.cli.framework import Json, declare, emit, show, size_text, working

app = typer.Typer()

CORE = ("numpy", "scipy", "polars", "narwhals", "numba", "threadpoolctl", "typer", "rich")
EXTRAS = {
    "gpu": ("torch",),
    "neural": ("torch",),
    "tune": ("optuna",),
    "report": ("matplotlib", "jinja2"),
    "serve": (
        *("fastapi", "uvicorn", "uvloop", "httptools"),
        *("sqlalchemy", "psycopg", "prometheus_client"),
    ),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "cluster": ("dask", "distributed"),
}


@declare(app, "doctor", "equipoise doctor")
def doctor(as_json: Json = False) -> None:
    """Show versions, BLAS, memory, GPU, extras and cache; run a self-test."""
    with working("examining this machine"):
        facts = examine()
    if as_json:
        emit(facts)
        return
    versions, memory, cache = facts["versions"], facts["memory"], facts["cache"]
    extras = []
    for name, extra in facts["extras"].items():
        missing = f"missing {', '.join(extra['missing'])}: {extra['remedy']}"
        extras.append((f"extra {name}", missing if extra["missing"] else "installed"))
    cached = [f"{name} ({size_text(size)})" for name, size in cache["holds"].items()]
    test = facts["self_test"]
    rate = f"{test['gflops']:.0f} Gflop/s in float32, residual {test['residual']:.1e}"
    rows = [
        ("equipoise", f"{versions['equipoise']}, Python {versions['python']}"),
        ("packages", ", ".join(f"{name} {versions[name]}" for name in CORE)),
        ("machine", f"{facts['machine']}, {facts['cores']} cores for this process"),
        *(("BLAS", "{name} {version}, {threads} threads".format(**b)) for b in facts["blas"]),
        ("memory", f"{size_text(memory['free'])} free of {size_text(memory['total'])}"),
        ("GPU", facts["gpu"]),
        *extras,
        ("cache", f"{cache['folder']}: {', '.join(cached) or 'empty'}"),
        ("self-test", f"{'passed' if test['passed'] else 'FAILED'}: solve at {rate}"),
    ]
    show(rows)
    if not test["passed"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Return all facts that `doctor` prints."""
    import equipoise
    from equipoise.runtime.machine import count, free_memory, meminfo

    return {
        "versions": {
            "equipoise": equipoise.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in CORE},
        },
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": count(),
        "blas": _blas(),
        "memory": {"free": free_memory(), "total": meminfo("MemTotal")},
        "gpu": _gpu(),
        "extras": {name: _extra(name, modules) for name, modules in EXTRAS.items()},
        "cache": _cache(),
        "self_test": _self_test(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _blas() -> list[dict[str, Any]]:
    from threadpoolctl import threadpool_info

    for name in ("numpy", "scipy.linalg"):  # threadpoolctl sees loaded libraries only
        importlib.import_module(name)
    loaded = [library for library in threadpool_info() if library["user_api"] == "blas"]
    keys = {"name": "internal_api", "version": "version", "threads": "num_threads"}
    libraries = []
    for library in loaded:
        facts = {name: library.get(key) for name, key in keys.items()}
        if facts not in libraries:
            libraries.append(facts)
    return libraries


def _gpu() -> str:
    if importlib.util.find_spec("torch"):
        try:
            import torch
        except Exception as error:  # a broken torch must not stop the doctor
            return f"torch cannot be imported: {str(error).splitlines()[0]}"
        if torch.cuda.is_available():
            return f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}"
        return f"none that torch {torch.__version__} can use"
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        return "none found"
    except (OSError, subprocess.SubprocessError):
        return "nvidia-smi does not answer"
    cards = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return f"{cards[0]}; torch is missing" if cards else "none found"


def _extra(name: str, modules: tuple[str, ...]) -> dict[str, Any]:
    missing = [module for module in modules if not _is_installed(module)]
    return {"missing": missing, "remedy": f"pip install 'equipoise[{name}]'" if missing else None}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def _cache() -> dict[str, Any]:
    from equipoise.data.datasets import cache_folder

    folder = cache_folder()
    holds: dict[str, int] = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            name = file.relative_to(folder).parts[0]
            holds[name] = holds.get(name, 0) + file.stat().st_size
    return {"folder": str(folder), "holds": holds}


def _self_test() -> dict[str, Any]:
    """Fit a small model and measure the speed of the solve; about a second."""
    import numpy as np
    import scipy.sparse as sp

    from equipoise.models import EASE
    from equipoise.solve.planning import solve_rate

    start = time.perf_counter()
    used = np.random.default_rng(0).random((500, 200)) < 0.05
    model = EASE(l2=10.0).fit(sp.csr_array(used, dtype=np.float32))
    return {
        "passed": bool(model.residual_ < 1e-3),
        "residual": float(model.residual_),
        "gflops": solve_rate("float32") / 1e9,
        "seconds": time.perf_counter() - start,
    }
