"""Run a program step by step. At many stops, overwrite every register and stack slot that findleaks considers dead: the program must not
notice.

This is the most direct test of liveness: it needs no model of the processor, only the program's output and exit status.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from findleaks.disasm.capstone_loader import load_capstone
from findleaks.disasm.effects import REGISTERS, ZONE, ZONE_AT, mask_of
from findleaks.disasm.registers import GENERAL
from findleaks.target.arch import NT_X86_XSTATE, X86_64
from findleaks.target.base import Thread
from findleaks.target.live import LiveTarget
from findleaks.target.notes import NT_PRSTATUS, thread
from findleaks.unwind.live import LivenessReader

_TRACEME, _CONT, _SINGLESTEP, _GETREGSET, _SETREGSET, _SETOPTIONS = 0, 7, 9, 0x4204, 0x4205, 0x4200
_EXITKILL = 0x100000
POISON = 0x7FDEADBEEF00
FRAMES = 16 << 10  # bytes of the stack in which dead words are searched


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Outcome(NamedTuple):
    """The result. `dead` counts what was overwritten: general registers, 8-byte words of vector registers, bytes of the red zone. `width`:
    words in a vector register of this processor, from the features in its XSAVE image: 2 (SSE), 4 (AVX) or 8 (AVX-512)."""

    status: int
    output: bytes
    stops: int
    dead: tuple[int, int, int]
    slots: int  # words of frames that were overwritten
    last: str
    width: int


class Poisoned:
    """A program under this process's control. `seed` determines the stops; `steps`: average number of steps between two stops. Stops begin
    after `skip` steps; if `skip` is -1, when the program traps. `blind`: also overwrite what is not dead."""

    def __init__(self, command: Sequence[str], seed: int, steps: int, most: int, out: Path, skip: int = 0, blind: bool = False) -> None:
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long
        # Values have a separate generator: processors have different numbers of registers, and the stops must be the same on all of them.
        self._random, self._values = random.Random(seed), random.Random(seed)
        self._steps, self._most, self._skip, self._blind = steps, most, skip, blind
        self._out = out
        self._command = command
        self._pid = 0
        self._target: Optional[LiveTarget] = None
        self._reader: Optional[LivenessReader] = None
        self._maps = b""
        self.dead = [0, 0, 0]
        self.slots = self.width = 0
        self.last = ""

    def run(self) -> Outcome:
        with self._out.open("wb") as out:
            child = subprocess.Popen(
                self._command,
                stdout=out,
                stdin=subprocess.DEVNULL,
                preexec_fn=self._trace_me,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONHASHSEED": "0"},
            )
        self._pid = child.pid
        status = os.waitpid(self._pid, 0)[1]
        self._ptrace(_SETOPTIONS, 0, _EXITKILL)
        if self._skip < 0:
            self._ptrace(_CONT, 0, 0)
            status = os.waitpid(self._pid, 0)[1]
        status = self._advance(max(self._skip, 0), status)
        stops = 0
        while os.WIFSTOPPED(status) and stops < self._most:
            stops += 1
            self._poison()
            status = self._advance(self._random.randrange(1, 2 * self._steps), status)
        while os.WIFSTOPPED(status):
            number = os.WSTOPSIG(status)
            self._ptrace(_CONT, 0, number if number != signal.SIGTRAP else 0)
            status = os.waitpid(self._pid, 0)[1]
        if self._target is not None:
            self._target.close()
        child.returncode = 0
        return Outcome(
            os.waitstatus_to_exitcode(status),
            self._out.read_bytes(),
            stops,
            (self.dead[0], self.dead[1], self.dead[2]),
            self.slots,
            self.last,
            self.width,
        )

    def _trace_me(self) -> None:
        self._libc.ptrace(_TRACEME, 0, 0, 0)

    def _ptrace(self, request: int, addr: int, data: int) -> int:
        return int(self._libc.ptrace(request, self._pid, addr, data))

    def _advance(self, steps: int, status: int) -> int:
        for _ in range(steps):
            number = os.WSTOPSIG(status)
            if self._ptrace(_SINGLESTEP, 0, number if number != signal.SIGTRAP else 0):
                raise OSError(ctypes.get_errno(), "PTRACE_SINGLESTEP")
            status = os.waitpid(self._pid, 0)[1]
            if not os.WIFSTOPPED(status):
                break
        return status

    def _regset(self, request: int, kind: int, data: Any) -> int:
        vector = _Iovec(ctypes.addressof(data), len(data))
        if self._ptrace(request, kind, ctypes.addressof(vector)):
            raise OSError(ctypes.get_errno(), "regset")
        return vector.len

    def _poison(self) -> None:
        general, wide = ctypes.create_string_buffer(27 * 8), ctypes.create_string_buffer(1 << 14)
        self._regset(_GETREGSET, NT_PRSTATUS, general)
        size = self._regset(_GETREGSET, NT_X86_XSTATE, wide)
        image = bytearray(wide.raw[:size])
        stopped = thread(X86_64, self._pid, general.raw, [(NT_X86_XSTATE, bytes(image))])
        awaited = 0 if self._blind else self._ask(stopped).live
        names = stopped.names
        self.width = sum(name in ("xmm0", "ymm0", "zmm0") for name in names)
        registers = bytearray(general.raw)
        self.last = f"pc {stopped.pc:#x} dead "
        for number, name in enumerate(names[:27]):
            mask = mask_of(name)
            if name in GENERAL and name not in X86_64.kept_registers and not mask & awaited:
                registers[8 * number : 8 * number + 8] = (POISON + self._values.randrange(256)).to_bytes(8, "little")
                self.dead[0] += 1
                self.last += name + " "
        for number, name in enumerate(names[27:]):
            mask = mask_of(name)
            if mask and not name.startswith("st") and not mask & awaited & REGISTERS:
                image[8 * number : 8 * number + 8] = self._values.getrandbits(64).to_bytes(8, "little")
                self.dead[1] += 1
                if number % 2:
                    self.last += name + " "
        features = int.from_bytes(image[464:472], "little") & 0xE7 & ~1
        image[512:520] = (int.from_bytes(image[512:520], "little") | features).to_bytes(8, "little")
        for index, byte in enumerate(image):
            wide[index] = byte
        zone = [at for at in range(ZONE) if not awaited >> (ZONE_AT + at) & 1]
        if zone:
            with open(f"/proc/{self._pid}/mem", "r+b", buffering=0) as memory:
                for at in zone:
                    memory.seek(stopped.sp - ZONE + at)
                    memory.write(bytes([self._values.randrange(256)]))
            self.dead[2] += len(zone)
            self.last += f"zone {len(zone)}"
        self._poison_slots(stopped)
        self._regset(_SETREGSET, NT_PRSTATUS, (ctypes.c_char * len(registers)).from_buffer(registers))
        view = (ctypes.c_char * size).from_buffer(image)
        self._regset(_SETREGSET, NT_X86_XSTATE, view)

    def _poison_slots(self, stopped: Thread) -> None:
        """Overwrite the dead words of frames. `blind`: nothing, because overwritten registers are enough to disturb the program."""
        first = stopped.sp & -8
        words = self._reader.dead_slots(stopped, range(first, first + FRAMES, 8)) if self._reader is not None else []
        if words:
            with open(f"/proc/{self._pid}/mem", "r+b", buffering=0) as memory:
                for at in words:
                    memory.seek(at)
                    memory.write((POISON + at % 256).to_bytes(8, "little"))  # not from the random generator: the stops must stay the same
            self.slots += len(words)
            self.last += f" slots {' '.join(hex(at - stopped.sp) for at in words)}"

    def _ask(self, stopped: Thread) -> Any:
        with open(f"/proc/{self._pid}/maps", "rb") as file:
            maps = b"\n".join(line for line in file if b"x" in line.split()[1])
        if maps != self._maps or self._target is None:
            self._maps = maps
            if self._target is not None:
                self._target.close()
            self._target = LiveTarget(self._pid, stopped=True)
            capstone = load_capstone()
            assert capstone is not None
            self._reader = LivenessReader(self._target, capstone)
        assert self._reader is not None
        self._target._pages.clear()  # discards cached pages: the stack has changed
        return self._reader.live_words(stopped, signals=False)


if __name__ == "__main__":
    seed, steps, most, skip = map(int, sys.argv[1:5])
    made = Poisoned(sys.argv[5:], seed, steps, most, Path(f"/tmp/poison-{os.getpid()}.out"), skip).run()
    print(made._replace(output=made.output[-200:]))
