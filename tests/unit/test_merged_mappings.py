"""Merged mappings are divided only where the words show where they begin and end."""

from __future__ import annotations

import fake

from findleaks.allocators.memory import Memory
from findleaks.session.merged_mappings import Parts, References, divide
from findleaks.target.base import Range

PAGE, PART, START = 4096, 4 * 4096, 0x7F00_0000_0000
TEN = Range(START, START + 10 * PART)
PARTS = [Range(START + number * PART, START + (number + 1) * PART) for number in range(10)]


def divide_by(words: list[int], region: Range = TEN, content: bytes = b"", in_use: bool = True) -> Parts:
    found = References()
    for at, word in enumerate(words):
        if word % PAGE == 0 and region.start <= word <= region.end:
            found.add(region, PAGE, words, at, in_use)
    memory = Memory(fake.FakeTarget({region.start: content.ljust(region.end - region.start, b"\0")}))
    return divide(memory, region, found, PAGE)


def make_handles(numbers: range, size: int = PART) -> list[int]:
    return [word for number in numbers for word in (0x55D0_0000_0010, START + number * PART, size, 7, 7, 7, 7, 7)]


def test_claims() -> None:
    assert divide_by(make_handles(range(10))) == Parts(PARTS, [], True)
    # A gap of this size is either a mapping whose handle was freed, or an unused slot of a pool.
    gap = divide_by(make_handles(range(4)) + make_handles(range(5, 10)))
    assert (gap.ranges, gap.doubtful) == (PARTS, [PARTS[4]])
    assert divide_by(make_handles(range(10)), in_use=False).doubtful == PARTS


def test_parts_of_one_mapping() -> None:
    """If a word beside the address contains the size or the end of all parts together, the parts are slots of a pool."""
    for second in (10 * PART, TEN.end):
        pool = [START, second, 7, 7, 7, 7, 7, 7]
        assert divide_by(pool + make_handles(range(10))).ranges == [TEN]
    # The first and the last mapping of a list are not the start and the end of a pool.
    ends_of_list = [START, PARTS[9].start, 7, 7, 7, 7, 7, 7]
    assert divide_by(ends_of_list + make_handles(range(10))).ranges == PARTS
    # A number of used bytes, rounded to whole pages, is not the size of a part: the rest of the part is in use, too.
    assert divide_by(make_handles(range(10), PAGE)).ranges in ([TEN], [Range(one.start, one.end) for one in PARTS])


def test_other_memory_beside_the_mappings() -> None:
    """Memory that no handle claims belongs to the same part as the mapping beside it."""
    larger = Range(START - PAGE, START + 10 * PART + PAGE)
    found = divide_by(make_handles(range(10)), larger)
    assert (found.ranges[0], found.ranges[1], found.ranges[-1]) == (
        Range(larger.start, PARTS[0].end),
        PARTS[1],
        Range(PARTS[9].start, larger.end),
    )


def test_claims_that_contradict_each_other() -> None:
    shifted = [word + PAGE if word == START + 5 * PART else word for word in make_handles(range(10))]
    assert divide_by(shifted).ranges == [TEN]


def test_headers() -> None:
    header = (0).to_bytes(8, "little") + PART.to_bytes(8, "little")
    content = b"".join(header.ljust(PART, b"\0") for _ in range(10))
    # The words are a table of addresses, from the highest to the lowest.
    table = [START + number * PART for number in range(9, -1, -2)]
    assert divide_by(table, content=content) == Parts(PARTS, (), True)
    # An allocator that has the address of the first header can find all of them by their sizes.
    assert divide_by([*table, START], content=content).doubtful == PARTS
    # If the program does not refer to the headers, they may be chunks of an allocator.
    assert divide_by(table[:1], content=content).doubtful == PARTS
    assert divide_by(table[:1], content=content[: 9 * PART]).ranges == [TEN]
    # If a word contains the size of all mappings together, the mappings are parts of a pool.
    assert divide_by([*table, 7, 7, 7, 7, 7, START, 10 * PART], content=content).doubtful == PARTS


def test_strides() -> None:
    table = [START + number * PART for number in range(9, -1, -1) if number != 4]
    assert divide_by(table) == Parts(PARTS, PARTS)
    assert divide_by(table[:5]).ranges == [TEN]
