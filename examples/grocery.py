"""Receipts of households, from the raw files to lists for each: The Complete Journey.

Run it as a script, or cell by cell in an editor that knows ``# %%``. It writes
``grocery.parquet`` and ``grocery.html`` into the current folder.
"""

# %% The raw files: 1,469,307 lines of receipts, and the products
import polars as pl

import equipoise as eq
from equipoise.report import write_report

folder = eq.datasets.fetch("complete-journey")

# %% Read: the columns of households, products and times are detected; see the notes
data = eq.read(folder / "transactions.parquet", catalogue=folder / "products.parquet")
print(data, *data.notes, sep="\n")

# %% Products that many households buy
data = data.filter(min_user=10, min_item=150)
print(data, eq.plan(data), sep="\n")

# %% Evaluate on later products that are new to a household; do weights for repeats and age help?
split = eq.split.time_cut(data, valid=0.0, test=0.1)
print(split)
recent = eq.Signals(transform="log1p", decay="90d", floor=0.1)
models = {
    "Popularity": eq.Popularity(),
    "EASE+DAN": eq.EDLAE(normalizer=eq.DAN()),
    "EASE+DAN, repeats and age": eq.EDLAE(normalizer=eq.DAN(), signals=recent),
}
for name, model in models.items():
    result = eq.evaluate(model.fit(split.train), split.test)
    print(name, *(f"{m} {result[m]:.4f}" for m in ("ndcg@20", "recall@20", "coverage@20")))

# %% Fit on all data and write ten groceries for each household, at most two of a category
model = eq.EDLAE(normalizer=eq.DAN()).fit(data)
rules = eq.Rules(include={"department": "GROCERY"}, at_most={"product_category": 2})
count = model.recommend_to("grocery.parquet", k=10, rules=rules)
print(f"{count:,} households", pl.read_parquet("grocery.parquet").head(3))

# %% Evaluate with the same rules, to see what they cost
print("under the rules", eq.evaluate(models["EASE+DAN"], split.test, rules=rules)["ndcg@20"])

# %% Similar products
groceries = data.items[data.catalogue["department"].eq("GROCERY").fill_null(False).to_numpy()]
print(data.label(groceries[0]), "->", model.similar(groceries[0], k=5).titles[0])

# %% Update with new receipts, which equals a refit; ids may be text where the model has numbers
new = eq.read([(str(data.users[0]), str(item)) for item in groceries[:3]])
model.update(new)
print(model.interactions_)

# %% Write an HTML report
write_report(split, "grocery.html", name="Groceries", sample=3)
