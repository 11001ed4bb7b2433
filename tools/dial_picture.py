"""Draw the moving picture of the README: one user's list at four positions of the dial.

    python tools/dial_picture.py docs/_static/dial.svg

Films, numbers of users and lists come from a model fitted to MovieLens 100K with the settings of
`equipoise demo`, for the user that the demo shows: of the test users whose history fits on a
screen, the one for whom EASE + DAN finds most hidden films that plain EASE misses, those of the
long tail first. The SVG changes between the positions by itself and follows dark and light mode.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from equipoise.cli import demo
from equipoise.data import datasets
from equipoise.data.split import strong
from equipoise.evaluation.metrics import head_items

POSITIONS = (0.0, 0.2, 0.4, 0.6)
ROWS = 8
SECONDS = 3  # that each position is shown
WIDTH, TOP, STEP, BAR = 760, 118, 29, 250
STYLE = """
  text { font-family: system-ui, sans-serif; font-size: 15px; fill: #24292f }
  .small { font-size: 13px; fill: #57606a }
  .tail { fill: #0b6e5f } .head { fill: #9a5b00 }
  text.tail { font-weight: 600 }
  .found { font-weight: 600; font-size: 13px; text-decoration: underline }
  .track { stroke: #afb8c1; stroke-width: 4; stroke-linecap: round }
  .knob { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .tail { fill: #58c7b2 }
    .head { fill: #e0a24d } .track { stroke: #484f58 }
  }
"""


def main() -> None:
    target = Path(sys.argv[1])
    data = datasets.load(demo.DATA, min_rating=4)
    split = strong(data, valid=0.1, test=0.2, seed=0)
    models = {name: model.fit(split.train) for name, model in demo.demo_models().items()}
    user = demo.chosen_user(split.test, models)
    target.write_text(picture(split.test, models[demo.DAN], user), encoding="utf-8")


def picture(part, model, user) -> str:
    history = part.history.history(user)
    hidden = set(part.target.history(user))
    is_head, counts = head_items(model.item_counts_), model.item_counts_
    films = [part.history.label(item) for item in history[:3]]
    height = TOP + STEP * ROWS + 26
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Films recommended to one user while the dial alpha moves from 0 to 0.6</title>",
        f"<style>{STYLE}{animation()}</style>",
        f'<text x="12" y="24">Because user {user} liked {escape("; ".join(films))}; and '
        f"{len(history) - len(films)} more</text>",
        '<text class="small" x="12" y="64">popular</text>',
        '<text class="small" x="340" y="64">long tail</text>',
        '<line class="track" x1="75" x2="325" y1="60" y2="60"/>',
        f'<text class="small" x="{WIDTH - BAR - 12}" y="98">people who liked it</text>',
    ]
    lists = [model.recommend([history], k=ROWS, alpha=alpha).items[0] for alpha in POSITIONS]
    most = max(counts[model.item_index_.position(item)] for items in lists for item in items)
    for number, (alpha, items) in enumerate(zip(POSITIONS, lists, strict=True)):
        x = 75 + 250 * alpha / POSITIONS[-1]
        out.append(f'<g class="frame f{number}">')
        out.append(f'<circle class="knob" cx="{x:.0f}" cy="60" r="9"/>')
        out.append(f'<text x="420" y="65">alpha = {alpha:g}</text>')
        for row, item in enumerate(items):
            y = TOP + STEP * row
            position = model.item_index_.position(item)
            kind = "head" if is_head[position] else "tail"
            title = part.history.label(item)
            title = title if len(title) <= 44 else title[:43] + "…"
            found = ' <tspan class="found">found</tspan>' if item in hidden else ""
            width = BAR * counts[position] / most
            text = "tail" if kind == "tail" else ""
            out.append(
                f'<text class="{text}" x="12" y="{y + 5}">{row + 1}  {escape(title)}{found}</text>'
            )
            out.append(
                f'<rect class="{kind}" x="{WIDTH - BAR - 12}" y="{y - 8}" height="14" '
                f'width="{max(width, 2):.0f}" rx="3"/>'
            )
        out.append("</g>")
    out.append(
        f'<text class="small" x="12" y="{height - 10}"><tspan class="tail">green</tspan>: a film '
        'of the long tail; <tspan class="found">found</tspan>: one that this user liked and that '
        "was hidden from the model</text>"
    )
    return "\n".join([*out, "</svg>\n"])


def animation() -> str:
    """Show one position after the other, for ever; the third alone where motion is unwanted."""
    count = len(POSITIONS)
    share = 100 / count
    rules = [f".frame {{ opacity: 0; animation: turn {SECONDS * count}s infinite }}"]
    rules.append(
        f"@keyframes turn {{ 0%, {share - 1:.0f}% {{ opacity: 1 }} "
        f"{share:.0f}%, 99% {{ opacity: 0 }} 100% {{ opacity: 1 }} }}"
    )
    for number in range(count):
        rules.append(f".f{number} {{ animation-delay: {SECONDS * number}s }}")
    rules.append(
        "@media (prefers-reduced-motion: reduce) { .frame { animation: none } .f2 { opacity: 1 } }"
    )
    return "\n".join(rules)


if __name__ == "__main__":
    main()
