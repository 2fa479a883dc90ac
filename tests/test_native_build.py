"""The C extensions: compiling them, what is said where that cannot be done, whether a built one is up to date."""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

import native
from sample_extension import needs_compiler, put_samples, sample

HOT = "kvsan.checker.attach._hot"

READ_SOURCE = """\
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
loader = ExtensionFileLoader(*sys.argv[1:])
module = module_from_spec(spec_from_loader(loader.name, loader))
loader.exec_module(module)
print(module.SOURCE)
"""


def built_from(name: str, built: Path) -> str:
    """The SOURCE of an extension, read by a fresh interpreter: this one may hold an older build of the same name."""
    command = [sys.executable, "-I", "-c", READ_SOURCE, name, str(built)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def stale(root: Path) -> list[str]:
    """The extensions that are built in place for this interpreter, and not from the source beside them."""
    return [
        f"{name} is not built from {source.relative_to(root)}: run make native"
        for name, source in native.sources(root).items()
        if (built := native.built_path(name, native.portion(source))).is_file()
        and built_from(name, built) != native.source_hash(source)
    ]


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def suffixed(*paths: str) -> set[str]:
    return {f"{path}{sysconfig.get_config_var('EXT_SUFFIX')}" for path in paths}


def in_place(root: Path) -> Path:
    return native.built_path(HOT, root / "checker")


# --- the extensions of this tree ---


def test_what_is_built_in_place_is_up_to_date() -> None:
    assert stale(native.ROOT) == []


@needs_compiler
def test_a_stale_build_is_found(tmp_path: Path) -> None:
    put_samples(tmp_path)
    assert stale(tmp_path) == []  # nothing is built
    native.build(root=tmp_path)
    assert stale(tmp_path) == []
    source = tmp_path / native.EXTENSIONS[HOT]
    source.write_text(source.read_text() + "/* a change */\n")
    assert stale(tmp_path) == [f"{HOT} is not built from checker/native/hot.c: run make native"]
    native.build(root=tmp_path)
    assert stale(tmp_path) == []


@pytest.mark.parametrize(("name", "path"), native.EXTENSIONS.items())
def test_an_extension_and_its_source_are_of_one_portion(name: str, path: str) -> None:
    assert name.split(".")[:2] == ["kvsan", path.partition("/")[0]]


# --- where it compiles to ---


@needs_compiler
def test_in_place_and_into_a_folder(tmp_path: Path) -> None:
    root, into = tmp_path / "root", tmp_path / "into"
    put_samples(root)
    native.build(into, root)
    assert files(into) == suffixed("kvsan/checker/attach/_hot", "kvsan/runtime/_lines")
    before = files(root)
    native.build(root=root)
    assert files(root) - before == suffixed("checker/kvsan/checker/attach/_hot", "runtime/kvsan/runtime/_lines")


@needs_compiler
def test_a_source_that_is_not_there_is_skipped(tmp_path: Path) -> None:
    put_samples(tmp_path)
    (tmp_path / native.EXTENSIONS[HOT]).unlink()
    assert [path.parent.name for path in native.build(root=tmp_path)] == ["runtime"]


def test_without_sources_nothing_is_asked_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent")
    assert native.build(root=tmp_path) == []


@needs_compiler
@pytest.mark.parametrize("name", native.EXTENSIONS)
def test_a_failed_build_leaves_nothing(tmp_path: Path, name: str) -> None:
    put_samples(tmp_path)
    assert all(path.is_file() for path in native.build(root=tmp_path))
    (tmp_path / native.EXTENSIONS[name]).write_text("int broken(void) { return 1 }\n")
    with pytest.raises(native.BuildError, match=r"\.c:1.*error"):
        native.build(root=tmp_path)
    assert {path for path in files(tmp_path) if not path.endswith(".c")} == set()


@needs_compiler
def test_without_a_compiler_a_built_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_samples(tmp_path)
    native.build(root=tmp_path)
    monkeypatch.setenv("CC", "/nonexistent")
    with pytest.raises(native.BuildError, match="no C compiler"):
        native.build(root=tmp_path)
    assert in_place(tmp_path).is_file()


@needs_compiler
@pytest.mark.parametrize("strict", [False, True])
def test_only_strict_minds_a_warning(tmp_path: Path, strict: bool) -> None:
    put_samples(tmp_path)
    native.build(tmp_path / "clean", tmp_path, strict)
    source = tmp_path / native.EXTENSIONS[HOT]
    source.write_text(sample("_hot") + "int more(int unused);\nint more(int unused) { return 0; }\n")
    if strict:
        with pytest.raises(native.BuildError, match="unused"):
            native.build(tmp_path / "warned", tmp_path, strict)
    else:
        assert len(native.build(tmp_path / "warned", tmp_path, strict)) == 2


# --- where it cannot ---


def windows(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(sysconfig, "get_platform", lambda: "win-amd64")


def other_python(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(platform, "python_implementation", lambda: "PyPy")


def free_threaded(patch: pytest.MonkeyPatch, folder: Path) -> None:
    real = sysconfig.get_config_var
    patch.setattr(sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else real(name))


def no_header(patch: pytest.MonkeyPatch, folder: Path) -> None:
    real = sysconfig.get_path
    patch.setattr(sysconfig, "get_path", lambda name: str(folder) if name.endswith("include") else real(name))


def no_compiler(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("CC", "/nonexistent")


def no_permission(patch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "checker/kvsan").write_text("a file where a folder has to be")  # root writes where it may not


@needs_compiler
@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (windows, "not for Windows"),
        (other_python, "for CPython, and this is PyPy"),
        (free_threaded, "free-threaded"),
        (no_header, "no Python.h in"),
        (no_compiler, "no C compiler '/nonexistent'"),
        (no_permission, "checker/kvsan"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_one_line_says_why_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    breaks: Callable[[pytest.MonkeyPatch, Path], None],
    said: str,
    strict: bool,
) -> None:
    put_samples(tmp_path)
    breaks(monkeypatch, tmp_path)
    assert native.main(["--strict"] if strict else [], tmp_path) == (1 if strict else 0)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("kvsan: no C extensions: ")
    assert said in line


@needs_compiler
def test_a_compiler_that_the_interpreter_names_and_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sysconfig.get_config_var
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "/built/elsewhere/cc" if name == "CC" else real(name))
    assert native.compiler() == ["cc"]


@needs_compiler
def test_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(native.ROOT / "scripts/native.py"), "--into", str(tmp_path), "--strict"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(native.built_path(name, tmp_path)) for name in native.sources()]
    assert done.stderr == ""
