"""Lists for many users: a saved model that workers map; `evaluate` and `recommend_to`."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.checks import count
from equipoise.cluster.opening import opened, saved
from equipoise.cluster.partitioned import Partitioned, with_ids
from equipoise.cluster.parts import evaluate_there, part_there
from equipoise.cluster.workers import connect, in_order, results, same, submit, task
from equipoise.data.events import Events
from equipoise.data.ids import IdIndex, as_list, is_id
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.storage import MANIFEST, check_seal, parse, read_manifest, sealed
from equipoise.errors import DataError, FileFormatError, SettingError
from equipoise.evaluation.evaluator import evaluate as evaluate_here
from equipoise.evaluation.results import Result
from equipoise.models.base import Recommender
from equipoise.models.histories import Unknowns, parse_query
from equipoise.models.saving import load
from equipoise.ranking.ranker import Ranked
from equipoise.ranking.rules import as_rules
from equipoise.solve.blocked import strips

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
        As for `equipoise.evaluate`, but for `train`, which is of lists; `batch_size` are the users
        of a task.
    """
    if options.pop("train", None) is not None:
        raise SettingError("train= is of lists that are there already; a model has its data")
    batch = count("batch_size", options.pop("batch_size", 4096))
    there = part_there(part)
    client = connect(client) if there is None else there.history.client
    with saved(client, model, shared) as folder:
        fitted = load(folder)
        if there is not None:
            return evaluate_there(fitted, folder, there, k, batch_size=batch, **options)
        remote = Remote(client, folder, fitted, batch, options.pop("progress", None))
        largest = np.iinfo(np.int64).max  # all users at once: `Remote` makes the tasks
        name = options.pop("name", None) or fitted.label
        return evaluate_here(remote, part, k, batch_size=int(largest), name=name, **options)


class Remote:
    """A model whose lists are made by workers; what `equipoise.evaluate` asks for."""

    def __init__(
        self,
        client: Any,
        folder: Path,
        model: Recommender,
        batch: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.client, self.folder, self.model, self.batch = client, folder, model, batch
        self.progress = progress

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
        calls = (
            (rank_some, str(self.folder), _sent(history, span), k, how)
            for span in strips((0, history.n_users), self.batch)
        )
        found = []
        for lists in in_order(self.client, calls):
            found.append(lists)
            if self.progress is not None:
                done = min(len(found) * self.batch, history.n_users)
                self.progress(done, history.n_users)
        return Ranked(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


class Sent(NamedTuple):
    """Histories as they are sent to a worker, which knows the ids of the items."""

    matrix: Csr
    users: npt.NDArray[Any]
    events: Events | None
    signed: bool

    def over(self, items: IdIndex) -> Interactions:
        """Return the histories over these items."""
        return Interactions(self.matrix, self.users, items, events=self.events, signed=self.signed)


def _sent(histories: Interactions, span: tuple[int, int]) -> Sent:
    rows = histories.rows(np.arange(*span))
    return Sent(rows.matrix, rows.users, rows.events, rows.signed)


@task
def rank_some(folder: str, rows: Sent, k: int, how: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the lists of some users, over the model's items: items, scores and lengths."""
    model = opened(folder)
    ranked = model.rank(rows.over(model.item_index_), k, **how)
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
        As for `Recommender.recommend_to`, or histories as `Partitioned`; the training users when
        left out.
    k
        Length of the lists.
    client
        As for `equipoise.cluster.read`; that of the histories where the workers hold them.
    shared
        As for `evaluate`.
    users_per_file
        Users of a file, and of a task.
    **options
        As for `Recommender.recommend_to`; items of each user in `exclude` and `candidates` are a
        mapping.
    """
    client = users.client if isinstance(users, Partitioned) else connect(client)
    count("users_per_file", users_per_file)
    target = Path(folder).absolute()
    asked = _plain(options)
    with saved(client, model, shared) as place:
        fitted = load(place)
        wanted, has_names = _wanted(fitted, users, options)
        if not has_names and "rules" in asked:
            asked["rules"] = replace(asked["rules"], users=None)
        batches = _batches(client, wanted, users_per_file)
        if not batches:
            raise DataError("there is no user to recommend to; name at least one")
        _claim(target, place, wanted, {"k": k, "users_per_file": users_per_file, **asked})
        files = [_file(target, number) for number in range(len(batches))]
        how = submit(client, same, asked)
        written = [
            submit(client, write_some, str(place), str(file), k, how, *some)
            for file, (_, some) in zip(files, batches, strict=True)
            if not file.exists()
        ]
        results(client, written)
        for file in target.glob(".part-*.parquet.*"):
            file.unlink(missing_ok=True)  # what a worker was writing when it was lost
    return sum(size for size, _ in batches)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as values that workers can use and that can be compared later."""
    plain = {name: value for name, value in options.items() if value is not None}
    if "rules" in plain:
        plain["rules"] = as_rules(plain["rules"])
    for name in plain.keys() & {"exclude", "candidates"}:
        given = plain[name]
        if isinstance(given, Mapping):
            plain[name] = {user: as_list(items) for user, items in given.items()}
            continue
        listed = as_list(sorted(given, key=repr) if isinstance(given, (set, frozenset)) else given)
        if not all(map(is_id, listed)):
            raise SettingError(
                f"{name} has a list for each user, which files of some users cannot be cut by; "
                "give a mapping from users to lists"
            )
        plain[name] = listed
    return plain


def _wanted(model: Recommender, users: Any, options: dict[str, Any]) -> tuple[Any, bool]:
    """Return who is to be answered: ids, a mapping from names to histories, or data.

    Also whether they have names, which rules for users speak of: bare histories have none.
    """
    if users is None:
        return model.data_.users.tolist(), True
    if isinstance(users, (Partitioned, Interactions)):
        return users, True
    named = ("unknown", "unknown_users", "unknown_items")
    asked = parse_query(users, model.data_, Unknowns.of(*(options.get(name) for name in named)))
    if asked.trained is not None:
        return asked.users, True
    assert isinstance(asked.source, list)
    histories = map(as_list, asked.source)
    return dict(zip(asked.users, histories, strict=True)), asked.has_names


def _batches(client: Any, wanted: Any, size: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Cut the users into tasks: how many, and what `write_some` is given.

    Ids, which workers know from the model; names with histories; histories to be put over items;
    or a block that workers hold, the items, and which of its users.
    """
    if isinstance(wanted, (Partitioned, Interactions)):
        items = submit(client, same, IdIndex(wanted.items, "item"))
    if isinstance(wanted, Partitioned):
        return [
            (high - low, (block, items, (low, high)))
            for block, n_users in zip(wanted.blocks, wanted.block_users.tolist(), strict=True)
            for low, high in strips((0, n_users), size)
        ]
    if isinstance(wanted, Interactions):
        spans = strips((0, wanted.n_users), size)
        return [(span[1] - span[0], (_sent(wanted, span), items)) for span in spans]
    listed = list(wanted.items() if isinstance(wanted, dict) else wanted)
    form = type(wanted)
    spans = strips((0, len(listed)), size)
    return [(high - low, (form(listed[low:high]),)) for low, high in spans]


def _file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _claim(folder: Path, model: Path, wanted: Any, asked: dict[str, Any]) -> None:
    """Write down what the files of a folder are, or refuse a folder of other lists."""
    if isinstance(wanted, Partitioned):
        marks = [submit(wanted.client, fingerprint_of, each) for each in wanted.blocks]
        who: Any = results(wanted.client, marks), wanted.items.tolist()
    else:
        who = wanted.fingerprint if isinstance(wanted, Interactions) else wanted
    manifest = read_manifest(model / MANIFEST)
    files = manifest.group("files")
    sums = {name: files.group(name).text("sha256") for name in files}
    asked = {
        "model": _digest((json.dumps(manifest["meta"], sort_keys=True), sorted(sums.items()))),
        "users": _digest(who),
        **{name: _digest(value) for name, value in sorted(asked.items())},
    }
    record = folder / RECORD
    text = json.dumps(sealed(asked))
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


def _digest(value: Any) -> str:
    with np.printoptions(threshold=sys.maxsize):  # all of an array
        return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


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

    With `items` they are histories over these, or some users of such a block.
    """
    if Path(file).exists():
        return 0
    if items is not None:
        if isinstance(wanted, Sent):
            wanted = wanted.over(items)
        else:
            wanted = with_ids(wanted, items).rows(np.arange(*span))
    return opened(folder).recommend_to(file, wanted, k, **options)
