"""List the blocks of memory that deques consist of.

Source: Modules/_collectionsmodule.c (dequeobject, block, BLOCKLEN) of CPython 3.9 to 3.14: ob_size,
leftblock and rightblock follow the type. A block is a link to the left, 64 items, and a link to the
right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.types import Types

_ITEMS = 64  # of a block
_RIGHT = 65  # the word of a block with the link to the right
_MOST = 1 << 20  # blocks of all deques that are listed


def list_deque_blocks(
    memory: Memory, blocks: Blocks, known: Types, tally: ObjectTally, stop: Callable[[], bool]
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the index of the block of each intact deque, and the addresses of its blocks of items.
    Deques of one or two such blocks are left out. Ends early if `stop` returns True."""
    wanted, left = set(known.list_derived(("collections.deque",))), _MOST
    for index, number in enumerate(tally.found if wanted else ()):
        if number in wanted and left > 0:
            if stop():
                return
            words = memory.words(blocks.address(index) + known.offsets[number] + 2 * memory.size, 3)
            if words is not None and 2 * _ITEMS < words[0] <= left * _ITEMS:
                found = _walk(memory, *words)
                left -= len(found)
                if found:
                    yield index, found


def _walk(memory: Memory, length: int, first: int, last: int) -> Sequence[int]:
    """Return the addresses of the blocks from `first` to `last`; () unless each links to the
    previous one, and as many are found as the items need."""
    found = [first]
    while found[-1] != last and len(found) <= length // _ITEMS + 1:
        following = memory.word(found[-1] + _RIGHT * memory.size) or 0
        if not following or memory.word(following) != found[-1]:
            return ()
        found.append(following)
    return found if found[-1] == last and (len(found) - 1) * _ITEMS < length + 2 * _ITEMS else ()
