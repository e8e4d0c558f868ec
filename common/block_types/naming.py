"""Determine the type names of blocks from their first word; for arrays and some structures, also
from the words after it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.block_types.contents import Contents
from findleaks.block_types.rtti import Rtti
from findleaks.block_types.shapes import is_array, is_file, is_string, may_have_strings
from findleaks.block_types.text import text_hint
from findleaks.block_types.type_ranges import TypeRanges, find_type_ranges
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, range_at, region_at

_VTABLE = "vtable for "
_CONSTRUCTION = "construction vtable for "
STRING_NAMES = (  # names of std::string
    "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >",
    "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
    "std::__1::basic_string<char, std::__1::char_traits<char>, std::__1::allocator<char> >",
)
_SHARED = ("std::_Sp_counted_ptr_inplace<", "std::__1::__shared_ptr_emplace<")
_COUNTERS = ("std::_Sp_counted_ptr<", "std::_Sp_counted_deleter<", "std::__1::__shared_ptr_pointer<")


class Types:
    """Type names of one target's blocks, cached by word."""

    def __init__(self, target: Target) -> None:
        self._target, self.memory = target, Memory(target)
        self._names: dict[int, str] = {}
        self.embedded: set[int] = set()
        """First words (vtables) that do not determine the type of a block, because other types may
        begin with an object of the class. Only debug information shows this."""

    @cached_property
    def _ranges(self) -> TypeRanges:
        return find_type_ranges(self._target)

    @cached_property
    def _rtti(self) -> Rtti:
        return Rtti(self._target, self._ranges)

    @cached_property
    def may_have_strings(self) -> bool:
        """Whether a block with the shape of a std::string gets this type."""
        return may_have_strings(self._target)

    @cached_property
    def contents(self) -> Contents:
        """Names of blocks without a type, by what they contain."""
        return Contents(self._target, self._ranges)

    def ranges(self) -> list[Range]:
        """Ranges that a first word points into if it identifies a type: vtables and code. Sorted,
        disjoint."""
        return merge_ranges([*self._ranges.tables, *self._ranges.code])

    def vtables(self) -> list[Range]:
        """Ranges of vtables and other function tables, without code. Sorted, disjoint."""
        return list(self._ranges.tables)

    def primary_bases(self, typeinfo: int) -> list[str]:
        """Mangled names of the type that this std::type_info describes, and of its single bases."""
        return self._rtti.primary_bases(typeinfo)

    def name(self, word: int) -> str:
        """Return the type that `word` identifies as a block's first word; "" for none.

        - the name of a class; "B in D" for a B under construction inside a D;
        - "function f" for the start of a function, "code in libx.so" for other code;
        - "table t" for a C function table of that name;
        - "class libx.so+0x3d20" or "table libx.so+0x3d20" if only the shape is known."""
        found = self._names.get(word)
        if found is None:
            if not (range_at(self._ranges.tables, word) or range_at(self._ranges.code, word)):
                return ""  # not cached: there may be as many such words as blocks
            found = self._names[word] = _short(self.full_name(word))
        return found

    def of_block(self, address: int, size: int) -> str:
        """Return the type of a block of `size` usable bytes: that of its first word, as in `name`;
        "Foo[3]" for an array of objects preceded by its count; "FILE" for glibc's; "std::string"
        for a single string object; "" for none."""
        words = self.first_words(address, size)
        return self.of_words(words, address, size) if words else ""

    def first_words(self, address: int, size: int) -> Sequence[int]:
        """Return the words of a block that identify its type; () if they cannot be read."""
        return self.memory.words(address, min(size // self.memory.size, 5)) or ()

    def of_words(self, words: Sequence[int], address: int, size: int) -> str:
        """Return the same as `of_block` for a block whose `first_words` are `words`."""
        word = self.memory.size
        found = self.name(words[0])
        if found:
            return found
        # The count is just before the objects, which may be aligned to 16 bytes.
        for skip in (1, 2) if word == 8 else (1, 2, 4):
            if len(words) > skip and 0 < words[skip - 1] <= size // word and self.is_class(words[skip]):
                if is_array(self._target, address + skip * word, size - skip * word, words[skip - 1], words[skip]):
                    return f"{self.name(words[skip])}[{words[skip - 1]}]"
        if is_file(self._target, words[0], address, size):
            return "FILE"
        return "std::string" if is_string(self._target, words, address, size) and self.may_have_strings else ""

    def hint(self, data: bytes) -> str:
        """Return what the first bytes look like, safe to print: '"GET /index.html…"', "zeros", or
        ""."""
        return text_hint(data, self._target.arch, lambda address: region_at(self._target.regions(), address) is not None)

    def is_code(self, address: int) -> bool:
        """Whether a loaded file has code at this address."""
        return range_at(self._ranges.code, address) is not None

    def is_class(self, word: int) -> bool:
        """Whether `word` points to a vtable (not to code or to a C function table), and each block
        that begins with it is an object of this class. False if another type may begin with such an
        object."""
        if word in self.embedded:
            return False
        looks, info = self._rtti.vtable(word)
        if not looks:
            return False
        if info:
            return self._rtti.typeinfo(info) is not None
        return bool(self._symbol_class(word))

    def full_name(self, word: int) -> str:
        """Return the same as `name`, with the names of the standard library in full, as in debug
        information."""
        if range_at(self._ranges.tables, word):
            found = self._table(word)
            if found:
                return found
        return self._code(word) if range_at(self._ranges.code, word) else ""

    def _table(self, word: int) -> str:
        looks, address = self._rtti.vtable(word)
        if looks and address:
            info = self._rtti.typeinfo(address)
            shown = self._rtti.display_name(info) if info is not None else ""
            if info is not None and shown:
                return (self._under_construction(word) if self._rtti.has_virtual_bases(info) else "") or shown
        named = self._symbol_class(word)
        if named:
            return named
        if not self._starts_table(word):
            return ""
        symbol = self._target.symbolize(word)
        if symbol is not None:
            return f"table {symbol.name}" if symbol.address == word else ""
        where = self._where(word)
        if where is None:
            return ""
        what = "class" if looks and self._rtti.may_be_typeinfo(address) else "table"
        return f"{what} {where[0]}+{word - where[1]:#x}"

    def _under_construction(self, word: int) -> str:
        symbol = self._target.symbolize(word)
        return _construction(symbol.name) if symbol is not None else ""

    def _symbol_class(self, word: int) -> str:
        """Return the class whose vtable symbol covers `word`, at least two words after the symbol's
        address; "" if there is none. This needs no RTTI."""
        symbol = self._target.symbolize(word)
        size = self._target.arch.word
        if symbol is None or word - symbol.address < 2 * size or word % size:
            return ""
        if symbol.name.startswith(_VTABLE):
            return symbol.name[len(_VTABLE) :]
        return _construction(symbol.name)

    def _starts_table(self, word: int) -> bool:
        """Whether the first two words at `word` are addresses of code. One of them may be 0."""
        words = self.memory.words(word, 2) if word % self._target.arch.word == 0 else None
        if words is None:
            return False
        (first, second), code = words, self._ranges.code
        return bool((range_at(code, first) and (not second or range_at(code, second))) or (not first and range_at(code, second)))

    def _code(self, word: int) -> str:
        symbol = self._target.symbolize(word)
        if symbol is not None and symbol.address == word & self._target.arch.code_bits:
            return f"function {symbol.name}"
        where = self._where(word)
        return f"code in {where[0]}" if where is not None else ""

    def _where(self, address: int) -> Optional[tuple[str, int]]:
        """Return (name of the file mapped at `address`, number to subtract for the file's own
        address)."""
        module = region_at(self._target.modules(), address)
        if module is not None:
            return _basename(module.path), module.bias
        region = region_at(self._target.regions(), address)
        return (_basename(region.name), region.start - region.file_offset) if region is not None and region.name else None


def _construction(name: str) -> str:
    """Convert "construction vtable for B-in-D" to "B in D"."""
    return name[len(_CONSTRUCTION) :].replace("-in-", " in ", 1) if name.startswith(_CONSTRUCTION) else ""


def _short(name: str) -> str:
    """Shorten the names of std::string, and of the blocks behind std::shared_ptr<T>."""
    for long in STRING_NAMES:
        if long in name:
            name = name.replace(long, "std::string").replace("std::string >", "std::string>")
    for prefix in _SHARED:
        if name.startswith(prefix):
            return "std::make_shared" + _bracket(_first_argument(name[len(prefix) :]))
    for prefix in _COUNTERS:
        if name.startswith(prefix):
            return f"counters of std::shared_ptr{_bracket(_first_argument(name[len(prefix) :]).rstrip('*'))}"
    return name


def _bracket(argument: str) -> str:
    return f"<{argument} >" if argument.endswith(">") else f"<{argument}>"


def _first_argument(text: str) -> str:
    """Return the first template argument: `a::b<c, d>, e>` -> `a::b<c, d>`."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in "<([{") - (character in ">)]}")
        if depth < 0 or (depth == 0 and character == ","):
            return text[:i].rstrip()
    return text


def _basename(path: str) -> str:
    return path.rsplit("/", 1)[-1] or "module"
