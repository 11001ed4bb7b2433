"""What a notebook shows: data, plans, models, results and lists as tables and small drawings.

Open it in an editor that knows ``# %%``, or turn it into a notebook with ``jupytext --to ipynb``.
"""

# %% Data: a title, sizes, and how concentrated it is
import equipoise as eq

data = eq.datasets.load("movielens-100k", min_rating=4)
print(data)
eq.describe(data)

# %% A split: who is in which part
split = eq.split.strong(data, seed=0)
split

# %% A plan: memory and time of a fit before it is made
eq.plan(split.train)

# %% A model: its settings, with numbers in place of "auto"
model = eq.EDLAE(normalizer=eq.DAN()).fit(split.train)
model

# %% A result: metrics with intervals, for all, head and tail items
result = eq.evaluate(model, split.test)
result

# %% A comparison: is the difference more than chance?
plain = eq.EASE(l2=400).fit(split.train)
eq.compare({"EASE": eq.evaluate(plain, split.test), "EDLAE+DAN": result}, "tail_ndcg@20")

# %% Lists: one row per user; hover over a title for its id, score and reasons
model.recommend(split.test.history.rows(range(4)), k=5, reasons=2)

# %% A reason: what each film of the history adds
history = split.test.history.history(split.test.history.users[0])
model.explain(history, model.recommend([history], k=1).items[0][0])
