"""The session of a process: banner, summary, exit status, signals, children. Each test is a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvsan.checker import check

ROOT = Path(__file__).parents[2]
PORTIONS = ("model", "runtime", "checker")

ENGINE = """
import os, sys, time, atexit, signal
from kvsan.checker import session
atexit.register(lambda: print("an exit handler from before", flush=True))
debug = session.start_if_asked()
atexit.register(lambda: print("an exit handler from after", flush=True))
def run(fenced, first=0):
    r = debug.recorder
    r.pool("gpu", 64)
    a, b = r.stream(0, 0, name="compute"), r.stream(0, 7, name="load")
    r.access("forward", on=a, reads={"gpu": [first]})
    if fenced:
        r.wait_stream(b, a)
    r.access("load", on=b, writes={"gpu": [first]})
"""


def start(
    tmp_path: Path,
    body: str,
    options: str = "",
    kvsan: str | None = "1",
    *,
    before: str = "",
    script: str | None = None,
) -> subprocess.Popen[str]:
    passed = ("KVSAN_NATIVE",)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KVSAN") or key in passed}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("model", "runtime", "checker"))
    environment["KVSAN_OPTIONS"] = options
    if kvsan is not None:
        environment["KVSAN"] = kvsan
    return subprocess.Popen(
        [sys.executable, "-c", script or before + ENGINE + body],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def run(tmp_path: Path, body: str, options: str = "", kvsan: str | None = "1") -> tuple[int, str, str]:
    return finish(start(tmp_path, body, options, kvsan))


@pytest.mark.parametrize(
    ("body", "options", "status"),
    [
        ("run(fenced=True)", "", 0),
        ("run(fenced=False)", "", 66),
        ("run(fenced=False)", "exitcode=7", 7),
        ("run(fenced=False)", "exitcode=0", 0),
        ("run(fenced=False); sys.exit(3)", "", 66),
        ("run(fenced=True); sys.exit(3)", "", 3),
        ("run(fenced=True); debug.recorder.unseen(copies=1)", "", 0),
        ("run(fenced=True); debug.recorder.unseen(copies=1)", "incomplete_exitcode=5", 5),
        ("", "incomplete_exitcode=5", 5),
        ("run(fenced=False)", "halt_on_error=1", 66),
    ],
)
def test_exit_status(tmp_path: Path, body: str, options: str, status: int) -> None:
    code, out, err = run(tmp_path, body, options)
    assert code == status, err
    assert out == "an exit handler from after\nan exit handler from before\n"
    assert err.startswith("kvsan ")
    assert len(re.findall("watching stream order", err)) == 1


def test_off_is_inert(tmp_path: Path) -> None:
    for kvsan in (None, "0"):
        code, _, err = run(tmp_path, "assert debug is None and session.current() is None", kvsan=kvsan)
        assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("options", "kvsan", "said"),
    [
        ("trce=x", "1", 'is "trace" meant?'),
        ("", "maybe", "accepted: 1 or 0"),
        ("suppressions=/none", "1", "cannot be read"),
    ],
)
def test_options_that_are_wrong_end_the_process(tmp_path: Path, options: str, kvsan: str, said: str) -> None:
    code, _, err = run(tmp_path, "raise AssertionError('never here')", options, kvsan)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("said", ["'yes'; accepted: 0 (the Python code)"])
def test_a_wrong_switch_of_the_native_code_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("KVSAN_NATIVE", "yes")
    code, _, err = run(tmp_path, "raise AssertionError('never here')")
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_started_twice_is_one_session(tmp_path: Path) -> None:
    body = "assert session.start() is debug is session.start_if_asked() is session.current()\nrun(fenced=False)"
    code, _, err = run(tmp_path, body)
    assert code == 66
    assert err.count("RACY") == 1
    assert "WAR   gpu   forward on compute  load on load       1    1" in err


def test_a_log_of_its_own(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "run(fenced=False)", "log_path=log-%p.txt")
    assert (code, err) == (66, "")
    (log,) = tmp_path.glob("log-*.txt")
    assert "RACY" in log.read_text()


# ── signals ───────────────────────────────────────────────────────────────────────────────────────────────────────────

WAIT = "\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)"


def terminated(tmp_path: Path, body: str, options: str = "") -> tuple[int, str, str]:
    process = start(tmp_path, body + WAIT, options)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    return finish(process)


@pytest.mark.parametrize("fenced", [True, False])
def test_a_summary_on_sigterm(tmp_path: Path, fenced: bool) -> None:
    code, _, err = terminated(tmp_path, f"run(fenced={fenced})")
    assert code == -signal.SIGTERM
    assert ("CLEAN" if fenced else "RACY") in err


def test_the_handler_from_before_runs(tmp_path: Path) -> None:
    before = (
        "def bye(*_):\n    print('shutting down', flush=True)\n    sys.exit(4)\nsignal.signal(signal.SIGTERM, bye)\n"
    )
    process = start(tmp_path, "run(fenced=True)" + WAIT)
    process.kill()
    process.communicate()
    script = before + ENGINE + "run(fenced=False)" + WAIT
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys, signal\n" + script],
        cwd=tmp_path,
        env={**os.environ, "KVSAN": "1", "PYTHONPATH": os.pathsep.join(str(ROOT / p) for p in PORTIONS)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert "shutting down" in out
    assert code == 66
    assert err.count("RACY") == 1  # said at the signal, and not again at the exit


def test_an_engine_s_own_handler_stays(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nrun(fenced=False)"
    code, _, err = terminated(tmp_path, body)
    assert code == 66
    assert err.count("RACY") == 1


def test_a_killed_process_leaves_a_trace_that_is_not_clean(tmp_path: Path) -> None:
    process = start(tmp_path, "run(fenced=True)\ndebug.settle_down()" + WAIT, "trace=t.jsonl.gz")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    assert check(str(tmp_path / "t.jsonl.gz")).verdict.name == "incomplete"


# ── children ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asked", [False, True])
def test_an_engine_that_ends_by_sigpipe_does_not_end_by_ours(tmp_path: Path, asked: bool) -> None:
    """Its own broken pipes end it, as before. `asked`: lines wait, or are handed over."""
    body = """
run(fenced=True)
debug.recorder.settle_up()
os.kill(debug.side.pipe.pid, signal.SIGKILL)
time.sleep(0.3)
for _ in range(2000):
    debug.recorder.hand_on("t")
if ASKED:
    debug.recorder.settle_up()
print("alive", debug.recorder.fault_text, flush=True)
read, write = os.pipe()
os.close(read)
os.write(write, b"x")
print("unreached", flush=True)
""".replace("ASKED", str(asked))
    engine = start(tmp_path, body, before="import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n")
    said, errors = engine.communicate(timeout=60)
    assert "alive kvsan turned itself off" in said, errors
    assert "BrokenPipeError" in said
    assert "unreached" not in said
    assert engine.returncode == -signal.SIGPIPE


def test_a_forked_child_has_its_own_log(tmp_path: Path) -> None:
    body = """
run(fenced=True)
pid = os.fork()
if pid == 0:
    run(fenced=False, first=9)
    sys.exit(0)
_, status = os.waitpid(pid, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
run(fenced=True, first=20)
"""
    code, out, err = run(tmp_path, body, "trace=t.jsonl")
    assert code == 0, err
    assert "child 66" in out
    assert err.count("CLEAN") == err.count("RACY") == 1
    verdicts = {path.name.count("."): check(str(path)).verdict.name for path in tmp_path.glob("t*.jsonl")}
    assert verdicts == {1: "clean", 2: "racy"}
    assert check(str(tmp_path / "t.jsonl")).ops == 10


def test_a_child_forked_while_a_thread_holds_the_lock(tmp_path: Path) -> None:
    body = """
import threading
held, done = threading.Event(), threading.Event()
def hold():
    with debug.recorder.lock:
        held.set(); done.wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
pid = os.fork()
if pid == 0:
    run(fenced=False)
    sys.exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
done.set()
"""
    _, out, err = run(tmp_path, body)
    assert "child 66" in out, err


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.parametrize("fenced", [True, False])
def test_children_of_multiprocessing(tmp_path: Path, how: str, fenced: bool) -> None:
    (tmp_path / "worker.py").write_text(ENGINE + f"def work():\n    run(fenced={fenced})\n")
    body = f"""
sys.path.insert(0, os.getcwd())
import multiprocessing, worker
child = multiprocessing.get_context("{how}").Process(target=worker.work)
child.start(); child.join()
print("child", child.exitcode, flush=True)
"""
    _, out, err = run(tmp_path, body, "trace=t.jsonl")
    assert f"child {0 if fenced else 66}" in out, err
    assert ("CLEAN" if fenced else "RACY") in err
    (trace,) = tmp_path.glob("t*.jsonl")
    assert trace.name != "t.jsonl"
    assert check(str(trace)).verdict.name == ("clean" if fenced else "racy")


def test_a_child_that_does_nothing_says_nothing(tmp_path: Path) -> None:
    body = "run(fenced=True)\npid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)"
    code, _, err = run(tmp_path, body, "incomplete_exitcode=5")
    assert code == 0
    assert err.count("kvsan: process") == 1


def test_a_process_without_an_engine_has_no_verdict(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "")
    assert code == 0
    assert "saw no engine" in err
    assert "CLEAN" not in err


SIBLINGS = """
import multiprocessing, os, sys
sys.path.insert(0, os.getcwd())
import worker
if __name__ == "__main__":
    context = multiprocessing.get_context({how!r})
    children = [context.Process(target=worker.work, args=(n,)) for n in range(2)]
    if {together}:
        for child in children: child.start()
        for child in children: child.join()
    else:
        for child in children: child.start(); child.join()
    import engine
    engine.run(fenced=True, first=40)
"""


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_no_child_writes_into_another_s_file(tmp_path: Path, how: str, together: bool) -> None:
    """The children start their sessions before their parent does, so that none can have told another."""
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "worker.py").write_text("def work(n):\n    import engine\n    engine.run(fenced=n == 0, first=n)\n")
    script = SIBLINGS.format(how=how, together=together)
    code, _, err = finish(start(tmp_path, "", "trace=t.jsonl:report=r.json:incident=0", script=script))
    assert code == 0, err
    traces = {path.name: check(str(path)) for path in tmp_path.glob("t*.jsonl")}
    assert sorted(found.verdict.name for found in traces.values()) == ["clean", "clean", "racy"]
    assert (traces["t.jsonl"].verdict.name, traces["t.jsonl"].ops) == ("clean", 5)
    reports = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("r*.json")}
    assert sorted(found["verdict"] for found in reports.values()) == ["clean", "clean", "racy"]
    assert reports["r.json"]["verdict"] == "clean"


@pytest.mark.parametrize("loaded", [True, False])
def test_a_fork_before_any_session_has_a_file_of_its_own(tmp_path: Path, loaded: bool) -> None:
    """With `os.fork`, before or after kvsan was loaded: parent and child start sessions of their own, at once."""
    (tmp_path / "engine.py").write_text(ENGINE)
    script = f"""
import os, sys, time
sys.path.insert(0, os.getcwd())
{"import kvsan.checker.session" if loaded else ""}
ours, theirs = os.pipe()
child = os.fork()
import engine
engine.run(fenced=bool(child), first=3)
engine.debug.settle_down()
if child:
    os.read(ours, 1); os.waitpid(child, 0)
else:
    os.write(theirs, b"x"); time.sleep(0.2)
"""
    code, _, err = finish(start(tmp_path, "", "trace=t.jsonl:report=r.json:incident=0", script=script))
    assert code == 0, err
    found = [check(str(path)) for path in tmp_path.glob("t*.jsonl")]
    assert sorted(each.verdict.name for each in found) == ["clean", "racy"]
    assert sorted(json.loads(path.read_text())["verdict"] for path in tmp_path.glob("r*.json")) == ["clean", "racy"]


def test_a_run_after_a_run_writes_the_same_file(tmp_path: Path) -> None:
    for fenced in (True, False):
        run(tmp_path, f"run(fenced={fenced})", "trace=t.jsonl:report=r.json:incident=0")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "t.jsonl"]
        assert check(str(tmp_path / "t.jsonl")).verdict.name == ("clean" if fenced else "racy")


# ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_memory_stays_flat(tmp_path: Path) -> None:
    """Two hundred thousand ops, a fresh event each step, hand-offs, a ring: from a tenth of the way on, no growth."""
    body = """
import gc
r = debug.recorder
r.pool("gpu", 20000)
a, b = r.stream(0, 0, name="compute"), r.stream(0, 7, name="load")
class Event: pass
def rss():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096
start = None
step = 0
while r.ops < 200_000:
    step += 1
    first = step * 16 % 19_000
    r.access("forward", on=a, reads={"gpu": range(first, first + 9)}, writes={"gpu": [first + 9]}, step=step)
    event = Event(); r.record(a, event); r.wait(b, event); r.poll(event, True)
    with r.blocking(event=event): pass
    token = r.fresh_token(); r.put(token); r.get(token)
    r.free("gpu", [first]); r.alloc("gpu", [first])
    if r.ops > 60_000 and start is None: start = rss()
print("grew", (rss() - start) >> 10, "KiB", flush=True)
"""
    code, out, err = run(tmp_path, body, "incident=1:incident_mb=4")
    grew = re.search(r"grew (-?\d+) KiB", out)
    assert grew is not None, err
    assert int(grew[1]) < 12 << 10, out
    assert "CLEAN" in err, err
    assert code == 0


# ── ends that are easily missed ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("foreign", [True, False])
def test_a_handler_that_is_not_python_s_does_not_keep_the_process_alive(tmp_path: Path, foreign: bool) -> None:
    script = "import signal\n"
    if foreign:  # what `getsignal` says of a handler that C code has installed
        script += "known = signal.getsignal\nsignal.getsignal = lambda number: None\n"
    process = start(tmp_path, "run(fenced=False)" + WAIT, before=script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == -signal.SIGTERM
    assert "RACY" in err


@pytest.mark.parametrize("slow", [True, False])
def test_sigterm_waits_for_what_is_being_written(tmp_path: Path, slow: bool) -> None:
    body = "debug.recorder.pool('gpu', 64)\n"
    if slow:
        body += """
from kvsan.checker.incident import Incident
write = Incident.write
def slowly(self, path):
    time.sleep(1)
    return write(self, path)
Incident.write = slowly
"""
    code, _, err = terminated(tmp_path, body + "run(fenced=False)", "trace=t.jsonl.gz")
    assert code == -signal.SIGTERM
    (incident,) = tmp_path.glob("kvsan-incident-*")
    assert check(str(incident)).verdict.name == "racy", err
    trace = check(str(tmp_path / "t.jsonl.gz"))
    assert (trace.verdict.name, trace.ops) == ("racy", 2)


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("fenced", [True, False])
def test_a_child_says_what_it_died_of(tmp_path: Path, how: str, fenced: bool) -> None:
    """Its traceback, its summary; the status of a child with hazards is ours, of another its own."""
    (tmp_path / "worker.py").write_text(
        ENGINE + f"def work():\n    run(fenced={fenced})\n    raise ValueError('the engine failed')\n"
    )
    body = f"""
sys.path.insert(0, os.getcwd())
import multiprocessing, worker
child = multiprocessing.get_context("{how}").Process(target=worker.work)
child.start(); child.join()
print("child", child.exitcode, flush=True)
"""
    _, out, err = run(tmp_path, body)
    assert f"child {1 if fenced else 66}" in out, err
    assert "ValueError: the engine failed" in err
    assert err.count(": CLEAN" if fenced else ": RACY") == 1


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("fenced", [True, False])
def test_a_session_that_begins_in_a_child(tmp_path: Path, how: str, fenced: bool) -> None:
    (tmp_path / "worker.py").write_text(f"def work():\n    import engine\n    engine.run(fenced={fenced})\n")
    (tmp_path / "engine.py").write_text(ENGINE)
    script = f"""
import multiprocessing, os, sys
sys.path.insert(0, os.getcwd())
import worker
if __name__ == "__main__":
    child = multiprocessing.get_context("{how}").Process(target=worker.work)
    child.start(); child.join()
    print("child", child.exitcode, flush=True)
"""
    _, out, err = finish(start(tmp_path, "", "report=r.json", script=script))
    assert f"child {0 if fenced else 66}" in out, err
    assert err.count(": CLEAN" if fenced else ": RACY") == 1
    (report,) = tmp_path.glob("r*.json")
    assert report.name != "r.json"  # its parent may start a session yet


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("plugin", [True, False])
def test_a_missing_dependency_is_one_line(tmp_path: Path, there: bool, plugin: bool) -> None:
    script = "import sys\n" + ("" if there else "sys.modules['msgspec'] = None\n")
    if plugin:
        script += "from kvsan.checker.attach import vllm\nsys.modules['vllm'] = None\nvllm.plugin()\n"
    else:
        script += "from kvsan.checker import session\nsession.start_if_asked()\n"
    if there and plugin:
        return  # the hooks of vLLM have their own tests
    code, _, err = finish(start(tmp_path, "", script=script))
    assert code == (0 if there else 2)
    assert err.count("\n") == (2 if there else 1)
    assert ("pip install 'kvsan[checker]'" in err) is not there


@pytest.mark.parametrize("there", [True, False])
def test_an_installation_without_metadata_has_an_unknown_version(tmp_path: Path, there: bool) -> None:
    script = "" if there else "from importlib import metadata\nmetadata.Distribution.discover = lambda **_: iter(())\n"
    code, _, err = finish(start(tmp_path, "run(fenced=True)", before=script))
    assert code == 0
    assert err.startswith("kvsan unknown: watching") is not there
    assert "CLEAN" in err


@pytest.mark.parametrize("fenced", [True, False])
def test_a_halt_in_a_thread_that_others_wait_for_ends_the_process(tmp_path: Path, fenced: bool) -> None:
    body = f"""
import threading
done = threading.Event()
def work():
    run(fenced={fenced}); done.set()
threading.Thread(target=work, name="copier").start()
done.wait()
"""
    code, _, err = run(tmp_path, body, "halt_on_error=1:trace=t.jsonl")
    assert code == (0 if fenced else -signal.SIGTERM)
    assert (": CLEAN" if fenced else ": RACY") in err
    assert ("halt_on_error in thread copier" in err) is not fenced
