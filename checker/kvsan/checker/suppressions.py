"""Suppressions: hazards that are known and explained, matched on properties, each with a reason.

One a line: `property=pattern … # reason`. Properties are `kind`, `pool`, `earlier`, `later` (labels of the two
accesses), `earlier_on`, `later_on` (streams), `earlier_site`, `later_site` (places in code); patterns are those of
`fnmatch` and hold for the whole text; one with blanks or quotes stands in quotes. The reason begins at the first `#`
that follows a blank and stands in no quotes. A line without a reason is an error: what nobody can explain stays a
hazard.
A suppression that never matched is reported, since it hides the next bug of that shape.

    kind=RAW pool=gpu* earlier=forward later=store   # the store is dropped if its block was freed: issue 123
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from kvsan.checker.options import OptionsError
from kvsan.model.hazard import Hazard

PROPERTIES = ("kind", "pool", "earlier", "later", "earlier_on", "later_on", "earlier_site", "later_site")


def properties(hazard: Hazard) -> dict[str, str]:
    """What a hazard is matched on. Kept stable: the words of a report may change, these may not."""
    earlier, later = hazard.earlier, hazard.later
    return {
        "kind": hazard.kind.value,
        "pool": hazard.pool,
        "earlier": earlier.label or "",
        "later": later.label or "",
        "earlier_on": earlier.on or earlier.by or "",
        "later_on": later.on or later.by or "",
        "earlier_site": earlier.site or "",
        "later_site": later.site or "",
    }


@dataclass(slots=True)
class Suppression:
    """One line. `used` counts the blocks that it hid."""

    place: str
    patterns: dict[str, str]
    reason: str
    used: int = 0

    def matches(self, found: dict[str, str]) -> bool:
        return all(fnmatchcase(found[name], pattern) for name, pattern in self.patterns.items())

    def __str__(self) -> str:
        what = " ".join(f"{name}={pattern}" for name, pattern in self.patterns.items())
        return f"{self.place}: {what} ({self.reason})"

    def document(self) -> dict[str, object]:
        return {"place": self.place, "match": self.patterns, "reason": self.reason, "blocks": self.used}


@dataclass(slots=True)
class Suppressions:
    """All lines of a file, in order; the first that matches counts."""

    lines: list[Suppression] = field(default_factory=list)

    def find(self, hazard: Hazard) -> Suppression | None:
        if not self.lines:
            return None
        found = properties(hazard)
        return next((line for line in self.lines if line.matches(found)), None)

    def unused(self) -> list[Suppression]:
        return [line for line in self.lines if not line.used]


def read(path: str) -> Suppressions:
    """Raises `OptionsError`."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"suppressions file {path} cannot be read ({error}); accepted: a text file") from None
    return parse(text.splitlines(), path)


def parse(lines: Iterable[str], name: str = "suppressions") -> Suppressions:
    """Raises `OptionsError` that names the line."""
    out = Suppressions()
    for number, line in enumerate(lines, 1):
        body, reason = _halves(line)
        if not body.strip():
            continue
        place = f"{name}:{number}"
        patterns: dict[str, str] = {}
        try:
            words = shlex.split(body)
        except ValueError as error:
            raise OptionsError(f"{place} cannot be read ({error}); accepted: property=pattern") from None
        if not reason.strip():
            raise OptionsError(f"{place} gives no reason; accepted: {body.strip()} # why this is no bug")
        for word in words:
            key, equals, pattern = word.partition("=")
            if key not in PROPERTIES or not equals or not pattern:
                near = get_close_matches(key, PROPERTIES, 1, 0.6)
                meant = f': is "{near[0]}" meant?' if near and near[0] != key else ""
                raise OptionsError(
                    f'{place} has "{word}"{meant}; accepted: property=pattern with {", ".join(PROPERTIES)}'
                )
            patterns[key] = pattern
        out.lines.append(Suppression(place, patterns, reason.strip()))
    return out


def _halves(line: str) -> tuple[str, str]:
    """What stands before the `#` of the reason and what after it."""
    quote, before = "", " "
    for at, char in enumerate(line):
        if before == "\\" and quote != "'":
            before = ""  # escaped, and escapes nothing itself
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (not before or before.isspace()):
            return line[:at], line[at + 1 :]
        before = char
    return line, ""
