"""A design named on the command line: a name of the catalogue, or a Python file that defines one.

A design file is Python and is run, with the rights of whoever runs `kvsan`: read one that is not yours before. What
goes wrong in it is reported as its own line and its own error, never as our traceback. A file that does not end is
not ended: Ctrl-C.
"""

from __future__ import annotations

import ast
import os
import sys
import traceback
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsan.model.design import Design

MODULE = "kvsan_design_file"


class DesignFileError(Exception):
    """What is wrong with a design that was named, in one line, with its file and line if there is one."""


def load_design(name: str) -> Design:
    """The design. Raises `DesignFileError`."""
    from kvsan.model.design import DesignError
    from kvsan.model.designs import load

    path = Path(name)
    if path.suffix == ".py" or path.parts[1:] or path.exists():
        return _from_file(path)
    try:
        return load(name)
    except DesignError as error:
        raise DesignFileError(f"{name}: {error} (`kvsan designs` lists them; a file ends in .py)") from None


def _from_file(path: Path) -> Design:
    source = _read(path)
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise DesignFileError(f"{path}:{error.lineno or 1}: {type(error).__name__}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise DesignFileError(f"{path}: {_line(error)}") from None
    return _only(path, source, _run(path, code))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DesignFileError(f"{path}: {(error.strerror or str(error)).lower()}; accepted: a Python file") from None


def _run(path: Path, code: CodeType) -> dict[str, Any]:
    """The file's names, after it has run. What it prints goes to stderr: stdout is the report's."""
    module = ModuleType(MODULE)
    module.__file__ = str(path)
    with _importable(path, module), redirect_stdout(sys.stderr), _descriptor_to_stderr():
        try:
            exec(code, module.__dict__)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a design file has no say in our exit status
            raise DesignFileError(f"{_where(path, error)}: {_line(error)}") from None
    return module.__dict__


@contextmanager
def _descriptor_to_stderr() -> Iterator[None]:
    """What the file, or a process that it starts, writes to descriptor 1 goes to stderr too."""
    try:
        kept = os.dup(1)
    except OSError:  # there is none to spoil
        yield
        return
    try:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        with suppress(OSError):
            os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _importable(path: Path, module: ModuleType) -> Iterator[None]:
    """Files beside it can be imported, as with `python FILE`."""
    before = sys.path[:]
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[MODULE] = module
    try:
        yield
    finally:
        sys.path[:] = before
        sys.modules.pop(MODULE, None)


def _only(path: Path, source: bytes, names: dict[str, Any]) -> Design:
    """The one design of the file: `DESIGN` if it has that name, else the only design, else the only protocol."""
    from kvsan.model.design import Design, Protocol
    from kvsan.model.design.sound import sound

    public = {name: value for name, value in names.items() if not name.startswith("__")}
    if "DESIGN" in public:
        if not isinstance(public["DESIGN"], Design | Protocol):
            what, line = type(public["DESIGN"]).__name__, _assigned(source, "DESIGN")
            raise DesignFileError(f"{path}:{line}: DESIGN is no design but of type {what}; write DESIGN = p.design()")
        public = {"DESIGN": public["DESIGN"]}
    found: dict[str, Design | Protocol] = {}
    for kind in (Design, Protocol):
        for name, value in public.items():
            if isinstance(value, kind) and not any(value is other for other in found.values()):
                found[name] = value
        if found:
            break
    if not found:
        raise DesignFileError(f"{path}: defines no design; end it with DESIGN = p.design()")
    if len(found) > 1:
        raise DesignFileError(f"{path}: defines {len(found)} designs ({', '.join(found)}); call the one meant DESIGN")
    ((name, value),) = found.items()
    try:
        design = value if isinstance(value, Design) else value.design()
        sound(design)
    except Exception as error:  # not only ours: an object of the file may do anything
        raise DesignFileError(f"{path}:{_assigned(source, name)}: {_line(error)}") from None
    return design


def _where(path: Path, error: BaseException) -> str:
    """The innermost line of the file itself; what it called is not the reader's business."""
    lines = [
        number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)
    ]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _line(error: BaseException) -> str:
    """The error in one line; ours speak for themselves, others say what they are."""
    from kvsan.model.design import DesignError

    try:
        text = " ".join(str(error).split())
    except Exception:  # the file's own exception, whose text is the file's own code
        text = ""
    if isinstance(error, DesignError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _assigned(source: bytes, name: str) -> int:
    """The last line on which the file gives the name a value."""
    lines = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
    ]
    return max(lines, default=1)
