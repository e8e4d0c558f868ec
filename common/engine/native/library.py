"""Load the C engine's shared library, and define its result codes."""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable
from ctypes import byref, c_int, c_int64, c_void_p
from typing import Any, Optional

from findleaks.engine import shared
from findleaks.engine.native.declarations import SIGNATURES, CWords
from findleaks.engine.native.sources import HERE, library_name, read_checksum

LIBRARY = "_native.so"  # for 64-bit little-endian targets

NO_MEMORY, TOO_MANY_BLOCKS, DISORDER = -1, -2, -3  # native.h; -4: too many edges
NONE = 0xFFFFFFFF


class StaleLibrary(OSError):
    """The library was built from other sources. Its functions may take other arguments."""


class CLibrary(ctypes.CDLL):
    """The C engine's library. Negative results raise exceptions, except DISORDER, which the caller
    handles."""

    def __getattr__(self, name: str) -> Any:
        """Look up a function at its first use. A command uses only some of them."""
        if name not in SIGNATURES:
            raise AttributeError(name)
        function: Any = self[name]
        function.restype, function.argtypes = SIGNATURES[name]
        if function.restype in (c_int, c_int64):
            function.errcheck = self._check
        # This comes last: Ctrl-C must not leave a function with the wrong type of result.
        setattr(self, name, function)
        return function

    def take(self, words: CWords) -> array[int]:
        """Copy words that the C engine allocated, and free the originals."""
        made: array[int] = array("Q")
        if words.items:
            made.frombytes((ctypes.c_char * (8 * words.count)).from_address(words.items))
            self.fl_free(words.items)
        return made

    def words(self, function: Callable[..., int], *arguments: Any) -> array[int]:
        """Return the words that a function appends to its last argument."""
        words = CWords()
        function(*arguments, byref(words))
        return self.take(words)

    def rows(self, columns: int, function: Callable[..., int], *arguments: Any) -> list[array[int]]:
        """Return the rows of `columns` words that a function appends to its last argument."""
        found = self.words(function, *arguments)
        return [found[at : at + columns] for at in range(0, len(found), columns)]

    def _check(self, code: int, function: Any, arguments: tuple[Any, ...]) -> int:
        if code >= 0 or code == DISORDER:
            return code
        for argument in arguments:
            words = getattr(argument, "_obj", None)  # the argument of byref()
            if isinstance(words, CWords):
                self.take(words)
        if code == NO_MEMORY:
            raise MemoryError("not enough memory for the heap's graph")
        raise shared.TooManyBlocks("blocks" if code == TOO_MANY_BLOCKS else "references")


class Handle(c_void_p):
    """A structure that belongs to the C engine, freed when this object is freed.

    If handles are in a reference cycle, a structure may be freed before another one that refers to
    it. This is safe because no function that frees a structure reads another structure."""

    def __init__(self, address: Optional[int], free: Callable[[Handle], None], purpose: str) -> None:
        """Raise MemoryError, with the purpose, if there is no structure at `address`."""
        if not address:
            raise MemoryError(f"not enough memory {purpose}")
        super().__init__(address)
        self._free = free

    def __del__(self) -> None:
        if self:
            self._free(self)
            self.value = None


def library(path: str = "", word: int = 8, byteorder: str = "little") -> CLibrary:
    """Load the library for targets with this word size and byte order.

    `path` is the library for 64-bit little-endian targets (default: beside this file); the other
    libraries are beside it. Raises OSError if the library is missing or for another machine, and
    StaleLibrary if it was built from other sources."""
    path = library_name(word, byteorder, path or os.path.join(HERE, LIBRARY))
    try:
        loaded, wanted = CLibrary(path), read_checksum()
        for name in SIGNATURES if wanted is None else ():
            getattr(loaded, name)
        if wanted in (None, loaded.fl_sources()) and loaded.fl_target() == word | (byteorder == "big") << 8:
            return loaded
    except AttributeError:  # the library has other functions
        pass
    raise StaleLibrary(f"{path} was built from other sources")
