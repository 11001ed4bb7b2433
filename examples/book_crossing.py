"""Ratings of books, from the raw files to lists for readers: Book-Crossing.

Run it as a script, or cell by cell in an editor that knows ``# %%``. It writes
``book-crossing.parquet`` and ``book-crossing.html`` into the current folder.
"""

# %% The raw files: semicolons, quotation marks escaped by backslashes, letters of Latin-1
import polars as pl

import equipoise as eq
from equipoise.report import write_report

folder = eq.datasets.fetch("book-crossing")
ratings, books = folder / "BX-Book-Ratings.csv", folder / "BX-Books.csv"

# %% Read: a rating of 6 and more says that a book was liked; 0 is no rating
data = eq.read(ratings, labels=books, encoding="latin-1", min_rating=6)
print(data, *data.notes, sep="\n")

# %% Most books have one reader: what a model can learn from is much smaller
data = data.filter(min_user=5, min_item=15)
print(data)

# %% There are no times, so judge on readers that the models never saw
split = eq.split.strong(data, valid=0.1, test=0.1, seed=0)
models = {
    "Popularity": eq.Popularity(),
    "EASE": eq.EASE(l2=300),
    "EASE+DAN": eq.EDLAE(normalizer=eq.DAN()),
}
for name, model in models.items():
    result = eq.evaluate(model.fit(split.train), split.test)
    print(name, *(f"{m} {result[m]:.4f}" for m in ("ndcg@20", "recall@20", "tail_ndcg@20")))

# %% A reader who is not in the data: give the ids of the books, as they are in the file
history = data.items[data.item_counts.argsort()[-3:]].tolist()
recommended = models["EASE+DAN"].recommend([history], k=5)
print([data.label(item) for item in history], "->", recommended.titles[0])

# %% Fit on everything, and write ten books for each reader, at most two of an author
model = eq.EDLAE(normalizer=eq.DAN()).fit(data)
rules = eq.Rules(at_most={"Book-Author": 2})
count = model.recommend_to("book-crossing.parquet", k=10, rules=rules)
print(f"{count:,} readers", pl.read_parquet("book-crossing.parquet").head(3))

# %% One page on all of it
write_report(split, "book-crossing.html", name="Book-Crossing", sample=3)
