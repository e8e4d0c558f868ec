"""A synthetic process with a V8: functions in machine code that contain the offsets, isolates, blocks of handles, and a stack."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fake import FakeTarget, thread

from findleaks.target.base import Symbol

IMPLEMENTER, NEXT, LIMIT, LEVEL, GLOBALS = 0x380, 0x230, 0x238, 0x240, 0x480
TLS, HANDLES = -0x88, 1022
CODE, ISOLATES, BLOCKS, OBJECTS, STACKS, STORAGE = 0x400000, 0x1000000, 0x2000000, 0x3000000, 0x7F0000000000, 0x7E0000000000
UNDEFINED = OBJECTS + 0x101
"""The value of a handle: the tagged address of the object `undefined`."""

COUNT, INITIALIZE, GET, WORK, START = CODE, CODE + 0x100, CODE + 0x200, CODE + 0x300, CODE + 0x400
STATS, GLOBALIZE, CREATE = CODE + 0x500, CODE + 0x600, CODE + 0x700
NAMES = {
    COUNT: "_ZN2v88internal11HandleScope15NumberOfHandlesEPNS0_7IsolateE",
    INITIALIZE: "_ZN2v811HandleScope10InitializeEPNS_7IsolateE",
    GET: "_ZN2v87Isolate13TryGetCurrentEv",
    WORK: "work",
    START: "start",
    STATS: "_ZN2v88internal13GlobalHandles11RecordStatsEPNS0_9HeapStatsE",
    GLOBALIZE: "_ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEm",
    CREATE: "_ZN2v88internal13GlobalHandles6CreateEm",
}


def _call(at: int, to: int) -> bytes:
    return b"\xe8" + (to - at - 5).to_bytes(4, "little", signed=True)


def _far(*opcode: int, offset: int) -> bytes:
    return bytes(opcode) + offset.to_bytes(4, "little", signed=True)


FUNCTIONS = {
    # mov rdx,[rdi+…]  mov rax,[rdx+0x18]  test rax,rax  mov rcx,[rdx+8]  mov rcx,[rcx+rax*8-8]  mov rdx,[rdi+…]  imul eax,eax,1022  ret
    COUNT: _far(0x48, 0x8B, 0x97, offset=IMPLEMENTER)
    + bytes.fromhex("488b4218 4885c0 488b4a08 488b4cc1f8")
    + _far(0x48, 0x8B, 0x97, offset=NEXT)
    + _far(0x69, 0xC0, offset=HANDLES)
    + b"\xc3",
    # mov rax,[rsi+…]  add dword [rsi+…],1  ret
    INITIALIZE: _far(0x48, 0x8B, 0x86, offset=NEXT) + _far(0x83, 0x86, offset=LEVEL) + b"\x01\xc3",
    # mov rax,fs:[…]  ret
    GET: _far(0x64, 0x48, 0x8B, 0x04, 0x25, offset=TLS) + b"\xc3",
    # call v8::HandleScope::Initialize  ret
    WORK: _call(WORK, INITIALIZE) + b"\xc3",
    # call work  ret
    START: _call(START, WORK) + b"\xc3",
    # mov rax,[rdi+8]  mov rcx,[rax+16]  shl rax,5  movzx eax,byte [rcx+rax+11]  and eax,3  mov rcx,[rcx+0x2018]  ret
    STATS: bytes.fromhex("488b4708 488b4810 48c1e005 0fb644010b 83e003 488b8918200000 c3"),
    # mov rdi,[rdi+…]  call v8::internal::GlobalHandles::Create  ret
    GLOBALIZE: _far(0x48, 0x8B, 0xBF, offset=GLOBALS) + _call(GLOBALIZE + 7, CREATE) + b"\xc3",
    CREATE: b"\xc3",
}


class Image:
    """A process with `isolates` isolates; the thread with tid 1 has entered the first. Each isolate has `blocks` full blocks of handles to
    `undefined` and `used` handles in the last block, in a scope that the function `work` opened, and 300 global handles, of which 3 are
    weak."""

    def __init__(self, isolates: int = 1, blocks: int = 3, used: int = 10) -> None:
        self.memory = {CODE: bytearray(0x1000), ISOLATES: bytearray(0x40000 * isolates), OBJECTS: bytearray(0x1000)}
        self.memory[BLOCKS] = bytearray(0x10000 * (blocks + 1) * isolates)
        self.symbols = [Symbol(name, address, len(FUNCTIONS[address])) for address, name in NAMES.items()]
        for address, code in FUNCTIONS.items():
            self.put(address, code)
        self.words(OBJECTS + 0x100, OBJECTS + 0x201, OBJECTS + 0x301)  # undefined: its map and its text
        self.words(OBJECTS + 0x300, OBJECTS + 0x401, 9 << 32)
        self.put(OBJECTS + 0x310, b"undefined")
        self.isolates = [ISOLATES + 0x40000 * number for number in range(isolates)]
        self.blocks = {
            isolate: [BLOCKS + 0x10000 * ((blocks + 1) * number + index) for index in range(blocks + 1)]
            for number, isolate in enumerate(self.isolates)
        }
        self.threads = []
        for number, isolate in enumerate(self.isolates):
            self._isolate(isolate, used)
            self._thread(number, isolate)

    def put(self, address: int, data: bytes) -> None:
        start = max(start for start in self.memory if start <= address)
        self.memory[start][address - start : address - start + len(data)] = data

    def words(self, address: int, *values: int) -> None:
        self.put(address, struct.pack(f"<{len(values)}Q", *values))

    def target(self, without: Sequence[int] = ()) -> FakeTarget:
        """Return the process. `without`: addresses whose symbols are missing."""
        return FakeTarget(
            {start: bytes(data) for start, data in self.memory.items()},
            permissions={CODE: "r-x"},
            threads=self.threads,
            symbols=[symbol for symbol in self.symbols if symbol.address not in without],
        )

    def vector(self, isolate: int) -> int:
        """Return the address of the isolate's list of blocks."""
        return isolate + 0x12000

    def holder(self, isolate: int) -> int:
        """Return the address of the isolate's GlobalHandles. The space of nodes is at offset 8; its first block is at offset 16. The blocks
        are at 0x20000 and 0x28000."""
        return isolate + 0x14000

    def _isolate(self, isolate: int, used: int) -> None:
        blocks, implementer = self.blocks[isolate], isolate + 0x10000
        self.words(isolate + IMPLEMENTER, implementer)
        self.words(isolate + NEXT, blocks[-1] + 8 * used, blocks[-1] + 8 * HANDLES, 1)
        self.words(implementer, isolate, self.vector(isolate), 0, len(blocks))
        self.words(self.vector(isolate), *blocks)
        for block in blocks[:-1]:
            self.words(block, *[UNDEFINED] * HANDLES)
        self.words(blocks[-1], *[UNDEFINED] * used)
        holder = self.holder(isolate)
        self.words(isolate + GLOBALS, holder)
        self.words(holder + 8, holder + 0x100)
        self.words(holder + 0x110, isolate + 0x20000)
        self.words(isolate + 0x20000 + 0x2018, isolate + 0x28000)
        for number in range(300):
            node = isolate + (0x20000 + 32 * number if number < 256 else 0x28000 + 32 * (number - 256))
            self.put(node + 11, b"\x02" if number < 3 else b"\x01")

    def _thread(self, number: int, isolate: int) -> None:
        """Write the thread's stack: `start` called `work`, whose frame contains the scope."""
        stack, storage = STACKS + 0x100000 * number, STORAGE + 0x1000 * number
        self.memory[stack], self.memory[storage] = bytearray(0x1000), bytearray(0x800)
        self.words(storage + 0x400 + TLS, isolate)
        self.words(stack + 0x240, isolate, 0, 0)
        self.words(stack + 0x280, stack + 0x300, START + 5)
        registers = {"rip": WORK + 5, "rbp": stack + 0x280}
        self.threads.append(thread(number + 1, stack + 0x200, registers, storage + 0x400))
