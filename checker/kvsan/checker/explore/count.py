"""How many schedules a scope has, exactly: by adding up paths over the canonical states, not by walking them.

A schedule is a sequence of choices after which none is left. States that have the same key have the same continuations
up to the numbers of their blocks, so the number of schedules from a state is the sum over its choices, each counted as
often as it stands for a fresh block. A scope has no circles as long as each choice uses something up; one that has
(a rule that changes nothing) has no finite number, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsan.checker.explore.key import DIGEST
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.search import Child, Expander, Path, Search, run
from kvsan.model.design import Design


@dataclass(frozen=True, slots=True)
class Counted:
    """`schedules`: that differ in some choice (None: no end of them). `states`: that differ at all; `ends`: those in
    which no choice is left, i.e. whole runs that differ in more than the order of choices that commute, the numbers of
    blocks, and what no later access can ask."""

    schedules: int | None
    states: int
    ends: int
    moves: int
    longest: int


def count(design: Design, scope: Scope, *, plain: bool = True, workers: int = 1) -> Counted:
    """`plain`: every choice that the host has; else those that a search makes (`Player`)."""
    scope = replace(scope, plain=plain)
    search = Search.new(design, scope)
    (start,) = search.seen
    digests: dict[Path, bytes] = {(): start}
    after: dict[bytes, list[tuple[bytes, int]]] = {}

    def edges(path: Path, children: list[Child]) -> None:
        here = digests.pop(path)
        after[here] = [(digest, many) for _, many, digest, _ in children]
        for word, _, digest, _ in children:
            digests[(*path, word)] = digest

    def tell(search: Search) -> None:
        waiting = {*search.level[search.at :], *search.next}
        for path in [path for path in digests if path not in waiting]:
            del digests[path]

    run(design, scope, search, workers=workers, edges=edges, tell=tell)
    ways: dict[bytes, int] = {}
    longest: dict[bytes, int] = {}
    ends = sum(not nexts for nexts in after.values())
    for digest in _children_first(after, start):
        if digest is None:
            return Counted(None, len(after), ends, search.progress.moves, 0)
        nexts = after[digest]
        ways[digest] = sum(many * ways[to] for to, many in nexts) if nexts else 1
        longest[digest] = 1 + max(longest[to] for to, _ in nexts) if nexts else 0
    assert all(len(digest) == DIGEST for digest in ways)
    return Counted(ways[start], len(after), ends, search.progress.moves, longest[start])


def _children_first(after: dict[bytes, list[tuple[bytes, int]]], start: bytes) -> list[bytes | None]:
    """Each state behind all that come after it; a None at the end if there is a circle."""
    out: list[bytes | None] = []
    state: dict[bytes, bool] = {start: False}
    todo = [(start, iter(after[start]))]
    while todo:
        here, nexts = todo[-1]
        for to, _ in nexts:
            if to not in state:
                state[to] = False
                todo.append((to, iter(after[to])))
                break
            if not state[to]:
                return [None]
        else:
            todo.pop()
            state[here] = True
            out.append(here)
    return out


__all__ = ["Counted", "Expander", "count"]
