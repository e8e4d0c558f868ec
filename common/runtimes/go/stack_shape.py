"""Where the pointers are on the stacks of goroutines that wait in the same functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from findleaks.value_classes import NamedTuple


class Shape(NamedTuple):
    """Where the pointers are on the stacks of goroutines that wait in the same functions.

    Stacks with the same innermost pc and the same return addresses have the same frames. `words`:
    the length of the part of the stack that is used. `pick` returns the return addresses of a
    stack, `returns` are those of this shape. `places`: the indices of words that are pointers,
    without words in stack objects, which count only if a pointer refers to the stack object.
    `sources`: for each of these words, its number among the sources of StackRoots."""

    words: int
    pick: Callable[[Sequence[int]], object]
    returns: object
    places: Sequence[int]
    sources: Sequence[int]

    def fits(self, stack: Sequence[int]) -> bool:
        """Return whether a stack, from its stack pointer upwards, has this shape."""
        return self.words <= len(stack) and self.pick(stack) == self.returns
