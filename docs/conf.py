"""How Sphinx builds the documentation: `make docs`, without network, warnings are errors."""

import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CONTENTS = ("index", "guide", "developing")
sys.path[:0] = [str(ROOT / "src"), str(HERE)]

import equipoise as eq  # noqa: E402
from equipoise.cli.app import app as commands  # noqa: E402

project = "equipoise"
author = "the equipoise developers"
copyright = "the equipoise developers, Apache-2.0"
version = release = eq.__version__

extensions = [
    "mathml",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}  # the second for generated pages
autosummary_generate = True
autosummary_generate_overwrite = True
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates"]
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "substitution"]
myst_substitutions = {"version": version}
myst_heading_anchors = 4
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"show-inheritance": True}
python_maximum_signature_line_length = 80
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "equipoise"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": [], "start": [], "changelog": []}
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "search_bar_text": "Search",
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)#\s]+)(?:#[^)]*)?\)")


def name_files_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Links that leave `docs/` work in the repository; on the site they name the file."""
    if not page.startswith("reference/"):
        source[0] = OUTSIDE.sub(r"\1 (`\2` of the repository)", source[0])


def list_other_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Pages that no table of contents names yet stand at the end of the guide."""
    if page == "guide":
        contents = "".join((HERE / f"{each}.md").read_text("utf-8") for each in CONTENTS)
        named = {*contents.split(), "index"}
        others = sorted(each.stem for each in HERE.glob("*.md") if each.stem not in named)
        if others:
            source[0] += "\n```{toctree}\n:caption: More\n\n" + "\n".join(others) + "\n```\n"


def list_commands(app: Sphinx, page: str, source: list[str]) -> None:
    """The page on the command is what the command says of itself."""
    if page == "reference/command":
        source[0] += "".join(described(typer.main.get_command(commands)))


def described(command: typer.core.TyperGroup, path: str = "equipoise") -> Iterator[str]:
    """Yield a section for each command of a group, and for those of the groups in it."""
    for name, each in command.commands.items():
        if isinstance(each, typer.core.TyperGroup):
            yield from described(each, f"{path} {name}")
            continue
        yield f"\n## {path} {name}\n\n{plain(each.help)}\n\n"
        if each.epilog:
            yield f"```sh\n{each.epilog.removeprefix('Example: ')}\n```\n\n"
        yield "| option | meaning |\n|---|---|\n"
        for option in each.params:
            if option.name == "help":
                continue
            names = ", ".join(option.opts) if option.opts[0].startswith("-") else option.metavar
            words = plain(getattr(option, "help", "") or "").replace("|", "\\|")
            yield f"| `{names or option.name.upper()}` | {words} |\n"


def plain(text: str) -> str:
    """Return a help text without its markup and line breaks, ready for Markdown."""
    bare = re.sub(r"\[/?(?:bold|dim|italic)\]", "", " ".join(text.split()))
    return html.escape(bare, quote=False)


def unlink_look_alikes(app: Sphinx, page: nodes.document) -> None:
    """Docutils takes "ndcg@20" for a mail address and "tcp://host" for a link: keep the text."""
    for link in list(page.findall(nodes.reference)):
        if link.get("refuri", "").startswith(("mailto:", "tcp:")):
            link.replace_self(nodes.Text(link.astext()))


def remove_links_back(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Source pages link back by the module of an object, the reference names it `equipoise.X`."""
    if page.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


def setup(app: Sphinx) -> None:
    """Register what the pages need."""
    app.connect("doctree-read", unlink_look_alikes)
    app.connect("html-page-context", remove_links_back)
    app.connect("source-read", name_files_outside)
    app.connect("source-read", list_other_pages)
    app.connect("source-read", list_commands)
