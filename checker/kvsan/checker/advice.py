"""Warnings: what is no hazard in this run and looks like a mistake, counted by place rather than listed one by one.

- `never-recorded`: a wait, query or sync on an event without a record: it returned at once and ordered nothing.
- `own-stream`: a stream that waits for an event recorded on itself.
- `redundant-wait`: a wait that adds no order which the stream did not have. Here: another run may need it.
- `host-order`: two host threads touched the same event or stream, and no hand-off lies between the two calls. Which
  came first was luck, and so is whatever order this trace shows through them. Two touches that both only look (wait,
  sync, query of an event; sync of a stream) do not depend on each other and are no warning.

A trace that was attached in mid-run may see events and tokens from before it: for those nothing is said.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsan.checker.recent import SPENT_TOKENS, Recent

MAX_WARNINGS = 1000
"""So many places are kept apart; of what shows at others there is one count for each kind."""


@dataclass(slots=True)
class Warned:
    """One warning: its kind, where, the first op at which it showed and how often it did."""

    kind: str
    op: int
    where: Mapping[str, str]
    count: int = 0

    def document(self) -> dict[str, Any]:
        return {"kind": self.kind, "op": self.op, "count": self.count, **self.where}

    def __str__(self) -> str:
        w = self.where
        if "others" in w:
            return f"at {w['others']} ({self.count} times, first at op {self.op})"
        match self.kind:
            case "never-recorded":
                did = {"wait": f"{w.get('on')} waits for", "poll": "is polled:", "sync": "is synchronized with:"}[
                    w["call"]
                ]
                text = f"event {w['event']} {did}" if w["call"] != "wait" else f"{did} event {w['event']}:"
                text += " it has no record and orders nothing"
            case "own-stream":
                text = f"{w['on']} waits for an event recorded on itself ({w['event']})"
            case "redundant-wait":
                text = f"{w['on']} waits for {w['recorded_on']} ({w['event']}) and knew it all: no order added"
            case _:
                text = (
                    f"{w['first']} and {w['second']} touch {w['what']} {w['name']} with no hand-off between the calls: "
                    "their order was luck"
                )
        return text + (f" ({self.count} times, first at op {self.op})" if self.count > 1 else f" (op {self.op})")


class Advice:
    """Counts warnings by place, up to `MAX_WARNINGS` places."""

    def __init__(self) -> None:
        self._others: dict[str, Warned] = {}
        self._found: dict[tuple[str, tuple[str, ...]], Warned] = {}

    def warn(self, op: int, kind: str, key: tuple[str, ...], /, **where: str) -> None:
        """`key` says what counts as the same place; `where` of its first occurrence is kept."""
        warned = self._found.get((kind, key))
        if warned is None and len(self._found) >= MAX_WARNINGS:
            others = {"others": f"places beyond the first {MAX_WARNINGS:,}"}
            warned = self._others.setdefault(kind, Warned(kind, op, others))
        elif warned is None:
            warned = self._found[(kind, key)] = Warned(kind, op, where)
        warned.count += 1

    def all(self) -> list[Warned]:
        every = [*self._found.values(), *self._others.values()]
        return sorted(every, key=lambda warned: (warned.op, warned.kind))


@dataclass(slots=True)
class _Touched:
    """When each host thread last changed and last looked at a thing, in its number of puts so far.

    As long as one thread alone has touched it, a list of three stands for it: thread, changed, looked (-1: never).
    """

    changed: dict[int, int]
    looked: dict[int, int]


def _spread(alone: list[int]) -> _Touched:
    me, changed, looked = alone
    return _Touched({me: changed} if changed >= 0 else {}, {me: looked} if looked >= 0 else {})


class HandOrder:
    """Which calls of host threads are ordered by hand-offs: a vector clock that ticks at each put."""

    def __init__(self, advice: Advice, max_tokens: int | None = None) -> None:
        self._advice = advice
        self._max_tokens = max_tokens
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        self._known: list[dict[int, int]] = []  # thread -> other thread -> puts of it that are known
        self._puts: list[int] = []
        self._tokens: OrderedDict[str, dict[int, int]] = OrderedDict()
        self._spent: Recent[str, dict[int, int]] = Recent(SPENT_TOKENS)
        self._events: dict[str, _Touched | list[int]] = {}
        self._streams: dict[str, _Touched | list[int]] = {}

    def thread(self, name: str) -> int:
        found = self._index.get(name)
        if found is None:
            found = self._index[name] = len(self._names)
            self._names.append(name)
            self._known.append({})
            self._puts.append(0)
        return found

    def put(self, by: str, token: str) -> None:
        me = self.thread(by)
        self._puts[me] += 1
        self._tokens[token] = {**self._known[me], me: self._puts[me]}
        if self._max_tokens is not None and len(self._tokens) > self._max_tokens:
            self._tokens.popitem(last=False)

    def get(self, by: str, token: str) -> None:
        given = self._tokens.pop(token, None)
        if given is not None:
            self._spent[token] = given
        else:
            given = self._spent.get(token)
        known = self._known[self.thread(by)]
        for other, puts in (given or {}).items():
            if known.get(other, 0) < puts:
                known[other] = puts

    def event(self, op: int, by: str, name: str, *, changes: bool) -> None:
        """A record changes an event; a wait, sync or query looks at it. Its end is no touch: who drops it held it
        last.
        """
        self._touch(op, by, self._events, "event", name, changes)

    def stream(self, op: int, by: str, name: str, *, changes: bool) -> None:
        """Whatever is issued on a stream changes it; a sync looks at it."""
        self._touch(op, by, self._streams, "stream", name, changes)

    def thread_gone(self, name: str) -> None:
        """The thread has ended. Nothing is said any more of what it touched last."""
        gone = self._index.pop(name, None)
        if gone is None:
            return
        self._known[gone] = {}
        for known in self._known:
            known.pop(gone, None)
        for things in (self._events, self._streams):
            for name, touched in things.items():
                if isinstance(touched, list):
                    if touched[0] == gone:
                        things[name] = _Touched({}, {})
                else:
                    touched.changed.pop(gone, None)
                    touched.looked.pop(gone, None)

    def forget(self, event: str) -> None:
        self._events.pop(event, None)

    def _touch(
        self, op: int, by: str, things: dict[str, _Touched | list[int]], what: str, name: str, changes: bool
    ) -> None:
        me = self._index.get(by)
        if me is None:
            me = self.thread(by)
        touched = things.get(name)
        if touched is None:
            things[name] = [me, self._puts[me], -1] if changes else [me, -1, self._puts[me]]
            return
        if isinstance(touched, list):
            if touched[0] == me:
                touched[1 if changes else 2] = self._puts[me]
                return
            touched = things[name] = _spread(touched)
        changed, looked = touched.changed, touched.looked
        if len(changed) > 1 or (changed and me not in changed):
            self._compare(op, me, changed, what, name)
        if changes and (len(looked) > 1 or (looked and me not in looked)):
            self._compare(op, me, looked, what, name)
        (changed if changes else looked)[me] = self._puts[me]

    def _compare(self, op: int, me: int, earlier: dict[int, int], what: str, name: str) -> None:
        known = self._known[me]
        for other, puts in earlier.items():
            if other != me and known.get(other, 0) <= puts:
                first, second = self._names[other], self._names[me]
                key = (what, name if what == "stream" else "", first, second)
                self._advice.warn(op, "host-order", key, what=what, name=name, first=first, second=second)
