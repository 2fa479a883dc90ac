"""A block's life: alloc, free and touch show the rules that take a block from its pool or return it."""

from __future__ import annotations

from kvsan.checker.conform.cells import Cells, Gathered, Move
from kvsan.checker.conform.facts import Fact
from kvsan.checker.conform.steps import Steps
from kvsan.checker.conform.world import RefusalError
from kvsan.model.design import MAIN
from kvsan.model.ops import Alloc, Free, Touch

LIFE = {Alloc: "alloc", Free: "free", Touch: "touch"}


class Life:
    """The rules that a trace shows."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.world, self.partition = steps, steps.world, steps.partition
        self.blocks, self.names, self.design = steps.blocks, steps.world.names, steps.world.design

    def take(self, fact: Fact, op: Alloc | Free | Touch) -> None:
        kind = LIFE[type(op)]
        if op.by != self.names.main:
            raise RefusalError(fact.index, f"{kind} by {op.by}", f"expected {MAIN} ({self.names.main}) to do it")
        self.steps.idle()
        for cells, some in self.partition.split(op.blocks):
            gathered = Gathered()
            for cell in cells:
                for move in self.blocks.moves(cell.block):
                    if self._shows(kind, move) and self.steps.lacks(cell, move) is None:
                        after = self.steps.fire(cell, move)
                        self.world.rules |= after.via
                        gathered.add(after._replace(via=0))
                if kind == "free" and self._freed_by_work and self.blocks.free(cell.block):
                    gathered.add(cell)
            if not gathered.by:
                raise RefusalError(fact.index, f"{kind} {op.pool} {some[0]}", self._unshown(kind, cells))
            self.partition.assign(some, self.steps.settled(gathered.cells()))

    def _shows(self, kind: str, move: Move) -> bool:
        if kind == "free":
            return move.crosses < 0
        return move.crosses > 0 and move.rule is not None and move.rule.keeps == (kind == "touch")

    @property
    def _freed_by_work(self) -> bool:
        """Whether some work, not a rule, makes a block free: then its free is logged when it is free already."""
        free = {facet for facet in self.blocks.names if facet in str(self.design.free)}
        return any(facet in free for work in self.design.works() for facet, _ in work.then)

    def _unshown(self, kind: str, cells: Cells) -> str:
        lacking: dict[str, None] = {}
        for cell in cells:
            for move in self.blocks.moves(cell.block):
                words = self.steps.lacks(cell, move)
                if words is not None and (self._shows(kind, move) or not move.crosses):
                    name = "the return of a held block" if move.rule is None else repr(move.rule.name)
                    lacking[f"{name} needs {words}"] = None
        if lacking:
            return "one step early: " + " or ".join(list(lacking)[:3])
        states = " or ".join(dict.fromkeys(self.blocks.words(cell.block) for cell in list(cells)[:3]))
        if kind == "free":
            rules = [rule.name for rule in self.design.rules]
            return f"expected a block that a rule may return now ({', '.join(rules)}); it is {states}"
        which = [rule.name for rule in self.design.rules if rule.keeps == (kind == "touch")]
        return f"expected a free block and a rule that takes it ({', '.join(which) or 'there is none'}); it is {states}"
