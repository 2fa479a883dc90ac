"""The pytest plugin, run by pytest itself on tests of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

# The runs below take place in this process and drop what they import; numpy cannot be imported twice.
import kvsan.checker.testing.machine
import kvsan.checker.testing.simulated
import kvsan.checker.testing.strategies  # noqa: F401
from kvsan.checker.options import HELP, Options
from kvsan.checker.session import current
from kvsan.checker.testing import plugin

ROOT = Path(__file__).resolve().parents[2]
PORTIONS = ("model", "runtime", "checker")
HEAVY = ("torch", "numpy", "networkx", "z3", "hypothesis", "msgspec", "click", "rich")

ENGINE = """
import pytest
from kvsan.checker import access, allow
from kvsan.checker.testing import checked, simulated_cuda

def engine(kvsan, fenced, label="load"):
    kvsan.pool("gpu", 8)
    with simulated_cuda(torch=False) as cuda:
        load = cuda.Stream()
        with access("forward", reads={"gpu": [1, 2]}):
            pass
        if fenced:
            load.wait_stream(cuda.current_stream())
        with cuda.stream(load), access(label, writes={"gpu": [1, 2]}):
            pass
        cuda.Event(enable_timing=True).query()
        load.record_event().query()
"""


def run(pytester: pytest.Pytester, body: str, *args: str) -> pytest.RunResult:
    """`-p no:kvsan`: where kvsan is installed the entry point would load the plugin a second time."""
    pytester.makepyfile(ENGINE + body)
    return pytester.runpytest_inprocess("-p", "no:kvsan", "-p", "no:cacheprovider", *args, plugins=[plugin])


CLEAN = "def test_it(kvsan): engine(kvsan, True)\n"
RACY = "def test_it(kvsan): engine(kvsan, False)\n"
NOTHING = "def test_it(kvsan): pass\n"

# ── the fixture ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body",
    [
        CLEAN,
        "def test_it(): pass\n",
        "def test_it(kvsan):\n    engine(kvsan, True)\n    assert kvsan.judged().verdict.name == 'clean'\n",
        "def test_it(kvsan):\n    with allow(reason='known'): engine(kvsan, False)\n",
        "def test_it(kvsan): pytest.skip('not here')\n",
        "@pytest.mark.xfail(raises=pytest.fail.Exception)\n" + RACY,
        "@pytest.mark.kvsan(incomplete='accept')\n" + NOTHING,
        "@pytest.mark.kvsan(incomplete='accept')\ndef test_it(): pass\n",
        "def test_it():\n    with checked() as kvsan: engine(kvsan, True)\n",
        "def test_it(kvsan):\n    for _ in range(3):\n        with kvsan.example() as one: engine(one, True)\n",
        "class TestIt:\n    def test_it(self, kvsan): engine(kvsan, True)\n",
    ],
)
def test_silent(pytester: pytest.Pytester, body: str) -> None:
    result = run(pytester, body)
    outcomes = result.parseoutcomes()
    assert sum(outcomes.get(each, 0) for each in ("passed", "skipped", "xfailed")) == 1
    assert not {"failed", "errors"} & outcomes.keys()
    assert current() is None


def test_a_hazard_fails_the_test_with_the_report_alone(pytester: pytest.Pytester) -> None:
    result = run(pytester, RACY)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["kvsan: 1 hazard", "*WAR on gpu 1-2", "*fix*record an event on default0 after op 0*"])
    result.stdout.fnmatch_lines(["seed: 0:*::test_it", "kvsan: 1 test checked: 1 racy"])
    assert "def test_it" not in result.stdout.str()
    assert "plugin.py" not in result.stdout.str()


def test_a_test_that_saw_nothing_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, NOTHING)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(['*INCOMPLETE*no access was logged*Accepted:*incomplete="accept"*'])


def test_its_own_failure_stays_and_has_the_report_as_a_section(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(kvsan):\n    engine(kvsan, False)\n    assert 1 == 2\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*assert 1 == 2", "*Captured kvsan call*", "*WAR on gpu 1-2"])
    result = run(pytester, "def test_it(kvsan):\n    engine(kvsan, False)\n    pytest.fail('mine')\n")
    result.stdout.fnmatch_lines(["E*Failed: mine", "*Captured kvsan call*", "*WAR on gpu 1-2"])


def test_what_comes_to_light_in_a_teardown_is_an_error_of_it(pytester: pytest.Pytester) -> None:
    late = "@pytest.fixture\ndef late(kvsan):\n    yield\n    engine(kvsan, False, 'late')\n"
    result = run(pytester, late + "def test_it(kvsan, late): engine(kvsan, True)\n")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_it*", "*RAW on gpu 1-2"])


def test_checked_in_a_test_fails_it(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it():\n    with checked() as kvsan: engine(kvsan, False)\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*HazardsFound: kvsan: 1 hazard", "*kvsan: 1 test checked: 1 racy"])
    assert "checking.py:" not in "".join(line for line in result.outlines if not line.startswith("E"))


def test_halt_on_error_raises_at_the_access(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.kvsan(halt_on_error=True)\n" + RACY)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*KvsanHazard*", "*WAR on gpu 1-2*"])


def test_hypothesis_and_the_fixture(pytester: pytest.Pytester) -> None:
    """One fixture for all examples is what hypothesis refuses; `checked()` and `example()` are the ways to do it."""
    body = """
from hypothesis import HealthCheck, given, settings, strategies as st

@settings(max_examples=5, deadline=None, database=None)
@given(st.booleans())
def test_refused(kvsan, fenced): engine(kvsan, True)

@settings(max_examples=5, deadline=None, database=None)
@given(st.booleans())
def test_checked(fenced):
    with checked() as kvsan: engine(kvsan, True)

@settings(max_examples=5, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.booleans())
def test_examples(kvsan, fenced):
    with kvsan.example() as one: engine(one, True)

@settings(max_examples=5, deadline=None, database=None)
@given(st.booleans())
def test_found(fenced):
    with checked() as kvsan: engine(kvsan, fenced)
"""
    result = run(pytester, body, "--kvsan-trace-dir=kept")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*function_scoped_fixture*", "*HazardsFound*"])
    kept = sorted(path.name for path in Path("kept").iterdir())
    assert [name.partition("-")[0].rpartition("_test_")[2] for name in kept if name.endswith(".gz")] == ["found"]


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_option_has_its_twins() -> None:
    assert {*plugin.OPTIONS, *plugin.OF_A_PROCESS} == {item.name for item in fields(Options)} == set(HELP)


def test_the_docs_name_every_option() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", text.partition("## Options")[2], re.M)
    assert set(rows) == {*plugin.OPTIONS, *plugin.OWN}
    assert all(f"`{name}`" in text for name in plugin.OF_A_PROCESS)


@pytest.mark.parametrize(
    ("ini", "args", "marker", "verdict"),
    [
        ("", (), "", "failed"),
        ("kvsan_incomplete = accept", (), "", "passed"),
        ("", ("--kvsan-incomplete=accept",), "", "passed"),
        ("", (), "incomplete='accept'", "passed"),
        ("kvsan_incomplete = accept", ("--kvsan-incomplete=fail",), "", "failed"),
        ("", ("--kvsan-incomplete=fail",), "incomplete='accept'", "passed"),
        ("kvsan_incomplete = accept", (), "incomplete='fail'", "failed"),
    ],
)
def test_the_closest_counts(
    pytester: pytest.Pytester, ini: str, args: tuple[str, ...], marker: str, verdict: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = run(pytester, f"@pytest.mark.kvsan({marker})\n" + NOTHING, *args)
    assert result.parseoutcomes() == {verdict: 1}


@pytest.mark.parametrize("how", ["ini", "args", "marker", "environment"])
def test_options_of_debug_mode_are_heard(pytester: pytest.Pytester, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "ini":
        pytester.makeini("[pytest]\nkvsan_report = seen.json\n")
    if how == "environment":
        monkeypatch.setenv("KVSAN_OPTIONS", "report=seen.json:exitcode=5")
    args = ["--kvsan-options=report=seen.json"] if how == "args" else []
    marker = "@pytest.mark.kvsan(report='seen.json')\n" if how == "marker" else ""
    run(pytester, marker + CLEAN, *args).assert_outcomes(passed=1)
    assert json.loads(Path("seen.json").read_bytes())["verdict"] == "clean"


@pytest.mark.parametrize(
    ("ini", "args", "marker", "wrong"),
    [
        ("kvsan_halt_on_error = maybe", (), "", '*ini kvsan_halt_on_error has halt_on_error="maybe"; accepted: 0 or 1'),
        ("kvsan_exitcode = 3", (), "", '*ini kvsan_exitcode has "exitcode", which is of a process: a hazard fails*'),
        ("kvsan_incomplete = no", (), "", '*kvsan_incomplete is "no"; accepted: fail or accept'),
        ("", ("--kvsan-options=traec=x",), "", '*--kvsan-options has unknown key "traec": is "trace" meant*accepted:*'),
        ("", (), "hlt_on_error=1", '*marker kvsan has unknown key "hlt_on_error": is "halt_on_error" meant*'),
        ("", (), "'fast'", "*marker kvsan has 'fast' without a name; accepted:*"),
        ("", (), "handle_sigterm=0", '*"handle_sigterm", which is of a process: pytest handles signals*'),
        ("", (), "trace_dir='x'", '*marker kvsan has unknown key "trace_dir"*'),
    ],
)
def test_what_is_wrong_is_a_usage_error(
    pytester: pytest.Pytester, ini: str, args: tuple[str, ...], marker: str, wrong: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = run(pytester, f"@pytest.mark.kvsan({marker})\n" + CLEAN, *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: kvsan: {wrong}"])


@pytest.mark.parametrize("where", ["taken", "taken/deeper/still"])
@pytest.mark.parametrize("how", ["--kvsan-trace-dir", "ini kvsan_trace_dir"])
def test_a_trace_dir_that_cannot_be_is_a_usage_error(pytester: pytest.Pytester, how: str, where: str) -> None:
    Path("taken").write_text("a file")
    pytester.makeini(f"[pytest]\nkvsan_trace_dir = {where}\n" if how.startswith("ini") else "[pytest]\n")
    result = run(pytester, CLEAN, *([] if how.startswith("ini") else [f"{how}={where}"]))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    says = f"ERROR: kvsan: {how}: */taken is no folder; accepted: a folder that can be written, or made"
    result.stderr.fnmatch_lines([says])
    assert len([line for line in result.errlines if line]) == 1


def test_a_trace_dir_that_cannot_be_written_is_a_usage_error(pytester: pytest.Pytester) -> None:
    Path("closed").mkdir(mode=0o500)
    if os.access("closed", os.W_OK):
        pytest.skip("who runs this may write everywhere")
    for where in ("closed", "closed/new"):
        result = run(pytester, CLEAN, f"--kvsan-trace-dir={where}")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["ERROR: kvsan: --kvsan-trace-dir: */closed cannot be written; accepted:*"])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, where not even root makes a folder")
def test_a_trace_dir_that_only_seems_writable_is_one_line_too(pytester: pytest.Pytester) -> None:
    result = run(pytester, CLEAN + "def test_plain(): pass\n", "--kvsan-trace-dir=/proc/kvsan-traces")
    if result.ret != pytest.ExitCode.USAGE_ERROR:
        result.assert_outcomes(errors=1, passed=1)
        result.stdout.fnmatch_lines(["kvsan: --kvsan-trace-dir: *'/proc/kvsan-traces'; accepted: a folder*"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert "plugin.py" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("where", ["new", "new/and/deep", "here"])
def test_a_trace_dir_that_is_there_or_can_be_made_is_none(pytester: pytest.Pytester, where: str) -> None:
    Path("here").mkdir()
    run(pytester, CLEAN, f"--kvsan-trace-dir={where}").assert_outcomes(passed=1)
    assert Path(where).is_dir()


def test_the_marker_is_known(pytester: pytest.Pytester) -> None:
    run(pytester, "@pytest.mark.kvsan(max_reports=3)\n" + CLEAN, "--strict-markers").assert_outcomes(passed=1)
    run(pytester, "", "--markers").stdout.fnmatch_lines(["@pytest.mark.kvsan(option=*"])


# ── what is kept of a failure ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_trace_of_a_failure_is_kept_with_its_replay(pytester: pytest.Pytester) -> None:
    body = (
        "@pytest.mark.parametrize('fenced', [False, True])\ndef test_it(kvsan, fenced):\n    engine(kvsan, fenced)\n"
        "    kvsan.note('schedule', 'launch see')\n"
        "def test_other(kvsan):\n    engine(kvsan, True)\n    assert 0\n"
    )
    run(pytester, body, "--kvsan-trace-dir=kept").assert_outcomes(failed=2, passed=1)
    kept = sorted(path.name for path in Path("kept").iterdir())
    assert len(kept) == 4
    racy, other = (next(name for name in kept if part in name and name.endswith(".txt")) for part in ("False", "other"))
    text = (Path("kept") / racy).read_text()
    assert re.search(r"^test: .*::test_it\[False\]$", text, re.M)
    assert re.search(r"^seed: 0:.*::test_it\[False\]\nchoices: [01]\nschedule: launch see$", text, re.M)
    assert "WAR on gpu 1-2" in text
    assert "AssertionError: assert 0" in (Path("kept") / other).read_text()
    for name, status in ((racy, 1), (other, 0)):
        trace = Path("kept") / name.replace(".txt", ".jsonl.gz")
        env = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / portion) for portion in PORTIONS)}
        done = subprocess.run([sys.executable, "-m", "kvsan.checker", "check", str(trace)], env=env, check=False)
        assert done.returncode == status


def test_nothing_is_kept_of_what_passed(pytester: pytest.Pytester) -> None:
    run(pytester, CLEAN + "def test_plain(): pass\n", "--kvsan-trace-dir=kept").assert_outcomes(passed=2)
    assert list(Path("kept").iterdir()) == []
    run(pytester, "def test_plain(): assert 0\n", "--kvsan-trace-dir=other").assert_outcomes(failed=1)
    assert not Path("other").exists()


def test_the_seed_gives_the_same_answers(pytester: pytest.Pytester) -> None:
    body = "def test_it(kvsan):\n    engine(kvsan, True)\n    print('said', kvsan.seed, kvsan.replay()['choices'])\n"

    def said(*args: str) -> str:
        return next(line for line in run(pytester, body, "-s", *args).outlines if "said" in line).partition("said ")[2]

    assert said() == said() != said("--kvsan-seed=7")
    assert said("--kvsan-seed=7").startswith("7:")


def test_files_of_xdist_workers_differ(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for worker in ("gw0", "gw1"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        run(pytester, RACY, "--kvsan-trace-dir=kept").assert_outcomes(failed=1)
    kept = [path.name for path in Path("kept").iterdir()]
    assert len(kept) == 4
    assert {worker for worker in ("gw0", "gw1") if any(f"-{worker}." in name for name in kept)} == {"gw0", "gw1"}


def test_with_xdist(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / portion) for portion in PORTIONS))
    pytester.makepyfile(
        ENGINE
        + "@pytest.mark.parametrize('n', range(4))\ndef test_it(kvsan, n):\n"
        + "    with allow(reason='known'): engine(kvsan, False)\n"
        + "def test_racy(kvsan): engine(kvsan, False)\n"
    )
    plug = ("-p", "no:kvsan", "-p", plugin.__name__)
    result = pytester.runpytest_subprocess(*plug, "-n", "2", "--kvsan-trace-dir=kept")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "kvsan: 5 tests checked: 1 racy, 4 clean; allowed: hazards on 8 blocks",
            "  allowed (8 blocks, 4 tests): known",
        ]
    )
    assert all(re.search(r"-gw[01]\.", path.name) for path in Path("kept").iterdir())


# ── the summary ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_allowed_hazards_are_counted_with_their_reasons(pytester: pytest.Pytester) -> None:
    body = (
        "def test_one(kvsan):\n    with allow(reason='issue 1'): engine(kvsan, False)\n"
        "def test_two(kvsan):\n    with kvsan.example() as one, allow(reason='issue 1'): engine(one, False)\n"
        "@pytest.mark.kvsan(incomplete='accept')\ndef test_three(kvsan): pass\n"
    )
    result = run(pytester, body)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "kvsan: 3 tests checked: 1 incomplete, 2 clean; allowed: hazards on 4 blocks",
            "  allowed (4 blocks, 2 tests): issue 1",
        ]
    )


def test_who_checks_nothing_hears_nothing(pytester: pytest.Pytester) -> None:
    assert "kvsan" not in "\n".join(run(pytester, "def test_it(): pass\n", "-q").outlines[:-1])


# ── the import ────────────────────────────────────────────────────────────────────────────────────────────────────────


def loaded(tmp_path: Path, body: str) -> set[str]:
    """Modules that a run of pytest with the plugin holds at its end."""
    test = tmp_path / "test_it.py"
    test.write_text(body + "\ndef test_last():\n    import sys\n    print('HELD', *sorted(sys.modules))\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / portion) for portion in PORTIONS)}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", plugin.__name__, "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    held = re.search(r"HELD (.*)", done.stdout)
    assert held, done.stdout + done.stderr
    return set(held[1].split())


def test_the_plugin_loads_nothing_before_a_test_asks(tmp_path: Path) -> None:
    held = loaded(tmp_path, "")
    ours = {name for name in held if name.partition(".")[0] == "kvsan"}
    assert ours == {"kvsan", "kvsan.checker", "kvsan.checker.testing", plugin.__name__}
    assert held & set(HEAVY) == set()


def test_a_test_that_asks_loads_what_it_needs_and_no_torch(tmp_path: Path) -> None:
    held = loaded(tmp_path, "import pytest\n@pytest.mark.kvsan(incomplete='accept')\ndef test_it(kvsan): pass\n")
    assert {"kvsan.checker.session", "numpy"} <= held
    assert held & {"torch", "networkx", "z3", "hypothesis"} == set()


# ── the tutorial ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_tutorial(pytester: pytest.Pytester) -> None:
    """`docs/testing.md`: thirty lines of engine, ten lines of test, the report that it shows, and the fix."""
    text = (ROOT / "docs" / "testing.md").read_text()
    engine = re.search(r"```python\n(.*?)```", text, re.S)
    test = re.search(r"```py\n(.*?)```", text, re.S)
    report = re.search(r"and it fails:\n\n(.*?)\n\nThe load", text, re.S)
    assert engine
    assert test
    assert report
    assert len(engine[1].splitlines()) <= 30
    assert len(test[1].splitlines()) <= 10
    pytester.makepyfile(engine=engine[1], test_engine=test[1])
    args = ("-p", "no:kvsan", "-p", "no:cacheprovider", "--import-mode=prepend")
    result = pytester.runpytest_inprocess(*args, plugins=[plugin])
    result.assert_outcomes(failed=1)
    shown = "\n".join(line.strip() for line in result.outlines)
    assert "\n".join(line.strip() for line in report[1].splitlines()) in shown
    pytester.makepyfile(engine=engine[1].replace("fenced=False", "fenced=True"))
    pytester.runpytest_inprocess(*args, plugins=[plugin]).assert_outcomes(passed=1)
