"""`evaluate` and `recommend_to`: lists of many users, made by workers from a saved model."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from equipoise.checks import count
from equipoise.cluster.opening import open_model, saved_folder
from equipoise.cluster.partitioned import Partitioned, with_item_ids
from equipoise.cluster.parts import as_partitioned_part, evaluate_on_workers
from equipoise.cluster.targets import Target, write_bytes
from equipoise.cluster.training import WorkerBlocks
from equipoise.cluster.workers import connect, fetch, run_in_order, send, submit, task
from equipoise.data.events import Events
from equipoise.data.ids import IdIndex, as_list, is_id
from equipoise.data.interactions import Interactions
from equipoise.data.matrix import Csr
from equipoise.data.storage import (
    MANIFEST,
    check_seal,
    local_directory,
    parse,
    read_manifest,
    sealed,
)
from equipoise.data.training import NotInMemory
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
PART = re.compile(r"part-[0-9]+\.parquet")


def evaluate(
    model: Recommender | str | os.PathLike[str],
    part: Any,
    k: Any = 20,
    *,
    client: Any = "local",
    shared: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Result:
    """Evaluate a model with lists made by workers; the numbers are those of `equipoise.evaluate`.

    Parameters
    ----------
    model
        Fitted, or the folder of a saved one that the workers see too.
    part, k
        As for `equipoise.evaluate`; or a part on the workers: of a split that was made there, or
        a pair (history, target) of `Partitioned` with the same users. Then metrics of users come
        to this machine, and histories do not.
    client
        As for `equipoise.cluster.read`; that of the part where the workers hold it.
    shared
        Folder or URL that this machine and the workers see, for a model that is not saved yet. By
        default the folder for temporary files, which suffices if all workers are on this machine.
    **options
        As for `equipoise.evaluate`, without `train`; `batch_size` is the number of users of a
        task.
    """
    if options.pop("train", None) is not None:
        raise SettingError("train= is for existing lists; a model has its data, leave train= out")
    batch = count("batch_size", options.pop("batch_size", 4096))
    on_workers = as_partitioned_part(part)
    client = connect(client) if on_workers is None else on_workers.history.client
    with saved_folder(client, model, shared) as folder:
        fitted = load(folder)
        if on_workers is not None:
            return evaluate_on_workers(fitted, folder, on_workers, k, batch_size=batch, **options)
        remote = RemoteModel(client, folder, fitted, batch, options.pop("progress", None))
        all_users = int(np.iinfo(np.int64).max)  # at once: `RemoteModel` makes the batches
        name = options.pop("name", None) or fitted.label
        return evaluate_here(remote, part, k, batch_size=all_users, name=name, **options)


class RemoteModel:
    """A model for `equipoise.evaluate` whose lists are made by workers."""

    def __init__(
        self,
        client: Any,
        folder: Path | str,
        model: Recommender,
        batch: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.client, self.folder, self.batch, self.progress = client, folder, batch, progress
        self.item_index_, self.item_counts_ = model.item_index_, model.item_counts_
        self.data_fingerprint_, self.settings = model.data_fingerprint_, model.settings

    def rank(self, history: Interactions, k: int, **options: Any) -> Ranked:
        """Return the lists of all users; each task makes those of one batch."""
        calls = (
            (rank_users, str(self.folder), HistoryRows.of(history, span), k, options)
            for span in strips((0, history.n_users), self.batch)
        )
        batches = []
        for batch in run_in_order(self.client, calls):
            batches.append(batch)
            if self.progress is not None:
                n_done = min(len(batches) * self.batch, history.n_users)
                self.progress(n_done, history.n_users)
        return Ranked(*(np.concatenate(columns) for columns in zip(*batches, strict=True)))


class HistoryRows(NamedTuple):
    """Histories sent to a worker, which knows the ids of the items."""

    matrix: Csr
    users: npt.NDArray[Any]
    events: Events | None
    signed: bool

    @classmethod
    def of(cls, histories: Interactions, span: tuple[int, int]) -> HistoryRows:
        """Return the users of a span of rows."""
        rows = histories.rows(np.arange(*span))
        return cls(rows.matrix, rows.users, rows.events, rows.signed)

    def with_items(self, items: IdIndex) -> Interactions:
        """Return the histories over these items."""
        return Interactions(self.matrix, self.users, items, events=self.events, signed=self.signed)


@task
def rank_users(
    folder: str, rows: HistoryRows, k: int, options: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """Return the lists of a batch of users over the model's items: items, scores and lengths."""
    model = open_model(folder)
    ranked = model.rank(rows.with_items(model.item_index_), k, **options)
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

    Each file holds what `Recommender.recommend_to` writes for `users_per_file` users, and appears
    only when it is complete. After an interruption, the same call writes the missing files; a
    call with other arguments is refused. Returns the number of users.

    Parameters
    ----------
    model
        Fitted, or the folder of a saved one that the workers see too.
    folder
        Where to write: a folder that this machine and all workers share, or a URL that fsspec
        knows, such as ``s3://bucket/lists``. The workers write there themselves.
    users
        As for `Recommender.recommend_to`, or histories as `Partitioned`; by default the training
        users.
    k
        Length of the lists.
    client
        As for `equipoise.cluster.read`; that of the histories where the workers hold them.
    shared
        As for `evaluate`.
    users_per_file
        Users of a file, and of a task.
    **options
        As for `Recommender.recommend_to`; `exclude` and `candidates` that differ between users
        are mappings from users to items.
    """
    if users is None:
        users = held_users(model)
    client = users.client if isinstance(users, Partitioned) else connect(client)
    count("users_per_file", users_per_file)
    target = Target.of(folder)
    plain_options = _plain_options(options)
    with saved_folder(client, model, shared) as model_folder:
        requests, has_names = _parse_requests(load(model_folder), users, options)
        if not has_names and "rules" in plain_options:
            plain_options["rules"] = replace(plain_options["rules"], users=None)
        batches = _make_batches(client, requests, users_per_file)
        if not batches:
            raise DataError("there is no user to recommend to; name at least one")
        settings = {"k": k, "users_per_file": users_per_file, **plain_options}
        _claim_folder(target, model_folder, requests, settings)
        sent_options = send(client, plain_options)
        names = [f"part-{number:06d}.parquet" for number in range(len(batches))]
        existing, home = target.names(), str(model_folder)
        missing = {
            name: arguments
            for name, (_, arguments) in zip(names, batches, strict=True)
            if name not in existing
        }
        common = (home, target, k, sent_options)
        written = [
            submit(client, write_lists, *common, files)
            for files in _group_by_block(missing, len(client.nthreads()))
        ]
        target.require(names, fetch(client, written))
        target.remove_unfinished(lambda name: name.startswith(".part-"))
    return sum(size for size, _ in batches)


def _group_by_block(files: dict[str, Any], n_workers: int) -> list[dict[str, Any]]:
    """Return files to write, by task: a task reads a saved block of users once for several files.

    All workers have work, even if there are fewer blocks than workers.
    """
    groups: dict[Any, dict[str, Any]] = {}
    blocks: dict[int, list[str]] = {}
    for name, arguments in files.items():
        if isinstance(arguments[0], BlockOfModel):
            blocks.setdefault(arguments[0].number, []).append(name)
        else:
            groups[name] = {name: arguments}
    for number, names in blocks.items():
        n_tasks = min(-(-n_workers // len(blocks)), len(names))
        for part in range(n_tasks):
            groups[number, part] = {name: files[name] for name in names[part::n_tasks]}
    return list(groups.values())


class BlockOfModel(NamedTuple):
    """A block of users beside the saved model, which the worker reads."""

    number: int
    span: tuple[int, int]


def _plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as values that workers can use and that can be compared later."""
    plain = {name: value for name, value in options.items() if value is not None}
    if "rules" in plain:
        plain["rules"] = as_rules(plain["rules"])
    for name in plain.keys() & {"exclude", "candidates"}:
        items = plain[name]
        if isinstance(items, Mapping):
            plain[name] = {user: as_list(user_items) for user, user_items in items.items()}
            continue
        if isinstance(items, (set, frozenset)):
            items = sorted(items, key=repr)
        plain[name] = as_list(items)
        if not all(map(is_id, plain[name])):
            raise SettingError(
                f"{name} is a list of lists, which cannot be divided into files of users; give a "
                "mapping from users to lists"
            )
    return plain


def _parse_requests(model: Recommender, users: Any, options: dict[str, Any]) -> tuple[Any, bool]:
    """Return the users to recommend to: ids, a mapping from names to histories, or data.

    Also return whether they have names, which rules for users refer to: bare histories have none.
    """
    if users is None:
        return model.data_ if in_blocks(model) else model.data_.users.tolist(), True
    if isinstance(users, (Partitioned, Interactions)):
        return users, True
    names = ("unknown_users", "unknown_items")
    query = parse_query(users, model.data_, Unknowns.of(*(options.get(name) for name in names)))
    if query.trained is not None:
        return query.users, True
    assert isinstance(query.source, list)
    pairs = zip(query.users, query.source, strict=True)
    return {name: as_list(history) for name, history in pairs}, query.has_names


def _make_batches(client: Any, requests: Any, size: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Cut the requests into tasks; return the number of users and the last arguments of each.

    These are, for `write_lists`: ids; a mapping from names to histories; `HistoryRows` and the
    item ids; a block on the workers, the item ids and the span of its users; or `BlockOfModel`.
    """
    if isinstance(requests, NotInMemory) and requests.blocks is not None:
        return [
            (high - low, (BlockOfModel(number, (low, high)),))
            for number, n_users in enumerate(requests.blocks.block_users.tolist())
            for low, high in strips((0, n_users), size)
        ]
    if isinstance(requests, (Partitioned, Interactions)):
        items = send(client, IdIndex(requests.items, "item"))
    if isinstance(requests, Partitioned):
        return [
            (high - low, (block, items, (low, high)))
            for block, n_users in zip(requests.blocks, requests.block_users.tolist(), strict=True)
            for low, high in strips((0, n_users), size)
        ]
    if isinstance(requests, Interactions):
        spans = strips((0, requests.n_users), size)
        return [(span[1] - span[0], (HistoryRows.of(requests, span), items)) for span in spans]
    form = type(requests)  # list or dict
    users = list(requests.items() if form is dict else requests)
    spans = strips((0, len(users)), size)
    return [(high - low, (form(users[low:high]),)) for low, high in spans]


def _claim_folder(
    target: Target, model: Path | str, requests: Any, settings: dict[str, Any]
) -> None:
    """Record the model, users and settings of a folder of lists; refuse one with other lists."""
    if isinstance(requests, Partitioned):
        fingerprints = requests.map_blocks(getattr, "fingerprint")
        users: Any = fetch(requests.client, fingerprints), requests.items.tolist()
    elif isinstance(requests, NotInMemory):
        users = "those of the training data", requests.fingerprint
    else:
        users = requests.fingerprint if isinstance(requests, Interactions) else requests
    manifest = read_manifest(local_directory(model) / MANIFEST)
    files = manifest.group("files")
    sums = {name: files.group(name).text("sha256") for name in files}
    sums |= {entry["file"]: entry["sha256"] for entry in manifest.get("beside", ())}
    digests = {
        "model": _digest((json.dumps(manifest["meta"], sort_keys=True), sorted(sums.items()))),
        "users": _digest(users),
        **{name: _digest(value) for name, value in sorted(settings.items())},
    }
    text = json.dumps(sealed(digests))
    try:
        if not target.is_remote:
            Path(target.place).mkdir(parents=True, exist_ok=True)
        if target.read(RECORD) is None:
            if any(PART.fullmatch(name) for name in target.names()):
                raise DataError(f"{target} holds files of something else; give another folder")
            target.write(RECORD, write_bytes(text.encode()))
        recorded = target.read(RECORD) or b""
    except OSError as error:
        raise DataError(f"{target} cannot be used: {error.strerror or error}") from error
    try:
        check_seal(parse(recorded))
    except FileFormatError as error:
        raise FileFormatError(
            f"{target}/{RECORD} is damaged; remove {target} and start again"
        ) from error
    if json.loads(recorded) != json.loads(text):
        raise SettingError(
            f"{target} holds lists of another model, of other users or with other settings; give "
            "another folder, or remove it"
        )


def _digest(value: Any) -> str:
    with np.printoptions(threshold=sys.maxsize):  # print arrays in full
        return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@task
def write_lists(
    model: str, target: Target, k: int, options: dict[str, Any], files: dict[str, tuple[Any, ...]]
) -> str:
    """Write the lists of batches of `_make_batches` by name, unless an earlier try has.

    Return the name of the worker's machine.
    """
    block: Interactions | None = None
    host = ""
    for name, (users, *more) in files.items():

        def make(path: str, users: Any = users, more: Any = more) -> None:
            nonlocal block
            fitted, requests = open_model(model), users
            if isinstance(users, BlockOfModel):
                block = read_block(fitted, users.number) if block is None else block
                requests = block.rows(np.arange(*users.span))
            elif isinstance(users, HistoryRows):
                requests = users.with_items(*more)
            elif more:
                items, span = more
                requests = with_item_ids(users, items).rows(np.arange(*span))
            fitted.recommend_to(path, requests, k, **options)

        host = target.write(name, make)
    return host


def in_blocks(model: Recommender) -> bool:
    """Whether the users of a saved model are in blocks, each of which can be answered alone."""
    data = model.data_
    is_by_user = model.signals is None and model.fold_in and not model.ordered
    return isinstance(data, NotInMemory) and data.blocks is not None and is_by_user


def read_block(model: Recommender, number: int) -> Interactions:
    """Return the users of a block beside a model."""
    data = model.data_
    assert isinstance(data, NotInMemory)
    return data.part(number)


def held_users(model: Any) -> Any:
    """Return the training users of a model whose data workers hold; None for any other model."""
    data = model.data_ if isinstance(model, Recommender) else None
    blocks = getattr(data, "blocks", None)
    return blocks.data if isinstance(blocks, WorkerBlocks) else None
