"""Streams and events that order nothing real: what `torch.cuda` offers for ordering, on a machine without a GPU.

    cuda = SimulatedCuda(seed=7)
    load, done = cuda.Stream(), cuda.Event()
    with cuda.stream(load):
        copy(...)
        done.record()
    cuda.current_stream().wait_event(done)

Same names, arguments and errors as `torch.cuda` (read in `torch/cuda/streams.py` and `c10/cuda/CUDAEvent.h` of torch
2.13): an event never recorded is done and waiting for it does nothing; `elapsed_time` asks for `enable_timing=True`
(`ValueError`), for two records (`ValueError`), and for both to be complete (`RuntimeError`); an event is recorded on
streams of one device; a pool has 32 streams of each priority class and device, which come round again.

A query chooses among the answers that some device could give (`timeline`): by a seed, by a text of choices that a
failure has printed, or by whatever `choose` is. After `PATIENCE` times "not yet" in a row the answer is yes, so that
a loop that polls ends.

Relies on: nothing of torch. Does not cover: kernels and memory (a copy of tensors is the engine's, on the CPU, at
once), graphs, IPC handles, external streams, and which of two host threads is faster: that is the machine's.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvsan.checker.testing.streams import SimulatedEvent, SimulatedStream
from kvsan.checker.testing.timeline import Past, Timeline

PATIENCE = 16
STREAMS_PER_POOL = 32
"""`c10/cuda/CUDAStream.h`: "there are 32 streams per pool"."""


@dataclass(frozen=True, slots=True)
class Device:
    """Stands for `torch.device` where there is no torch."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


class Choices:
    """Answers to "is it done?": of a seed, or of a text of 0 and 1 that is played first (and then yes)."""

    def __init__(self, seed: object = 0, text: str | None = None) -> None:
        if text is not None and set(text) - set("01"):
            raise ValueError(f"choices={text!r} is no text of answers; accepted: 0 (not yet) and 1 (done), as printed")
        self._dice = random.Random(str(seed))
        self._given = None if text is None else iter(text)
        self.made: list[str] = []

    def __call__(self) -> bool:
        answer = self._dice.random() < 0.5 if self._given is None else next(self._given, "1") == "1"
        self.made.append("01"[answer])
        return answer

    def __str__(self) -> str:
        return "".join(self.made)


class SimulatedCuda:
    """What of `torch.cuda` orders work. One is one set of devices; its classes are its own.

    `seed`, `choices`, `choose`: where the answers of queries come from (the first that is given, from the right).
    `fails`: set it to an exception, and every call that would reach the driver raises it.
    """

    def __init__(
        self,
        seed: object = 0,
        *,
        devices: int = 1,
        choices: str | None = None,
        choose: Callable[[], bool] | None = None,
    ) -> None:
        if devices < 1:
            raise ValueError(f"devices={devices}: a simulated machine has at least one")
        self.seed = seed
        self.fails: BaseException | None = None
        self.timeline = Timeline()
        self.answers = Choices(seed, choices)
        self._choose = choose or self.answers
        self._devices = devices
        self._lock = threading.RLock()
        self._here = threading.local()
        self._made: dict[tuple[int, int], int] = {}
        self._serial = 0
        self._on_device: set[int] = set()
        self.device_type: Callable[[int], Any] = lambda index: Device("cuda", index)
        cuda = self

        class Stream(SimulatedStream):
            """`torch.cuda.Stream`."""

            _cuda = cuda

        class Event(SimulatedEvent):
            """`torch.cuda.Event`."""

            _cuda = cuda

        self.Stream: Any = Stream
        self.Event: Any = Event

    @property
    def choices(self) -> str:
        """The answers so far: `SimulatedCuda(choices=…)` gives them again, if the host threads run alike."""
        return str(self.answers)

    # ── what torch.cuda has ───────────────────────────────────────────────────────────────────────────────────────

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return self._devices

    def current_device(self) -> int:
        return int(getattr(self._here, "device", 0))

    def set_device(self, device: Any) -> None:
        index = self.index_of(device)
        if index >= 0:
            self._here.device = index

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = self.current_device()
        if device is not None:
            self.set_device(device)
        try:
            yield
        finally:
            self._here.device = before

    def default_stream(self, device: Any = None) -> Any:
        return self.Stream(stream_id=0, device_index=self.index_of(device), device_type=1)

    def current_stream(self, device: Any = None) -> Any:
        index = self.index_of(device)
        found = self._streams_here().get(index)
        return self.default_stream(index) if found is None else found

    def set_stream(self, stream: Any) -> None:
        if stream is None:
            return
        self._streams_here()[stream.device_index] = stream
        self._here.device = stream.device_index

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        """As `torch.cuda.stream`: the thread's current stream inside, and the stream's device; `None` does nothing."""
        if stream is None:
            yield
            return
        device, before = self.current_device(), self.current_stream(stream.device_index)
        self.set_stream(stream)
        try:
            yield
        finally:
            self._launched(stream)
            self._streams_here()[stream.device_index] = before
            self._here.device = device

    def synchronize(self, device: Any = None) -> None:
        self.call()
        index = self.index_of(device)
        with self._lock:
            for key in self.timeline.streams():
                if key[0] == index:
                    self.timeline.finish(self.timeline.all_of(key))

    # ── what the simulation adds ──────────────────────────────────────────────────────────────────────────────────

    def put_on_device(self, *tensors: Any) -> None:
        """CPU tensors of torch that stand for device memory: `deriving()` and copies take them for it."""
        for tensor in tensors:
            self._on_device.add(tensor.untyped_storage().data_ptr())

    def is_on_device(self, tensor: Any) -> bool:
        if not self._on_device:
            return False
        return tensor.untyped_storage().data_ptr() in self._on_device

    def call(self) -> None:
        """What each call of the driver does first."""
        if self.fails is not None:
            raise self.fails

    def index_of(self, device: Any) -> int:
        """The number of a device: `None` is the current one. Raises `RuntimeError` for one that is not there."""
        if device is None:
            return self.current_device()
        index = device
        if not isinstance(device, int):
            kind, _, number = str(device).partition(":")
            if kind != "cuda" or (number and not number.isdecimal()):
                raise ValueError(f"Expected a cuda device, but got: {device}")
            index = int(number) if number else self.current_device()
        if index >= self._devices:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({index} of {self._devices} simulated devices)")
        return int(index)

    def answer(self, past: Past, asked: SimulatedEvent | SimulatedStream) -> bool:
        """Whether it is done: what is known, else a choice."""
        with self._lock:
            if self.timeline.must_be_done(past):
                return True
            done = asked._refused >= PATIENCE or self._choose()
            asked._refused = 0 if done else asked._refused + 1
            if done:
                self.timeline.finish(past)
            return done

    def _launched(self, stream: SimulatedStream) -> None:
        """Work may have been launched on it."""
        with self._lock:
            self.timeline.issue(stream.key)

    def _streams_here(self) -> dict[int, Any]:
        found: dict[int, Any] | None = getattr(self._here, "streams", None)
        if found is None:
            found = self._here.streams = {}
        return found

    def _stream_id(self, device: int, priority: int) -> int:
        """Ids of a pool come round; a device and a priority class have a pool of their own."""
        high = min(priority, 0)
        with self._lock:
            number = self._made[device, high] = self._made.get((device, high), -1) + 1
        return 1 + number % STREAMS_PER_POOL - high * STREAMS_PER_POOL

    def _next(self) -> int:
        with self._lock:
            self._serial += 1
            return self._serial
