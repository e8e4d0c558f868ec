"""Code before a fault: jumps through tables, the limit of decoded bytes, and faults that are explained without code."""

from __future__ import annotations

import signal
import struct
from types import SimpleNamespace
from typing import Any, Optional, cast

import pytest
from fake import FakeTarget

from findleaks.audit.crash import Crash, straight_code
from findleaks.audit.crash.fault import Fault, find_fault
from findleaks.audit.crash.jump_tables import find_destinations
from findleaks.audit.crash.straight_code import CodeReader
from findleaks.audit.findings.crash import _describe
from findleaks.audit.findings.crash_causes import describe_reason
from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import RIP
from findleaks.target.base import Range

FUNCTION, TABLE, OTHER, MOVED = Range(0x1000, 0x1100), 0x3000, 0x5000, 0x7000
PLACES = (0x1010, 0x1020, 0x1030, 0x1040)
RAX, RDX, RSI, RDI, RSP, RBX = 0, 2, 6, 7, 4, 3


def code(*words: dict[str, Any]) -> list[Instruction]:
    """Return these instructions, the first one at FUNCTION.start, and then one `nop` at each address in PLACES."""
    first = [Instruction(FUNCTION.start + at, 1, **word) for at, word in enumerate(words)]
    return [*first, *(Instruction(place, 1, "nop") for place in PLACES)]


def destinations(data: bytes, *words: dict[str, Any], mode: str = "r--") -> Optional[set[int]]:
    """Return the destinations of the last of the instructions. `data`: the memory at TABLE."""
    target = FakeTarget({TABLE: data, OTHER: b"text" * 4, MOVED: bytes(16)}, permissions={TABLE: mode, OTHER: "r--", MOVED: "r-x"})
    return find_destinations(target, code(*words), len(words) - 1, FUNCTION)


BOUND: list[dict[str, Any]] = [{"name": "cmp", "destination": RDI, "immediate": 2, "width": 4}, {"name": "ja"}]
TABLE_IN_RDX: dict[str, Any] = {"name": "lea", "destination": RDX, "base": RIP, "displacement": TABLE, "width": 8}
JUMP: list[dict[str, Any]] = [
    {"name": "movsxd", "destination": RAX, "base": RDX, "scaled": RDI, "scale": 4, "displacement": 0, "width": 8},
    {"name": "add", "destination": RAX, "source": RDX, "width": 8},
    {"name": "jmp", "source": RAX, "width": 8},
]


def distances(*places: int) -> bytes:
    return struct.pack(f"<{len(places)}i", *(place - TABLE for place in places))


def test_a_comparison_shows_the_length_of_a_table() -> None:
    assert destinations(distances(*PLACES), *BOUND, TABLE_IN_RDX, *JUMP) == set(PLACES[:3])
    # The index was copied before, or after, it was compared.
    copy = {"name": "mov", "destination": RDI, "source": RSI, "width": 4}
    assert destinations(distances(*PLACES), copy, *BOUND, TABLE_IN_RDX, *JUMP) == set(PLACES[:3])
    before = [{**BOUND[0], "destination": RSI}, BOUND[1]]
    assert destinations(distances(*PLACES), *before, copy, TABLE_IN_RDX, *JUMP) == set(PLACES[:3])


def test_comparison_of_another_register_is_ignored() -> None:
    other = [{**BOUND[0], "destination": RBX, "immediate": 0}, BOUND[1]]
    assert destinations(distances(*PLACES, 0x9000), *other, TABLE_IN_RDX, *JUMP) == set(PLACES)
    below = [{**BOUND[0], "immediate": 0}, {"name": "jbe"}]
    assert destinations(distances(*PLACES), *below, TABLE_IN_RDX, *JUMP) == set(PLACES)


def test_comparison_of_an_older_value_is_ignored() -> None:
    """RDI was compared, and then set to RSI; or RSI was compared, and then set to RDI."""
    for copied, compared in (((RDI, RSI), RDI), ((RSI, RDI), RSI)):
        copy = {"name": "mov", "destination": copied[0], "source": copied[1], "width": 4}
        older = [{**BOUND[0], "destination": compared, "immediate": 0}, BOUND[1]]
        assert destinations(distances(*PLACES, 0x9000), *older, copy, TABLE_IN_RDX, *JUMP) == set(PLACES)


def test_the_start_of_the_table_may_be_set_far_before() -> None:
    call = {"name": "call", "target": 0x9000}
    assert destinations(distances(*PLACES), TABLE_IN_RDX, call, *BOUND, *JUMP) == set(PLACES[:3])
    # The register was restored from the stack: it may be any address that the function computes.
    text = {**TABLE_IN_RDX, "displacement": OTHER}
    other = {**TABLE_IN_RDX, "destination": RBX}
    restored = {"name": "mov", "destination": RDX, "base": RSP, "displacement": 8, "width": 8}
    assert destinations(distances(*PLACES), text, other, call, restored, {"name": "nop"}, call, *BOUND, *JUMP) == set(PLACES[:3])


def test_tables_of_addresses() -> None:
    data = struct.pack("<4Q", *PLACES)
    jump = {"name": "jmp", "scaled": RDI, "scale": 8, "displacement": TABLE, "width": 8}
    assert destinations(data, *BOUND, jump) == set(PLACES[:3])
    load = [{**jump, "name": "mov", "destination": RAX}, JUMP[-1]]
    assert destinations(data, *BOUND, *load) == set(PLACES[:3])
    assert destinations(data, *BOUND, jump, mode="rw-") is None  # the program may have changed the table


def test_unknown_destinations() -> None:
    assert destinations(distances(*PLACES), *BOUND, *JUMP) is None
    assert destinations(distances(0x8000, *PLACES), *BOUND, TABLE_IN_RDX, *JUMP) is None
    assert destinations(distances(*PLACES[:2]), *BOUND, TABLE_IN_RDX, *JUMP) is None  # the table is cut off
    # Two tables. The first case of one of them is in another part of the function.
    other = [{**TABLE_IN_RDX, "displacement": TABLE + 12}, TABLE_IN_RDX, {"name": "call", "target": 0x9000}]
    moved = distances(*PLACES[:3], MOVED - 12)
    assert destinations(moved, *other, *BOUND, *JUMP) is None
    member = {"name": "mov", "destination": RAX, "base": RDI, "displacement": 8, "width": 8}
    assert destinations(distances(*PLACES), member, JUMP[-1]) is None


KINDS = {"/anon_hugepage (deleted)": "huge-page", "/SYSV00000001": "shared-memory", "/data/a": "file"}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_missing_pages(name: str, kind: str) -> None:
    target = FakeTarget({0x10000: bytes(0x2000)}, names={0x10000: name})
    found = find_fault(target, None, signal.SIGBUS, 2, 0x11388)
    assert found is not None and (found.kind, found.file, found.file_offset) == (kind, name, 0x1388)


class OneFunction:
    """Functions of `size` bytes each, whose code is contiguous."""

    def __init__(self, size: int) -> None:
        self.size = size

    def extent(self, address: int) -> Range:
        start = address // self.size * self.size
        return Range(start, start + self.size)

    def row(self, address: int) -> None:
        return None

    def landing_pads(self, start: int) -> list[int]:
        return []


def test_the_bytes_that_are_decoded_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straight_code, "_MOST_BYTES", 0x200)
    target = FakeTarget({0x1000: b"\x90" * 0x400}, permissions={0x1000: "r-x"})
    reader = CodeReader(target, OneFunction(0x100))  # type: ignore[arg-type]
    assert [reader.before(start + 0x80, False, start) is not None for start in (0x1000, 0x1100, 0x1200)] == [True, True, False]
    assert reader.before(0x1080, False, 0x1000) is not None


@pytest.mark.parametrize(
    ("registers", "code", "found"),
    [
        ({RAX: 0x28}, 1, "it accessed address 0x7028, relative to the register gs, which contains 0x7000"),
        ({}, 1, "it accessed address 0x7028, relative to the register gs"),  # rax is unknown
        ({RAX: 0x9000}, 1, "it accessed address 0x7028, relative to the register gs"),  # gs is unknown
        ({RAX: 0x28}, 0, ""),  # another process sent the signal
    ],
)
def test_accesses_relative_to_gs(registers: dict[int, int], code: int, found: str) -> None:
    target = FakeTarget({0x1000: b"\x65\x48\x8b\x18" + b"\x90" * 0xFC}, permissions={0x1000: "r-x"})  # mov %gs:(%rax), %rbx
    reader = CodeReader(target, OneFunction(0x100))  # type: ignore[arg-type]
    tracer: Any = SimpleNamespace(
        frames=[SimpleNamespace(pc=0x1000)], reader=reader, known_registers=lambda level: registers, thread_pointer=0
    )
    crash: Any = SimpleNamespace(musl_check="", fault=find_fault(target, tracer, signal.SIGSEGV, code, 0x7028), address=0x7028)
    assert describe_reason(crash, target) == found


@pytest.mark.parametrize(
    ("fault", "certain"),
    [(Fault("pointer", value=0), True), (Fault("pointer", value=0x64), False), (Fault("index", value=-0x3F9C), False), (None, False)],
)
def test_offset_from_a_null_pointer(fault: Optional[Fault], certain: bool) -> None:
    """The cause is certain only if a null pointer is in a register of the instruction."""
    text = "an offset from a null pointer"
    assert _describe(cast(Crash, SimpleNamespace(fault=fault)), 0x64, FakeTarget({})) == (text if certain else f"probably {text}")
