"""Whether a C extension is used: `kvsan.runtime.native` with a module that is compiled for the test."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import native as scripts
from kvsan.runtime import native
from sample_extension import needs_compiler, sample

NAME = "kvsan_test_sample"
VERSION = 3  # of the sample


@pytest.fixture(autouse=True)
def as_if_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.ASKED, raising=False)  # CI runs this with 0 and with 1


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The sample, where an import finds it."""
    source = tmp_path / "sample.c"
    source.write_text(sample(NAME))
    monkeypatch.syspath_prepend(tmp_path)
    yield scripts.compile_extension(NAME, source, tmp_path)
    sys.modules.pop(NAME, None)


def silently(version: int = VERSION) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return native.load(NAME, version)


@needs_compiler
@pytest.mark.parametrize("asked", [None, "", "1"])
def test_a_built_one_is_used(built: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    if asked is not None:
        monkeypatch.setenv(native.ASKED, asked)
    module = silently()
    assert getattr(module, "__file__", None) == str(built)
    assert getattr(module, "SOURCE", None) == scripts.source_hash(built.parent / "sample.c")


@needs_compiler
def test_0_leaves_a_built_one_alone(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ASKED, "0")
    assert silently() is None
    assert silently(VERSION + 1) is None  # nor is an old one worth a word
    assert NAME not in sys.modules


def test_none_is_built() -> None:
    assert silently() is None


def test_1_and_none_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ASKED, "1")
    with pytest.raises(ImportError, match=rf"KVSAN_NATIVE=1 and {NAME} is not built; .*make native.*pip install"):
        native.load(NAME, VERSION)


@needs_compiler
@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_an_old_build_is_not_used_and_that_is_said(built: Path, version: int) -> None:
    with pytest.warns(
        RuntimeWarning, match=rf"{NAME} is an old build \(VERSION 3, needed {version}\).*make native"
    ) as said:
        assert native.load(NAME, version) is None
    (warning,) = said
    assert warning.filename == __file__
    assert "\n" not in str(warning.message)


@needs_compiler
def test_1_and_an_old_build(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ASKED, "1")
    with pytest.raises(ImportError, match=r"is an old build \(VERSION 3, needed 4\); .*make native"):
        native.load(NAME, VERSION + 1)


BROKEN = {
    "not a library": ("broken.so", "no library"),
    "raises at its start": ("broken.py", "raise AttributeError('no such thing')"),
    "without a VERSION": ("broken.py", ""),
    "misses a module of its own": ("broken.py", "import kvsan_test_nowhere"),
}


@pytest.mark.parametrize("sort", BROKEN)
@pytest.mark.parametrize("asked", ["", "1"])
def test_one_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sort: str, asked: str) -> None:
    file, text = BROKEN[sort]
    name = f"kvsan_test_broken_{list(BROKEN).index(sort)}{asked}"  # an import is kept, so each has its own
    (tmp_path / file.replace("broken", name)).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(native.ASKED, asked)
    said = rf"{name} (cannot be loaded|is an old build \(VERSION None)"
    if asked:
        with pytest.raises(ImportError, match=said):
            native.load(name, VERSION)
    else:
        with pytest.warns(RuntimeWarning, match=said):
            assert native.load(name, VERSION) is None


@pytest.mark.parametrize("asked", ["yes", "2", " 1", "off"])
def test_a_value_that_means_nothing(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv(native.ASKED, asked)
    with pytest.raises(ValueError, match=rf"KVSAN_NATIVE='{asked}'; accepted: 0 .*, 1 .*, unset"):
        native.load(NAME, VERSION)
