"""The description of an address."""

from __future__ import annotations

import struct
from typing import Optional

import pytest
from fake import FakeTarget, thread
from heaps import ListAllocator, session

from findleaks.audit.address_info import Describer
from findleaks.target.base import Module

HEAP, DATA, STACK = 0x10000, 0x400000, 0x7F0000


@pytest.mark.parametrize("tls", [0x60, 0, None, 0x4000])
def test_frames_next_to_the_thread_pointer_are_stack(tls: Optional[int]) -> None:
    """The layout of glibc: control block, static TLS, frames. `tls`: the size in the module's header, or None without a
    header. 0x4000 bytes cannot all be static TLS."""
    top, sp = STACK + 0x1800, STACK + 0x1200
    elf = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1 if tls else 0, 0, 0, 0)
    elf += struct.pack("<IIQQQQQQ", 7, 4, 0, 0, 0, 0, (tls or 8) - 8, 32)
    memory = {DATA: elf.ljust(0x100, b"\0") if tls is not None else bytes(0x100), STACK - 0x1000: bytes(0x1000), STACK: bytes(0x2000)}
    modules = [Module("/bin/prog", 0, DATA, DATA + 0x100)]
    threads = [thread(77, sp=sp, thread_pointer=top)]
    target = FakeTarget(memory, permissions={STACK - 0x1000: "---"}, threads=threads, modules=modules)
    made = session(target, [ListAllocator(HEAP, HEAP + 0x100, [])])
    places = (top + 0x10, top - 8, top - 0x60, top - 0x61, sp + 1, sp, sp - 0x80, sp - 0x81)
    describer = Describer(made)
    texts = [describer.answer(at).phrase for at in places]
    who = "thread 1 (tid 77)"

    def local(at: int) -> str:
        return f"thread-local data or control block of {who}, tp{at - top:+#x}"

    def frame(at: int) -> str:
        return f"stack of {who}, sp{at - sp:+#x}"

    def either(at: int) -> str:
        return f"{frame(at)}; or its thread-local data, tp{at - top:+#x}"

    known = {0x60: (local, local, frame, frame), 0: (frame,) * 4}
    kinds = known.get(tls, (either,) * 4) if tls is not None else (either,) * 4
    assert texts[0] == local(places[0])
    assert texts[1:5] == [kind(at) for kind, at in zip(kinds, places[1:5])]
    assert texts[5:] == [frame(sp), frame(sp - 0x80), frame(sp - 0x81) + ", dead: below the stack pointer"]
