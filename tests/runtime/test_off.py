"""Off is not there: what serves loads nothing of debug mode, and the engine's code has no place where it could be."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime/kvsan/runtime"
DEBUG_ONLY = {"tracing", "binary", "plans", "lines", "native"}
"""Modules of the runtime that only debug mode loads."""

NOT_SERVING = {"kvsan.checker", "networkx", "z3", "msgspec", "rich", "click"} | {
    f"kvsan.runtime.{name}" for name in DEBUG_ONLY
}
LIGHT = {"kvsan.checker", "kvsan.checker.debug", "kvsan.checker.options"}
"""What asking the switch loads."""


def serving_modules() -> list[Path]:
    """Every module of the runtime but debug mode's own."""
    return sorted(path for path in RUNTIME.rglob("*.py") if path.stem not in DEBUG_ONLY)


def needs_cuda(path: Path) -> bool:
    """A module that cannot be imported everywhere."""
    return path.stem == "cuda"


def name_of(path: Path) -> str:
    parts = path.relative_to(RUNTIME.parents[1]).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def loaded_by(code: str, **environment: str) -> set[str]:
    """The modules that a fresh interpreter holds after `code`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("KVSAN")} | environment
    folders = [str(ROOT / name) for name in ("model", "runtime", "checker", "tests")]
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n'.join(['MODULES', *sys.modules]))"],
        env=env | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.partition("MODULES\n")[2].split())


def debug_mode(loaded: set[str]) -> set[str]:
    """Those of the modules that a process which only serves must not hold."""
    return {name for name in loaded if any(name == bad or name.startswith(bad + ".") for bad in NOT_SERVING)}


# ── what is loaded ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_serving_loads_nothing_of_debug_mode() -> None:
    """All modules of the runtime, the engine among them."""
    pytest.importorskip("torch")
    names = [name_of(path) for path in serving_modules() if not needs_cuda(path)]
    assert {"kvsan.runtime.issue", "kvsan.runtime.cells", "kvsan.runtime.device"} <= set(names)
    assert debug_mode(loaded_by("".join(f"import {name}\n" for name in names))) == set()


SWITCH = """
from kvsan.checker.debug import debug
from runtime.null import NullDevice
device = NullDevice()
assert (debug(device) is device) == {off}
"""


@pytest.mark.parametrize("environment", [{}, {"KVSAN": "0"}, {"KVSAN": ""}, {"KVSAN": "off"}])
def test_the_switch_is_off(environment: dict[str, str]) -> None:
    """The device itself comes back, and nothing was loaded but the question."""
    assert debug_mode(loaded_by(SWITCH.format(off=True), **environment)) == LIGHT


def test_the_switch_is_on(tmp_path: Path) -> None:
    """The control: the same lines load what the test above looks for."""
    found = debug_mode(loaded_by(SWITCH.format(off=False), KVSAN="1", KVSAN_OPTIONS=f"log_path={tmp_path}/log"))
    assert {"kvsan.runtime.tracing", "kvsan.checker.session", "msgspec"} <= found


def test_a_switch_that_says_neither_ends_the_process() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        loaded_by(SWITCH.format(off=True), KVSAN="maybe")
    assert caught.value.returncode == 2
    assert caught.value.stderr.count("\n") == 1
    assert 'KVSAN is "maybe"; accepted: 1 or 0' in caught.value.stderr


RACE = """
import numpy as np
from kvsan.checker.debug import debug
from kvsan.runtime.device import Copy, Kernel
from runtime.null import NullDevice
device = debug(NullDevice())
for name in ("compute", "load"):
    device.stream(name, side=name == "load")
for pool in ("gpu", "cpu"):
    device.memory(pool, (1, 64), host=pool == "cpu")
host, ids = device.host("host"), np.arange(4)
host.launch("compute", Kernel("forward", {"gpu": ids}))
if FENCED:
    host.record("compute", "e")
    host.wait("load", "e")
host.copy("load", Copy("load", "cpu", ids, "gpu", ids))
"""


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("on", [True, False])
def test_a_process_ends_as_its_run_was(tmp_path: Path, fenced: bool, on: bool) -> None:
    env = os.environ | {
        "KVSAN": str(int(on)),
        "KVSAN_OPTIONS": f"trace={tmp_path}/t.kvt:incident=0",
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("model", "runtime", "checker", "tests")),
    }
    code = RACE.replace("FENCED", str(fenced))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == (66 if on and not fenced else 0)
    assert (tmp_path / "t.kvt").exists() == on
    if not on:
        assert done.stderr == ""
    else:
        assert ("CLEAN" if fenced else "RACY") in done.stderr


# ── what the code has no place for ────────────────────────────────────────────────────────────────────────────────────

WORD = re.compile(
    r"^(trac(e|es|ed|er|ers|ing)|sinks?|debug(ging)?|kvsan_?options|instrument(ed|ation)?|hooks?|log(s|ger|ging)?)$"
)
"""A word of a name that stands for looking on."""

CALLBACK = re.compile(r"_?(callback|listener|observer|probe)s?$")
GIVEN = re.compile(r"^_?on_(?!free$|take$|the_way$)")
"""A name that is somebody's to be called, if it is an argument or an attribute. `on_free` and `on_take` are how a pool
hears of its own blocks.
"""


def words(name: str) -> Iterator[str]:
    """`onTrace_x` as on, trace, x."""
    for part in re.split(r"[_.\W]+", name):
        yield from (word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", part))


def names_in(tree: ast.AST) -> Iterator[tuple[ast.AST, int, str]]:
    """Every name that code can mention: variables, attributes, arguments, keywords, imports, definitions, and the
    strings that name something (`getattr(x, "trace")`, `environ["KVSAN"]`)."""
    texts = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield node, node.lineno, name
            case ast.keyword(arg=str(name)):
                yield node, node.value.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node, node.lineno, name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                module = getattr(node, "module", None)
                for name in [module or "", *(alias.name for alias in aliases), *(a.asname or "" for a in aliases)]:
                    yield node, node.lineno, name
            case ast.Constant(value=str(text)) if node not in texts and re.fullmatch(r"[\w.]+", text):
                yield node, node.lineno, text


def places(source: str) -> list[str]:
    """Where the code mentions what looks on: `line: name`."""
    found = []
    for node, line, name in names_in(ast.parse(source)):
        looks_on = any(WORD.match(word) or (word == "kvsan" and name.isupper()) for word in words(name))
        given = isinstance(node, ast.arg | ast.keyword | ast.Attribute) and GIVEN.match(name)
        if looks_on or given or CALLBACK.search(name):
            found.append(f"{line}: {name}")
    return found


SIMULATED = {"simulated.py", "versions.py"}
"""They remember what ran, for tests; no engine ships with them."""


@pytest.mark.parametrize(
    "path",
    [path for path in serving_modules() if path.name not in SIMULATED],
    ids=lambda path: str(path.relative_to(RUNTIME)),
)
def test_the_engine_has_no_place_for_it(path: Path) -> None:
    assert places(path.read_text()) == []


@pytest.mark.parametrize(
    "code",
    [
        "if self.trace: pass",
        "def f(*, on_trace=None): pass",
        "f(on_step=g)",
        "self._on_step = f",
        "self.sink.access(blocks)",
        "from kvsan.runtime import tracing",
        "from kvsan.runtime.tracing import Traced",
        "import logging",
        "DEBUG = False",
        "if _debug_mode: pass",
        "class TracedEngine: pass",
        "getattr(device, 'tracer', None)",
        "os.environ.get('KVSAN')",
        "os.environ['KVSAN_OPTIONS']",
        "self._callbacks.append(f)",
        "for observer in self.observers: pass",
        "device.add_listener(f)",
        "def instrumented(f): return f",
        "self.hooks = []",
        "match op:\n    case 1:\n        self.logger.info(1)",
        "lambda sinks: sinks",
    ],
)
def test_a_place_is_seen(code: str) -> None:
    assert places(code)


@pytest.mark.parametrize(
    "code",
    [
        '"""Text may speak of tracing, a sink, a debug flag."""\nx = 1',
        "import kvsan.model.design",
        "self._on_free(freed)",
        "login = catalogue = extraction = sinking = 1",
        "raise ValueError('a trace of something')",
        "on = work.on",
        "on_cpu = tensor.device.type == 'cpu'",
        "host.record(on, event)",
        "torch.cumsum(x)",
    ],
)
def test_what_is_no_place_is_passed(code: str) -> None:
    assert places(code) == []
