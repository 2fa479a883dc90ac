"""What no design may hold, however it was made: values of the wrong kind, facets of another block, a pool of blocks
none of which is free at the start. `check` reads the text of a design; this looks before that whether it is one.

`p.design()` asks, and so does whoever is handed a `Design` by somebody else's code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from kvsan.model.design.check import check
from kvsan.model.design.guards import Assign, DesignError, Every, Guard, Is, Some, leaves, unknown
from kvsan.model.design.ir import Design
from kvsan.model.design.parts import Block, Submit, Work

OTHER_POOL = "other blocks"
"""The pool in which a trace of a schedule keeps the blocks that the design is not about."""


def sound(design: Design) -> None:
    """Raises `DesignError`."""
    wrong = next(_wrong(design, Design, ""), None)
    if wrong is not None:
        raise DesignError(f"{design.name}: {wrong}")
    if design.run_ahead != "any" and design.run_ahead < 0:
        raise DesignError(f'{design.name}: run_ahead is a number of steps from 0, or "any", not {design.run_ahead!r}')
    if design.pool == OTHER_POOL:
        raise DesignError(f"{design.name}: pool {OTHER_POOL!r} is where a trace keeps all other blocks; choose another")
    _facets(design)
    if not design.free.holds(design.start):
        fresh = ", ".join(f"{facet}={value}" for facet, value in design.start.items())
        raise DesignError(
            f"{design.name}: a fresh block has each facet's first value ({fresh}) and must be free, which is"
            f" {design.free}; write the values of a free block first"
        )
    check(design)


# ── kinds ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _hints(of: type) -> dict[str, Any]:
    return get_type_hints(of)


def _wrong(value: object, kind: Any, where: str) -> Iterator[str]:
    """What is of another kind than its field says; `kind` is an annotation."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        plain = [one for one in args if next(_wrong(value, one, where), None) is None]
        right, wanted = bool(plain), " or ".join(_called(one) for one in args)
    elif origin is Literal:
        right, wanted = value in args and type(value) in {type(one) for one in args}, " or ".join(map(repr, args))
    elif origin in (tuple, frozenset):
        right, wanted = isinstance(value, origin), f"a {origin.__name__}"
        if isinstance(value, tuple | frozenset) and right:
            if len(args) == 2 and args[1] is not ... and len(value) != len(args):
                right, wanted = False, f"{len(args)} values"
            for at, item in enumerate(value if right else ()):
                each = args[0] if origin is frozenset or args[-1] is ... else args[at]
                yield from _wrong(item, each, f"{where}[{at}]")
    elif kind is Guard:
        right, wanted = isinstance(value, Is | Every | Some), "a guard such as b.running & b.empty"
    else:
        right, wanted = isinstance(value, kind) and (kind is not int or not isinstance(value, bool)), _called(kind)
    if not right:
        yield f"{where} is {_shown(value)}, not {wanted}"
    elif is_dataclass(value) and not isinstance(value, type) and origin is None:
        for one in fields(value):
            named = f"{where}.{one.name}" if where else one.name
            yield from _wrong(getattr(value, one.name), _hints(type(value))[one.name], named)


def _called(kind: Any) -> str:
    plain: dict[Any, str] = {str: "a text", int: "a whole number", type(None): "None"}
    return plain.get(kind) or str(getattr(kind, "__name__", kind))


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # somebody else's object
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"a {type(value).__name__}"


# ── facets ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _facets(design: Design) -> None:
    """Every guard and every assignment speaks of this block's facets and their values."""
    values = {facet.name: facet.values for facet in design.facets}
    for where, part in _parts(design):
        asked = [(leaf.facet, leaf.values) for leaf in leaves(part)] if isinstance(part, Guard) else [
            (facet, (value,)) for facet, value in part
        ]  # fmt: skip
        for facet, named in asked:
            if facet not in values:
                raise DesignError(f"{where}: {unknown('facet', facet, values)}")
            for value in named:
                if value not in values[facet]:
                    raise DesignError(f"{where}: {unknown(f'value of {facet}', value, values[facet])}")


def _parts(design: Design) -> Iterator[tuple[str, Guard | Assign]]:
    yield "free", design.free
    for rule in design.rules:
        yield from ((rule.name, rule.when), (rule.name, rule.then))
    for item in (*design.step, *(job for thread in design.threads for job in thread.jobs)):
        if isinstance(item, Work):
            yield from ((item.name, guard) for guard in (item.reads, item.writes) if guard is not None)
        if isinstance(item, Submit | Block) and item.when is not None:
            yield item.name, item.when
        if isinstance(item, Work | Submit | Block):
            yield item.name, item.then
