"""findleaks' note in the cores that it writes: intact, damaged and hostile notes, and cores without a note."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path
from typing import Optional

import elfcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findleaks.target import elf, snapshot_note
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, Region
from findleaks.target.core import CoreTarget, open_core
from findleaks.target.core_writer.contents import Segment
from findleaks.target.core_writer.headers import lay_out_core
from findleaks.target.kernel_references import KernelReference, KernelState
from findleaks.target.notes import FINDLEAKS, NT_SNAPSHOT
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs
from findleaks.target.snapshot_note import Damaged, SnapshotNote, decode_note, encode_note

PAGE = 4096
START = 0x10000000
MAPS = b"10000000-10008000 rw-p 00000000 00:00 0    [heap]\n20000000-20002000 rw-s 00000000 00:01 7    /dev/zero (deleted)\n"
RUNS = st.lists(st.integers(1, 1 << 40), unique=True, max_size=40).map(
    lambda pages: Runs.of((a * PAGE, b * PAGE) for a, b in zip(sorted(pages)[::2], sorted(pages)[1::2]))
)


def make_note(known: Runs, resident: Runs, swapped: Runs, rss: Optional[int] = 8192, maps: bytes = MAPS) -> SnapshotNote:
    found = Presence("pagemap", known, resident, swapped, rss, (Range(START, START + PAGE),))
    names = {7: "main", 8: "two words", 9: "odd\n\x1b[31m"}
    return SnapshotNote(1_700_000_000.25, 4711, found, (Range(START + 4 * PAGE, START + 5 * PAGE),), maps, names, "0.1")


WHOLE = make_note(
    Runs.of([(START, START + 8 * PAGE)]), Runs.of([(START, START + 2 * PAGE)]), Runs.of([(START + 6 * PAGE, START + 7 * PAGE)])
)


@given(known=RUNS, resident=RUNS, swapped=RUNS, rss=st.none() | st.integers(0, 1 << 40))
def test_notes_are_read_as_written(known: Runs, resident: Runs, swapped: Runs, rss: Optional[int]) -> None:
    made = make_note(known, resident, swapped, rss)
    found = decode_note(memoryview(encode_note(made, PAGE) + b"of a later version"), PAGE)
    assert [runs.words for runs in found.presence[1:4]] == [runs.words for runs in made.presence[1:4]]
    assert found.presence[4:] == made.presence[4:]
    assert found.presence.source == "note of the core"
    assert found._replace(presence=made.presence) == made


KERNEL = KernelState([KernelReference(0x7F00, "POSIX timers", "timer 3")], {"io_uring descriptor": 2})


@pytest.mark.parametrize("kernel", [None, KernelState([], {}), KERNEL])
def test_references_of_the_kernel_are_read(kernel: Optional[KernelState]) -> None:
    desc = encode_note(WHOLE._replace(kernel=kernel), PAGE)
    assert decode_note(memoryview(desc), PAGE).kernel == decode_note(memoryview(desc + b"later"), PAGE).kernel == kernel


def test_truncation_at_any_byte() -> None:
    """A note can end after the version, as notes of an earlier version do. Anywhere else, it is damaged."""
    desc = memoryview(encode_note(WHOLE._replace(kernel=KERNEL), PAGE))
    before = len(encode_note(WHOLE, PAGE)) - 8
    for size in set(range(len(desc))) - {before}:
        with pytest.raises(Damaged):
            decode_note(desc[:size], PAGE)
    earlier = decode_note(desc[:before], PAGE)
    assert (earlier.names, earlier.version, earlier.kernel) == (WHOLE.names, WHOLE.version, None)


@given(seed=st.integers(0, 1 << 32))
def test_damage_at_any_byte(seed: int) -> None:
    rng = random.Random(seed)
    desc = bytearray(encode_note(WHOLE, PAGE))
    for _ in range(rng.randrange(1, 6)):
        desc[rng.randrange(len(desc))] = rng.choice((0, 1, 255, rng.randrange(256)))
    try:
        found = decode_note(memoryview(desc), PAGE)
    except Damaged as why:
        assert str(why)
    else:
        words = list(found.presence.resident.words)
        assert words == sorted(set(words))


def make_core(tmp_path: Path, desc: bytes) -> CoreTarget:
    """Return the core of a process with this note."""
    loads = [elfcore.Load(START, 8 * PAGE, bytes(range(256)) * (8 * PAGE // 256)), elfcore.Load(0x20000000, 2 * PAGE, bytes(2 * PAGE))]
    task = elfcore.Task(7, extra=[(FINDLEAKS, NT_SNAPSHOT, desc)])
    path = tmp_path / "core"
    path.write_bytes(elfcore.core(loads, [task], pid=7))
    return open_core(str(path))


def test_a_core_with_the_note(tmp_path: Path) -> None:
    with make_core(tmp_path, encode_note(WHOLE, PAGE)) as found:
        assert found.warnings == []
        assert (found.taken_at, found.start_time) == (1_700_000_000.25, 4711)
        assert found.thread_names() == WHOLE.names
        assert found.resident(START, START + 8 * PAGE) == 3 * PAGE
        assert [(region.name, region.private) for region in found.regions()] == [("[heap]", True), ("/dev/zero (deleted)", False)]
        assert found.unread == [Range(START + 4 * PAGE, START + 5 * PAGE)]
        assert sum(len(piece.data) for piece in found.pieces(START, START + 8 * PAGE)) == 7 * PAGE
        assert found.read(START, 4) == b"\0\1\2\3"


@pytest.mark.parametrize(
    ("desc", "why"),
    [
        (b"", "it is cut off"),
        (encode_note(WHOLE, PAGE)[:-30], "it has "),
        (struct.pack("<I", 2) + encode_note(WHOLE, PAGE)[4:], "it has version 2, expected 1"),
        (encode_note(WHOLE, 8192), "its pages have 8192 bytes instead of 4096"),
        (encode_note(WHOLE, PAGE)[:32] + b"\xff" * 64 + encode_note(WHOLE, PAGE)[96:], "it has "),
        (encode_note(make_note(Runs.of([]), Runs.of([(5, 6)]), Runs.of([])), PAGE), "its ranges do not ascend"),
        (encode_note(make_note(Runs.of([]), Runs.of([]), Runs.of([]), maps=MAPS[:50]), PAGE), "its mappings are not the core's"),
        (
            encode_note(make_note(Runs.of([]), Runs.of([]), Runs.of([]), maps=MAPS.replace(b"rw-p", b"r--p")), PAGE),
            "its mappings are not the core's",
        ),
    ],
)
def test_a_core_with_a_damaged_note(tmp_path: Path, desc: bytes, why: str) -> None:
    """There is one line of warning, and the core is read like a core without the note."""
    with make_core(tmp_path, desc) as found:
        (warning,) = found.warnings
        assert warning.startswith(f"core: findleaks' own note in the core is damaged ({why}")
        assert found.read(START + 4 * PAGE, 4) == b"\0\1\2\3"
        assert found.thread_names() == {}
        assert found.resident(START, START + 8 * PAGE) is None
        assert [region.name for region in found.regions()] == ["", ""]


def test_a_hostile_note_takes_linear_time(tmp_path: Path) -> None:
    """Hundreds of thousands of mappings that are not in the core, and millions of ranges."""
    rows = b"".join(b"%x-%x rw-p 00000000 00:00 0 x\n" % (at, at + 1) for at in range(START, START + 100_000))
    words = Runs.of((at, at + PAGE) for at in range(START, START + (1 << 31), 2 * PAGE))
    began = time.process_time()
    desc = encode_note(make_note(words, words, words, maps=rows), PAGE)
    made = time.process_time() - began
    began = time.process_time()
    with make_core(tmp_path, desc) as found:
        assert len(found.warnings) == 1
    assert time.process_time() - began < 50 * made + 5


def test_more_segments_than_a_header_counts() -> None:
    """PN_XNUM: the number of segments is in section 0, as Linux writes it."""
    regions = [Region(START + 2 * at * PAGE, START + (2 * at + 1) * PAGE, True, True, False) for at in range(70_000)]
    made = lay_out_core(X86_64, [Segment(region, 0) for region in regions], elfcore.note(b"CORE", 99, b"x"))
    assert len(made.tail) == 64
    data = made.head + bytes(made.size - len(made.head) - len(made.tail)) + made.tail
    head = elf.header(data)
    assert (head.phnum, head.shnum, head.shstrndx) == (elf.PN_XNUM, 1, 0)
    found = elf.segments(data, head)
    assert [s.vaddr for s in found if s.type == elf.PT_LOAD] == [region.start for region in regions]
    few = lay_out_core(X86_64, [Segment(regions[0], PAGE)], b"")
    assert (few.tail, few.size, elf.header(few.head).shoff) == (b"", 2 * PAGE, 0)


def test_messages_about_unusable_notes() -> None:
    assert snapshot_note.damage_warning("core", "why").count("\n") == 0
