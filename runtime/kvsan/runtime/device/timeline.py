"""The streams of a simulated machine: what is queued, and which op of each stream may run.

The rule, CUDA's: a stream runs its ops one after the other. A record is complete when what came before it on its stream
is. A wait, which was bound to one record when it was called, holds up its stream until that is complete. All
streams are non-blocking ones: the legacy default stream is not here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvsan.runtime.device.tasks import Task


@dataclass(slots=True, eq=False)
class Record:
    """One call of record, numbered from 1 on. `polled` is how often it was polled in vain while `issued` stayed the
    same."""

    number: int
    stream: Stream
    at: int = 0
    done: bool = False
    polled: int = 0
    issued: int = 0
    waiters: list[Stream] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Wait:
    """A stream waits for a record."""

    record: Record
    at: int = 0


Node = Task | Record | Wait


@dataclass(slots=True, eq=False)
class Stream:
    """`head` is the task that may run now. `at` of a node is its position from the start of the run."""

    name: str
    queue: deque[Node] = field(default_factory=deque)
    issued: int = 0
    head: Task | None = None


class Timeline:
    """`held` says of a record that it may not be complete yet (a poll of it is going to answer False).

    `tasks` are those issued and not complete, `unread` those of them whose source may be read though it is not their
    turn (order `any`); both in order of issue, by number. `issued` counts all accesses.
    """

    def __init__(self, held: Callable[[Record], bool]) -> None:
        self.streams: dict[str, Stream] = {}
        self.tasks: dict[int, Task] = {}
        self.unread: dict[int, Task] = {}
        self.issued = 0
        self._held = held

    def add(self, stream: Stream, node: Node) -> None:
        """Queues it."""
        stream.issued += 1
        node.at = stream.issued
        if isinstance(node, Task):
            node.stream = stream.name
            self.tasks[node.number] = node
            if node.unread:
                self.unread[node.number] = node
        stream.queue.append(node)
        if len(stream.queue) == 1:
            self.advance(stream)

    def went_on(self, task: Task) -> None:
        """A part of the task ran, or of its source was read."""
        if task.number in self.unread and not task.unread:
            del self.unread[task.number]
        if not task.left:
            stream = self.streams[task.stream]
            stream.queue.popleft()
            del self.tasks[task.number]
            self.advance(stream)

    def advance(self, stream: Stream) -> None:
        """Takes records and waits off the queue as far as they are complete, here and on streams that waited."""
        todo = [stream]
        while todo:
            stream = todo.pop()
            stream.head = None
            while stream.queue:
                node = stream.queue[0]
                if isinstance(node, Task):
                    stream.head = node
                    break
                if isinstance(node, Record):
                    if self._held(node):
                        break
                    node.done = True
                    todo += node.waiters
                elif not node.record.done:
                    if stream not in node.record.waiters:
                        node.record.waiters.append(stream)
                    break
                stream.queue.popleft()

    def needs(self, node: Task | Record) -> dict[str, int]:
        """What has to be complete before the node is: of each stream, up to which position (its own included)."""
        name = node.stream if isinstance(node, Task) else node.stream.name
        out: dict[str, int] = {}
        todo = [(name, node.at)]
        while todo:
            name, at = todo.pop()
            if out.get(name, 0) >= at:
                continue
            out[name] = at
            for one in self.streams[name].queue:
                if one.at > at:
                    break
                if isinstance(one, Wait) and not one.record.done:
                    todo.append((one.record.stream.name, one.record.at))
        return out

    @property
    def heads(self) -> list[Task]:
        """What may run now, in the order in which the streams were made."""
        return [stream.head for stream in self.streams.values() if stream.head is not None]
