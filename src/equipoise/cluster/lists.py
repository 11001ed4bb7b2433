"""Lists for many users: a saved model that workers map; `evaluate` and `recommend_to`."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.checks import count
from equipoise.cluster.partitioned import Partitioned
from equipoise.cluster.workers import connect, results, submit, task
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.evaluation import evaluate as evaluate_here
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.models.base import Recommender
from equipoise.models.saving import load
from equipoise.ranking.ranker import Ranked
from equipoise.results import Result
from equipoise.storage import check_seal, parse, sealed

USERS = 20_000  # of a file of lists, and of a task
RECORD = "lists.json"


def evaluate(
    model: Recommender | str | os.PathLike[str],
    part: Any,
    k: Any = 20,
    *,
    client: Any = "local",
    shared: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Result:
    """Evaluate a model with its lists made by workers; the numbers are those of `evaluate`.

    Parameters
    ----------
    model
        Fitted, or the folder of a saved one that the workers see too.
    part, k
        As for `equipoise.evaluate`.
    client
        As for `equipoise.cluster.read`.
    shared
        A folder that this machine and the workers see, for a model that is not saved yet; left
        out: the one for temporary files, where all workers are on this machine.
    **options
        As for `equipoise.evaluate`; `batch_size` are the users of a task.
    """
    client = connect(client)
    batch = count("batch_size", options.pop("batch_size", 4096))
    with saved(model, shared) as folder:
        fitted = load(folder)
        remote = Remote(client, folder, fitted, batch)
        largest = np.iinfo(np.int64).max  # all users at once: `Remote` makes the tasks
        name = options.pop("name", None) or fitted.label
        return evaluate_here(remote, part, k, batch_size=int(largest), name=name, **options)


class Remote:
    """A model whose lists are made by workers; what `equipoise.evaluate` asks for."""

    def __init__(self, client: Any, folder: Path, model: Recommender, batch: int) -> None:
        self.client, self.folder, self.model, self.batch = client, folder, model, batch

    @property
    def item_index_(self) -> IdIndex:
        """The model's items."""
        return self.model.item_index_

    @property
    def item_counts_(self) -> npt.NDArray[np.int64]:
        """Training interactions of each item."""
        return self.model.item_counts_

    @property
    def data_fingerprint_(self) -> str:
        """Fingerprint of the training data."""
        return self.model.data_fingerprint_

    def settings(self) -> dict[str, Any]:
        """Return the settings of the model."""
        return self.model.settings()

    def rank(self, history: Interactions, k: int, **how: Any) -> Ranked:
        """Return the lists of all users; each task has some of them."""
        some = [
            history.rows(np.arange(start, min(start + self.batch, history.n_users)))
            for start in range(0, history.n_users, self.batch)
        ]
        lists = [submit(self.client, rank_some, str(self.folder), rows, k, how) for rows in some]
        found = results(self.client, lists)
        return Ranked(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


@contextmanager
def saved(
    model: Recommender | str | os.PathLike[str], shared: str | os.PathLike[str] | None
) -> Iterator[Path]:
    """Give the folder of a saved model; one that is not saved is, for as long as it is needed."""
    if isinstance(model, (str, os.PathLike)):
        yield Path(model).absolute()
        return
    if shared is not None:
        Path(shared).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="equipoise-", dir=shared) as home:
        folder = Path(home).absolute() / "model"
        model.save(folder)
        yield folder


@lru_cache(maxsize=1)
def _opened(folder: str, version: str) -> Recommender:
    return load(folder)


def opened(folder: str) -> Recommender:
    """Return a model that this worker has mapped; it is opened again when the folder changed."""
    try:
        manifest = (Path(folder) / "manifest.json").read_bytes()
    except OSError as error:
        raise DataError(
            f"a worker cannot read the model in {folder}; workers need the same folder, give "
            "one that they share"
        ) from error
    return _opened(folder, hashlib.sha256(manifest).hexdigest())


@task
def rank_some(
    folder: str, rows: Interactions, k: int, how: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """Return the lists of some users: items, scores and lengths."""
    ranked = opened(folder).rank(rows, k, **how)
    return ranked.items, ranked.scores, ranked.lengths


def recommend_to(
    model: Recommender | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    users: Any = None,
    k: int = 20,
    *,
    client: Any = "local",
    shared: str | os.PathLike[str] | None = None,
    users_per_file: int = USERS,
    **options: Any,
) -> int:
    """Write the k best items of any number of users to a folder of Parquet files.

    A file holds what `Recommender.recommend_to` writes for `users_per_file` users, and appears
    only when it is whole. Run again after an interruption, the same call makes the files that
    are missing; another call is refused. Returns the number of users.

    Parameters
    ----------
    model
        Fitted, or the folder of a saved one that the workers see too.
    folder
        Where to write; workers write there themselves.
    users
        User ids, or histories as `Interactions` or `Partitioned`; the training users when left
        out.
    k
        Length of the lists.
    client
        As for `equipoise.cluster.read`.
    shared
        As for `evaluate`.
    users_per_file
        Users of a file, and of a task.
    **options
        As for `Recommender.recommend_to`.
    """
    client = connect(client)
    count("users_per_file", users_per_file)
    target = Path(folder).absolute()
    with saved(model, shared) as place:
        fitted = load(place)
        wanted = fitted.data_ if users is None else users
        if isinstance(wanted, Partitioned):
            wanted = wanted.gather()
        batches = _batches(fitted, wanted, users is None, users_per_file)
        _claim(target, fitted, wanted, k, users_per_file, options)
        missing = [
            (number, some)
            for number, some in enumerate(batches)
            if not _file(target, number).exists()
        ]
        written = [
            submit(client, write_some, str(place), str(_file(target, number)), some, k, options)
            for number, some in missing
        ]
        results(client, written)
    return sum(map(len, batches))


def _batches(model: Recommender, wanted: Any, trained: bool, size: int) -> list[Any]:
    """Cut the users into tasks: ids, which workers know from the model, or histories."""
    if not isinstance(wanted, Interactions):
        listed = list(wanted)
        return [listed[start : start + size] for start in range(0, len(listed), size)]
    positions = range(0, wanted.n_users, size)
    if trained:
        return [wanted.users[start : start + size].tolist() for start in positions]
    return [
        _Histories(wanted.rows(np.arange(start, min(start + size, wanted.n_users))))
        for start in positions
    ]


class _Histories:
    """Histories of a task, as long as they have users."""

    def __init__(self, data: Interactions) -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.n_users


def _file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _claim(
    folder: Path, model: Recommender, wanted: Any, k: int, size: int, options: dict[str, Any]
) -> None:
    """Write down what the files of a folder are, or refuse a folder of other lists."""
    who = wanted.fingerprint if isinstance(wanted, Interactions) else repr(list(wanted))
    asked = {
        "model": model.settings(resolved=True),
        "data": model.data_fingerprint_,
        "users": hashlib.sha256(who.encode()).hexdigest()[:16],
        "k": k,
        "users_per_file": size,
        "options": {name: repr(value) for name, value in sorted(options.items())},
    }
    record = folder / RECORD
    text = json.dumps(sealed(json.loads(json.dumps(asked, default=repr))))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not record.exists():
            if any(folder.glob("part-*.parquet")):
                raise DataError(f"{folder} holds files of something else; give another folder")
            fresh = folder / f".{RECORD}.{os.getpid()}"
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, record)
        held = record.read_bytes()
    except OSError as error:
        raise DataError(f"{folder} cannot be used: {error.strerror or error}") from error
    try:
        check_seal(parse(held))
    except FileFormatError as error:
        raise FileFormatError(f"{record} is damaged; remove {folder} and start again") from error
    if json.loads(held) != json.loads(text):
        raise SettingError(
            f"{folder} holds lists of another model, of other users or with other settings; give "
            "another folder, or remove it"
        )


@task
def write_some(folder: str, file: str, wanted: Any, k: int, options: dict[str, Any]) -> int:
    """Write the lists of some users to a file, unless an earlier try has."""
    if Path(file).exists():
        return 0
    asked = wanted.data if isinstance(wanted, _Histories) else wanted
    return opened(folder).recommend_to(file, asked, k, **options)
