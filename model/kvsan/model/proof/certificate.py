"""Why a design is free of races, in a form that can be read, stored, and checked by who trusts nobody.

A certificate is a list of clauses: *if* the block and its engine stand so, and a read (or a write) of the block
happened, *then* one of these contexts knows that it is complete. All clauses together hold at the start, every
action keeps them, and they leave no access unordered behind a conflicting one. `certify` finds them, `recheck`
asks z3 whether that is so.

Clauses only ever say that something *is* known: the rules are unions and copies, so more knowledge never harms.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from kvsan.model.design import Design
from kvsan.model.proof.actions import FENCE, LAST_USE, event_name

Did = Literal["read", "write", "access"]
"""What the tracked access does: `access` is either."""

Parts = tuple[tuple[str, tuple[str, ...]], ...]
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Clause:
    """`where`: the values that each named part of the control state has, one of them; `unless`: the values that it has
    none of. A part that is not named may have any. `did`: which tracked accesses are meant. `knows`: contexts
    ("stream" | "host" | "event" | "queue" | "use", name), one of which knows it."""

    where: Parts
    did: Did
    knows: tuple[tuple[str, str], ...]
    unless: Parts = ()

    def __str__(self) -> str:
        where = [f"{_is(name)} {_or(values)}" for name, values in self.where]
        where += [f"{_is(name)} {_nor(values)}" for name, values in self.unless]
        happened = {"read": "a read of the block", "write": "a write of the block", "access": "an access to the block"}
        conditions = [*where, f"{happened[self.did]} happened"]
        knows = _or([name_of(context) for context in self.knows]) if self.knows else "nobody"
        return f"if {' and '.join(conditions)}, then {knows} knows it"


@dataclass(frozen=True, slots=True)
class Certificate:
    """`design`: the hash of the design that it is about (`fingerprint`). `proves`: what follows from it."""

    design: str
    proves: tuple[str, ...]
    clauses: tuple[Clause, ...]

    def words(self) -> tuple[str, ...]:
        """One line a clause."""
        return tuple(str(clause) for clause in self.clauses)

    def to_json(self) -> str:
        document = {
            "kvsan-certificate": FORMAT,
            "design": self.design,
            "proves": self.proves,
            "clauses": [
                {"where": dict(c.where), "unless": dict(c.unless), "did": c.did, "knows": c.knows} for c in self.clauses
            ],
        }
        return json.dumps(document, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Raises `ValueError` that says what is wrong."""
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("kvsan-certificate") != FORMAT:
            raise ValueError(f'not a certificate: it says "kvsan-certificate": {FORMAT} at its top')
        try:
            return cls(
                str(document["design"]),
                tuple(str(claim) for claim in document["proves"]),
                tuple(_clause(clause) for clause in document["clauses"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a damaged certificate: {error}") from None


def _clause(document: dict[str, Any]) -> Clause:
    did = document["did"]
    if did not in ("read", "write", "access"):
        raise ValueError(f"did is read, write or access, not {did!r}")
    knows = tuple((str(kind), str(name)) for kind, name in document["knows"])
    return Clause(_parts(document["where"]), did, knows, _parts(document["unless"]))


def _parts(document: dict[str, list[str]]) -> Parts:
    return tuple((str(name), tuple(str(value) for value in values)) for name, values in document.items())


def _is(name: str) -> str:
    return name if name.endswith(" is") else f"{name} is"


def name_of(context: tuple[str, str]) -> str:
    """A context in words."""
    kind, name = context
    if kind == "stream":
        return f"the {name} stream"
    if kind == "host":
        return "the host" if name == "host" else f"the {name} thread"
    if kind == "queue":
        return f"the queue {name!r}"
    return {LAST_USE: "the event of the last use", FENCE: "the event of the fence"}.get(event_name(context) or "", name)


def fingerprint(design: Design) -> str:
    """A hash of what a proof reads of the design: the same on every machine, blind to titles and expectations."""
    told = {"title", "reference", "about", "note", "expected", "assumes", "name"}
    plain = {field.name: _plain(getattr(design, field.name)) for field in fields(design) if field.name not in told}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, *(_plain(getattr(value, field.name)) for field in fields(value))]
    if isinstance(value, frozenset):
        return sorted(str(one) for one in value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, bool | int | None) else str(value)


def _or(words: tuple[str, ...] | list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _nor(words: tuple[str, ...]) -> str:
    return f"not {words[0]}" if len(words) == 1 else f"neither {', '.join(words[:-1])} nor {words[-1]}"
