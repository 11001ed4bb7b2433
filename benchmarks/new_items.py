"""Items without a single event: the model's own choice against content rankings, and its cost.

    python benchmarks/new_items.py                   # all sets, two seeds; then the table
    python benchmarks/new_items.py --sets online-retail --seeds 0
    python benchmarks/new_items.py --peers .bench/env     # LightFM, in its environment there
    python benchmarks/new_items.py --speed           # adding and ranking 1,000 items
    python benchmarks/new_items.py --show            # the tables, from results/new_items.json

Lists of new items: 15% of the items are hidden from all users, and the users are cut into 70, 15
and 15%. The model is fitted on the known items of the first part, with `features=eq.Features()`
and nothing else. Lists of the hidden items are made from the known items of the other two parts,
and judged by NDCG@20. Four rankings by content, from the same features with and without IDF, are
tuned on the second part, with the very items that are hidden; the model sees neither.

    content cosine     history x F F^T
    content kNN        the same, of the items nearest to the new one alone
    EASE on features   EASE whose users are the features
    collective EASE    EASE whose users are the users and, weighted, the features

LightFM, if its environment is there, is trained on the histories of all users, since it has no
lists for users whom it does not know, and tuned on the second part.

All items, nothing new: EDLAE with and without `features=eq.Features()`, by the strong split. All
items with new ones: 80% of the known items of a test user are the history; targets are the rest
and the hidden items.

`ml-latest-small` is read from the folder of `--data`; the other sets are fetched.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse as sp
from peers.environments import make, python_of
from real import SHARED

import equipoise as eq
from equipoise.models.features import Vocabulary

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "new_items.json"
HIDDEN = 0.15
K = 20
LEAST_ITEMS = 3  # of a user
LEAST_USERS = {
    "movielens-1m": 10,
    "ml-latest-small": 5,
    "book-crossing": 30,
    "complete-journey": 50,
    "online-retail": 10,
}
BASELINES = ("content cosine", "content kNN", "EASE on features", "collective EASE")

Array = np.ndarray


def load(name: str, folder: Path) -> eq.Interactions:
    """Return the pairs of a data set, with the attributes that its items are described by."""
    if name == "ml-latest-small":
        data = _films_with_tags(folder / name)
    else:
        ratings = {"min_rating": 4} if name.startswith("movielens") else {}
        data = eq.datasets.load(name, **ratings)
    data = data.columns(data.item_counts >= LEAST_USERS[name])
    catalogue = data.catalogue
    if name == "movielens-1m":
        catalogue = catalogue.select(pl.col("genres").str.split(" "))
    elif name == "book-crossing":
        catalogue = catalogue.select("title", "author")
    elif name == "complete-journey":
        catalogue = catalogue.with_columns(pl.col("manufacturer_id").cast(pl.String))
        catalogue = catalogue.drop("package_size")
    described = catalogue.select(pl.any_horizontal(pl.all().is_not_null())).to_series().to_numpy()
    catalogue = catalogue.with_columns(item=pl.Series(data.items)).select(
        "item", pl.exclude("item")
    )
    pairs = eq.Interactions((data.matrix > 0).astype(np.float32), data.users, data.items)
    return pairs.with_catalogue(catalogue).columns(described).filter(min_user=LEAST_ITEMS)


def _films_with_tags(folder: Path) -> eq.Interactions:
    films = pl.read_csv(folder / "movies.csv")
    tags = (
        pl.read_csv(folder / "tags.csv").group_by("movieId").agg(pl.col("tag").str.to_lowercase())
    )
    films = films.join(tags, on="movieId", how="left").with_columns(
        pl.col("genres").str.split("|")
    )
    return eq.read(
        folder / "ratings.csv", user="userId", item="movieId", rating="rating", min_rating=4,
        catalogue=films,
    )  # fmt: skip


@dataclass(frozen=True)
class Users:
    """Users to rank for: their known items, the others to be found, and the hidden ones."""

    shown: Array  # users x known items, 0/1
    others: Array  # users x known items
    hidden: Array  # users x hidden items


class Cut:
    """A data set with hidden items and three parts of users."""

    def __init__(self, data: eq.Interactions, seed: int, most_users: int = 1000) -> None:
        rng = np.random.default_rng(seed)
        order = rng.permutation(data.n_items)
        self.data, size = data, int(HIDDEN * data.n_items)
        self.hidden, self.known = np.sort(order[:size]), np.sort(order[size:])
        users = rng.permutation(data.n_users)
        ends = [round(0.7 * data.n_users), round(0.85 * data.n_users)]
        parts = np.split(users, ends)
        self.train_rows = np.sort(parts[0])
        self.train = data.rows(self.train_rows).hide_items(self.hidden)
        of_known, of_hidden = data.matrix[:, self.known], data.matrix[:, self.hidden]
        n_known, n_hidden = (np.diff(matrix.tocsr().indptr) for matrix in (of_known, of_hidden))
        usable = (n_known >= LEAST_ITEMS) & (n_hidden > 0)
        self.rows = [np.sort(part[usable[part]][:most_users]) for part in parts[1:]]
        self.valid, self.test = (self._users(rows, 1.0, rng) for rows in self.rows)
        self.mixed = self._users(self.rows[1], 0.8, rng)

    def _users(self, rows: Array, share: float, rng: Any) -> Users:
        known = self.data.matrix[rows][:, self.known].toarray()
        is_shown = rng.random(known.shape) < share
        is_shown[np.arange(len(rows)), known.argmax(axis=1)] = True
        shown = known * is_shown
        return Users(shown, known - shown, self.data.matrix[rows][:, self.hidden].toarray())

    def scores(self, model: eq.Recommender, users: Users) -> tuple[Array, Array]:
        """Return the scores of known and of hidden items."""
        items = self.data.items[self.known]
        histories = eq.Interactions(sp.csr_array(users.shown), items=items)
        scores = model.score(histories, unknown_items="skip")
        return tuple(  # type: ignore[return-value]
            scores[:, model.item_index_.positions(self.data.items[part])]
            for part in (self.known, self.hidden)
        )


def ndcg(scores: Array, targets: Array, is_shown: Array | None = None) -> float:
    """Return NDCG@20 of users by their scores, items first that have the lowest position."""
    scores = np.where(is_shown, -np.inf, scores) if is_shown is not None else scores
    lists = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    hits = eq.metrics.find_hits(lists, sp.csr_array(targets))
    return float(np.nanmean(eq.metrics.ndcg(hits, K)))


class Contents:
    """Rankings of hidden items by the features of the items, from one matrix of features."""

    def __init__(self, cut: Cut, rarity: float) -> None:
        features = eq.Features()
        vocabulary = Vocabulary.of(features, cut.train.catalogue, cut.train.attributes)
        vocabulary = vocabulary.weighted(cut.train.catalogue, rarity)
        rows = vocabulary.encode(cut.data.catalogue)
        self.known, self.hidden = rows[cut.known], rows[cut.hidden]
        self.cosines = (self.known @ self.hidden.T).toarray()
        stacked = sp.vstack([self.known, self.hidden]).tocsr()
        self.gram = (stacked @ stacked.T).toarray().astype(np.float32)
        n_known = len(cut.known)
        self.of_users = np.zeros_like(self.gram)
        train = cut.data.matrix[cut.train_rows][:, cut.known].tocsr()
        self.of_users[:n_known, :n_known] = (train.T @ train).toarray()

    def weights(self) -> Iterator[tuple[str, Any, Array]]:
        """Yield the name of a ranking, its setting and its weights, known x hidden items."""
        yield "content cosine", {}, self.cosines
        order = np.argsort(-self.cosines, axis=0, kind="stable")
        for neighbours in (5, 10, 20, 50, 100, 200):
            nearest = np.zeros_like(self.cosines)
            places = order[:neighbours]
            near = np.take_along_axis(self.cosines, places, 0)
            for is_mean, values in ((False, near), (True, near / np.maximum(near.sum(0), 1e-9))):
                np.put_along_axis(nearest, places, values, 0)
                yield "content kNN", {"neighbours": neighbours, "mean": is_mean}, nearest
        for l2 in (0.1, 0.3, 1, 3, 10):
            yield "EASE on features", {"l2": l2}, self._ease(self.gram, l2)
        for weight in (3, 30, 300):
            gram = self.of_users + weight * self.gram
            for l2 in (20, 100, 500):
                yield "collective EASE", {"weight": weight, "l2": l2}, self._ease(gram, l2)

    def _ease(self, gram: Array, l2: float) -> Array:
        inverse = np.linalg.inv(gram + l2 * np.eye(len(gram), dtype=np.float32))
        n_known = len(self.cosines)
        return -inverse[:n_known, n_known:] / np.diag(inverse)[n_known:]


def tuned_baselines(cut: Cut) -> dict[str, dict[str, Any]]:
    """Return the test NDCG of each ranking, with its best setting on the validation users."""
    best: dict[str, dict[str, Any]] = {}
    for rarity in (0.0, 1.0):
        for name, setting, weights in Contents(cut, rarity).weights():
            valid = ndcg(cut.valid.shown @ weights, cut.valid.hidden)
            if valid > best.get(name, {"valid": -1})["valid"]:
                test = ndcg(cut.test.shown @ weights, cut.test.hidden)
                best[name] = {
                    "valid": valid,
                    "ndcg": test,
                    "setting": {"rarity": rarity, **setting},
                }
    return best


def measure(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a data set and a seed."""
    data = load(name, options.data)
    cut = Cut(data, seed)
    row: dict[str, Any] = {
        "users": data.n_users,
        "items": data.n_items,
        "pairs": data.n_interactions,
        "hidden": len(cut.hidden),
    }
    start = time.process_time()
    model = eq.EDLAE(normalizer="dan", features=eq.Features()).fit(cut.train)
    row["fit seconds"] = time.process_time() - start
    row["features"] = model.item_features_.vocabulary.size
    row["settings"] = model.settings(resolved=True)["features"]
    row["new"] = ndcg(cut.scores(model, cut.test)[1], cut.test.hidden)
    plain = eq.EDLAE(normalizer="dan").fit(cut.train)
    start = time.process_time()
    plain.clone().fit(cut.train)
    row["plain fit seconds"] = time.process_time() - start
    row["mixed"] = mixed_lists(cut, model, plain)
    row["nothing new"] = nothing_new(data, seed)
    row["baselines"] = tuned_baselines(cut)
    return row


def mixed_lists(cut: Cut, model: eq.Recommender, plain: eq.Recommender) -> dict[str, float]:
    """Return the figures of lists over all items, with new ones and without."""
    users = cut.mixed
    is_shown = np.hstack([users.shown > 0, np.zeros(users.hidden.shape, bool)])
    targets = np.hstack([users.others, users.hidden])
    of_known = np.hstack([users.others, np.zeros_like(users.hidden)])
    figures = {}
    scores = np.hstack(cut.scores(model, users))
    histories = eq.Interactions(sp.csr_array(users.shown), items=cut.data.items[cut.known])
    known = plain.score(histories, unknown_items="skip")
    known = known[:, plain.item_index_.positions(cut.data.items[cut.known])]
    without = np.hstack([known, np.full(users.hidden.shape, -np.inf)])
    for label, values in (("with", scores), ("without", without)):
        figures[f"all, {label} new items"] = ndcg(values, targets, is_shown)
        figures[f"known, {label} new items"] = ndcg(values, of_known, is_shown)
    hidden_scores = np.where(is_shown, -np.inf, scores)
    lists = np.argsort(-hidden_scores, axis=1, kind="stable")[:, :K]
    figures["new items in lists"] = float((lists >= users.shown.shape[1]).mean())
    return figures


def nothing_new(data: eq.Interactions, seed: int) -> dict[str, float]:
    """Return NDCG@20 of held-out users with and without features, all items known."""
    split = eq.split.strong(data, valid=0, test=0.15, seed=seed)
    figures: dict[str, float] = {}
    for label, features in (("without", None), ("with", eq.Features())):
        model = eq.EDLAE(normalizer="dan", features=features).fit(split.train)
        result = eq.evaluate(model, split.test, k=K, metrics=("ndcg", "tail_ndcg"), bootstrap=0)
        figures[label], figures[f"tail, {label}"] = result["ndcg@20"], result["tail_ndcg@20"]
        if features is not None:
            figures["weight"] = model.item_features_.settings.strength
    return figures


def lightfm(cut: Cut, environments: Path) -> dict[str, Any]:
    """Return the test NDCG of LightFM, tuned on the validation users, in its environment."""
    error = make(environments, "LightFM")
    if error:
        return {"error": error}
    features = Contents(cut, 0.0)
    n_known, n_items = len(cut.known), cut.data.n_items
    rows = np.concatenate([cut.train_rows, *cut.rows])
    matrix = sp.csr_array(cut.data.matrix[rows][:, cut.known])
    train = sp.csr_array((matrix.data, matrix.indices, matrix.indptr), (len(rows), n_items))
    ends = np.cumsum([len(cut.train_rows), *map(len, cut.rows)])
    with tempfile.TemporaryDirectory() as folder:
        files = {name: f"{folder}/{name}.npz" for name in ("train", "features", "scores")}
        sp.save_npz(files["train"], train)
        sp.save_npz(files["features"], sp.vstack([features.known, features.hidden]).tocsr())
        job = {**files, "first_user": int(ends[0]), "first_item": n_known}
        command = [str(python_of(environments, "LightFM")), str(HERE / "peers" / "hybrid.py")]
        done = subprocess.run(
            [*command, json.dumps(job)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1]}
        settings = json.loads(done.stdout.splitlines()[-1])
        n_valid = len(cut.rows[0])
        with np.load(files["scores"]) as scores:
            values = [
                (
                    ndcg(scores[f"{number}"][:n_valid], cut.valid.hidden),
                    ndcg(scores[f"{number}"][n_valid:], cut.test.hidden),
                    setting,
                )
                for number, setting in enumerate(settings["tried"])
            ]
    valid, test, setting = max(values, key=lambda value: value[0])
    versions = {"version": settings["version"], "seconds": settings["seconds"]}
    return {"valid": valid, "ndcg": test, "setting": setting, **versions}


def speed(n_items: int = 20_000, n_new: int = 1_000) -> dict[str, float]:
    """Return the time of adding items to a large model, and of a request before and after.

    Requests alternate; theirs is the median time of the processor.
    """
    rng = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(3_000)])
    popularity = 1 / np.arange(1, len(words) + 1)
    popularity /= popularity.sum()

    def described(first: int, size: int) -> pl.DataFrame:
        titles = rng.choice(words, (size, 5), p=popularity)
        kinds = rng.integers(0, 200, size)
        return pl.DataFrame(
            {
                "item": np.arange(first, first + size),
                "title": [" ".join(title) for title in titles.tolist()],
                "category": [f"kind{kind}" for kind in kinds.tolist()],
            }
        )

    # every item has a user: those without any would be new
    n_users, pairs_of_user = 500, 400
    popular = (n_items * rng.random((n_users, pairs_of_user)) ** 2).astype(np.int64)
    items = np.concatenate([popular.ravel(), np.arange(n_items)])
    rows = np.concatenate(
        [np.repeat(np.arange(n_users), pairs_of_user), items[-n_items:] % n_users]
    )
    matrix = sp.csr_array((np.ones(len(items), np.float32), (rows, items)))
    matrix = sp.csr_array((matrix > 0).astype(np.float32))
    data = eq.Interactions(matrix).with_catalogue(described(0, n_items))
    settings = {"strength": 0, "map": "both", "rarity": 0, "mu": 1, "share": 0.3}
    features = eq.Features(**settings, neighbours=10, scale=1)
    # solved through its few users, then held as the dense matrix that most models have
    model = eq.EASE(l2=100, features=features).fit(data, engine="dual")
    model.inverse_ = model.solution_.toarray()
    before = model.without_new_items()
    seconds = []
    rows = [rng.choice(n_items, 30, replace=False) for _ in range(400)]
    histories = [data.items[row].tolist() for row in rows]
    for attempt in range(3):
        frame = described(n_items * (attempt + 2), n_new)
        added = copy.copy(model)
        start = time.perf_counter(), time.process_time()
        added.add_items(frame)
        seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    requests: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(len(histories)):
        # different histories, since the second of two equal requests finds its rows in the cache
        for shift, (label, asked) in enumerate((("before", before), ("after", added))):
            history = histories[(number + 200 * shift) % len(histories)]
            processor = time.process_time()
            asked.recommend([history], k=20)
            requests[label].append(time.process_time() - processor)
    times = {label: float(np.median(values[20:])) for label, values in requests.items()}
    return {
        "items": data.n_items,
        "new items": n_new,
        "features": model.item_features_.vocabulary.size,
        "add seconds": min(wall for wall, _ in seconds),
        "of the processor": min(processor for _, processor in seconds),
        "request before, ms": 1000 * times["before"],
        "request after, ms": 1000 * times["after"],
        "ratio": times["after"] / times["before"],
    }


def show(stored: dict[str, Any]) -> None:
    """Print the tables of the stored figures."""
    stored = {key: row for key, row in stored.items() if key == "speed" or "new" in row}
    names = list(dict.fromkeys(key.rsplit(" ", 1)[0] for key in stored if key != "speed"))
    sets = {
        name: [row for key, row in stored.items() if key.rsplit(" ", 1)[0] == name]
        for name in names
    }
    peers = any("ndcg" in row.get("LightFM", {}) for rows in sets.values() for row in rows)
    heading = [*BASELINES, *(["LightFM"] if peers else [])]
    print(f"| data | items, features | {' | '.join(heading)} | **equipoise** | of the best |")
    print("|---|--:|" + "--:|" * (len(heading) + 2))
    ratios = []
    for name, rows in sets.items():
        values = {
            label: np.mean([row["baselines"][label]["ndcg"] for row in rows])
            for label in BASELINES
        }
        if peers:
            values["LightFM"] = np.mean(
                [row.get("LightFM", {}).get("ndcg", np.nan) for row in rows]
            )
        ours = np.mean([row["new"] for row in rows])
        ratios.append(ours / max(values[label] for label in BASELINES))
        cells = " | ".join(f"{values[label]:.3f}" for label in heading)
        sizes = f"{rows[0]['items']:,}, {rows[0]['features']:,}"
        print(f"| {name} | {sizes} | {cells} | **{ours:.3f}** | {ratios[-1]:.2f} |")
    print(f"\nof the best of the four, mean {np.mean(ratios):.3f}, least {min(ratios):.3f}\n")
    print(
        "| data | weight, without features | with | ratio | tail, ratio | all, without new items "
        "| with | known, without | with | new items in lists | fit, processor s, ratio |"
    )
    print("|---|" + "--:|" * 10)
    for name, rows in sets.items():
        nothing = {label: np.mean([row["nothing new"][label] for row in rows]) for label in (
            "with", "without", "tail, with", "tail, without", "weight")}  # fmt: skip
        mixed = {
            label: np.mean([row["mixed"][label] for row in rows]) for label in rows[0]["mixed"]
        }
        fits = [np.mean([row[label] for row in rows]) for label in (
            "fit seconds", "plain fit seconds")]  # fmt: skip
        weights = ", ".join(f"{row['nothing new']['weight']:g}" for row in rows)
        print(
            f"| {name} | {weights}: {nothing['without']:.4f} | {nothing['with']:.4f} | "
            f"{nothing['with'] / nothing['without']:.4f} | "
            f"{nothing['tail, with'] / nothing['tail, without']:.3f} | "
            f"{mixed['all, without new items']:.3f} | {mixed['all, with new items']:.3f} | "
            f"{mixed['known, without new items']:.3f} | {mixed['known, with new items']:.3f} | "
            f"{mixed['new items in lists']:.0%} | {fits[0]:.1f}, {fits[0] / fits[1]:.1f} |"
        )
    if "speed" in stored:
        print("\n" + ", ".join(f"{name} {value:.3g}" for name, value in stored["speed"].items()))


def stored_rows() -> dict[str, Any]:
    """Return the figures in the file of results."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def store(key: str, row: dict[str, Any]) -> None:
    """Add figures to the file of results."""
    text = json.dumps(stored_rows() | {key: row}, indent=1) + "\n"
    RESULTS.write_text(text, encoding="utf-8")
    print(key, json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with ml-latest-small")
    parser.add_argument("--sets", nargs="+", default=list(LEAST_USERS), choices=list(LEAST_USERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--peers", type=Path, help="measure LightFM alone, in an environment here")
    parser.add_argument("--speed", action="store_true", help="time the addition of items alone")
    parser.add_argument("--show", action="store_true", help="print the stored tables")
    options = parser.parse_args()
    if options.speed:
        store("speed", speed())
    elif not options.show:
        for name in options.sets:
            for seed in options.seeds:
                row = stored_rows().get(f"{name} {seed}", {})
                if options.peers is None:
                    row |= measure(name, seed, options)
                else:
                    row["LightFM"] = lightfm(Cut(load(name, options.data), seed), options.peers)
                store(f"{name} {seed}", row)
    show(stored_rows())


if __name__ == "__main__":
    main()
