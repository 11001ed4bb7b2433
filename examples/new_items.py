"""From a raw catalogue to a recommended new film: MovieLens 100K with genres and years.

Run it as a script, or cell by cell in an editor that knows ``# %%``.
"""

# %% Ratings and a catalogue: title, year and genres of each film
import polars as pl

import equipoise as eq

data = eq.datasets.load("movielens-100k", min_rating=4)
catalogue = data.catalogue.with_columns(
    pl.Series("item", data.items),
    pl.col("genres").str.split(" "),
    pl.col("year").cast(pl.Int64, strict=False),
)
data = data.with_catalogue(catalogue)
print(data, data.attributes, data.catalogue.head(3), sep="\n")

# %% How well are films recommended that nobody has rated? Hide 15% of them
split = eq.split.new_items(data, share=0.15)
settings = {"l2": 100.0, "dropout": 0.5, "normalizer": eq.DAN(0.2, 0.3)}
features = eq.Features(["genres", "year"])
for name, model in {
    "without features": eq.EASE(**settings),
    "with features": eq.EASE(**settings, features=features),
}.items():
    result = eq.evaluate(model.fit(split.train), split.test, bootstrap=0)
    shown = ("new_ndcg@20", "known_ndcg@20", "new_share@20")
    print(name, *(f"{metric} {result[metric]:.4f}" for metric in shown))

# %% Fit on all data; what was chosen, and by which figures
model = eq.EASE(**settings, features=features).fit(data)
print(model.features_, model.item_features_.figures, sep="\n")

# %% A new film arrives: the next lists may have it; new_items= brings it further up
model.add_items(
    {
        "item": [9001],
        "title": ["The Station at Night"],
        "year": [data.catalogue["year"].max()],
        "genres": [["Film-Noir", "Thriller"]],
    }
)
lists = model.recommend(data.users.tolist(), k=20, new_items=1.5)
users = [user for user, items in zip(lists.users, lists.items, strict=True) if 9001 in items]
print(f"The Station at Night is on {len(users)} of {len(lists.users)} lists")

# %% Why
history = data.history(users[0]) if users else data.items[:3].tolist()
print(model.explain(history, 9001).to_frame().head(3))
