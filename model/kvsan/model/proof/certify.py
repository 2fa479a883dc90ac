"""Finds the clauses that make a design free of races: few, short, and none to spare.

What an access needs in order to be safe is a clause: one of the contexts that it may rely on knows the tracked access.
What must hold before an action so that a clause holds after it is again *one* clause, because the rules are unions
and copies. So the clauses that are needed follow from each other backwards. Each is first made as general as the
reachable states allow (fewer contexts, then more control states); that is where the certificate gets short. At last
clauses are taken out, with all that they alone support, until each that is left is needed.

Nothing here is trusted: `recheck` reads the clauses alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvsan.model.design import MAIN, Design
from kvsan.model.hazard import conflict
from kvsan.model.proof.certificate import Certificate, Clause, Did, fingerprint
from kvsan.model.proof.solver import InternalError
from kvsan.model.proof.table import Table, tabulate
from kvsan.model.proof.transfer import Transfers

Needs = dict[int, int]
"""Bits, and the places (control state and what the tracked access did) at which one of them must be set. Sets of
places are ints, place `p` is `1 << p`."""

READ, WRITE = 0, 1


@dataclass(frozen=True, slots=True)
class Wide:
    """A clause as sets of bits: its values of each component, its places, what was done, who knows."""

    box: tuple[int, ...]
    places: int
    did: int
    bits: int


def certify(design: Design, *, quiescent: bool = False, cap: int = 400_000) -> Certificate:
    """The certificate of a design in which nothing races. `quiescent`: also of that the host knows every access
    complete when the block is free. Raises `TooManyStatesError`, and `InternalError` if there is none.
    """
    table = tabulate(design, None if design.run_ahead == "any" else design.run_ahead, cap)
    finder = _Finder(table, quiescent=quiescent)
    clauses = finder.minimal(finder.closed())
    proves = ("race-free", "host-quiescent") if quiescent else ("race-free",)
    return Certificate(fingerprint(design), proves, tuple(sorted((finder.told(c) for c in clauses), key=str)))


class _Finder:
    def __init__(self, table: Table, *, quiescent: bool) -> None:
        self.table, self.quiescent = table, quiescent
        self.transfers = Transfers(table.system.design, table.actions, table.system.threads)
        self.of = [self.transfers.of[action] for action in table.actions]
        self.into: list[list[tuple[int, int]]] = [[] for _ in table.states]
        self.out: list[list[tuple[int, int]]] = [[] for _ in table.states]
        for source, action, target in table.moves:
            self.into[target].append((source, action))
            self.out[source].append((action, target))
        self.least = self._least()
        self.true: dict[int, int] = {}
        self.values = [
            [
                sum(3 << 2 * at for at, number in enumerate(part.of) if number == value)
                for value in range(len(part.values))
            ]
            for part in table.components
        ]
        self.did = [sum(1 << 2 * at + did for at in range(len(table.states))) for did in (READ, WRITE)]
        self.needs = _gathered(self._needs())

    # ── what is true ──────────────────────────────────────────────────────────────────────────────────────────────

    def _least(self) -> list[list[int]]:
        """For each place the least knowledge with which it is reached; more than that never harms."""
        least: list[list[int]] = [[] for _ in range(2 * len(self.table.states))]
        todo: list[tuple[int, int]] = []

        def reach(place: int, bits: int) -> None:
            here = least[place]
            if not any(have & ~bits == 0 for have in here):
                here[:] = [have for have in here if bits & ~have]
                here.append(bits)
                todo.append((place, bits))

        for _, action, target in self.table.moves:
            check = self.of[action].check
            if check is not None and check.reads:
                reach(2 * target + READ, check.start_read)
            if check is not None and check.writes:
                reach(2 * target + WRITE, check.start_write)
        while todo:
            place, bits = todo.pop()
            if bits in least[place]:
                for action, target in self.out[place >> 1]:
                    reach(2 * target + (place & 1), self.of[action](bits))
        return least

    def holds(self, bits: int) -> int:
        """The places at which one of these bits is always set."""
        found = self.true.get(bits)
        if found is None:
            found = self.true[bits] = sum(
                1 << place for place, least in enumerate(self.least) if all(have & bits for have in least)
            )
        return found

    def _needs(self) -> Iterator[tuple[int, int]]:
        for source, action, _ in self.table.moves:
            check = self.of[action].check
            if check is None:
                continue
            for wrote in (READ, WRITE):
                for touches, writes, mask in (
                    (check.reads, False, check.read_mask),
                    (check.writes, True, check.write_mask),
                ):
                    if touches and conflict(wrote == WRITE, writes) is not None:
                        yield 2 * source + wrote, mask
        if self.quiescent:
            system = self.table.system
            for at, state in enumerate(self.table.states):
                if system.idle(state) and system.free(state):
                    yield 2 * at + READ, self.transfers.bit["host", MAIN]
                    yield 2 * at + WRITE, self.transfers.bit["host", MAIN]

    # ── clauses ───────────────────────────────────────────────────────────────────────────────────────────────────

    def closed(self) -> list[Wide]:
        """Clauses that cover every need, their own among them."""
        clauses: list[Wide] = []
        todo = list(self.needs.items())
        while todo:
            bits, places = todo.pop()
            places &= ~_covered(clauses, bits)
            while places:
                clause = self._general((places & -places).bit_length() - 1, bits)
                clauses.append(clause)
                places &= ~clause.places
                todo += self._before(clause).items()
        return clauses

    def _before(self, clause: Wide) -> Needs:
        """What must hold before each action so that the clause holds after it."""
        return _gathered(
            (2 * source + (place & 1), self.of[action].read(clause.bits))
            for place in _ones(clause.places)
            for source, action in self.into[place >> 1]
        )

    def _general(self, place: int, bits: int) -> Wide:
        """The need as a clause about as many control states as it is true of, with as few contexts as are needed."""
        if not self.holds(bits) >> place & 1:
            state = self.table.states[place >> 1]
            raise InternalError(f"the search found no race, yet an access may be unordered at {state}")
        for bit in _ones(bits):
            less = bits & ~(1 << bit)
            if self.holds(less) >> place & 1:
                bits = less
        true = self.holds(bits)
        box = [1 << part.of[place >> 1] for part in self.table.components]
        did = 1 << (place & 1)
        if not self._places(box, 3) & ~true:
            did = 3
        for at, values in enumerate(self.values):
            full = (1 << len(values)) - 1
            for more in (full, *(1 << value for value in range(len(values)))):
                wider = [*box[:at], box[at] | more, *box[at + 1 :]]
                if not self._places(wider, did) & ~true:
                    box = wider
        return Wide(tuple(box), self._places(box, did), did, bits)

    def _places(self, box: list[int], did: int) -> int:
        out = sum(self.did[one] for one in _ones(did))
        for chosen, values in zip(box, self.values, strict=True):
            if chosen != (1 << len(values)) - 1:
                out &= sum(values[value] for value in _ones(chosen))
        return out

    # ── none to spare ─────────────────────────────────────────────────────────────────────────────────────────────

    def minimal(self, clauses: list[Wide]) -> list[Wide]:
        """Takes out clauses, with all that then no longer follows, as long as the rest covers every need."""
        before = {clause: self._before(clause) for clause in clauses}
        kept, had = clauses, 0
        while had != len(kept):
            had = len(kept)
            for clause in sorted(kept, key=lambda c: (-c.bits.bit_count(), c.places.bit_count())):
                if clause in kept:
                    rest = self._inductive([other for other in kept if other != clause], before)
                    kept = rest if _cover(rest, self.needs) else kept
        return kept

    def _inductive(self, clauses: list[Wide], before: dict[Wide, Needs]) -> list[Wide]:
        """The largest part of the clauses that every action keeps."""
        while True:
            rest = [clause for clause in clauses if _cover(clauses, before[clause])]
            if len(rest) == len(clauses):
                return rest
            clauses = rest

    def told(self, clause: Wide) -> Clause:
        """The clause by names. Of a part's values those that it has or those that it has not, whichever are fewer."""
        where, unless = [], []
        for part, chosen in zip(self.table.components, clause.box, strict=True):
            has = tuple(value for at, value in enumerate(part.values) if chosen >> at & 1)
            lacks = tuple(value for at, value in enumerate(part.values) if not chosen >> at & 1)
            if lacks and len(lacks) < len(has):
                unless.append((part.name, lacks))
            elif lacks:
                where.append((part.name, has))
        did: Did = "access" if clause.did == 3 else "write" if clause.did == 1 << WRITE else "read"
        knows = tuple(self.transfers.contexts[bit] for bit in _ones(clause.bits))
        return Clause(tuple(where), did, knows, tuple(unless))


def _gathered(needs: Iterable[tuple[int, int]]) -> Needs:
    out: Needs = {}
    for place, bits in needs:
        out[bits] = out.get(bits, 0) | 1 << place
    return out


def _covered(clauses: list[Wide], bits: int) -> int:
    """The places at which some clause says that one of these bits is set."""
    out = 0
    for clause in clauses:
        if not clause.bits & ~bits:
            out |= clause.places
    return out


def _cover(clauses: list[Wide], needs: Needs) -> bool:
    return not any(places & ~_covered(clauses, bits) for bits, places in needs.items())


def _ones(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
