"""`kvsan verify | repair | diff | designs`: status, bad design files of many kinds, formats, widths, traces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

import kvsan.checker.trace as trace_package
from kvsan.checker import Racy, check
from kvsan.checker.cli import cli
from kvsan.checker.design_file import DesignFileError, load_design
from kvsan.model.designs import names

SCHEMA = json.loads(
    (Path(trace_package.__file__).parents[1] / "schema" / "design.schema.json").read_text(encoding="utf-8")
)
GOLDEN = Path(__file__).parent / "golden"
GOOD = """
from kvsan.model.design import Protocol

p = Protocol("mine")
compute = p.stream("compute")
b = p.block(owner="none | running")
free = p.free(b.none)
with p.step():
    compute.forward(writes=b.running)
with p.scheduler() as may:
    may("allocate", when=free, then=b.running)
    may("finish", when=b.running, then=b.none)
"""


def kvsan(*args: str | Path, columns: int | None = None) -> Result:
    """In this process: starting one takes longer than a proof."""
    env = {"COLUMNS": str(columns) if columns else "", "NO_COLOR": "1"}
    return CliRunner().invoke(cli, [str(arg) for arg in args], env=env)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def made(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return made


# ── status ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_status_says_the_verdict() -> None:
    assert kvsan("verify", "vllm-symmetric-barrier").exit_code == 0
    assert kvsan("verify", "vllm-after-46278").exit_code == 1
    assert kvsan("verify", "nothing-like-that").exit_code == 2
    assert kvsan("repair", "vllm-symmetric-barrier").exit_code == 0
    assert kvsan("repair", "vllm-after-46278").exit_code == 1
    assert kvsan("diff", "vllm-after-46278", "vllm-symmetric-barrier").exit_code == 0
    assert kvsan("diff", "vllm-symmetric-barrier", "vllm-after-46278").exit_code == 1
    assert kvsan("diff", "vllm-symmetric-barrier", "nowhere.py").exit_code == 2
    assert kvsan("designs").exit_code == 0
    assert kvsan("verify").exit_code == 2


def test_the_worst_of_several_designs_counts_and_one_bad_one_keeps_none() -> None:
    run = kvsan("verify", "--quick", "vllm-after-46278", "vllm-nowhere", "vllm-symmetric-barrier")
    assert run.exit_code == 2
    assert "vllm-after-46278: REFUTED" in run.stdout
    assert "vllm-symmetric-barrier: PROVED" in run.stdout
    assert run.stderr.count("\n") == 1
    assert kvsan("verify", "--quick", "vllm-after-46278", "vllm-symmetric-barrier").exit_code == 1


def test_unknown_is_3(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsan.model import proof

    real = proof.verify
    monkeypatch.setattr(proof, "verify", lambda design, **more: real(design, cap=20, **more))
    run = kvsan("verify", "vllm-symmetric-barrier")
    assert run.exit_code == 3
    assert "UNKNOWN" in run.stdout
    assert "nothing is said: more than 20 states" in run.stdout
    assert "this assumes" in run.stdout
    assert kvsan("verify", "vllm-symmetric-barrier", "vllm-nowhere").exit_code == 2
    (document,) = documents(kvsan("verify", "vllm-symmetric-barrier", "--format", "json"))
    assert document["verdict"] == "unknown"
    assert "unknown" in kvsan("verify", "vllm-symmetric-barrier", "--format", "markdown").stdout


# ── a name, a file ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_name_names_the_nearest() -> None:
    run = kvsan("verify", "vllm-after-46279")
    assert run.stderr.startswith(
        "kvsan: vllm-after-46279: no design 'vllm-after-46279'; did you mean 'vllm-after-46278'?"
    )
    assert run.stderr.count("\n") == 1
    assert run.stdout == ""


def test_a_file_with_a_protocol_or_a_design(write: Any) -> None:
    assert load_design(str(write(GOOD))).name == "mine"
    assert load_design(str(write(GOOD + "\nDESIGN = p.design()\n"))).name == "mine"
    assert load_design(str(write(GOOD + "\nmine = p.design()\n"))).name == "mine"
    two = GOOD + "\nq = Protocol('other')\nDESIGN = p\n"
    assert load_design(str(write(two))).name == "mine"
    assert kvsan("verify", write(GOOD)).exit_code == 0
    assert kvsan("verify", write(GOOD, "no suffix")).exit_code == 0


def test_files_beside_it_can_be_imported_and_leave_nothing_behind(write: Any) -> None:
    write(GOOD, "shared_of_mine.py")
    path = write("from shared_of_mine import p\nDESIGN = p.design()\n")
    before = sys.path[:]
    try:
        assert load_design(str(path)).name == "mine"
        assert sys.path == before
        assert "kvsan_design_file" not in sys.modules
    finally:
        sys.modules.pop("shared_of_mine", None)


def test_what_a_file_prints_does_not_spoil_the_report(write: Any) -> None:
    run = kvsan("verify", write("print('hello')\n" + GOOD), "--format", "json")
    assert json.loads(run.stdout)["verdict"] == "proved"
    assert "hello" in run.stderr


def test_nor_does_what_it_writes_to_the_descriptor(write: Any) -> None:
    path = write("import os, subprocess\nos.write(1, b'raw')\nsubprocess.run(['echo', 'child'])\n" + GOOD)
    run = subprocess.run([sys.executable, "-m", "kvsan.checker", "verify", str(path), path, "--format", "json"],
                         capture_output=True, check=False, text=True,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert [json.loads(line)["verdict"] for line in run.stdout.splitlines()] == ["proved", "proved"]
    assert run.stderr.count("raw") == run.stderr.count("child") == 2


BAD: dict[str, tuple[str, str]] = {
    "syntax": ("x = 1\nwith p.step(:\n", r"mine\.py:2: SyntaxError: "),
    "indentation": ("x = 1\n  y = 2\n", r"mine\.py:2: IndentationError: "),
    "raises at import": (
        "x = 1\n\ndef f():\n    return 1 / 0\n\nf()\n",
        r"mine\.py:4: ZeroDivisionError: division by zero",
    ),
    "raises in a library": (
        "import json\n\njson.loads('{')\n",
        r"mine\.py:3: JSONDecodeError: Expecting property name",
    ),
    "no such module": ("import kvsann\n", r"mine\.py:1: ModuleNotFoundError: No module named 'kvsann'"),
    "exits": ("import sys\nsys.exit(0)\n", r"mine\.py:2: SystemExit: 0"),
    "exits without a word": ("raise SystemExit\n", r"mine\.py:1: SystemExit$"),
    "many lines": ("raise ValueError('one\\ntwo\\n\\nthree')\n", r"mine\.py:1: ValueError: one two three$"),
    "deep": ("def f():\n    return f()\nf()\n", r"mine\.py:2: RecursionError: "),
    "an exception that cannot be shown": (
        "class E(Exception):\n    def __str__(self):\n        raise ValueError\n\nraise E\n",
        r"mine\.py:5: E$",
    ),
    "broken contents": (
        GOOD + "import dataclasses\nDESIGN = dataclasses.replace(p.design(), rules=('x',))\n",
        r"mine\.py:14: mine: rules\[0\] is 'x', not Rule$",
    ),
    "a run-ahead in words": (GOOD.replace('"mine"', '"mine", run_ahead="two"'), r"mine\.py:4: run_ahead is a number"),
    "another protocol's value": (
        GOOD.replace("then=b.none", "then=Protocol('q').block(pin='off | on').on"),
        r"mine\.py:12: finish: then= asks pin=on, which is of another protocol's block",
    ),
    "DESIGN is something else beside a protocol": (GOOD + "DESIGN = 5\n", r"mine\.py:13: DESIGN is no design"),
    "no design": ("x = 1\n", r"mine\.py: defines no design; end it with DESIGN = p\.design\(\)"),
    "empty": ("", r"mine\.py: defines no design"),
    "DESIGN is something else": (
        "DESIGN = 3\n",
        r"mine\.py:1: DESIGN is no design but of type int; write DESIGN = p\.design\(\)",
    ),
    "two designs": (
        GOOD + "a = p.design()\np.claims('progress')\nb2 = p.design()\n",
        r"defines 2 designs \(a, b2\); call",
    ),
    "two protocols": (GOOD + "q = Protocol('q')\n", r"mine\.py: defines 2 designs \(p, q\); call"),
    "nearest facet value": (
        GOOD.replace("writes=b.running", "writes=b.runing"),
        r"mine\.py:9: no .*did you mean 'running'",
    ),
    "and": (GOOD.replace("writes=b.running", "writes=b.running and b.none"), r"mine\.py:9: a guard .*write a & b"),
    "no guard": (GOOD.replace("writes=b.running", "writes='running'"), r"mine\.py:9: forward: writes= takes a guard"),
    "a facet for a guard": (
        GOOD.replace("free = p.free(b.none)", "free = p.free(b.owner)"),
        r"mine\.py:7: p\.free\(\)",
    ),
    "unfinished protocol": (
        "from kvsan.model.design import Protocol\n\np = Protocol('p')\n",
        r"mine\.py:3: p: say p\.block",
    ),
    "unknown argument": (GOOD.replace("writes=", "write="), r"mine\.py:9: TypeError: .*'write'"),
    "a wait for what nobody records": (
        GOOD.replace("writes=b.running", "writes=b.running, after=p.event('e')"),
        r"mine\.py:4: forward: nobody records e",
    ),
    "a rule that can never happen": (
        GOOD.replace("none | running", "none | running | lost") + "    may('find', when=b.lost, then=b.none)\n",
        r"rule 'find' can never happen, so a proof would be about less than it says",
    ),
    "two facets held": (
        GOOD.replace('none | running")', 'none | running", pin="off | on")')
        .replace("b.none", "b.owner.none")
        .replace("from kvsan.model.design import Protocol", "from kvsan.model.design import Protocol, retired, newest")
        .replace("writes=b.running", "writes=b.running, signals=p.event('s', per='step')")
        + "    may('pin', when=b.running & b.off, then=b.on)\n"
        "    may('unpin', when=b.on, then=b.off, free=retired(newest))\n"
        "    may('go', when=b.running, then=b.owner.none, free=retired(newest))\n",
        r"mine: held frees change owner and pin",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_design_file_is_one_line_of_its_own(write: Any, kind: str) -> None:
    text, want = BAD[kind]
    run = kvsan("verify", write(text))
    assert run.exit_code == 2, run.output
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith("kvsan: ")
    assert "Traceback" not in run.stderr
    assert re.search(want, run.stderr.strip()), run.stderr


@pytest.mark.parametrize(
    ("content", "want"),
    [(b"\x00\x01", r"mine\.py"), (b"\xff\xfe=1\n", r"mine\.py"), (None, r"mine\.py: is a directory")],
)
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes | None, want: str) -> None:
    path = tmp_path / "mine.py"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    run = kvsan("verify", path)
    assert run.exit_code == 2
    assert run.stderr.count("\n") == 1
    assert re.search(want, run.stderr)


def test_a_file_that_is_not_there() -> None:
    for name in ("nowhere.py", "some/where"):
        with pytest.raises(DesignFileError, match="no such file"):
            load_design(name)


def test_an_interrupted_design_file_is_an_interruption(write: Any) -> None:
    path = write("raise KeyboardInterrupt\n")
    run = subprocess.run([sys.executable, "-m", "kvsan.checker", "verify", str(path)], capture_output=True, check=False,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert run.returncode == 130


# ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────────────

COMMANDS: dict[str, tuple[str, ...]] = {
    "verify-refuted": ("verify", "vllm-after-46278"),
    "verify-proved": ("verify", "copier-deferral"),
    "verify-generation": ("verify", "vllm-no-store-pin", "--quick"),
    "verify-stuck": ("verify", "fence-on-next-step", "--quick"),
    "repair": ("repair", "vllm-after-46278"),
    "repair-records": ("repair", "sglang-hicache-load-back-unfenced"),
    "diff": ("diff", "vllm-symmetric-barrier", "vllm-after-46278"),
    "diff-moved": ("diff", "vllm-symmetric-barrier", "vllm-after-47653"),
}


def settled(text: str) -> str:
    """Without times."""
    return re.sub(r"in\s+[\d,]+\s+ms", "in N ms", text)


def same(request: pytest.FixtureRequest, name: str, text: str) -> None:
    path = GOLDEN / name
    if request.config.getoption("--golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_text(request: pytest.FixtureRequest, name: str, width: int) -> None:
    run = kvsan(*COMMANDS[name], columns=width)
    assert max(map(len, run.stdout.splitlines())) <= width
    assert "this assumes, and does not show" in run.stdout
    same(request, f"design-{name}-{width}.txt", settled(run.stdout))


@pytest.mark.parametrize("name", ["verify-refuted", "repair", "diff", "diff-moved"])
def test_markdown(request: pytest.FixtureRequest, name: str) -> None:
    run = kvsan(*COMMANDS[name], "--format", "markdown")
    assert "<details><summary>This assumes, and does not show</summary>" in run.stdout
    for line in run.stdout.splitlines():
        assert not line.startswith("|") or line.endswith("|")
    same(request, f"design-{name}.md", settled(run.stdout))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_narrow_page(name: str) -> None:
    narrow, wide = (kvsan(*COMMANDS[name], columns=width).stdout for width in (40, 120))
    assert max(map(len, narrow.splitlines())) <= 40
    assert "".join(settled(narrow).split()) == "".join(settled(wide).split()), "wrapped, and nothing else"


@pytest.mark.parametrize("name", names())
def test_every_design_fits_80_columns(name: str) -> None:
    run = kvsan("verify", name, "--quick", columns=80)
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert run.exit_code in (0, 1)


def test_two_accesses_are_marked_and_actions_numbered() -> None:
    out = kvsan("verify", "vllm-after-46278", "--quick", columns=80).stdout
    war = out[out.index("WAR forward -> load: 13 actions") :]
    assert re.findall(r"^ +(\d+)  ", war, re.M)[:13] == [str(n) for n in range(1, 14)]
    assert " 7  forward reads the block [step 2]   <- the earlier access" in war
    assert "13  load writes the block [step 3]   <- not ordered behind 7" in war
    assert out.index("WAW forward -> load: 9 actions") < out.index("WAR forward -> load: 13 actions")


def test_quick_leaves_out_who_protects_what() -> None:
    assert "store.after(compute_done)" in kvsan("verify", "vllm-after-46278").stdout
    assert "store.after(compute_done)" not in kvsan("verify", "vllm-after-46278", "--quick").stdout


def test_a_name_with_an_escape_code_does_not_reach_the_terminal(write: Any) -> None:
    path = write(GOOD.replace('"mine"', r'"mi\x1b[31mne"').replace('"finish"', r'"fi\x1b[31mnish"'))
    for form in ("text", "markdown"):
        for command in (("verify",), ("repair",), ("diff", path)):
            args = [*map(str, command), str(path), "--format", form]
            assert "\x1b" not in CliRunner().invoke(cli, args, color=True, env={"NO_COLOR": "1"}).stdout


def test_designs_lists_the_catalogue() -> None:
    out = kvsan("designs", columns=120).stdout
    assert all(name in out for name in names())
    assert [one["design"] for one in documents(kvsan("designs", "--format", "json"))] == list(names())
    assert kvsan("designs", "--format", "markdown").stdout.count("\n| `") == len(names())


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def closed(schema: Any) -> Any:
    """A report must hold nothing undocumented; the published schema is open, so that a new property breaks nobody."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        out.setdefault("additionalProperties", False)
    return out


def documents(run: Result) -> list[dict[str, Any]]:
    """The documents of a run, each valid."""
    out = [json.loads(line) for line in run.stdout.splitlines()]
    kinds = {one["properties"]["command"]["const"]: one for one in closed(SCHEMA)["oneOf"]}
    for document in out:
        schema = {**kinds[document["command"]], "$defs": closed(SCHEMA)["$defs"]}
        errors = sorted(Draft202012Validator(schema).iter_errors(document), key=lambda error: error.json_path)
        assert not errors, f"{errors[0].json_path}: {errors[0].message}"
        assert Draft202012Validator(SCHEMA).is_valid(document)
        assert Draft202012Validator(SCHEMA).is_valid(document | {"new": 1}), "the published schema is open"
        assert not Draft202012Validator(schema).is_valid(document | {"new": 1}), "the test's is not"
    return out


def test_the_schema_is_one_and_says_what_everything_is() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == "urn:kvsan:schema:design:1"

    def described(schema: Any) -> None:
        if isinstance(schema, dict):
            for name, value in schema.items():
                if name in ("properties", "$defs"):
                    for what, one in value.items():
                        assert one.get("description") or "$ref" in one or "const" in one or what in named, what
                described(value)
        elif isinstance(schema, list):
            for one in schema:
                described(one)

    named = {"schedule"}
    described(SCHEMA)


@pytest.mark.parametrize("name", names())
def test_json_of_every_design(name: str) -> None:
    (document,) = documents(kvsan("verify", name, "--format", "json", "--quick"))
    assert document["kvsan_design"] == 1
    assert document["design"] == name
    assert document["assumptions"]
    for race in document["races"]:
        assert len(race["schedule"]) == race["length"]
        assert [action.get("marks") for action in race["schedule"]].count("earlier") == 1
        assert race["schedule"][-1]["marks"] == "later"


@pytest.mark.parametrize("name", COMMANDS)
def test_json_of_every_command(name: str) -> None:
    (document,) = documents(kvsan(*COMMANDS[name], "--format", "json"))
    if name == "repair":
        assert [[edge["name"] for edge in one["edges"]] for one in document["repairs"]][:2] == [
            ["load.after(used)"],
            ["load.after(prev_done)"],
        ]
        assert document["repairs"][0]["cost"] == {
            "host_blocking": 0,
            "critical_waits": 0,
            "held_block_steps": 0,
            "copy_waits": 1,
        }
    if name == "diff":
        assert document["lost"][0]["through"][0]["name"] == "load.after(compute_done)"
        assert document["overlap"] == [
            {"earlier": "forward", "later": "load", "before": "never", "after": "same block"}
        ]


# ── traces ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", names())
def test_each_counterexample_is_a_trace_that_is_racy_with_the_same_kind(name: str, tmp_path: Path) -> None:
    (document,) = documents(kvsan("verify", name, "--format", "json", "--quick", "--trace", tmp_path / "out"))
    claimed = {claim for claim, of in document["claims"].items() if of["claimed"]}
    wanted = [(race["kind"], race["trace"]) for race in document["races"] if "race-free" in claimed]
    wanted += [("GEN", w["trace"]) for w in document["wrong_generation"] if "right generation" in claimed]
    assert sorted(path for _, path in wanted) == sorted(str(path) for path in tmp_path.glob("out/*"))
    for kind, path in wanted:
        report = check(path, all_pairs=True)  # the block may have raced before, in another way
        assert isinstance(report.verdict, Racy)
        assert kind in {hazard.kind.value for hazard in report.hazards}, (kind, path)
    if wanted:
        out = kvsan("verify", name, "--quick", "--trace", tmp_path / "out", columns=80).stdout
        assert all(path in out for _, path in wanted)


def test_traces_whose_names_differ_in_a_sign_are_two_files(write: Any, tmp_path: Path) -> None:
    two = GOOD.replace("compute.forward(writes=b.running)", "compute.forward(name='f d', writes=b.running)\n"
                       "    side.forward(name='f-d', writes=b.running)") \
        .replace('p.stream("compute")', 'p.stream("compute")\nside = p.stream("side")')  # fmt: skip
    files = [write(two.replace('"mine"', f'"{name}"'), f"{at}.py") for at, name in enumerate(["my one", "my-one"])]
    found = documents(kvsan("verify", *files, "--format", "json", "--quick", "--trace", tmp_path / "out"))
    traces = [(race["kind"], race["later"], race["trace"]) for one in found for race in one["races"]]
    assert len(traces) >= 4
    assert len({trace for _, _, trace in traces}) == len(traces) == len(list(tmp_path.glob("out/*")))
    for kind, later, trace in traces:
        hazards = check(trace, all_pairs=True).hazards
        assert (kind, later) in {(hazard.kind.value, hazard.later.label) for hazard in hazards}


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = kvsan("verify", "vllm-after-46278", "--trace", tmp_path / "file")
    assert run.exit_code == 2
    assert "--trace" in run.stderr


# ── z3 ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_certified_says_what_z3_confirms() -> None:
    pytest.importorskip("z3")
    proved = kvsan("verify", "vllm-symmetric-barrier", "--quick", "--certify")
    assert proved.exit_code == 0
    assert re.search(r"race-free follows\s+from \d+ clauses", proved.stdout)
    refuted = kvsan("verify", "vllm-after-46278", "--quick", "--certify")
    assert "no schedule of fewer than 13 actions" in " ".join(refuted.stdout.split())
    (document,) = documents(kvsan("verify", "vllm-after-46278", "--quick", "--certify", "--format", "json"))
    assert [len(times["moments"]) for times in document["solver"]["times"]] == [9, 13]
    assert "z3 confirms" in kvsan("verify", "vllm-after-46278", "--quick", "--certify", "--format", "markdown").stdout
    assert "z3" not in kvsan("verify", "vllm-after-46278", "--quick").stdout


def test_without_z3_the_verdict_stands_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    run = kvsan("verify", "vllm-symmetric-barrier", "--quick", "--certify")
    assert run.exit_code == 0
    assert "PROVED" in run.stdout
    assert "z3 confirms" not in run.stdout
    assert re.search(r"vllm-symmetric-barrier: not certified: .*z3-solver", run.stderr)


def test_a_disagreement_with_z3_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsan.model import proof

    def disagree(design: Any, **more: Any) -> Any:
        raise proof.InternalError("z3 says otherwise")

    monkeypatch.setattr(proof, "verify", disagree)
    run = kvsan("verify", "vllm-symmetric-barrier", "--certify")
    assert isinstance(run.exception, proof.InternalError)
    assert "PROVED" not in run.stdout
