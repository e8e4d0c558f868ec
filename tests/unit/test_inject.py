"""The computations of `count --inject` before it changes a process: moving instructions, finding free memory, and making rules."""

from __future__ import annotations

import dataclasses
import re
from array import array
from typing import Optional

import pytest

from findleaks.commands.count_text import _describe_lost
from findleaks.counting.counter import Table
from findleaks.disasm.x86 import instructions
from findleaks.injection.stub import patcher as implant
from findleaks.injection.stub.free_range import GROWTH, find_free_range
from findleaks.injection.stub.relocate import Refused, jump, plan, relocate_code
from findleaks.injection.stub.table import BY_FP, BY_SP, LAST, SIGNAL, THROUGH_FP, CountTable, Node, answer, pack, paths
from findleaks.injection.stub.unwind_rules import CHAINED, _near, _value, follow
from findleaks.target.base import Region
from findleaks.target.control import Outcome, ThreadPosition
from findleaks.unwind.cfi import Row, Rule

AT, TO = 0x555555554000, 0x555500000000


def plan_patch(text: str, end: int = 64) -> Optional[bytes]:
    code = bytes.fromhex(text).ljust(end, b"\x90")
    return relocate_code(plan("f", AT, AT + end, code), TO)


@pytest.mark.parametrize(
    ("code", "moved"),
    [
        ("55 4889e5 4883ec10", "55 4889e5 4883ec10"),  # push; mov; sub
        ("8b05 10000000 c3", None),  # mov eax, [rip + 16]
        ("833d 10000000 07 c3", None),  # cmp dword [rip + 16], 7: an immediate after the displacement
        ("c705 10000000 44332211", None),
        ("48 8d 3d 00010000", None),
        ("f30f1efa 55 4889e5 c3", "55 4889e5 c3"),  # endbr64 is not moved
        ("31c0 85ff 7420 90", "31c0 85ff 0f84"),  # je: encoded with a displacement of four bytes
        ("31c0 eb20", "31c0 e9"),
        ("85ff 0f8480000000", "85ff 0f84"),
        ("e980000000", "e9"),
        ("ff25 10000000", None),  # jmp [rip + 16]
    ],
)
def test_moved_instructions_do_the_same(code: str, moved: Optional[str]) -> None:
    made = plan_patch(code)
    assert made is not None
    before = [one for one in instructions(bytes.fromhex(code).ljust(64, b"\x90"), AT) if one.name != "endbr64"]
    after = list(instructions(made, TO))
    size = 0
    for one, other in zip(before, after):
        assert one[2:] == other[2:]  # with RIP as the base, the displacement is the address itself
        size += one.size
        if size >= 5:
            break
    start = AT + 4 if code.startswith("f30f1efa") else AT
    back = after[before.index(one) + 1]
    assert (back.name, back.size, back.target) == ("jmp", 5, start + size)
    if moved is not None:
        assert made.startswith(bytes.fromhex(moved))


REFUSED = {
    "c3": "f is too short: 1 bytes, 5 are needed",
    "f30f1efa 31c0 c3": "f is too short: 3 bytes",
    "e8 00100000 c3": "cannot be moved: it is a call",
    "ff15 00100000 c3": "it is a call",
    "ffd0 90 90 90": "it is a call",
    "31c0 e3fe 90 90": "jumps by a distance of one byte",
    "b801000000 0f05": "",
    "31c0 0f05 90": "it enters the kernel",
    "cc 90 90 90 90": "it is a breakpoint",
    "06 90 90 90 90": "f: the instruction at 0x555555554000 cannot be decoded",
    "90 90 90 90 90 06": "f: the instruction at 0x555555554005 cannot be decoded",
    "c5f877 c5fd6f00": "",  # vzeroupper; vmovdqa
    "90 90 90 90 90 ebfc": "0x555555554005 jumps to 0x555555554003, which would be overwritten",
    "90 90 90 90 90 ebf9": "",  # a jump to the beginning of the function
}


@pytest.mark.parametrize("code", REFUSED)
def test_code_that_cannot_be_moved(code: str) -> None:
    data = bytes.fromhex(code)
    try:
        plan("f", AT, AT + len(data), data)
    except Refused as error:
        assert REFUSED[code] and REFUSED[code] in str(error)
    else:
        assert not REFUSED[code]


def test_too_far() -> None:
    code = bytes.fromhex("8b0510000000c3")
    made = plan("f", AT, AT + len(code), code)
    with pytest.raises(Refused, match="too far"):
        relocate_code(made, AT + (1 << 31) + 4096)
    with pytest.raises(Refused, match="too far"):
        jump(0, 1 << 32)
    assert jump(0x1000, 0x1005) == bytes.fromhex("e900000000")


def make_region(start: int, end: int, name: str = "") -> Region:
    return Region(start, end, True, True, False, name)


def test_free_range_is_near() -> None:
    """The free range is as near as possible. It does not touch another mapping, and is not where the heap or the main
    thread's stack may grow."""
    program = make_region(0x400000, 0x1900000, "/node")
    heap = make_region(0x1A00000, 0x2A00000, "[heap]")
    assert find_free_range([program, heap], 0x200000, [0x500000], "/node") == 0x400000 - 0x1000 - 0x200000
    assert find_free_range([program, heap], 0x500000, [0x500000], "/node") == (0x2A00000 + GROWTH + 0x1000)
    assert find_free_range([program], 0x500000, [0x500000], "/node") == 0x1900000 + GROWTH + 0x1000
    high = [make_region(0x7F0000000000, 0x7F0000100000, "/lib"), make_region(0x7FFFF0000000, 0x7FFFF0020000, "[stack]")]
    found = find_free_range(high, 0x200000, [0x7F0000000000], "/node")
    assert found == 0x7F0000101000
    fixed = [make_region(0x7FFF78000000, 0x7FFFF8000000, "/lib"), make_region(0x7FFFFFFDE000, 0x7FFFFFFFF000, "[stack]")]
    assert find_free_range(fixed, 0x4000000, [0x7FFFF7000000], "/node") is None
    assert find_free_range(fixed, 0x4000000, [0x7FFFF7000000], "/node", 32 << 20) == 0x7FFFF8001000
    near = [make_region(0x10000, 0x7FFF00000000)]
    assert find_free_range(near, 0x1000, [0x500000], "/node") is None
    between = [make_region(0x100000000 + n * 0x201000, 0x100000000 + n * 0x201000 + 0x1000) for n in range(4000)]
    for size in (0x1000, 0x1FE000):
        made = find_free_range(between, size, [between[2000].start], "")
        assert made is not None
        assert all(made + size + 0x1000 <= one.start or one.end + 0x1000 <= made for one in between)


RETURN = {16: Rule("offset", -8)}


@pytest.mark.parametrize(
    ("row", "value"),
    [
        (Row(7, 8, b"", RETURN, 16), pack(BY_SP, 8)),
        (Row(7, 4128, b"", {**RETURN, 6: Rule("offset", -16), 3: Rule("offset", -24)}, 16), pack(BY_SP, 4128, 1, -16)),
        (Row(6, 16, b"", {**RETURN, 6: Rule("offset", -16)}, 16), pack(BY_FP, 16, 1, -16)),
        # GCC's realigned stacks: DW_CFA_def_cfa_expression (breg6 -8; deref), DW_CFA_expression of rbp (breg6 0)
        (Row(-1, 0, b"\x76\x78\x06", {**RETURN, 6: Rule("saved", 0, b"\x76\x00")}, 16), pack(THROUGH_FP, -8, 2, 0)),
        (Row(-1, 0, b"\x77\xa0\x01\x06", {16: Rule("saved", 0, b"\x77\xa8\x01")}, 16, True), pack(SIGNAL)),
        (Row(7, 8, b"", {16: Rule("undefined")}, 16), pack(LAST)),
        (Row(3, 8, b"", RETURN, 16), None),  # relative to rbx
        (Row(7, 8, b"", {16: Rule("offset", -16)}, 16), None),
        (Row(7, 8, b"", {**RETURN, 6: Rule("undefined")}, 16), None),
        (Row(7, 8, b"", {**RETURN, 7: Rule("offset", -16)}, 16), None),
        (Row(-1, 0, b"\x77\xa0\x01", {16: Rule("saved", 0, b"\x77\xa8\x01")}, 16, True), None),
    ],
)
def test_rows_as_rules(row: Row, value: Optional[int]) -> None:
    assert _value(row) == value


def test_expressions() -> None:
    assert _near(b"\x76\x78\x06") == (6, -8, True)
    assert _near(b"\x77\x80\x01") == (7, 128, False)
    for bad in (b"", b"\x76", b"\x76\x80", b"\x76\x80\x80\x80\x80\x80\x80", b"\x76\x00\x22", b"\x30\x00"):
        assert _near(bad) is None


def test_model_stops_at_the_end_of_memory() -> None:
    words = {0x1000: 0x401000, 0x1008: 0x402000}

    def word(address: int) -> int:
        return words[address]

    assert follow(pack(BY_SP, 8), 1, 0x1000, 0, 0x1000, 0x1010, word) == (0x401000, 0x1008, 0)
    assert follow(pack(BY_SP, 16), 1, 0x1000, 0, 0x1000, 0x1008, word) is None
    assert follow(CHAINED, 1, 0x1000, 0x1008, 0x1000, 0x1010, word) is None
    assert follow(CHAINED, 1, 0x1000, 0x1000, 0x1000, 0x1010, word) == (0x402000, 0x1010, 0x401000)


def test_paths_of_a_damaged_table() -> None:
    """Three cases: a parent that is not a node, a node that is its own descendant, and a chain so long that the path of
    each node cannot be written out."""
    nodes = {32: Node(1, 0, 5, 0), 64: Node(2, 32, 6, 1), 96: Node(3, 999, 7, 0), 128: Node(4, 160, 8, 0), 160: Node(5, 128, 9, 0)}
    found = {node.key: keys for node, keys in paths(nodes)}
    assert found == {1: (1,), 2: (1, 2), 3: (), 4: (), 5: ()}
    chain = {32 * n: Node(n, 32 * (n - 1), 1, 0) for n in range(1, 65536)}
    made = list(paths(chain))
    assert len(made) == 65535
    assert sum(len(keys) for _, keys in made) <= 1 << 22
    assert made[99][1] == tuple(range(1, 101))


def test_lost_calls_are_reported() -> None:
    table = Table(10, 9, 1.0, (), True, Outcome("time"), 3, 1, ())
    assert list(_describe_lost(table)) == [
        "3 calls have no stack here: the table of stacks is full",
        "1 call was not counted: findleaks could not determine in time whether it was outside a scope",
    ]
    assert list(_describe_lost(dataclasses.replace(table, stack_table_full=0, undecided=0))) == []


def test_answers_fit_a_request() -> None:
    data = answer((n, n) for n in range(100))
    assert len(data) == 32 + 16 * 56
    assert data[0] == 56
    assert CountTable(0).size % 4096 == 0


def test_page_that_describes_the_patches() -> None:
    stub = implant.Stub(
        0x10000, 0x3000, 0x100000, (implant.Patched(AT, b"12345", b"\xe9abcd"), implant.Patched(AT + 64, b"abcde", b"\xe9xyz1"))
    )
    memory = {0x10000: stub.page().ljust(4096, b"\0")}
    code = Region(0x10000, 0x13000, True, False, True)

    def read(address: int, size: int) -> bytes:
        return memory.get(address, b"")[:size]

    assert implant.find_stubs([code], read) == [stub]
    assert implant.find_stubs([Region(0x10000, 0x13000, True, False, True, "/lib/x.so")], read) == []
    assert implant.find_stubs([Region(0x10000, 0x14000, True, False, True)], read) == []
    memory[0x10000] = b"findleaks" + bytes(4087)
    assert implant.find_stubs([code], read) == []


def test_threads_inside_the_patch() -> None:
    stack = array("Q", [1, 2, 0x401003, 4])
    regions = [Region(0x7000, 0x7020, True, True, False)]

    def read(address: int, size: int) -> bytes:
        return stack.tobytes()[address - 0x7000 :][:size]

    places = [ThreadPosition(7, 0x500000, 0x7000)]
    assert implant.describe_thread_in(places, regions, read, [(0x401001, 0x401005)]) == "thread 7 may return to 0x401003"
    assert implant.describe_thread_in([ThreadPosition(7, 0x500000, 0x7018)], regions, read, [(0x401001, 0x401005)]) is None
    assert implant.describe_thread_in(places, regions, read, [(0x401004, 0x401009)]) is None
    assert implant.describe_thread_in(places, regions, read, [(0x3FFFFF, 0x401004)]) == "thread 7 may return to 0x401003"
    found = implant.describe_thread_in(places, regions, read, [(0x4FFFFF, 0x500001)])
    assert found is not None
    assert re.fullmatch("thread 7 is at 0x500000", found)
