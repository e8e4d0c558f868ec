"""The stub follows forged pointers in frames of interpreters without reading unreadable memory. It runs in the test process."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest
from stubs import Machine, harness

from findleaks.injection.stub.readable_pages import ReadablePages, _readable, is_marked, readable_key
from findleaks.injection.stub.table import BY_SP, CHAIN_SETTINGS, EXECUTES, LAST, SERVED, VALUE, pack
from findleaks.injection.stub.unwind_rules import step_function
from findleaks.runtimes.cpython.call_chain import C_FRAMES, ENTRY_FRAMES, PAIRED
from findleaks.runtimes.ruby.call_chain import CONTROL_FRAMES
from findleaks.target.base import Range, Region

PAGE = 4096
TURNS, FRAMES, OBJECT = 1500, 6, 32
TYPE = 0x5550_0000_1000
JAVASCRIPT = 5
FUNCTION, SHARED, SCRIPT, STRING = 0x430, 0x120, 0x110, 0x08
_M64 = (1 << 64) - 1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return harness(tmp_path_factory.mktemp("stub"))


class Pages:
    """Eight pages. Every second one is unreadable."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._libc = ctypes.CDLL(None, use_errno=True)
        for page in range(1, 8, 2):
            self.protect(page, 0)
        # Objects at the beginning, in the middle, and across the end of the readable pages.
        offsets = (0, 512, 1024, 2048, PAGE - 136, PAGE - 64, PAGE - 32, PAGE - 16, PAGE - 8)
        self.objects = [self.start + page * PAGE + offset for page in range(0, 8, 2) for offset in offsets]

    def protect(self, page: int, access: int) -> None:
        assert self._libc.mprotect(ctypes.c_void_p(self.start + page * PAGE), PAGE, access) == 0

    def fill(self, choices: Sequence[int], pick: random.Random) -> None:
        for page in range(0, 8, 2):
            for at in chain(range(0, 3072, 512), range(PAGE - 256, PAGE, 256)):
                words = pick.choices(choices, k=OBJECT)
                struct.pack_into(f"<{OBJECT}Q", self.memory, page * PAGE + at, *words)


def settings(kind: int, pages: Pages, slot: int, thread_pointer: int) -> Sequence[int]:
    """Return the words at CHAIN_KIND of stack_walk.S. The chain begins at the variable with address `slot`."""
    offset = slot - thread_pointer & _M64
    if kind == JAVASCRIPT:
        types = int.from_bytes(struct.pack("<4H", FUNCTION, 2, SHARED, SCRIPT), "little")
        return kind, offset, 24, 24, 48, 40, -32 & _M64, types, 0x80
    if kind == CONTROL_FRAMES:
        return kind, slot, _M64, 56, 64, 120, 8, 1
    layout = {ENTRY_FRAMES: (0, 8, 56, 70), C_FRAMES: (32, 48, 56, 69), PAIRED: (32, 24, 96, 0)}[kind]
    texts = int.from_bytes(bytes((128, 112, 136)), "little")
    return kind, offset, 56, 1, *layout, TYPE, 92 if kind == ENTRY_FRAMES else 0, 72, texts


def make_machine(kind: int, library: ctypes.CDLL, pages: Pages, slot: int) -> Machine:
    machine = Machine(library)
    pthread_self = ctypes.CDLL(None).pthread_self
    pthread_self.restype = ctypes.c_ulong
    words = settings(kind, pages, slot, pthread_self())
    struct.pack_into(f"<{len(words)}Q", machine.memory, CHAIN_SETTINGS, *words)
    machine.memory[SERVED] = 0  # no server answers, so pages that are not marked stay unknown
    return machine


@pytest.mark.parametrize("kind", [ENTRY_FRAMES, C_FRAMES, PAIRED, CONTROL_FRAMES, JAVASCRIPT])
def test_forged_pointers(kind: int, library: ctypes.CDLL) -> None:
    pages, pick = Pages(), random.Random(kind)
    slots = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    slot = ctypes.addressof(ctypes.c_char.from_buffer(slots))
    machine = make_machine(kind, library, pages, slot)
    frames = [0x600000 + 16 * number for number in range(FRAMES)]
    if kind == JAVASCRIPT:
        rules = {pc: step_function(0 if pc & 16 else 80, True).value for pc in frames}
    else:
        rules = {pc: pack(BY_SP, 64) | EXECUTES for pc in frames}
    machine.seed({Machine.key: pack(BY_SP, 8), machine.back: pack(BY_SP, 8), **rules, 0x700000: pack(LAST)})
    marked = ReadablePages(os.getpid())
    used = {readable_key(one): one for one in [*pages.objects, slot, machine.sp, machine.end - 8]}
    machine.seed({key: marked.ask(key, one) for key, one in used.items()}, bounded=False)
    assert not marked.unreadable
    tag = int(kind == JAVASCRIPT)
    wild = [0x7FFF_DEAD_0000, 0xDEAD_0000_0000_0000, 0x10, pages.start + PAGE, pages.start + 2 * PAGE - 8, pages.start + 3 * PAGE + 1]
    flags = [TYPE, 0x701A, 0x601A, 0x20005, 0x5, 0x79990021, 0x55550001, 0x11110001, 96, 1 << 20, 3 << 60]
    if tag:
        flags = [kind_of << 32 | 0x0402 for kind_of in (FUNCTION, SHARED, SCRIPT, STRING, 0, 1, 5)] + [100 << 32, 0x7000 << 32]
    choices = [*(one + tag for one in [*pages.objects, *wild]), *pages.objects, *flags, *flags, 0]
    for _ in range(TURNS):
        pages.fill(choices, pick)
        struct.pack_into("<Q", slots, 0, pick.choice([*pages.objects, *wild]))
        words = list(pick.choices([*choices, machine.sp + 8 * 40], k=8 * FRAMES + 24))
        words[0] = frames[0]
        for number, pc in enumerate([*frames[1:], 0x700000]):
            if tag:  # the chain of frame pointers leads to the frames, and begins at word 6
                words[8 * number + 6], words[8 * number + 7] = machine.sp + 8 + 8 * (8 * number + 14), pc
            else:
                words[8 * number + 8] = pc
        machine.call(words, fp=machine.sp + 8 + 8 * 6)
    assert machine.counters[0] == TURNS
    assert sum(map(sum, machine.counted().values())) + machine.counters[1] == TURNS
    # Functions of JavaScript get a node only if the server answers.
    assert tag or any(key & VALUE for keys in machine.counted() for key in keys)


def test_bitmaps_follow_the_mappings() -> None:
    """A page is marked as long as it is mapped and readable."""
    pages = Pages()
    marked = ReadablePages(os.getpid())
    addresses = [pages.start + page * PAGE for page in range(8)]
    given = {readable_key(one): marked.ask(readable_key(one), one) for one in addresses}
    assert [is_marked(given[readable_key(one)], one) for one in addresses] == [True, False] * 4
    pages.protect(1, mmap.PROT_READ)
    given.update(marked.refresh())
    assert [is_marked(given[readable_key(one)], one) for one in addresses] == [True, True] + [True, False] * 3
    pages.protect(1, 0)
    given.update(marked.refresh())
    assert [is_marked(given[readable_key(one)], one) for one in addresses] == [True, False] * 4


def test_files_that_may_become_shorter(tmp_path: Path) -> None:
    """A private mapping of a file is not marked: after ftruncate, a read of it fails. A module is marked: the process needs its code and
    data anyway."""
    file = tmp_path / "data"
    file.write_bytes(bytes(PAGE))
    with open(file, "r+b") as opened:
        memory = mmap.mmap(opened.fileno(), PAGE, flags=mmap.MAP_PRIVATE)
    data = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    module = ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyExc_ValueError"))
    anonymous = Pages()
    marked = ReadablePages(os.getpid())
    assert [is_marked(marked.ask(readable_key(one), one), one) for one in (data, module, anonymous.start)] == [False, True, True]
    regions = [Region(at, at + PAGE, True, True, False, name) for at, name in ((PAGE, "/anon_hugepage (deleted)"), (3 * PAGE, "/data"))]
    assert _readable(regions) == [(PAGE, 2 * PAGE)]


def test_a_bitmap_takes_no_pass_over_all_mappings() -> None:
    """A process may have thousands of mappings, and a rule is looked up for each 256 KiB of memory, so each look-up is a search."""

    class Indexed(list[Range]):
        def __iter__(self) -> Iterator[Range]:
            raise AssertionError("all mappings are passed over")

    marked = ReadablePages(os.getpid())
    marked._ranges = Indexed(Range(at * PAGE, (at + 1) * PAGE) for at in range(0, 1 << 16, 2))
    marked._starts = [at * PAGE for at in range(0, 1 << 16, 2)]
    assert marked._bitmap(readable_key(1 << 27)) == sum(1 << page for page in range(0, 64, 2))
