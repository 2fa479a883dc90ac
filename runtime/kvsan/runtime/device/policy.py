"""Which ready op a simulated machine runs next: policies as values, and the chooser that follows one.

A policy only picks among what CUDA allows; none can break an order. When the host has to wait for something, every
policy lets the machine go on until that is complete; and a part at a time, when the host does nothing but poll.

`fair`: a random ready op, in random parts; now and then a stream is slow for a while. `early`, `late`: the same, but
the source of an `any` copy is read as early or as late as allowed. `starve`: a stream runs only when nothing else can.
`lazy`: nothing runs before the host waits for it. `eager`: everything runs at once, so in program order. `hold`: one
op waits for a later one, and everything else is eager: that is how a reported pair is shown to be real.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvsan.runtime.device.tasks import ALL, ONE, SOME, How, Task
from kvsan.runtime.device.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Hold:
    """Op `earlier` runs after op `until` has run. `begun`: all its parts but the last may run before."""

    earlier: int
    until: int
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """`pace`: the chance of running one thing more where the host lets the machine run (0: nothing before it has to, 1:
    all). `split`: the chance that an op is not run to its end at once. `oldest`: the ready op that was issued first,
    not a random one. `starved`: streams that run when nothing else can. `sources`: when the source of an `any` copy is
    read.
    """

    name: str
    pace: float = 0.5
    split: float = 0.5
    oldest: bool = False
    starved: tuple[str, ...] = ()
    sources: Literal["random", "early", "late"] = "random"
    held: Hold | None = None

    def __str__(self) -> str:
        return self.name


FAIR = Policy("fair")
EARLY = Policy("early", sources="early")
LATE = Policy("late", sources="late")
LAZY = Policy("lazy", pace=0, split=0, oldest=True, sources="late")
EAGER = Policy("eager", pace=1, split=0, oldest=True, sources="late")
POLICIES = {policy.name: policy for policy in (FAIR, EARLY, LATE, LAZY, EAGER)}


def starve(*streams: str) -> Policy:
    """These streams run only when nothing else can; sources are read late."""
    return Policy(f"starve:{','.join(streams)}", starved=streams, sources="late")


def hold(earlier: int, until: int, *, begun: bool = False) -> Policy:
    """Op number `earlier` waits until op number `until` has run, or, if that is an `any` copy ordered behind it, has
    read its source. Legal if the two are unordered; if the host waits for `earlier` first, it runs, and
    `Simulated.forced` says so. `begun`: all its parts but the last may run before."""
    name = f"hold:{earlier},{until}" + (",begun" if begun else "")
    return Policy(name, pace=1, split=0, oldest=True, sources="late", held=Hold(earlier, until, begun))


def policy(text: str) -> Policy:
    """The policy of that name: `fair`, `starve:load`, `hold:12,40`, … Raises `ValueError`."""
    if text in POLICIES:
        return POLICIES[text]
    kind, _, rest = text.partition(":")
    words = rest.split(",")
    if kind == "starve" and all(words):
        return starve(*words)
    numbers = len(words) >= 2 and all(word.isdecimal() for word in words[:2])
    if kind == "hold" and numbers and words[2:] in ([], ["begun"]):
        return hold(int(words[0]), int(words[1]), begun=len(words) == 3)
    known = ", ".join([*POLICIES, "starve:STREAM[,STREAM…]", "hold:EARLIER,LATER[,begun]"])
    raise ValueError(f"{text!r} is no policy; there are {known}")


@dataclass(frozen=True, slots=True)
class Forced:
    """A held op ran too early all the same. `why` names the call."""

    op: int
    why: str


class Moves(NamedTuple):
    """What may happen now, numbered through: one of `heads` runs, or the source of one of `ahead` is read."""

    heads: list[Task]
    ahead: dict[int, Task]

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.heads) + len(self.ahead)


class Chosen(NamedTuple):
    """A move by its place in the list, and how much of it. `few`: how many parts less one, if that is not random."""

    move: int
    how: How
    few: int | None = None


SLOW = (1.0, 1.0, 1.0, 0.25, 0.02)
"""How slow a stream may be for a while, beside the others."""
PACES = (0.1, 0.3, 1.0, 1.6)
"""How slow the whole machine may be for a while: times the policy's pace."""
MOODS = 1 / 32
"""How often, for each choice, one of these changes."""


class Chooser:
    """Follows a policy, from a seed."""

    def __init__(self, policy: Policy, seed: int, timeline: Timeline) -> None:
        self.policy, self.forced = policy, list[Forced]()
        self._timeline = timeline
        self._random = random.Random(f"{seed} device").random
        self._slow: dict[str, float] = {}
        self._pace = 0.0

    def pick(self, options: int) -> int:
        """A random number below `options`."""
        return int(self._random() * options)

    def choose(self, moves: Moves, needed: Callable[[], dict[str, int]] | None, why: str) -> Chosen | None:
        """One of the moves, or none. `needed`: the host waits, so one must be chosen; it says up to where each stream
        has to be complete in the end. `why`: the call, for people."""
        policy, held, heads = self.policy, self.policy.held, moves.heads
        if held is not None and held.until in moves.ahead:
            return Chosen(len(heads) + list(moves.ahead).index(held.until), ALL)
        if policy.sources == "early" and moves.ahead:
            return Chosen(len(heads), ALL)
        free = [at for at, task in enumerate(heads) if task.stream not in policy.starved]
        last = next((at for at in free if held is not None and heads[at].number == held.earlier), -1)
        if held is not None and last >= 0:
            if not self._holds(held):
                last = -1
            elif held.begun and heads[last].left > 1:
                return Chosen(last, SOME, heads[last].left - 2)
            else:
                free.remove(last)
        ahead = policy.sources == "random" and bool(moves.ahead)
        if needed is None:
            if not (free or ahead) or not self._goes_on():
                return None
        elif not free or policy.pace == 0:
            limits = needed()
            near = [at for at, task in enumerate(heads) if task.at <= limits.get(task.stream, 0)]
            free = near or list(range(len(heads)))
            if last in free:
                self.force(heads[last].number, why)
        if ahead and self._random() * (len(free) + 1) < 1:
            move = len(heads) + self.pick(len(moves.ahead))
        elif policy.oldest:
            move = min(free, key=lambda at: heads[at].number)
        else:
            move = self._weighed(heads, free)
        how: How = ALL
        if policy.split and self._random() < policy.split:
            how = SOME if self._random() < 0.5 else ONE
        return Chosen(move, how)

    def _goes_on(self) -> bool:
        pace = self.policy.pace
        if pace in (0, 1):
            return pace == 1
        if not self._pace or self._random() < MOODS:
            self._pace = min(pace * PACES[self.pick(len(PACES))], 0.95)
        return self._random() < self._pace

    def _weighed(self, heads: list[Task], free: list[int]) -> int:
        if len(free) == 1:
            return free[0]
        weights = []
        for name in (heads[at].stream for at in free):
            if name not in self._slow or self._random() < MOODS:
                self._slow[name] = SLOW[self.pick(len(SLOW))]
            weights.append(self._slow[name])
        point = self._random() * sum(weights)
        for at, weight in zip(free, weights, strict=True):
            point -= weight
            if point < 0:
                return at
        return free[-1]

    def force(self, op: int, why: str) -> None:
        """A held op runs, and the later one has not."""
        if all(one.op != op for one in self.forced):
            self.forced.append(Forced(op, why))

    def _holds(self, held: Hold) -> bool:
        """Whether the later op has still to come. Its source has been read by now, if that was possible."""
        line = self._timeline
        earlier, until = line.tasks.get(held.earlier), line.tasks.get(held.until)
        if earlier is None or held.until >= line.issued:
            return earlier is not None
        if until is None:
            return False
        if line.needs(until).get(earlier.stream, 0) < earlier.at:
            return True
        if not until.loose:
            self.force(held.earlier, f"op {held.until} is ordered behind it")
        return False
