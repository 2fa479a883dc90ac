"""`kvsan conform`: names, what is too little to say, the command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvsan.checker.cli import cli
from kvsan.checker.conform import Conformance, NamesError, conform, parse_maps
from kvsan.checker.demo import recorded
from kvsan.checker.trace import from_objects
from kvsan.model.designs import load

HEADER = {"kvsan_trace": 1, "pools": {"gpu": 4}, "streams": {"compute": {}, "load": {}, "store": {}}}


def op(kind: str, by: str = "h0", **keys: Any) -> dict[str, Any]:
    return {"op": kind, "by": by, **keys}


def access(on: str, label: str, **touched: str) -> dict[str, Any]:
    blocks = {mode: {"gpu": ids} for mode, ids in touched.items()}
    return {"op": "access", "by": "h0", "on": on, "label": label, **blocks}


def forward(**touched: str) -> dict[str, Any]:
    return access("compute", "forward", **touched)


RUN = [
    op("alloc", pool="gpu", ids="0"),
    forward(writes="0"),
    op("record", on="compute", event="e1"),
    forward(reads="0"),
    op("record", on="compute", event="e2"),
    op("wait", on="store", event="e2"),
    access("store", "store", reads="0"),
    op("record", on="store", event="s1"),
    op("poll", event="s1", done=True),
    op("free", pool="gpu", ids="0"),
]


def held(
    ops: Sequence[Mapping[str, Any]], design: str = "vllm-symmetric-barrier", *maps: str, **header: Any
) -> Conformance:
    return conform(from_objects({**HEADER, **header}, ops), load(design), parse_maps(maps))


def test_a_run_that_conforms_says_what_it_did_not_exercise() -> None:
    found = held(RUN)
    assert found.verdict == "conforms", found.line()
    assert found.works == {"forward": 2, "store": 1}
    assert found.edges == {"store.after(compute_done)": 1}
    assert found.unused_works == ("load",)
    assert "load finished" in found.unused_rules
    assert "allocate" in found.rules
    assert found.unused_edges == ("load.after(compute_done)",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({5: None}, "op 5: store on store reads gpu 0: store.after(compute_done): missing wait"),
        ({5: op("sync", event="e2")}, "op 6: store on store reads gpu 0: store.after(compute_done): missing wait"),
        ({2: None, 4: None, 5: op("wait", on="store", event="e1")}, "waits for nothing"),
        ({3: None, 5: op("wait", on="store", event="e1"), 8: None}, "op 7: free gpu 0: one step early"),
        ({5: op("wait", on="store", event="e1")}, "op 5 waits for what was recorded at op 2"),
        ({8: op("poll", event="s1", done=False)}, "'store finished' needs a poll or sync of store_done"),
        ({0: op("touch", pool="gpu", ids="0"), 1: forward(reads="0")}, "op 0: touch gpu 0: expected a free block"),
        ({0: None}, "op 0: forward on compute writes gpu 0: forward: expected a block"),
        ({9: op("alloc", pool="gpu", ids="0")}, "op 9: alloc gpu 0: expected a free block"),
        ({3: access("load", "load", writes="0")}, "load: expected a block with owner=want_load"),
        ({6: access("load", "store", reads="0")}, "store on load: expected a work of the design"),
        ({6: access("store", "copy", reads="0")}, "--map label:NAME=WORK"),
        ({3: forward(reads="0", writes="0"), 6: access("store", "store", writes="0")},
         "expected it not to write"),
        ({9: op("free", by="h1", pool="gpu", ids="0")}, "free by h1: expected host (h0) to do it"),
        ({6: op("access", by="h1", on="store", label="store", reads={"gpu": "0"})}, "h1 was given nothing"),
    ],
)  # fmt: skip
def test_what_is_refused(change: Mapping[int, Mapping[str, Any] | None], why: str) -> None:
    ops = [now for i, one in enumerate(RUN) if (now := change.get(i, one)) is not None]
    found = held(ops)
    assert found.verdict == "refused"
    assert why in found.line()
    assert "\n" not in found.line()


@pytest.mark.parametrize(
    "ops",
    [
        [*RUN[:1], forward(reads="0", writes="0"), *RUN[2:]],  # it reads what it writes
        [*RUN[:2], forward(reads="0", writes="0"), *RUN[2:]],  # and fills the block in two steps
        [*RUN[:3], *RUN[4:]],  # the second forward has no block of ours
        [*RUN[:2], *RUN[3:]],  # nobody waits for the first record
        [*RUN, *RUN[4:5], *RUN[5:6]],  # a wait with nothing behind it
        [op("access", on="compute", label="sample", reads={"cpu": "0"}), *RUN],  # not the design's business
        [*RUN[:5], op("put", token="q"), op("get", by="h1", token="q"),
         *({**one, "by": "h1"} for one in RUN[5:8]), *RUN[8:]],  # a helper that was given the job
        [*RUN[:8], op("sync", stream="store"), RUN[9]],  # another way to see it
        [*RUN[:8], op("sync", device=0), RUN[9]],
        [*RUN[:5], op("sync", event="e2"), *RUN[5:]],  # the host may look at more
    ],
)  # fmt: skip
def test_what_costs_the_proof_nothing_is_accepted(ops: Sequence[Mapping[str, Any]]) -> None:
    found = held(ops, pools={"gpu": 4, "cpu": 1})
    assert found.verdict == "conforms", found.line()


# ── a block that is given back half filled, and stored: in `layer-wise` a full block is stored in its forward's step ──

LAYER = [
    op("alloc", pool="gpu", ids="0"),
    access("compute", "layer", writes="0"),  # half of it
    op("record", on="compute", event="e1"),
    access("compute", "layer", reads="1"),  # the next step: its request is gone
    op("record", on="compute", event="e2"),
    op("wait", on="store", event="e2"),
    access("store", "store", reads="0"),
    op("record", on="store", event="s1"),
    op("poll", event="s1", done=True),
    op("free", pool="gpu", ids="0"),
]
OTHER = [
    op("alloc", pool="gpu", ids="1"),
    access("compute", "layer", writes="1"),
    op("record", on="compute", event="e0"),
    op("wait", on="store", event="e0"),
    access("store", "store", reads="1"),
]


@pytest.mark.parametrize(
    "ops",
    [
        LAYER,  # the step after
        [*LAYER[:5], access("compute", "layer", reads="1"), op("record", on="compute", event="e2"), *LAYER[5:]],  # two
        [*LAYER[:1], access("compute", "layer", writes="0"), *LAYER[1:]],  # begun in two steps
        [*LAYER[:3], *LAYER[4:]],  # the later step runs no forward of ours
        [*LAYER[:3], op("wait", on="store", event="e1"), *LAYER[6:]],  # full at once, and stored in the same step
        [*LAYER[:6], access("store", "store", reads="0"), *LAYER[7:], *LAYER[:3],
         op("wait", on="store", event="e1"), *LAYER[6:]],  # and the block's next life
    ],
)  # fmt: skip
def test_a_block_that_is_given_back_half_filled_is_stored_later(ops: Sequence[Mapping[str, Any]]) -> None:
    found = held([*OTHER, *ops], "layer-wise")
    assert found.verdict == "conforms", found.line()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({1: None}, "op 10: store on store reads gpu 0: store: expected a block with store=dirty & data=full"),
        ({5: None}, "store.after(layer_done): missing wait"),
        ({5: op("wait", on="store", event="e1")}, "store.after(layer_done): missing wait"),
        ({3: access("compute", "layer", reads="0")}, "op 8: layer on compute reads gpu 0: layer: expected a block"),
        ({6: None, 7: None, 8: None}, "free gpu 0: expected a block that a rule may return now"),  # it must be stored
        ({8: None}, "free gpu 0: one step early"),
        ({6: access("store", "store", writes="0")}, "it not to write"),
    ],
)  # fmt: skip
def test_what_such_a_block_may_not_do(change: Mapping[int, Mapping[str, Any] | None], why: str) -> None:
    ops = [now for i, one in enumerate(LAYER) if (now := change.get(i, one)) is not None]
    found = held([*OTHER, *ops], "layer-wise")
    assert found.verdict == "refused"
    assert why in found.line(), found.line()


def test_a_helper_that_lags_is_judged_at_the_place_of_its_job() -> None:
    late = [*RUN[:5], op("put", token="q"), op("alloc", pool="gpu", ids="1"), forward(reads="0", writes="1"),
            op("get", by="h1", token="q"), *({**one, "by": "h1"} for one in RUN[5:8]), *RUN[8:]]  # fmt: skip
    found = held(late)
    assert found.verdict == "conforms", found.line()


# ── too little ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ops", "header", "why"),
    [
        ([], {}, "no access was logged"),
        ([op("alloc", pool="gpu", ids="0")], {}, "no work of the design touched a block"),
        ([forward(reads="0")], {"start": "attached"}, "no rule of the design was exercised"),
        (RUN, {"unseen": {"copies": 0, "edges": 2}}, "2 edges were noticed and not logged"),
        (RUN, {"unseen": {"copies": 1}}, "1 copies"),
        (RUN, {"expects": {"streams": ["load"]}}, "expected stream load"),
    ],
)
def test_incomplete(ops: Sequence[Mapping[str, Any]], header: Mapping[str, Any], why: str) -> None:
    found = held(ops, **header)
    assert found.verdict == "incomplete"
    assert why in found.line()
    assert found.exit == 3


def test_a_refusal_goes_before_incomplete() -> None:
    assert held([*RUN[:5], *RUN[6:]], unseen={"copies": 1}).verdict == "refused"


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_other_names_are_mapped() -> None:
    text = json.dumps(RUN).replace('"gpu"', '"kv"').replace('"store"', '"cuda9"').replace('"h0"', '"MainThread"')
    text = text.replace('"label": "cuda9"', '"label": "d2h"')
    header = {"pools": {"kv": 4}, "streams": {"compute": {}, "cuda9": {}}}
    maps = ("pool:kv=gpu", "stream:cuda9=store", "label:d2h=store")
    found = held(json.loads(text), "vllm-symmetric-barrier", *maps, **header)
    assert found.verdict == "conforms", found.line()
    assert found.notes == ("stream load of the design does not appear",)


@pytest.mark.parametrize(
    ("maps", "header", "why"),
    [
        (("stream:cuda7=laod",), {}, "did you mean 'load'?"),
        (("label:x=forwrad",), {}, "no work 'forwrad'; did you mean 'forward'?"),
        (("stream",), {}, "cannot be read; accepted: KIND:NAME-IN-TRACE=NAME-IN-DESIGN"),
        (("colour:a=b",), {}, "KIND one of pool, stream"),
        ((), {"pools": {"kv": 4}}, "no such pool (it has kv); accepted: --map pool:NAME=gpu"),
        (("pool:kv=gpu",), {"pools": {"kv": 4, "gpu": 4}}, "2 pools for it"),
        (("thread:h9=host",), {}, "no such thread; it has h0"),
        (
            ("stream:cuda7=load",),
            {},
            "--map stream:cuda7=load: in the trace: no stream 'cuda7'; there is compute, load",
        ),
        (("stream:laod=load",), {}, "in the trace: no stream 'laod'; did you mean 'load'?"),
        (("label:copy_h2d=load",), {}, "in the trace: no label 'copy_h2d'; there is forward, store"),
        (("event:ev3=load_done",), {}, "in the trace: no event 'ev3'; there is e1, e2, s1"),
        (("pool:kv=gpu",), {}, "in the trace: no pool 'kv'; there is gpu"),
    ],
)
def test_names_that_cannot_be_matched(maps: Sequence[str], header: Mapping[str, Any], why: str) -> None:
    with pytest.raises(NamesError) as error:
        held(RUN if "pools" not in header else [], "vllm-symmetric-barrier", *maps, **header)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("mapped", "design"),
    [
        ("event:e2=compute_done", "vllm-symmetric-barrier"),  # recorded and waited for
        ("event:e9=load_done", "vllm-symmetric-barrier"),  # only asked about
        ("event:ev=store_done", "vllm-symmetric-barrier"),  # all its objects
        ("event:ev#7=store_done", "vllm-symmetric-barrier"),  # or one
        ("stream:load=load", "vllm-symmetric-barrier"),  # in the header, and no op has it
        ("queue:q=load jobs", "copier-symmetric"),
        ("thread:h1=copier", "copier-symmetric"),
    ],
)
def test_names_that_the_trace_has(mapped: str, design: str) -> None:
    polls = [op("poll", event=event, done=False) for event in ("e9", "ev#7")]
    ops = [*RUN, *polls, op("put", token="q#1"), op("get", by="h1", token="q#1")]
    held(ops, design, mapped)  # it may be refused; its names are matched


def test_of_many_names_some_are_listed() -> None:
    ops = [*RUN, *(op("record", on="compute", event=f"n{number:03}") for number in range(200))]
    with pytest.raises(NamesError) as error:
        held(ops, "vllm-symmetric-barrier", "event:zzz=load_done")
    assert str(error.value).endswith(
        "there is e1, e2, n000, n001, n002, n003, n004, n005, n006, n007, n008, n009, … (203 in all)"
    )
    with pytest.raises(NamesError, match=r"did you mean 'n\d+'"):
        held(ops, "vllm-symmetric-barrier", "event:n01=load_done")


def test_streams_of_other_names_only() -> None:
    ops = [op("access", on="cuda7", label="forward", writes={"gpu": "0"})]
    with pytest.raises(NamesError, match="none of the trace's streams"):
        held(ops, streams={})


def test_which_thread_is_the_scheduler() -> None:
    ops = [{**one, "by": "a"} for one in RUN] + [op("put", by="b", token="q")]
    with pytest.raises(NamesError, match="which thread runs the scheduler"):
        held(ops)
    assert held(ops, "vllm-symmetric-barrier", "thread:a=host").verdict == "conforms"


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def kvsan(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, ["conform", *map(str, args)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (HEADER, *RUN)))
    return path


def test_exit_statuses(trace: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text(json.dumps(HEADER) + "\n")
    assert kvsan(trace, "vllm-symmetric-barrier").exit_code == 0
    assert kvsan(trace, "vllm-before-46278").exit_code == 1
    assert kvsan(trace, "lmcache-staging").exit_code == 2
    assert kvsan(trace, "vllm-symmetric").exit_code == 2
    assert kvsan(trace, "vllm-symmetric-barrier", "--map", "x").exit_code == 2
    unheard = kvsan(trace, "vllm-symmetric-barrier", "--map", "stream:cuda7=load")
    assert unheard.exit_code == 2
    assert unheard.output.startswith("kvsan: --map stream:cuda7=load: in the trace: no stream 'cuda7'; there is ")
    assert unheard.output.count("\n") == 1
    assert kvsan(tmp_path / "none", "vllm-symmetric-barrier").exit_code == 2
    assert kvsan(empty, "vllm-symmetric-barrier").exit_code == 3


def test_a_refusal_is_one_line(trace: Path) -> None:
    said = kvsan(trace, "vllm-before-46278")
    assert said.stdout.count("\n") == 1
    assert said.stdout.startswith(f"{trace}: refused by vllm-before-46278: op 5: store: extra wait: expected no wait")
    assert not said.stderr


def test_json(trace: Path) -> None:
    good = json.loads(kvsan(trace, "vllm-symmetric-barrier", "--format", "json").stdout)
    assert (good["kvsan"], good["verdict"], good["ops"]) == (1, "conforms", 10)
    assert good["unexercised"]["works"] == ["load"]
    bad = json.loads(kvsan(trace, "vllm-before-46278", "--format", "json").stdout)
    assert bad["verdict"] == "refused"
    assert bad["refusal"]["op"] == 5
    assert set(bad["refusal"]) == {"op", "at", "expected"}


def test_a_design_file(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from kvsan.model.designs import load\nDESIGN = load('vllm-symmetric-barrier')\n")
    assert kvsan(trace, file).exit_code == 0


def test_a_recorded_run_through_the_command() -> None:
    with recorded("fixed") as path:
        said = kvsan(path, "vllm-symmetric-barrier")
    assert said.exit_code == 0
    assert "never exercised, rules: abort a load, reap an aborted load" in said.stdout
