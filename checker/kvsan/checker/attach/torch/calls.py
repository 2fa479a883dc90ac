"""Wraps the Python methods by which engines order work: record, wait, synchronise, query, and copies that block.

Where a line stands (`TRACE.md`): a non-blocking call is made and logged under the recorder's lock; a blocking one is
logged at its entry without it. Only the outermost wrapped call of a thread is logged: `Stream.wait_event` calls
`Event.wait`, and the two are one wait. A call that raises is no line.

`torch.Event` and `torch.Stream` are C types that cannot be changed; subclasses of themselves, which `isinstance` does
not tell apart, take their places. Those made before that, and whatever C++ code orders by itself, go by the wrappers:
PyTorch's trace callbacks see those and count them as unseen edges (`crosscheck`).

Tensor methods that touch blocks are wrapped from the first `register_pool` with a tensor on, when that begins to matter
(`copies`). Those that block are wrapped then too; before it only where PyTorch's callbacks, in which each blocking copy
shows, are not there, or not heard in each step (`sampling`).

The calls of a step are written out, with nothing made for a call that does not have to be: between an engine's own work
each line of ours finds cold caches. One lock, no context manager, names by one look where they are known.

While a thread captures a CUDA graph, its calls order nothing outside: no lines (`graphs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsan.checker.attach.ledger import Hook
from kvsan.checker.attach.lines import POLL, RECORD, WAIT, Held
from kvsan.checker.attach.native import namer, quick
from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.recorder import KvsanHazard, Recorder
from kvsan.checker.attach.torch.copies import TO_HOST, TOUCHING, Copies
from kvsan.checker.attach.torch.crosscheck import CrossCheck
from kvsan.checker.attach.torch.graphs import Graphs
from kvsan.checker.attach.torch.here import Here
from kvsan.checker.attach.torch.sampling import Sampling
from kvsan.checker.attach.torch.surface import NAME, Surface, as_stand_in, stand_in, stream_name

Function = Callable[..., Any]


def _place(patches: Patches, there: bool) -> None:
    if there:
        patches.put_back()
    else:
        patches.lift()


class Calls:
    """The hooks, and the state that they share."""

    def __init__(self, recorder: Recorder, surface: Surface, patches: Patches) -> None:
        self.recorder = recorder
        self.surface = surface
        self.here = Here()
        self.patches = patches
        self.paused = False
        self.sampling: Sampling | None = None
        """Where the engine's steps are told (`sample`)."""
        self._blocking, self._touching = Patches(), Patches()
        """Tensor methods that block, and those that only touch."""
        self._current = surface.current
        self._names: dict[tuple[int, int], str] = {}
        """Streams that have been current, by (device, handle), as long as no stream was destroyed."""
        self._names_at = recorder.streams_gone
        self._crosscheck = CrossCheck(self)
        device, handle = surface.raw or (None, None)
        self.namer = namer(recorder, device, handle, self._meet, self._name, surface.devices)

    def install(self) -> None:
        surface = self.surface
        for owner, name in surface.replaced:
            self._replace_class(owner, name, self._event, keeps=self.recorder.event_names.attribute)
        for owner, name in surface.replaced_streams:
            made = self._replace_class(owner, name, self._stream)
            for module, function in surface.handed_out if made is not None else ():
                self._hand_out(module, function, made)
        for kind in surface.events:
            self._event(kind)
        for kind in surface.streams:
            self._stream(kind)
        for owner, name in surface.synchronize:
            self._wrap(owner, name, self._device_sync, "synchronize")
        for kind in surface.tensors:
            self._tensor(kind)
        graphs = Graphs(self)
        for kind in surface.graphs:
            self._wrap(kind, "capture_begin", graphs.begin, "CUDAGraph.capture_begin")
            self._wrap(kind, "capture_end", graphs.end, "CUDAGraph.capture_end")
            self._wrap(kind, "replay", graphs.replay, "CUDAGraph.replay")
        self.recorder.regions.on_first = self._arrange
        if surface.graphs:
            self._crosscheck.install()
        self._arrange()

    def uninstall(self) -> None:
        self._crosscheck.uninstall()
        if self.recorder.regions.on_first == self._arrange:
            self.recorder.regions.on_first = None
        self._blocking.undo()
        self._touching.undo()
        self.patches.undo()
        self.recorder.sampling = None
        self.recorder.attachments.pop("torch", None)

    def pause(self) -> None:
        """The originals are back, and PyTorch's callbacks call nothing of ours, until `resume`. Whoever pauses tells
        the recorder. What stays: events and streams that were made as stand-ins are, with the originals' methods.
        """
        self.paused = True
        self.patches.lift()
        self._arrange()
        self._crosscheck.pause()

    def resume(self) -> None:
        """Everything is in place again. What happened meanwhile is not known, and nobody counts it."""
        self.paused = False
        if self.sampling is None or self.sampling.watching:
            self._crosscheck.resume()
        self._arrange()
        self.patches.put_back()

    def sample(self, *, watch: int = 16, of: int = 512, first: int = 64) -> None:
        """From now on PyTorch's callbacks are heard in `watch` steps of each `of`, after the first `first`, if the
        engine's hooks call `sampling.step()` at each. Nothing where they are not armed.
        """
        if self._crosscheck.armed:
            self.recorder.sampling = self.sampling = Sampling(self._crosscheck, watch=watch, of=of, first=first)
            self._arrange()

    def relax(self) -> None:
        """PyTorch's callbacks are armed: they say what blocks."""
        self._arrange()

    def _arrange(self) -> None:
        """Puts the tensor methods' wrappers in place, or takes them out."""
        pools = bool(self.recorder.regions.all)
        heard = self._crosscheck.armed and self.sampling is None
        _place(self._blocking, not self.paused and (pools or not heard))
        _place(self._touching, not self.paused and pools)

    def name(self, stream: Any) -> str:
        """The name of a stream, the current one for `None`."""
        if stream is None:
            found = self.known_current()
            if found is not None:
                return found
            stream = self.surface.current_stream()
        recorder = self.recorder
        kept = getattr(stream, NAME, None)
        if kept is not None and kept[0] is recorder and kept[1] == recorder.streams_gone:
            known: str = kept[2]
            return known
        return stream_name(recorder, stream, external=self.surface.external)

    def _name(self, stream: Any) -> str:
        return self.name(stream)  # whatever that is by now

    def known_current(self) -> str | None:
        """The name of the current stream, if that is to be had cheaply and has been met before."""
        current = self._current
        if current is None:
            return None
        key = current()
        found = self._names.get(key)
        if found is None or self._names_at != self.recorder.streams_gone:
            found = self._meet(key)
        return found

    def _meet(self, key: tuple[int, int]) -> str | None:
        if self._names_at != self.recorder.streams_gone:
            self._names.clear()
            self._names_at = self.recorder.streams_gone
        found = self.recorder.find_stream(*key)
        if found is not None:
            self._names[key] = found
        return found

    def safe_name(self, stream: Any) -> str | None:
        """The same, where a fault must not keep the engine's call from being made."""
        with self.recorder.guard("naming a stream"):
            return self.name(stream)
        return None

    def stream_of(self, what: Any) -> str:
        """The name of the stream that is current on the device of a tensor, or on a device."""
        surface = self.surface
        return self.name(surface.current_stream() if surface.stream_of is None else surface.stream_of(what))

    def crossing(self, target: Any, source: Any) -> str | None:
        """The stream that a copy between host and device is made on, `None` for any other copy."""
        on_device = self.surface.on_device
        to, of = on_device(target), on_device(source)
        if to == of or any(getattr(each, "is_meta", False) for each in (target, source)):
            return None
        return self.stream_of(target if to else source)

    def passes(self) -> bool:
        """Whether a tensor method is none of ours: kvsan is off, or it is part of another, or its ops are derived."""
        here = self.here
        return not self.recorder.on or here.looking > 0 or here.deriving > 0 or (here.busy > 0 and not here.captured)

    def unseen(self, what: str) -> None:
        """A copy that cannot be logged: now, or at each replay of the graph that is being captured."""
        captured = self.here.captured
        if captured is not None:
            captured.unseen(what)
        else:
            self.recorder.unseen(copies=1, what=what)

    # ── what is wrapped ───────────────────────────────────────────────────────────────────────────────────────────

    def _event(self, kind: Any) -> None:
        self._wrap(kind, "record", self._record, "Event.record")
        self._wrap(kind, "wait", self._wait, "Event.wait")
        self._wrap(kind, "query", self._query, "Event.query")
        self._wrap(kind, "synchronize", self._event_sync, "Event.synchronize")
        self._wrap(kind, "elapsed_time", self._elapsed, "Event.elapsed_time")

    def _stream(self, kind: Any) -> None:
        self._wrap(kind, "wait_event", self._wait_event, "Stream.wait_event")
        self._wrap(kind, "wait_stream", self._wait_stream, "Stream.wait_stream")
        self._wrap(kind, "record_event", self._record_event, "Stream.record_event")
        self._wrap(kind, "synchronize", self._stream_sync, "Stream.synchronize")
        self._wrap(kind, "query", self._stream_query, "Stream.query")

    def _tensor(self, kind: Any) -> None:
        copies = Copies(self)
        wrap = self._wrap
        for name in TO_HOST:
            wrap(kind, name, copies.to_host, "Tensor.item, cpu, …", self._blocking)
        wrap(kind, "copy_", copies.copy_into, "Tensor.copy_", self._blocking)
        wrap(kind, "to", copies.to, "Tensor.to", self._blocking)
        for name in TOUCHING:
            if hasattr(kind, name):
                wrap(kind, name, copies.touching, "Tensor.index_copy_, zero_, …", self._touching)

    def _wrap(
        self,
        owner: Any,
        name: str,
        make: Callable[[Function, Hook], Function],
        hook_name: str,
        patches: Patches | None = None,
    ) -> None:
        hook = self.recorder.ledger.hook(f"torch.{hook_name}", expected=False, version=self.surface.version)
        if getattr(getattr(owner, name, None), "__kvsan_wraps__", None) is not None:
            self.recorder.ledger.note(
                "torch is hooked by another session of this process, so this one hears nothing of it"
            )
        (self.patches if patches is None else patches).wrap(owner, name, lambda original: make(original, hook), hook)

    def _replace_class(self, owner: Any, name: str, hook: Callable[[Any], None], keeps: str | None = None) -> Any:
        """A subclass under the same name, which takes the original's instances for its own. `None` if it cannot be."""
        original = getattr(owner, name)
        try:
            made = stand_in(original, name, keeps)
        except TypeError as error:
            self.recorder.ledger.hook(f"torch.{name}", expected=False).missing(str(error))
            return None
        hook(made)
        self.patches.replace(owner, name, made)
        return made

    def _hand_out(self, owner: Any, name: str, made: Any) -> None:
        """A function that returns streams of the class that `made` stands in for."""

        def make(original: Function) -> Function:
            def handed_out(*args: Any, **kwargs: Any) -> Any:
                found = original(*args, **kwargs)
                if self.recorder.on:
                    with self.recorder.guard(name):
                        return as_stand_in(made, found)
                return found

            return handed_out

        self.patches.wrap(owner, name, make)

    # ── non-blocking: under the lock, call then line ──────────────────────────────────────────────────────────────

    def quiet(self) -> bool:
        return self.here.busy > 0 or not self.recorder.on

    def _record(self, original: Function, hook: Hook) -> Function:
        return self._of_event(original, hook, RECORD, "record")

    def _wait(self, original: Function, hook: Hook) -> Function:
        return self._of_event(original, hook, WAIT, "wait")

    def _of_event(self, original: Function, hook: Hook, code: int, what: str) -> Function:
        """`event.record(stream)` or `event.wait(stream)`. The lock is held, so the line is added without more ado."""
        recorder, here, add = self.recorder, self.here, self.recorder.add
        thread, known = recorder.thread_name, recorder.event_name

        def call(event: Any, /, stream: Any = None) -> Any:
            if here.busy or not recorder.on:
                return original(event, stream)
            lock = recorder.lock
            lock.acquire()
            try:
                here.busy = 1
                result = original(event, stream)
                hook.count += 1
                try:
                    add((code, thread(), self.name(stream), known(event), recorder.now()))
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault(hook.name, error)
            finally:
                here.busy = 0
                lock.release()
            return result

        call.__name__ = what
        return self._quick(what, original, call, hook)

    def _quick(self, kind: str, original: Function, slow: Function, hook: Hook) -> Function:
        return quick(kind, original, slow, self.recorder, hook, self.here, self.namer, self.recorder.event_names)

    def _wait_event(self, original: Function, hook: Hook) -> Function:
        return self._of_stream(original, hook, WAIT)

    def _record_event(self, original: Function, hook: Hook) -> Function:
        return self._of_stream(original, hook, RECORD)

    def _of_stream(self, original: Function, hook: Hook, code: int) -> Function:
        """`stream.wait_event(event)` or `stream.record_event(event)`, which makes an event where it is given none."""
        recorder, here, add = self.recorder, self.here, self.recorder.add
        thread, known = recorder.thread_name, recorder.event_name

        def call(stream: Any, /, event: Any = None) -> Any:
            if here.busy or not recorder.on:
                return original(stream, event)
            lock = recorder.lock
            lock.acquire()
            try:
                here.busy = 1
                result = original(stream, event)
                hook.count += 1
                try:
                    which = result if event is None else event
                    add((code, thread(), self.name(stream), known(which), recorder.now()))
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault(hook.name, error)
            finally:
                here.busy = 0
                lock.release()
            return result

        return self._quick("record_event" if code == RECORD else "wait_event", original, call, hook)

    def _wait_stream(self, original: Function, hook: Hook) -> Function:
        recorder, here, log = self.recorder, self.here, self.recorder.add_wait_stream
        thread = recorder.thread_name

        def wait_stream(this: Any, /, stream: Any) -> Any:
            if here.busy or not recorder.on:
                return original(this, stream)
            lock = recorder.lock
            lock.acquire()
            try:
                here.busy = 1
                result = original(this, stream)
                hook.count += 1
                try:
                    if recorder.on:
                        log(self.name(this), self.name(stream), thread())
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault(hook.name, error)
            finally:
                here.busy = 0
                lock.release()
            return result

        return self._quick("wait_stream", original, wait_stream, hook)

    def _query(self, original: Function, hook: Hook) -> Function:
        recorder = self.recorder
        thread, known = recorder.thread_name, recorder.event_name

        def log(event: Any, done: bool) -> None:
            if recorder.on:
                recorder.add((POLL, thread(), known(event), done, recorder.now()))

        return self._quick("query", original, self._asked(original, hook, log), hook)

    def _stream_query(self, original: Function, hook: Hook) -> Function:
        def log(stream: Any, done: bool) -> None:
            if done:
                self.recorder.seen_done(stream=self.name(stream))

        return self._asked(original, hook, log)

    def _elapsed(self, original: Function, hook: Hook) -> Function:
        poll = self.recorder.poll

        def elapsed_time(event: Any, /, end_event: Any) -> Any:
            def log(_: Any, __: bool) -> None:  # it answers only if both are done
                poll(event, True)
                poll(end_event, True)

            return self._asked(lambda start: original(start, end_event), hook, log)(event)

        return elapsed_time

    def _asked(self, original: Function, hook: Hook, log: Callable[[Any, bool], None]) -> Function:
        """A call whose answer, yes or no, is the line."""
        recorder, here = self.recorder, self.here

        def query(this: Any) -> Any:
            if here.busy or not recorder.on:
                return original(this)
            lock = recorder.lock
            lock.acquire()
            try:
                here.busy = 1
                answer = original(this)
                hook.count += 1
                try:
                    log(this, bool(answer))
                except KvsanHazard:
                    raise
                except Exception as error:
                    recorder.fault(hook.name, error)
            finally:
                here.busy = 0
                lock.release()
            return answer

        return query

    # ── blocking: the line at entry, no lock ──────────────────────────────────────────────────────────────────────

    def block(self, hook: Hook, call: Callable[[], Any], **what: Any) -> Any:
        here = self.here
        hook.count += 1
        with self.recorder.blocking(**what):
            here.busy = 1
            try:
                return call()
            finally:
                here.busy = 0

    def _event_sync(self, original: Function, hook: Hook) -> Function:
        """`Blocking` written out: an engine makes this call in each step."""
        recorder, here = self.recorder, self.here
        thread, known = recorder.thread_name, recorder.event_name

        def synchronize(event: Any) -> Any:
            if here.busy or not recorder.on:
                return original(event)
            hook.count += 1
            held: Held | None = None
            queue: object = None
            lock = recorder.lock
            lock.acquire()
            try:
                held = recorder.hold(thread(), known(event), None, None, recorder.now())
                queue = recorder._queue
            except KvsanHazard:
                raise
            except Exception as error:
                recorder.fault(hook.name, error)
            finally:
                lock.release()
            done = False
            here.busy = 1
            try:
                result = original(event)
                done = True
            finally:
                here.busy = 0
                if held is not None and recorder._queue is queue and recorder.on:
                    recorder.returned(held, done=done)
            return result

        return self._quick("synchronize", original, synchronize, hook)

    def _stream_sync(self, original: Function, hook: Hook) -> Function:
        def synchronize(stream: Any) -> Any:
            if self.quiet():
                return original(stream)
            return self.block(hook, lambda: original(stream), stream=self.safe_name(stream))

        return synchronize

    def _device_sync(self, original: Function, hook: Hook) -> Function:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            if not self.quiet():
                with self.recorder.guard("synchronize"):
                    which = self.surface.device_of(args[0] if args else kwargs.get("device"))
                if self.recorder.on:
                    return self.block(hook, lambda: original(*args, **kwargs), device=which)
            return original(*args, **kwargs)

        return synchronize
