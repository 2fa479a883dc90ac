"""Makes a long trace of a short one: copies of it, one after the other, written as they are made.

    python -m benchmarks.tile SOURCE OUT --ops 1000000

Each copy has events and tokens of its own, later times, and its `planned` moved along. Between two copies the engine
tidies up as it would between two days: what is allocated is freed, live events are dropped, and a token that nobody
took is taken by the thread that put it. So a copy starts as the recorded run did, and nothing is carried over that
would have to be kept.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from kvsan.model.ops import Blocks

Line = dict[str, Any]


def tile(source: Path, out: Path, ops: int) -> int:
    """Writes at least `ops` ops, in whole copies; gzip if the name ends so. Returns how many."""
    with gzip.open(source) as file:
        header, *lines = (msgspec.json.decode(line) for line in file)
    lines += _tidy(lines)
    copies = -(-ops // len(lines))
    with cast(BinaryIO, gzip.open(out, "wb", compresslevel=6) if out.suffix == ".gz" else out.open("wb")) as to:
        to.write(msgspec.json.encode(header | {"copies": copies}) + b"\n")
        for copy in range(copies):
            to.writelines(msgspec.json.encode(line) + b"\n" for line in _copy(lines, copy))
    return copies * len(lines)


def _copy(lines: list[Line], copy: int) -> Iterator[Line]:
    span = 1 + lines[-1]["t"] - lines[0]["t"]
    for line in lines:
        again = line | {"t": line["t"] + copy * span}
        for name in ("event", "token"):
            if name in line:
                again[name] = f"{line[name]}#{copy}"
        if line.get("planned") is not None:
            again["planned"] += copy * len(lines)
        yield again


def _tidy(lines: list[Line]) -> list[Line]:
    """What ends a copy."""
    used: dict[str, set[int]] = {}
    events: dict[str, str] = {}
    tokens: dict[str, str] = {}
    for line in lines:
        match line["op"]:
            case "alloc" | "touch":
                used.setdefault(line["pool"], set()).update(Blocks.parse(line["ids"]))
            case "free":
                used.setdefault(line["pool"], set()).difference_update(Blocks.parse(line["ids"]))
            case "record":
                events[line["event"]] = line["by"]
            case "drop":
                events.pop(line["event"], None)
            case "put":
                tokens[line["token"]] = line["by"]
            case "get":
                tokens.pop(line["token"], None)
    last = {"t": lines[-1]["t"]}
    return [
        *(last | {"op": "drop", "by": by, "event": event} for event, by in events.items()),
        *(last | {"op": "get", "by": by, "token": token} for token, by in tokens.items()),
        *(
            last | {"op": "free", "by": lines[0]["by"], "pool": pool, "ids": str(Blocks.of(sorted(blocks)))}
            for pool, blocks in used.items()
            if blocks
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ops", type=int, default=1_000_000)
    given = parser.parse_args()
    print(f"{tile(given.source, given.out, given.ops):,} ops in {given.out}")


if __name__ == "__main__":
    main()
