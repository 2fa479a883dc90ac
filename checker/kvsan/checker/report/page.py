"""Plain text of a given width: wrapped lines with hanging indents, small tables, colour only where it is welcome.

Everything that came out of a trace goes through `clean`: a label with an escape code in it must not reach the terminal.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

import click

MIN_WIDTH, MAX_WIDTH = 40, 120
MIN_WORDS = 10
MIN_TEXT = 16
"""A text beside a name has this much room, or goes below it."""


def clean(text: object) -> str:
    """Text from a trace, printable: control characters become `?`."""
    return "".join(char if char.isprintable() else "?" for char in str(text))


class Page:
    """Collects lines. `width` is clamped to what can be read."""

    def __init__(self, width: int, *, colour: bool = False) -> None:
        self.width = max(MIN_WIDTH, min(width, MAX_WIDTH))
        self._colour = colour
        self.lines: list[str] = []

    def paint(self, text: str, **style: object) -> str:
        return click.style(text, **style) if self._colour else text  # type: ignore[arg-type]

    def blank(self) -> None:
        if self.lines and self.lines[-1]:
            self.lines.append("")

    def title(self, text: str, **style: object) -> None:
        """A short line that stands out."""
        for line in textwrap.wrap(clean(text), self.width - 2, break_on_hyphens=False):
            self.lines.append("  " + self.paint(line, bold=True, **style))

    def headline(self, name: str, shown: Sequence[tuple[str, str]]) -> None:
        """`name: PROVED`, the words in their colours; on lines of their own if there is no room beside the name."""
        words = " -> ".join(self.paint(word.upper(), fg=colour, bold=True) for word, colour in shown)
        name, long = clean(name), len(" -> ".join(word for word, _ in shown))
        if len(name) + 2 + long <= self.width:
            self.lines.append(f"{name}: {words}")
        else:
            self.line(f"{name}:")
            self.lines.append(f"  {words}")

    def line(self, text: str, indent: int = 0) -> None:
        """One paragraph, wrapped, each line indented."""
        self.field("", text, indent, 0)

    def field(self, name: str, text: str, indent: int, name_width: int, **style: object) -> None:
        """`name` in its column, then `text` wrapped beside it; below it on a page too narrow for both."""
        pad = " " * indent
        gap = name_width + 2 if name_width else 0
        room = self.width - indent - gap
        if room < MIN_TEXT and name_width > MIN_TEXT:
            for part in textwrap.wrap(clean(name), self.width - indent, break_on_hyphens=False):
                self.lines.append(pad + self.paint(re.sub(" {2,}", "  ", part), **style))
            if text:
                self.line(text, indent + 2)
            return
        room = max(MIN_TEXT, room)
        wrapped = textwrap.wrap(clean(text), room, break_on_hyphens=False) or [""]
        head = self.paint(name.ljust(name_width), **style) + "  " if name_width else ""
        self.lines.append((pad + head + wrapped[0]).rstrip())
        self.lines.extend(pad + " " * gap + more for more in wrapped[1:])

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 2, right: Sequence[int] = ()
    ) -> None:
        """Columns as wide as they must be. If the page is too narrow the widest words give way (`…`), never a number;
        and if that is not enough, each row is a sentence.
        """
        cells = [[clean(cell) for cell in row] for row in (head, *rows)]
        widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
        words = [at for at in range(len(head)) if at not in right]
        room = self.width - indent - 2 * (len(widths) - 1)
        while sum(widths) > room and max(widths[at] for at in words) > MIN_WORDS:
            widest = max(words, key=lambda at: widths[at])
            widths[widest] -= 1
        if sum(widths) > room:
            for row in cells[1:]:
                self.line(
                    ", ".join(f"{name} {cell}".strip() for name, cell in zip(head, row, strict=True) if cell), indent
                )
            return
        for number, row in enumerate(cells):
            parts = []
            for at, cell in enumerate(row):
                text = cell if len(cell) <= widths[at] else cell[: widths[at] - 1].rstrip(",…") + "…"
                parts.append(text.rjust(widths[at]) if at in right else text.ljust(widths[at]))
            line = (" " * indent + "  ".join(parts)).rstrip()
            self.lines.append(self.paint(line, dim=True) if number == 0 else line)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def count(number: int, thing: str, things: str = "") -> str:
    """`1 block`, `1,014 blocks`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def short(text: str, room: int = 44) -> str:
    """A long list of ids, cut at a comma."""
    return text if len(text) <= room else text[: text.rfind(",", 0, room)] + ",…"
