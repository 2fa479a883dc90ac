"""`access` and `register_pool`: what an engine says itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attach.stand_ins import World
from attach.test_session import quiet
from kvsan.checker import access, register_pool, session
from kvsan.checker.attach.torch import install
from kvsan.checker.session import Session


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    made = Session(quiet(tmp_path))
    monkeypatch.setattr(session, "_all", [made])
    yield made
    made.close()


def test_without_a_session_nothing_happens() -> None:
    register_pool(None, 8, "gpu")
    with access("x", reads={"gpu": [1]}):
        pass


def test_an_access_stands_after_its_body_on_the_current_stream(debug: Session) -> None:
    world = World()
    install(debug, world.surface())
    register_pool(None, 8, "gpu")
    side, event = world.Stream(7), world.Event()
    with world.on(side), access("copy", writes={"gpu": [1, 2]}, step=4):
        event.record(side)
    assert debug.check is not None
    debug.recorder.settle_up()
    site = debug.check.online.findings.site(1, "s0", is_host=False)
    assert (site.label, site.on, site.step) == ("copy", "s0", 4)
    assert site.site is not None
    assert site.site.startswith("test_declare.py:")


@pytest.mark.parametrize(("on", "expected"), [("compute", "compute"), (None, None)])
def test_a_stream_can_be_named(debug: Session, on: Any, expected: str | None) -> None:
    register_pool(None, 8, "gpu")
    with access("copy", writes={"gpu": [1]}, on=on):
        pass
    assert debug.check is not None
    debug.recorder.settle_up()
    assert debug.check.online.findings.site(0, "", is_host=False).on == expected


def test_a_body_that_raises_may_have_launched(debug: Session) -> None:
    register_pool(None, 8, "gpu")
    with pytest.raises(ValueError, match="engine"), access("copy", writes={"gpu": [1]}, on="s"):
        raise ValueError("engine")
    assert debug.recorder.ops == 1


def test_a_pool_that_is_a_tensor_is_found_by_address(debug: Session) -> None:
    torch = pytest.importorskip("torch")
    from kvsan.checker.attach.torch import deriving

    install(debug, World().surface())
    cache = torch.zeros(8, 4)
    register_pool(cache, 8, "gpu")
    with deriving():
        cache[3].fill_(1)
        with access("declared", writes={"gpu": [5]}, on=None):
            cache.zero_()
    assert debug.recorder.ops == 2


def test_a_wrong_pool_is_a_fault_and_no_exception(debug: Session) -> None:
    torch = pytest.importorskip("torch")
    register_pool(torch.zeros(8, 4), 7, "gpu")
    assert debug.recorder.fault_text is not None


def test_a_decorated_function_has_the_site_of_its_call(debug: Session) -> None:
    register_pool(None, 8, "gpu")

    @access("copy", writes={"gpu": [1]}, on="s")
    def launch() -> None: ...

    launch()
    assert debug.check is not None
    debug.recorder.settle_up()
    site = debug.check.online.findings.site(0, "s", is_host=False).site
    assert site is not None
    assert site.startswith("test_declare.py:")
