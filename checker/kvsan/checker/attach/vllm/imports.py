"""Runs an action once a module is loaded, at once if it is, so that hooks load nothing of vLLM by themselves.

vLLM's processes load different parts: the front end never loads a model runner, and loading one there would take
seconds and initialise a device. A module's action runs when its body has run and before the `import` statement that
asked for it goes on, so a name that another module takes from it with `from … import …` is the wrapped one already;
names taken before are the caller's business (`simple` wraps them where they ended up).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

Action = Callable[[ModuleType], None]


class WhenLoaded(MetaPathFinder):
    """A finder that finds nothing by itself: it lends the ordinary loader's module to the actions."""

    def __init__(self) -> None:
        self._actions: dict[str, list[Action]] = {}
        self.done: set[str] = set()

    def call(self, name: str, action: Action) -> None:
        """Calls `action(module)` when the module `name` is loaded, now if it is."""
        module = sys.modules.get(name)
        if module is not None and not _loading(module):
            self.done.add(name)
            action(module)
            return
        self._actions.setdefault(name, []).append(action)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        self._actions.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._actions:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, lambda module: self._loaded(fullname, module))
        return spec

    def _loaded(self, name: str, module: ModuleType) -> None:
        self.done.add(name)
        for action in self._actions.pop(name, ()):
            action(module)


class _Then(Loader):
    """The module's own loader, and afterwards what was asked for."""

    def __init__(self, loader: Loader, then: Action) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> object:  # what inspect and pickle ask of a loader
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)


def _loading(module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
