"""Write lists of SANSA; `sparse_peers.py` runs this in an environment that has the package.

    PYTHON benchmarks/sansa_lists.py FOLDER DENSITY L2 ICF

FOLDER has train.npz, valid.npz and test.npz; lists of 20 items are written to the same folder.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sansa import (
    SANSA,
    CHOLMODGramianFactorizerConfig,
    ICFGramianFactorizerConfig,
    SANSAConfig,
    UMRUnitLowerTriangleInverterConfig,
)

LENGTH, BATCH = 20, 500
FACTORIZERS = {"CHOLMOD": CHOLMODGramianFactorizerConfig, "ICF": ICFGramianFactorizerConfig}


def lists(model: Any, histories: Any) -> Any:
    batches = []
    for low in range(0, histories.shape[0], BATCH):
        batch = histories[low : low + BATCH]
        scores = model.forward(batch).toarray()
        scores[batch.nonzero()] = -np.inf
        batches.append(np.argsort(-scores, axis=1, kind="stable")[:, :LENGTH])
    return np.concatenate(batches)


def main() -> None:
    folder, density, l2 = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    train, valid, test = (
        sp.csr_matrix(sp.load_npz(folder / f"{name}.npz")) for name in ("train", "valid", "test")
    )
    config = SANSAConfig(
        l2=l2,
        weight_matrix_density=density,
        gramian_factorizer_config=FACTORIZERS[sys.argv[4]](),
        lower_triangle_inverter_config=UMRUnitLowerTriangleInverterConfig(),
    )
    start = time.perf_counter(), time.process_time()
    model = SANSA(config).fit(train)
    took = time.perf_counter() - start[0], time.process_time() - start[1]
    np.savez(folder / "lists.npz", valid=lists(model, valid), test=lists(model, test))
    facts = {
        "seconds": took[0],
        "processor_seconds": took[1],
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "weights": [int(matrix.nnz) for matrix in model.weights],
    }
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
