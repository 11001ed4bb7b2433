"""A page as a tree, by the parser of the standard library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "hr"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    content: list[Node | str] = field(default_factory=list)

    @property
    def children(self) -> list[Node]:
        """Elements right below."""
        return [part for part in self.content if isinstance(part, Node)]

    @property
    def words(self) -> list[str]:
        """Text right below."""
        return [part for part in self.content if isinstance(part, str)]

    def all(self, *tags: str) -> Iterator[Node]:
        """Every element below with one of these tags (any, if none is given), in page order."""
        for child in self.children:
            if not tags or child.tag in tags:
                yield child
            yield from child.all(*tags)

    @property
    def text(self) -> str:
        """All text below, spaces joined; a script's or style's own text is left out."""
        if self.tag in ("script", "style"):
            return ""
        parts = [part.text if isinstance(part, Node) else part for part in self.content]
        return " ".join(" ".join(parts).split())

    def one(self, identity: str) -> Node:
        """Return the element with an id."""
        (match,) = [element for element in self.all() if element.attributes.get("id") == identity]
        return match


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Node("document")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].content.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].content.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parse(html: str) -> Node:
    """Return the tree; an element that is not closed in order fails."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert len(builder.open) == 1, f"<{builder.open[-1].tag}> is not closed"
    return builder.root
