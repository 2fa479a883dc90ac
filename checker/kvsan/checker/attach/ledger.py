"""The ledger: what was hooked, how often each hook fired, what was noticed and could not be logged.

A verdict is worth what its ledger shows. Three things make one Incomplete: a hook without a target (`missing`), a hook
that was expected to fire and did not, and copies that went unseen. Hooks that work as neighbours share a `group`: if
one of a group fires, each expected one of it must. A group of which none fired is of an engine that was not run, and
is no promise broken (a session in which nothing fired at all is Incomplete anyway: no access was logged).

Not here: what an access covers. A hook that fires and logs the wrong blocks is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsan.checker.attach.native import HOT
from kvsan.checker.trace.header import Expects, Unseen

WORDS_KEPT = 32
"""So many kinds of unseen things are named; beyond, they are counted."""


if TYPE_CHECKING or HOT is None:

    class Counter:
        """A number that C counts too."""

        __slots__ = ("count",)
        count: int

else:
    Counter = HOT.Counter


class Hook(Counter):
    """One place in an engine. `version` is that of the engine, for the message when the place is not there."""

    __slots__ = ("absent", "expected", "group", "name", "version")

    def __init__(self, name: str, group: str, expected: bool, version: str = "", count: int = 0) -> None:
        self.name, self.group, self.expected, self.version, self.count = name, group, expected, version, count
        self.absent: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _hook, (self.name, self.group, self.expected, self.version, self.count, self.absent)

    def fired(self) -> None:
        self.count += 1

    def missing(self, why: str = "target not found") -> None:
        """There was nothing to hook. Of a hook that is not expected it is a note, no promise broken."""
        self.absent = why


class Changes(Counter):
    """How often something was noticed that makes a hazard doubtful: it must be known where the check is before the next
    line. It stays in the process that notices.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Changes, ()


def _hook(name: str, group: str, expected: bool, version: str, count: int, absent: str | None) -> Hook:
    """A hook that has travelled."""
    made = Hook(name, group, expected, version, count)
    made.absent = absent
    return made


@dataclass(slots=True)
class Ledger:
    """All hooks by name, and the unseen. Under the recorder's lock where threads share it; a lost count of `fired`
    does no harm, since only "never" decides.
    """

    hooks: dict[str, Hook] = field(default_factory=dict)
    copies: int = 0
    edges: int = 0
    words: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)
    changes: Changes = field(default_factory=Changes, repr=False, compare=False)
    """Of `copies`, `edges` and `notes`."""

    def hook(self, name: str, *, expected: bool = True, group: str | None = None, version: str = "") -> Hook:
        """The hook of that name; made the first time it is asked for. Default group: the name up to its first dot."""
        found = self.hooks.get(name)
        if found is None:
            found = self.hooks[name] = Hook(name, group or name.partition(".")[0], expected, version)
        return found

    def unseen(self, copies: int, edges: int, what: str = "") -> None:
        self.copies += copies
        self.edges += edges
        if what and (what in self.words or len(self.words) < WORDS_KEPT):
            self.words[what] = self.words.get(what, 0) + copies + edges
        self.changes.count += 1

    def note(self, text: str) -> None:
        """A reason for Incomplete that is no hook's: a part that turned itself off, say."""
        if text not in self.notes:
            self.notes.append(text)
            self.changes.count += 1

    def restart(self) -> None:
        """A forked child counts from nothing; what was hooked stays hooked."""
        for hook in self.hooks.values():
            hook.count = 0
        self.copies = self.edges = 0
        self.words.clear()
        self.notes.clear()
        self.changes.count += 1

    def expect_stream(self, name: str) -> None:
        """This stream must carry an access."""
        self.streams.add(name)

    def live_groups(self) -> set[str]:
        return {hook.group for hook in self.hooks.values() if hook.count}

    def missing(self) -> Iterator[str]:
        """Reasons for Incomplete that a trace's header cannot say by counts alone: a sentence each."""
        live = self.live_groups()
        for hook in self.hooks.values():
            if hook.expected and hook.absent is not None and (hook.group in live or not live):
                version = f" (version {hook.version})" if hook.version else ""
                yield f"hook {hook.name} has no target{version}: {hook.absent}"
        yield from self.notes

    def expects(self) -> Expects:
        """For the header: expected hooks of the groups that are in use, once each."""
        live = self.live_groups()
        due = {hook.name: 1 for hook in self.hooks.values() if hook.expected and hook.group in live}
        return Expects(tuple(sorted(self.streams)), due)

    def document(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "hooks": [
                {
                    "name": hook.name,
                    "fired": hook.count,
                    "expected": hook.expected,
                    **({"missing": hook.absent} if hook.absent is not None else {}),
                    **({"version": hook.version} if hook.version else {}),
                }
                for hook in self.hooks.values()
            ],
            "unseen": {"copies": self.copies, "edges": self.edges, "what": dict(self.words)},
            "notes": list(self.notes),
        }

    def counts(self) -> Mapping[str, int]:
        return {name: hook.count for name, hook in self.hooks.items()}

    def unseen_counts(self) -> Unseen:
        return Unseen(self.copies, self.edges)
