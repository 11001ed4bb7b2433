"""The published numbers at full size, on the processor: minutes and 8 GB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PAPER = Path(__file__).resolve().parents[2] / "paper"
SCRIPT = """
import json, sys
from pathlib import Path
import equipoise as eq
sys.path.insert(0, sys.argv[2])
from reproduce.data import published_split

split = published_split(Path(sys.argv[1]), "strong")
shared = {"l2": 20.0, "dropout": 0.6, "normalizer": eq.DAN(0.2, 0.3)}
ease = eq.EASE(**shared).fit(split.train)
rlae = eq.RLAE(diag_bound=0.1, **shared).reuse(ease)
names = ["recall@20", "ndcg@20", "tail_recall@20", "tail_ndcg@20", "unbiased_recall@20",
         "unbiased_ndcg@20"]
found = {}
for name, model in (("EASE", ease), ("RLAE", rlae)):
    result = eq.evaluate(model, split.test, 20)
    found[name] = [result[metric] for metric in names]
status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
print(json.dumps({**found, "peak": int(status.split()[0]) * 1024}))
"""
# Published as EASE_DAN and RLAE_DAN on Gowalla, strong generalization
PUBLISHED = {
    "EASE": [0.2527, 0.1918, 0.1306, 0.0670, 0.1983, 0.0392],
    "RLAE": [0.2520, 0.1919, 0.1332, 0.0694, 0.1988, 0.0393],
}


@pytest.mark.slow
@pytest.mark.data
def test_gowalla_gives_the_published_numbers_within_the_planned_memory(
    shared_data: Path,
) -> None:
    folder = str(shared_data / "gowalla" / "strong")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SCRIPT, folder, str(PAPER)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured = json.loads(done.stdout)
    for name, published in PUBLISHED.items():
        assert [round(value, 4) for value in measured[name][:2]] == published[:2]
        # tail and unbiased differ by how ties at the head's border and target order are broken
        for ours, expected in zip(measured[name][2:], published[2:], strict=True):
            assert abs(ours - expected) <= 0.0008
    assert measured["peak"] < 8.5e9
