"""Guards: what must hold of a block, as frozen values that read like the sentence.

A block is described by facets (who owns it, what it holds, who pins it), each with a few values. A guard says
which values a rule or an op asks for: `b.running & b.empty`, `b.loading | b.abandoned`, `~b.pin.none`. It is
data, so it can be printed, hashed and enumerated. A wrong name fails where it is written, with the nearest
right one; `and`, `or` and `not`, which Python would evaluate at once, fail with what to write instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

Assign = tuple[tuple[str, str], ...]
"""What an action does to a block: one value for each facet that it changes."""


class DesignError(ValueError):
    """A design that cannot be read: what is wrong and what to write instead."""


def unknown(what: str, name: str, names: Iterable[str]) -> DesignError:
    """The error for a name that does not exist: the nearest one that does, else all of them."""
    known = sorted({str(one) for one in names})
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known) or 'none'}"
    return DesignError(f"no {what} {name!r}; {hint}")


@dataclass(frozen=True, slots=True)
class Facet:
    """One aspect of a block; the first value is what a fresh pool starts with."""

    name: str
    values: tuple[str, ...]


class Guard:
    """Base of the guards; combine them with `&`, `|` and `~`."""

    __slots__ = ()

    def holds(self, block: Mapping[str, str]) -> bool:
        """Whether a block with these facet values satisfies the guard."""
        raise NotImplementedError

    def __and__(self, other: Guard) -> Guard:
        return Every((*_parts(self, Every), *_parts(_guard(other, "&"), Every)))

    def __or__(self, other: Guard) -> Guard:
        return Some((*_parts(self, Some), *_parts(_guard(other, "|"), Some)))

    def __invert__(self) -> Guard:
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise DesignError(
            f"a guard ({self}) is not a truth value: write a & b for `a and b`, a | b for `a or b`, ~a for `not a`"
        )


@dataclass(frozen=True, slots=True, eq=True)
class Is(Guard):
    """The facet has one of these values. `domain` is all it could have, so that `~` can be read off. `other`: also a
    block that is held, whose facet has none of the domain's values until the fence is seen; so `~b.running` holds of
    it, and neither `b.running` nor `b.none` does."""

    facet: str
    values: tuple[str, ...]
    domain: tuple[str, ...]
    other: bool = False

    __bool__ = Guard.__bool__

    def holds(self, block: Mapping[str, str]) -> bool:
        value = block[self.facet]
        return value in self.values or (self.other and value not in self.domain)

    def __invert__(self) -> Guard:
        return Is(self.facet, tuple(v for v in self.domain if v not in self.values), self.domain, not self.other)

    def __str__(self) -> str:
        return f"{self.facet}={'/'.join(self.values) or 'never'}"


@dataclass(frozen=True, slots=True)
class Every(Guard):
    """All parts hold."""

    parts: tuple[Guard, ...]

    __bool__ = Guard.__bool__

    def holds(self, block: Mapping[str, str]) -> bool:
        return all(part.holds(block) for part in self.parts)

    def __invert__(self) -> Guard:
        return Some(tuple(~part for part in self.parts))

    def __str__(self) -> str:
        return " & ".join(f"({part})" if isinstance(part, Some) else str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Some(Guard):
    """At least one part holds."""

    parts: tuple[Guard, ...]

    __bool__ = Guard.__bool__

    def holds(self, block: Mapping[str, str]) -> bool:
        return any(part.holds(block) for part in self.parts)

    def __invert__(self) -> Guard:
        return Every(tuple(~part for part in self.parts))

    def __str__(self) -> str:
        return " | ".join(str(part) for part in self.parts)


def _guard(value: object, sign: str) -> Guard:
    if isinstance(value, Guard):
        return value
    raise DesignError(f"{value!r} is no guard; on both sides of {sign} stands something like b.running or b.pin.none")


def _parts(guard: Guard, kind: type[Every | Some]) -> tuple[Guard, ...]:
    return guard.parts if isinstance(guard, kind) else (guard,)


def leaves(guard: Guard) -> Iterator[Is]:
    """The single questions that the guard is made of."""
    if isinstance(guard, Is):
        yield guard
    elif isinstance(guard, Every | Some):
        for part in guard.parts:
            yield from leaves(part)


class FacetRef:
    """`b.owner`: its values are its attributes."""

    def __init__(self, facet: Facet) -> None:
        self._facet = facet

    def __repr__(self) -> str:
        values = " or ".join(f"b.{self._facet.name}.{value}" for value in self._facet.values)
        return f"the whole facet b.{self._facet.name}; write {values}"

    def __getattr__(self, name: str) -> Guard:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._facet.values:
            raise unknown(f"value of {self._facet.name}", name, self._facet.values)
        return Is(self._facet.name, (name,), self._facet.values)

    def __bool__(self) -> bool:
        raise DesignError(f"a facet ({self._facet.name}) is not a guard: name one of {', '.join(self._facet.values)}")


class BlockRef:
    """`b`: facets by name, and values by name where only one facet has such a value."""

    def __init__(self, facets: tuple[Facet, ...]) -> None:
        self._facets = facets

    def __repr__(self) -> str:
        return "the block itself"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for facet in self._facets:
            if facet.name == name:
                return FacetRef(facet)
        having = [facet for facet in self._facets if name in facet.values]
        if len(having) == 1:
            return Is(having[0].name, (name,), having[0].values)
        if having:
            ways = " or ".join(f"b.{facet.name}.{name}" for facet in having)
            raise DesignError(f"{name!r} is a value of several facets: write {ways}")
        names = [facet.name for facet in self._facets] + [v for facet in self._facets for v in facet.values]
        raise unknown("facet or value", name, names)


def assignment(guard: Guard | None, where: str) -> Assign:
    """What `then=` says: a conjunction of single values."""
    if guard is None:
        return ()
    if not isinstance(guard, Guard):
        raise DesignError(f"{where}: then= takes a value such as b.running, not {guard!r}")
    out: dict[str, str] = {}
    for part in _parts(guard, Every):
        if not isinstance(part, Is) or len(part.values) != 1:
            raise DesignError(f"{where}: then= must say one value a facet (b.running & b.empty), not {guard}")
        if out.setdefault(part.facet, part.values[0]) != part.values[0]:
            raise DesignError(f"{where}: then= gives {part.facet} two values")
    return tuple(out.items())


def asked(guard: Guard | None) -> frozenset[str]:
    """The facets that a guard names."""
    if isinstance(guard, Every | Some):
        return frozenset().union(*(asked(part) for part in guard.parts))
    return frozenset({guard.facet}) if isinstance(guard, Is) else frozenset()


COMBINATIONS = 100_000
"""How many combinations of facet values may decide a question about guards."""


def blocks(facets: tuple[Facet, ...], *guards: Guard | None) -> Iterable[dict[str, str]]:
    """Every combination of values of the facets that these guards name, the others as they are at first: enough to
    tell apart what the guards tell apart. Raises `DesignError` if there are more than can be gone through."""
    names = frozenset().union(*(asked(guard) for guard in guards))
    asks = [facet for facet in facets if facet.name in names]
    many = prod(len(facet.values) for facet in asks)
    if many > COMBINATIONS:
        raise DesignError(
            f"guards that depend on {', '.join(facet.name for facet in asks)} together: {many} combinations are more"
            f" than the {COMBINATIONS} that are gone through; ask about fewer facets at once"
        )
    start = {facet.name: facet.values[0] for facet in facets}
    for values in product(*(facet.values for facet in asks)):
        yield start | dict(zip((facet.name for facet in asks), values, strict=True))
