"""Models of the library on a Dask cluster, for data that outgrew one machine.

`read` returns `Partitioned` interactions, which stay on the workers. `fit`, `tune`, `evaluate` and
`recommend_to` take the arguments of their namesakes and return the same: `fit` a regular in-memory
model. Needs the extra `cluster`.
"""

from equipoise.cluster.fitting import fit, tune
from equipoise.cluster.ingest import read
from equipoise.cluster.lists import evaluate, recommend_to
from equipoise.cluster.partitioned import Partitioned
from equipoise.cluster.workers import connect

__all__ = ["Partitioned", "connect", "evaluate", "fit", "read", "recommend_to", "tune"]
