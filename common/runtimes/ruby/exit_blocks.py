"""Find the blocks that `at_exit` and `END` keep until the program ends.

Source: eval_jump.c (struct end_proc_data, rb_set_end_proc, rb_f_at_exit) of 2.7.4, 3.1.2, 3.3.8 and
3.4.1. A variable in the library's data points to the entry that was added last. An entry is
{function, data, next}; up to 2.7, {function, data, safe level, next}. The data of an entry that
`at_exit` added is the Proc. An extension may add an entry with other data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.closures import TYPE_NAME
from findleaks.runtimes.ruby.values import Values
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import region_at

NAME = "at_exit blocks"
_FUNCTION, _DATA, _NEXT, _NEXT_WITH_LEVEL = range(4)  # words of an entry
_WITHOUT_LEVEL = (3, 0)  # the first version whose entries have no safe level


def find_exit_blocks(
    memory: Memory, values: Values, data: Sequence[Range], is_slot: Callable[[int], bool], version: tuple[int, int], most: int
) -> Iterator[tuple[int, int]]:
    """Yield the address of the reference to each Proc, and the Proc. `data`: the writable data of
    the library. `is_slot` tells whether an object begins at an address. `most`: the maximum number
    of entries that are read."""
    regions = memory.target.regions()
    link = _NEXT if version >= _WITHOUT_LEVEL else _NEXT_WITH_LEVEL

    def is_code(address: int) -> bool:
        region = region_at(regions, address)
        return region is not None and region.executable

    def read(entry: int) -> Sequence[int]:
        """Return the words of an entry; nothing if there is none."""
        words = memory.words(entry, link + 1) if entry and entry % 8 == 0 else None
        return words if words is not None and is_code(words[_FUNCTION]) else ()

    def is_proc(value: int) -> bool:
        return value % 8 == 0 and is_slot(value) and values.typed_data(value)[0] == TYPE_NAME

    for start, end in data:
        for _, found in memory.scan(start, end):
            for word in found:
                first = read(word)
                if first and is_proc(first[_DATA]):
                    yield from _follow(memory, read, is_proc, word, link, most)
                    return


def _follow(
    memory: Memory, read: Callable[[int], Sequence[int]], is_proc: Callable[[int], bool], first: int, link: int, most: int
) -> Iterator[tuple[int, int]]:
    """Yield the Procs of a list of entries: the address of each reference, and the Proc."""
    entry = first
    for _ in interruptible(memory.target, range(most)):
        words = read(entry)
        if not words:
            return
        if is_proc(words[_DATA]):
            yield entry + 8 * _DATA, words[_DATA]
        entry = words[link]
