"""The switch and its manners: `KVSAN=1` starts a session, `KVSAN_OPTIONS` tells it what to do (`options.py`).

    from kvsan.checker import session
    session.start_if_asked()          # what a plugin calls; does nothing without KVSAN=1
    debug = session.start(Options())  # or from code; the second call gives the first one's session
    device = session.debug(device)    # a device of `kvsan.runtime`; `kvsan.checker.debug` is the same at less cost

The process's session leaves all that follows from a line to a process beside this one (`beside`), unless the options
say otherwise; one that code makes for itself does it here.

One line at the start; each new sort of hazard as it is found; a summary with the ledger at exit and on SIGTERM. A
process with hazards ends with status `exitcode`, set at the very end of the interpreter so that every other exit
handler has run. A fault inside turns the session off, says so at once, and makes the verdict Incomplete; the engine
goes on. A forked child starts over with its own log: `%p` in a path is the process id, and without it every process
but the first puts its id before the suffix, as does one that would write over what another process has written since
it began.

Relies on: attachments that undo themselves through `on_close`. Does not cover: a process that ends by `os._exit` or
SIGKILL (no summary; the trace reads to its last flush and is not Clean), signals other than SIGTERM.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

try:
    import msgspec
except ModuleNotFoundError as error:
    if os.environ.get("KVSAN", "0") in ("", "0"):
        raise
    print(f"kvsan: KVSAN is set and {error.name} is missing: pip install 'kvsan[checker]'", file=sys.stderr, flush=True)
    raise SystemExit(2) from None

from kvsan.checker import options as opts
from kvsan.checker import suppressions as known
from kvsan.checker.attach.core import BATCH
from kvsan.checker.attach.native import WRONG
from kvsan.checker.attach.recorder import Recorder, Sink
from kvsan.checker.beside.pipe import Account
from kvsan.checker.beside.side import TOO_LATE, Side, can_be
from kvsan.checker.binaryfile import BinaryTrace
from kvsan.checker.convert import is_binary
from kvsan.checker.incident import Ring
from kvsan.checker.live import Finding, KvsanHazard, LiveCheck
from kvsan.checker.manners import LastWord, Log, exits_with, numbered, on_sigterm, own_path, with_id, written_since
from kvsan.checker.options import Options
from kvsan.checker.report import session as words
from kvsan.checker.summary import NOT_CHECKED, Summary, header_of, marked, summarise
from kvsan.checker.suppressions import Suppression, Suppressions
from kvsan.checker.tracefile import TraceFile

if TYPE_CHECKING:
    from kvsan.runtime.device import Device

__all__ = ["KvsanHazard", "Options", "Session", "current", "debug", "start", "start_if_asked"]

SIGTERM_WAIT = 10
"""Seconds that a SIGTERM waits for what is being written."""


@runtime_checkable
class Pausable(Protocol):
    """An attachment whose hooks can be taken away for a while."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Session:
    """One process's debug session. `start` makes the one that the process reports on; tests make their own."""

    def __init__(
        self, options: Options | None = None, *, suppressions: Suppressions | None = None, beside: bool = False
    ) -> None:
        """`beside`: lines are worked off in a process of their own (`beside`), if the options let them. Raises
        `OptionsError` if `KVSAN_NATIVE` is wrong.
        """
        if WRONG:
            raise opts.OptionsError(WRONG)
        self.options = options or Options()
        self._beside = beside and can_be(self.options, binary=is_binary(self.options.trace))
        self.recorder = Recorder(on_fault=self._on_fault)
        self.about: dict[str, Any] = {}
        """Provenance for the header: engine, version, device."""
        self.check: LiveCheck | None = None
        self.log = Log(self.options.log_path)
        if suppressions is None:
            path = self.options.suppressions
            suppressions = known.read(path) if path else Suppressions()
        self.suppressions = suppressions
        self.ops: Callable[[], int] | None = None
        """How many lines there are, where they do not pass through the recorder."""
        self.on_certain: Callable[[], None] | None = None
        """Called at a hazard that is certain."""
        self._closers: list[Callable[[], None]] = []
        self._forked = False
        self._paused = False
        self._listen()

    def _listen(self) -> None:
        """Fresh sinks: at the start, and in a forked child."""
        given = self.options
        self.pid = os.getpid()
        self.incidents: list[str] = []
        self._printed = 0
        self._ending = False
        self._closed = False
        self._began = time.time_ns()
        self._reported = ""
        self._said: dict[str, Any] | None = None
        self._writers: list[threading.Thread] = []
        self._lost = 0
        sinks: list[Sink] = []
        self._trace: TraceFile | BinaryTrace | None = None
        self._ring = None
        self.check = None
        self.side: Side | None = None
        """The process beside this one, which has the check, the ring and the trace then."""
        if self._beside:
            self.side = Side(given, self.suppressions, self.recorder, self.about, self.pid, first=is_first())
            self.recorder.listen((), batch=BATCH, beside=self.side.pipe)
            return
        if given.trace and is_binary(given.trace):
            self._trace = BinaryTrace(own_path(given.trace), self._header)
        elif given.trace:
            self._trace = TraceFile(own_path(given.trace), self._header, self._say)
        if self._trace is not None:
            sinks.append(self._trace)
        if given.check:
            self.check = LiveCheck(
                self._report,
                self.suppressions,
                assume_stream_order=given.assume_stream_order,
                lost=self._lose,
            )
            if given.incident:
                self._ring = Ring(self.check, given.incident, given.incident_mb)
                sinks.append(self._ring)
            sinks.append(self.check)
        self.recorder.on_thread_end = self.check.thread_gone if self.check is not None else None
        # a hazard that is raised in the engine must be found where it happens
        self.recorder.listen(sinks, batch=1 if given.halt_on_error else BATCH)

    # ── what an attachment uses ───────────────────────────────────────────────────────────────────────────────────

    def on_close(self, undo: Callable[[], None]) -> None:
        """Called once at the end: puts an engine's functions back."""
        self._closers.append(undo)

    def summary(self) -> Summary:
        with self.recorder.lock:
            self.recorder.settle_up()
            name = f"process {self.pid}"
            account, why = self.side.ask() if self.side is not None else (self.account(), NOT_CHECKED)
            seen, incidents = (account.seen, account.incidents) if account is not None else (None, ())
            found = self.side is not None and self.side.pipe.found
            made = summarise(self.recorder, seen, name, incidents, inherited=self._forked, unchecked=why, found=found)
            return made if self.ops is None else replace(made, ops=self.ops())

    def close(self) -> Summary:
        """Ends the session: nothing is hooked any more, files are closed. Again: the same summary."""
        if not self._closed:
            self._closed = True
            for undo in reversed(self._closers):
                with self.recorder.guard("taking hooks away"):
                    undo()
            self._closers.clear()
            whole = self.recorder.shut()  # threads that go on say nothing more
            if self.side is not None:
                with self.recorder.lock, self.recorder.guard("closing the trace"):
                    self.side.ask(last=True, whole=whole)
            self.end(whole=whole)
            self.recorder.closing = False
        return self.summary()

    def end(self, *, whole: bool) -> None:
        """Closes what this process writes. `whole`: the run was seen to its end."""
        with self.recorder.lock, self.recorder.guard("closing the trace"):
            self.recorder.settle_up()
            if self._trace is not None:
                self._trace.close(whole=whole)
        for writer in self._writers:
            writer.join(60)

    def pause(self) -> None:
        """Takes the hooks away for a while, so that they cost nothing. What happens meanwhile is not seen, so the
        verdict is Incomplete from here on; meant for where the engine is idle.
        """
        with self.recorder.lock:
            if self._closed or self._paused or not self.recorder.on:
                return
            self.recorder.settle_up()
            self._paused = True
            self.recorder.on = False
            self.recorder.ledger.note("the session was paused: what happened meanwhile was not seen")
        for attached in reversed(self.recorder.attachments.values()):
            if isinstance(attached, Pausable):
                with self.recorder.guard("taking hooks away"):
                    attached.pause()

    def resume(self) -> None:
        """Puts the hooks back. Nothing if a fault has turned kvsan off."""
        if self._paused and not self._closed and self.recorder.fault_text is None:
            self._paused = False
            for attached in self.recorder.attachments.values():
                if isinstance(attached, Pausable):
                    with self.recorder.guard("putting hooks back"):
                        attached.resume()
            self.recorder.on = True

    def settle_down(self) -> None:
        """Before a signal that may end the process: what is being written is written. The session goes on."""
        if self.recorder.lock.acquire(timeout=SIGTERM_WAIT):
            try:
                self.recorder.settle_up()
                if self.side is not None:
                    self.side.ask()
                with self.recorder.guard("flushing the trace"):
                    if self._trace is not None:
                        self._trace.flush_now()
            finally:
                self.recorder.lock.release()
        for writer in self._writers:
            writer.join(SIGTERM_WAIT)

    # ── in the process beside an engine's ─────────────────────────────────────────────────────────────────────────

    def has_begun(self, moment: int) -> None:
        """When the engine's session did (`time.time_ns`): what others have written since is theirs."""
        self._began = moment
        if isinstance(self._trace, TraceFile):
            self._trace.began = moment

    def account(self) -> Account:
        """What was seen so far."""
        with self.recorder.lock:
            self.recorder.settle_up()
            seen = self.check.seen() if self.check is not None else None
            fault = self.recorder.fault_text
            return Account(seen, tuple(self.incidents), self.recorder.ops, self._lost, fault)

    def count_lost(self) -> None:
        """After the ledger has come from the engine's process, which knows of no orders that were lost here."""
        if self._lost:
            self.recorder.ledger.unseen(0, self._lost, TOO_LATE)

    def _lose(self) -> None:
        self._lost += 1
        self.recorder.unseen(edges=1, what=TOO_LATE)

    @property
    def trace(self) -> TraceFile | BinaryTrace | None:
        """What the option `trace` asked for."""
        return self._trace

    def watch(self, device: Device, *, sites: bool = False) -> Device:
        """The device, with a log of every call that goes to this session (`watched.py`)."""
        from kvsan.checker.watched import watch

        return watch(self, device, sites=sites)

    @contextmanager
    def allowing(self, line: Suppression) -> Iterator[None]:
        """While it is open, hazards that the line matches are counted under it (`attach.allowing`)."""
        with self.recorder.lock:
            self.recorder.settle_up()  # what was issued before is none of its business
            line = self.suppressions.enter(line)
            if self.side is not None:
                self.side.pipe.enter(line)
        try:
            yield
        finally:
            with self.recorder.lock:
                self.recorder.settle_up()
                self.suppressions.leave(line)
                if self.side is not None:
                    self.side.pipe.leave(line)

    def allowed(self) -> list[Suppression]:
        """The allowances under which there was a hazard."""
        with self.recorder.lock:
            self.recorder.settle_up()
            if self.side is not None:
                account, _ = self.side.ask()
                return account.seen.allowed if account is not None and account.seen is not None else []
            return [line for line in self.suppressions.allowed.values() if line.used]

    # ── what it says ──────────────────────────────────────────────────────────────────────────────────────────────

    def banner(self) -> None:
        given = opts.shown(self.options)
        more = f" ({given})" if given else ""
        self.log.say(f"kvsan {_version()}: watching stream order on KV blocks in process {self.pid}{more}")

    def _say(self, text: str) -> None:
        self.log.say(f"kvsan[{self.pid}]: {text}")

    def say_summary(self, *, first: bool | None = None) -> None:
        """Prints the summary, if anything of it has changed since it was last printed. `first`: as `is_first`."""
        seen = self.summary()
        if seen.document() == self._said:
            return
        seen = self._write_report(seen)
        self._said = seen.document()
        if seen.idle:
            if is_first() if first is None else first:
                self.log.say(f"kvsan: process {self.pid}: saw no engine, so there is no verdict on it")
            return
        self.log.say(words.summary(seen))

    def _write_report(self, seen: Summary) -> Summary:
        """Writes the JSON report if one is asked for. The summary to be said: a report that fails is part of it."""
        if not self.options.report or seen.idle:
            return seen
        path = own_path(self.options.report)
        if self._reported != path and written_since(path, self._began):  # by a process that we do not know of
            path = with_id(path)
        self._reported = path
        try:
            with open(path, "wb") as out:
                out.write(msgspec.json.encode(seen.document()) + b"\n")
        except OSError as error:
            text = f"the report {path} could not be written: {error}"
            self.recorder.ledger.note(text)
            self.log.say(f"kvsan[{self.pid}]: {text}")
            return self.summary()
        return seen

    def status(self) -> int:
        """The exit status that the process should have; 0 to leave it alone."""
        seen = self.summary()
        if seen.verdict.name == "racy":
            return self.options.exitcode
        judged = not seen.idle or is_first()
        return self.options.incomplete_exitcode if seen.verdict.name == "incomplete" and judged else 0

    def _report(self, fresh: list[Finding]) -> None:
        """Under the recorder's lock; with `halt_on_error` in the thread that issued the later access."""
        for found in (marked(found, self.recorder.ledger.edges) for found in fresh):
            self._printed += 1
            if self._printed <= self.options.max_reports:
                self.log.say(words.finding(found, self.pid, self._printed))
            elif self._printed == self.options.max_reports + 1:
                self.log.say(f"kvsan[{self.pid}]: more hazards are counted and not printed (max_reports)")
            self._incident(found)
        certain = [found for found in fresh if not found.hazard.possible]  # another process may have ordered the rest
        if certain and self.on_certain is not None:
            self.on_certain()
        if self.options.halt_on_error and certain:
            self._end_from_thread()
            first = marked(certain[0], self.recorder.ledger.edges)
            raise KvsanHazard(first.hazard, "\n" + words.finding(first, self.pid, self._printed))

    def _end_from_thread(self) -> None:
        """A thread that dies of `KvsanHazard` may leave others waiting for it: the process is asked to end."""
        thread = threading.current_thread()
        if self._ending or self not in _all or thread is threading.main_thread():
            return
        self._ending = True
        self.log.say(f"kvsan[{self.pid}]: halt_on_error in thread {thread.name}: the process is sent SIGTERM")
        os.kill(self.pid, signal.SIGTERM)

    def _incident(self, found: Finding) -> None:
        if self._ring is None or len(self.incidents) >= self.options.max_incidents:
            return
        number = len(self.incidents) + 1
        path = own_path(numbered(self.options.incident_path).replace("%n", str(number)))
        self.incidents.append(path)
        incident = self._ring.grab(self._header(), found.hazard)

        def write() -> None:
            try:
                incident.write(path)
            except Exception as error:  # a folder that cannot be written to is no reason to stop looking
                self.incidents[number - 1] = f"{path} could not be written: {error}"
                self.log.say(f"kvsan[{self.pid}]: incident {self.incidents[number - 1]}")

        if self.options.halt_on_error:
            write()
            return
        writer = threading.Thread(target=write, name="kvsan-incident", daemon=True)
        self._writers.append(writer)
        writer.start()

    def _on_fault(self, where: str, error: BaseException) -> None:
        self.recorder.ledger.note(self.recorder.fault_text or "kvsan turned itself off")
        trail = "".join(traceback.format_exception(error)[-6:]).rstrip()
        self.log.say(
            f"kvsan[{self.pid}]: FAULT in kvsan itself, in {where}. It has turned itself off; the process goes on "
            f"unwatched and the verdict is at best INCOMPLETE. Please report this:\n{trail}"
        )

    def _header(self) -> Any:
        return header_of(self.recorder, process=self.pid, kvsan=_version(), **self.about)

    def forked(self) -> None:
        """In a forked child: what the parent has seen is the parent's."""
        if self._trace is not None:
            self._trace.abandon()
        if self.side is not None:
            self.side.pipe.forked()
        self._forked = True
        if not self._closed:
            self._listen()
            if not self.recorder.on:
                why = self.recorder.fault_text or "it was off"
                self.recorder.ledger.note(f"nothing was watched here: before this process was forked, {why}")


def _version() -> str:
    try:
        return version("kvsan")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


# ── the process's session ─────────────────────────────────────────────────────────────────────────────────────────────

FIRST = "KVSAN_FIRST_PROCESS"
_last = LastWord()
_all: list[Session] = []
"""The process's session, once there is one."""


_scoped: list[Session] = []
"""Sessions of stretches of a test, innermost last: while one is open, it is the one that hears."""


def current() -> Session | None:
    """The session that hears what happens now: the innermost scoped one, else the process's, if one was started."""
    if _scoped:
        return _scoped[-1]
    return _all[0] if _all else None


@contextmanager
def scoped(session: Session) -> Iterator[Session]:
    """`session` is the one that hears, in every thread, until the end. Its maker closes it."""
    _scoped.append(session)
    try:
        yield session
    finally:
        _scoped.remove(session)


def is_first() -> bool:
    """Whether this process is the one in which the first session of its tree was started."""
    return os.environ.get(FIRST, str(os.getpid())) == str(os.getpid())


def start(options: Options | None = None) -> Session:
    """Starts the process's session, with its banner and its words at exit. Once: later calls return the same one.

    Without `options` those of `KVSAN_OPTIONS`. Raises `OptionsError`.
    """
    there = current()
    if there is not None:
        return there
    os.environ.setdefault(FIRST, str(os.getpid()))
    options = opts.from_environment() if options is None else options
    made = Session(options, beside=options.beside)
    _all.append(made)
    made.banner()
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)
    if made.options.handle_sigterm:
        on_sigterm(_at_sigterm)
    _in_multiprocessing_children()
    return made


def start_if_asked() -> Session | None:
    """Starts the session if `KVSAN` says so; in a checked stretch of a test, its session. Options that cannot be
    understood end the process, with status 2.
    """
    try:
        return start() if _scoped or opts.switched_on() else None
    except opts.OptionsError as error:
        print(f"kvsan: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def debug(device: Device, *, sites: bool = False) -> Device:
    """The switch for an engine that is given a device: without `KVSAN=1` the device itself, with it one that logs every
    call to the process's session. Options that cannot be understood end the process, with status 2.
    """
    session = start_if_asked()
    return device if session is None else session.watch(device, sites=sites)


def _at_exit() -> None:
    for session in _all:
        try:
            session.close()
            session.say_summary()
            _last.status = session.status()
        except Exception:
            traceback.print_exc()


def _at_sigterm() -> None:
    for session in _all:
        try:
            if session.side is None:  # else its trace is flushed when it is asked
                session.settle_down()
            session.say_summary()
        except Exception:  # the engine's own handler comes after
            traceback.print_exc()


def _after_fork() -> None:
    for session in _all:
        session.forked()


def _in_multiprocessing_children() -> None:
    """Children of `multiprocessing` that were forked end by `os._exit` and run no exit handlers but its own. Both
    those of this process and, if it is one, this process.
    """
    from multiprocessing import parent_process, util

    def in_child(_: object) -> None:
        util.Finalize(None, exits_with, (_child_exit,), exitpriority=-1000)

    util.register_after_fork(_last, in_child)
    if parent_process() is not None:
        in_child(None)


def _child_exit() -> int:
    _at_exit()
    return _last.status
