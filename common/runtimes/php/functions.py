"""Find blocks that describe the results of functions. The only pointer to such a block points to
its end.

A function of PHP code without arguments and with a declared result has one zend_arg_info, which
describes the result. The function's member arg_info points to the end of the zend_arg_info
(zend_compile.c: zend_compile_params), so no word refers to the block itself. The functions are in
arenas, which are blocks of 64 KiB. num_args and required_num_args, which are both 0, precede
arg_info (zend_compile.h: zend_op_array of PHP 8.0 to 8.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.base import size_at
from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.php.engine import NO_VALUE
from findleaks.target.base import Range, Target

ARENA, LARGEST = 32 << 10, 2 << 20  # least and most bytes of a block with an arena
MOST = 1 << 16  # most blocks that are searched
ARGUMENT = 32  # bytes of a zend_arg_info, in 64-bit programs


def find_results(target: Target, engine: Engine, blocks: Blocks, heaps: Sequence[Range], found: Sequence[int]) -> Iterator[int]:
    """Yield the addresses of blocks that describe the result of a function. `heaps` is the memory
    of PHP. `found` has the number of the type of each block's value. Raises Interrupted."""
    memory = Memory(target)
    if memory.size != 8:
        return
    low, high = min((start for start, _ in heaps), default=0), max((end for _, end in heaps), default=0)
    for index in blocks.of_sizes(ARENA, LARGEST, MOST):
        start = blocks.address(index)
        if found[index] != NO_VALUE or not low <= start < high:
            continue
        if target.is_interrupted():
            raise Interrupted
        for piece in target.pieces(start, start + blocks.size(index)):
            addresses, values = find_pointers(engine, piece, low, high)
            counts, _ = engine.gather((piece,), [address - 8 for address in addresses], 8)
            for value, count in zip(values, engine.arch.words(counts)):
                if not count and _is_result(memory, blocks, value - ARGUMENT):
                    yield value - ARGUMENT


def _is_result(memory: Memory, blocks: Blocks, address: int) -> bool:
    """Whether the block at an address contains one zend_arg_info without a name."""
    return size_at(blocks, address) == ARGUMENT and memory.word(address) == 0
