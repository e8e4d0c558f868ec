"""Describe the contents that blocks may have."""

from __future__ import annotations

from findleaks.engine.type_spread import Level
from findleaks.value_classes import NamedTuple


class Packed(NamedTuple):
    """Equal objects in a block, from `offset` on: `number` objects of `size` bytes each; with
    number 0, they extend to the end of the block. If `size` is less than that of the type, the
    objects are truncated: the block has only their first members. `words`: the offsets of the words
    that have a value in all objects; empty if all words have a value."""

    offset: int
    type: int
    number: int
    size: int
    words: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The offset after the objects, or after the first one if they extend to the block's
        end."""
        return self.offset + max(self.number, 1) * self.size

    def inside(self, offset: int) -> int:
        """Return the offset in the object at an offset of the block; -1 if there is none."""
        at = offset - self.offset
        return -1 if at < 0 or (self.number and offset >= self.end) else at % self.size


class Spec(NamedTuple):
    """The content of a block: one value of a type, or with `many`, an array of values. `node` has
    the same meaning as in Reference.

    `parts` describes other contents: an array after a header, a truncated value, or objects of
    several types in one block. The first part is of the type `type`."""

    type: int
    many: bool = False
    node: int = 0
    parts: tuple[Packed, ...] = ()

    @property
    def start(self) -> int:
        """The offset of the first value."""
        return self.parts[0].offset if self.parts else 0


class Candidate(NamedTuple):
    """A possible content of a block, and how a claim for it is justified. If `is_rare`, any other
    candidate that fits equally well is chosen first. With `rivals`, the claim is only as certain
    as `level` if the content of the block contradicts all of them."""

    spec: Spec
    level: Level
    is_rare: bool = False
    rivals: tuple[Spec, ...] = ()
