"""Read strings of V8's heap, and names of functions.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/string.h, scope-info.tq (scope-info.h), and
shared-function-info.cc (SharedFunctionInfo::DebugName). Offsets and tags are constants, see
metadata.py."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.value_classes import NamedTuple

LONGEST = 200  # characters that are read of a string
DEEPEST = 16  # strings that a string is composed of
# The first words of a ScopeInfo after its flags; more names than MOST_INLINED are in a hash table.
LOCALS, MOST_INLINED = 2, 75
MOST_LOCALS, WORDS_AFTER = 1 << 12, 6
SMI_SHIFT = 32
# Small integers in a ScopeInfo: kNoSharedNameSentinel, then -1 because no variable refers to the
# function.
NO_NAME = 0, (1 << 64) - (1 << SMI_SHIFT)
_RECORD = 80  # bytes of a short string, with its header


class Scope(NamedTuple):
    """The contents of a ScopeInfo.

    `variables` is the number of locals in the context, `names` has their names, or a table of names
    if there are many. `before` has the small integers before the names, `after` the words from the
    name of the function on. All are tagged words."""

    variables: int
    before: Sequence[int]
    names: Sequence[int]
    after: Sequence[int]


class Characters(NamedTuple):
    """The characters of a string: address, number, and bytes of each."""

    address: int
    length: int
    width: int


class Strings:
    """The strings of the heap that has these maps."""

    def __init__(self, memory: Memory, maps: Maps) -> None:
        self._memory, self._maps = memory, maps
        constant, offset = maps.metadata.constant, maps.metadata.offset
        self._nonstring, self._kinds = constant("FirstNonstringType") or 0, constant("StringRepresentationMask") or 0
        self._one_byte = constant("StringEncodingMask") or 0
        self._cons, self._sliced, self._thin = constant("ConsStringTag"), constant("SlicedStringTag"), constant("ThinStringTag")
        self._length, self._chars = offset("String", "length"), offset("SeqOneByteString", "chars")
        self._first, self._second = offset("ConsString", "first"), offset("ConsString", "second")
        self._parent, self._offset = offset("SlicedString", "parent"), offset("SlicedString", "offset")
        self._external, self._resource = constant("ExternalStringTag"), offset("ExternalString", "resource")
        self._actual = offset("ThinString", "actual")
        self._name = offset("SharedFunctionInfo", "name_or_scope_info")
        self._shared = offset("JSFunction", "shared")

    def is_string(self, word: int) -> bool:
        """Whether a word is the tagged address of a string."""
        return self._type(word) is not None

    def is_composed(self, word: int, most: int) -> bool:
        """Whether a word is the tagged address of a string that contains its characters, or that is
        composed of such strings. `most`: how many strings are followed, including this one."""
        for _ in range(most):
            kind = self._type(word)
            form = kind & self._kinds if kind is not None else None
            if form == self._thin and self._actual:
                word = self._memory.word(word - TAG + self._actual) or 0
            elif form == self._cons and self._first and self._second:
                second = self._type(self._memory.word(word - TAG + self._second) or 0)
                if second is None or second & self._kinds != 0:
                    return False
                word = self._memory.word(word - TAG + self._first) or 0
            else:
                return form == 0
        return False

    def _type(self, word: int) -> Optional[int]:
        first = self._memory.word(word - TAG) if word & TAG_MASK == TAG else None
        data = self._maps.data(first) if first is not None else None
        return data.instance_type if data is not None and data.instance_type < self._nonstring else None

    def read(self, word: Optional[int], depth: int = DEEPEST) -> Optional[str]:
        """Return the first characters of the string at a tagged address; None if it is not a
        string, or its characters are outside of the heap."""
        kind = self._type(word) if word is not None and depth else None
        if word is None or kind is None or self._length is None or self._chars is None:
            return None
        at, form = word - TAG, kind & self._kinds
        length = min(self._memory.int32(at + self._length) or 0, LONGEST)
        if form == 0:
            width = 1 if kind & self._one_byte else 2
            data = self._memory.read(at + self._chars, length * width) if length else b""
            return data.decode("latin-1" if width == 1 else "utf-16-le", "replace") if data or not length else None
        if form == self._cons and self._first and self._second:
            start = self.read(self._memory.word(at + self._first), depth - 1)
            rest = self.read(self._memory.word(at + self._second), depth - 1) if start is not None and len(start) < LONGEST else ""
            return (start + rest)[:LONGEST] if start is not None and rest is not None else None
        if form == self._thin and self._actual:
            return self.read(self._memory.word(at + self._actual), depth - 1)
        if form == self._sliced and self._parent and self._offset:
            parent, skipped = self.read(self._memory.word(at + self._parent), depth - 1), self._memory.word(at + self._offset)
            return parent[skipped >> SMI_SHIFT :][:length] if parent is not None and skipped is not None else None
        return None

    def read_all(self, engine: Engine, addresses: array[int]) -> Iterator[str]:
        """Yield the first characters of strings at ascending addresses ("Q"); see `read`.

        Short strings of one-byte characters are read together. Of these, the first word is a map of
        sequential one-byte strings."""
        chars, length_at = self._chars, self._length
        if chars is None or length_at is None:
            return
        data, missing = read_records(self._memory.target, engine, addresses, _RECORD)
        heads = memoryview(data).cast("Q")
        lengths = memoryview(data).cast("I")
        plain: dict[int, bool] = {}
        for at, address in enumerate(addresses):
            first, length = heads[at * _RECORD // 8], lengths[(at * _RECORD + length_at) // 4]
            if first not in plain:
                known = self._maps.data(first)
                kind = known.instance_type if known is not None else self._nonstring
                plain[first] = kind < self._nonstring and kind & self._kinds == 0 and bool(kind & self._one_byte)
            if plain[first] and length <= _RECORD - chars and at not in missing:
                start = at * _RECORD + chars
                yield data[start : start + length].decode("latin-1")
            else:
                yield self.read(address + TAG) or ""

    def function_name(self, function: int) -> str:
        """Return the name of the function at a tagged address; "" if it has none."""
        shared = self._memory.word(function - TAG + self._shared) if self._shared else None
        return self.shared_name(shared) if shared is not None else ""

    def shared_name(self, shared: int) -> str:
        """Return the name of the function whose SharedFunctionInfo is at a tagged address; "" if it
        has none."""
        if shared & TAG_MASK != TAG or self._name is None:
            return ""
        name = self._memory.word(shared - TAG + self._name)
        found = self.read(name)
        if found is None and name is not None and name & TAG_MASK == TAG:
            found = self._scope_name(name - TAG)
        return found or ""

    def _scope_name(self, scope: int) -> Optional[str]:
        """Return the name of the function that a ScopeInfo describes, or the name that V8 inferred
        for an anonymous one."""
        found = self.scope(scope)
        return next(filter(None, map(self.read, found.after)), None) if found is not None else None

    def scope(self, address: int) -> Optional[Scope]:
        """Return the contents of a ScopeInfo; None if they are not as expected.

        A ScopeInfo begins with flags, number of parameters and number of locals. Small integers,
        the names of the locals, and as many small integers follow. The first string after these is
        the name of the function. If only the function objects have it, NO_NAME is in its place."""
        first = address + self._maps.scope_info_start
        head = self._memory.words(first, LOCALS + 1)
        count = head[LOCALS] >> SMI_SHIFT if head else MOST_LOCALS
        if count >= MOST_LOCALS:
            return None
        inlined = count if count < MOST_INLINED else 1
        words = self._words(first + 8 * (LOCALS + 1), inlined + count + WORDS_AFTER)
        at = 0
        while at < min(WORDS_AFTER, len(words)) and not words[at] & TAG and tuple(words[at : at + 2]) != NO_NAME:
            at += 1  # positions in the source, and the number of variables of a module
        skipped = at + inlined + count if count else at
        return Scope(count, words[:at], words[at : at + inlined] if count else (), words[skipped : skipped + WORDS_AFTER])

    def _words(self, address: int, count: int) -> tuple[int, ...]:
        """Return up to `count` words; fewer at the end of memory."""
        sizes = (count, count - WORDS_AFTER + 1)
        return next(filter(None, (self._memory.words(address, size) for size in sizes if size > 0)), ())

    def characters(self, word: int) -> Optional[Characters]:
        """Return where the characters of a sequential or external string are; None for others."""
        kind = self._type(word)
        if kind is None or self._length is None or self._chars is None:
            return None
        length, width = self._memory.int32(word - TAG + self._length) or 0, 1 if kind & self._one_byte else 2
        if kind & self._kinds == 0:
            return Characters(word - TAG + self._chars, length, width)
        if kind & self._kinds == self._external and self._resource is not None:
            start = self._memory.word(word - TAG + self._resource + 8)
            return Characters(start, length, width) if start else None
        return None
