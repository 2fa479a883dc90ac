"""The entry point: near free when off, and hooks that wait for vLLM's modules without loading any."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from kvsan.checker.attach.vllm.imports import WhenLoaded

ROOT = Path(__file__).resolve().parents[3]
OFF = """
import sys
sys.path[:0] = [{paths}]
from kvsan.checker.attach.vllm import plugin
plugin()
heavy = [name for name in ("numpy", "msgspec", "kvsan.checker.session", "torch", "vllm") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.parametrize("value", [None, "", "0"])
def test_off_it_loads_nothing(value: str | None) -> None:
    paths = ", ".join(repr(str(ROOT / part)) for part in ("model", "checker"))
    environment = {} if value is None else {"KVSAN": value}
    subprocess.run([sys.executable, "-I", "-c", OFF.format(paths=paths)], check=True, env=environment)


def test_the_entry_point_is_declared() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["vllm.general_plugins"]["kvsan"]
    module, _, name = declared.partition(":")
    assert callable(getattr(import_module(module), name))


def test_a_name_imported_from_a_module_is_the_wrapped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kvsan_lower.py").write_text("def copy():\n    return 1\n")
    (tmp_path / "kvsan_upper.py").write_text("from kvsan_lower import copy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = WhenLoaded()
    loaded.call("kvsan_lower", lambda module: setattr(module, "copy", lambda: 2))
    assert "kvsan_lower" not in sys.modules
    assert import_module("kvsan_upper").copy() == 2
    assert loaded.done == {"kvsan_lower"}
    late: list[str] = []
    loaded.call("kvsan_lower", lambda module: late.append(module.__name__))
    assert late == ["kvsan_lower"]
    loaded.stop()
    assert loaded not in sys.meta_path


def test_a_module_that_is_not_there_stays_away() -> None:
    loaded = WhenLoaded()
    loaded.call("kvsan_nowhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        import_module("kvsan_nowhere")
    loaded.stop()
