"""One choice of a design's host, and its text: a schedule is moves with blanks between, and plays again for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote

What = Literal["rule", "not-yet", "launch", "see", "unseen", "job", "collect"]


@dataclass(frozen=True, slots=True)
class Move:
    """One choice of the host.

    `rule`: the scheduler applies rule `of` to `block`, each poll answers yes. `not-yet`: it tries, and a poll answers
    no. `launch`: a step, with the `order`-th permutation of what has no fixed order, other threads doing the jobs
    `between` its items. `see`, `unseen`: the oldest step in flight is polled and is, or is not, done. `job`: another
    thread does the oldest job of that work. `collect`: the scheduler takes what other threads have published.

    As text: the parts with `/` between, names quoted as in a URL; a schedule is moves with blanks between.
    """

    what: What
    of: str = ""
    block: int = 0
    order: int = 0
    between: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.what:
            case "rule" | "not-yet":
                return f"{self.what}/{quote(self.of, safe='')}/{self.block}"
            case "job":
                return f"job/{quote(self.of, safe='')}"
            case "launch":
                parts = ["launch"]
                if self.order or self.between:
                    parts.append(str(self.order))
                return "/".join([*parts, *(quote(job, safe="") for job in self.between)])
            case _:
                return self.what

    @classmethod
    def parse(cls, text: str) -> Move:
        """Raises `ValueError`."""
        what, *rest = text.split("/")
        names = [unquote(part) for part in rest]
        try:
            if what in ("rule", "not-yet"):
                name, block = names
                return cls("rule" if what == "rule" else "not-yet", name, int(block))
            if what == "job":
                (name,) = names
                return cls("job", name)
            if what == "launch":
                return cls("launch", order=int(names[0]) if names else 0, between=tuple(names[1:]))
            if what in ("see", "unseen", "collect") and not names:
                return cls(what)  # type: ignore[arg-type]  # one of the three
        except ValueError:
            pass
        raise ValueError(
            f"{text!r} is no move; accepted: rule/NAME/BLOCK, not-yet/NAME/BLOCK, launch[/ORDER[/JOB…]], see, unseen,"
            " job/NAME, collect"
        )
