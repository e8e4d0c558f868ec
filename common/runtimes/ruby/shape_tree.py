"""Read the shape tree of Ruby 3.3 and newer: the lists of instance variables that objects have.

Ruby maps memory for the largest possible tree when it starts, and touches only what it uses. A
variable of the interpreter (rb_shape_tree_ptr) refers to {list of shapes, root shape, next shape,
cache, number of nodes in the cache}. The root is the first shape of the list. In the list and the
cache, used entries precede unused ones.

Source: shape.h (rb_shape_tree_t, struct rb_shape, redblack_node_t) and shape.c (SHAPE_BUFFER_SIZE,
REDBLACK_CACHE_SIZE) of 3.3.8 and 3.4.1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.formatting import format_count
from findleaks.runtimes.memory_part import Part
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, range_at

_SHAPE, _NODE = 40, 24  # bytes of a shape, and of a node of the cache
_SHAPES = 1 << 19
_NODES = 32 * _SHAPES
_PAGE, _NUMBER = 4096, (1 << 32) - 1


def find_shape_tree(target: Target, memory: Memory, data: Iterable[Range]) -> Optional[Part]:
    """Return the shape tree as a part of the runtime's memory; None if there is none. `data` is
    memory of the interpreter's variables."""
    writable = merge_ranges(Range(r.start, r.end) for r in target.regions() if r.anonymous and r.readable and r.writable)
    for start, end in data:
        for _, words in memory.scan(start, end):
            for word in words:
                found = _read_tree(memory, word, writable) if word and word % 8 == 0 else None
                if found is not None:
                    return found
    return None


def _read_tree(memory: Memory, address: int, writable: list[Range]) -> Optional[Part]:
    words = memory.words(address, 5)
    if words is None or not words[0] or words[0] != words[1] or words[0] % _PAGE or words[3] % _PAGE:
        return None
    shapes, nodes = words[2] & _NUMBER, words[4] & _NUMBER
    ranges = [Range(words[0], words[0] + _SHAPE * _SHAPES), Range(words[3], words[3] + _NODE * _NODES)]
    regions = [range_at(writable, part.start) for part in ranges]
    if not 0 < shapes <= _SHAPES or nodes > _NODES or any(one is None or part.end > one.end for part, one in zip(ranges, regions)):
        return None
    detail = f"{format_count(shapes, 'shape')}; memory is mapped for {_SHAPES:,}"
    return Part("shape tree", merge_ranges(ranges), _SHAPE * shapes + _NODE * nodes, False, detail)
