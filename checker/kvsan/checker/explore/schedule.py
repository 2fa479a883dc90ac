"""A schedule as one short line that replays for ever.

    kx1/vllm-after-46278/5f0c1a9e/2/allocate.0,launch,launch,request-finished.0,allocate-for-a-load.0,launch

Version of the form, the design's name, its fingerprint, the number of blocks, and the choices (`moves.py`). It needs no
quoting in a shell and no file beside it. Choices are names, not numbers: a design that was edited may still have them,
and a mended one should. The fingerprint says whether it is the design of then; if not, a replay says so and goes on.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from kvsan.checker.explore.moves import slug
from kvsan.model.design import Design

VERSION = "kx1"
_PROSE = ("name", "title", "reference", "about", "note", "assumes", "claims", "expected")
_FORM = re.compile(r"[a-z0-9:+.\-]+\Z")


class ScheduleError(ValueError):
    """The text is no schedule: what is wrong and what is accepted."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Choices for a design."""

    design: str
    fingerprint: str
    blocks: int
    moves: tuple[str, ...]

    def __str__(self) -> str:
        return "/".join((VERSION, self.design, self.fingerprint, str(self.blocks), ",".join(self.moves)))

    @classmethod
    def of(cls, design: Design, blocks: int, moves: tuple[str, ...]) -> Schedule:
        return cls(slug(design.name), fingerprint(design), blocks, moves)

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Raises `ScheduleError`."""
        parts = text.strip().split("/")
        form = f"{VERSION}/DESIGN/FINGERPRINT/BLOCKS/CHOICE,CHOICE…"
        if len(parts) != 5:
            raise ScheduleError(f"a schedule has five parts with / between, not {len(parts)}; accepted: {form}")
        version, design, print_, blocks, moves = parts
        if version != VERSION:
            raise ScheduleError(f"schedule of version {version[:20]!r}; accepted: {VERSION}")
        if not (blocks.isdecimal() and 1 <= int(blocks) <= 1 << 16):
            raise ScheduleError(f"{blocks[:20]!r} is no number of blocks from 1; accepted: {form}")
        words = tuple(moves.split(",")) if moves else ()
        for word in words:
            if not _FORM.match(word):
                raise ScheduleError(f"{word[:40]!r} is no choice; accepted: letters, digits and : + . -")
        return cls(design, print_, int(blocks), words)


def fingerprint(design: Design) -> str:
    """Eight digits of a hash over all that the design orders and does; its prose and claims do not count."""
    told = {one.name: _plain(getattr(design, one.name)) for one in fields(design) if one.name not in _PROSE}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        # what stands as it does if nobody says anything is left out, so that a new field changes no old fingerprint
        kept = {
            one.name: _plain(getattr(value, one.name))
            for one in fields(value)
            if getattr(value, one.name) != one.default
        }
        return [type(value).__name__, kept]
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, frozenset):
        return sorted(str(_plain(one)) for one in value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value
