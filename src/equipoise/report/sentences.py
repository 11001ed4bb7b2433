"""What the numbers of a report mean, in plain sentences."""

from __future__ import annotations

from typing import Any

SURE = 0.05


def glance(facts: dict[str, Any]) -> list[str]:
    """Return the report in a few sentences: accuracy, the tail, the catalogue."""
    plain, main = facts["models"][-2:]
    k, name = facts["k"], main["name"]
    out = []
    for test in facts["tests"]:
        over = "over all items" if test["over"] == "all" else "over tail items"
        out.append(
            f"NDCG@{k} {over}: {test['mean']:.4f} with {name}, {test['baseline_mean']:.4f} with "
            f"plain EASE; {verdict(test)}."
        )
    shown = [each["beyond"]["coverage"] for each in (main, plain)]
    out.append(
        f"{name} shows {shown[0]:.0%} of the catalogue to somebody, plain EASE {shown[1]:.0%}, "
        f"popularity {facts['models'][0]['beyond']['coverage']:.1%}."
    )
    return out


def verdict(test: dict[str, Any]) -> str:
    """Return whether a difference is more than chance, paired by person.

    >>> row = {"difference": 0.01, "low": -0.01, "high": 0.03, "p_adjusted": 0.4}
    >>> verdict(row)
    'no clear difference (+0.0100, 95% interval -0.0100 to +0.0300, p = 0.4)'
    """
    moved = (
        f"{test['difference']:+.4f}, 95% interval {test['low']:+.4f} to {test['high']:+.4f}, "
        f"p = {test['p_adjusted']:.2g}"
    )
    if test["p_adjusted"] >= SURE:
        return f"no clear difference ({moved})"
    return f"clearly {'better' if test['difference'] > 0 else 'worse'} ({moved})"


def implications(data: dict[str, Any]) -> list[dict[str, str]]:
    """Return what the statistics of the data mean for alpha and beta."""
    return [
        {
            "name": "Gini index",
            "value": f"{data['gini_items']:.3f}",
            "setting": f"alpha {data['alpha']:.2f}",
            "text": (
                f"The most used 20% of the items hold {data['head_share']:.0%} of the "
                f"interactions. The more concentrated the popularity, the smaller the automatic "
                f"alpha: {data['alpha']:.2f} here, where 0 leaves popular items their weight and "
                "0.5 leans far towards the tail."
            ),
        },
        {
            "name": "Weighted homophily",
            "value": f"{data['homophily']:.3f}",
            "setting": f"beta {data['beta']:.2f}",
            "text": (
                f"Items that are used together have {data['homophily']:.0%} of their users in "
                "common, on a weighted average. The more alike such items, the larger the "
                f"automatic beta: {data['beta']:.2f} here, where 0 lets the most active people "
                "speak loudest and 1 gives everybody the same say."
            ),
        },
    ]


def position(row: dict[str, Any], k: int) -> str:
    """Return one position of the dial in words, as a slider announces it."""
    tail = "undefined" if row["tail_ndcg"] is None else f"{row['tail_ndcg']:.4f}"
    return (
        f"alpha {row['alpha']:.2f}: NDCG@{k} {row['ndcg']:.4f}, tail {tail}, "
        f"{row['tail_share']:.0%} of the listed items from the tail"
    )
