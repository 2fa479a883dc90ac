"""The engine on the simulated machine: the default is right in every order, an unsafe design is not; it all replays."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kvsan.model.designs import load
from kvsan.runtime.device.policy import FAIR, policy
from kvsan.runtime.device.schedule import Schedule
from kvsan.runtime.device.simulated import Simulated
from kvsan.runtime.device.versions import strays
from kvsan.runtime.engine import Engine, Sizes
from kvsan.runtime.language import Group, Model
from kvsan.runtime.serve import garbled, serve
from kvsan.runtime.workload import Workload, blocks_for, requests_of

MODEL = Model(groups=(Group("full"), Group("window", 64)), stop_every=40)
WORKLOAD = Workload(requests=20, concurrency=12, seed=3)
REQUESTS = requests_of(WORKLOAD, MODEL)
BLOCKS = blocks_for(WORKLOAD, MODEL, oversubscribed=4, requests=REQUESTS)
POLICIES = ("fair", "early", "late", "lazy", "starve:load", "starve:store", "starve:compute")


def served(design: str, device: Simulated) -> tuple[dict[int, list[int]], list[int]]:
    """The tokens of each completion, and which are wrong."""
    engine = Engine(load(design), device, MODEL, Sizes(BLOCKS.gpu, BLOCKS.host, slots=12, budget=192))
    done = serve(engine, REQUESTS, 12)
    device.close()
    return {number: list(one.tokens) for number, one in done.items()}, garbled(MODEL, REQUESTS, done)


@pytest.mark.parametrize("chosen", POLICIES)
def test_the_default_is_right_in_every_order(chosen: str) -> None:
    device = Simulated(seed=1, policy=policy(chosen), observe=True)
    assert served("kvsan-default", device)[1] == []
    assert list(strays(device.log)) == []
    assert {op.name for op in device.ops} >= {"forward", "store", "load"}


def test_an_unsafe_design_garbles_and_the_schedule_shows_it_again() -> None:
    device = Simulated(seed=1, policy=policy("starve:compute"), observe=True)
    tokens, wrong = served("vllm-before-46278", device)
    assert wrong
    assert list(strays(device.log))
    again = Simulated(replay=str(device.schedule), observe=True)
    assert served("vllm-before-46278", again) == (tokens, wrong)
    assert list(strays(again.log)) == list(strays(device.log))


@pytest.mark.parametrize("design", ["kvsan-default", "copier-symmetric"])
def test_other_orders_of_the_same_host_choices_give_the_same_completions(design: str) -> None:
    """A thread that copies included."""
    device = Simulated(seed=5, policy=FAIR)
    tokens, wrong = served(design, device)
    assert wrong == []
    kept = Schedule.parse(str(device.schedule.host))
    for seed, chosen in enumerate(POLICIES):
        other = Simulated(seed=seed, policy=policy(chosen), host=kept, observe=True)
        assert served(design, other) == (tokens, [])
        assert list(strays(other.log)) == []
