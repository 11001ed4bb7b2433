"""Run the examples and write the gallery of the documentation: code, output and pictures.

    python tools/gallery.py              # all examples
    python tools/gallery.py quickstart   # one of them

Each `examples/NAME.py` becomes `docs/gallery/NAME.md`: a section for every `# %%` cell with what
it prints or, if its last line is a value, what a notebook shows of it. Figures that a cell leaves
open are saved beside the page. The pages are committed, because the site is built without a
network.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "gallery"
CELL = re.compile(r"^# %%[ \t]*(.*)\n", flags=re.MULTILINE)
MOST_LINES = 40  # of the output of a cell


def main() -> None:
    names = sys.argv[1:] or [path.stem for path in sorted((ROOT / "examples").glob("*.py"))]
    PAGES.mkdir(exist_ok=True)
    for name in names:
        print(name, flush=True)
        page = run_example(ROOT / "examples" / f"{name}.py")
        (PAGES / f"{name}.md").write_text(page, encoding="utf-8")
    pages = sorted(PAGES.glob("*.md"))
    (ROOT / "docs" / "gallery.md").write_text(overview(pages), encoding="utf-8")


def run_example(script: Path) -> str:
    """Return the page of an example, run cell by cell in a temporary folder."""
    source = script.read_text(encoding="utf-8")
    docstring, *cells = CELL.split(source)
    title, _, rest = docstring.strip().strip('"').strip().partition("\n")
    out = [f"# {title.rstrip('.')}", rest.strip(), f"The program is `examples/{script.name}`."]
    namespace: dict[str, Any] = vars(ModuleType("__main__"))
    plt.rcParams.update({"svg.hashsalt": "equipoise", "savefig.transparent": True})
    for old in PAGES.glob(f"{script.stem}-*.svg"):
        old.unlink()
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for heading, code in zip(cells[::2], cells[1::2], strict=True):
                out += [f"## {heading}", f"```python\n{code.strip()}\n```"]
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    value = run_cell(code, str(script), namespace)
                text = shortened(printed.getvalue())
                if text:
                    out.append(f"```text\n{text}\n```")
                if hasattr(value, "_repr_html_"):
                    html = value._repr_html_().replace("\n", " ")
                    out.append(f'```{{raw}} html\n<div class="shown">{html}</div>\n```')
                out += [picture(script.stem, heading, number) for number in plt.get_fignums()]
        finally:
            os.chdir(home)
    return "\n\n".join(part for part in out if part) + "\n"


def run_cell(code: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line as a notebook shows it."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace)


def picture(name: str, heading: str, number: int) -> str:
    """Save and close an open figure, and return the line that shows it."""
    count = len(list(PAGES.glob(f"{name}-*.svg")))
    file = PAGES / f"{name}-{count + 1}.svg"
    plt.figure(number).savefig(file, metadata={"Date": None})
    plt.close(number)
    return f"![{heading}]({file.name})"


def shortened(text: str) -> str:
    """Return the output without machine paths and with at most some lines."""
    lines = text.replace(str(Path.home()), "~").rstrip().splitlines()
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"... {len(lines) - MOST_LINES + 1} more lines"]
    return "\n".join(lines)


def overview(pages: list[Path]) -> str:
    """Return the page with a card for every example."""
    out = [
        "# Gallery",
        "Complete programs on real data, with what they print. `python tools/gallery.py` runs "
        "them and writes these pages.",
        "::::{grid} 1 2 2 3\n:gutter: 3",
    ]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        title, _, _ = text.partition("\n")
        shown = re.findall(r"^!\[.*\]\((.+)\)$", text, flags=re.MULTILINE)
        image = f":img-top: gallery/{shown[0]}\n" if shown else ""
        steps = re.findall(r"^## ([^:\n]+)", text, flags=re.MULTILINE)
        out.append(
            f":::{{grid-item-card}} {title.removeprefix('# ')}\n:link: gallery/{page.stem}\n"
            f":link-type: doc\n{image}\n{'; '.join(steps[:4])}\n:::"
        )
    names = "\n".join(f"gallery/{page.stem}" for page in pages)
    return "\n\n".join(out) + f"\n\n::::\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


if __name__ == "__main__":
    main()
