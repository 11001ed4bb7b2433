"""The documentation: every block of every page runs, and the site is built without a warning."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import equipoise as eq
from equipoise.models.saving import model_classes
from tests.test_docs import movies, run_commands  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FETCHED = "movielens"  # a page that names it needs a package index
LOG = "user,item,time,quantity,event\n" + "".join(
    f"u{row % 17},i{(row % 17 + row // 17) % 23},{1_700_000_000 + 86_400 * row},{1 + row % 3},"
    f"{'buy' if row % 5 == 0 else 'view'}\n"
    for row in range(200)
)
CLICKS = "visit,page,when\n" + "".join(
    f"{row // 4},p{(row // 4 + row % 4) % 9},{1_700_000_000 + row}\n" for row in range(400)
)
TESTED_ELSEWHERE = {"extending", "rules"}
# tests/serve, tests/cluster and tests/wrappers make the same calls
NEEDS_PROCESSES = {"serving", "operating", "cluster", "spark"}


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


PAGES = [
    page
    for page in sorted(DOCS.glob("*.md"))
    if blocks(page, "python") and page.stem not in TESTED_ELSEWHERE | NEEDS_PROCESSES
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_the_page_runs(
    page: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "\n".join(blocks(page, "python"))
    if FETCHED in code:
        request.getfixturevalue("movies")
    if page.stem == "neural":
        pytest.importorskip("torch")
    if "plot" in code:
        pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    (tmp_path / "clicks.csv").write_text(CLICKS, encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    before = dict(model_classes)
    try:
        runpy.run_path(str(script))
    finally:
        model_classes.clear()
        model_classes.update(before)
    if page.stem == "start":
        run_commands(blocks(page, "sh")[0])


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += [str(DOCS), str(tmp_path / "site"), "-d", str(tmp_path / "doctrees")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    built = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in DOCS.glob("*.md")} <= built
    html = "".join(path.read_text("utf-8") for path in (tmp_path / "site").rglob("*.html"))
    loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?://[^"]+)"', html)
    assert not loaded
    missing = [n for n in eq.__all__ if n[0] != "_" and f'id="equipoise.{n}"' not in html]
    modules = {"cluster", "datasets", "metrics", "plot", "split"}
    assert set(missing) <= modules
    assert dead_links(tmp_path / "site") == []


class Anchors(HTMLParser):
    """The ids and the links of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids |= {value for name, value in attrs if name == "id" and value}
        self.links += [value for name, value in attrs if name in ("href", "src") and value]


def dead_links(site: Path) -> list[tuple[str, str]]:
    """Return pages and their links to missing files or anchors, and links that are no web page."""
    pages = {page: Anchors(page) for page in site.rglob("*.html") if "_static" not in page.parts}
    dead = []
    for page, anchors in pages.items():
        for link in anchors.links:
            target = urlsplit(link)
            if target.scheme in ("http", "https", "data"):
                continue
            file = (page.parent / target.path).resolve() if target.path else page
            missing_anchor = (
                target.fragment and file in pages and target.fragment not in pages[file].ids
            )
            if target.scheme or not file.exists() or missing_anchor:
                dead.append((page.name, link))
    return dead


def test_search_words_of_a_page_lead_to_it_first() -> None:
    """The search lists entries of the index after all other pages unless they are main ones."""
    for page in sorted(DOCS.glob("*.md")):
        for entries in re.findall(r"```\{index\} (.*)\n", page.read_text(encoding="utf-8")):
            assert all(entry.strip().startswith("! ") for entry in entries.split(",")), page.name


def test_pictures_with_a_dark_form_keep_the_background_of_the_page() -> None:
    """The theme puts pictures on white in the dark, where light text would be invisible."""
    style = (DOCS / "_static" / "site.css").read_text()
    for picture in (DOCS / "_static").glob("*.svg"):
        if "prefers-color-scheme" in picture.read_text(encoding="utf-8"):
            assert f'html[data-theme="dark"] .bd-content img[src$="{picture.name}"]' in style
