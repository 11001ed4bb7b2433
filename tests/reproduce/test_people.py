from __future__ import annotations

import numpy as np

from equipoise.interactions import Interactions
from equipoise.metrics import head_items
from equipoise.reproduce.people import typical_person


def test_the_person_is_like_that_of_the_paper(synthetic: Interactions) -> None:
    user = typical_person(synthetic, 5)
    row = int(synthetic.user_index.positions([user])[0])
    short = (synthetic.user_counts >= 5) & (synthetic.user_counts <= 10)
    assert short[row]
    tail = synthetic.matrix @ (~head_items(synthetic.item_counts)).astype(float)
    gaps = np.abs(tail / synthetic.user_counts - 0.8)
    assert gaps[row] == gaps[short].min()
