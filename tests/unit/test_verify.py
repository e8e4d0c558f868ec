"""The problems that `verify` reports in synthetic glibc heaps, and its description of the bytes at a damaged address."""

from __future__ import annotations

import argparse
import re
from typing import Optional

import fake
import pytest
from ptmalloc import SIZE, Image

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import build_directory
from findleaks.allocators.glibc import layout
from findleaks.audit.corruption import Explainer, select_first_problems
from findleaks.commands.verify import verify
from findleaks.engine.reference.engine import PureEngine
from findleaks.session import Session
from findleaks.target.base import Range

MINORS = (27, 31, 36, 43)


def make_image(minor: int) -> Image:
    """Return the layouts of release 2.`minor` for x86-64."""

    def row(table: tuple) -> object:
        return next(one for one in table if one.word == 8 and one.since <= (2, minor) <= one.until)

    return Image(row(layout.STATES), row(layout.PARS), row(layout.TCACHES), row(layout.HEAP_INFOS), mangled=minor >= 32)  # type: ignore[arg-type]


def problems(target: fake.FakeTarget) -> list[Problem]:
    directory = build_directory(target, PureEngine(target.arch))
    (glibc,) = directory.allocators
    found = [problem for problem in glibc.verify(directory.blocks) if problem is not None]
    return select_first_problems([*glibc.problems, *found])


def image(minor: int) -> tuple[Image, fake.FakeTarget]:
    made = make_image(minor)
    made.chunks = [*made.chunks, (0x70, "used"), (0x60, "free"), (0x100, "used"), (0x100, "used")]
    target = made.build()
    mark(made, target)
    return made, target


def mark(made: Image, target: fake.FakeTarget) -> None:
    """Set the bit of the only bin that is not empty, and the mark of freed blocks (since 2.29)."""
    word = made.arch.word
    for arena in (made.main, made.thread):
        if arena:
            target.write(arena + made.state.bins + 254 * word, (1 << 5 | 1 << 6).to_bytes(4, "little"))
    if made.tcache is not None and made.tcache.counter == 2:
        for block in made.cached:
            target.write_word(block + word, made.blocks["tcache"][0])


@pytest.mark.parametrize("minor", MINORS)
def test_an_intact_heap_has_no_problems(minor: int) -> None:
    # The free chunks of the images are all in one bin
    wrong = [problem for problem in problems(image(minor)[1]) if "small bin" not in problem.what]
    assert wrong == []


def find_only(target: fake.FakeTarget, text: str) -> Problem:
    found = [problem for problem in problems(target) if text in problem.what]
    assert len(found) == 1, [problem.what for problem in problems(target)]
    assert found[0].corrupt
    return found[0]


@pytest.mark.parametrize("minor", MINORS)
def test_a_cleared_bit_of_a_block_in_no_list(minor: int) -> None:
    made, target = image(minor)
    victim = made.blocks["used"][-1]
    last = [block for block in made.blocks["used"] if block < made.places.heap + SIZE][-1]
    assert victim != last
    target.write_word(last - 8, 0x100)
    problem = find_only(target, "in no free list")
    assert problem.damaged == (last - 8, last) and problem.expected == 0x101


@pytest.mark.parametrize("minor", MINORS)
def test_a_flag_of_another_arena(minor: int) -> None:
    made, target = image(minor)
    block = made.blocks["used"][0]
    target.write_word(block - 8, target.word(block - 8) | 4)
    assert find_only(target, "NON_MAIN_ARENA is set").damaged == (block - 8, block)


@pytest.mark.parametrize("minor", MINORS)
def test_an_overwritten_link_in_a_bin(minor: int) -> None:
    made, target = image(minor)
    block = made.blocks["free"][0]
    target.write(block, b"use after free!\0")
    problem = find_only(target, "its fd and bk are")
    assert problem.damaged == (block, block + 16)


@pytest.mark.parametrize("minor", MINORS)
def test_the_copy_of_a_size(minor: int) -> None:
    made, target = image(minor)
    block = made.blocks["free"][0]
    size = target.word(block - 8) & ~7
    target.write_word(block - 16 + size, 0x4242)
    problem = find_only(target, "the copy behind it")
    assert problem.damaged == (block - 16 + size, block - 8 + size) and problem.expected == size


@pytest.mark.parametrize("minor", MINORS)
def test_a_bin_without_its_bit(minor: int) -> None:
    made, target = image(minor)
    target.write(made.main + made.state.bins + 254 * 8, bytes(4))
    assert find_only(target, "of main has chunks, but its bit")


@pytest.mark.parametrize("minor", MINORS)
def test_a_count_of_a_thread_cache(minor: int) -> None:
    made, target = image(minor)
    assert made.tcache is not None
    cache, index = made.blocks["tcache"][0], (0x30 - 0x20) // 16
    target.write(cache + index * made.tcache.counter, (3).to_bytes(made.tcache.counter, "little"))
    assert find_only(target, "its counter is").damaged is not None


def test_a_wrong_size_before_is_reported() -> None:
    """The walk ends at the address to which the wrong size leads. The size is reported."""
    made, target = image(36)
    block = [block for block in made.blocks["used"] if block < made.places.heap + SIZE][1]
    size = target.word(block - 8)
    target.write_word(block - 8, size + 0x20)
    problem = next(problem for problem in problems(target) if problem.address == block - 16)
    assert problem.damaged == (block - 8, block) and problem.expected == size


def test_an_interrupt_ends_the_check() -> None:
    from findleaks.errors import Interrupted

    _, target = image(36)
    directory = build_directory(target, PureEngine(target.arch))
    target._left = 0
    with pytest.raises(Interrupted):
        list(directory.allocators[0].verify(directory.blocks))


TEXT = b"GET /index.html HTTP/1.1"


@pytest.mark.parametrize(
    ("data", "sort", "words"),
    [
        (TEXT[:8], "text", '"GET /ind'),
        (b"\0" * 8, "zeros", "8 zero bytes"),
        (b"\xcc" * 8, "pattern", "the byte 0xcc"),
        (b"A" * 8, "pattern", '0x41 ("A")'),
        ((0xDEADBEEF).to_bytes(8, "little"), "pattern", "0xdeadbeef"),
        ((42).to_bytes(8, "little"), "number", "the number 42"),
        ((-1 & (1 << 64) - 2).to_bytes(8, "little"), "number", "the number -2"),
        (b"\0\0\0\0\0\0\xf8\x3f", "number", "floating-point number 1.5"),
        ((0x7F0000201000).to_bytes(8, "little"), "pointer", "a pointer, 0x7f0000201000"),
        (b"\x1b[2J\x1b[H\x07", "bytes", "neither text nor pointer"),
        (bytes.fromhex("91f3a0c4d5e6f708"), "bytes", "neither text nor pointer"),
    ],
)
def test_description_of_the_overwriting_bytes(data: bytes, sort: str, words: str) -> None:
    made, target = image(36)
    block = made.blocks["used"][-1]
    target.write(block, bytes.fromhex("9182a3b4c5d6e7f8") * 3)
    target.write(block + 8, data)
    session = Session(target, PureEngine(target.arch))
    finding = Explainer(session).explain("glibc", Problem(block, "wrong", damaged=Range(block + 8, block + 16)))
    assert finding.written is not None and (finding.written.sort, words in finding.written.phrase) == (sort, True), finding.written
    assert finding.written.phrase.isprintable()
    assert finding.at is not None and finding.at.info.address == block


def run(target: fake.FakeTarget, **words: object) -> tuple[dict[str, object], int, str]:
    from findleaks.commands import Invocation

    made = verify.run(Session(target, PureEngine(target.arch)), argparse.Namespace(**{"allocator": None, "limit": 10, **words}))
    (body,) = made.json()
    return dict(body), made.status, "\n".join(made.text(80, Invocation()))


def test_no_allocator_is_a_failure() -> None:
    body, status, text = run(fake.FakeTarget({0x10000: bytes(4096)}))
    assert status == 2 and body["sound"] is None and "the heap cannot be checked" in text


def test_the_command() -> None:
    made, target = image(36)
    used = [block for block in made.blocks["used"] if block < made.places.heap + SIZE]
    target.write(used[-1] - 8, b"\x1b]0;boo\x07")
    body, status, text = run(target)
    assert status == 1 and body["sound"] is False
    assert "CORRUPT" in text and "leaks whatis" in text
    assert "\x1b" not in text and "\x07" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    (reported,) = [problem for problem in body["problems"] if problem["address"] == hex(used[-1] - 8)]  # type: ignore[attr-defined]
    assert reported["neighbours"]["before"]["address"] == hex(used[-2])


def test_limit_counts_for_text_and_json() -> None:
    made, target = image(36)
    used = [block for block in made.blocks["used"] if block < made.places.heap + SIZE]
    for block in used[1::3]:
        target.write(block - 8, b"\xff" * 8)

    def run_limited(limit: Optional[int]) -> tuple[list[str], int]:
        body, _, text = run(target, limit=limit)
        whole = [str(one["address"]) for one in body["problems"] if one["corrupt"] and not one["part_of"]]  # type: ignore[attr-defined]
        return whole, len(re.findall(r"(?m)^ *[0-9]+\. ", text))

    every, shown = run_limited(0)
    assert len(every) == shown > 2
    assert run_limited(None)[0] == every
    assert run_limited(2) == (every[:2], 2)


def test_unknown_allocator() -> None:
    from findleaks.errors import UsageError

    with pytest.raises(UsageError, match="found: glibc"):
        run(image(36)[1], allocator="nosuch")


def test_a_chunk_in_two_pieces_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large memory is divided into pieces. The links of a free chunk may be on both sides of a cut."""
    from findleaks.target import reader

    monkeypatch.setattr(reader, "PIECE", 16)
    assert [problem for problem in problems(image(36)[1]) if "links back" in problem.what] == []
