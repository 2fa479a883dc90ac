"""PyTorch's trace callbacks, once armed, at as little cost as the registries of `torch.cuda._gpu_trace` allow.

Armed, PyTorch calls Python at each allocation and each end of device memory and at each step in an event's life, some
thirty times in a step of vLLM: it looks up `torch.cuda._gpu_trace.<registry>.fire_callbacks` by name and calls it with
one number, or two for a record and a wait (`torch/csrc/PyInterpreter.cpp`, `CONCRETE_GPU_TRACE`; none for a device's
synchronisation). `fire_callbacks` is a method in Python that goes through the registry's list.

So where a registry has no callback, or ours alone, its `fire_callbacks` is hidden behind an attribute of the registry
of the same name: nothing, as a method in C, or that one callback. The list stays what was registered. Whoever registers
one more (`add_callback`, which `register_callback_for_…` calls) gets PyTorch's own method back.

Even so a call costs 1.1 µs on an H200's host, most of it PyTorch's way to the registry: some 50 µs in a step of vLLM.
PyTorch has no way back from `_activate_gpu_trace`; but all that it sets is a flag, `c10::impl::GPUTrace::haveState`,
which each place asks first (`c10/core/impl/GPUTrace.h`) and which `libc10` exports. While nobody is to be heard it is
cleared here, and set again for whoever registers. Where it is not exported, or does not say what it should, it is let
be.

Relied on: nobody changes `callback_list` but through `add_callback`. What our callback raises ends in PyTorch's log, as
it does in `fire_callbacks`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_EACH = "_kvsan_callbacks"
_FIRE, _ADD = "fire_callbacks", "add_callback"
_FLAG = "_ZN3c104impl8GPUTrace9haveStateE"
_found: list[Any] = []

nothing: Callable[..., Any] = dict[Any, Any]().get
"""Takes one number or two, and does nothing."""
nothing_at_all: Callable[..., Any] = ().__len__
"""Takes no argument: for the synchronisation of a device."""


def shorten(
    trace: ModuleType, owner: object, callbacks: Sequence[Any], *, silent: bool = False, flag: Any = None
) -> bool:
    """From now on the callbacks of `owner`, which are registered, are called without a detour where they are alone, and
    nothing is called where there are none. `silent`: they are not called. Returns whether PyTorch makes calls at all;
    it does if there is no `flag` (`armed_flag`) to stop it by.
    """
    heard = 0
    for registry in _registries(trace):
        if _EACH not in vars(registry):
            setattr(registry, _EACH, {})
            setattr(registry, _ADD, _adding(registry, flag))
        vars(registry)[_EACH][id(owner)] = (callbacks, silent)
        heard += _settle(registry)
    if flag is not None:
        flag.value = heard > 0
    return heard > 0 or flag is None


def armed_flag() -> Any:
    """PyTorch's flag, set by `_activate_gpu_trace` just now or cleared here since: `value` says so, and changes it.
    `None` if it is not to be had.
    """
    if not _found:
        try:
            library = ctypes.CDLL(str(Path(sys.modules["torch"].__file__ or "").parent / "lib" / "libc10.so"))
            flag = ctypes.c_bool.in_dll(library, _FLAG)
        except (OSError, ValueError, AttributeError, KeyError):
            return None
        if not flag.value:
            return None
        _found.append(flag)
    return _found[0]


def restore(trace: ModuleType, owner: object, callbacks: Sequence[Any], *, flag: Any = None) -> None:
    """Takes the callbacks of `owner` out, and what hides PyTorch's methods if nobody else asked for it. PyTorch makes
    calls again: whoever registers later relies on that.
    """
    if flag is not None:
        flag.value = True
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


def _adding(registry: Any, flag: Any) -> Callable[[Any], None]:
    def add_callback(callback: Any) -> None:
        registry.callback_list = [*registry.callback_list, callback]
        _settle(registry)
        if flag is not None:
            flag.value = True

    return add_callback


def _settle(registry: Any) -> int:
    """Returns how many are to be heard."""
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
    return len(heard)
