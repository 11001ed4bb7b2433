"""Recommend the next page of a visit to a shop, with the clicks that explain it.

Run ``python examples/click_session.py``. The click log is synthetic, so nothing is downloaded.
"""

# %% A click log: who clicked what, and when
import numpy as np
import polars as pl

import equipoise as eq

TITLES = {
    "t1": "Green tea",
    "t2": "Black tea",
    "p1": "Iron teapot",
    "p2": "Glass teapot",
    "c1": "Coffee beans",
    "g1": "Coffee grinder",
    "f1": "Paper filters",
}
VISITS = ["t1 t2 p1", "t1 p1 p2 p1", "t2 p2", "c1 g1 f1", "c1 f1", "g1 c1 f1", "t1 t2 t1 p1"]

rng = np.random.default_rng(0)
clicks = []
for number in range(120):
    start = 1_700_000_000 + 86_400 * number
    for step, item in enumerate(VISITS[rng.integers(len(VISITS))].split()):
        clicks.append((f"visitor {number % 15}", item, start + 40 * step))
log = pl.DataFrame(clicks, schema=["visitor", "item", "time"], orient="row")
titles = pl.DataFrame({"item": list(TITLES), "title": list(TITLES.values())})

# %% Cut into sessions where a visitor pauses for half an hour
data = eq.read(log, user="visitor", item="item", time="time", gap="30m", catalogue=titles)
print(data)

# %% Fit SLIST: a closed form that combines items of the same session with the order of clicks
model = eq.SLIST(l2=1.0, mix=0.3, normalizer=eq.DAN(alpha=0.2, beta=0.3)).fit(data)

# %% Recommend the next page of a visit, and explain each score by the clicks
visit = ["t1", "t2"]
print("clicked:", ", ".join(data.label(item) for item in visit))
recommended = model.recommend(session=visit, k=3)
assert recommended.titles is not None
for item, title in zip(recommended.items[0], recommended.titles[0], strict=True):
    why = model.explain(visit, item)
    assert why.titles is not None
    reasons = [
        f"{source} {part:+.3f}" for source, part in zip(why.titles, why.contributions, strict=True)
    ]
    print(f"  {title:<14} {why.score:.3f} = {', '.join(reasons)}")

# %% Recommend only pages that were not clicked yet
new = model.recommend(session=visit, k=3, exclude_seen=True)
assert new.titles is not None
print("not seen yet:", ", ".join(new.titles[0]))
