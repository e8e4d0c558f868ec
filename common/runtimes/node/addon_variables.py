"""Find the variables of an addon that reach its Node-API references.

An addon stores pointers to references in a variable, or in blocks that a variable reaches, such as
an array or the nodes of a list. Pointers are followed from each variable of the addon through such
blocks. Pointers in objects of Node's own classes are not followed, because Node links all
references of an addon, and each would reach all others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.target.base import Module, Target
from findleaks.value_classes import NamedTuple

_MOST_STEPS = 2  # maximum number of successive blocks without references on a path
_MOST_WORDS = 1 << 22  # maximum number of words that are read for all variables of an addon
_MOST_DATA = 1 << 19  # maximum number of words of an addon's data that are examined


class Reached(NamedTuple):
    """A variable. A reference is given by the index of its block. `references`: the references that
    the variable reaches. `own`: of these, those to which words of the variable itself point."""

    name: str
    references: frozenset[int]
    own: frozenset[int]


class AddonVariables:
    """Follows pointers from the variables of addons. `node` is the loaded file that contains Node's
    classes. `closed` has addresses in V8's blocks that reach references. Pointers in these blocks
    are not followed."""

    def __init__(self, target: Target, blocks: Blocks, node: Module, closed: Sequence[int]) -> None:
        self._target, self._blocks, self._node, self._memory = target, blocks, node, Memory(target)
        self._closed = self._blocks_of(closed)
        self._left = 0

    def find(self, file: str, references: Iterable[int], linked: bool = False) -> Sequence[Reached]:
        """Return the variables of the addon in `file`, with the references that each reaches.
        `references`: the index of each reference's block. `linked`: whether one of these blocks may
        reach others, as the nodes of a std::map do. If the variables reach too much memory,
        only the references to which their own words point are returned."""
        self._left = _MOST_WORDS
        wanted = frozenset(references)
        variables = ((name, self._blocks_of(words)) for name, words in self._variables(file).items())
        found = [Reached(name, self._follow(indices, wanted, linked), wanted & indices) for name, indices in variables]
        # Variables that were not followed to the end may reach the same references.
        return found if self._left else [one._replace(references=one.own) for one in found]

    def _variables(self, file: str) -> Mapping[str, Sequence[int]]:
        """Return the words of an addon's data that refer to blocks, by the name of the variable
        that contains them; see `name_variable`."""
        found: dict[str, list[int]] = {}
        for module, address, word in islice(self._data(file), _MOST_DATA):
            if word and self._blocks.find(word) >= 0:
                found.setdefault(name_variable(self._target, module, address), []).append(word)
        return found

    def _data(self, file: str) -> Iterator[tuple[Module, int, int]]:
        """Yield the address and the value of each word of the writable data of a file."""
        for image in find_images(self._target):
            for piece in image.pieces(self._target) if image.module.path == file else ():
                for at, word in enumerate(self._memory.arch.words(piece.data)):
                    yield image.module, piece.address + at * self._memory.size, word

    def _follow(self, indices: set[int], wanted: frozenset[int], linked: bool) -> frozenset[int]:
        """Return the blocks in `wanted` that are reachable from the blocks `indices` in a few
        steps. `linked`: see `find`."""
        found: set[int] = set()
        steps: dict[int, int] = {}  # number of further steps allowed after each block
        pending = [(indices, _MOST_STEPS)]
        while pending:
            indices, left = pending.pop()
            found |= indices & wanted
            for index in indices if linked else indices - wanted:
                if steps.get(index, -1) < left:
                    steps[index] = left
                    inner = self._blocks_of(self._words_of(index))
                    holds = not wanted.isdisjoint(inner)
                    if holds or left:
                        pending.append((inner, left if holds else left - 1))
        return frozenset(found)

    def _blocks_of(self, words: Sequence[int]) -> set[int]:
        indices, _ = self._blocks.find_all(words)
        return {*indices} - {NO_BLOCK}

    def _words_of(self, index: int) -> Sequence[int]:
        """Return the words of a block; () for a free block, for a block of V8, and for an object of
        Node's own classes."""
        if index in self._closed:
            return ()
        count = min(self._blocks.size(index) // self._memory.size, self._left)
        words = self._memory.words(self._blocks.address(index), count) if count and self._blocks.state(index) == State.IN_USE else None
        if not words or self._node.start <= words[0] < self._node.end:
            return ()
        self._left -= count
        return words


def choose_variables(found: Sequence[Reached]) -> Mapping[int, str]:
    """For each reference, choose one of the variables that reach it. Return the names of the
    chosen variables, by the index of the reference's block.

    The variable that reaches the fewest references is chosen, if each other variable reaches all
    of these, too. For example, a stale pointer to a node of a tree reaches the whole tree.
    Otherwise the right variable is unknown, and the reference is left out."""
    of_reference: dict[int, list[Reached]] = {}
    for one in sorted(found, key=lambda one: len(one.references)):
        for index in one.references:
            of_reference.setdefault(index, []).append(one)
    is_part = lru_cache(None)(frozenset.issubset)
    return {
        index: first.name
        for index, (first, *others) in of_reference.items()
        if all(is_part(first.references, other.references) for other in others)
    }


def name_variable(target: Target, module: Module, address: int) -> str:
    """Return the name of the variable at an address in the loaded file `module`. If there is no
    symbol, return the name of the file and the offset in the file."""
    symbol = target.symbolize(address)
    return symbol.name if symbol is not None else f"at {os.path.basename(module.path)}+{address - module.start:#x}"
