"""Small things a session needs of the process: where it writes, how it ends, what SIGTERM does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_LOADED_IN = os.getpid()


def own_path(path: str) -> str:
    """`%p` is the process id. Without it the first process has the path as it is, others their id in its name.

    The first is the one in which the first session was started. A child of `multiprocessing` is none, nor is one forked
    from a process that had loaded kvsan: their parents may have started, or start yet, a session of their own.
    """
    pid = str(os.getpid())
    if "%p" in path:
        return path.replace("%p", pid)
    if path == os.devnull or (os.environ.get("KVSAN_FIRST_PROCESS", pid) == pid and not _is_child()):
        return path
    return with_id(path)


def _is_child() -> bool:
    process: Any = sys.modules.get("multiprocessing.process")  # in its children it is always loaded
    return os.getpid() != _LOADED_IN or (process is not None and process.parent_process() is not None)


def with_id(path: str) -> str:
    """With the process id before the suffix."""
    where = Path(path)
    name, dot, suffix = where.name.partition(".")
    return str(where.with_name(f"{name}.{os.getpid()}{dot}{suffix}"))


def written_since(path: str, moment: int) -> bool:
    """Whether the file was written after a moment (`time.time_ns`)."""
    try:
        return os.stat(path).st_mtime_ns > moment
    except OSError:
        return False


def numbered(path: str) -> str:
    """With `%n` for the number of the incident: where there is none, before the suffix."""
    if "%n" in path:
        return path
    where = Path(path)
    name, dot, suffix = where.name.partition(".")
    return str(where.with_name(f"{name}-%n{dot}{suffix}"))


class Log:
    """Where reports go. Never raises: a closed stderr is no reason to stop a server."""

    def __init__(self, path: str) -> None:
        self._path = path

    def say(self, text: str) -> None:
        try:
            if self._path in ("stderr", "stdout"):
                out: Any = getattr(sys, self._path)
                try:
                    out.write(text + "\n")
                    out.flush()
                except RuntimeError:  # a signal came in the middle of a write to it
                    os.write(2 if self._path == "stderr" else 1, (text + "\n").encode())
                return
            with open(own_path(self._path), "a", encoding="utf-8") as file:
                file.write(text + "\n")
        except Exception:
            if self._path != "stderr":
                self._path = "stderr"
                self.say(text)


class LastWord:
    """Sets the exit status when the interpreter takes its modules apart, after every exit handler and flush.

    `os._exit` in an exit handler would keep those that were registered earlier from running.
    """

    def __init__(self) -> None:
        self.status = 0
        self._exit = os._exit

    def __del__(self) -> None:
        if self.status:
            self._exit(self.status)


def exits_with(last: Callable[[], int]) -> None:
    """For a child of `multiprocessing` that was forked: it ends by `os._exit`, once it has printed its traceback and
    joined its threads. From now on `last` runs there, and its status, if it is not 0, is that of the process.
    """
    leave = os._exit

    def ends(status: int) -> None:
        status = last() or status
        for out in (sys.stdout, sys.stderr):
            try:
                out.flush()
            except Exception:  # closed, or not there: nothing to be flushed
                continue
        leave(status)

    setattr(os, "_exit", ends)  # noqa: B010 - what mypy knows as NoReturn


def on_sigterm(act: Callable[[], None]) -> None:
    """Runs `act` on SIGTERM, then what was to happen before. Nothing if this is not the main thread.

    A handler that was not installed from Python cannot be called: then the process ends as if there had been none.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)

    def handler(number: int, frame: FrameType | None) -> None:
        act()
        if callable(before):
            before(number, frame)
        elif before is None or before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handler)
