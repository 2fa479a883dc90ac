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
from collections.abc import Iterable, Mapping
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
    scoped: bool = False
    """An `allow(…)` in code."""

    def matches(self, found: dict[str, str]) -> bool:
        return all(fnmatchcase(found[name], pattern) for name, pattern in self.patterns.items())

    def __str__(self) -> str:
        what = "".join(f" {name}={pattern}" for name, pattern in self.patterns.items())
        return f"{self.place}:{what} ({self.reason})"

    def document(self) -> dict[str, object]:
        return {"place": self.place, "match": self.patterns, "reason": self.reason, "blocks": self.used}


@dataclass(slots=True)
class Suppressions:
    """All lines of a file, in order; the first that matches counts. `open` are those of code that runs now, innermost
    last, which go before; `allowed` all that there were, one a place.
    """

    lines: list[Suppression] = field(default_factory=list)
    open: list[Suppression] = field(default_factory=list)
    allowed: dict[str, Suppression] = field(default_factory=dict)

    def enter(self, line: Suppression) -> Suppression:
        """Puts an allowance in force: this one, or the equal one that was in force before and has its count."""
        line = self.allowed.setdefault(str(line), line)
        self.open.append(line)
        return line

    def leave(self, line: Suppression) -> None:
        """Ends one that is in force."""
        at = max(at for at, each in enumerate(self.open) if each is line)
        del self.open[at]

    def scoped(self, hazard: Hazard) -> Suppression | None:
        """The innermost allowance in force that the hazard matches."""
        if not self.open:
            return None
        found = properties(hazard)
        return next((line for line in reversed(self.open) if line.matches(found)), None)

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
                raise _unknown(place, word, key)
            patterns[key] = pattern
        out.lines.append(Suppression(place, patterns, reason.strip()))
    return out


def allowance(place: str, patterns: Mapping[str, object], reason: object) -> Suppression:
    """What `allow(…)` at a place in code says. Raises `OptionsError`."""
    if not isinstance(reason, str) or not reason.strip():
        raise OptionsError(f"allow at {place} gives no reason; accepted: allow(reason='why this is no bug')")
    said: dict[str, str] = {}
    for key, pattern in patterns.items():
        if key not in PROPERTIES or not isinstance(pattern, str) or not pattern:
            raise _unknown(f"allow at {place}", f"{key}={pattern}", key)
        said[key] = pattern
    return Suppression(place, said, reason.strip(), scoped=True)


def _unknown(place: str, word: str, key: str) -> OptionsError:
    near = get_close_matches(key, PROPERTIES, 1, 0.6)
    meant = f': is "{near[0]}" meant?' if near and near[0] != key else ""
    return OptionsError(f'{place} has "{word}"{meant}; accepted: property=pattern with {", ".join(PROPERTIES)}')


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
