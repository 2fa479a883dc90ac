"""Clean, Racy, Incomplete: what makes which, what goes before what, and the exit status over several traces."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from kvsan.checker import Exit, check
from kvsan.checker.verdict import worst

POOLS = {"kvsan_trace": 1, "pools": {"gpu": 4}}
ONE = {"op": "access", "by": "h", "on": "s", "label": "one", "writes": {"gpu": "1"}}
OTHER = {"op": "access", "by": "h", "on": "t", "label": "other", "writes": {"gpu": "1"}}


@pytest.mark.parametrize(
    ("header", "ops", "verdict", "why"),
    [
        ({}, [ONE], "clean", []),
        ({}, [], "incomplete", ["no access was logged"]),
        ({}, [{"op": "put", "by": "h", "token": "t"}], "incomplete", ["no access was logged"]),
        ({}, [{**ONE, "writes": {"gpu": ""}}], "incomplete", ["no access was logged"]),
        ({"expects": {"streams": ["s"]}}, [ONE], "clean", []),
        (
            {"expects": {"streams": ["t"]}},
            [ONE, {**OTHER, "writes": {"gpu": ""}}],
            "incomplete",
            ["expected stream t carried no access"],
        ),
        ({"expects": {"streams": ["s", "load"]}}, [ONE], "incomplete", ["expected stream load never appeared"]),
        ({"expects": {"hooks": {"copy": 1}}}, [ONE], "incomplete", ["hook copy never fired"]),
        (
            {"expects": {"hooks": {"copy": 3}}, "hooks": {"copy": 2}},
            [ONE],
            "incomplete",
            ["expected hook copy fired 2 of 3 times"],
        ),
        ({"expects": {"hooks": {"copy": 3}}, "hooks": {"copy": 3, "other": 0}}, [ONE], "clean", []),
        ({"unseen": {"copies": 2}}, [ONE], "incomplete", ["2 copies were noticed and not logged"]),
        ({"unseen": {"copies": 0, "edges": 9}}, [ONE], "clean", []),
        ({"unseen": {"copies": 2}}, [ONE, OTHER], "racy", ["2 copies were noticed and not logged"]),
        ({"start": "attached"}, [ONE], "clean", []),
    ],
)
def test_verdict(header: dict[str, Any], ops: list[dict[str, Any]], verdict: str, why: list[str]) -> None:
    for every in (False, True):
        document = check(POOLS | header, ops, all_pairs=every).document()
        assert (document["verdict"], document["why"]) == (verdict, why)


def test_exit_status_over_several_traces() -> None:
    """2 bad input, else 1 hazards, else 3 incomplete, else 0, in whatever order they come."""
    precedence = [Exit.BAD_INPUT, Exit.RACY, Exit.INCOMPLETE, Exit.CLEAN]
    assert [int(status) for status in precedence] == [2, 1, 3, 0]
    for start in range(4):
        for order in permutations(precedence[start:]):
            assert worst(order) == precedence[start]
