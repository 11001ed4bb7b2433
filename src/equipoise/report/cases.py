"""The paper's case study: one person's history, and their lists under four normalizations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.interactions import Interactions
from equipoise.models import LAE
from equipoise.normalize import DAN, NoNorm, RandomWalk, Symmetric
from equipoise.report.people import reasons, remembered, tail_lookup
from equipoise.report.trials import settings_text

ABOUT = {
    "W/O": "no normalization",
    "RW": "random walk",
    "DAN": "data-adaptive",
    "Sym": "symmetric",
}
ODDS = 0.5  # of RW and Sym: a dropout of 1/2 is the penalty 1 * D_I


@dataclass(frozen=True)
class CaseStudy:
    """Lists of one person under four normalizations.

    Attributes
    ----------
    user
        The person; not in the training data of the models.
    history
        One row per item that is known of the person: item, title, users, group.
    lists
        One row per normalization and rank: normalization, rank, item, title, users, group, why.
        `users` is how many people of the training data have the item; `group` is head or tail.
    settings
        Of the model behind each normalization, in words.
    fingerprint
        Of the training data.
    """

    user: Any
    history: pl.DataFrame
    lists: pl.DataFrame
    settings: dict[str, str]
    fingerprint: str

    def to_frame(self) -> pl.DataFrame:
        """The lists."""
        return self.lists

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; the lists by normalization."""
        lists = {
            name: self.lists.filter(pl.col("normalization") == name)
            .drop("normalization")
            .to_dicts()
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
    """Recommend to one person under four normalizations of the same linear autoencoder.

    As in the paper's appendix: LAE without normalization (W/O), with random-walk (RW), symmetric
    (Sym) and data-adaptive normalization (DAN). The models are fitted on everybody else. RW and
    Sym read their lists off the same solve.

    Parameters
    ----------
    data
        Everybody's interactions, this person's among them.
    user
        Whose lists to show.
    k
        Length of the lists.
    l2
        Of W/O; "auto" takes it from the data, as the settings of DAN are.
    dtype
        Precision of the solves.
    """
    if user not in data.user_index:
        some = ", ".join(str(each) for each in data.users[:5])
        raise UnknownIdError(f"the data have no user {user!r}; choose among {some}, ...")
    if k < 1:
        raise SettingError(f"k must be >= 1, got {k}")
    row = data.user_index.position(user)
    others = data.rows(np.arange(data.n_users) != row)
    train = others.columns(others.item_counts > 0)
    person = data.rows([row]).with_items(train.item_index, unknown="skip")
    if not person.n_interactions:
        raise DataError(f"nobody else used an item of user {user!r}; choose another user")
    models = _models(train, l2, dtype)
    tail = tail_lookup(models["W/O"])
    items = remembered(person)
    rows = [row for name in models for row in _list(name, models[name], person, k, tail)]
    if not rows:
        raise DataError(f"user {user!r} has every item; nothing is left to recommend")
    known = [_row(models["W/O"], person, item, tail) for item in items]
    return CaseStudy(
        user=user,
        history=pl.DataFrame(known, infer_schema_length=None),
        lists=pl.DataFrame(rows, infer_schema_length=None),
        settings={name: settings_text(model) for name, model in models.items()},
        fingerprint=train.fingerprint,
    )


def _models(train: Interactions, l2: Any, dtype: str) -> dict[str, LAE]:
    """Fit the four models in the order of the paper's figure; three solves."""
    plain = LAE(l2=l2, dropout=0.0, normalizer=NoNorm()).fit(train, dtype=dtype)
    walk = LAE(l2=0.0, dropout=ODDS, normalizer=RandomWalk()).fit(train, dtype=dtype)
    symmetric = LAE(l2=0.0, dropout=ODDS, normalizer=Symmetric()).reuse(walk)
    adaptive = LAE(normalizer=DAN()).fit(train, dtype=dtype)
    return {"W/O": plain, "RW": walk, "DAN": adaptive, "Sym": symmetric}


def _list(
    name: str, model: LAE, person: Interactions, k: int, tail: dict[Any, bool]
) -> list[dict[str, Any]]:
    items = remembered(person)
    return [
        {
            "normalization": name,
            "rank": rank,
            **_row(model, person, item, tail),
            "why": " and ".join(reasons(model.explain(items, item))),
        }
        for rank, item in enumerate(model.recommend(person, k).items[0], start=1)
    ]


def _row(model: LAE, person: Interactions, item: Any, tail: dict[Any, bool]) -> dict[str, Any]:
    place = model.item_index_.position(item)
    return {
        "item": item,
        "title": person.label(item),
        "users": int(model.item_counts_[place]),
        "group": "tail" if tail[item] else "head",
    }
