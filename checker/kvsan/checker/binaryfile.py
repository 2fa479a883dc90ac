"""A session's trace as a binary log: what `tracefile.py` is for JSON lines, with the same promises.

Until `close` its header says that kvsan did not stay on, so that a run that was cut off is never Clean. An error of the
file is raised at the next line, which turns kvsan off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvsan.checker.trace.header import Expects, Header
from kvsan.model.ops import Op, Stream, Sync
from kvsan.runtime.binary import STAYED_ON, Held, Log


class BinaryTrace:
    """A `Sink` of the recorder. `header` says what the header has to hold now."""

    def __init__(self, path: str, header: Callable[[], Header]) -> None:
        self.path = path
        self._header = header
        self._held: dict[int, Held] = {}
        self.log = Log(path, header=self._document)

    def pool(self, name: str, blocks: int) -> None:
        self.log.pool(name, blocks)

    def stream(self, name: str, stream: Stream) -> None:
        self.log.stream(name, stream)

    def take(self, index: int, op: Op) -> None:
        self.log.write(op)
        if self.log.fault is not None:
            raise self.log.fault

    def hold(self, index: int, op: Sync) -> None:
        self._held[index] = self.log.hold(op)

    def settle(self, index: int, op: Op) -> None:
        self.log.settle(self._held.pop(index), done=isinstance(op, Sync))

    def flush_now(self) -> None:
        """What a signal handler may call. Raises `OSError`."""
        self.log.flush_now()

    def close(self, *, whole: bool = True) -> None:
        """`whole`: the session saw the run to its end. Raises `OSError`."""
        self.log.close(whole=whole)

    def abandon(self) -> None:
        """Lets go of the file as it is: in a forked child it is the parent's."""
        self.log.abandon()

    def _document(self, whole: bool, lost: int) -> Mapping[str, Any]:
        header = self._header()
        expects = Expects(header.expects.streams, {**header.expects.hooks, STAYED_ON: 1})
        hooks = {**header.hooks, STAYED_ON: int(whole)}
        unseen = replace(header.unseen, edges=header.unseen.edges + lost)
        return replace(header, expects=expects, hooks=hooks, unseen=unseen).document()
