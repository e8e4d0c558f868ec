"""Reserved addresses: claims of owners are accepted only if the mappings agree. Other reserved memory is recognised by
its access and by zeros."""

from __future__ import annotations

import pytest
from fake import FakeTarget
from heaps import ListAllocator, session

from findleaks.errors import Interrupted
from findleaks.graph.reserved import Reserved, inaccessible_ranges, reserved_by_owner, unowned_reserved
from findleaks.session import Session
from findleaks.target.base import Range

MIB = 1 << 20
HEAP, END, APART, CONSTANTS, LIBRARY = 0x100000, 0x200000, 0x8000000, 0x9000000, 0xA000000


def make_target(live: bool = False, constants: bytes = b"\0" * 4096) -> FakeTarget:
    memory = {HEAP: bytes(MIB), END: bytes(MIB), APART: bytes(2 * MIB), CONSTANTS: constants, LIBRARY: bytes(4096)}
    modes = {END: "r--", APART: "---", CONSTANTS: "r--", LIBRARY: "r--"}
    return FakeTarget(memory, permissions=modes, names={LIBRARY: "/usr/lib/libthing.so"}, live=live)


def do_nothing() -> None:
    """Return at once, without an interruption."""


def test_reserved_memory_of_a_live_process_by_access() -> None:
    made = make_target(live=True)
    assert inaccessible_ranges(made.regions(), False) == [Range(APART, APART + 2 * MIB)]
    assert reserved_by_owner(made, [("one", [Range(HEAP, APART + MIB)])]) == [Reserved("one", [Range(APART, APART + MIB)])]
    assert unowned_reserved(made, [], True, do_nothing) == [Range(APART, APART + 2 * MIB)]


def test_reserved_memory_of_a_core_by_zeros() -> None:
    made = make_target()
    assert unowned_reserved(made, [], False, do_nothing) == [Range(APART, APART + 2 * MIB)]
    assert unowned_reserved(made, [], True, do_nothing) == [
        Range(END, END + MIB),
        Range(APART, APART + 2 * MIB),
        Range(CONSTANTS, CONSTANTS + 4096),
    ]
    assert Range(CONSTANTS, CONSTANTS + 4096) not in unowned_reserved(make_target(constants=bytes(4095) + b"\1"), [], True, do_nothing)
    made.truncated = True
    assert unowned_reserved(made, [], True, do_nothing) == [Range(APART, APART + 2 * MIB)]


def test_writable_memory_and_files_are_never_reserved() -> None:
    """Claims of a corrupt heap are refused, too. Memory that one owner has claimed is not given to a second owner."""
    claims = [("first", [Range(0, END + 4096)]), ("second", [Range(0, 1 << 47)])]
    first, second = reserved_by_owner(make_target(), claims)
    assert first == Reserved("first", [Range(END, END + 4096)])
    assert second.ranges == [Range(END + 4096, END + MIB), Range(APART, APART + 2 * MIB), Range(CONSTANTS, CONSTANTS + 4096)]
    assert unowned_reserved(make_target(), [first, second], True, do_nothing) == []


def test_control_c_during_the_search_for_zeros() -> None:
    def stop() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        unowned_reserved(make_target(), [], True, stop)


def test_reserved_addresses_are_no_roots() -> None:
    """Otherwise gigabytes of zeros would be read from a core by gcore."""

    class GrowingAllocator(ListAllocator):
        def list_reserved(self) -> list[Range]:
            return [Range(END, END + MIB)]

    made: Session = session(make_target(), [GrowingAllocator(HEAP, END, [])])
    assert (CONSTANTS, CONSTANTS + 4096) in [tuple(part) for part in made.roots]
    assert not any(start < END + MIB and end > END for start, end in made.roots)
