"""When two runs are at the same place: a canonical key of a player's state.

Two states with the same key allow the same choices, and whatever is chosen next, the one has a race between two works
exactly if the other has, of the same kind. So a search goes on from one of them. The key holds

- what is left of the scope (steps, hand-outs), and what is left of the step that is being launched;
- for each block its facets, its held free, whether its last use was seen, what was planned for an earlier generation;
- for each block the accesses that may still race, as (work, mode, who knows of it): the happens-before relation between
  the past and everything that may come, which is all that the future asks of it. Who can know: streams, host threads,
  event objects that somebody may still wait for or poll, entries of queues;
- which event object is which block's, what is in the queues, and what work a thread is in the middle of.

Merged are therefore runs that differ

- in the order of choices that commute (a canonical trace: only the order that calls make is kept);
- in the numbers of the blocks: of all numberings that sort the blocks by what is said of each alone, the least key;
- in accesses that cannot race any more, or only where another one does (`tracker.py`);
- in the numbers of steps and of event objects, of which only the identity counts;
- in what an event holds that will be recorded anew before anybody asks (`overwritten`), and in when the host sees a
  step if nobody asks.

Nothing racy is lost by it: pasts change by unions and copies alone (`kvsan.model.order`), so who knows of an access
later is decided by who knows of it now and by the calls made in between, not by its age or by how it came to be known.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Iterator
from itertools import groupby, permutations, product
from typing import Any, cast

from kvsan.checker.explore.player import Player
from kvsan.model.design import MAIN, Block, Design, Mark, Retired, Seen, Work
from kvsan.model.pasts import Agent

DIGEST = 16
"""Bytes of a key's digest: with 128 bits two states of 2**40 that differ meet with probability 2**-49."""


def overwritten(design: Design) -> frozenset[str]:
    """Shared events that each step records before it asks for them, and that nobody else asks for: between two steps
    what they hold is without effect."""
    out = set()
    elsewhere = {event for thread in design.threads for job in thread.jobs for event in job.after}
    elsewhere |= {need.event for rule in design.rules for need in rule.needs if isinstance(need, Seen)}
    for event in design.events:
        if event.per in ("block", "transfer") or event.name in elsewhere:
            continue
        open_group: int | None = None
        recorded = False
        for item in design.step:
            group = getattr(item, "group", None)
            asks = (isinstance(item, Work) and event.name in item.after) or (
                isinstance(item, Block) and event.name == item.event
            )
            if asks and not (recorded and (group is None or group != open_group)):
                break
            records = (isinstance(item, Mark) and item.event == event.name) or (
                isinstance(item, Work) and item.every_step and event.name in item.signals
            )
            if records and not recorded:
                recorded, open_group = True, group
        else:
            out.add(event.name)
    return frozenset(out)


class Keys:
    """The keys of one player's states."""

    def __init__(self, player: Player) -> None:
        self.player = player
        design = player.design
        self._streams = [Agent(stream.name) for stream in design.streams]
        self._hosts = [Agent(MAIN, is_host=True), *(Agent(thread.name, is_host=True) for thread in design.threads)]
        self._overwritten = overwritten(design)
        self._shared = sorted(event.name for event in design.events if event.per in ("design", "step"))
        self._own = sorted(event.name for event in design.events if event.per in ("block", "transfer"))
        needs = [need for rule in design.rules for need in rule.needs]
        self._uses = any(isinstance(need, Retired) for need in (*needs, *(rule.free for rule in design.rules)))
        self._sees = self._uses or design.run_ahead != "any" or player.scope.plain

    def digest(self) -> bytes:
        """The key in `DIGEST` bytes."""
        return hashlib.blake2b(marshal.dumps(cast("Any", self.key()), 2), digest_size=DIGEST).digest()

    def key(self) -> tuple[object, ...]:
        """The canonical key, of plain values."""
        player = self.player
        tracker, cells, flight = player.tracker, player.cells, player.flight
        assert tracker is not None
        tracker.settled()
        idle = player.todo is None
        # who can know, in an order that does not depend on block numbers
        known = [tracker.past(agent) for agent in (*self._streams, *self._hosts)]
        objects: dict[str, int] = {}
        shape: list[object] = []
        for name in self._shared:
            one = cells.shared.get(name)
            if one is None or (idle and name in self._overwritten):
                shape.append(-1)
                continue
            shape.append(objects.setdefault(one, len(objects)))
        if self._sees:
            shape += [
                -1 if event is None else objects.setdefault(event, len(objects)) for event in flight.unseen_events
            ]
        order = list(objects)
        known += [self._past(event) for event in order]
        common = (
            player.scope.steps - flight.launched,
            player.scope.requests - player.handed,
            player.todo,
            flight.unseen if self._sees else 0,
            tuple(shape),
        )
        local = [self._block(block, known) for block in range(player.scope.blocks)]
        said = [repr(one) for one in local]
        best: tuple[object, ...] | None = None
        for numbering in self._numberings(said):
            made = self._joint(numbering, said, known, dict(objects))
            if best is None or made < best:
                best = made
        assert best is not None
        return (*common, *best)

    def _past(self, event: str) -> int:
        tracker = self.player.tracker
        assert tracker is not None
        recorded = tracker.events.get(event)
        return 0 if recorded is None else recorded.past

    def _block(self, block: int, known: list[int]) -> tuple[object, ...]:
        """What is said of one block without the others."""
        player = self.player
        cells, seen = player.cells, player.flight.seen
        assert player.tracker is not None
        held = cells.held.get(block)
        own = []
        for name in self._own:
            event = cells.bound[name].get(block)
            own.append(None if event is None else self._past(event))
        accesses = self._minimal(player.tracker.accesses[block], [*known, *(past or 0 for past in own)])
        return (
            int(cells.code[block]),
            max(0, int(cells.last_use[block]) - seen) if self._uses else 0,
            () if held is None else (held[0], max(0, held[1] - seen)),
            block in player.out,
            tuple(sorted(player.stale[block])),
            tuple(sorted(queue for queue, blocks in cells.arrived.items() if block in blocks)),
            tuple(past is not None for past in own),
            accesses,
        )

    def _minimal(self, accesses: tuple[tuple[int, bool, str], ...], known: list[int]) -> tuple[object, ...]:
        """For each work and mode the accesses by who knows of them, without those that another one makes superfluous:
        whose knowers are among another's."""
        if not accesses:
            return ()
        knowers: dict[tuple[str, bool], set[int]] = {}
        for bit, writes, work in accesses:
            mask = 0
            for at, past in enumerate(known):
                if past & bit:
                    mask |= 1 << at
            knowers.setdefault((work, writes), set()).add(mask)
        return tuple(
            (work, writes, *sorted(m for m in masks if not any(o != m and o & m == o for o in masks)))
            for (work, writes), masks in sorted(knowers.items())
        )

    def _numberings(self, said: list[str]) -> Iterator[tuple[int, ...]]:
        """All numberings that sort the blocks by what is said of each alone; of blocks with nothing that ties them to
        others one order would be enough."""
        ranked = sorted(range(len(said)), key=said.__getitem__)
        ties = [list(group) for _, group in groupby(ranked, key=said.__getitem__)]
        for choice in product(*(permutations(group) for group in ties)):
            yield tuple(block for group in choice for block in group)

    def _joint(
        self,
        numbering: tuple[int, ...],
        said: list[str],
        known: list[int],
        objects: dict[str, int],
    ) -> tuple[object, ...]:
        """What is said of the blocks together: which event objects are the same, what the queues hold, and of each
        access who knows of it, now with everybody in."""
        player = self.player
        cells, tracker = player.cells, player.tracker
        assert tracker is not None
        at = {block: number for number, block in enumerate(numbering)}
        known = list(known)
        bound: list[int] = []
        for block in numbering:
            for name in self._own:
                event = cells.bound[name].get(block)
                if event is None:
                    bound.append(-1)
                    continue
                if event not in objects:
                    objects[event] = len(objects)
                    known.append(self._past(event))
                bound.append(objects[event])
        queues: list[object] = []
        for queue in sorted(player.device.queues):
            for token, job in player.device.queues[queue]:
                known.append(tracker.tokens.get(token, 0))
                step = max(0, job.step - player.flight.seen) if self._uses else 0
                queues.append((queue, job.work, step, tuple(sorted(at[block] for block in job.blocks.tolist()))))
        for thread, hand in sorted(player.hands.items()):
            step = max(0, hand.step - player.flight.seen) if self._uses else 0
            sides = (tuple(sorted(at[b] for b in side)) for side in (hand.blocks, hand.reads, hand.writes))
            queues.append((thread, hand.work, step, hand.waited, *sides))
        return (
            tuple(said[block] for block in numbering),
            tuple(bound),
            tuple(queues),
            tuple(repr(self._minimal(tracker.accesses[block], known)) for block in numbering),
        )
