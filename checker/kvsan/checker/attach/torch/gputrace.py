"""PyTorch's trace callbacks, once armed, at as little cost as the registries of `torch.cuda._gpu_trace` allow.

Armed, PyTorch calls Python at each allocation and each end of device memory and at each step in an event's life, some
thirty times in a step of vLLM: it looks up `torch.cuda._gpu_trace.<registry>.fire_callbacks` by name and calls it with
one number, or two for a record and a wait (`torch/csrc/PyInterpreter.cpp`, `CONCRETE_GPU_TRACE`; none for a device's
synchronisation). `fire_callbacks` is a method in Python that goes through the registry's list.

So where a registry has no callback, or ours alone, its `fire_callbacks` is hidden behind an attribute of the registry
of the same name: nothing, as a method in C, or that one callback. The list stays what was registered. Whoever registers
one more (`add_callback`, which `register_callback_for_…` calls) gets PyTorch's own method back.

Relied on: nobody changes `callback_list` but through `add_callback`. What our callback raises ends in PyTorch's log, as
it does in `fire_callbacks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

_EACH = "_kvsan_callbacks"
_FIRE, _ADD = "fire_callbacks", "add_callback"

nothing: Callable[..., Any] = dict[Any, Any]().get
"""Takes one number or two, and does nothing."""
nothing_at_all: Callable[..., Any] = ().__len__
"""Takes no argument: for the synchronisation of a device."""


def shorten(trace: ModuleType, owner: object, callbacks: Sequence[Any], *, silent: bool = False) -> None:
    """From now on the callbacks of `owner`, which are registered, are called without a detour where they are alone, and
    nothing is called where there are none. `silent`: they are not called.
    """
    for registry in _registries(trace):
        if _EACH not in vars(registry):
            setattr(registry, _EACH, {})
            setattr(registry, _ADD, _adding(registry))
        vars(registry)[_EACH][id(owner)] = (callbacks, silent)
        _settle(registry)


def restore(trace: ModuleType, owner: object, callbacks: Sequence[Any]) -> None:
    """Takes the callbacks of `owner` out, and where nobody else asked for it what hides PyTorch's methods."""
    for registry in _registries(trace):
        if any(each in callbacks for each in registry.callback_list):  # a new list: another thread may be in it
            registry.callback_list = [each for each in registry.callback_list if each not in callbacks]
        owners = vars(registry).get(_EACH)
        if owners is None:
            continue
        owners.pop(id(owner), None)
        if owners:
            _settle(registry)
        else:
            for name in (_FIRE, _ADD, _EACH):
                vars(registry).pop(name, None)


def _registries(trace: ModuleType) -> Iterator[Any]:
    for registry in list(vars(trace).values()):
        if isinstance(getattr(registry, "callback_list", None), list):
            yield registry


def _adding(registry: Any) -> Callable[[Any], None]:
    def add_callback(callback: Any) -> None:
        registry.callback_list = [*registry.callback_list, callback]
        _settle(registry)

    return add_callback


def _settle(registry: Any) -> None:
    owners = list(vars(registry)[_EACH].values())
    quiet = [each for callbacks, silent in owners if silent for each in callbacks]
    ours = [each for callbacks, _ in owners for each in callbacks]
    heard = [each for each in registry.callback_list if each not in quiet]
    if not heard:
        setattr(registry, _FIRE, nothing_at_all if "device synchronization" in registry.name else nothing)
    elif len(heard) == 1 and heard[0] in ours:
        setattr(registry, _FIRE, heard[0])
    elif len(heard) == len(registry.callback_list):
        vars(registry).pop(_FIRE, None)
    else:
        others = type(registry)(registry.name)
        others.callback_list = heard
        setattr(registry, _FIRE, others.fire_callbacks)
