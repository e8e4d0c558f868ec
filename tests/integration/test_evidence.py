"""tests/support/evidence.py accepts a difference only if a stale word refers to the block."""

from __future__ import annotations

from pathlib import Path

import building
import evidence
import pytest
import truth

import cores

program = building.fixture("held_by.c", "-std=gnu11", "-O1", "-ldl")


@pytest.mark.parametrize(
    ("where", "held", "excused"),
    [("nothing", 0, True), ("library", 2, True), ("stack", 2, True), ("own", 2, False), ("block", 2, False)],
)
def test_only_stale_words_are_accepted(program: Path, tmp_path: Path, where: str, held: int, excused: bool) -> None:
    with cores.Running([str(program), where], tmp_path) as running:
        records = truth.parse(running.output)
        core = running.kernel_core()
    blocks, _ = truth.ask(str(core))
    verdict = truth.compare(records, blocks)
    assert (len(verdict.held), len(verdict.missed), verdict.false, verdict.wrong) == (held, held, [], [])
    assert evidence.explain(verdict, records, blocks, core, [program.name]).perfect == excused


def test_blocks_behind_a_file_are_the_allocators() -> None:
    """A mapping of an allocator may directly follow the last mapping of a file, like the .bss of the file. Words in its blocks are not
    words of the file."""
    picture = evidence.Picture([evidence.Segment(0x7000, bytes(0x100), file="/tmp/own.so")])
    for word, foreign in ((0x7010, True), (0x7080, False)):
        assert evidence.is_foreign(evidence.Word(word, 0), picture, [range(0x7000, 0x7020)], ["own.so"]) is foreign
    assert evidence.is_foreign(evidence.Word(0x7080, 0), picture, [], ["program"])


def test_half_of_an_unaligned_pointer() -> None:
    """An unaligned pointer begins in the middle of one aligned word and ends in the middle of the next."""
    stored = bytes(4) + bytes(2) + (0xB5A8AE00).to_bytes(4, "little") + bytes(6)
    picture = evidence.Picture([evidence.Segment(0x7000, stored, file="/tmp/own.so")], word=4)
    halves = [evidence.is_half(evidence.Word(0x7000 + at, 0), picture, {0xB5A8AE00}) for at in (0, 4, 8, 12)]
    assert halves == [False, True, True, False]
    assert not evidence.is_half(evidence.Word(0x7004, 0), picture, {0xB5A8AE04})
    assert not evidence.is_half(evidence.Word(None, 0), picture, {0xB5A8AE00})
