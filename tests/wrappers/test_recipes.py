"""Other libraries' lines in docs/coming-from.md, run in the environments of `make bench`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(os.environ.get("EQUIPOISE_PEERS", ROOT / ".bench" / "env"))
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
BEFORE = """
import json
import numpy as np
import pandas as pd
import scipy.sparse as sp
frame = pd.read_csv("frame.csv")
where = (frame["user_id"], frame["item_id"])
user_items = sp.csr_matrix((np.ones(len(frame), np.float32), where))
"""
# expressions for the results of the recipes, as values for JSON
EXPRESSIONS = {
    "implicit": "ids.tolist()",
    "RecTools": "reco[reco['user_id'] == 5]['item_id'].tolist()",
    "LensKit": "[theirs.tolist(), ours.tolist()]",
    "RecBole": "sorted(result['test_result'])",
    "Surprise": "[entry.iid for entry in predictions if entry.uid == 5]",
    "MLflow": "[run.data.metrics, run.data.params, opened.recommend([5], k=3).items[0]]",
}
# code that a page has before its recipe
PREPARATION = {
    "MLflow": """
import equipoise as eq
split = eq.split.weak(eq.read(frame), seed=0)
model = eq.EDLAE(normalizer=eq.DAN()).fit(split.train)
result = eq.evaluate(model, split.test, k=10)
"""
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = {f"{rng.integers(60)},{rng.zipf(1.3) % 30}" for _ in range(900)}
    rows = [f"{pair},{1 + place % 5}" for place, pair in enumerate(sorted(lines))]
    head = "user_id,item_id,rating\n"
    (tmp_path / "frame.csv").write_text(head + "\n".join(rows), encoding="utf-8")
    (tmp_path / "name").mkdir()
    inter = "user_id:token\titem_id:token\n" + "\n".join(sorted(lines)).replace(",", "\t")
    (tmp_path / "name" / "name.inter").write_text(inter, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("peer", EXPRESSIONS)
def test_the_lines_of_the_other_library_run(peer: str, folder: Path) -> None:
    python = PEERS / peer / "bin" / "python"
    if not (PEERS / peer / ".done").exists():
        pytest.skip(f"{peer} has no environment; `make bench` makes it")
    lines = re.findall(r"^```py\n(.*?)^```$", SECTIONS[peer], flags=re.MULTILINE | re.DOTALL)
    assert lines
    code = "\n".join(
        [
            BEFORE,
            PREPARATION.get(peer, ""),
            *lines,
            f"print('\\n' + json.dumps({EXPRESSIONS[peer]}))",
        ]
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout.splitlines()[-1])
    seen = {
        int(line.split(",")[1])
        for line in (folder / "frame.csv").read_text().splitlines()
        if line.startswith("5,")
    }
    if peer == "RecBole":
        assert "ndcg@10" in value
    elif peer == "LensKit":
        lenskit_items, equipoise_items = value
        assert lenskit_items == equipoise_items
    elif peer == "MLflow":
        metrics, params, items = value
        assert 0 < metrics["ndcg_at_10"] <= 1
        assert params["model"] == "EASE"
        assert len(items) == 3
    else:
        assert value
        assert not seen & set(value)
