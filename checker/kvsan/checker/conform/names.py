"""How the names of a trace are matched with those of a design: by name, by `--map`, and nothing guessed.

- pool, stream, label (of an access: the name of a work) and event go by name; what differs is given as
  `--map stream:cuda7=load`, `--map label:copy_h2d=load`, `--map pool:gpu.0=gpu`, `--map event:ev3=load_done`.
- an event or token may be one of several objects of the same name: `load_done#17` is an object of `load_done`. Of an
  event `per="block"`, `used#17` is the object of block 17, if all objects of that event end in the id of a block.
- the scheduler's thread is called `host` in a design; in a trace it is the thread `host`, else `h0`, else
  `--map thread:NAME=host`. Further threads go by name too. If exactly one thread of the design and one of the trace
  are left over they are taken for each other, and the report says so: traces number threads, designs name them.
- a queue of a design is a token of that name (`jobs#3`); tokens of other names are matched by who puts and gets them.

What no op of the trace names is not an error: the design's stream was not used. A `--map` of something that the
trace does not have, or to something that the design does not have, and a trace none of whose streams is the design's
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from kvsan.checker.trace.header import Header
from kvsan.model.design import MAIN, Design
from kvsan.model.design.guards import unknown
from kvsan.model.ops import Access, Get, Op, Poll, Put, Record, Sync, Wait

KINDS = ("pool", "stream", "label", "event", "thread", "queue")

MANY = 12
"""More names than these are not listed in an error."""


class NamesError(ValueError):
    """Names that cannot be matched: what is wrong and what is accepted, in one line."""


@dataclass(frozen=True, slots=True)
class Names:
    """What the names of a trace are in the design, and the names in the trace of what the design has one of."""

    maps: Mapping[str, Mapping[str, str]]
    pool: str
    """The trace's name of the design's pool."""
    main: str
    """The trace's name of the thread that the design calls `host`."""
    named: frozenset[str]
    """Events of the design that the trace records under their name: their records are checked one by one."""
    by_block: frozenset[str] = frozenset()
    """Events of the design whose objects end in the id of their block."""
    notes: tuple[str, ...] = ()
    _seen: dict[tuple[str, str], str] = field(default_factory=dict, compare=False)

    def stream(self, name: str) -> str:
        return self.maps["stream"].get(name, name)

    def label(self, name: str) -> str:
        return self.maps["label"].get(name, name)

    def thread(self, name: str) -> str:
        return self.maps["thread"].get(name, name)

    def event(self, name: str) -> str:
        """The design's name of an event object."""
        return self._base("event", name)

    def block(self, obj: str) -> int | None:
        """The block whose object it is, if the name says so."""
        return int(obj.rsplit("#", 1)[1]) if self.event(obj) in self.by_block else None

    def queue(self, token: str) -> str:
        """The design's name of a token's queue."""
        return self._base("queue", token)

    def _base(self, kind: str, name: str) -> str:
        found = self._seen.get((kind, name))
        if found is None:
            maps = self.maps[kind]
            base = name.rsplit("#", 1)[0]
            found = self._seen[kind, name] = maps.get(name, maps.get(base, base))
        return found


def parse_maps(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Reads `stream:cuda7=load`. Raises `NamesError`."""
    out: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for text in texts:
        kind, colon, rest = text.partition(":")
        trace, equals, design = rest.rpartition("=")
        if not (colon and equals and trace and design) or kind not in KINDS:
            raise NamesError(
                f"--map {text!r} cannot be read; accepted: KIND:NAME-IN-TRACE=NAME-IN-DESIGN, such as"
                f" stream:cuda7=load, with KIND one of {', '.join(KINDS)}"
            )
        out[kind][trace] = design
    return out


def match(design: Design, header: Header, ops: Sequence[Op], maps: Mapping[str, Mapping[str, str]]) -> Names:
    """The names of this trace in this design. Raises `NamesError`."""
    full = {kind: dict(maps.get(kind, {})) for kind in KINDS}
    _known(design, full)
    pools = [name for name in header.pools if full["pool"].get(name, name) == design.pool]
    if len(pools) != 1:
        have = ", ".join(header.pools) or "none"
        raise NamesError(
            f"the design is about blocks of pool {design.pool!r}, and the trace has"
            f" {f'{len(pools)} pools for it' if pools else f'no such pool (it has {have})'};"
            f" accepted: --map pool:NAME={design.pool} for one of them"
        )
    streams = dict.fromkeys(header.streams)
    streams.update(dict.fromkeys(op.on for op in ops if isinstance(op, Access | Record | Wait) and op.on is not None))
    wanted = [stream.name for stream in design.streams]
    if wanted and streams and not any(full["stream"].get(name, name) in wanted for name in streams):
        raise NamesError(
            f"none of the trace's streams ({', '.join(streams)}) is one of the design's ({', '.join(wanted)});"
            f" accepted: --map stream:{next(iter(streams))}={wanted[0]}"
        )
    threads = list(dict.fromkeys(op.by for op in ops))
    main = _main(threads, full["thread"])
    _appear(full, header, streams, threads, ops)
    full["thread"][main] = MAIN
    notes = []
    mine = [thread.name for thread in design.threads]
    left = [name for name in mine if name not in {full["thread"].get(one, one) for one in threads}]
    over = [name for name in threads if full["thread"].get(name, name) not in (MAIN, *mine)]
    if len(left) == len(over) == 1:
        full["thread"][over[0]] = left[0]
        notes.append(f"thread {over[0]} of the trace is taken for thread {left[0]} of the design")
    plain = Names(full, pools[0], main, frozenset())
    events = {event.name for event in design.events}
    named = frozenset(plain.event(op.event) for op in ops if isinstance(op, Record)) & events
    size = header.pools[pools[0]]
    loose = {plain.event(op.event) for op in ops if isinstance(op, Record) and not _numbered(op.event, size)}
    by_block = frozenset(e.name for e in design.events if e.per == "block" and e.name in named - loose)
    notes += [f"stream {name} of the design does not appear" for name in wanted
              if name not in {plain.stream(one) for one in streams}]  # fmt: skip
    return Names(full, pools[0], main, named, by_block, tuple(notes))


def _numbered(obj: str, size: int) -> bool:
    number = obj.rpartition("#")[2]
    return "#" in obj and number.isascii() and number.isdecimal() and len(number) < 10 and int(number) < size


def _known(design: Design, maps: Mapping[str, Mapping[str, str]]) -> None:
    """A map to a name that the design does not have would silently match nothing."""
    have = {
        "pool": [design.pool],
        "stream": [stream.name for stream in design.streams],
        "label": [work.name for work in design.works()],
        "event": [event.name for event in design.events],
        "thread": [MAIN, *(thread.name for thread in design.threads)],
        "queue": list(design.queues),
    }
    for kind, pairs in maps.items():
        for trace, name in pairs.items():
            if name not in have[kind]:
                what = "work" if kind == "label" else kind
                raise NamesError(f"--map {kind}:{trace}={name}: in {design.name}: {unknown(what, name, have[kind])}")


def _appear(
    maps: Mapping[str, Mapping[str, str]],
    header: Header,
    streams: Iterable[str],
    threads: Iterable[str],
    ops: Sequence[Op],
) -> None:
    """Nor does a map of a name that the trace does not have match anything."""
    for kind, pairs in maps.items():
        if not pairs:
            continue
        have: dict[str, None]
        match kind:
            case "pool":
                have = dict.fromkeys(header.pools)
            case "stream":
                have = dict.fromkeys(streams)
            case "thread":
                have = dict.fromkeys(threads)
            case "label":
                have = dict.fromkeys(op.label for op in ops if isinstance(op, Access) and op.label)
            case "event":
                have = dict.fromkeys(op.event for op in ops if isinstance(op, Record | Wait | Poll | Sync) and op.event)
            case _:
                have = dict.fromkeys(op.token for op in ops if isinstance(op, Put | Get))
        bases = dict.fromkeys(name.rsplit("#", 1)[0] for name in have)
        plain = have if kind in ("pool", "stream", "thread", "label") else {**have, **bases}
        for trace, name in pairs.items():
            if trace not in plain and not (kind == "thread" and name == MAIN):
                known = list(have if plain is have else bases)
                if len(known) > MANY:  # names of events may be numbers, a thousand of them
                    known = get_close_matches(trace, known, n=1) or [*sorted(known)[:MANY], f"… ({len(known)} in all)"]
                raise NamesError(f"--map {kind}:{trace}={name}: in the trace: {unknown(kind, trace, known)}")


def _main(threads: Sequence[str], maps: Mapping[str, str]) -> str:
    given = [name for name, is_now in maps.items() if is_now == MAIN]
    if len(given) > 1:
        raise NamesError(f"--map thread: {' and '.join(given)} cannot both be {MAIN}")
    if given and threads and given[0] not in threads:
        raise NamesError(f"--map thread:{given[0]}={MAIN}: the trace has no such thread; it has {', '.join(threads)}")
    for name in (*given, MAIN, "h0"):
        if name in threads:
            return name
    if len(threads) > 1:
        raise NamesError(
            f"which thread runs the scheduler? the trace has {', '.join(threads)};"
            f" accepted: --map thread:{threads[0]}={MAIN}"
        )
    return threads[0] if threads else MAIN
