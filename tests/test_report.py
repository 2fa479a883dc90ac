"""The words of the text reports, held by golden files (`pytest --golden` rewrites them, for a review of the diff).

Apart from the tests of the logic: prose may improve, properties may not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsan.checker import check, open_trace
from kvsan.checker.demo import recorded, run
from kvsan.checker.explain import explain
from kvsan.checker.report import picture, text
from kvsan.checker.report.page import Page, clean, count, short
from kvsan.checker.trace import TraceWriter, from_objects

GOLDEN = Path(__file__).parent / "golden"

HEADER: dict[str, Any] = {
    "kvsan_trace": 1,
    "pools": {"gpu": 64, "cpu": 64},
    "streams": {"compute": {}, "load": {}, "store": {}},
    "unseen": {"edges": 1},
    "expects": {"streams": ["zeroing"]},
}
OPS: list[dict[str, Any]] = [
    {"op": "access", "by": "h0", "on": "compute", "label": "forward", "step": 1, "writes": {"gpu": "1-9"}},
    {"op": "record", "by": "h0", "on": "compute", "event": "done"},
    {"op": "put", "by": "h0", "token": "job"},
    {"op": "get", "by": "h1", "token": "job"},
    {"op": "wait", "by": "h1", "on": "store", "event": "done"},
    {
        "op": "access",
        "by": "h1",
        "on": "store",
        "label": "store",
        "order": "any",
        "batch": True,
        "planned": 2,
        "reads": {"gpu": "1-4"},
        "writes": {"cpu": "1-3,3"},
        "site": "copy.py:41",
        "owner": "req-7",
    },
    {"op": "access", "by": "h0", "on": "compute", "label": "forward", "step": 2, "reads": {"gpu": "1-9"}},
    {"op": "free", "by": "h0", "pool": "gpu", "ids": "5-9"},
    {"op": "alloc", "by": "h0", "pool": "gpu", "ids": "8-9"},
    {
        "op": "access",
        "by": "h1",
        "on": "load",
        "label": "load",
        "planned": 2,
        "reads": {"cpu": "40"},
        "writes": {"gpu": "7-9"},
    },
    {"op": "wait", "by": "h1", "on": "load", "event": "nowhere"},
    {"op": "wait", "by": "h1", "on": "store", "event": "done"},
    {"op": "access", "by": "h0", "label": "read back", "reads": {"cpu": "1"}},
]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "example.jsonl"
    trace = from_objects(HEADER, OPS)
    with TraceWriter(path, trace.header) as out:
        for op in trace:
            out.write(op)
    return path


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Any:
    def same(name: str, words: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--golden"):
            path.write_text(words + "\n")
        assert words + "\n" == path.read_text(), f"{path} differs; if the new words are meant: pytest --golden"

    return same


@pytest.mark.parametrize("width", [80, 120])
def test_check(width: int, example: Path, golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(example.parent)
    report = check(example.name, lifetime=True)
    golden(f"check-{width}", text.render(report, width))
    golden(f"check-all-{width}", text.render(check(example.name, all_pairs=True), width))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(("earlier", "later"), [(0, 5), (6, 9), (0, 6), (5, 12), (5, 9)])
def test_explain(earlier: int, later: int, width: int, example: Path, golden: Any) -> None:
    found = explain(lambda: open_trace(example), earlier, later)
    golden(f"explain-{earlier}-{later}-{width}", picture.render(found, width))


def test_demo(golden: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(100)
    golden("demo-100", capsys.readouterr().out.rstrip("\n"))


def test_the_readme_shows_what_the_demo_prints() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    demo = (GOLDEN / "demo-100.txt").read_text()
    shown = [
        line.strip()
        for block in readme.split("\n\n")
        if block.startswith("      ") and ("WAR*" in block or "on reused" in block or "fix " in block)
        for line in block.splitlines()
    ]
    assert len(shown) >= 10
    for line in shown:
        assert line in demo, line


def test_every_hazard_kind_is_in_the_golden_files() -> None:
    words = "".join(path.read_text() for path in GOLDEN.glob("*.txt"))
    for kind in ("RAW", "WAR", "WAW", "BATCH", "GEN", "possible", "never-recorded", "redundant-wait", "not seen"):
        assert kind in words, kind


def test_explain_finds_the_way_when_there_is_one() -> None:
    with recorded("store") as path:
        ordered = explain(lambda: open_trace(path), 2070, 2137)
        racing = explain(lambda: open_trace(path), 2096, 2137)
    assert not ordered.hazards
    (way,) = ordered.ordered
    assert way.ops[0] == 2070
    assert way.ops[-1] == 2137
    assert not racing.ordered
    assert {hazard.kind for hazard in racing.hazards} == {"WAR", "WAW"}
    assert {op for hazard in racing.hazards for op in (hazard.freed, hazard.allocated)} <= set(racing.life)


def test_words() -> None:
    assert count(1, "block") == "1 block"
    assert count(1014, "block") == "1,014 blocks"
    assert short("1-4,9", 44) == "1-4,9"
    assert short("1-4,9,11,13", 8) == "1-4,9,…"
    assert clean("a\x1b[2J\nb") == "a?[2J?b"
    page = Page(44)
    page.table(["a", "b"], [["x" * 60, "1"]], right=(1,))
    assert max(map(len, str(page).splitlines())) <= 44
