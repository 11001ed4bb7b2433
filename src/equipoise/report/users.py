"""Users in a report: their history, their recommendations and the reasons.

`portraits` describes users of the test part; `case_study` compares four normalizations for one
user, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from equipoise.checks import cutoff
from equipoise.data.ids import IdIndex, as_list
from equipoise.data.interactions import Interactions
from equipoise.data.split import Part
from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.evaluation.metrics import head_items
from equipoise.models import LAE, Recommender
from equipoise.normalize import DAN, NoNorm, RandomWalk, Symmetric

LISTED = 10  # recommended items to show
HISTORY = 12  # items of a history to show
REASONS = 2
ABOUT = {
    "W/O": "no normalization",
    "RW": "random walk",
    "DAN": "data-adaptive",
    "Sym": "symmetric",
}
HALF = 0.5  # dropout of RW and Sym: gives the penalty 1 * D_I


def sample_rows(part: Part, count: int, seed: int) -> list[int]:
    """Draw one row from each of `count` groups of users of similar activity.

    >>> import equipoise as eq
    >>> part = eq.split.strong(eq.Interactions(np.tri(40, 9) + np.eye(40, 9, 1)), test=0.5).test
    >>> rows = sample_rows(part, 3, seed=0)
    >>> bool((np.diff(part.history.user_counts[rows]) >= 0).all())
    True
    """
    if count < 0:
        raise SettingError(f"the number of users to show must be >= 0, got {count}")
    order = np.argsort(part.history.user_counts, kind="stable")
    rng = np.random.default_rng(seed)
    groups = np.array_split(order, min(count, len(order))) if count else []
    return [int(rng.choice(group)) for group in groups]


def rows_of_users(part: Part, users: Any) -> list[int]:
    """Return the rows of users by id."""
    index = part.history.user_index
    ids = as_list(users)
    for user in ids:
        if user not in index:
            raise UnknownIdError(f"the {part.name} part has no user {user!r}; {_first_ids(index)}")
    return [int(row) for row in index.positions(ids)]


def portraits(
    model: Recommender,
    plain: Recommender,
    part: Part,
    rows: Sequence[int],
    alphas: Sequence[float | None],
) -> list[dict[str, Any]]:
    """Return history, number of hidden items and lists of each user.

    There is a list of the model for each alpha, and one of the plain model beside it.
    """
    tail = tail_lookup(model)
    out = []
    for row in rows:
        one = part.history.rows([row])
        start, stop = part.target.matrix.indptr[row : row + 2]
        hidden = set(part.target.items[part.target.matrix.indices[start:stop]].tolist())
        known = history_items(one)

        def listed(
            fitted: Recommender,
            alpha: float | None = None,
            one: Interactions = one,
            hidden: set[Any] = hidden,
        ) -> list[dict[str, Any]]:
            pairs = explained_items(fitted, one, LISTED, alpha, exclude_seen=part.hides_seen)
            return [
                {**entry(one, item, tail), "found": item in hidden, "why": why}
                for item, why in pairs
            ]

        out.append(
            {
                "user": str(part.history.users[row]),
                "known": len(known),
                "hidden": len(hidden),
                "history": [entry(one, item, tail) for item in known[:HISTORY]],
                "more": max(len(known) - HISTORY, 0),
                "lists": [listed(model, alpha) for alpha in alphas],
                "plain": listed(plain),
            }
        )
    return out


def explained_items(
    model: Recommender,
    one: Interactions,
    k: int,
    alpha: float | None = None,
    *,
    exclude_seen: bool = True,
) -> list[tuple[Any, list[str]]]:
    """Return the items recommended to one user, each with the titles of its strongest reasons."""
    n_reasons = REASONS if model.explains else 0
    recommended = model.recommend(
        one, k, alpha=alpha, exclude_seen=exclude_seen, reasons=n_reasons
    )
    items, titles = recommended.items[0], recommended.reason_titles or recommended.reasons
    reasons: Any = titles[0] if titles else [[]] * len(items)
    return [(item, [*map(str, why)]) for item, why in zip(items, reasons, strict=True)]


def history_items(one: Interactions) -> list[Any]:
    """Return the distinct items of one user, latest first if times are known."""
    items = one.history(one.users[0])
    if one.events is not None and one.events.times is not None:
        items = items[::-1]
    return list(dict.fromkeys(items))


def tail_lookup(model: Recommender) -> dict[Any, bool]:
    """Return for every item whether it is in the tail of the training data."""
    flags: npt.NDArray[np.bool_] = ~head_items(model.item_counts_)
    return dict(zip(model.item_index_.values.tolist(), flags.tolist(), strict=True))


def entry(data: Interactions, item: Any, tail: dict[Any, bool]) -> dict[str, Any]:
    """Return an item for display."""
    return {"item": str(item), "title": data.label(item), "tail": tail.get(item, True)}


def _first_ids(index: IdIndex) -> str:
    return f"choose among {', '.join(str(user) for user in index.values[:5])}, ..."


@dataclass(frozen=True)
class CaseStudy:
    """Lists of one user under four normalizations.

    Attributes
    ----------
    user
        The id; not in the training data of the models.
    history
        One row per known item: item, title, users, group.
    lists
        One row per normalization and rank: normalization, rank, item, title, users, group, why.
        `users` is how many training users have the item; `group` is head or tail.
    settings
        The model behind each normalization, in words.
    fingerprint
        Fingerprint of the training data.
    """

    user: Any
    history: pl.DataFrame
    lists: pl.DataFrame
    settings: dict[str, str]
    fingerprint: str

    def to_frame(self) -> pl.DataFrame:
        """Return the lists."""
        return self.lists

    def to_dict(self) -> dict[str, Any]:
        """Return all values as a plain dict, with the lists by normalization."""
        lists = {
            name: self.lists.filter(normalization=name).drop("normalization").to_dicts()
            for name in self.settings
        }
        tails = {name: sum(row["group"] == "tail" for row in rows) for name, rows in lists.items()}
        means = {
            name: float(np.mean([row["users"] for row in rows])) if rows else 0.0
            for name, rows in lists.items()
        }
        return {
            "user": self.user,
            "history": self.history.to_dicts(),
            "lists": lists,
            "tails": tails,
            "popularity": means,
            "about": ABOUT,
            "settings": self.settings,
            "fingerprint": self.fingerprint,
        }


def case_study(
    data: Interactions,
    user: Any,
    k: int = 5,
    *,
    l2: float | str = "auto",
    dtype: str = "float32",
) -> CaseStudy:
    """Recommend to one user under four normalizations of the same linear autoencoder.

    As in the paper's appendix: LAE without normalization (W/O), with random-walk (RW), symmetric
    (Sym) and data-adaptive normalization (DAN). The models are fitted on all other users; RW and
    Sym share a solve.

    Parameters
    ----------
    data
        The interactions of all users, this one among them.
    user
        Id of the user.
    k
        Length of the lists.
    l2
        Ridge penalty of W/O; "auto" derives it from the data, as for DAN.
    dtype
        Precision of the solves.
    """
    if user not in data.user_index:
        raise UnknownIdError(f"the data have no user {user!r}; {_first_ids(data.user_index)}")
    cutoff("k", k)
    row = data.user_index.position(user)
    other_users = data.rows(np.arange(data.n_users) != row)
    train = other_users.columns(other_users.item_counts > 0)
    one = data.rows([row]).with_items(train.item_index, unknown_items="skip")
    if not one.n_interactions:
        raise DataError(f"no other user has an item of user {user!r}; choose another user")
    models = _models(train, l2, dtype)
    tail, known = tail_lookup(models["W/O"]), history_items(one)

    def row_of(item: Any) -> dict[str, Any]:
        count = int(train.item_counts[train.item_index.position(item)])
        group = "tail" if tail[item] else "head"
        return {"item": item, "title": one.label(item), "users": count, "group": group}

    rows = [
        {
            "normalization": name,
            "rank": rank,
            **row_of(item),
            "why": " and ".join(why),
        }
        for name, model in models.items()
        for rank, (item, why) in enumerate(explained_items(model, one, k), start=1)
    ]
    if not rows:
        raise DataError(f"user {user!r} has every item; nothing is left to recommend")
    return CaseStudy(
        user=user,
        history=pl.DataFrame([row_of(item) for item in known], infer_schema_length=None),
        lists=pl.DataFrame(rows, infer_schema_length=None),
        settings={name: model.summary() for name, model in models.items()},
        fingerprint=train.fingerprint,
    )


def _models(train: Interactions, l2: Any, dtype: str) -> dict[str, LAE]:
    """Fit the four models in the order of the paper's figure; three solves."""
    plain = LAE(l2=l2, dropout=0.0, normalizer=NoNorm()).fit(train, dtype=dtype)
    walk = LAE(l2=0.0, dropout=HALF, normalizer=RandomWalk()).fit(train, dtype=dtype)
    symmetric = LAE(l2=0.0, dropout=HALF, normalizer=Symmetric()).reuse(walk)
    adaptive = LAE(dropout="auto", normalizer=DAN()).fit(train, dtype=dtype)
    return {"W/O": plain, "RW": walk, "DAN": adaptive, "Sym": symmetric}
