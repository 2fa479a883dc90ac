"""The four fence modes of a bisection: which of its two transfers an engine makes wait for the forward, beside what its
design says. Edges of the design's own language, put in by `Design.adding`."""

from __future__ import annotations

from typing import Literal, get_args

from kvsan.model.design import Design, DesignError, Edge, EdgeKind
from kvsan.runtime.roles import roles

Fence = Literal["none", "store", "load", "all"]
MODES: tuple[Fence, ...] = get_args(Fence)


def fenced(design: Design, fence: Fence) -> Design:
    """The design with that wait put in front of its stores, its loads, or both; those that it has it keeps. Raises
    `DesignError` if it has no such transfer, or no event that is recorded behind every forward."""
    if fence == "none":
        return design
    found = roles(design)
    asked = {"store": found.store} if fence == "store" else {"load": found.load} if fence == "load" else {}
    if fence == "all":
        asked = {"store": found.store, "load": found.load}
    edges = []
    for name, work in asked.items():
        if work is None:
            if fence == "all" and any(asked.values()):
                continue
            raise DesignError(f"{design.name} has no {name} that could wait")
        edges.append(Edge(EdgeKind.WAIT, work.name, behind_forward(design)))
    return design.adding(*edges)


def behind_forward(design: Design) -> str:
    """The one event object of the design that is recorded behind each forward. Raises `DesignError`."""
    forwards = roles(design).forwards
    if forwards:
        for name in forwards[-1].signals:
            if design.event(name).per == "design":
                return name
    raise DesignError(
        f'{design.name} records no event per="design" behind its forward, so nothing can be told to wait for it;'
        " give the last forward one among its signals"
    )
