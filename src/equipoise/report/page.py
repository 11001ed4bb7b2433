"""Render reports and case studies as self-contained HTML pages.

Titles and ids of the data are escaped by the template engine; the script of the page writes them
as text only, and a content security policy blocks everything else.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.data.interactions import Interactions
from equipoise.data.split import Split
from equipoise.errors import DataError, MissingExtraError
from equipoise.report import charts
from equipoise.report.facts import SLICES, collect
from equipoise.report.users import CaseStudy
from equipoise.runtime.machine import duration

if TYPE_CHECKING:
    from jinja2 import Environment

SURE = 0.05


def glance(facts: dict[str, Any]) -> list[str]:
    """Return a summary of the report: the next period, accuracy, tail and coverage."""
    plain, main = facts["models"][-2:]
    k, name = facts["k"], main["name"]
    out = [] if facts["forecast"] is None else [forecast_sentence(facts["forecast"])]
    in_sentence = name.replace("Your model", "your model", 1)
    for test in facts["tests"]:
        over = "over all items" if test["over"] == "all" else "over tail items"
        # settings for the next period may be worse at another question
        about = "" if facts["forecast"] is None else "On items hidden at random instead, "
        out.append(
            f"{about}NDCG@{k} {over}: {test['mean']:.4f} with {in_sentence}, "
            f"{test['baseline_mean']:.4f} with plain EASE; {verdict(test)}."
        )
    shown = [model["beyond"]["coverage"] for model in (main, plain)]
    out.append(
        f"{name} shows {shown[0]:.0%} of the catalogue to at least one user, plain EASE "
        f"{shown[1]:.0%}, popularity {facts['models'][0]['beyond']['coverage']:.1%}."
    )
    return out


def forecast_sentence(forecast: dict[str, Any]) -> str:
    """Return the figure to expect in the next period, and the verdict."""
    n_periods = len(forecast["periods"])
    periods = "the last period" if n_periods == 1 else f"the last {n_periods} periods"
    named = f"{forecast['metric'].upper()} {forecast['value']:.4f}"
    about = f"{forecast['low']:.4f} to {forecast['high']:.4f}"
    return (
        f"After the last event expect {named}, roughly {about}, from {periods}: "
        f"{forecast['verdict']}."
    )


def verdict(test: dict[str, Any]) -> str:
    """Return whether a difference is significant, as a sentence.

    >>> row = {"difference": 0.01, "low": -0.01, "high": 0.03, "p_adjusted": 0.4}
    >>> verdict(row)
    'no clear difference (+0.0100, 95% interval -0.0100 to +0.0300, p = 0.4)'
    """
    change = (
        f"{test['difference']:+.4f}, 95% interval {test['low']:+.4f} to {test['high']:+.4f}, "
        f"p = {test['p_adjusted']:.2g}"
    )
    if test["p_adjusted"] >= SURE:
        return f"no clear difference ({change})"
    return f"clearly {'better' if test['difference'] > 0 else 'worse'} ({change})"


def position(row: dict[str, Any], k: int) -> str:
    """Return the description of one position of the dial, for screen readers."""
    tail = "undefined" if row["tail_ndcg"] is None else f"{row['tail_ndcg']:.4f}"
    return (
        f"alpha {row['alpha']:.2f}: NDCG@{k} {row['ndcg']:.4f}, tail {tail}, "
        f"{row['tail_share']:.0%} of the listed items from the tail"
    )


def write_report(
    data: Interactions | Split, path: str | os.PathLike[str] = "report.html", **options: Any
) -> dict[str, Any]:
    """Write a report on data as one HTML page that needs no network, and return its facts.

    Parameters
    ----------
    data
        Interactions, which are split by users, or a split.
    path
        The file to write; replaced in one step.
    options
        As for `collect`: `name`, `model`, `k`, `sample`, `users`, `seed`, ...

    Examples
    --------
    >>> import equipoise as eq
    >>> from equipoise.report import write_report
    >>> data = eq.datasets.load("movielens-100k", min_rating=4)  # doctest: +SKIP
    >>> facts = write_report(data, "report.html", name="MovieLens 100K")  # doctest: +SKIP
    """
    check_page(path)
    facts = collect(data, **options)
    _write(path, render(facts))
    return facts


def write_case_study(study: CaseStudy, path: str | os.PathLike[str]) -> None:
    """Write a case study as one HTML page that needs no network."""
    _write(path, _fill("case.html", study=study.to_dict()))


def render(facts: dict[str, Any]) -> str:
    """Return the HTML page for the facts of `collect`."""
    models, dial, k = facts["models"], facts["dial"], facts["k"]
    data = facts["data"]
    drawn = {
        "popularity": charts.popularity_curve(data["popularity"], data["head_share"]),
        "dots": [charts.accuracy_dots(models, part, "ndcg", k) for part in SLICES],
        "exposure": charts.exposure_curves(models, facts["training_curve"]),
    }
    if dial:
        drawn["frontier"] = charts.frontier(dial, models[-2], k)
        drawn["lines"] = charts.dial_lines(dial, k)
    return _fill(
        "report.html",
        facts=facts,
        charts=drawn,
        glance=glance(facts),
        positions=[position(row, k) for row in dial["rows"]] if dial else [],
        slices=SLICES,
        packed=packed(facts["users"], dial),
        largest=largest,
    )


def largest(values: Iterable[float | None]) -> float | None:
    """Return the largest value; values that are not defined are left out."""
    return max((value for value in values if value is not None), default=None)


def packed(users: Sequence[dict[str, Any]], dial: dict[str, Any] | None) -> dict[str, Any]:
    """Return the data of the page's script: every title once, lists by its number."""
    titles: dict[str, int] = {}

    def number(title: str) -> int:
        return titles.setdefault(title, len(titles))

    def row(item: dict[str, Any]) -> list[int]:
        flags = int(item["tail"]), int(item["found"])
        return [number(item["title"]), *flags, *map(number, item["why"])]

    lists = [[[*map(row, listed)] for listed in user["lists"]] for user in users]
    return {"titles": list(titles), "lists": lists, "own": dial["own"] if dial else 0}


def check_page(path: str | os.PathLike[str]) -> None:
    """Raise early if a page cannot be written."""
    _environment()  # jinja2 may be missing
    file = Path(path)
    if file.is_dir():
        raise DataError(f"{file} is a folder; give the path of an HTML file")
    if not file.absolute().parent.is_dir():
        raise DataError(f"the folder {file.absolute().parent} does not exist; create it first")


def _write(path: str | os.PathLike[str], text: str) -> None:
    file = Path(path)
    check_page(file)
    fresh = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)


def _fill(template: str, **values: Any) -> str:
    from markupsafe import Markup

    style, script = (_source(name).strip() for name in ("style.css", "page.js"))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)}; script-src {_hash(script)}"
    )
    markup = {"style": Markup(style), "script": Markup(script)}
    return _environment().get_template(template).render(**values, **markup, policy=policy)


def _environment() -> Environment:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtraError(
            "the report needs jinja2; install it with `pip install 'equipoise[report]'`"
        ) from error
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(score=_score, count=_count, share=_share, clock=_clock, size=_size)
    return environment


def _source(name: str) -> str:
    resource = resources.files("equipoise.report").joinpath("templates", name)
    return resource.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _score(value: float | None, digits: int = 4) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.{digits}f}"


def _count(value: float | None) -> str:
    if value is None:
        return "\N{EN DASH}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{100 * value:.1f}%"


def _clock(seconds: float) -> str:
    """Return a duration with its unit.

    >>> _clock(0.0000051), _clock(0.25), _clock(12.34), _clock(200.0)
    ('< 0.01 s', '0.25 s', '12 s', '3 min 20 s')
    """
    if seconds >= 10:
        return duration(seconds)
    return "< 0.01 s" if seconds < 0.01 else f"{seconds:.2f} s"


def _size(size: float | None) -> str:
    if size is None:
        return "not known"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
