"""From a table to recommendations: load, describe, split, fit, evaluate, recommend, explain.

Run it as a script, or cell by cell in an editor that knows ``# %%``.
"""

# %% Load: a named data set here; eq.read("events.csv") for a table of your own
import equipoise as eq

data = eq.datasets.load("movielens-100k", min_rating=4)
print(data)

# %% Describe: how concentrated is it, and how alike are items that share users?
print(eq.describe(data))
eq.plot.popularity(data)

# %% Split by users: the models are evaluated on users who are not in the training data
split = eq.split.strong(data, valid=0.1, test=0.2, seed=0)
print(split)

# %% Fit: one closed-form solve per model; eq.plan estimates its cost
print(eq.plan(split.train))
plain = eq.EASE(l2=400, dropout=0).fit(split.train)
balanced = eq.EASE(l2=20, dropout=0.7, normalizer=eq.DAN(alpha=0.3, beta=0.2)).fit(split.train)

# %% Evaluate: all, head and tail items side by side, then a paired test
results = {"EASE": eq.evaluate(plain, split.test), "EASE+DAN": eq.evaluate(balanced, split.test)}
for name, result in results.items():
    print(name, *(f"{m} {result[m]:.4f}" for m in ("ndcg@20", "head_ndcg@20", "tail_ndcg@20")))
print(eq.compare(results, "tail_ndcg@20"))
eq.plot.results(results, "tail_ndcg@20")

# %% Recommend to a user who was not in the training data
history = split.test.history.history(split.test.history.users[0])
recommended = balanced.recommend([history], k=10)
print([data.label(item) for item in history[:5]], "->", recommended.titles[0])

# %% Change alpha without a refit: a larger alpha recommends more of the long tail
print(balanced.recommend([history], k=10, alpha=0.6).titles[0])

# %% Explain: the contribution of each item of the history; they sum to the score exactly
reasons = balanced.explain(history, recommended.items[0][0])
print(reasons.to_frame().head(3))
assert sum(reasons.contributions) == reasons.score

# %% Update instead of refitting: remove one user exactly
balanced.update(removed=[split.train.users[0]])
print(balanced.interactions_)
