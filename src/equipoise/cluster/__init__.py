"""Data that outgrew one machine: the models of the library on a Dask cluster.

A client comes in, an ordinary model comes out. `read` gives `Partitioned` interactions, which stay
with the workers; `fit`, `tune`, `evaluate` and `recommend_to` take what their namesakes take, and
return the same. Needs the extra `cluster`.
"""

from equipoise.cluster.fitting import fit, tune
from equipoise.cluster.ingest import read
from equipoise.cluster.lists import evaluate, recommend_to
from equipoise.cluster.partitioned import Partitioned
from equipoise.cluster.workers import connect

__all__ = ["Partitioned", "connect", "evaluate", "fit", "read", "recommend_to", "tune"]
