"""Ratings of books, from the raw files to lists for readers: Book-Crossing.

Run it as a script, or cell by cell in an editor that knows ``# %%``. It writes
``book-crossing.parquet`` and ``book-crossing.html`` into the current folder.
"""

# %% The raw files: separated by semicolons, quotes escaped by backslashes, Latin-1 encoding
import polars as pl

import equipoise as eq
from equipoise.report import write_report

folder = eq.datasets.fetch("book-crossing")
ratings, books = folder / "BX-Book-Ratings.csv", folder / "BX-Books.csv"

# %% Read: a rating of at least 6 means that the reader liked the book; 0 means no rating
data = eq.read(ratings, catalogue=books, encoding="latin-1", min_rating=6)
print(data, *data.notes, sep="\n")

# %% Most books have only one reader; a model can learn from a much smaller part of the data
data = data.filter(min_user=5, min_item=15)
print(data)

# %% There are no timestamps, so evaluate on readers who are not in the training data
split = eq.split.strong(data, valid=0.1, test=0.1, seed=0)
models = {
    "Popularity": eq.Popularity(),
    "EASE": eq.EASE(l2=300),
    "EASE+DAN": eq.EDLAE(normalizer=eq.DAN()),
}
for name, model in models.items():
    result = eq.evaluate(model.fit(split.train), split.test)
    print(name, *(f"{m} {result[m]:.4f}" for m in ("ndcg@20", "recall@20", "tail_ndcg@20")))

# %% Recommend to a new reader: pass the ids of the books as they are in the file
history = data.items[data.item_counts.argsort()[-3:]].tolist()
recommended = models["EASE+DAN"].recommend([history], k=5)
print([data.label(item) for item in history], "->", recommended.titles[0])

# %% Fit on all data and write ten books for each reader, at most two by the same author
model = eq.EDLAE(normalizer=eq.DAN()).fit(data)
rules = eq.Rules(at_most={"Book-Author": 2})
count = model.recommend_to("book-crossing.parquet", k=10, rules=rules)
print(f"{count:,} readers", pl.read_parquet("book-crossing.parquet").head(3))

# %% Write an HTML report
write_report(split, "book-crossing.html", name="Book-Crossing", sample=3)
