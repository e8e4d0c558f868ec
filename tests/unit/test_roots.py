"""Root memory: by the kind of a region, and relative to stack pointers."""

from __future__ import annotations

import struct

from fake import FakeTarget, thread

from findleaks.engine.load import load
from findleaks.graph.roots import page_beginnings, root_ranges, root_regions
from findleaks.target.base import Module, Range, Region

PAGE = 0x1000


def region(start: int, mode: str, name: str = "", private: bool = True) -> Region:
    return Region(start, start + PAGE, "r" in mode, "w" in mode, "x" in mode, name, private=private)


def test_memory_that_the_program_could_write_is_root_memory() -> None:
    expected = {
        region(0x01000, "r--", "/lib/l.so"): False,  # headers and constants
        region(0x02000, "r-x", "/lib/l.so"): False,
        region(0x03000, "r--", "/lib/l.so"): True,  # RELRO, before the data that stayed writable
        region(0x04000, "rw-", "/lib/l.so"): True,
        region(0x05000, "rw-"): True,  # .bss
        region(0x07000, "r--"): True,  # made read-only by the program
        region(0x09000, "r--", "[anon: glibc: malloc]"): True,  # the same, with a name
        region(0x0B000, "rw-", "[anon:pool]"): True,
        region(0x0D000, "rw-", "/dev/shm/ring", private=False): True,
        region(0x0F000, "rw-", "[heap]"): True,  # the part that no allocator claims
        region(0x11000, "rw-", "[stack]"): True,
        region(0x13000, "rwx"): True,
        region(0x15000, "r-x"): False,
        region(0x17000, "---"): False,
        region(0x19000, "r--", "/usr/share/locale"): False,
        region(0x1B000, "r--", "[vvar]"): False,
        region(0x1D000, "r--", "[vvar_vclock]"): False,
        region(0x1E000, "r--"): False,  # [vvar] in a core
        region(0x1F000, "r-x", "[vdso]"): False,
        region(0x21000, "rw-"): True,
        region(0x22000, "r-x", "[vdso]"): False,
    }
    assert root_regions(list(expected)) == [r for r, root in expected.items() if root]


def test_memory_below_the_stack_pointer_is_no_root_in_known_stacks() -> None:
    """Three regions: the stack of the main thread; a stack right above a guard page; memory that contains a stack
    pointer by chance, which is not a stack."""
    main, guarded, shared = 0x10000, 0x31000, 0x50000
    target = FakeTarget(
        {main: bytes(PAGE), 0x30000: bytes(PAGE), guarded: bytes(PAGE), shared: bytes(PAGE)},
        names={main: "[stack]"},
        permissions={0x30000: "---"},
        threads=[thread(1, sp=main + 0x800), thread(2, sp=guarded + 0x400), thread(3, sp=shared + 0x600)],
    )
    zone = target.arch.red_zone
    assert root_ranges(target, load(target.arch), []) == [
        Range(main + 0x800 - zone, main + PAGE),
        Range(guarded + 0x400 - zone, guarded + PAGE),
        Range(shared, shared + PAGE),
    ]


def test_all_of_a_stack_counts_if_its_thread_runs_on_another() -> None:
    """The stack pointer that the thread had on its first stack is unknown."""
    main, other = 0x10000, 0x50000
    target = FakeTarget({main: bytes(PAGE), other: bytes(PAGE)}, names={main: "[stack]"}, threads=[thread(1, sp=other + 0x600)])
    assert Range(main, main + PAGE) in root_ranges(target, load(target.arch), [])


def test_read_only_bytes_before_a_segment_are_no_root() -> None:
    """RELRO: the read-only bytes of the file before the first byte of the segment, without those of another segment.
    Writable memory may be a heap."""
    base = 0x10000
    loads = [(5, 0x0, 0x1100), (6, 0x1E00, 0x1000), (6, 0x5200, 0x100)]  # flags, p_vaddr, p_memsz
    image = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(loads), 0, 0, 0)
    image += b"".join(struct.pack("<IIQQQQQQ", 1, flags, vaddr, vaddr, vaddr, size, size, PAGE) for flags, vaddr, size in loads)
    starts = {base: "r-x", base + 0x1000: "r--", base + 0x2000: "rw-", base + 0x5000: "rw-"}
    target = FakeTarget(
        {base: image.ljust(PAGE, b"\0"), **{start: bytes(PAGE) for start in starts if start != base}},
        names=dict.fromkeys(starts, "/lib/l.so"),
        permissions=starts,
        modules=[Module("/lib/l.so", base, base, base + 0x6000)],
    )
    assert page_beginnings(target) == [Range(base + 0x1100, base + 0x1E00)]
    assert root_ranges(target, load(target.arch), []) == [
        Range(base + 0x1000, base + 0x1100),
        Range(base + 0x1E00, base + 0x2000),
        Range(base + 0x2000, base + 0x3000),
        Range(base + 0x5000, base + 0x6000),
    ]
