"""Whether a C extension is used: it is built, it is the one that the code beside it knows, and nobody said no.

    hot = native.load("kvsan.checker.attach._hot", VERSION)  # None: do it in Python

An extension has the attribute VERSION, a number that the C source and its caller change together whenever one can no
longer do with the other. KVSAN_NATIVE in the environment says what is wanted: 0 the Python code, 1 the extension or an
ImportError, unset (or empty) the extension if there is one.

The rule: an engine runs on without its extensions, so unset never raises for what is built or not. One that is there
and cannot be used, an old build say, is slower than it looks; that is a RuntimeWarning. Does not cover: whether an
extension is built from the source beside it (a test does, by its SOURCE).
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from types import ModuleType

ASKED = "KVSAN_NATIVE"

BUILD = "in kvsan's source tree: make native, or KVSAN_BUILD_NATIVE=1 pip install . (a C compiler and Python.h)"
"""What an error and a warning say of how to get one."""


def asked() -> str:
    """What KVSAN_NATIVE says: "0", "1" or "" where it is unset. Raises ValueError for anything else."""
    value = os.environ.get(ASKED, "")
    if value not in ("", "0", "1"):
        raise ValueError(
            f"{ASKED}={value!r}; accepted: 0 (the Python code), 1 (the C extensions, an error without), unset"
        )
    return value


def load(name: str, version: int) -> ModuleType | None:
    """The extension module `name` (in full, with its packages) if its VERSION is `version`, else None.

    Raises ImportError with KVSAN_NATIVE=1 where there is none or one that cannot be used; ValueError if KVSAN_NATIVE
    is neither 0 nor 1. A RuntimeWarning says why a built one is not used, at the caller's line.
    """
    wanted = asked()
    if wanted == "0":
        return None
    module, why = _find(name, version)
    if module is not None:
        return module
    if wanted == "1":
        raise ImportError(f"{ASKED}=1 and {name} {why or 'is not built'}; {BUILD}", name=name)
    if why:
        warnings.warn(f"kvsan: {name} {why}; the Python code is used; {BUILD}", RuntimeWarning, stacklevel=2)
    return None


def found(name: str, version: int) -> tuple[ModuleType | None, str]:
    """The same for modules that are imported in any case: what `load` would raise is a text, for whoever says it."""
    try:
        return load(name, version), ""
    except (ValueError, ImportError) as error:
        return None, str(error)


def _find(name: str, version: int) -> tuple[ModuleType | None, str]:
    """The module, or what is wrong with the one that is there: empty if there is none."""
    try:
        module = import_module(name)
    except Exception as error:  # built for another libc, or its start raised: whatever it is, an engine goes on
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        return None, "" if missing else f"cannot be loaded ({type(error).__name__}: {error})"
    have = getattr(module, "VERSION", None)
    return (module, "") if have == version else (None, f"is an old build (VERSION {have}, needed {version})")
