"""Scores of new items by LightFM with item features, inside the environment of LightFM.

    python benchmarks/peers/hybrid.py '{"train": ..., "features": ..., "scores": ...}'

The job has the training matrix, users x items; the features of the items; the first user and the
first item to score, and all after them; and the file to write, an array for each setting. Prints
the settings that were tried, the version and the seconds. An item is described by its features
alone, as LightFM's documentation advises for new items. Only numpy and scipy are needed besides.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from importlib.metadata import distributions

import numpy as np
import scipy.sparse as sp
from lightfm import LightFM

SETTINGS = [
    {"no_components": factors, "loss": loss, "epochs": epochs}
    for factors, loss, epochs in itertools.product((32, 128), ("warp", "bpr"), (15,))
]


def main(job: dict) -> None:
    train = sp.coo_matrix(sp.load_npz(job["train"])).astype(np.float32)
    train.row, train.col = train.row.astype(np.int32), train.col.astype(np.int32)
    features = sp.csr_matrix(sp.load_npz(job["features"])).astype(np.float32)
    features.indices = features.indices.astype(np.int32)
    features.indptr = features.indptr.astype(np.int32)
    users = np.arange(job["first_user"], train.shape[0], dtype=np.int32)
    items = np.arange(job["first_item"], train.shape[1], dtype=np.int32)
    scores = {}
    start = time.perf_counter()
    for number, setting in enumerate(SETTINGS):
        options = {name: value for name, value in setting.items() if name != "epochs"}
        model = LightFM(**options, random_state=0)
        model.fit(train, item_features=features, epochs=setting["epochs"], num_threads=2)
        _, user_vectors = model.get_user_representations()
        item_biases, item_vectors = model.get_item_representations(features)
        scores[str(number)] = (
            user_vectors[users] @ item_vectors[items].T + item_biases[items]
        ).astype(np.float32)
    seconds = time.perf_counter() - start
    np.savez(job["scores"], **scores)
    names = {"lightfm", "rectools-lightfm"}
    version = next(
        f"{found.metadata['Name']} {found.version}"
        for found in distributions()
        if found.metadata["Name"].lower() in names
    )
    print(json.dumps({"tried": SETTINGS, "version": version, "seconds": seconds}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
