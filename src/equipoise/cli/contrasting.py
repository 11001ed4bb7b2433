"""Plain, automatic and tuned settings side by side, for the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equipoise.cli.output import add, table

if TYPE_CHECKING:
    from rich.table import Table

    from equipoise.tuning import Contrast

WORDS = {
    "plain": "l2=500, a common default",
    "automatic": "with DAN, all settings from the data",
    "tuned": "with DAN, chosen on the valid people",
}


def way_facts(way: Contrast, k: int) -> dict[str, Any]:
    """Return what one way of choosing settings took and gave."""
    values = {metric: way.result[metric] for metric in (f"ndcg@{k}", f"tail_ndcg@{k}")}
    return {"name": way.name, "solves": way.solves, "seconds": way.seconds, "values": values}


def ways_table(ways: list[Contrast], k: int) -> Table:
    """Return a row per way."""
    out = table("EASE", "settings", "solves", "time", "ndcg all", "ndcg tail", left=(0, 1))
    for way in ways:
        numbers = [f"{value:.4f}" for value in way_facts(way, k)["values"].values()]
        add(out, way.name, WORDS[way.name], str(way.solves), f"{way.seconds:.2f} s", *numbers)
    return out
