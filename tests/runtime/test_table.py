"""The arrays say what the guards say, for every design, every guard and every state."""

from __future__ import annotations

import pytest

from kvsan.model.design import Design, DesignError, Guard, Protocol
from kvsan.model.design.guards import Every, Some
from kvsan.model.designs import load, names
from kvsan.runtime.table import HELD, Table


def guards(design: Design) -> list[Guard]:
    found = [design.free, ~design.free, *(rule.when for rule in design.rules), *(~rule.when for rule in design.rules)]
    for work in design.works():
        found += [guard for guard in (work.reads, work.writes) if guard is not None]
    return [*found, Every(tuple(found[:2])), Some(tuple(found[:3]))]


@pytest.mark.parametrize("name", names())
def test_truth_and_after_are_the_designs(name: str) -> None:
    design = load(name)
    table = Table(design)
    blocks = [table.facets(code) for code in range(table.states)]
    assert [table.code(block) for block in blocks] == list(range(table.states))
    for guard in guards(design):
        assert table.truth(guard).tolist() == [guard.holds(block) for block in blocks], str(guard)
    for rule in design.rules:
        assert [table.facets(code) for code in table.after(rule.then)] == [b | dict(rule.then) for b in blocks]
        held = {facet: HELD for facet, _ in rule.then}
        assert [table.facets(code) for code in table.after(rule.then, hold=True)] == [b | held for b in blocks]
        back = [b | {f: v for f, v in rule.then if b[f] == HELD} for b in blocks]
        assert [table.facets(code) for code in table.returned(rule.then)] == back


def test_too_many_states_are_refused_by_number() -> None:
    p = Protocol("large")
    b = p.block(**{f"f{i}": "a | b | c" for i in range(9)})
    p.free(b.f0.a)
    with p.scheduler() as may:
        may("allocate", when=b.f0.a, then=b.f0.b)
    with pytest.raises(DesignError, match="has 262144 states; an engine runs at most 65536"):
        Table(p.design())
