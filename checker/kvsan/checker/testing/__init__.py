"""Property tests of an engine of your own: strategies, a state machine of a design, simulated streams, checked tests.

    from kvsan.checker.testing import checked, simulated_cuda

    def test_step():
        with checked() as kvsan, simulated_cuda() as cuda:
            kvsan.pool("gpu", 64)
            Engine(cuda).step([3, 4])      # a hazard fails the test, with the report

With pytest the fixture `kvsan` does the same (`plugin`). `docs/testing.md` is the way in.

Names are loaded when they are first used: the plugin's entry point lives below here, every pytest run on the machine
imports it, and it must cost nothing where nobody uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsan.checker.attach.allowing import allow
    from kvsan.checker.testing.checking import Checked, HazardsFound, NotChecked, checked
    from kvsan.checker.testing.cuda import SimulatedCuda
    from kvsan.checker.testing.machine import state_machine
    from kvsan.checker.testing.moves import Move
    from kvsan.checker.testing.player import Player, Raced, play
    from kvsan.checker.testing.random_designs import random_design
    from kvsan.checker.testing.simulated import simulated_cuda
    from kvsan.checker.testing.strategies import Request, designs, host_schedules, op_streams, workloads

__all__ = [
    "Checked",
    "HazardsFound",
    "Move",
    "NotChecked",
    "Player",
    "Raced",
    "Request",
    "SimulatedCuda",
    "allow",
    "checked",
    "designs",
    "host_schedules",
    "op_streams",
    "play",
    "random_design",
    "simulated_cuda",
    "state_machine",
    "workloads",
]

_HOMES = {
    "attach.allowing": ("allow",),
    "testing.checking": ("Checked", "HazardsFound", "NotChecked", "checked"),
    "testing.cuda": ("SimulatedCuda",),
    "testing.machine": ("state_machine",),
    "testing.moves": ("Move",),
    "testing.player": ("Player", "Raced", "play"),
    "testing.random_designs": ("random_design",),
    "testing.simulated": ("simulated_cuda",),
    "testing.strategies": ("Request", "designs", "host_schedules", "op_streams", "workloads"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"kvsan.checker.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ImportError(f"{name} needs hypothesis: pip install 'kvsan[testing]'") from error
    value = globals()[name] = getattr(module, name)
    return value
