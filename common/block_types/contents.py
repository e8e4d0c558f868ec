"""What an untyped block contains: an object of a known library, or pointers to a library's
functions, tables and constants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from findleaks.allocators.memory import Memory
from findleaks.allocators.names import read_name
from findleaks.block_types.hallmarks import Hallmarks, Rule, parse_table
from findleaks.block_types.known_objects import TABLE
from findleaks.block_types.type_ranges import TypeRanges
from findleaks.errors import UsageError
from findleaks.formatting import shorten
from findleaks.target.base import Target
from findleaks.target.ranges import range_at, region_at

if TYPE_CHECKING:
    from findleaks.allocators.gtypes import GTypeNames

RULES = "FINDLEAKS_OBJECTS"
"""Environment variable: the path of a file with further rules; see hallmarks.py."""

WORDS = 64  # words of a block that are examined
_LARGEST_FILE = 1 << 20
_SHOWN = 2  # names that are printed
_LEAST_TEXT = 3  # characters of a constant that names an object
LINKER_SYMBOLS = ("__do_global_dtors_aux_fini_array_entry", "__frame_dummy_init_array_entry", "_DYNAMIC", "_GLOBAL_OFFSET_TABLE_")
"""Symbols that every file has. A pointer to one of them does not identify the type of a block.
Saved registers often point to the first symbol, because the code that calls main() has the bounds
of .init_array in registers."""
_COMMON = ("libc.", "libc-", "ld-linux", "ld-musl", "libpthread")
"""Beginnings of the names of files whose functions any program may store: malloc, free."""


def load_rules() -> list[Rule]:
    """Return the rules of the user's file, then the built-in ones. Raises UsageError if the file
    cannot be read or has an invalid rule."""
    path = os.environ.get(RULES, "")
    own: list[Rule] = []
    if path:
        try:
            with open(path, "rb") as file:
                own = parse_table(file.read(_LARGEST_FILE).decode("utf-8", "replace"), path)
        except OSError as error:
            raise UsageError(f"{RULES}: cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    return [*own, *parse_table(TABLE, "known_objects.py")]


class Contents:
    """Names of blocks by their contents. A name takes up to 0.2 ms, so callers name groups."""

    def __init__(self, target: Target, ranges: TypeRanges) -> None:
        self._target, self._memory, self._ranges = target, Memory(target), ranges

    def describe(self, address: int, size: int) -> str:
        """Return what the block contains, safe to print; "" if unknown.

        - "zlib inflate state": an object of a known library.
        - "→ fz_drop_pixmap_imp, libmupdf.so.23": pointers to functions, tables or constants."""
        return self.name_object(address, size) or self._pointers(address, size)

    def name_object(self, address: int, size: int) -> str:
        """Return the name of the known library's object that the block contains; "" for none."""
        return self._hallmarks.name(address, size)

    @cached_property
    def _hallmarks(self) -> Hallmarks:
        files = [os.path.basename(module.path) for module in self._target.modules()]
        return Hallmarks(self._memory, load_rules(), self._code_file, lambda node: self._gtypes.name(node), files)

    @cached_property
    def _gtypes(self) -> GTypeNames:
        from findleaks.allocators.gtypes import GTypeNames  # few processes have such objects

        return GTypeNames(self._target)

    def _pointers(self, address: int, size: int) -> str:
        word = self._memory.size
        words = self._memory.words(address, min(size // word, WORDS)) or () if address % word == 0 else ()
        found: dict[str, list[str]] = {}
        for name, file in self._name_by_words(words):
            names = found.setdefault(file, [])
            if name not in names:
                names.append(name)
        files = [file for file in found if not file.startswith(_COMMON)] or list(found)
        if not files:
            return ""
        known = [name for name in found[files[0]] if name]
        return f"→ {', '.join([*known[:_SHOWN], files[0]])}" if known else f"→ {files[0]}"

    def _name_by_words(self, words: Sequence[int]) -> Iterator[tuple[str, str]]:
        """Yield (name, file) of pointers to functions and to static data that has a name."""
        for value in words:
            if range_at(self._ranges.code, value) is not None:
                file = self._code_file(value)
                symbol = self._target.symbolize(value) if file else None
                if symbol is not None and symbol.address == value & self._target.arch.code_bits:
                    yield shorten(symbol.name, 80), file
                elif file and symbol is None and self._looks_like_function(value):
                    yield "", file
            elif range_at(self._ranges.tables, value) is not None and value % self._memory.size == 0:
                file = self._file(value)
                name = self._static_name(value) if file else ""
                if name:
                    yield name, file

    def _looks_like_function(self, address: int) -> bool:
        """Whether a function without a name may begin at this address: they are aligned to 16
        bytes. Return addresses, which point anywhere into code, rarely are."""
        return address % 16 == 0

    def _static_name(self, address: int) -> str:
        """Return the name of static data: its symbol, or the text that its first words point to; ""
        for other data."""
        symbol = self._target.symbolize(address)
        if symbol is not None and symbol.address == address:
            return shorten(symbol.name, 80) if symbol.name not in LINKER_SYMBOLS else ""
        for word in self._memory.words(address, 2) or ():
            region = region_at(self._target.regions(), word)
            if region is not None and region.name.startswith("/") and not region.writable and not region.executable:
                text = read_name(self._memory, word)
                if len(text) >= _LEAST_TEXT:
                    return f'"{shorten(text, 40)}"'
        return ""

    def _file(self, address: int) -> str:
        module = region_at(self._target.modules(), address)
        return shorten(os.path.basename(module.path), 60) if module is not None else ""

    def _code_file(self, address: int) -> str:
        return self._file(address) if range_at(self._ranges.code, address) is not None else ""
