"""A shop's invoices, from the raw file to lists for every customer: UCI Online Retail.

Run it as a script, or cell by cell in an editor that knows ``# %%``. It writes
``online-retail.parquet`` and ``online-retail.html`` into the current folder.
"""

# %% The raw file: 541,909 lines of invoices, downloaded once
import polars as pl

import equipoise as eq
from equipoise.errors import DataError
from equipoise.report import write_report

file = eq.datasets.fetch("online-retail") / "ecommerce_sales.csv"

# %% Read: columns are detected; errors name the option that is missing
for settings in ({}, {"encoding": "latin-1", "on_bad": "skip"}):
    try:
        eq.read(file, **settings)
    except DataError as error:
        print(error, end="\n\n")

# %% Skip and count the lines without a customer; titles are in the same file
options = {"encoding": "latin-1", "time_format": "%m/%d/%Y %H:%M", "on_bad": "skip"}
data = eq.read(file, catalogue=file, title="Description", **options)
print(data, *data.notes, sep="\n")

# %% Keep customers with at least 5 items, and items with at least 50 customers
data = data.filter(min_user=5, min_item=50)

# %% Evaluate on later purchases: the models are fitted on purchases before the cut
split = eq.split.time_cut(data, valid=0.0, test=0.1)
print(split)
results = {
    "Popularity": eq.evaluate(eq.Popularity().fit(split.train), split.test),
    "EASE": eq.evaluate(eq.EASE(l2=300).fit(split.train), split.test),
    "EASE+DAN": eq.evaluate(eq.EDLAE(normalizer=eq.DAN()).fit(split.train), split.test),
}
for name, result in results.items():
    print(name, *(f"{m} {result[m]:.4f}" for m in ("ndcg@20", "recall@20", "coverage@20")))

# %% Fit on all data and write ten diverse items for each customer, without postage
model = eq.EDLAE(normalizer=eq.DAN()).fit(data)
rules = eq.Rules(exclude={"Description": ["POSTAGE", "Manual"]}, diversity=0.2)
count = model.recommend_to("online-retail.parquet", k=10, rules=rules, reasons=2)
lists = pl.read_parquet("online-retail.parquet")
print(f"{count:,} customers", lists.head(3))

# %% Explain a recommendation
customer = data.users[0]
best = model.recommend([customer], k=1).items[0][0]
print(data.label(best), model.explain(customer, best).to_frame().head(3))

# %% Write an HTML report
facts = write_report(split, "online-retail.html", name="Online Retail", sample=3)
print("online-retail.html", [model_facts["name"] for model_facts in facts["models"]])
