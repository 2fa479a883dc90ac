"""The catalogue: public ordering protocols, one readable file each, with the verdict expected of it.

    from kvsan.model.designs import load, names
    design = load("vllm-after-46278")

A file is imported when its design is asked for. Files whose name begins with an underscore are what several share.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from kvsan.model.design import Design
from kvsan.model.design.guards import unknown


@cache
def names() -> tuple[str, ...]:
    """All designs of the catalogue, in alphabetical order."""
    found = (module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    return tuple(sorted(name.replace("_", "-") for name in found))


def load(name: str) -> Design:
    """The design of that name. Raises `DesignError` with the nearest name there is."""
    if name not in names():
        raise unknown("design", name, names())
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    design = module.DESIGN
    assert isinstance(design, Design)
    return design
