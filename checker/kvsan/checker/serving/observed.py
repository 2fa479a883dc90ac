"""A serving run on the simulated machine with everything that can be known of it: lines, versions, rows, completions.

The lines are what a debug run logs, and nothing else is told to the checker. The versions (`device/versions.py`) are
the truth it is held against: which write each op really met. `rows` says which request a step's forward read which
blocks for, so that a wrong completion can be traced back (`lineage.py`).

What the host does depends on the tokens that it reads, too: one ends a text. A run that follows another one's host
choices in another timing may be `told` the tokens that the host read there, as it is told what the polls answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kvsan.checker.judge import Report, check_ops
from kvsan.checker.serving.lines import Lines
from kvsan.checker.serving.trial import Trial, engine_for, requests_for
from kvsan.checker.trace.header import Header
from kvsan.model.ops import Op
from kvsan.runtime.device import Device, Kernel
from kvsan.runtime.device.policy import Forced
from kvsan.runtime.device.schedule import Schedule
from kvsan.runtime.device.simulated import Simulated
from kvsan.runtime.device.versions import Op as Issued
from kvsan.runtime.device.versions import Touch
from kvsan.runtime.engine import Engine, StuckError
from kvsan.runtime.forward import Batch, Forward
from kvsan.runtime.language import Model
from kvsan.runtime.requests import Completion
from kvsan.runtime.serve import garbled, serve
from kvsan.runtime.tracing import Traced
from kvsan.runtime.workload import Request, Workload


@dataclass(frozen=True, slots=True)
class Row:
    """What a forward did for one request. `reads`: the blocks of which its next token was made, empty if it took none.
    `begun`: blocks that it wrote and that hold words of earlier steps too."""

    request: int
    reads: tuple[int, ...]
    begun: tuple[int, ...]


@dataclass
class Observed:
    """`rows`, `tokens` (by slot, as the host reads them): by the machine's number of the forward. `stuck`: why the
    engine could not go on, if it could not. `told_otherwise`: a token that the host was told is not the one that came
    out.
    """

    trial: Trial
    requests: tuple[Request, ...]
    header: Header
    lines: list[Op]
    numbers: list[int | None]
    ops: list[Issued]
    log: list[Touch]
    rows: dict[int, tuple[Row, ...]]
    tokens: dict[int, list[int]]
    schedule: Schedule
    forced: list[Forced]
    done: dict[int, Completion] = field(default_factory=dict)
    stuck: str = ""
    told_otherwise: bool = False

    @cached_property
    def garbled(self) -> list[int]:
        """The requests whose completion is wrong."""
        return garbled(self.trial.model, self.requests, self.done)

    @cached_property
    def report(self) -> Report:
        """What `kvsan check --all` says of the lines."""
        return check_ops(self.header, self.lines, name="simulated", all_pairs=True)

    @property
    def answers(self) -> dict[int, tuple[int, ...]]:
        """The tokens of each completion."""
        return {number: one.tokens for number, one in self.done.items()}


TURNS = 1000
"""Turns for each request, and more is an engine that does not come to an end."""


class EnoughError(Exception):
    """Ends a run of which no more is wanted."""


def observe(
    trial: Trial,
    device: Simulated,
    served: tuple[Workload, tuple[Request, ...]] | None = None,
    *,
    wrap: Callable[[Device], Device] = lambda device: device,
    tinker: Callable[[Engine], None] = lambda engine: None,
    until: int | None = None,
    told: Mapping[int, list[int]] | None = None,
) -> Observed:
    """Serves the trial's workload on the machine, which must observe. `served`: the workload and its requests, if
    they are at hand. `wrap`: put around the logged machine; `tinker`: done to the engine before it serves. `until`:
    no further than this op needs. `told`: tokens that the host reads whatever comes out, by the number of the
    forward. Raises what the engine raises, but for `StuckError`, and `ScheduleError`.
    """
    workload, requests = served or requests_for(trial)
    lines = Lines(device)
    rows: dict[int, tuple[Row, ...]] = {}
    tokens: dict[int, list[int]] = {}
    made: list[Engine] = []
    noted: list[_Noted] = []

    def forward(model: Model, pool: Any, device_tokens: Any) -> _Noted:
        noted.append(_Noted(Forward(model, pool, device_tokens), made, device, rows, tokens, told or {}))
        return noted[0]

    engine = engine_for(
        trial,
        wrap(Traced(device, lines)),
        workload,
        requests,
        forward,
    )
    made.append(engine)
    tinker(engine)
    done: dict[int, Completion] = {}
    stuck = ""
    looked = turns = 0

    def each_turn(ended: list[Completion]) -> None:
        nonlocal looked, turns
        turns += 1
        if turns > TURNS * len(requests):
            raise AssertionError(f"{turns} turns, and {len(requests) - len(done)} of {len(requests)} requests are left")
        done.update((one.number, one) for one in ended)
        if until is not None and len(device.ops) > until:
            if any(touch.op.number == until for touch in device.log[looked:]):
                raise EnoughError
            looked = len(device.log)

    try:
        serve(engine, requests, trial.concurrency, each_turn=each_turn)
        engine.close()
    except StuckError as error:
        stuck = str(error)
        device.close()
    except EnoughError:
        device.close()
    return Observed(
        trial,
        requests,
        lines.header,
        lines.ops,
        lines.numbers,
        device.ops,
        device.log,
        rows,
        tokens,
        device.schedule,
        device.forced,
        done,
        stuck,
        noted[0].otherwise,
    )


class _Noted:
    """A `Forward` that says for whom it reads what."""

    def __init__(
        self,
        forward: Forward,
        engine: list[Engine],
        device: Simulated,
        rows: dict[int, tuple[Row, ...]],
        tokens: dict[int, list[int]],
        told: Mapping[int, list[int]],
    ) -> None:
        self._forward, self._engine, self._device = forward, engine, device
        self._rows, self._tokens, self._told = rows, tokens, told
        self.otherwise = False

    def __call__(self, batch: Batch, out: Any, step: int | None = None) -> Kernel:
        number = len(self._device.ops)
        who = {active.slot: active.number for active in self._engine[0].scheduler.running}
        self._rows[number] = tuple(self._row(batch, at, who[slot]) for at, slot in enumerate(batch.slots.tolist()))
        kernel = self._forward(batch, out, step)
        *parts, last = kernel.parts

        def end() -> None:
            last()
            if number in self._told:
                self.otherwise |= out.tolist() != self._told[number]
                out.copy_(out.new_tensor(self._told[number]))
            self._tokens[number] = out.tolist()

        return replace(kernel, parts=(*parts, end))

    def _row(self, batch: Batch, at: int, request: int) -> Row:
        model = self._forward.model
        size, slot = model.block_size, int(batch.slots[at])
        first = int(batch.first[at])
        last = first + int(batch.count[at]) - 1
        reads: list[int] = []
        begun: list[int] = []
        for number, group in enumerate(model.groups):
            table = batch.tables[number, slot]
            if batch.samples[at]:
                reads += table[group.seen_from(last) // size : last // size + 1].tolist()
            if first % size:
                begun.append(int(table[first // size]))
        return Row(request, tuple(reads), tuple(begun))
