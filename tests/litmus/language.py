"""The litmus language: one schedule and its variants in one readable text (README.md has the grammar).

`parse` turns a text into cases. A case is one variant: a trace in the JSON form of TRACE.md (header and
operations) and the findings that its author expects, no more and no less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

BASE = "base"
PAIR_KINDS = frozenset({"RAW", "WAR", "WAW"})
SINGLE_KINDS = frozenset({"BATCH", "GEN"})
WARNING_KINDS = frozenset({"never-recorded", "redundant-wait", "own-stream", "host-order"})
STREAM_KINDS = frozenset({"nonblocking", "blocking", "legacy", "per-thread"})
ORDERS = frozenset({"stream", "any", "call"})
VERBS = frozenset({"record", "wait", "sync", "poll", "put", "get", "alloc", "free", "touch", "drop"})

_WORD = r"[A-Za-z_][\w.-]*"
_IDS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_NAME = re.compile(_WORD)
_TAGGED = re.compile(r"\[([^\]]*)\]\s*(.*)")
_EXPECT = re.compile(r"expect(?:\s+([^:]*))?:\s*(.*)")
_OPERATION = re.compile(rf"({_WORD}):\s+(.*)")
_MARKED = re.compile(rf"(.*\S)\s+as\s+({_WORD})")

Json = dict[str, Any]


class LitmusError(ValueError):
    """A litmus text is wrong; the message starts with file and line."""


class Finding(NamedTuple):
    """A hazard on one block, accesses by label. BATCH and GEN have no earlier access."""

    kind: str
    pool: str
    block: int
    earlier: str | None
    later: str
    reuse: bool = False

    def __str__(self) -> str:
        pair = self.later if self.earlier is None else f"{self.earlier} -> {self.later}"
        return f"{self.kind} {self.pool} {self.block} {pair}{' reuse' if self.reuse else ''}"


@dataclass(frozen=True)
class Case:
    """One variant of a litmus: its trace and what must be found in it."""

    litmus: str
    variant: str
    header: Json
    ops: list[Json]
    findings: frozenset[Finding]
    warnings: frozenset[str]
    at: dict[str, int]  # label of an access -> index of its operation

    @property
    def silent(self) -> bool:
        return not self.findings


@dataclass(frozen=True)
class Litmus:
    """One file: its name, the subjects that it covers, and its variants (the base is `""`)."""

    name: str
    covers: tuple[str, ...]
    cases: dict[str, Case]


class _Place(NamedTuple):
    source: str
    line: int

    def fail(self, problem: str) -> NoReturn:
        raise LitmusError(f"{self.source}:{self.line}: {problem}")


class _Line(NamedTuple):
    place: _Place
    only: frozenset[str]  # the variants that have this line; empty: all of them
    without: frozenset[str]
    text: str

    def belongs_to(self, variant: str) -> bool:
        return (not self.only or variant in self.only) and variant not in self.without


@dataclass
class _Expected:
    place: _Place
    clean: bool = False
    items: list[tuple[_Place, list[str]]] = field(default_factory=list)
    warnings: set[str] = field(default_factory=set)


def load(path: Path) -> Litmus:
    return parse(path.read_text(encoding="utf-8"), path.name)


def parse(text: str, source: str) -> Litmus:
    """Parse a litmus text; `source` names it in messages."""
    covers: list[str] = []
    lines: list[_Line] = []
    expected: dict[str, _Expected] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.split("#", 1)[0].strip()
        place = _Place(source, number)
        if not content:
            continue
        if content.startswith("covers "):
            covers += content.split()[1:]
        elif match := _EXPECT.fullmatch(content):
            _expect(place, match[1], match[2], expected)
        else:
            lines.append(_tagged(place, content))
    whole = _Place(source, 1)
    tagged = {name for line in lines for name in line.only | line.without}
    if BASE not in expected:
        whole.fail("no `expect:` for the base variant")
    for line in lines:
        for name in sorted(line.only | line.without):
            if name not in expected:
                line.place.fail(f"variant {name!r} has no `expect {name}: ...`")
    for name, expectation in expected.items():
        if name != BASE and name not in tagged:
            expectation.place.fail(f"no line is tagged with variant {name!r}")
    cases = {
        name: _Builder(source, name, [line for line in lines if line.belongs_to(name)]).case(expectation)
        for name, expectation in expected.items()
    }
    return Litmus(source.removesuffix(".litmus"), tuple(covers), cases)


def expand(ids: str) -> list[int]:
    """`"1-3,9"` -> `[1, 2, 3, 9]`, repeats kept."""
    return list(_expand(ids))


def _expand(ids: str) -> Iterator[int]:
    for part in ids.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _tagged(place: _Place, content: str) -> _Line:
    match = _TAGGED.fullmatch(content)
    if not match:
        return _Line(place, frozenset(), frozenset(), content)
    names = [name.strip() for name in match[1].split(",")]
    negated = [name.startswith("-") for name in names]
    if any(negated) != all(negated):
        place.fail(f"tag [{match[1]}] mixes variants with and without `-`")
    bare = frozenset(name.removeprefix("-") for name in names)
    for name in sorted(bare):
        if not _NAME.fullmatch(name) or name == BASE:
            place.fail(f"{name!r} is no name for a variant")
    if negated[0]:
        return _Line(place, frozenset(), bare, match[2])
    return _Line(place, bare, frozenset(), match[2])


def _expect(place: _Place, names: str | None, body: str, expected: dict[str, _Expected]) -> None:
    for name in [part.strip() for part in (names or BASE).split(",")]:
        if not _NAME.fullmatch(name):
            place.fail(f"{name!r} is no name for a variant")
        expectation = expected.setdefault(name, _Expected(place))
        for item in body.split(";"):
            words = item.replace(",", " ").split() if item.split()[:1] == ["warn"] else item.split()
            match words:
                case ["clean"]:
                    expectation.clean = True
                case ["warn", _, *_]:
                    for kind in words[1:]:
                        if kind not in WARNING_KINDS:
                            place.fail(f"unknown warning {kind!r}; known: {', '.join(sorted(WARNING_KINDS))}")
                        expectation.warnings.add(kind)
                case [kind, *_] if kind in PAIR_KINDS | SINGLE_KINDS:
                    expectation.items.append((place, words))
                case _:
                    place.fail(f"cannot read expectation {item.strip()!r}")


class _Builder:
    """Builds the trace of one variant from the lines that belong to it."""

    def __init__(self, source: str, variant: str, lines: list[_Line]) -> None:
        self.source = source
        self.variant = variant
        self.pools: dict[str, int] = {}
        self.streams: dict[str, Json] = {}
        self.attached = False
        self.ops: list[Json] = []
        self.labels: dict[str, int] = {}
        self.marks: dict[str, int] = {}
        self.tokens: set[str] = set()
        for line in lines:
            self._line(line.place, line.text)

    def case(self, expected: _Expected) -> Case:
        place = expected.place
        if expected.clean == bool(expected.items):
            place.fail(f"variant {self.variant!r} must expect either `clean` or hazards")
        if not self.labels:
            place.fail(f"variant {self.variant!r} has no access")
        findings: set[Finding] = set()
        for where, words in expected.items:
            for finding in self._findings(where, words):
                if finding in findings:
                    where.fail(f"expected twice: {finding}")
                findings.add(finding)
        header: Json = {"kvsan_trace": 1, "pools": self.pools, "streams": self.streams}
        if self.attached:
            header["start"] = "attached"
        header["litmus"] = f"{self.source} [{self.variant}]"
        name = self.source.removesuffix(".litmus")
        warnings = frozenset(expected.warnings)
        return Case(name, self.variant, header, self.ops, frozenset(findings), warnings, self.labels)

    # Expectations.

    def _findings(self, place: _Place, words: list[str]) -> Iterator[Finding]:
        match words:
            case [kind, pool, ids, earlier, "->", later] if kind in PAIR_KINDS:
                labels, reuse = [earlier, later], False
            case [kind, pool, ids, earlier, "->", later, "reuse"] if kind in PAIR_KINDS:
                labels, reuse = [earlier, later], True
            case [kind, pool, ids, later] if kind in SINGLE_KINDS:
                labels, reuse = [later], False
            case _:
                place.fail(
                    f"cannot read expectation {' '.join(words)!r}; accepted: `KIND pool ids label -> label`,"
                    " the same with `reuse`, `BATCH pool ids label`, `GEN pool ids label`"
                )
        for label in labels:
            if label not in self.labels:
                place.fail(f"variant {self.variant!r} has no access {label!r}")
        self._block_ids(place, pool, ids)
        for block in expand(ids):
            yield Finding(kind, pool, block, labels[0] if len(labels) == 2 else None, labels[-1], reuse)

    # Lines.

    def _line(self, place: _Place, text: str) -> None:
        match text.split():
            case ["pool", name, size] if size.isdecimal():
                if name in self.pools:
                    place.fail(f"pool {name!r} is declared twice")
                self.pools[name] = int(size)
            case ["stream", name, *rest]:
                if name in self.streams:
                    place.fail(f"stream {name!r} is declared twice")
                self.streams[name] = self._stream(place, rest)
            case ["start", "attached"]:
                self.attached = True
            case _:
                operation = _OPERATION.fullmatch(text)
                if not operation:
                    accepted = "`pool`, `stream`, `start attached`, `thread: operation`"
                    place.fail(f"cannot read {text!r}; accepted: {accepted}")
                body = operation[2]
                if marked := _MARKED.fullmatch(body):
                    body = marked[1]
                    if marked[2] in self.marks:
                        place.fail(f"mark {marked[2]!r} is set twice in variant {self.variant!r}")
                    self.marks[marked[2]] = len(self.ops)
                words = body.split()
                op = self._verb(place, words) if words[0] in VERBS else self._access(place, words)
                self.ops.append({"t": 1000 * len(self.ops), "op": op.pop("op"), "by": operation[1], **op})

    def _stream(self, place: _Place, words: list[str]) -> Json:
        described: Json = {}
        rest = list(words)
        if rest and rest[0] in STREAM_KINDS:
            described["kind"] = rest.pop(0)
        if len(rest) == 2 and rest[0] == "dev":
            described["device"] = _device(rest[1])
            rest = []
        if rest:
            kinds = ", ".join(sorted(STREAM_KINDS))
            place.fail(f"cannot read stream {' '.join(words)!r}; accepted: a kind ({kinds}), then `dev X`")
        return described

    def _verb(self, place: _Place, words: list[str]) -> Json:
        match words:
            case ["record" | "wait" as verb, event, "on", stream]:
                return {"op": verb, "on": self._on(place, stream), "event": event}
            case ["sync", "event", event]:
                return {"op": "sync", "event": event}
            case ["sync", "stream", stream]:
                return {"op": "sync", "stream": self._on(place, stream)}
            case ["sync", "device", device]:
                return {"op": "sync", "device": _device(device)}
            case ["poll", event, "true" | "false" as done]:
                return {"op": "poll", "event": event, "done": done == "true"}
            case ["put", token]:
                if token in self.tokens:
                    place.fail(f"token {token!r} is put twice in variant {self.variant!r}")
                self.tokens.add(token)
                return {"op": "put", "token": token}
            case ["get", token]:
                if token not in self.tokens and not self.attached:
                    place.fail(f"token {token!r} is not put before this line in variant {self.variant!r}")
                return {"op": "get", "token": token}
            case ["alloc" | "free" | "touch" as verb, pool, ids]:
                return {"op": verb, "pool": pool, "ids": self._block_ids(place, pool, ids)}
            case ["drop", event]:
                return {"op": "drop", "event": event}
        place.fail(f"cannot read {' '.join(words)!r}")

    def _access(self, place: _Place, words: list[str]) -> Json:
        label, rest = words[0], words[1:]
        if not _NAME.fullmatch(label):
            place.fail(f"{label!r} is no label")
        if label in self.labels:
            place.fail(f"variant {self.variant!r} has two accesses {label!r}; a label names one access")
        op: Json = {"op": "access", "label": label}
        while rest:
            match rest:
                case ["on", stream, *rest]:
                    op["on"] = self._on(place, stream)
                case ["reads" | "writes" as side, pool, ids, *rest]:
                    blocks = {pool: self._block_ids(place, pool, ids)}
                    while len(rest) >= 2 and _IDS.fullmatch(rest[1]) and rest[0] in self.pools:
                        blocks[rest[0]] = self._block_ids(place, rest[0], rest[1])
                        rest = rest[2:]
                    op[side] = blocks
                case ["order", order, *rest] if order in ORDERS:
                    op["order"] = order
                case ["step", step, *rest] if step.isdecimal():
                    op["step"] = int(step)
                case ["owner", owner, *rest]:
                    op["owner"] = owner
                case ["batch", *rest]:
                    op["batch"] = True
                case ["planned", mark, *rest]:
                    if mark not in self.marks:
                        place.fail(f"no earlier line is marked `as {mark}` in variant {self.variant!r}")
                    op["planned"] = self.marks[mark]
                case _:
                    place.fail(f"cannot read {' '.join(rest)!r} of access {label!r}")
        if not {"reads", "writes"} & op.keys():
            place.fail(f"access {label!r} touches no block")
        self.labels[label] = len(self.ops)
        return op

    def _on(self, place: _Place, stream: str) -> str:
        if stream not in self.streams:
            place.fail(f"stream {stream!r} is not declared; declared: {', '.join(self.streams) or 'none'}")
        return stream

    def _block_ids(self, place: _Place, pool: str, ids: str) -> str:
        if pool not in self.pools:
            place.fail(f"pool {pool!r} is not declared; declared: {', '.join(self.pools) or 'none'}")
        if not _IDS.fullmatch(ids):
            place.fail(f"{ids!r} are no block ids; accepted: ranges such as 1-4,9")
        if max(expand(ids), default=0) >= self.pools[pool]:
            place.fail(f"pool {pool!r} has blocks 0-{self.pools[pool] - 1}, not {ids}")
        return ids


def _device(text: str) -> int | str:
    return int(text) if text.isdecimal() else text
