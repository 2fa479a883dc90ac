"""An exploration kept in a file, so that it can go on where it was.

What is in it depends on the design, the scope and how it is explored, and on the version of kvsan: a file of another
one is refused, because states are known by their digest alone. It is written beside its place and then put there, so
that an interruption leaves the old one.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from kvsan.checker.explore.found import Progress
from kvsan.checker.explore.key import DIGEST
from kvsan.checker.explore.schedule import fingerprint
from kvsan.checker.explore.scope import Scope
from kvsan.checker.explore.search import Search
from kvsan.checker.explore.tracker import Pair
from kvsan.model.design import Design
from kvsan.model.hazard import Kind

FORM = 1
EVERY = 20.0
"""Seconds between two checkpoints."""


class CheckpointError(Exception):
    """The file is no checkpoint of this exploration, or cannot be read."""


class _File(msgspec.Struct, array_like=True):
    form: int
    asked: str
    states: int
    moves: int
    depth: int
    runs: int
    seconds: float
    found: list[tuple[str, str, str, str]]
    done: list[str]
    seen: bytes = b""
    level: list[str] = []
    at: int = 0
    next: list[str] = []
    sizes: list[int] = []


def asked(design: Design, scope: Scope, mode: str, seed: int) -> str:
    """What a checkpoint belongs to."""
    return (
        f"{mode}, {scope}, {'seed ' + str(seed) + ', ' if mode == 'random' else ''}{fingerprint(design)}, "
        + version("kvsan")
    )


def save(path: Path, about: str, progress: Progress, search: Search | None) -> None:
    """Raises `OSError`."""
    file = _File(
        FORM,
        about,
        progress.states,
        progress.moves,
        progress.depth,
        progress.runs,
        progress.seconds,
        [(pair.kind.value, pair.earlier, pair.later, ",".join(words)) for pair, words in progress.found.items()],
        sorted(progress.done),
    )
    if search is not None:
        file.seen = b"".join(sorted(search.seen))
        file.level, file.at, file.next = _texts(search.level), search.at, _texts(search.next)
        file.sizes = search.sizes
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(zlib.compress(msgspec.msgpack.encode(file), 1))
    os.replace(beside, path)


def load(path: Path, about: str, progress: Progress) -> Search | None:
    """Sets `progress` to what the file says, and returns the search of an exhaustive exploration. Raises
    `CheckpointError`."""
    try:
        file = msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=_File)
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(f"{path}: no checkpoint of kvsan explore ({error})") from None
    if file.form != FORM or file.asked != about:
        raise CheckpointError(f"{path}: belongs to another exploration ({file.asked}); this one is: {about}")
    if len(file.seen) % DIGEST:
        raise CheckpointError(f"{path}: is damaged")
    progress.states, progress.moves, progress.depth = file.states, file.moves, file.depth
    progress.runs, progress.seconds, progress.done = file.runs, file.seconds, set(file.done)
    try:
        progress.found = {Pair(Kind(kind), a, b): tuple(words.split(",")) for kind, a, b, words in file.found}
    except ValueError:
        raise CheckpointError(f"{path}: is damaged") from None
    if progress.mode == "random":
        return None
    seen = {file.seen[at : at + DIGEST] for at in range(0, len(file.seen), DIGEST)}
    return Search(progress, seen, _paths(file.level), file.at, _paths(file.next), file.sizes)


def _texts(paths: Sequence[tuple[str, ...]]) -> list[str]:
    return [",".join(path) for path in paths]


def _paths(texts: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(text.split(",")) if text else () for text in texts]
