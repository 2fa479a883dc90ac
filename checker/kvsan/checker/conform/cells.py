"""What one block may be in the design, as far as the trace has shown.

A trace does not say which rule the scheduler used, so for each block a *set* of cells is kept: facet values, and what
the design holds against them (the fence of a held free, the events of the block, its job in a queue). Rules that the
trace cannot show are silent transitions, closed over whenever the scheduler is between two steps and fired as early as
they can be: an earlier one asks for less (its fence is an older step), and one that fires later finds its guard still
true, or it could not fire. Rules that take the block from its pool or return it are shown by alloc, touch and free.

`via` collects the rules by which a cell was reached since the block was last shown. It is what "exercised" means: the
rule *may* have happened. Where two rules do the same to a block (`request finished`, `preempt`) both count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kvsan.model.design import Assign, Block, Design, Fence, Retired, Rule, Submit, Work

HELD = "held:"
NOBODY = -1
EXACT = "!"
"""What the mark of an event begins with that a rule records under its name: which of its objects is the block's is not
known, so each is a cell of its own and none asks for less than another."""


class Job(NamedTuple):
    """A job that was submitted: to which queue, at which op, and what the shared events held then (snapshots)."""

    queue: str
    at: int
    events: tuple[tuple[str, int], ...]


class Cell(NamedTuple):
    """One way in which a block may be. `fence` and `last_use` are numbers of steps (0: none). `marks` maps events of
    the block, and queues that hold its entry, to the snapshot or entry that they stand for. `ending`: the job of a
    further thread that touched the block and is not over, so that what it does to the facets is still to come.
    `begun`: a forward wrote the block and it is not full yet (`Steps.fills`)."""

    block: tuple[str, ...]
    fence: int = 0
    last_use: int = 0
    marks: tuple[tuple[str, int], ...] = ()
    jobs: tuple[Job, ...] = ()
    ending: str = ""
    begun: bool = False
    via: int = 0


Cells = tuple[Cell, ...]


class Move(NamedTuple):
    """A rule, or the return of a held block (no rule), and the block afterwards. `crosses`: -1 into the pool, 1 out of
    it, 0 neither."""

    rule: Rule | None
    block: tuple[str, ...]
    crosses: int


class Blocks:
    """What the design lets one block do, by its facet values; each answer is worked out once."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.names = tuple(facet.name for facet in design.facets)
        self._at = {name: i for i, name in enumerate(self.names)}
        self.bits = {rule.name: 1 << i for i, rule in enumerate(design.rules)}
        needs = [need for rule in design.rules for need in (*rule.needs, rule.free)]
        self.uses = Retired(Fence.LAST_USE) in needs
        self._moves: dict[tuple[str, ...], tuple[Move, ...]] = {}
        self._modes: dict[tuple[str, tuple[str, ...]], tuple[bool, bool]] = {}
        self._free: dict[tuple[str, ...], bool] = {}
        self._due: dict[tuple[str, tuple[str, ...]], bool] = {}

    @property
    def start(self) -> tuple[str, ...]:
        return tuple(facet.values[0] for facet in self.design.facets)

    def facets(self, block: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self.names, block, strict=True))

    def then(self, block: tuple[str, ...], sets: Assign) -> tuple[str, ...]:
        if not sets:
            return block
        values = list(block)
        for facet, value in sets:
            values[self._at[facet]] = value
        return tuple(values)

    def free(self, block: tuple[str, ...]) -> bool:
        found = self._free.get(block)
        if found is None:
            found = self._free[block] = self.design.free.holds(self.facets(block))
        return found

    def mode(self, work: Work, block: tuple[str, ...]) -> tuple[bool, bool]:
        """Whether the work reads and writes a block that is so."""
        found = self._modes.get((work.name, block))
        if found is None:
            found = self._modes[work.name, block] = work.mode(self.facets(block))
        return found

    def due(self, item: Work | Submit | Block, block: tuple[str, ...]) -> bool:
        """Whether the step must do the item for a block that is so."""
        if isinstance(item, Work):
            return any(self.mode(item, block))
        found = self._due.get((item.name, block))
        if found is None:
            found = item.when is None or item.when.holds(self.facets(block))
            self._due[item.name, block] = found
        return found

    def moves(self, block: tuple[str, ...]) -> tuple[Move, ...]:
        """What may happen to the block between two steps, whether or not its needs are met."""
        found = self._moves.get(block)
        if found is None:
            here = self.facets(block)
            made: list[Move] = []
            for at, value in enumerate(block):
                if value.startswith(HELD):
                    made.append(self._move(None, block, ((self.names[at], value.removeprefix(HELD)),)))
            for rule in self.design.rules:
                if rule.when.holds(here):
                    sets = rule.then if rule.free is None else tuple((f, HELD + value) for f, value in rule.then)
                    made.append(self._move(rule, block, sets))
            found = self._moves[block] = tuple(made)
        return found

    def _move(self, rule: Rule | None, block: tuple[str, ...], sets: Assign) -> Move:
        after = self.then(block, sets)
        return Move(rule, after, int(self.free(block)) - int(self.free(after)))

    def everything(self) -> Cells:
        """All that a block may be in mid-run: the trace does not say how it came there."""
        todo, known = [self.start], {self.start}
        items = [item for item in (*self.design.step, *self.design.works()) if isinstance(item, Work | Submit | Block)]
        while todo:
            block = todo.pop()
            after = [move.block for move in self.moves(block)]
            after += [self.then(block, item.then) for item in items if self.due(item, block)]
            for one in after:
                if one not in known:
                    known.add(one)
                    todo.append(one)
        return tuple(sorted(Cell(block) for block in known))

    def words(self, block: tuple[str, ...]) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.facets(block).items())


def put(pairs: tuple[tuple[str, int], ...], name: str, value: int) -> tuple[tuple[str, int], ...]:
    """The mapping with one entry replaced."""
    return tuple(sorted((*(pair for pair in pairs if pair[0].removeprefix(EXACT) != name.removeprefix(EXACT)),
                         (name, value))))  # fmt: skip


def get(pairs: tuple[tuple[str, int], ...], name: str) -> int:
    return next((value for key, value in pairs if key.removeprefix(EXACT) == name), NOBODY)


def asks_less(a: Cell, b: Cell) -> bool:
    """Whether whatever can follow in cell `b` can follow in cell `a` of the same block: every fence, event and job of
    `a` is the older one, and `a` may become full by itself if `b` may."""
    if (
        a.ending != b.ending
        or a.fence > b.fence
        or a.last_use > b.last_use
        or a.begun < b.begun
        or len(a.marks) != len(b.marks)
        or len(a.jobs) != len(b.jobs)
    ):
        return False
    return all(
        x[0] == y[0] and (x[1] == y[1] or (x[1] < y[1] and not x[0].startswith(EXACT)))
        for x, y in zip(a.marks, b.marks, strict=True)
    ) and all(x.queue == y.queue and x.at <= y.at for x, y in zip(a.jobs, b.jobs, strict=True))


class Gathered:
    """A set of cells without those that ask for more than another one of the same facet values."""

    def __init__(self, cells: Iterable[Cell] = ()) -> None:
        self.by: dict[tuple[str, ...], list[Cell]] = {}
        for cell in cells:
            self.add(cell)

    def add(self, cell: Cell) -> bool:
        """Whether it was new."""
        have = self.by.setdefault(cell.block, [])
        for at, other in enumerate(have):
            if asks_less(other, cell):
                if other.via:  # without a rule it needs none
                    have[at] = other._replace(via=other.via | cell.via)
                return False
        have[:] = [other for other in have if not asks_less(cell, other)]
        have.append(cell)
        return True

    def cells(self) -> Cells:
        return tuple(sorted(cell for have in self.by.values() for cell in have))


class Group:
    """Blocks that are the same, and what they may be."""

    __slots__ = ("blocks", "cells")

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.blocks: set[int] = set()


class Partition:
    """The cells of every block. Blocks that went through the same are kept together, so that a step costs as much as
    there are different histories and not as there are blocks. `rest`: the blocks that no op has named yet."""

    def __init__(self, start: Cells) -> None:
        self.rest = start
        self._of: dict[int, Group] = {}
        self._groups: dict[Cells, Group] = {}

    def split(self, ids: Iterable[int]) -> list[tuple[Cells, list[int]]]:
        """The blocks by what they are. What comes back is to be given to `assign`, each part as it is."""
        by: dict[int, tuple[Cells, list[int]]] = {}
        of = self._of
        for i in ids:
            group = of.get(i)
            found = by.get(id(group))
            if found is None:
                by[id(group)] = (self.rest if group is None else group.cells, [i])
            else:
                found[1].append(i)
        return list(by.values())

    def assign(self, ids: list[int], cells: Cells) -> None:
        """Blocks of one part of `split` are this now."""
        source, target = self._of.get(ids[0]), self._groups.get(cells)
        if source is not None and source.cells == cells:
            return
        if source is not None and len(source.blocks) == len(ids):
            self._become(source, cells)
            return
        if target is None:
            target = self._groups[cells] = Group(cells)
        if source is not None:
            source.blocks.difference_update(ids)
        target.blocks.update(ids)
        self._of.update(dict.fromkeys(ids, target))

    def each(self, change: Callable[[Cells, int], Cells]) -> None:
        """Changes the cells of all blocks; `change` is also given one of the blocks, for a message (-1: the rest)."""
        groups = list(self._groups.values())
        after = [change(group.cells, min(group.blocks)) for group in groups]
        self.rest = change(self.rest, -1)
        if all(now is group.cells for group, now in zip(groups, after, strict=True)):
            return
        self._groups = {}
        for group, now in zip(groups, after, strict=True):
            self._become(group, now)

    def _become(self, group: Group, cells: Cells) -> None:
        """All blocks of a group are something else now."""
        if self._groups.get(group.cells) is group:
            del self._groups[group.cells]
        group.cells = cells
        other = self._groups.get(cells)
        if other is None:
            self._groups[cells] = group
            return
        small, large = sorted((group, other), key=lambda one: len(one.blocks))
        large.blocks |= small.blocks
        self._of.update(dict.fromkeys(small.blocks, large))
        self._groups[cells] = large
