"""Types of Perl's values by their flags, and the words in them that are not references.

Sources: sv.h (flags of struct sv), sv.c, av.h, hv.h, mg.h of Perl 5.36 to 5.40."""

from __future__ import annotations

from collections.abc import Mapping

from findleaks.allocators.perl.arenas import HAS_AUX, arena_type
from findleaks.allocators.perl.layout import FREE, GLOB, HEAD, INVERSION_LIST, LAST_TYPE, LVALUE, MAGIC, PLAIN
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import EVERY_WORD, LAST_WORD, Exclusion
from findleaks.runtimes.perl.structures import AUX

NO_VALUE = NO_ROOT
UNDEFINED, NUMBERS, STRINGS, REFERENCES, LISTS, REGEXPS, GLOBS, LVALUES, ARRAYS, HASHES, SUBS, FORMATS, HANDLES, OBJECTS = range(14)
PADS, BODIES, ENTRIES_OF_HASHES, CLOSURES = 14, 15, 16, 17
"""Numbers of types. From CLOSURES on, each closure and then each class has its own number."""
NAMES = (
    *("undef", "number", "string", "reference", "inversion list", "REGEXP", "GLOB", "LVALUE", "ARRAY", "HASH", "CODE", "FORMAT", "IO"),
    *("OBJECT", "pad", "body of a value", "entry of a hash"),
)
_BY_TYPE = (*(UNDEFINED,) * 4, LISTS, *(UNDEFINED,) * 3, REGEXPS, GLOBS, LVALUES, ARRAYS, HASHES, SUBS, FORMATS, HANDLES, OBJECTS)
"""The number for each svtype. Scalars are divided by their flags."""

REFERENCE, BLESSED, OFFSET = 0x0800, 0x00100000, HAS_AUX  # SVf_ROK, SVs_OBJECT, SVf_OOK
MAGICAL = 0x00E00000  # SVs_GMG, SVs_SMG, SVs_RMG
OWNED = 0xC0000000  # SVpav_REAL, SVpav_REIFY: without them, an array is a stack of the interpreter
TEXT = 0x4400  # SVf_POK, SVp_POK
TEMPORARY = 0x00060000  # SVs_PADTMP, SVs_PADSTALE: of an operation, or of a variable out of scope
_NUMBER = 0x3300  # SVf_IOK, SVf_NOK and their private forms
_WEAK = 0x80000000  # SVprv_WEAKREF


def is_number(flags: int) -> bool:
    """Whether a value that has memory for characters is a number, which was a string before."""
    return bool(flags & _NUMBER) and not flags & (TEXT | REFERENCE | BLESSED | MAGICAL)


NO_WORD, NO_BODY, NO_UNION, NO_BACK_REFERENCES, NO_OBJECT = range(1, 6)
"""Indices into EXCLUSIONS; see also FIRST_TAIL."""
EXCLUSIONS = (
    Exclusion(0),
    Exclusion(EVERY_WORD),
    Exclusion(1 << 0),
    Exclusion(1 << 2),  # a weak reference
    Exclusion(1 << AUX // 8 + 1),  # xhv_backreferences: values that refer weakly to the hash
    Exclusion(1 << 4),  # mg_obj of a MAGIC that has such values
    *(Exclusion(EVERY_WORD & -(1 << used)) for used in range(LAST_WORD + 1)),
)
FIRST_TAIL = len(EXCLUSIONS) - LAST_WORD - 1
"""The index for a block of which no word is used; the index for n words is n more."""


class Kinds(dict[int, tuple[int, int, int]]):
    """By a value's flags: the number of its type, the index into EXCLUSIONS, and the bytes of the
    value and its body. `sizes` has the size of the bodies in the arenas of each type."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        super().__init__()
        self._sizes = sizes

    def _bytes(self, flags: int) -> int:
        kind = flags & FREE
        return HEAD + (PLAIN.get(kind, 0) if kind < MAGIC else self._sizes.get(arena_type(kind, flags), 0))

    def __missing__(self, flags: int) -> tuple[int, int, int]:
        kind = flags & FREE
        number, pattern = NO_VALUE, 0
        if kind <= LAST_TYPE:
            number = _BY_TYPE[kind]
            # The body of a plain string or number has no pointers, or is the value itself. Without
            # a type (0), the union is what the former value left.
            pattern = (NO_BODY if kind else NO_WORD) if kind < MAGIC else 0
            if kind <= LVALUE and kind != GLOB and flags & REFERENCE:
                number = REFERENCES
                if flags & _WEAK:
                    pattern = NO_WORD if kind < MAGIC else NO_UNION
            elif kind <= MAGIC and kind != INVERSION_LIST:
                number = STRINGS if flags & TEXT else NUMBERS if flags & _NUMBER else UNDEFINED
        self[flags] = number, pattern, self._bytes(flags)
        return self[flags]
