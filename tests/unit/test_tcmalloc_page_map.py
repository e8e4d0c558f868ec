"""Damaged page maps of both tcmallocs."""

from __future__ import annotations

from fake import FakeTarget

from findleaks.allocators.base import Problem
from findleaks.allocators.tcmalloc.layout import Layout
from findleaks.allocators.tcmallocs.page_map import leaf_entries
from findleaks.engine.load import load
from findleaks.target.arch import X86_64

USUAL = Layout(13, 2, 64)


def test_a_damaged_page_map_is_limited() -> None:
    """All leaves of the tree are the same words, as with a damaged node in the middle of the tree."""
    sound, other = 0x10000000, 0x20000000
    leaf = bytearray(USUAL.leaf)
    leaf[8:16] = (0x1234).to_bytes(8, "little")
    target = FakeTarget({sound: bytes(leaf), other: b"\x11" * USUAL.leaf})
    leaves = [(0, sound), *((number << USUAL.leaf_bits, other) for number in range(1, 1 << USUAL.root_bits))]
    problems: list[Problem] = []
    found = list(leaf_entries(target, load(X86_64), USUAL, leaves, problems))
    assert found == [(0, sound, [(1, 0x1234)])]
    first = 1 << USUAL.leaf_bits + USUAL.shift
    assert [problem.what for problem in problems] == [
        f"the page map has more entries than pages: those of {first:#x} and above are not used"
    ]
