"""Lists for many users: a saved model that workers map; `evaluate` and `recommend_to`."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.checks import count
from equipoise.cluster.opening import opened, saved
from equipoise.cluster.partitioned import Partitioned, with_ids
from equipoise.cluster.parts import evaluate_there, part_there
from equipoise.cluster.spread import same
from equipoise.cluster.workers import connect, results, submit, task
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.evaluation import evaluate as evaluate_here
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.models.base import Recommender
from equipoise.models.saving import load
from equipoise.ranking.ranker import Ranked
from equipoise.results import Result
from equipoise.solve.blocked import strips
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
        As for `equipoise.evaluate`; or a part that the workers hold, of a split that was made
        there, or a pair (history, target) of `Partitioned` with the same users. Then the values
        of users come to this machine, and no history does.
    client
        As for `equipoise.cluster.read`; that of the part where the workers hold it.
    shared
        A folder that this machine and the workers see, for a model that is not saved yet; left
        out: the one for temporary files, where all workers are on this machine.
    **options
        As for `equipoise.evaluate`; `batch_size` are the users of a task.
    """
    batch = count("batch_size", options.pop("batch_size", 4096))
    there = part_there(part)
    client = connect(client) if there is None else there.history.client
    with saved(model, shared) as folder:
        fitted = load(folder)
        if there is not None:
            return evaluate_there(fitted, folder, there, k, batch_size=batch, **options)
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
        batches = _batches(wanted, users is None, users_per_file)
        _claim(target, fitted, wanted, k, users_per_file, options)
        files = [_file(target, number) for number in range(len(batches))]
        written = [
            submit(client, write_some, str(place), str(file), k, options, *asked)
            for file, (_, asked) in zip(files, batches, strict=True)
            if not file.exists()
        ]
        results(client, written)
    return sum(size for size, _ in batches)


def _batches(wanted: Any, trained: bool, size: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Cut the users into tasks: how many, and what `write_some` is given.

    Ids, which workers know from the model; histories; or a block that workers hold, and which of
    its users.
    """
    if isinstance(wanted, Partitioned):
        items = submit(wanted.client, same, IdIndex(wanted.items, "item"))
        return [
            (high - low, (block, items, (low, high)))
            for block, n_users in zip(wanted.blocks, wanted.block_users.tolist(), strict=True)
            for low, high in strips((0, n_users), size)
        ]
    if isinstance(wanted, Interactions):
        spans = list(strips((0, wanted.n_users), size))
        if not trained:
            return [(high - low, (wanted.rows(np.arange(low, high)),)) for low, high in spans]
        wanted = wanted.users.tolist()
    listed = list(wanted)
    spans = list(strips((0, len(listed)), size))
    return [(high - low, (listed[low:high],)) for low, high in spans]


def _file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _claim(
    folder: Path, model: Recommender, wanted: Any, k: int, size: int, options: dict[str, Any]
) -> None:
    """Write down what the files of a folder are, or refuse a folder of other lists."""
    if isinstance(wanted, Partitioned):
        marks = [submit(wanted.client, fingerprint_of, each) for each in wanted.blocks]
        who = repr((results(wanted.client, marks), wanted.items.tolist()))
    else:
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
def fingerprint_of(block: Interactions) -> str:
    """Return the fingerprint of a block."""
    return block.fingerprint


@task
def write_some(
    folder: str,
    file: str,
    k: int,
    options: dict[str, Any],
    wanted: Any,
    items: IdIndex | None = None,
    span: tuple[int, int] = (0, 0),
) -> int:
    """Write the lists of some users to a file, unless an earlier try has.

    With `items` they are users of a block whose items are these.
    """
    if Path(file).exists():
        return 0
    if items is not None:
        wanted = with_ids(wanted, items).rows(np.arange(*span))
    return opened(folder).recommend_to(file, wanted, k, **options)
