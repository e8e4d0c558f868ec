"""Names of GObject's types in a process.

A type is a TypeNode (gobject/gtype.c; see type_nodes.py). Its name is a quark, the index of a text
in the array `quarks` (glib/gquark.c). Without symbols, the array is found by its contents: the
first entry is null, and the next ones are texts."""

from __future__ import annotations

from functools import cached_property

from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.names import read_name
from findleaks.allocators.type_nodes import LAYOUTS, NodeLayout
from findleaks.target.base import Target

FIRST = 8  # texts that are checked; GObject has some hundred
MOST_QUARKS = 1 << 16
_PART = 64  # words that are read together
DOMAIN = "-quark"  # end of the names of error domains


class GTypeNames:
    """Reads names of types of a 64-bit target."""

    def __init__(self, target: Target, layout: NodeLayout = LAYOUTS[0]) -> None:
        self._target, self._memory, self._layout = target, Memory(target), layout

    def name(self, node: int) -> str:
        """Return the name of the type with this TypeNode, safe to print; "" if it is not found, or
        has no instances."""
        layout = self._layout
        flags, quark = self._memory.int32(node + layout.children + 4), self._memory.int32(node + layout.name)
        if not flags or not flags & layout.instantiatable or not quark or not self._quarks:
            return ""
        return self._text(self._quarks + 8 * quark)

    def quark(self, number: int) -> str:
        """Return the text of a quark, safe to print; "" if unknown."""
        return self._text(self._quarks + 8 * number) if 0 < number < self._count else ""

    @cached_property
    def _count(self) -> int:
        """One more than the greatest quark. The array has space for a multiple of 2,048 texts; the
        words after the last text are null (glib/gquark.c, quark_new)."""
        for first in range(0, MOST_QUARKS, _PART) if self._quarks else ():
            words = self._memory.words(self._quarks + 8 * first, _PART) or ()
            end = next((first + at for at, word in enumerate(words) if first + at and not word), first + len(words))
            if end < first + _PART:
                return end
        return MOST_QUARKS if self._quarks else 0

    @property
    def table(self) -> int:
        """The address of the table of texts, by quark; 0 if it is not found."""
        return self._quarks

    @cached_property
    def _quarks(self) -> int:
        """The address of `quarks`, or 0."""
        images = (image for image in find_images(self._target) if image.name.startswith("libglib-2.0"))
        words = (word for image in images for part in image.data for _, words in self._memory.scan(*part) for word in words)
        return next(filter(self._is_array, words), 0)

    def _is_array(self, address: int) -> bool:
        """Whether `quarks` is at an address. In a program without GObject, it may have fewer than
        FIRST texts; one of them is then the name of an error domain."""
        words = self._memory.words(address, 1 + FIRST) if address and address % 8 == 0 else None
        if words is None or words[0] or not words[1]:
            return False
        count = next((number for number, word in enumerate(words[1:]) if not word), FIRST)
        texts = {self._text(address + 8 * number) for number in range(1, 1 + count)}
        return len(texts) == count and all(texts) and (count == FIRST or any(text.endswith(DOMAIN) for text in texts))

    def _text(self, place: int) -> str:
        """Return the text that the word at an address points to; "" if it is none."""
        address = self._memory.word(place)
        return read_name(self._memory, address) if address else ""
