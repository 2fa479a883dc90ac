"""Puts a simulated device in the place of `torch.cuda`, and lets kvsan's session hear it like the real one.

    with simulated_cuda(seed=7) as cuda:     # torch.cuda.Stream, torch.Event, torch.cuda.stream(…), … are simulated
        engine = Engine()                    # written for torch, no GPU in the machine
        engine.run()

Where torch is not imported nothing is replaced: an engine that takes its device module as an argument is given `cuda`.
If a session is in force (`checked()`, the pytest fixture, `KVSAN=1`) its hooks are put on the simulated classes,
the same wrappers that real ones get (`attach.torch`).

Names that a module took for itself before (`from torch.cuda import Stream`) are its own: name the module in `modules`,
and what it holds of torch's is replaced there as well.

Entered again in one session it is the same machine to kvsan: a stream of the same number is the same stream.

Does not cover: tensors on the device (`device="cuda"` fails as before: take the device from a variable, and say
`cuda.put_on_device(tensor)` of those that stand for device memory), `torch.accelerator`, graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from kvsan.checker.attach.patches import Patches
from kvsan.checker.attach.torch import Calls, Surface, install
from kvsan.checker.session import Session, current
from kvsan.checker.testing import checking
from kvsan.checker.testing.cuda import SimulatedCuda

NAMES = (
    *("Stream", "Event", "stream", "current_stream", "default_stream", "set_stream", "synchronize"),
    *("is_available", "device_count", "current_device", "set_device", "device"),
)
"""What of `torch.cuda` is replaced."""


@contextmanager
def simulated_cuda(
    seed: object = None,
    *,
    devices: int = 1,
    choices: str | None = None,
    choose: Callable[[], bool] | None = None,
    session: Session | None = None,
    modules: tuple[ModuleType, ...] = (),
    torch: bool | None = None,
) -> Iterator[SimulatedCuda]:
    """The simulated device, in the place of torch's until the end.

    `seed`, `choices`, `choose`: see `SimulatedCuda`; no seed is that of the test (`--kvsan-seed`), else 0. `session`:
    who hears it; the one in force if left out. `torch`: whether torch's names are replaced; if somebody has imported
    it, where that is left out. Raises `RuntimeError` if the session hears another torch already.
    """
    found = checking.innermost()
    cuda = SimulatedCuda(
        (found.seed if found is not None else 0) if seed is None else seed,
        devices=devices,
        choices=choices,
        choose=choose,
    )
    patches = Patches()
    library: Any = import_module("torch") if torch or (torch is None and "torch" in sys.modules) else None
    hearing = _Hearing(cuda, library)
    try:
        hearing.move(session or current())
        if library is not None:
            _replace(library, cuda, patches, modules)
        if session is None:
            checking.listeners.append(hearing.move)
        if found is not None:
            found.devices.append(cuda)
        yield cuda
    finally:
        if hearing.move in checking.listeners:
            checking.listeners.remove(hearing.move)
        hearing.move(None)
        patches.undo()


class _Hearing:
    """Which session hears the device: one at a time, since hooks lie on its classes."""

    def __init__(self, cuda: SimulatedCuda, library: Any) -> None:
        self._surface = surface(cuda, library)
        self._calls: Calls | None = None

    def move(self, session: Session | None) -> None:
        if self._calls is not None:
            self._calls.uninstall()
            self._calls = None
        if session is None or not session.recorder.on:
            return
        if "torch" in session.recorder.attachments:
            raise RuntimeError(
                "kvsan: the session hears another torch already; accepted: one simulated device at a time, entered"
                " before attach.torch.install"
            )
        self._calls = install(session.recorder, self._surface)


def surface(cuda: SimulatedCuda, library: Any = None) -> Surface:
    """What `attach.torch` hooks of a simulated device."""

    def stream_of(what: Any) -> Any:
        device = getattr(what, "device", what)
        return cuda.current_stream(device if getattr(device, "type", "cuda") == "cuda" else None)

    return Surface(
        events=(cuda.Event,),
        streams=(cuda.Stream,),
        synchronize=((cuda, "synchronize"),),
        tensors=() if library is None else (library.Tensor,),
        current_stream=cuda.current_stream,
        stream_of=stream_of,
        device_of=cuda.index_of,
        on_device=cuda.is_on_device,
        version="simulated",
    )


def _replace(library: Any, cuda: SimulatedCuda, patches: Patches, modules: tuple[ModuleType, ...]) -> None:
    cuda.device_type = lambda index: library.device("cuda", index)
    theirs: dict[int, Any] = {}
    for name in NAMES:
        original = getattr(library.cuda, name)
        value = getattr(cuda, name)
        if name == "synchronize":  # found at each call: it is wrapped on `cuda`
            value = lambda device=None: cuda.synchronize(device)  # noqa: E731
        theirs[id(original)] = value
        patches.replace(library.cuda, name, value)
    event = _any_event(cuda)
    theirs[id(library.Event)] = event
    patches.replace(library, "Event", event)
    for module in modules:
        for name, value in list(vars(module).items()):
            if id(value) in theirs:
                patches.replace(module, name, theirs[id(value)])


def _any_event(cuda: SimulatedCuda) -> type:
    """`torch.Event`, whose first argument is the device."""
    kind: Any = cuda.Event

    class Event(kind):  # type: ignore[misc]  # the class of this device, made with it
        """`torch.Event`."""

        def __init__(
            self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
        ) -> None:
            cuda.index_of(device)
            super().__init__(enable_timing, blocking, interprocess)

    return Event
