"""Run an AArch64 program under QEMU's user emulation. At many stops, overwrite every register that findleaks considers dead: the program
must not notice (see poison.py for x86-64). QEMU's gdbstub steps the program (GDB's manual, Remote Serial Protocol)."""

from __future__ import annotations

import functools
import os
import random
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import debian
from elftools.elf.elffile import ELFFile
from fake import FakeTarget

from findleaks.disasm.capstone_loader import require_capstone
from findleaks.target.arch import AARCH64
from findleaks.target.base import Module, Symbol, Thread
from findleaks.unwind.live import LivenessReader

_GENERAL, _VECTORS_AT = 33, 34  # x0-30, sp, pc; the number of v0 in the stub's numbering
_STACK = 1 << 16  # bytes of the stack that are read at a stop
_PAGE = 4096


class Outcome(NamedTuple):
    """The result. `dead` counts what was overwritten: general registers, vector registers. `last` is the last stop."""

    status: int
    output: bytes
    stops: int
    dead: tuple[int, int]
    last: str


@functools.cache
def emulator() -> Path:
    """Return the emulator, a static program from Debian's package."""
    folder = debian.cache() / "qemu-user"
    debian.unpack_packages("bookworm", ["qemu-user-static"], folder, {})
    return folder / "root/usr/bin/qemu-aarch64-static"


class Stub:
    """A connection to QEMU's gdbstub."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(180)
        self._socket.connect(path)
        self._stream = self._socket.makefile("rb")
        self.ask("qXfer:features:read:target.xml:0,fff")  # without this, single registers cannot be read

    def ask(self, packet: str) -> str:
        self._socket.sendall(f"${packet}#{sum(packet.encode()) & 0xFF:02x}".encode())
        while self._stream.read(1) not in (b"$", b""):
            pass
        answer = bytearray()
        while (byte := self._stream.read(1)) not in (b"#", b""):
            answer += byte
        self._stream.read(2)
        self._socket.sendall(b"+")
        return answer.decode()

    def registers(self) -> list[int]:
        data = bytes.fromhex(self.ask("g")[: 16 * _GENERAL])
        return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]

    def vector(self, number: int) -> tuple[int, int]:
        data = bytes.fromhex(self.ask(f"p{_VECTORS_AT + number:x}"))
        assert len(data) == 16
        return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")

    def set(self, number: int, data: bytes) -> None:
        assert self.ask(f"P{number:x}={data.hex()}") == "OK"

    def read(self, address: int, size: int) -> bytes:
        parts = []
        for at in range(address, address + size, 1024):
            answer = self.ask(f"m{at:x},{min(1024, address + size - at):x}")
            if answer.startswith("E"):
                break
            parts.append(bytes.fromhex(answer))
        return b"".join(parts)


class _Target(FakeTarget):
    """A stopped program as a target. Its stack is read at each stop."""

    def __init__(self, stub: Stub, pid: int, root: Path, top: int) -> None:
        self._stub, self._top = stub, top
        memory: dict[int, bytes] = {top - _STACK: bytes(_STACK)}
        permissions, names, modules, symbols = {}, {}, {}, []
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, mode, offset, _, _, *path = line.split()
            start, end = (int(part, 16) for part in span.split("-"))
            if not path or not path[0].startswith((str(root), tempfile.gettempdir())) or path[0] == str(emulator()):
                continue
            with open(path[0], "rb") as file:
                elf = ELFFile(file)
                loads = [one for one in elf.iter_segments() if one["p_type"] == "PT_LOAD"]
                at = int(offset, 16)
                # The emulator does not mark the program's code as executable on the host.
                code = any(one["p_flags"] & 1 and one["p_offset"] & -_PAGE <= at < one["p_offset"] + one["p_filesz"] for one in loads)
                memory[start], names[start] = stub.read(start, end - start), path[0]
                permissions[start] = "r-x" if code else mode[:3]
                if path[0] not in modules:
                    bias = start - (loads[0]["p_vaddr"] & -_PAGE)
                    modules[path[0]] = Module(path[0], bias, start, bias + max(one["p_vaddr"] + one["p_memsz"] for one in loads))
                    symbols += [
                        Symbol(one.name, one["st_value"] + bias, one["st_size"], Path(path[0]).name)
                        for one in elf.get_section_by_name(".dynsym").iter_symbols()
                        if one["st_value"] and one["st_info"]["type"] == "STT_FUNC"
                    ]
        super().__init__(memory, permissions=permissions, names=names, modules=list(modules.values()), symbols=symbols, arch=AARCH64)

    def stopped(self, sp: int) -> None:
        """Read the stack again."""
        low = max(sp - 1024, self._top - _STACK)
        self.write(low, self._stub.read(low, self._top - low))


class Stopped:
    """A program that is stopped at an address before it begins; a context manager. `root` is the tree of its libraries; `more` is a further
    library that it loads."""

    def __init__(self, command: Sequence[str], root: Path, begin: int, more: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.out = Path(self._folder.name, "out")
        # A processor with pointer authentication and atomics. With SVE it would have other registers.
        words = [str(emulator()), "-cpu", "max,sve=off,pauth-impdef=on", "-g", f"{self._folder.name}/stub", "-L", str(root)]
        words += ["-E", "LD_BIND_NOW=1", *(("-E", f"LD_PRELOAD={more}") if more else ())]
        environment = {"PATH": os.environ["PATH"]}
        with self.out.open("wb") as out:
            self.process = subprocess.Popen([*words, *command], stdout=out, stdin=subprocess.DEVNULL, env=environment)
        while not os.path.exists(f"{self._folder.name}/stub"):
            assert self.process.poll() is None
        self.stub = Stub(f"{self._folder.name}/stub")
        assert self.stub.ask(f"Z0,{begin:x},4") == "OK"
        self.stub.ask("c")
        self.stub.ask(f"z0,{begin:x},4")

    def __enter__(self) -> Stopped:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()


def poison_program(command: Sequence[str], root: Path, begin: int, seed: int, steps: int, most: int, blind: bool = False) -> Outcome:
    """Run `command`. From address `begin` on, stop `most` times, `steps` instructions apart on average. `blind`: overwrite all
    registers."""
    chance = random.Random(seed)
    with Stopped(command, root, begin) as program:
        stub = program.stub
        target = _Target(stub, program.process.pid, root, (stub.registers()[31] + 4096) & -4096)
        reader = LivenessReader(target, require_capstone())
        stops, dead, answer, last = 0, [0, 0], "T05", ""
        while stops < most and answer.startswith("T05"):
            stops += 1
            last = _poison(stub, target, reader, chance, dead, blind)
            for _ in range(chance.randrange(1, 2 * steps)):
                answer = stub.ask("s")
                if not answer.startswith("T05"):
                    break
        if answer.startswith("T05"):
            answer = stub.ask("c")
        status = program.process.wait(180) if answer.startswith("W") else -1  # otherwise it stopped at a fault
        return Outcome(status, program.out.read_bytes(), stops, (dead[0], dead[1]), last)


def _poison(stub: Stub, target: _Target, reader: LivenessReader, chance: random.Random, dead: list[int], blind: bool) -> str:
    values = stub.registers()
    named = dict(zip(AARCH64.registers, values))
    target.stopped(named["sp"])
    live = 0 if blind else reader.live_words(Thread(1, named, named["sp"], named["pc"], 0, tuple(values)), signals=False).live
    said = f"pc {named['pc']:#x} dead"
    for number in range(31):
        name = f"x{number}"
        if name not in AARCH64.kept_registers and not reader.mask_of(name) & live:
            stub.set(number, chance.getrandbits(64).to_bytes(8, "little"))
            dead[0] += 1
            said += f" {name}"
    for number in range(32):
        name = f"v{number}"
        if name not in AARCH64.kept_registers and not reader.mask_of(name) & live:
            stub.set(_VECTORS_AT + number, chance.getrandbits(128).to_bytes(16, "little"))
            dead[1] += 1
            said += f" {name}"
    return said
