"""The known limits of docs/limits.md, each as a test: one that stops being a limit should be noticed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kvsan.checker import Report, check

HEADER: dict[str, Any] = {"kvsan_trace": 1, "pools": {"gpu": 8, "gpu.0": 8, "gpu.1": 8, "cpu": 8}}


def access(on: str | None, by: str = "h", **keys: Any) -> dict[str, Any]:
    return {"op": "access", "by": by, "label": "work", **({"on": on} if on else {}), **keys}


def w(on: str | None, by: str = "h", ids: str = "1", **keys: Any) -> dict[str, Any]:
    return access(on, by, writes={"gpu": ids}, **keys)


def r(on: str | None, by: str = "h", ids: str = "1", **keys: Any) -> dict[str, Any]:
    return access(on, by, reads={"gpu": ids}, **keys)


def op(kind: str, by: str = "h", **keys: Any) -> dict[str, Any]:
    return {"op": kind, "by": by, **keys}


def judged(*ops: dict[str, Any], **header: Any) -> Report:
    return check(HEADER | header, ops, all_pairs=True)


def kinds(report: Report) -> list[str]:
    return [hazard.kind.value for hazard in report.hazards]


def warned(report: Report) -> set[str]:
    return {warning.kind for warning in report.warnings}


def test_every_limit_named_in_the_docs_is_a_test() -> None:
    root = Path(__file__).parents[1]
    named = set(re.findall(r"`(test_\w+)`", (root / "docs" / "limits.md").read_text()))
    here = {name for name in globals() if name.startswith("test_")}
    assert named == here - {"test_every_limit_named_in_the_docs_is_a_test"}


def test_other_poll_results_are_another_trace() -> None:
    head, tail = (w("s"), op("record", on="s", event="e")), (w("t"),)
    assert kinds(judged(*head, op("poll", event="e", done=True), *tail)) == []
    assert kinds(judged(*head, op("poll", event="e", done=False), *tail)) == ["WAW"]


def test_luck_between_threads_is_a_warning_and_no_hazard() -> None:
    ops = (w("s"), op("record", on="s", event="e"), op("wait", "g", on="t", event="e"), w("t", "g"))
    report = judged(*ops)
    assert kinds(report) == []
    assert warned(report) == {"host-order"}
    handed = (*ops[:2], op("put", token="q"), op("get", "g", token="q"), *ops[2:])
    assert warned(judged(*handed)) == set()


def test_an_access_nobody_logged_is_believed_absent() -> None:
    assert judged(w("s")).verdict.name == "clean"
    assert judged(w("s"), unseen={"copies": 1}).verdict.name == "incomplete"


def test_unseen_edges_make_hazards_possible() -> None:
    report = judged(w("s"), w("t"), unseen={"edges": 3})
    assert report.verdict.name == "racy"
    assert [hazard.possible for hazard in report.hazards] == [True]
    assert [hazard.possible for hazard in judged(w("s"), w("t")).hazards] == [False]
    assert judged(w("s"), w("s"), unseen={"edges": 3}).verdict.name == "clean"


def test_a_block_is_reported_once_without_all() -> None:
    ops = (w("s"), w("t"), w("u"))
    assert len(check(HEADER, ops).hazards) == 1
    assert len(check(HEADER, ops, all_pairs=True).hazards) == 3


def test_parts_of_a_block_need_pools_of_their_own() -> None:
    layer = [access(s, writes={f"gpu.{n}": "1"}) for n, s in enumerate("st")]
    assert kinds(judged(w("s"), w("t"))) == ["WAW"], "two layers logged as one block seem to race"
    assert kinds(judged(*layer)) == []


def test_reading_what_was_never_written_is_no_race() -> None:
    assert kinds(judged(r("s"))) == []


def test_a_wait_for_nothing_is_still_issued() -> None:
    known = (w("s"), op("sync", stream="s"))
    report = judged(*known, op("wait", on="t", event="never"), w("t", "g"))
    assert kinds(report) == [], "t is behind what the thread knew that made the vacuous wait"
    assert "never-recorded" in warned(report)
    assert kinds(judged(*known, w("t", "g"))) == ["WAW"]


def test_a_record_on_the_legacy_stream_is_no_barrier() -> None:
    streams = {"legacy": {"kind": "legacy"}, "blocking": {"kind": "blocking"}, "s": {}}
    tail = (op("record", on="legacy", event="e"), op("wait", on="s", event="e"), w("s"))
    assert kinds(judged(w("blocking"), *tail, streams=streams)) == ["WAW"]
    action = access("legacy", reads={"cpu": "0"})
    assert kinds(judged(w("blocking"), action, *tail, streams=streams)) == []


def test_a_drop_is_no_touch() -> None:
    handed = (op("put", token="q"), op("get", "g", token="q"))
    ops = (w("s"), op("record", on="s", event="e"), *handed, op("poll", "g", event="e", done=True))
    assert warned(judged(*ops, op("drop", event="e"))) == set()
    assert warned(judged(*ops, op("record", on="s", event="e"))) == {"host-order"}


def test_alloc_without_free_is_no_reuse() -> None:
    alloc, free = (op(kind, pool="gpu", ids="1") for kind in ("alloc", "free"))
    assert [h.reuse for h in judged(w("s"), alloc, w("t")).hazards] == [False]
    assert [h.reuse for h in judged(w("s"), free, alloc, w("t")).hazards] == [True]


def test_a_promised_stream_must_carry_an_access() -> None:
    only_records = (w("s"), op("record", on="t", event="e"))
    report = judged(*only_records, expects={"streams": ["s", "t"]})
    assert report.verdict.name == "incomplete"
    assert judged(*only_records, w("t", ids="2"), expects={"streams": ["s", "t"]}).verdict.name == "clean"
