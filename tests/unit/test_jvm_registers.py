"""Test which words of a thread's registers, and of libjvm's variables, are roots of the Java heap."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import jvmimage
import pytest

from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.jvm.native_roots import NativeRoots, RootKind
from findleaks.runtimes.jvm.references import NO_COLORS, Moves, References
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Thread

BASE, FIRST, SECOND = 0x7000_0000_0000, 0x7000_0000_1000, 0x7000_0000_1100
CODE = jvmimage.OBJECTS
PAIR = (SECOND - BASE >> 3) << 32 | FIRST - BASE >> 3
"""A word with two compressed references."""


class Objects:
    """A fake Java heap with two objects."""

    starts: tuple[int, int] = (FIRST, SECOND)

    def __len__(self) -> int:
        return 2

    def address(self, index: int) -> int:
        return self.starts[index]

    def find_all(self, addresses: list[int]) -> tuple[array[int], None]:
        return array("I", (self.starts.index(one) if one in self.starts else NO_BLOCK for one in addresses)), None

    def columns_of(self, indices: array[int]) -> Any:
        return SimpleNamespace(address=[self.starts[index] if index != NO_BLOCK else 0 for index in indices])


NOTHING: Any = SimpleNamespace(ranges=list, blocks=SimpleNamespace(find=lambda address: -1))
"""A process without blocks of malloc."""


def find_roots(code: int, names: tuple[str, ...]) -> tuple[set[int], set[str]]:
    """Return the objects to which registers of a thread refer, and the registers that refer to the first object. `code`: the eight bytes
    before the thread's program counter."""
    image = jvmimage.Image("Serial", [(0, 0, 0)] * 4)
    image.words(CODE, code)
    target = image.target()
    registers = {"rax": SECOND, "rip": CODE + 8}
    target.threads = lambda: [Thread(7, registers, 0, CODE + 8, 0, (SECOND, PAIR), names)]  # type: ignore[method-assign]
    tables = Tables(target, target.modules()[0])
    module = SimpleNamespace(start=0, end=0)
    found = NativeRoots(tables, None, NOTHING, module, Objects(), References(4, BASE, 3))  # type: ignore[arg-type]
    objects = {address for part in found.find_by_kind((), ()) for address in part.addresses}
    return objects, {word.register for word in found.words_to(FIRST, (), str)}


WAITS, RUNS = 0x050F_9090_9090_9090, 0x9090_9090_9090_9090
"""Eight bytes of code. In WAITS, the last instruction is a system call; in RUNS, it is not."""


def test_vector_registers_of_a_thread_that_waits() -> None:
    """Copies of arrays leave stale references in vector registers. No code reads them after a system call."""
    assert find_roots(WAITS, ("rax", "xmm3")) == ({SECOND}, set())


def test_vector_registers_of_a_thread_that_runs() -> None:
    assert find_roots(RUNS, ("rax", "xmm3")) == ({FIRST, SECOND}, {"xmm3"})


def test_registers_without_names() -> None:
    assert find_roots(WAITS, ()) == ({FIRST, SECOND}, {"vector"})


def test_variables_with_bounds_of_the_heap() -> None:
    """libjvm's variables contain the start of the heap. The object there may be one of a list that a static variable retains."""
    image = jvmimage.Image("Serial", [(0, 0, 0)] * 4)
    image.words(CODE, FIRST, SECOND)
    target = image.target()
    target.threads = list  # type: ignore[method-assign]
    tables = Tables(target, target.modules()[0])
    module, objects = SimpleNamespace(start=CODE, end=CODE + 16), Objects()
    roots = NativeRoots(tables, PureEngine(target.arch), NOTHING, module, objects, References(8, 0, 0), {FIRST})  # type: ignore[arg-type]
    found = {address: part.kind for part in roots.find_by_kind((), ()) for address in part.addresses}
    assert found == {FIRST: RootKind.OTHER, SECOND: RootKind.HANDLE}


@pytest.mark.parametrize("previous", [FIRST - 0x100, FIRST + 0x80, SECOND + 0x80])
def test_roots_with_previous_addresses_of_moved_objects(previous: int) -> None:
    """While Shenandoah moves objects, variables and registers may contain previous addresses, also compressed ones."""
    image = jvmimage.Image("Serial", [(0, 0, 0)] * 4)
    image.words(CODE, previous, 0)
    target = image.target()
    registers = {"rax": previous, "rbx": (previous - BASE >> 3) << 32 | 1}
    target.threads = lambda: [Thread(7, registers, 0, CODE + 8, 0, tuple(registers.values()), tuple(registers))]  # type: ignore[method-assign]
    tables, moves = Tables(target, target.modules()[0]), Moves(array("Q", [previous]), array("Q", [FIRST]))
    module, objects = SimpleNamespace(start=CODE, end=CODE + 16), Objects()
    for references in (References(4, BASE, 3), References(4, BASE, 3, NO_COLORS._replace(young=moves))):
        roots = NativeRoots(tables, PureEngine(target.arch), NOTHING, module, objects, references)  # type: ignore[arg-type]
        found = {part.kind for part in roots.find_by_kind((), ()) if FIRST in part.addresses}
        words = {(one.address, one.register) for one in roots.words_to(FIRST, (), str)}
        is_known = bool(references.colors.young.before)
        assert found == ({RootKind.HANDLE, RootKind.OTHER} if is_known else set())
        assert words == ({(CODE, ""), (0, "rax"), (0, "rbx")} if is_known else set())


@pytest.mark.parametrize("before", [4, 5, 6])
@pytest.mark.parametrize(("size", "bounds", "is_buffer"), [(0x102, 0x100, True), (0x1F, 0x100, False), (FIRST, 0, False)])
def test_bounds_of_a_buffer_of_the_collector(before: int, size: int, bounds: int, is_buffer: bool) -> None:
    """An object begins at the bounds of a PLAB, which keep no object alive. `before`: the unused words at the start of the PLAB."""
    image = jvmimage.Image("Serial", [(0, 0, 0)] * 4)
    image.words(CODE, *[0] * before, size, FIRST, SECOND, SECOND, FIRST + bounds, 0x3E7C, 0x11CB, 0, *[0] * 8)
    target = image.target()
    target.threads = list  # type: ignore[method-assign]
    blocks = SimpleNamespace(
        find=lambda address: NO_BLOCK,
        find_all=lambda places: (array("I", [0]) * len(places), None),
        columns_of=lambda indices: [[one] * len(indices) for one in (CODE, 8 * (before + 15), State.IN_USE)],
    )
    directory: Any = SimpleNamespace(ranges=lambda: [(CODE, CODE + 8 * (before + 15))], blocks=blocks)
    tables, module = Tables(target, target.modules()[0]), SimpleNamespace(start=0, end=0)
    roots = NativeRoots(tables, PureEngine(target.arch), directory, module, Objects(), References(8, 0, 0))  # type: ignore[arg-type]
    assert {one for part in roots.find_by_kind((), ()) for one in part.addresses} == (set() if is_buffer else {FIRST, SECOND})


@pytest.mark.parametrize(("word", "is_root"), [(0xFFFF_FFFF_FFFF_FF80, False), (0xFFFF_FF80, True), (7 << 32 | 0xFFFF_FF80, True)])
def test_small_negative_numbers(word: int, is_root: bool) -> None:
    """The lower half of -128 is an address in the last bytes of a heap that ends at 4 GiB."""
    image = jvmimage.Image("Serial", [(0, 0, 0)] * 4)
    image.words(CODE, 0)
    target, objects = image.target(), Objects()
    objects.starts = (FIRST & 0xFFFF_FFFF, 0xFFFF_FF80)
    target.threads = lambda: [Thread(7, {"rax": word}, 0, CODE + 8, 0, (word,), ("rax",))]  # type: ignore[method-assign]
    tables = Tables(target, target.modules()[0])
    roots = NativeRoots(tables, None, NOTHING, SimpleNamespace(start=0, end=0), objects, References(4, 0, 0))  # type: ignore[arg-type]
    assert [one for part in roots.find_by_kind((), ()) for one in part.addresses] == [0xFFFF_FF80] * is_root
    assert len(list(roots.words_to(0xFFFF_FF80, (), str))) == is_root
