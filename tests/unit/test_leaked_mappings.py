"""Rules that exclude mappings as candidates, or make them only possibly leaked; the rest of recorded mappings after munmap."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import fake
import pytest

from findleaks.audit.findings.figures import LEAKED
from findleaks.audit.findings.large_shares import classify_shared_memory
from findleaks.audit.findings.leaked_mappings import _find_example
from findleaks.audit.mappings import describe_mapping_kind, name_mapping_kind
from findleaks.audit.unread_memory import is_shared
from findleaks.commands.diff_text import _mappings
from findleaks.engine.terms import Kind
from findleaks.history.figure_series import Series
from findleaks.session import Session
from findleaks.session.block_directory import LARGEST_GUARD, is_reservation
from findleaks.session.leaked_mappings import _is_device
from findleaks.target.arch import AARCH64, I386, RISCV64, X86_64, Arch
from findleaks.target.base import Module, Range, Region
from findleaks.tracking.mappings import _what_is_left
from findleaks.tracking.record_table import FREED, LIVE, UNSEEN, Record
from findleaks.unwind.frames import is_return_address

PAGE = 4096


def region(start: int, size: int, access: str = "rw-", name: str = "") -> Region:
    return Region(start, start + size, "r" in access, "w" in access, "x" in access, name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("anon_inode:[io_uring]", True),
        ("/dev/infiniband/uverbs0", True),
        ("/dev/kvm", True),
        ("socket:[4711]", True),
        ("/dev/shm/cache", False),
        ("/dev/zero (deleted)", False),
        ("/memfd:frame (deleted)", False),
        ("/usr/lib/libc.so.6", False),
        ("[heap]", False),
    ],
)
def test_memory_that_devices_share(name: str, expected: bool) -> None:
    assert _is_device(region(0x10000, PAGE, name=name)) is expected


def find_leaked(name: str, live: bool) -> tuple[list[int], list[int]]:
    """Place eight adjacent mappings with this name in a process whose data refers to the first four. Return the numbers of the leaked
    mappings, and of those that are only possibly leaked."""
    size, first, data = 1 << 20, 0x7F00_0000_0000, 0x5500_0000_0000
    starts = [first + number * size for number in range(8)]
    words = b"".join(start.to_bytes(8, "little") for start in starts[:4])
    memory = {data: words.ljust(PAGE, b"\0"), **dict.fromkeys(starts, b"Z" * size)}
    session = Session(fake.FakeTarget(memory, names={data: "/opt/server", **dict.fromkeys(starts, name)}, live=live))
    found = session.directory.mappings
    return [starts.index(one.start) for one in found.ranges], [starts.index(one.start) for one in found.doubtful]


def test_huge_pages_are_candidates_and_are_never_merged() -> None:
    """A core does not show whether another process shares them."""
    assert find_leaked("/anon_hugepage (deleted)", live=True) == ([4, 5, 6, 7], [])
    assert find_leaked("/anon_hugepage (deleted)", live=False) == ([4, 5, 6, 7], [4, 5, 6, 7])
    assert find_leaked("/dev/zero (deleted)", live=True) == ([], [])


@pytest.mark.parametrize(
    ("words", "leaked"),
    [
        ((0, 0x5500_0000_0800, 0x2000), True),  # l_addr, l_name, l_ld
        ((0, 0x9000), True),  # l_map_start, l_map_end
        ((0, 0x5500_0000_0800, 0x5500_0000_0900), False),  # the upper end of a stack
        ((), True),
    ],
)
def test_base_of_the_module_above_a_mapping(words: tuple[int, ...], leaked: bool) -> None:
    """Words below 0x10000 are offsets in the module."""
    data, start, size = 0x5500_0000_0000, 0x7F00_0000_0000, 8 << 20
    base = start + size
    content = b"".join((word if word > 0x10000 else base + word).to_bytes(8, "little") for word in words)
    memory = {data: (bytes(64) + content).ljust(PAGE, b"\0"), start: b"Z" * size, base: bytes(0x9000)}
    names, module = {data: "/opt/server", base: "/usr/lib/libz.so"}, Module("/usr/lib/libz.so", base, base, base + 0x9000)
    target = fake.FakeTarget(memory, names=names, permissions={base: "r--"}, modules=[module])
    assert bool(Session(target).directory.mappings.ranges) is leaked


@pytest.mark.parametrize("private", [True, False])
def test_huge_pages_are_shared_memory_only_if_they_are_shared(private: bool) -> None:
    huge = Region(0x200000, 0x400000, True, True, False, "/anon_hugepage (deleted)", private=private)
    assert is_shared(huge) is huge.is_shared_memory is not private
    assert huge.anonymous is private
    assert name_mapping_kind(huge) == f"anonymous {'' if private else 'shared '}huge pages rw-, up to 2.0 MiB each"


def test_kinds_of_mappings_as_text() -> None:
    for size, allowed, text in ((3 << 20, "rw-", "2.0 MiB to 4.0 MiB"), (PAGE, "---", "4.0 KiB (inaccessible)")):
        one = Region(0x1000000, 0x1000000 + size, "r" in allowed, "w" in allowed, False)
        assert describe_mapping_kind(name_mapping_kind(one)) == f"anonymous mappings of {text}"
    assert describe_mapping_kind("/memfd:tile-#") == "/memfd:tile-#"
    grown = Series(("kind of mapping", "unknown", "anonymous rw-, up to 64 MiB each"), (0, 1), (0, 36 << 20), "")
    same, more = Series(("share", "", "unknown"), (3, 3), (18 << 20, 36 << 20), ""), Series(("share", "", "unknown"), (2, 3), (0, 1), "")
    assert _mappings(grown, same) == "an anonymous mapping that has grown to 36 MiB"
    assert _mappings(grown, more) == "0 → 1 anonymous mapping of 32 MiB to 64 MiB"
    assert _mappings(Series(("kind of mapping", "shared", "/memfd:a"), (6, 12), (0, 1), "")) == "6 → 12 mappings of /memfd:a"
    assert (
        _mappings(Series(("kind of mapping", "unknown", "[heap]"), (1, 1), (1 << 20, 2 << 20), ""))
        == "a mapping of [heap] that has grown to 2.0 MiB"
    )
    assert _mappings(Series(("kind of mapping", "unknown", "[heap]"), (0, 1), (0, 1), "")) == "0 → 1 mapping of [heap]"


def test_reservations_beside_candidates() -> None:
    reservation = region(0x10000, LARGEST_GUARD + PAGE, "---")
    assert not is_reservation(region(0x10000, PAGE, "r-x"), ())
    assert not is_reservation(region(0x10000, PAGE, "---"), ())
    assert is_reservation(reservation, ())
    # For example, the inaccessible end of an arena belongs to an allocator.
    assert not is_reservation(reservation, [Range(reservation.start, reservation.end)])


@pytest.mark.parametrize(
    ("arch", "code", "expected"),
    [
        (X86_64, b"\x90\x90\xe8\0\0\0\0", True),  # call with an offset
        (I386, b"\x90\x90\x90\x90\x90\xff\xd0", True),  # call *%eax
        (X86_64, b"\x90\x90\xe9\0\0\0\0", False),  # jmp
        (AARCH64, b"\x10\x00\x00\x94", True),  # bl
        (AARCH64, b"\x00\x02\x3f\xd6", True),  # blr x16
        (AARCH64, b"\xc0\x03\x5f\xd6", False),  # ret
        (RISCV64, b"\x10\x00\x00\x94", False),  # not supported
        (X86_64, b"\xd0", False),  # the memory before it is unreadable
    ],
)
def test_addresses_after_calls(arch: Arch, code: bytes, expected: bool) -> None:
    target = fake.FakeTarget({0x10000: code}, permissions={0x10000: "r-x"}, arch=arch)
    assert is_return_address(target, 0x10000 + len(code)) is expected


def find_rest(regions: list[Region], *records: Record) -> list[list[tuple[int, int]]]:
    target: Any = SimpleNamespace(arch=X86_64, regions=lambda: regions)
    found = _what_is_left(cast(Session, SimpleNamespace(target=target)), records)
    return [[(start, end) for start, end in parts] for parts in found]


def record(address: int, size: int, state: int = LIVE) -> Record:
    return Record(address, 0, size, 0, state)


def test_rest_of_unmapped_mappings() -> None:
    mapped = [region(0x10000, 8 * PAGE)]
    whole = (0x10000, 0x10000 + 8 * PAGE)
    assert find_rest(mapped, record(0x10000, 8 * PAGE)) == [[whole]]
    assert find_rest([], record(0x10000, 8 * PAGE)) == [[]]
    # Sizes are rounded up to whole pages.
    assert find_rest(mapped, record(0x10000, 7 * PAGE + 1)) == [[whole]]
    # A later mapping at the same address is a different mapping.
    assert find_rest(mapped, record(0x10000, 8 * PAGE, UNSEEN), record(0x10000, 8 * PAGE)) == [[], [whole]]
    middle = (0x10000 + 2 * PAGE, 0x10000 + 4 * PAGE)
    assert find_rest(mapped, record(0x10000, 8 * PAGE), record(middle[0], 2 * PAGE)) == [
        [(whole[0], middle[0]), (middle[1], whole[1])],
        [middle],
    ]
    # The first pages were unmapped, and the rest is left. If the first page is mapped again, all of the old mapping was unmapped.
    assert find_rest([region(0x11000, 2 * PAGE)], record(0x10000, 4 * PAGE, FREED)) == [[(0x11000, 0x13000)]]
    assert find_rest(mapped, record(0x10000, 4 * PAGE, FREED)) == [[]]


def test_the_example_is_a_mapping_that_leaked() -> None:
    kinds = {0x1000: Kind.REACHABLE, 0x3000: Kind.POSSIBLE, 0x5000: Kind.INDIRECT}
    directory = SimpleNamespace(
        blocks=SimpleNamespace(find=lambda start: start, address=lambda index: index),
        mappings=SimpleNamespace(ranges=[Range(start, start + PAGE) for start in kinds]),
    )
    graph = SimpleNamespace(kind=kinds.__getitem__)
    session = cast(Session, SimpleNamespace(directory=directory, graph=lambda: graph, reference_counts=None))
    assert _find_example(session, LEAKED) == 0x5000
    assert _find_example(session, (Kind.POSSIBLE,)) == 0x3000


def test_kinds_of_shared_memory() -> None:
    names = [
        "/memfd:frame (deleted)",
        "/SYSV00000000 (deleted)",
        "/dev/shm/a",
        "anon_inode:[io_uring]",
        "anon_inode:[perf_event]",
        "socket:[17]",
        "/[aio] (deleted)",
        "",
    ]
    assert [classify_shared_memory(name) for name in names] == [
        "memfd mapping",
        "System V segment",
        "POSIX shared memory mapping",
        "mapping of io_uring",
        "kernel mapping",
        "mapping of a socket",
        "mapping of aio",
        "anonymous shared mapping",
    ]
