#!/usr/bin/env python3
"""Compiles kvsan's optional C extensions, with the compiler and the flags that this interpreter was built with.

    python scripts/native.py                  # in place: beside the modules that use them
    python scripts/native.py --into FOLDER    # FOLDER/kvsan/checker/attach/_hot.….so
    python scripts/native.py --strict         # the compiler's warnings are errors, and what cannot be built is one, too

`hatch_build.py` calls it for a wheel, standard or editable. CC and CFLAGS of the environment are heard: the one instead
of the interpreter's own, the other in addition. Each source is compiled with the macro KVSAN_SOURCE, a string: the
first 16 hex digits of the SHA-256 of all C files and headers of its folder and of the headers that both have
(`SHARED`), which the module has as its attribute SOURCE.

kvsan does without its extensions, so what cannot be built is one line on stderr and status 0 (with `--strict` 1). Does
not cover: a compiler for another machine.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

EXTENSIONS = {
    "kvsan.checker.attach._hot": "checker/native/hot.c",
    "kvsan.runtime._lines": "runtime/native/lines.c",
}
"""Each extension's name and its source from the root of the repository. One whose source is not there is skipped."""

SHARED = ("runtime/native/lock.h",)
"""Headers that more than one extension includes."""


class BuildError(Exception):
    """Why there is no extension, in one line; `said` is all that the compiler printed."""

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(why)
        self.said = said


def source_hash(source: Path) -> str:
    """What an extension that was built from this source, and what lies beside it, has as its SOURCE."""
    found = hashlib.sha256()
    shared = {ROOT / path for path in SHARED}
    for path in sorted({source, *shared, *source.parent.glob("*.[ch]")}):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def sources(root: Path = ROOT) -> dict[str, Path]:
    """The extensions whose sources are there."""
    return {name: root / path for name, path in EXTENSIONS.items() if (root / path).is_file()}


def portion(source: Path) -> Path:
    """The folder from which the modules of a source's portion are imported: checker/ of checker/native/hot.c."""
    return source.parent.parent


def built_path(name: str, folder: Path) -> Path:
    """Where the extension `name` lies for this interpreter, if modules are imported from `folder`."""
    *packages, module = name.split(".")
    return folder.joinpath(*packages, f"{module}{sysconfig.get_config_var('EXT_SUFFIX')}")


def compiler() -> list[str]:
    """The command of the C compiler: CC of the environment, else the interpreter's own, else cc."""
    asked = os.environ.get("CC")
    command = shlex.split(asked or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]):
        return command
    # An interpreter that was built elsewhere names a compiler that need not be here.
    if not asked and shutil.which("cc"):
        return ["cc"]
    raise BuildError(f"there is no C compiler {command[0]!r}")


def include_folders() -> list[str]:
    """Where Python.h and pyconfig.h lie."""
    return sorted({sysconfig.get_path("include"), sysconfig.get_path("platinclude")})


def flags() -> list[str]:
    """What the interpreter was compiled with, but for -g; what this machine's linker is told of a module."""
    of_python = shlex.split(f"{sysconfig.get_config_var('CFLAGS') or ''} {sysconfig.get_config_var('CCSHARED') or ''}")
    module = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared", "-fno-plt"]
    return [*(flag for flag in of_python if not flag.startswith("-g")), *module, "-O2", "-fvisibility=hidden", "-Wall"]


def check_interpreter() -> None:
    """Raises BuildError where an extension cannot be built for this interpreter, or would not be right in it."""
    if sysconfig.get_platform().startswith("win"):
        raise BuildError("they are not for Windows")
    if platform.python_implementation() != "CPython":
        raise BuildError(f"they are for CPython, and this is {platform.python_implementation()}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("they rely on the GIL, and this is a free-threaded Python")
    if not any(Path(folder, "Python.h").is_file() for folder in include_folders()):
        raise BuildError(f"there is no Python.h in {sysconfig.get_path('include')} (Debian: apt install python3-dev)")


def compile_extension(name: str, source: Path, folder: Path, strict: bool = False) -> Path:
    """Compiles one source to where `name` is imported from `folder`; raises BuildError.

    It comes in by a rename: a running engine may have the file that was there mapped.
    """
    target = built_path(name, folder)
    new = target.with_name(f".{target.name}.{os.getpid()}")
    command = [
        *compiler(),
        *flags(),
        *(["-Wextra", "-Werror"] if strict else []),
        *shlex.split(os.environ.get("CFLAGS", "")),
        *(f"-I{include}" for include in include_folders()),
        f'-DKVSAN_SOURCE="{source_hash(source)}"',
        str(source),
        "-o",
        str(new),
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            said = done.stderr.strip() or f"the compiler ended with status {done.returncode}"
            first = next((line for line in said.splitlines() if "error" in line), said.splitlines()[-1])
            raise BuildError(first, f"{shlex.join(command)}\n{said}")
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)
    return target


def build(into: Path | None = None, root: Path = ROOT, strict: bool = False) -> list[Path]:
    """Compiles every source that is there, into `into` or in place; raises BuildError.

    All or none: where a compiler was run and failed, nothing is left, since an old build beside a source that cannot be
    compiled would run other code than it says. Without a compiler what was there stays.
    """
    there = {name: (source, into or portion(source)) for name, source in sources(root).items()}
    if not there:
        return []
    check_interpreter()
    compiler()
    try:
        return [compile_extension(name, *places, strict) for name, places in there.items()]
    except (BuildError, OSError) as error:  # OSError: a folder that cannot be written, a compiler that cannot be run
        with suppress(OSError):
            for name, (_, folder) in there.items():
                built_path(name, folder).unlink(missing_ok=True)
        raise error if isinstance(error, BuildError) else BuildError(str(error)) from error


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line: what was built on stdout, why nothing was on stderr."""
    parser = argparse.ArgumentParser(description="Compiles kvsan's optional C extensions.")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="a folder on PYTHONPATH; default: in place")
    parser.add_argument("--strict", action="store_true", help="warnings, and what cannot be built, are errors")
    asked = parser.parse_args(arguments)
    try:
        built = build(asked.into, root, asked.strict)
    except BuildError as error:
        if asked.strict and error.said:
            print(error.said, file=sys.stderr)
        print(f"kvsan: no C extensions: {error}", file=sys.stderr)
        return 1 if asked.strict else 0
    for path in built:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
