"""Asks z3 whether a certificate proves what it says. Shares nothing with the search but the actions themselves.

What an action does to what is known is read here off `kvsan.model.order` once more, over z3 Booleans: a past is a
formula, "does it hold the tracked access?", and joining two is Or. Which access is the tracked one is left open.
The control state is a finite-domain variable a component. Three kinds of plain queries, none of which may have a
solution:

- initiation: the clauses do not hold at the start;
- consecution: the clauses hold, one action happens, and one of them no longer holds (one query an action);
- safety: the clauses hold, and an access is issued that may rely on no knowledge of a conflicting tracked one.

The control states themselves are closed under the actions by construction (`table`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvsan.model.design import MAIN, Design
from kvsan.model.ops import Access, Drop, Poll, Record, Sync, Wait
from kvsan.model.order import Issued, Order
from kvsan.model.pasts import Agent, Element
from kvsan.model.proof.actions import Action, Context, event_context, event_name
from kvsan.model.proof.certificate import Certificate, Clause, fingerprint
from kvsan.model.proof.solver import solver
from kvsan.model.proof.table import Table, tabulate

SECONDS = 15.0
PROVES = ("race-free", "host-quiescent")
"""What a certificate can prove. The first is checked whether or not it is asked for."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The certificate proves nothing: which query had an answer, and where."""

    why: str


@dataclass(frozen=True, slots=True)
class Unchecked:
    """z3 did not answer in time: nothing is said."""

    why: str


@dataclass(frozen=True, slots=True)
class Checked:
    """z3 confirms the certificate."""

    queries: int


Answer = Checked | Rejected | Unchecked


def recheck(design: Design, certificate: Certificate, *, seconds: float = SECONDS, cap: int = 400_000) -> Answer:
    """Raises `MissingSolverError` and `TooManyStatesError`."""
    z3, until = solver(), time.monotonic() + seconds
    if certificate.design != fingerprint(design):
        return Rejected("the certificate is about another design")
    table = tabulate(design, None if design.run_ahead == "any" else design.run_ahead, cap)
    wrong = _unknown(table, certificate)
    if wrong is not None:
        return Rejected(f"the certificate speaks of {wrong}, which the design does not have")
    asked, count = z3.SolverFor("QF_BV"), 0
    for what, query in _Queries(z3, table, certificate).all():
        left = until - time.monotonic()
        if left <= 0:
            return Unchecked(f"no time left after {count} queries")
        asked.set("timeout", int(1000 * left) + 1)
        asked.push()
        asked.add(query)
        answer = asked.check()
        asked.pop()
        if answer == z3.sat:
            return Rejected(what)
        if answer != z3.unsat:
            return Unchecked(f"no answer in time to query {count + 1} ({what}?)")
        count += 1
    return Checked(count)


def _unknown(table: Table, certificate: Certificate) -> str | None:
    """Something in the certificate that the design does not have."""
    contexts, parts = _contexts(table), {part.name: part.values for part in table.components}
    for claim in certificate.proves:
        if claim not in PROVES:
            return f"the claim {claim!r}"
    for clause in certificate.clauses:
        for name, values in (*clause.where, *clause.unless):
            if name not in parts or not set(values) <= set(parts[name]):
                return f"{name} {'/'.join(values)}"
        for context in clause.knows:
            if context not in contexts:
                return " ".join(context)
    return None


class Formula:
    """The lattice: a past is a formula that says whether it holds the tracked access. `chosen` names the elements that
    may become the tracked one."""

    def __init__(self, z3: Any) -> None:
        self.z3 = z3
        self.chosen: dict[Element, Any] = {}

    def bottom(self) -> Any:
        return self.z3.BoolVal(False)

    def join(self, a: Any, b: Any) -> Any:
        return self.z3.Or(a, b)

    def add(self, past: Any, element: Element) -> Any:
        chosen = self.chosen.setdefault(element, self.z3.Bool(f"tracks {element.op} {element.agent}"))
        return self.z3.Or(past, chosen)

    def via(self, past: Any, op: int) -> Any:
        return past


@dataclass(frozen=True)
class Facts:
    """A state for z3: the control state's components, what the tracked access did, who knows of it."""

    control: list[Any]
    read: Any
    wrote: Any
    knows: dict[Context, Any]


class _Queries:
    def __init__(self, z3: Any, table: Table, certificate: Certificate) -> None:
        self.z3, self.table, self.certificate = z3, table, certificate
        self.contexts = tuple(_contexts(table))
        self.here, self.there = self._facts("before"), self._facts("after")
        self.parts = {part.name: at for at, part in enumerate(table.components)}
        self._equal: dict[tuple[int, int, bool], Any] = {}
        self._states: dict[tuple[int, bool], Any] = {}
        self._moves: list[list[tuple[int, int]]] = [[] for _ in table.actions]
        for source, action, target in table.moves:
            self._moves[action].append((source, target))

    def all(self) -> Iterator[tuple[str, Any]]:
        """Every query, each with what is wrong if it has a solution."""
        z3, here = self.z3, self.here
        holds, kept = self._clauses(self.here), self._clauses(self.there, after=True)
        holds.append(z3.Not(z3.And(here.read, here.wrote)))  # one access is tracked, of one kind
        kept.append(z3.Not(z3.And(self.there.read, self.there.wrote)))
        start = z3.And(self._at(0), z3.Not(here.read), z3.Not(here.wrote))
        yield "initiation: a clause does not hold at the start", z3.And(start, z3.Not(z3.And(holds)))
        for number, action in enumerate(self.table.actions):
            effect, unordered = self._happens(action)
            if not self._moves[number]:
                continue
            moves = z3.Or([z3.And(self._at(a), self._at(b, after=True)) for a, b in self._moves[number]])
            broken = z3.Not(z3.And(kept))
            yield f"consecution: {action.label!r} breaks a clause", z3.And(*holds, moves, *effect, broken)
            if action.touch is not None:
                sources = z3.Or([self._at(a) for a in {a for a, _ in self._moves[number]}])
                yield f"safety: {action.label!r} may race", z3.And(*holds, sources, *effect, unordered)
        if "host-quiescent" in self.certificate.proves:
            system = self.table.system
            free = [at for at, state in enumerate(self.table.states) if system.idle(state) and system.free(state)]
            unseen = z3.And(z3.Or(here.read, here.wrote), z3.Not(here.knows["host", MAIN]))
            yield "safety: a free block may be in use", z3.And(*holds, z3.Or([self._at(at) for at in free]), unseen)

    # ── states ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _facts(self, when: str) -> Facts:
        z3 = self.z3
        control = [
            z3.BitVec(f"{part.name} {when}", max(1, (len(part.values) - 1).bit_length()))
            for part in self.table.components
        ]
        knows = {context: z3.Bool(f"{context} {when}") for context in self.contexts}
        return Facts(control, z3.Bool(f"read {when}"), z3.Bool(f"wrote {when}"), knows)

    def _is(self, part: int, value: int, *, after: bool) -> Any:
        key = part, value, after
        if key not in self._equal:
            self._equal[key] = (self.there if after else self.here).control[part] == value
        return self._equal[key]

    def _at(self, state: int, *, after: bool = False) -> Any:
        key = state, after
        if key not in self._states:
            parts = [self._is(at, part.of[state], after=after) for at, part in enumerate(self.table.components)]
            self._states[key] = self.z3.And(parts)
        return self._states[key]

    def _clauses(self, facts: Facts, *, after: bool = False) -> list[Any]:
        return [self._clause(clause, facts, after) for clause in self.certificate.clauses]

    def _clause(self, clause: Clause, facts: Facts, after: bool) -> Any:
        z3 = self.z3

        def one_of(name: str, values: tuple[str, ...]) -> Any:
            part = self.parts[name]
            number = {value: at for at, value in enumerate(self.table.components[part].values)}
            return z3.Or([self._is(part, number[value], after=after) for value in values])

        where = [one_of(name, values) for name, values in clause.where]
        where += [z3.Not(one_of(name, values)) for name, values in clause.unless]
        did = {"read": facts.read, "write": facts.wrote, "access": z3.Or(facts.read, facts.wrote)}[clause.did]
        return z3.Implies(z3.And(*where, did), z3.Or([facts.knows[context] for context in clause.knows]))

    # ── actions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _happens(self, action: Action) -> tuple[list[Any], Any]:
        """What the action does to the facts, and when its access is unordered behind the tracked one."""
        z3, here, there = self.z3, self.here, self.there
        lattice = Formula(z3)
        order: Order[Any] = Order(lattice)
        tracked = z3.Or(here.read, here.wrote)
        pasts = {context: z3.And(tracked, knows) for context, knows in here.knows.items()}
        order.suppose(
            {Agent(name, kind == "host"): past for (kind, name), past in pasts.items() if kind in ("stream", "host")},
            {event: past for context, past in pasts.items() if (event := event_name(context)) is not None},
            {name: past for (kind, name), past in pasts.items() if kind == "queue"},
        )
        issued: Issued[Any] | None = None
        for number, op in enumerate(action.ops):
            found = order.issue(number, op)
            if isinstance(op, Access) and action.touch is not None:
                issued = found
        now = {context: _past(order, context) for context in self.contexts}
        renamed = {event_context(new): now[event_context(old)] for new, old in action.copies}
        now |= renamed | {event_context(name): z3.BoolVal(False) for name in action.forgets}
        effect = [there.knows[context] == now[context] for context in self.contexts]
        begins = {True: z3.Bool("the tracked one is this write"), False: z3.Bool("the tracked one is this read")}
        may = {
            True: action.touch is not None and action.touch.writes,
            False: action.touch is not None and action.touch.reads,
        }
        effect += [z3.Not(z3.And(begins[True], begins[False]))]
        effect += [z3.Implies(begins[writes], z3.Not(tracked) if may[writes] else z3.BoolVal(False)) for writes in may]
        effect += [there.wrote == z3.Or(here.wrote, begins[True]), there.read == z3.Or(here.read, begins[False])]
        chosen: dict[Element, list[Any]] = {element: [] for element in lattice.chosen}
        unordered = z3.BoolVal(False)
        if issued is not None and action.touch is not None:
            chosen[issued.write].append(begins[True])
            chosen[issued.read].append(begins[False])
            unordered = z3.Or(
                z3.And(may[True], tracked, z3.Not(issued.writes)), z3.And(may[False], here.wrote, z3.Not(issued.reads))
            )
        effect += [lattice.chosen[element] == z3.Or(by) for element, by in chosen.items()]
        return effect, unordered


def _past(order: Order[Any], context: Context) -> Any:
    kind, name = context
    event = event_name(context)
    if event is not None:
        recorded = order.events.get(event)
        return order.lattice.bottom() if recorded is None else recorded.past
    if kind == "queue":
        handed = order.handed(name)
        return order.lattice.bottom() if handed is None else handed
    return order.past(Agent(name, kind == "host"))


def _contexts(table: Table) -> dict[Context, None]:
    """Every context that the design or one of its actions names."""
    design = table.system.design
    out: dict[Context, None] = {("stream", stream.name): None for stream in design.streams}
    out |= {("host", thread): None for thread in table.system.threads}
    out |= {("queue", queue): None for queue in design.queues}
    names = [event.name for event in design.events]
    for action in table.actions:
        names += [name for copy in action.copies for name in copy]
        names += action.forgets
        names += [op.event for op in action.ops if isinstance(op, Record | Wait | Poll | Sync | Drop) and op.event]
    return out | {event_context(name): None for name in names}
