"""Adapters that give the models of all libraries the same interface, for `driver.py`.

Libraries are imported inside functions, because each environment has only one of them. `prepare`
converts the training matrix to the library's format and is not timed. `fit` returns a ranking
function (users, k) -> items, padded with -1. Settings that are not passed have the library's
defaults.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

Settings = dict[str, Any]
Rank = Callable[[np.ndarray, int], np.ndarray]

PENALTIES = (1, 10, 50, 200, 500, 1000)  # of every EASE


@dataclass(frozen=True)
class Model:
    """A model of a library: its name in the table, and the settings to search."""

    peer: str
    name: str
    fit: Callable[..., Rank]
    grid: tuple[Settings, ...] = ()
    prepare: Callable[[sp.csr_matrix], Any] = lambda train: train
    inverts: bool = False  # computes an n x n inverse: not for large catalogues

    @property
    def key(self) -> str:
        """Name of the model in file names."""
        return f"{self.peer}-{self.name}".lower().replace(" ", "-").replace(",", "")


def grid(**values: Iterable[Any]) -> tuple[Settings, ...]:
    """Return every combination of the values.

    >>> grid(a=[1, 2], b=[3])
    ({'a': 1, 'b': 3}, {'a': 2, 'b': 3})
    """
    return tuple(
        dict(zip(values, combination, strict=True))
        for combination in itertools.product(*values.values())
    )


def padded(lists: Iterable[Any], k: int) -> np.ndarray:
    """Return lists of items as an array with k columns, padded with -1."""
    lists = list(lists)
    out = np.full((len(lists), k), -1)
    for row, items in zip(out, lists, strict=True):
        row[: len(items[:k])] = items[:k]
    return out


def batches(users: np.ndarray, size: int = 1024) -> Iterable[np.ndarray]:
    """Yield the users in batches."""
    return (users[start : start + size] for start in range(0, len(users), size))


def long_frame(train: sp.csr_matrix, user: str, item: str, **more: Any) -> Any:
    """Return the pairs as a pandas data frame."""
    import pandas as pd

    coo = train.tocoo()
    return pd.DataFrame({user: coo.row, item: coo.col, **more})


# equipoise


def equipoise_data(train: sp.csr_matrix) -> Any:
    import equipoise as eq

    return eq.Interactions(train)


def equipoise_fit(name: str, options: Settings | None = None, **fixed: Any) -> Callable[..., Rank]:
    def fit(data: Any, **settings: Any) -> Rank:
        import equipoise as eq

        if name == "tune":
            model = eq.tune(data, criterion="leave-one-out").model
        else:
            model = getattr(eq, name)(**fixed, **settings).fit(data, **(options or {}))
        return lambda users, k: padded(model.recommend(users.tolist(), k=k).items, k)

    return fit


# implicit


def implicit_fit(module: str, name: str, **fixed: Any) -> Callable[..., Rank]:
    def fit(train: sp.csr_matrix, **settings: Any) -> Rank:
        import importlib

        model = getattr(importlib.import_module(f"implicit.{module}"), name)(**fixed, **settings)
        model.fit(train, show_progress=False)
        return lambda users, k: model.recommend(users, train[users], N=k)[0]

    return fit


# irspack


def irspack_fit(name: str) -> Callable[..., Rank]:
    def fit(train: sp.csr_matrix, **settings: Any) -> Rank:
        import irspack
        from irspack.utils.id_mapping import retrieve_recommend_from_score

        model = getattr(irspack, name)(train, **settings).learn()

        def rank(users: np.ndarray, k: int) -> np.ndarray:
            lists: list[Any] = []
            for batch in batches(users):
                score = model.get_score_remove_seen(batch)
                lists += retrieve_recommend_from_score(score, [], k, 2)
            return padded(([item for item, _ in ranked_items] for ranked_items in lists), k)

        return rank

    return fit


# RecTools


def rectools_data(train: sp.csr_matrix) -> Any:
    from rectools.dataset import Dataset

    frame = long_frame(train, "user_id", "item_id", weight=1.0)
    frame["datetime"] = "2026-01-01"
    return Dataset.construct(frame)


def rectools_fit(name: str) -> Callable[..., Rank]:
    def fit(data: Any, **settings: Any) -> Rank:
        from rectools import models

        model = getattr(models, name)(**settings).fit(data)

        def rank(users: np.ndarray, k: int) -> np.ndarray:
            recommended = model.recommend(users, data, k=k, filter_viewed=True)
            by_user = recommended.groupby("user_id")["item_id"].apply(np.asarray)
            return padded((by_user.get(user, ()) for user in users), k)

        return rank

    return fit


# LensKit


def lenskit_data(train: sp.csr_matrix) -> Any:
    from lenskit.data import from_interactions_df

    return from_interactions_df(long_frame(train, "user_id", "item_id"))


def lenskit_fit(module: str, name: str, **fixed: Any) -> Callable[..., Rank]:
    def fit(data: Any, **settings: Any) -> Rank:
        import importlib

        from lenskit.batch import recommend
        from lenskit.pipeline import topn_pipeline

        scorer = getattr(importlib.import_module(f"lenskit.{module}"), name)
        pipe = topn_pipeline(scorer(**fixed, **settings))
        pipe.train(data)

        def rank(users: np.ndarray, k: int) -> np.ndarray:
            recommended = recommend(pipe, users, n=k, n_jobs=1)
            by_user = {key.user_id: items.ids() for key, items in recommended}
            return padded((by_user[user] for user in users), k)

        return rank

    return fit


# Cornac


def cornac_data(train: sp.csr_matrix) -> Any:
    from cornac.data import Dataset

    coo = train.tocoo()
    pairs = zip(coo.row.tolist(), coo.col.tolist(), strict=True)
    return Dataset.from_uir([(user, item, 1.0) for user, item in pairs])


def cornac_fit(name: str) -> Callable[..., Rank]:
    def fit(data: Any, **settings: Any) -> Rank:
        from cornac import models

        model = getattr(models, name)(verbose=False, **settings).fit(data)

        def rank(users: np.ndarray, k: int) -> np.ndarray:
            lists = (model.recommend(user, k, True, data) for user in users.tolist())
            return padded(lists, k)

        return rank

    return fit


# RecPack


def recpack_fit(name: str) -> Callable[..., Rank]:
    def fit(train: sp.csr_matrix, **settings: Any) -> Rank:
        from recpack import algorithms
        from recpack.util import get_top_K_ranks

        model = getattr(algorithms, name)(**settings).fit(train)

        def rank(users: np.ndarray, k: int) -> np.ndarray:
            out = np.full((len(users), k), -1)
            start = 0
            for batch in batches(users):
                history = train[batch]
                score = model.predict(history)
                score = score - score.multiply(history)  # as in RecPack's pipelines
                best = get_top_K_ranks(score, k).tocoo()
                out[start + best.row, best.data.astype(int) - 1] = best.col
                start += len(batch)
            return out

        return rank

    return fit


# RecBole


def recbole_config(model: str, folder: Path, **settings: Any) -> Any:
    from recbole.config import Config

    data_options = {"data_path": str(folder), "load_col": {"inter": ["user_id", "item_id"]}}
    return Config(model, "bench", config_dict={**data_options, "use_gpu": False, **settings})


def recbole_data(train: sp.csr_matrix) -> Any:
    from recbole.data import create_dataset

    folder = Path(tempfile.mkdtemp())
    (folder / "bench").mkdir()
    frame = long_frame(train, "user_id:token", "item_id:token")
    frame.to_csv(folder / "bench" / "bench.inter", sep="\t", index=False)
    return folder, create_dataset(recbole_config("EASE", folder)), train


def recbole_fit(name: str) -> Callable[..., Rank]:
    def fit(prepared: Any, **settings: Any) -> Rank:
        import torch
        from recbole.utils import get_model

        folder, data, train = prepared
        model = get_model(name)(recbole_config(name, folder, **settings), data)
        users_of, items_of = data.field2token_id["user_id"], data.field2id_token["item_id"]
        ids = torch.tensor([users_of.get(str(user), 0) for user in range(train.shape[0])])
        columns = np.array([-1, *map(int, items_of[1:])])  # position 0 is RecBole's padding
        positions = np.zeros(train.shape[1], np.int64)
        positions[columns[1:]] = np.arange(1, len(columns))

        def rank(users: np.ndarray, k: int) -> np.ndarray:
            out = []
            for batch in batches(users):  # mask and torch.topk, like RecBole's full_sort_topk
                score = model.full_sort_predict({"user_id": ids[batch]}).view(len(batch), -1)
                seen = train[batch].tocoo()
                score[:, 0] = score[seen.row, positions[seen.col]] = -torch.inf
                out.append(columns[torch.topk(score, k, dim=1).indices.numpy()])
            return np.concatenate(out)

        return rank

    return fit


# sansa


def sansa_fit(train: sp.csr_matrix, l2: float = 20.0) -> Rank:
    import sansa

    config = sansa.SANSAConfig(
        l2=l2,
        weight_matrix_density=min(1.0, 100 / train.shape[1]),
        gramian_factorizer_config=sansa.CHOLMODGramianFactorizerConfig(),
        lower_triangle_inverter_config=sansa.UMRUnitLowerTriangleInverterConfig(),
    )
    model = sansa.SANSA(config).fit(train)

    def rank(users: np.ndarray, k: int) -> np.ndarray:
        out = []
        for batch in batches(users):  # SANSA.recommend fails if fewer than k items have a score
            score = model.forward(train[batch]).toarray()
            score[train[batch].nonzero()] = -np.inf
            best = np.argpartition(-score, k, axis=1)[:, :k]
            order = np.argsort(-np.take_along_axis(score, best, 1), axis=1, kind="stable")
            out.append(np.take_along_axis(best, order, 1))
        return np.concatenate(out)

    return rank


ALS = grid(factors=(64, 128), regularization=(0.01, 0.1, 1.0))
MODELS = (
    Model("equipoise", "automatic, 7 solves", equipoise_fit("tune"), (), equipoise_data, True),
    Model(
        "equipoise",
        "EASE + DAN",
        equipoise_fit("EDLAE", normalizer="dan"),  # EASE with an automatic dropout by default
        grid(l2=(10, 50, 200), dropout=(0.3, 0.6)),
        equipoise_data,
        True,
    ),
    Model(
        "equipoise",
        "EASE",
        equipoise_fit("EDLAE"),
        grid(l2=PENALTIES, dropout=(0,)),
        equipoise_data,
        True,
    ),
    Model(
        "equipoise",
        "EASE + DAN, 100 neighbours",
        equipoise_fit("EDLAE", {"engine": "neighbourhood", "neighbours": 100}, normalizer="dan"),
        grid(l2=(10, 50, 200), dropout=(0.3, 0.6)),
        equipoise_data,
    ),
    Model(
        "equipoise",
        "ItemKNN",
        equipoise_fit("ItemKNN"),
        grid(neighbours=(20, 100, 300), shrink=(0, 50)),
        equipoise_data,
    ),
    Model("implicit", "ALS", implicit_fit("als", "AlternatingLeastSquares", random_state=0), ALS),
    Model(
        "implicit",
        "cosine kNN",
        implicit_fit("nearest_neighbours", "CosineRecommender"),
        grid(K=(10, 20, 50, 100, 200, 400)),
    ),
    Model(
        "implicit",
        "BM25 kNN",
        implicit_fit("nearest_neighbours", "BM25Recommender"),
        grid(K=(20, 100, 300), B=(0.2, 0.75)),
    ),
    Model(
        "irspack",
        "DenseSLIM",
        irspack_fit("DenseSLIMRecommender"),
        grid(reg=PENALTIES),
        inverts=True,
    ),
    Model(
        "irspack",
        "EDLAE",
        irspack_fit("EDLAERecommender"),
        grid(reg=(10, 50, 200), dropout_p=(0.3, 0.6)),
        inverts=True,
    ),
    Model(
        "irspack",
        "RP3beta",
        irspack_fit("RP3betaRecommender"),
        grid(beta=(0.3, 0.6, 0.8), top_k=(100, 300)),
    ),
    Model(
        "irspack",
        "iALS",
        irspack_fit("IALSRecommender"),
        grid(n_components=(64, 128), alpha0=(0.05, 0.2, 0.5)),
    ),
    Model(
        "RecTools",
        "EASE",
        rectools_fit("EASEModel"),
        grid(regularization=PENALTIES),
        rectools_data,
        True,
    ),
    Model(
        "RecTools",
        "PureSVD",
        rectools_fit("PureSVDModel"),
        grid(factors=(10, 20, 40, 80, 160, 320)),
        rectools_data,
    ),
    Model(
        "LensKit",
        "EASE",
        lenskit_fit("knn", "EASEScorer"),
        grid(regularization=PENALTIES),
        lenskit_data,
        True,
    ),
    Model(
        "LensKit",
        "item kNN",
        lenskit_fit("knn", "ItemKNNScorer", feedback="implicit"),
        grid(max_nbrs=(10, 20, 50, 100, 200, 400)),
        lenskit_data,
    ),
    Model(
        "LensKit",
        "ALS",
        lenskit_fit("als", "ImplicitMFScorer"),
        grid(embedding_size=(64, 128), regularization=(0.01, 0.1, 1.0)),
        lenskit_data,
    ),
    Model("Cornac", "EASE", cornac_fit("EASE"), grid(lamb=PENALTIES), cornac_data, True),
    Model("RecPack", "EASE", recpack_fit("EASE"), grid(l2=PENALTIES), inverts=True),
    Model(
        "RecPack",
        "ItemKNN",
        recpack_fit("ItemKNN"),
        grid(K=(20, 100, 300), normalize_sim=(False, True)),
    ),
    Model(
        "RecBole",
        "EASE",
        recbole_fit("EASE"),
        grid(reg_weight=PENALTIES),
        recbole_data,
        True,
    ),
    Model(
        "RecBole",
        "ItemKNN",
        recbole_fit("ItemKNN"),
        grid(k=(20, 100, 300), shrink=(0.0, 50.0)),
        recbole_data,
    ),
    Model("sansa", "SANSA", sansa_fit, grid(l2=PENALTIES)),
)
