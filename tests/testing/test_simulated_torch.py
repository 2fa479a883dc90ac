"""Engine code that imports torch, on simulated streams and events; and that torch is itself again afterwards."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import pytest

from kvsan.checker import access, register_pool
from kvsan.checker.attach.torch import deriving
from kvsan.checker.session import current
from kvsan.checker.testing import HazardsFound, checked, simulated_cuda
from kvsan.checker.testing.simulated import NAMES

torch = pytest.importorskip("torch")


class Engine:
    """As it would be written for a GPU: nothing in it knows of the simulation."""

    def __init__(self, fenced: bool) -> None:
        self.fenced = fenced
        self.load = torch.cuda.Stream()
        self.done = torch.cuda.Event()
        register_pool(None, 16, "gpu")

    def step(self, blocks: list[int]) -> None:
        assert torch.cuda.is_available()
        with access("forward", reads={"gpu": blocks}):
            pass
        self.done.record()
        if self.fenced:
            self.load.wait_event(self.done)
        with torch.cuda.stream(self.load), access("load", writes={"gpu": blocks}):
            pass
        loaded = torch.Event("cuda")
        loaded.record(self.load)
        torch.cuda.current_stream().wait_event(loaded)


@pytest.mark.parametrize("fenced", [True, False])
def test_an_engine_written_for_torch(fenced: bool) -> None:
    with checked(judge=False) as kvsan, simulated_cuda():
        Engine(fenced).step([1, 2])
    assert isinstance(kvsan.failure(), HazardsFound) != fenced
    assert kvsan.judged().ledger.hooks["torch.Event.record"].count == 2
    assert kvsan.judged().ops == (8 if fenced else 7)  # two of them drops: its events are gone at the end


def test_torch_is_itself_again() -> None:
    names = [(torch, "Event"), *((torch.cuda, name) for name in NAMES)]
    before = [getattr(owner, name) for owner, name in names]
    with simulated_cuda():
        assert all(getattr(owner, name) is not was for (owner, name), was in zip(names, before, strict=True))
    with pytest.raises(ZeroDivisionError), simulated_cuda():
        print(1 // 0)
    assert [getattr(owner, name) for owner, name in names] == before
    assert current() is None


def test_what_a_module_took_for_itself_is_replaced_where_it_is_named() -> None:
    module = ModuleType("engine")
    module.Stream, module.other = torch.cuda.Stream, torch.cuda.Stream  # type: ignore[attr-defined]
    with simulated_cuda(modules=(module,)) as cuda:
        assert module.Stream is module.other is cuda.Stream
    assert module.Stream is torch.cuda.Stream
    with simulated_cuda():
        assert module.Stream is not torch.cuda.Stream


def test_synchronize_is_heard_however_it_was_taken() -> None:
    with checked() as kvsan, simulated_cuda():
        synchronize = torch.cuda.synchronize
        engine = Engine(fenced=False)
        with access("forward", reads={"gpu": [1]}):
            pass
        synchronize()
        with torch.cuda.stream(engine.load), access("load", writes={"gpu": [1]}):
            pass
    assert kvsan.judged().ledger.hooks["torch.synchronize"].count == 1


def test_devices_are_those_of_torch() -> None:
    with simulated_cuda(devices=2):
        assert torch.cuda.device_count() == 2
        with torch.cuda.device(torch.device("cuda", 1)):
            stream = torch.cuda.Stream()
            assert stream.device == torch.device("cuda:1")
            assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream(torch.device("cuda")).device.index == 0


def test_isinstance_holds() -> None:
    with simulated_cuda():
        assert isinstance(torch.cuda.Stream(), torch.cuda.Stream)
        assert isinstance(torch.Event("cuda"), torch.cuda.Event)
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)


@pytest.mark.parametrize("fenced", [True, False])
def test_tensors_that_stand_for_device_memory(fenced: bool) -> None:
    """Ops of torch on a pool's tensor, found by address, on the stream that is current."""
    with checked(judge=False) as kvsan, simulated_cuda() as cuda:
        cache = torch.zeros(8, 4)
        cuda.put_on_device(cache)
        register_pool(cache, 8, "gpu")
        side = torch.cuda.Stream()
        with deriving():
            read = cache[2:4] + 1
            if fenced:
                side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                cache[3:5].zero_()
    assert read.shape == (2, 4)
    assert isinstance(kvsan.failure(), HazardsFound) != fenced
    if not fenced:
        (found,) = kvsan.judged().findings
        assert (found.hazard.kind.value, str(found.hazard.blocks)) == ("WAR", "3")


def test_a_copy_to_the_host_waits_for_its_stream() -> None:
    with checked() as kvsan, simulated_cuda() as cuda:
        counter = torch.zeros(1)
        cuda.put_on_device(counter)
        engine = Engine(fenced=False)
        with access("forward", reads={"gpu": [1]}):
            pass
        assert counter.item() == 0
        with torch.cuda.stream(engine.load), access("load", writes={"gpu": [1]}):
            pass
    assert kvsan.judged().verdict.name == "clean"


def test_polls_of_another_thread() -> None:
    """A thread that saw an event done and hands on nothing orders nothing for others."""

    def poll(event: Any) -> None:
        while not event.query():
            pass

    with checked(judge=False) as kvsan, simulated_cuda(seed=1):
        engine = Engine(fenced=False)
        with access("forward", reads={"gpu": [1]}):
            pass
        engine.done.record()
        thread = threading.Thread(target=poll, args=(engine.done,))
        thread.start()
        thread.join()
        with torch.cuda.stream(engine.load), access("load", writes={"gpu": [1]}):
            pass
        poll(engine.done)
        with torch.cuda.stream(engine.load), access("load", writes={"gpu": [2]}):
            pass
    assert [str(found.hazard.blocks) for found in kvsan.judged().findings] == ["1"]
