"""Read CPython's types: their names, and the offsets of objects in their blocks.

Sources: Include/cpython/object.h (struct _typeobject, struct _heaptypeobject), Include/object.h
(flags), Include/internal/pycore_object.h (_PyType_PreHeaderSize), Include/cpython/unicodeobject.h,
Objects/dict-common.h and Include/internal/pycore_dict.h of CPython 3.9 to 3.14."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Target
from findleaks.target.encoded_numbers import decode_signed

# Offsets in a type, in words: tp_name, tp_basicsize, tp_itemsize, tp_dealloc, tp_flags,
# tp_doc, tp_weaklistoffset, tp_base, tp_dict, tp_version_tag (3.9 to 3.14).
NAME, BASIC_SIZE, ITEM_SIZE, DEALLOC, FLAGS, DOC, WEAK_LIST, BASE, DICT, VERSION = 3, 4, 5, 6, 21, 22, 26, 32, 33, 48

LENGTH = 34  # words read of a type

HAVE_GC = 1 << 14
# Py_TPFLAGS_MANAGED_WEAKREF (3.12) and _MANAGED_DICT (3.11), unused before: two words before the
# garbage collector's header.
MANAGED_WEAKREF = 1 << 3
MANAGED_DICT = 1 << 4
PRE_HEADER = MANAGED_WEAKREF | MANAGED_DICT
INLINE_VALUES = 1 << 2  # Py_TPFLAGS_INLINE_VALUES (3.13): attributes after the object

HEAP_TYPE = 1 << 9
SUBCLASSES = {"int": 1 << 24, "list": 1 << 25, "tuple": 1 << 26, "bytes": 1 << 27, "str": 1 << 28, "dict": 1 << 29}

EXCEPTION = 1 << 30  # Py_TPFLAGS_BASE_EXC_SUBCLASS
TYPE_SUBCLASS = 1 << 31  # Py_TPFLAGS_TYPE_SUBCLASS
NAME_LENGTH = 200  # maximum number of bytes read of a name
KEYS = 1 << 12  # bytes searched of a class's dictionary for its module's name

UNICODE_DATA = (40, 48)  # offset of ASCII strings' characters: without, and (up to 3.11) with wstr


_SHIPPED = (
    "abc array asyncio bz2 collections contextvars csv ctypes datetime decimal elementtree functools hashlib io itertools json lsprof lzma "
    "mmap operator pickle posix pyexpat queue random select socket sqlite3 sre ssl struct thread types typing unicodedata weakref xml zlib "
    "zoneinfo"
)
SHIPPED = frozenset(_SHIPPED.split())
"""Modules of the interpreter whose types are written in C, without leading underscores. Each object
of a type without items has tp_basicsize bytes."""


def release_of(version: str) -> str:
    """Return "3.13", for a version such as "3.13.5 (free-threaded)"."""
    return ".".join(version.partition(" ")[0].split(".")[:2])


class Types:
    """All types of an interpreter, by number.

    `offsets` has a byte for each of `addresses`. The first `foreign` types belong to extensions:
    their C code frees their objects together with the memory that these own. `sizes` are bytes of
    an object; 0 if the objects of a type differ in size, or if unknown, as for most foreign types.
    Names are read on demand.

    `shift` is the number of bytes of an object before its reference count, which precedes its type;
    see pymalloc.Interpreter. The part after the type is the same in all builds, so `offsets` refer
    to that count."""

    def __init__(self, target: Target, engine: Engine, addresses: Sequence[int], shift: int = 0) -> None:
        self._memory = Memory(target)
        self.shift = shift
        self._data = 0
        self._texts: dict[int, str] = {}  # C strings by address: the names of types
        word = target.arch.word
        known = array("Q", sorted(set(addresses)))
        data, missing = read_records(target, engine, array("Q", (address + shift for address in known)), LENGTH * word)
        words = target.arch.unpack(bytes(data))
        kept = [number for number in range(len(known)) if number not in missing]
        deallocs = Counter(words[n * LENGTH + DEALLOC] for n in kept if words[n * LENGTH + FLAGS] & HEAP_TYPE)
        # subtype_dealloc, the tp_dealloc of classes defined in Python.
        common = deallocs.most_common(1)[0][0] if deallocs else 0

        def foreign(number: int) -> bool:
            own = words[number * LENGTH + DEALLOC] != common
            return own and (bool(words[number * LENGTH + FLAGS] & HEAP_TYPE) or "." in self._text(words[number * LENGTH + NAME]))

        theirs = [number for number in kept if foreign(number)]
        self.foreign = len(theirs)
        kept = [*theirs, *sorted({*kept} - {*theirs})]
        self.addresses: array[int] = array("Q", [known[number] for number in kept])
        self._names = [words[number * LENGTH + NAME] for number in kept]
        self._dicts = [words[number * LENGTH + DICT] for number in kept]
        self.flags = [words[number * LENGTH + FLAGS] for number in kept]
        header = 2 * word
        links = 0 if shift else header  # the collector's
        self.offsets = bytes(links * bool(f & HAVE_GC) + header * bool(f & PRE_HEADER) + shift for f in self.flags)
        self._number = {address: number for number, address in enumerate(self.addresses)}

        def size(number: int) -> int:
            flags, item = words[number * LENGTH + FLAGS], words[number * LENGTH + ITEM_SIZE]
            # The characters of str itself follow the object, although its type has no items.
            is_text = flags & SUBCLASSES["str"] and not flags & HEAP_TYPE
            is_fixed = not flags & INLINE_VALUES and not item and not is_text
            return words[number * LENGTH + BASIC_SIZE] - shift if is_fixed else 0

        shipped = [self._text(words[number * LENGTH + NAME]).partition(".")[0].lstrip("_") in SHIPPED for number in theirs]
        self.sizes = [size(number) if own else 0 for number, own in zip(theirs, shipped)]
        self.sizes += [size(number) for number in kept[len(theirs) :]]
        self.weak_lists = [decode_signed(words[number * LENGTH + WEAK_LIST], 8 * word) - shift for number in kept]
        self._bases = [words[number * LENGTH + BASE] for number in kept]
        # Addresses of the names and docstrings of heap types, which are C strings
        heap = [number for number in kept if words[number * LENGTH + FLAGS] & HEAP_TYPE]
        self.texts = [words[number * LENGTH + at] for number in heap for at in (NAME, DOC) if words[number * LENGTH + at]]

    def __len__(self) -> int:
        return len(self.addresses)

    def name(self, number: int) -> str:
        """Return a type's name as Python prints it: "dict", "collections.OrderedDict",
        "__main__.Session"."""
        name = self._text(self._names[number])
        if not name:
            return f"type at {self.addresses[number]:#x}"
        if self.flags[number] & HEAP_TYPE and "." not in name:
            module = self._module(self._dicts[number])
            if module and module != "builtins":
                return f"{module}.{name}"
        return name

    def is_type(self, number: int) -> bool:
        """Whether objects of this type are types themselves: `type` or a metaclass."""
        return bool(self.flags[number] & TYPE_SUBCLASS)

    def basic_size(self, number: int) -> int:
        """Return the bytes of an object of this type, without items and inline values."""
        return self._memory.word(self.addresses[number] + self.shift + BASIC_SIZE * self._memory.size) or 0

    def item_size(self, number: int) -> int:
        """Return the bytes of an item of an object of this type; 0 if all objects have one size."""
        return self._memory.word(self.addresses[number] + self.shift + ITEM_SIZE * self._memory.size) or 0

    def number(self, address: int) -> int:
        """Return the number of the type at this address, or -1."""
        return self._number.get(address, -1)

    def bases(self, number: int) -> list[int]:
        """Return the numbers of a type's base types, by tp_base, nearest first."""
        found: list[int] = []
        following = self._number.get(self._bases[number])
        while following is not None and following not in found:
            found.append(following)
            following = self._number.get(self._bases[following])
        return found

    def plain_name(self, number: int) -> str:
        """Return the name of a type in the interpreter's own data; "" for others."""
        return "" if self.flags[number] & HEAP_TYPE else self._text(self._names[number])

    def list_derived(self, names: Sequence[str]) -> list[int]:
        """Return the numbers of the types that C code gave these names (tp_name), and of their
        subtypes. A class of Python code cannot have such a name, because its name has no dot."""
        return list(self.name_derived(names))

    def name_derived(self, names: Collection[str]) -> dict[int, str]:
        """Return the same types as list_derived, and for each the name of the nearest type that has
        one of these names."""

        def is_named(number: int) -> bool:
            name = self._text(self._names[number])
            return name in names and ("." in name or not self.flags[number] & HEAP_TYPE)

        own = {number: self._text(self._names[number]) for number in range(len(self)) if is_named(number)}
        found: dict[int, str] = {}
        for number in range(len(self) if own else 0):
            nearest = next((one for one in (number, *self.bases(number)) if one in own), None)
            if nearest is not None:
                found[number] = own[nearest]
        return found

    def _text(self, address: int) -> str:
        """Return the C string at this address."""
        if address not in self._texts:
            text, end, _ = self._read(address, (NAME_LENGTH, 32)).partition(b"\0")
            self._texts[address] = text.decode("utf-8", "backslashreplace") if end else ""
        return self._texts[address]

    def _read(self, address: int, lengths: Sequence[int]) -> bytes:
        """Return the bytes at this address, in the first of these lengths that can be read; b"" if
        none can."""
        return next(filter(None, (self._memory.read(address, length) for length in lengths)), b"")

    def _module(self, dictionary: int) -> str:
        """Return the value of `__module__` in a class's dictionary.

        The search does not depend on the layout of the keys: a key's value directly follows the
        key."""
        word = self._memory.size
        # ma_keys follows ma_used and ma_version_tag.
        keys = self._memory.word(dictionary + self.shift + 4 * word) if dictionary else None
        if not keys:
            return ""
        words = self._memory.arch.unpack(self._read(keys, (KEYS, KEYS // 4, KEYS // 16)))
        for key, value in zip(words, words[1:]):
            if key > 4096 and key % word == 0 and self.text(key, 10) == "__module__":
                return self.text(value)
        return ""

    def text(self, address: int, length: int = -1, most: int = NAME_LENGTH) -> str:
        """Return the text of a str, if it has at most `most` ASCII characters and, with `length`,
        exactly this number; else ""."""
        address += self.shift
        words = self._memory.words(address, 3)
        if words is None or not 0 < words[2] <= most or (length >= 0 and words[2] != length):
            return ""
        number = self._number.get(words[1])
        if number is None or not self.flags[number] & SUBCLASSES["str"]:
            return ""
        for at in (self._data,) if self._data else UNICODE_DATA:
            data = self._read(address + at, (words[2] + 1,))
            if data[-1:] == b"\0" and data[:-1].isascii() and 0 not in data[:-1]:
                text = data[:-1].decode("ascii")
                if text == "__module__":
                    self._data = at  # found: used from now on
                return text
        return ""
