"""What the words of a type refer to."""

from __future__ import annotations

from enum import IntEnum

from findleaks.engine.type_spread import NO_FEATURE
from findleaks.value_classes import NamedTuple


class Sort(IntEnum):
    """The sorts of references."""

    POINTER = 0  # A pointer to the only type of `pointees`.
    ANY = 1  # A pointer of type void *.
    CHOICE = 2  # A member of a union: a pointer to one of `pointees`, or a number.
    TRAIT_OBJECT = 3  # The next word is the address of a vtable of Rust, which names the type.
    DATA = 4  # A pointer to characters or numbers for which a hint file names a type.
    ERASED = 5  # A word of a wrapper such as std::function, whose manager names the type.


class Reference(NamedTuple):
    """What a pointer refers to.

    For ANY, CHOICE and DATA, `owner` is the struct that contains the member, and `offset` is the
    member's offset in it. For POINTER, `owner` is the type that contains this pointer, if this type
    is or contains the pointee, as in lists; else 0. `node` is the node type of the container that
    the pointer belongs to, or 0. `counted` is set if the pointer refers to an array. `is_certain`
    is set if it certainly refers to an array. `used` has flags that indicate which elements are in
    use (Flag). `cases` has the pointee for each value of the feature `tag` (Feature), which is the
    discriminant of an enum; the pointee is -1 for a variant without a pointer here. The value -1
    stands for all values that no other variant has. `may_have_vtable` is set if a variant of the
    enum has a trait object here, whose vtable is in the next word. `may_be_any` is set if a member
    of the union is a void pointer."""

    sort: Sort
    pointees: tuple[int, ...]
    owner: int = 0
    offset: int = 0
    node: int = 0
    counted: bool = False
    is_certain: bool = False
    used: int = 0
    tag: int = NO_FEATURE
    cases: tuple[tuple[int, int], ...] = ()
    may_have_vtable: bool = False
    may_be_any: bool = False
