"""What an engine's own work does to a hook before it is called, in a few lines: caches full of something else, and
branches that the processor has forgotten. To be run before each call that is timed.

Not covered: how much of either a real step does. The jumps are 512 KiB of code, so they take the place of what a core
has of code, too; as many bytes without jumps cost a hook next to nothing.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable
from random import Random

import numpy as np

READ = 64 << 20  # bytes
SLOTS, SLOT = 32_768, 16  # so many jumps to the next one, each in so many bytes
_EVEN = bytes.fromhex("48d1cf 720b eb09")  # ror rdi, 1; jc and jmp to the next slot
_ODD = bytes.fromhex("eb0e")  # jmp to it
_RET = b"\xc3"


def caches(size: int = READ) -> Callable[[], object]:
    """Reads so many bytes, a line each 64. They are ones: pages that were never written are all the same one."""
    return np.ones(size, np.uint8)[::64].sum


def branches(seed: int = 0) -> Callable[[], object]:
    """Runs jumps of its own, half of them conditional on random bits; RuntimeError where they cannot be made."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise RuntimeError("spoil.branches is machine code for Linux on x86-64")
    pair = _EVEN.ljust(SLOT, b"\x90") + _ODD.ljust(SLOT, b"\x90")
    try:
        code = mmap.mmap(-1, SLOTS * SLOT + 1, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError as error:
        raise RuntimeError(f"spoil.branches: no memory for code ({error})") from None
    code.write(pair * (SLOTS // 2) + _RET)
    first = ctypes.c_char.from_buffer(code)  # keeps it where it is
    run, bits = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(ctypes.addressof(first)), Random(seed).getrandbits

    def jumps() -> None:
        assert first is not None
        run(bits(64))

    return jumps
