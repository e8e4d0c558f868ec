"""Which memory counts as missing from a core: known files, and ranges that must have had data because references lead to them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import elfcore
import pytest
from elfcore import Load, Task
from fake import FakeTarget, thread
from heaps import ListAllocator, Listed, session

from findleaks.audit.diagnostics import is_trusted, result_warnings
from findleaks.audit.missing_memory import MANY, SMALL, find_missing_memory
from findleaks.engine.load import load
from findleaks.target.arch import I386
from findleaks.target.base import Range
from findleaks.target.core import open_core
from findleaks.target.missing import PROTECTED, UNNAMED, UNWRITTEN, Uncertain

PAGE, HEAP, DATA, STACK, GONE = 4096, 0x555500000000, 0x7F0000000000, 0x7FFC00000000, 0x7EFFFFF00000
LOST = HEAP + 0x400


def make_process(words: Sequence[int], uncertain: Sequence[Uncertain], lost: bool = True) -> FakeTarget:
    """Return a process with these words in its data. If `lost`, it has a leaked block."""
    data = struct.pack(f"<{len(words)}Q", *words).ljust(PAGE, b"\0")
    memory = {HEAP: bytes(PAGE), DATA: data, STACK: bytes(PAGE - 8) + b"argument"}
    target = FakeTarget(memory, names={STACK: "[stack]"}, threads=[thread(1, sp=STACK + 0x800)], pid=7)
    if not lost:
        target.write_word(DATA + PAGE - 8, LOST)
    target.uncertain = sorted(uncertain)
    return target


def find_missing(target: FakeTarget, engine: str = "native") -> list[tuple[int, int, int]]:
    made = session(target, [ListAllocator(HEAP, HEAP + PAGE, [Listed(LOST, 64)])], load(target.arch, pure=engine == "pure"))
    assert find_missing_memory(made) == (), "before marking"
    _ = made.graph()
    found = [(one.start, one.end, one.words) for one in find_missing_memory(made)]
    assert is_trusted(made) == (not found)
    assert len([text for text in result_warnings(made) if "pointers in it are not seen" in text]) == len(found)
    return found


@pytest.mark.parametrize("engine", ["native", "pure"])
def test_a_pointer_into_a_segment_without_bytes(engine: str) -> None:
    area = Uncertain(GONE, GONE + 16 * PAGE, UNWRITTEN)
    for word in (GONE, GONE + 24, GONE + 16 * PAGE - 8):
        assert find_missing(make_process([0, word], [area]), engine) == [(*area[:2], 1)]
    for word in (GONE - 8, GONE + 16 * PAGE):
        assert find_missing(make_process([word], [area]), engine) == []
    assert find_missing(make_process([GONE], [area], lost=False), engine) == [], "no leaks, so missing memory does not matter"


@pytest.mark.parametrize("engine", ["native", "pure"])
def test_ranges_of_a_damaged_core(engine: str) -> None:
    """Ranges of any size that overlap or are not whole pages."""
    whole = Uncertain(GONE - (1 << 44), GONE + PAGE, UNWRITTEN)
    odd = [Uncertain(GONE, GONE + 2 * PAGE, UNWRITTEN), Uncertain(GONE + 3 * PAGE + 1, GONE + 4 * PAGE, UNWRITTEN)]
    assert find_missing(make_process([GONE], [whole, *odd]), engine) == [(*whole[:2], 1)]


def test_a_word_below_the_stack_pointer_does_not_count() -> None:
    target = make_process([], [Uncertain(GONE, GONE + PAGE, UNWRITTEN)])
    target.write_word(STACK + 0x100, GONE)
    assert find_missing(target) == []
    target.write_word(STACK + 0x900, GONE)
    assert find_missing(target) == [(GONE, GONE + PAGE, 1)]


def test_a_gap_needs_an_mmap_address_or_many_words() -> None:
    gap = Uncertain(GONE, GONE + 64 * PAGE, UNNAMED)
    assert find_missing(make_process([GONE + PAGE], [gap])) == [(GONE + PAGE, GONE + 2 * PAGE, 1)]
    inside = [GONE + 0x48 + 16 * at for at in range(MANY)]
    assert find_missing(make_process(inside, [gap])) == [(GONE, GONE + PAGE, MANY)]
    assert find_missing(make_process(inside[:-1], [gap])) == []
    assert find_missing(make_process([inside[0]] * 2 * MANY, [gap])) == [], "copies of one stale pointer"
    assert find_missing(make_process([word + 1 for word in inside], [gap])) == [], "pointers to text"


def test_numbers_beside_the_upper_half_of_a_stale_pointer() -> None:
    """A program writes {u16 2, u16 7} over the lower half of a pointer. The resulting words refer to no gap."""
    gap, upper = Uncertain(0x7E0000000000, 0x7E0000000000 + (1 << 25), UNNAMED), 0x7E0000000000
    numbers = [upper + (second << 16) + 8 * first for second in (5, 6, 7) for first in range(MANY)]
    assert find_missing(make_process(numbers, [gap])) == []
    assert find_missing(make_process([*numbers, upper + SMALL], [gap])) == [(upper + SMALL, upper + SMALL + PAGE, 1)]


def test_numbers_below_four_gibibytes() -> None:
    """Numbers below 4 GiB are not addresses, unless they are multiples of the page size, as mmap returns."""
    low = Uncertain(0x700_0000, 0x2700_0000, PROTECTED)
    numbers = [0x700_0008, 0x1234_5678, 0x2000_0000]
    assert find_missing(make_process(numbers, [low])) == []
    assert find_missing(make_process([*numbers, 0x1234_5000], [low])) == [(*low[:2], 1)]


def test_guards_and_beginnings_of_reservations() -> None:
    """A guard is below memory with data. Reserved memory is made accessible from its beginning on."""
    below = Uncertain(DATA - PAGE, DATA, PROTECTED)
    assert find_missing(make_process([below.start], [below])) == []
    wide = Uncertain(DATA - 16 * PAGE, DATA, PROTECTED)
    assert find_missing(make_process([wide.start], [wide])) == [(*wide[:2], 1)]
    opened, rest = Uncertain(GONE, GONE + PAGE, UNWRITTEN), Uncertain(GONE + PAGE, GONE + 64 * PAGE, PROTECTED)
    assert find_missing(make_process([GONE], [opened, rest])) == []
    assert find_missing(make_process([GONE], [opened, rest._replace(end=GONE + 2 * PAGE)])) == [(*opened[:2], 1)]
    before = Uncertain(GONE - PAGE, GONE, PROTECTED)
    assert find_missing(make_process([GONE], [before, opened, rest])) == [(*opened[:2], 1)]


def test_memory_of_a_live_process_that_cannot_be_read() -> None:
    target = FakeTarget({HEAP: bytes(PAGE)}, absent=[Range(DATA, DATA + PAGE)], names={DATA: "/secretmem (deleted)"}, live=True)
    made = session(target, [ListAllocator(HEAP, HEAP + PAGE, [Listed(LOST, 64)])])
    assert not is_trusted(made)
    assert "4.0 KiB of writable memory cannot be read (/secretmem (deleted)): pointers in it are not seen" in result_warnings(made)


FILES = {
    "/dev/shm/ring": True,
    "/home/u/data.db": True,
    "/tmp/spool": True,
    "/memfd:tables (deleted)": True,
    "/usr/share/zoneinfo/UTC": False,
    "/home/u/app/plugin.so": False,
    "/home/u/jdk/lib/modules": False,  # in the folder of libjvm.so
    "/home/u/jdk/lib/libjvm.so": False,
}


def test_files_without_a_segment_in_cores_by_gdb(tmp_path: Path) -> None:
    """The files that the process may have written to are named."""
    at = {name: DATA + 4 * PAGE * number for number, name in enumerate(FILES)}
    image = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    image += struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, PAGE, PAGE, PAGE)
    loads = [Load(HEAP, PAGE, b"h" * PAGE), Load(at["/home/u/jdk/lib/libjvm.so"], PAGE, image.ljust(PAGE, b"\0"), "r--")]
    mapped = [(start, start + 2 * PAGE, 0, name) for name, start in at.items()]
    (tmp_path / "core").write_bytes(elfcore.core(loads, [Task(100, {"rsp": HEAP})], mapped=mapped, page=1, unaligned=True))
    with open_core(str(tmp_path / "core")) as core:
        named = [name for name, missed in FILES.items() if missed]
        assert core.unread == [(at[name], at[name] + 2 * PAGE) for name in named]
        assert f"32 KiB of writable files are not in the core ({', '.join(named)}): pointers in them are not seen." in core.warnings


def test_uncertain_memory_of_cores(tmp_path: Path) -> None:
    """In a core by Linux: segments without bytes. In a core by GDB: gaps between segments, unless no mapping can be there."""
    loads = [
        Load(HEAP, PAGE, b"h" * PAGE),
        Load(DATA, PAGE),
        Load(DATA + PAGE, PAGE, b"d" * PAGE),
        Load(DATA + 8 * PAGE, PAGE, b"", "---"),
        Load(DATA + 9 * PAGE, PAGE, b"", "r-x"),
        Load(STACK, PAGE, b"s" * PAGE),
    ]
    task = Task(100, {"rsp": STACK})
    (tmp_path / "kernel").write_bytes(elfcore.core(loads, [task]))
    (tmp_path / "gdb").write_bytes(elfcore.core(loads, [task], unaligned=True))
    segments = [Uncertain(DATA, DATA + PAGE, UNWRITTEN), Uncertain(DATA + 8 * PAGE, DATA + 9 * PAGE, PROTECTED)]
    gaps = [Uncertain(DATA - (1 << 30), DATA, UNNAMED), Uncertain(DATA + 2 * PAGE, DATA + 8 * PAGE, UNNAMED)]
    with open_core(str(tmp_path / "kernel")) as kernel, open_core(str(tmp_path / "gdb")) as gdb:
        assert kernel.uncertain == segments
        assert gdb.uncertain == sorted([*segments, *gaps])


def test_data_without_access_are_read(tmp_path: Path) -> None:
    """The data of a segment without access are read if the core has its bytes."""
    loads = [Load(HEAP, PAGE, b"h" * PAGE), Load(DATA, 2 * PAGE, b"d" * PAGE, "---"), Load(DATA + 8 * PAGE, PAGE, b"", "---")]
    (tmp_path / "core").write_bytes(elfcore.core(loads, [Task(100, {"rsp": HEAP})]))
    with open_core(str(tmp_path / "core")) as core:
        assert core.protected == [(DATA, DATA + PAGE)]


def test_texts_of_32_bit_processes() -> None:
    """ "PYTHONPATH" begins in the second byte of a word, which is a multiple of the page size."""
    gap = Uncertain(0x50000000, 0x58000000, UNNAMED)
    for text, count in ((b"\0PYTHONPATH", 0), (b"\0PYT\0\0\0\0", 1)):
        memory = {0x56600000: bytes(PAGE), 0x8048000: text.ljust(PAGE, b"\0"), 0xFFF00000: bytes(PAGE)}
        target = FakeTarget(memory, names={0xFFF00000: "[stack]"}, threads=[thread(1, sp=0xFFF00800)], pid=7, arch=I386)
        target.uncertain = [gap]
        made = session(target, [ListAllocator(0x56600000, 0x56600000 + PAGE, [Listed(0x56600400, 64)])], load(I386))
        _ = made.graph()
        assert sum(one.words for one in find_missing_memory(made)) == count, text
