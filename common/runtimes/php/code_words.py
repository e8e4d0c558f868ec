"""Find the words of objects that refer to classes and functions.

The PHP engine keeps the classes and functions of a script in arenas, until the script ends. An
arena is one block, which also refers to static variables. A class does not belong to its objects,
and a function does not belong to its closures. If the words that refer to classes and functions
were references, an array of objects would retain all static variables.

Sources: Zend/zend_arena.h, zend_types.h (zend_object), zend_closures.c (zend_closure) of PHP 8.1 to
8.4, 64-bit."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import LAST_WORD
from findleaks.runtimes.php.objects import Objects
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import range_at
from findleaks.value_classes import NamedTuple

CLOSURE = "Closure"
_CLASS = 2  # word of a zend_object with the address of its class
_MOST_ARENAS = 1 << 16
_WORDS = 128  # words of compiler_globals that are read


def find_arenas(memory: Memory, blocks: Blocks, compiler: int) -> Sequence[Range]:
    """Return the arenas, ascending. `compiler`: the address of compiler_globals, or 0. An arena
    begins with the addresses of its unused part, of its end, and of the previous arena."""
    found = dict[int, Range]()
    for at in (memory.words(compiler, _WORDS) if compiler else None) or ():
        while at and at not in found and len(found) < _MOST_ARENAS:
            block = blocks.lookup(at)
            words = memory.words(at, 3) if block is not None and block[1] == at else None
            if words is None or block is None or not at + 24 <= words[0] <= words[1] == at + block[2]:
                break
            found[at], at = Range(at, words[1]), words[2]
    return sorted(found.values())


class CodeWords(NamedTuple):
    """Words of objects that refer to code.

    `masks`: (index of a block, mask of its words). `ranges`: words that no mask includes, because
    they are too far from the start of their block."""

    masks: list[tuple[int, int]]
    ranges: list[Range]


def find_code_words(memory: Memory, blocks: Blocks, objects: Objects, arenas: Sequence[Range]) -> CodeWords:
    """Return the word of each object whose class is in an arena, and the words of closures that
    refer to arenas. Raises Interrupted."""
    found = CodeWords([], [])

    def is_code(value: int) -> bool:
        return range_at(arenas, value) is not None

    defined = [is_code(entry) for entry in objects.classes]
    closures = {number for number, name in enumerate(objects.names) if name == CLOSURE} if arenas else ()
    for index, number, address in interruptible(memory.target, zip(objects.blocks, objects.numbers, objects.addresses), 256):
        start = blocks.address(index)
        if number in closures:
            words = memory.words(start, min(blocks.size(index) // 8, LAST_WORD)) or ()
            mask = sum(1 << at for at, word in enumerate(words) if word and is_code(word))
            if mask:
                found.masks.append((index, mask))
        elif defined[number]:
            # An SplFileInfo has 4 KiB before its zend_object.
            place = address + 8 * _CLASS
            if place < start + 8 * LAST_WORD:
                found.masks.append((index, 1 << (place - start) // 8))
            else:
                found.ranges.append(Range(place, place + 8))
    return found
