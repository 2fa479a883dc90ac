"""Who takes what the recorder logs, in this process or beside it, and who follows an engine's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kvsan.checker.attach.lines import Line
from kvsan.model.ops import Op, Stream, Sync

Ids = Any
"""A numpy array of ints, a sequence of ints, a range, or `Blocks`."""

Touched = tuple[Mapping[str, Ids], Mapping[str, Ids]]


class Follower(Protocol):
    """Follows an engine by its messages. It belongs to the recorder alone, and can be pickled: with a check beside the
    engine it goes to that process, which must be able to import its class.
    """

    def feed(self, message: Any) -> Touched:
        """What the access that this message announces reads and writes, by pool. Messages come in line order, and may
        have become lists where they were tuples or sets.
        """


class Beside(Protocol):
    """The process that works lines off in place of this one."""

    def pool(self, name: str, blocks: int) -> None: ...

    def stream(self, name: str, stream: Stream) -> None: ...

    def follow(self, name: str, follower: Follower) -> None: ...

    def lines(self, lines: list[Line]) -> None: ...

    def packed(self, lines: bytes) -> None:
        """The same, encoded already."""


class Sink(Protocol):
    """Takes what the recorder logs, always under the recorder's lock, ops in line order."""

    def pool(self, name: str, blocks: int) -> None: ...

    def stream(self, name: str, stream: Stream) -> None: ...

    def take(self, index: int, op: Op) -> None:
        """Op number `index`. May raise `KvsanHazard` once it has taken it."""

    def hold(self, index: int, op: Sync) -> None:
        """A blocking call was entered: its line stands here, and whether it counts is said later."""

    def settle(self, index: int, op: Op) -> None:
        """What line `index` became: the op that was held, or one that orders nothing because the call failed."""

    # A sink may also have `line(index, kind, fields)`, in place of `take` where it is the only one: it gets no op made.
