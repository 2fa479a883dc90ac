"""What the merged trace calls things: names that two logs share for different things are qualified by the process.

- A host thread and a stream belong to one process: a name that two logs use becomes `<process>/<name>` in all of them.
- A device name should be unique across processes (`TRACE.md`). Where it is not, each process counted its own devices
  from 0, so it becomes `<process>:<device>`. That is right even if both mean the same card: a device synchronization
  covers the streams of the calling process, and a legacy stream blocks those of its own process.
- An event that one log records and others wait for, poll or synchronize with is one IPC event. One that several logs
  record is several events, qualified like a thread. A `drop` by a log that did not record the event closes a handle, no
  more, so it is qualified too and the event lives on.
- Pools and tokens mean the same everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from os import fsencode
from typing import Any, TypeVar

import numpy as np

from kvsan.checker.merge_logs import Hashes, Log
from kvsan.checker.trace import Expects, Header, TraceError, Unseen
from kvsan.model.ops import Device, Stream

K = TypeVar("K", bound=Device)
NAMED = 3
"""So many names stand in a note."""


@dataclass(slots=True)
class Names:
    """How one log's names are written in the merged trace.

    `events` are to be qualified, `closed` only where they are dropped, `foreign` are another log's IPC events; `taken`
    are all names of events anywhere.
    """

    process: str
    threads: Mapping[str, str]
    streams: Mapping[str, str]
    devices: Mapping[Device, str]
    events: Hashes
    closed: Hashes
    foreign: Hashes
    taken: Hashes

    def rewrite(self, line: dict[str, Any]) -> None:
        """Puts the names of the merged trace into an op line."""
        by = self.threads.get(line["by"])
        if by is not None:
            line["by"] = by
        for key in ("on", "stream"):
            if line.get(key) in self.streams:
                line[key] = self.streams[line[key]]
        event, device = line.get("event"), line.get("device")
        if event is not None and (self.events or self.closed):
            if event in self.events or (line["op"] == "drop" and event in self.closed):
                line["event"] = self.event(event)
        elif device is not None and line["op"] == "sync":
            line["device"] = self.devices.get(device, device)

    def event(self, name: str) -> str:
        """The qualified name of an event."""
        qualified = f"{self.process}/{name}"
        while qualified in self.taken:
            qualified += "'"
        return qualified


def name_processes(logs: Sequence[Log], notes: list[str]) -> list[str]:
    """A name for each log: its header's `process`, else the one that its streams agree on, else `p` and position."""
    given = [_process(log.header) for log in logs]
    names: list[str] = []
    for position, said in enumerate(given):
        name = said or f"p{position}"
        unique, number = name, 2
        while unique in names or (unique != said and unique in given):
            unique, number = f"{name}-{number}", number + 1
        if unique != name and said:
            notes.append(f"two logs call their process {name}: {logs[position].path} is taken for another, {unique}")
        names.append(unique)
    return names


def _process(header: Header) -> str:
    said = header.other.get("process")
    if said is None:
        of_streams = {more["process"] for more in header.more.values() if isinstance(more.get("process"), Device)}
        said = of_streams.pop() if len(of_streams) == 1 else None
    return str(said) if isinstance(said, Device) else ""


def name_all(logs: Sequence[Log], notes: list[str]) -> list[Names]:
    """The names of every log in the merged trace; what was qualified is said in `notes`."""
    processes = name_processes(logs, notes)
    threads = _qualify([log.threads for log in logs], processes, "/", "host thread", notes)
    streams = _qualify([log.streams for log in logs], processes, "/", "stream", notes)
    devices = _qualify([log.devices for log in logs], processes, ":", "device", notes)
    recorded = [log.recorded.sorted() for log in logs]
    every, counts = np.unique(np.concatenate(recorded), return_counts=True)
    many = every[counts > 1]
    others = [names.sorted() for log in logs for names in (log.used, log.dropped)]
    taken = Hashes(np.unique(np.concatenate([every, *others])))
    out = []
    for at, log in enumerate(logs):
        mine = np.union1d(np.union1d(recorded[at], log.used.sorted()), log.dropped.sorted())
        theirs = np.setdiff1d(every, recorded[at], assume_unique=True)
        closed = np.intersect1d(log.dropped.sorted(), theirs, assume_unique=True)
        foreign = np.setdiff1d(np.intersect1d(log.used.sorted(), theirs, assume_unique=True), many)
        events = Hashes(np.intersect1d(mine, many, assume_unique=True))
        mapped = (processes[at], threads[at], streams[at], devices[at])
        out.append(Names(*mapped, events, Hashes(closed), Hashes(foreign), taken))
    return out


def _qualify(
    used: Sequence[Collection[K]], processes: Sequence[str], mark: str, what: str, notes: list[str]
) -> list[dict[K, str]]:
    """For each log the new names of what another log names alike."""
    counts = Counter(name for names in used for name in names)
    taken = {str(name) for name in counts}
    out: list[dict[K, str]] = []
    for process, names in zip(processes, used, strict=True):
        new: dict[K, str] = {}
        for name in names:
            if counts[name] > 1:
                qualified = f"{process}{mark}{name}"
                while qualified in taken:
                    qualified += "'"
                taken.add(qualified)
                new[name] = qualified
        out.append(new)
    shared = [str(name) for name, count in counts.items() if count > 1]
    if shared:
        some = ", ".join(shared[:NAMED]) + (", ..." if len(shared) > NAMED else "")
        form = f"{processes[0]}{mark}{shared[0]}"
        notes.append(f"{what} {some}: named alike in several logs, so each is qualified by its process ({form})")
    return out


def merged_header(logs: Sequence[Log], names: Sequence[Names]) -> Header:
    """The header of all logs together. Raises `TraceError` where two logs disagree about a pool.

    A hook that several logs expect must have fired in each as often as that log says. Fired more often in one and less
    in another, it is expected once more than it fired: what one process did does not make up for another.
    """
    pools: dict[str, int] = {}
    streams: dict[str, Stream] = {}
    more: dict[str, dict[str, Any]] = {}
    fired: Counter[str] = Counter()
    for log, name in zip(logs, names, strict=True):
        header = log.header
        for pool, size in header.pools.items():
            if pools.setdefault(pool, size) != size:
                other = next(first.path for first in logs if pool in first.header.pools)
                wrong = f'has {size} blocks in pool "{pool}", and {other} has {pools[pool]}'
                raise TraceError(log.path, 1, wrong, "one size for a pool of all processes, or two names")
        for stream in (*header.streams, *log.undeclared):
            declared = header.streams.get(stream, Stream())
            new = name.streams.get(stream, stream)
            streams[new] = Stream(name.devices.get(declared.device, declared.device), declared.kind)
            more[new] = {**header.more.get(stream, {}), "process": name.process}
        fired.update(header.hooks)
    return Header(
        pools=pools,
        streams=streams,
        attached=any(log.header.attached for log in logs),
        expects=Expects(
            tuple(
                dict.fromkeys(
                    name.streams.get(stream, stream)
                    for log, name in zip(logs, names, strict=True)
                    for stream in log.header.expects.streams
                )
            ),
            _expected_hooks(logs, fired),
        ),
        hooks=dict(fired),
        unseen=Unseen(sum(log.header.unseen.copies for log in logs), sum(log.header.unseen.edges for log in logs)),
        other={
            "merged": [
                {
                    **log.header.other,
                    "file": fsencode(log.path).decode(errors="replace"),
                    "process": name.process,
                    "ops": log.ops,
                    "start": "attached" if log.header.attached else "fresh",
                }
                for log, name in zip(logs, names, strict=True)
            ]
        },
        more=more,
    )


def _expected_hooks(logs: Sequence[Log], fired: Mapping[str, int]) -> dict[str, int]:
    expected: Counter[str] = Counter()
    short: dict[str, None] = {}
    for log in logs:
        for hook, count in log.header.expects.hooks.items():
            expected[hook] += count
            if log.header.hooks.get(hook, 0) < count:
                short[hook] = None
    for hook in short:
        expected[hook] = max(expected[hook], fired.get(hook, 0) + 1)
    return dict(expected)
