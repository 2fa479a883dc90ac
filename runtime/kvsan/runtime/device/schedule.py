"""A schedule: what a simulated machine chose, as one printable string that replays for ever.

Three lists of small numbers, in the order in which they were needed: what the device ran next (`choices`), what polls
answered and about which record (`polls`), which host thread took a turn (`turns`); and a check byte every `EVERY`
calls, so that a replay notices when it is not asked the same. The first is the device's, the others are the host's.

The string does not depend on a random generator, on a policy or on the version of a library: it is the numbers
themselves (LEB128), compressed (RFC 1950) and in the URL alphabet of RFC 4648, behind a version.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

PREFIX = "kvsim1."
EVERY = 16
"""Calls to a check byte."""


class ScheduleError(RuntimeError):
    """The machine was not asked what the schedule answers: the engine, its inputs or its host choices differ."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`calls`: how many calls it covers. `complete`: it ends with the machine's `close`; one that does not is a
    beginning, after which the machine goes on by its seed and policy. `choices` is None if only the host's are kept.

    A poll is `2 * r + answer`: `r` is the number of the record that the event named, counted from 1 for the run's first
    one; 0 if there was none. A turn is the thread's number from 1 on, 0 ends the list of one `turns` call.
    """

    choices: tuple[int, ...] | None
    polls: tuple[int, ...]
    turns: tuple[int, ...]
    checks: bytes
    calls: int
    complete: bool

    @property
    def host(self) -> Schedule:
        """Only the host's choices."""
        return replace(self, choices=None)

    def last_false(self) -> dict[int, int]:
        """For each record that was polled False: how many polls had been made then, with that one."""
        return {poll // 2: at for at, poll in enumerate(self.polls, 1) if not poll % 2}

    def __str__(self) -> str:
        near = [_zigzag(poll - before) for before, poll in pairwise((0, *self.polls))]
        lists = (self.choices or (), near, self.turns, self.checks)
        head = (self.calls, self.complete + 2 * (self.choices is not None))
        numbers = (*head, *(number for part in lists for number in (len(part), *part)))
        packed = zlib.compress(bytes(_varints(numbers)), 9)
        return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Raises `ValueError` that says what is wrong."""
        text = text.strip()
        if not text.startswith(PREFIX):
            raise ValueError(f"a schedule begins with {PREFIX!r}, this with {text[:10]!r}")
        body = text[len(PREFIX) :]
        try:
            packed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            numbers = iter(list(_numbers(zlib.decompress(packed))))
            calls, flags = next(numbers), next(numbers)
            lists = [tuple(next(numbers) for _ in range(next(numbers))) for _ in range(4)]
            polls = tuple(accumulate((near >> 1) ^ -(near & 1) for near in lists[1]))
            checks = bytes(lists[3])
        except (binascii.Error, zlib.error, RuntimeError, StopIteration, ValueError) as error:
            raise ValueError(f"not a whole schedule: {len(body)} characters after {PREFIX!r} do not unpack") from error
        return cls(lists[0] if flags & 2 else None, polls, lists[2], checks, calls, bool(flags & 1))


def _zigzag(number: int) -> int:
    return 2 * number if number >= 0 else -2 * number - 1


def _varints(numbers: Iterable[int]) -> Iterator[int]:
    for number in numbers:
        rest = number
        while rest > 0x7F:
            yield rest & 0x7F | 0x80
            rest >>= 7
        yield rest


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("the last number is cut")


class Tape:
    """A list of numbers that is written, and first read if there is an old one, which is only a beginning unless it is
    `complete`.
    """

    def __init__(self, what: str, old: tuple[int, ...] | None, complete: bool) -> None:
        self.what, self.old, self._complete = what, old, complete
        self.made: list[int] = []

    @property
    def reading(self) -> bool:
        """Whether the next number is an old one."""
        return self.old is not None and (self._complete or len(self.made) < len(self.old))

    def read(self, where: str, options: int) -> int:
        """The old number here, below `options`. Raises `ScheduleError`."""
        assert self.old is not None
        at = len(self.made)
        if at >= len(self.old):
            raise ScheduleError(f"{where}: the schedule has {len(self.old)} {self.what}, and one more is asked for")
        number = self.old[at]
        if number >= options:
            raise ScheduleError(
                f"{where}: {self.what} {at} of the schedule is {number}, and here are only {options} options"
            )
        self.made.append(number)
        return number

    def write(self, number: int) -> int:
        """Notes it."""
        self.made.append(number)
        return number


class Checks:
    """A rolling check of what was called."""

    def __init__(self, old: Schedule | None) -> None:
        self.old = old
        self.calls = 0
        self.where = "before the first call"
        self._crc = 0
        self._made = bytearray()

    @property
    def made(self) -> bytes:
        """The check bytes so far; the last one covers the calls since the last full `EVERY`."""
        return bytes(self._made) + bytes([self._crc & 0xFF])

    def call(self, text: str) -> None:
        """One more call. Raises `ScheduleError` where the check fails, at most `EVERY` calls late."""
        self.where = f"call {self.calls} ({text})"
        self.calls += 1
        self._crc = zlib.crc32(text.encode(), self._crc)
        old = self.old
        if old is not None and old.complete and self.calls > old.calls:
            raise ScheduleError(f"{self.where}: the schedule ends after {old.calls} calls")
        if self.calls % EVERY == 0:
            self._check(self.calls - EVERY)
            self._made.append(self._crc & 0xFF)
        elif old is not None and self.calls == old.calls:
            self._check(self.calls - self.calls % EVERY)

    def _check(self, since: int) -> None:
        at = len(self._made)
        if self.old is None or self.calls > self.old.calls or at >= len(self.old.checks):
            return
        if self.old.checks[at] != self._crc & 0xFF:
            raise ScheduleError(
                f"calls {since} to {self.calls - 1}: these are not the calls of the schedule; the last is {self.where}"
            )

    def close(self) -> None:
        """Raises `ScheduleError` if the schedule goes on."""
        old = self.old
        if old is not None and self.calls < old.calls:
            raise ScheduleError(f"closed after {self.calls} calls, and the schedule has {old.calls}")
