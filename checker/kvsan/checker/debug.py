"""The switch for an engine of `kvsan.runtime`, for who runs one and need not pay for a look at the environment.

    engine = Engine(design, debug(CudaDevice()), …)

Without `KVSAN=1` it is the device itself that comes back, and nothing of the checker or of the instrumentation is
loaded. With it, the device is wrapped and watched by the process's session (`session.debug`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvsan.checker import options

if TYPE_CHECKING:
    from kvsan.runtime.device import Device


def debug(device: Device, *, sites: bool = False) -> Device:
    """`sites`: with each access the place in the engine's code. A bad value of `KVSAN` or `KVSAN_OPTIONS` ends the
    process, with status 2.
    """
    try:
        on = options.switched_on()
    except options.OptionsError as error:
        print(f"kvsan: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None
    if not on:
        return device
    from kvsan.checker import session

    return session.debug(device, sites=sites)
