"""Every instruction of a stretch of a process's main thread, and the cache lines that it touches: single-stepped.

The child sends itself `SIGUSR1` where a stretch begins and where it ends. Between them the parent steps it with
ptrace(2) and takes down each instruction's address, the stack pointer and where its operands in memory lie (capstone
decodes). Exact, and some 20 µs an instruction. Linux on x86-64 alone. Not covered: the kernel, other threads (they run
meanwhile), what a processor fetches ahead, the stack as far as pushes, calls and returns touch it.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import platform
import signal
import subprocess
import sys
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

LINE = 64
_TRACEME, _CONT, _STEP, _GETREGS = 0, 7, 9, 12
_NO_RANDOM_ADDRESSES = 0x0040000  # personality(2)
# fmt: off
_REGISTERS = (  # struct user_regs_struct, <sys/user.h>
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax",
    "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)
# fmt: on


@dataclass(slots=True)
class Stretch:
    """`code`: the address of each instruction; `stack`: the stack pointer before it; `data` and `by`: an operand in
    memory, and the number of its instruction; `sizes`: bytes of the instruction at an address; `maps`: the process's.
    """

    code: array[int] = field(default_factory=lambda: array("Q"))
    stack: array[int] = field(default_factory=lambda: array("Q"))
    data: array[int] = field(default_factory=lambda: array("Q"))
    by: array[int] = field(default_factory=lambda: array("Q"))
    sizes: dict[int, int] = field(default_factory=dict)
    maps: str = ""

    def lines(self, number: int) -> set[int]:
        """The lines that instruction `number` itself lies in."""
        at = self.code[number]
        return {at // LINE, (at + self.sizes[at] - 1) // LINE}


class Places:
    """Which file and which function an address is of, by the maps of a process and `nm` (binutils)."""

    def __init__(self, maps: str) -> None:
        self._maps: list[tuple[int, int, str]] = []
        self._first: dict[str, int] = {}
        for row in maps.splitlines():
            span, *parts = row.split(maxsplit=5)
            begin, end = (int(number, 16) for number in span.split("-"))
            name = parts[4].strip() if len(parts) > 4 else "anonymous"
            self._maps.append((begin, end, name))
            self._first.setdefault(name, begin)
        self._symbols: dict[str, list[tuple[int, str]]] = {}
        self._known: dict[int, tuple[str, str]] = {}

    def file(self, address: int) -> str:
        at = bisect.bisect_right(self._maps, (address, sys.maxsize, "")) - 1
        begin, end, name = self._maps[at] if at >= 0 else (0, 0, "")
        return name if begin <= address < end else "nowhere"

    def function(self, address: int) -> tuple[str, str]:
        """The name of the file without its folder, and that of the function, as far as there is one."""
        found = self._known.get(address)
        if found is None:
            name, function = self.file(address), ""
            if name.startswith("/"):
                table = self._table(name)
                at = bisect.bisect_right(table, (address - self._first[name], "\uffff")) - 1
                function = table[at][1] if at >= 0 else ""
            found = self._known[address] = Path(name).name, function
        return found

    def _table(self, name: str) -> list[tuple[int, str]]:
        if name not in self._symbols:
            rows = [
                row.split(None, 2)
                for more in ([], ["-D"])
                for row in subprocess.run(
                    ["nm", "--defined-only", *more, name], capture_output=True, text=True, check=False
                ).stdout.splitlines()
            ]
            self._symbols[name] = sorted({(int(row[0], 16), row[2]) for row in rows if len(row) == 3})
        return self._symbols[name]


class _Decoder:
    """What an instruction is: its size, and how its operands in memory are found."""

    def __init__(self, memory: IO[bytes]) -> None:
        import capstone
        from capstone import x86

        self._x86: Any = x86
        self._memory = memory
        self._decode = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._decode.detail = True
        whole = {f"e{name[1:]}": name for name in _REGISTERS if name.startswith("r") and not name[1].isdigit()}
        self._register = {
            getattr(x86, f"X86_REG_{name.upper()}"): _REGISTERS.index(whole.get(name, name))
            for name in (*_REGISTERS, *whole)
            if hasattr(x86, f"X86_REG_{name.upper()}") and whole.get(name, name) in _REGISTERS
        }

    def __call__(self, at: int) -> tuple[int, list[tuple[int, list[tuple[int, int]]]]]:
        """Bytes, and for each operand a number and (register, times) that are added to it."""
        x86, fs = self._x86, _REGISTERS.index("fs_base")
        self._memory.seek(at)
        found = next(self._decode.disasm(self._memory.read(15), at, 1), None)
        if found is None:
            return 1, []
        operands = []
        for operand in found.operands:
            if operand.type != x86.X86_OP_MEM or found.mnemonic in ("lea", "nop"):
                continue
            memory, parts = operand.mem, list[tuple[int, int]]()
            number = memory.disp
            if memory.base == x86.X86_REG_RIP:
                number += at + found.size
            elif memory.base in self._register:
                parts.append((self._register[memory.base], 1))
            if memory.index in self._register:
                parts.append((self._register[memory.index], memory.scale))
            if memory.segment == x86.X86_REG_FS:
                parts.append((fs, 1))
            operands.append((number, parts))
        return found.size, operands


def stepped(command: list[str], env: dict[str, str]) -> list[Stretch]:
    """Runs a command to its end and gives back its stretches, in order. Raises `RuntimeError` where this cannot be
    done, or the command fails.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise RuntimeError("instructions are stepped on Linux on x86-64 alone")
    libc: Any = ctypes.CDLL(None, use_errno=True)
    trace: Any = libc.ptrace
    trace.argtypes = [ctypes.c_long] * 4
    registers = (ctypes.c_ulonglong * len(_REGISTERS))()
    where = ctypes.addressof(registers)
    rip, rsp = _REGISTERS.index("rip"), _REGISTERS.index("rsp")
    pid = os.fork()
    if pid == 0:
        libc.personality(_NO_RANDOM_ADDRESSES)
        trace(_TRACEME, 0, 0, 0)
        os.execvpe(command[0], command, env)
    os.waitpid(pid, 0)
    trace(_CONT, pid, 0, 0)
    out: list[Stretch] = []
    now: Stretch | None = None
    decoded: dict[int, Any] = {}
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            break
        why = os.WSTOPSIG(status)
        if why == signal.SIGUSR1:
            if now is None:
                now, decoded = Stretch(), {}
                decode = _Decoder(open(f"/proc/{pid}/mem", "rb", buffering=0))  # noqa: SIM115 - as long as it runs
            else:
                now.sizes = {at: size for at, (size, _) in decoded.items()}
                now.maps = Path(f"/proc/{pid}/maps").read_text()
                out.append(now)
                now = None
            why = 0
        elif why == signal.SIGTRAP:
            why = 0
            if now is not None:
                trace(_GETREGS, pid, 0, where)
                at = registers[rip]
                if at not in decoded:
                    decoded[at] = decode(at)
                for number, parts in decoded[at][1]:
                    now.data.append(sum((registers[one] * times for one, times in parts), number) & (1 << 64) - 1)
                    now.by.append(len(now.code))
                now.code.append(at)
                now.stack.append(registers[rsp])
        trace(_STEP if now is not None else _CONT, pid, 0, why)
    if not os.WIFEXITED(status) or os.WEXITSTATUS(status):
        raise RuntimeError(f"the command that was stepped ended with status {status:#x}")
    return out
