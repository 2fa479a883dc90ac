"""A reported pair made true: the run in which it happens, and the same run with the missing order put in.

From a hazard of a run on the simulated machine follows a schedule: the host makes the same choices, and reads the
same tokens, up to the later op, the earlier op is held back until the later one has run, and all else runs as issued
(`device/policy.hold`). That is legal if the two are unordered. The order is gone if one of the two then meets another
write than in program order (`Witness.strays`). The control is the same with a fence between the two
(`device/simulated.Fence`): there nothing may differ.

A pair cannot be held (`forced`) where the host itself waited for the earlier op before it issued the later one, and the
thread that issued the later one had not learnt of it: the order was luck of the threads, and another interleaving of
them breaks it, not another timing of the device. A hazard that needs no order (`GEN`, `BATCH`) has no schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsan.checker.serving.observed import Observed, observe
from kvsan.model.hazard import Hazard, Kind
from kvsan.runtime.device.policy import EAGER, Forced, hold
from kvsan.runtime.device.simulated import Fence, Simulated
from kvsan.runtime.device.versions import Stray, strays
from kvsan.runtime.workload import Request, Workload

Served = tuple[Workload, tuple[Request, ...]]


@dataclass(frozen=True, slots=True)
class Witness:
    """`earlier` and `later` are the machine's numbers. `strays`: where one of the two met another write than program
    order says, on the blocks of the hazard. `forced`: why the pair could not be held; None if it could."""

    hazard: Hazard
    earlier: int
    later: int
    run: Observed
    strays: tuple[Stray, ...]
    forced: Forced | None

    @property
    def shown(self) -> bool:
        """Whether the race came true."""
        return bool(self.strays)

    @property
    def turned(self) -> tuple[Stray, ...]:
        """Those that the pair itself is the reason of: the earlier op met the later one's write, or the later one not
        the earlier one's. Where other races of the same block come true, there are others."""
        return tuple(
            one
            for one in self.strays
            if (one.op == self.earlier and one.version == self.later)
            or (one.op == self.later and one.expected == self.earlier)
        )


class NoOrderError(ValueError):
    """The hazard needs no order, so there is no schedule that would show it: the run itself does."""


def pair(run: Observed, hazard: Hazard) -> tuple[int, int]:
    """The machine's numbers of the two accesses. Raises `NoOrderError`."""
    if hazard.kind in (Kind.GEN, Kind.BATCH):
        raise NoOrderError(f"{hazard.kind}: {hazard.kind.meaning}; no timing is needed to show it")
    earlier, later = run.numbers[hazard.earlier.op], run.numbers[hazard.later.op]
    assert earlier is not None
    assert later is not None
    return earlier, later


def witness(run: Observed, hazard: Hazard, served: Served | None = None, *, whole: bool = False) -> Witness:
    """Plays the run again with the pair of the hazard turned round; to its end if `whole`, else no further than the
    later op. Raises `NoOrderError`.
    """
    earlier, later = pair(run, hazard)
    device = Simulated(seed=0, policy=hold(earlier, later), host=run.schedule.host, observe=True)
    return _seen(run, device, hazard, earlier, later, served, whole=whole)


def control(run: Observed, hazard: Hazard, served: Served | None = None, *, whole: bool = False) -> Witness:
    """The same with the order put in that the report asks for. Raises `NoOrderError`."""
    earlier, later = pair(run, hazard)
    waits = any(fix.wait is not None for fix in hazard.fix)
    device = Simulated(
        seed=0,
        policy=hold(earlier, later),
        host=run.schedule.host,
        observe=True,
        fence=Fence(earlier, later, block=not waits),
    )
    return _seen(run, device, hazard, earlier, later, served, whole=whole)


def _seen(
    run: Observed, device: Simulated, hazard: Hazard, earlier: int, later: int, served: Served | None, *, whole: bool
) -> Witness:
    told = {op: tokens for op, tokens in run.tokens.items() if op < later}
    again = observe(run.trial, device, served, until=None if whole else later, told=told)
    blocks = set(hazard.blocks)
    mine = tuple(
        stray
        for stray in strays(again.log)
        if stray.op in (earlier, later) and stray.pool == hazard.pool and stray.block in blocks
    )
    return Witness(hazard, earlier, later, again, mine, again.forced[0] if again.forced else None)


def in_program_order(run: Observed, served: Served | None = None) -> Observed:
    """The run with the same host choices, every op run as it was issued."""
    return observe(run.trial, Simulated(seed=0, policy=EAGER, host=run.schedule.host, observe=True), served)
