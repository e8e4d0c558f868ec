"""Find unused entries of the arrays in which CPython keeps freed lists, dictionaries and their
tables.

An array of ENTRIES pointers has a count of the entries in use, which come first. The other entries
are stale: they refer to memory that may be in use for something else.

The arrays follow those of freed tuples, which have no stale pointers: TUPLES pointers to chains,
one for each number of items, and as many 32-bit counts.

Sources, CPython 3.10 to 3.13: Include/internal/pycore_interp.h, pycore_tuple.h, pycore_list.h,
pycore_dict_state.h (_Py_tuple_state, _Py_list_state and _Py_dict_state in turn, and before 3.12 in
pycore_interp.h), since 3.13 pycore_freelist.h (struct _Py_object_freelists). 3.9 has separate
variables for each, and 3.14 chains all freed objects (interpreter_memory.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from findleaks.runtimes.cpython.types import release_of
from findleaks.target.base import Range

TUPLES = 20
ENTRIES = 80
_COUNTS = TUPLES // 2  # size of the tuples' counts in words of 8 bytes
_MOST_TUPLES = 2000  # PyTuple_MAXFREELIST


class _Array(NamedTuple):
    """An array of a free list. `start` and `counter` are distances in words from the array of
    tuples to the entries, and to their count. `high`: the count is in the upper 32 bits of its
    word."""

    name: str
    start: int
    counter: int
    high: bool = False


_LISTS = TUPLES + _COUNTS
_NEXT = _LISTS + ENTRIES + 1
_LIST = _Array("list", _LISTS, _NEXT - 1)


def _apart(first: int) -> Sequence[_Array]:
    """Return three arrays, each followed by its length: the addresses of freed lists, of freed
    dictionaries and of freed tables."""
    second = first + ENTRIES + 1
    return (_LIST, _Array("dict", first, second - 1), _Array("", second, second + ENTRIES))


def _together(first: int) -> Sequence[_Array]:
    """Return the arrays with the addresses of freed lists, freed dictionaries and freed tables. The
    number of dictionaries and the number of tables both follow the array of tables."""
    count = first + 2 * ENTRIES
    return (_LIST, _Array("dict", first, count), _Array("", first + ENTRIES, count, True))


_LAYOUTS = {"3.10": _apart(_NEXT), "3.11": _apart(_NEXT), "3.12": _together(_NEXT + 2), "3.13": _apart(_NEXT)}
"""Arrays by version. 3.12 has a counter of versions and one of tables before the dictionaries."""


class FreeArrays:
    """Finds the unused entries.

    `tuple_items` returns the number of items of a freed tuple, -1 for other memory. `is_free`
    returns whether a freed object of a type ("list"), or a table (""), is at an address."""

    def __init__(self, version: str, word: int, tuple_items: Callable[[int], int], is_free: Callable[[int, str], bool]) -> None:
        release = release_of(version)
        self._arrays = _LAYOUTS.get(release, ()) if word == 8 else ()
        # Number of items of the tuples in the first chain.
        self._first = 0 if release == "3.10" else 1
        self._tuple_items, self._is_free = tuple_items, is_free

    def iterate_unused(self, address: int, words: Sequence[int], places: Sequence[int]) -> Iterator[Range]:
        """Yield the unused entries in these words, the first of which is at `address`. `places` are
        the indices of the words that may refer to freed objects."""
        seen: set[int] = set()
        for at in places if self._arrays else ():
            items = self._tuple_items(words[at])
            first = at - items + self._first
            if items > 0 and 0 <= first <= at < first + TUPLES and first not in seen:
                seen.add(first)
                if self._are_tuples(words, first):
                    yield from self._behind(address, words, first)

    def _are_tuples(self, words: Sequence[int], first: int) -> bool:
        counts = [word >> shift & 0xFFFFFFFF for word in words[first + TUPLES : first + TUPLES + _COUNTS] for shift in (0, 32)]
        chains = words[first : first + TUPLES]
        # Before 3.11 the first chain has the empty tuple.
        return len(counts) == TUPLES and all(
            count <= _MOST_TUPLES and bool(count) == bool(chain) for count, chain in list(zip(counts, chains))[1 - self._first :]
        )

    def _behind(self, address: int, words: Sequence[int], first: int) -> Iterator[Range]:
        """Yield the unused entries of the arrays; nothing if an entry in use is not a freed
        object."""
        found: list[Range] = []
        for name, start, counter, high in self._arrays:
            entries = words[first + start : first + start + ENTRIES]
            if first + counter >= len(words):
                return
            used = words[first + counter] >> 32 * high & 0xFFFFFFFF
            if used > ENTRIES or not all(self._is_free(entry, name) for entry in entries[:used]):
                return
            begin = address + 8 * (first + start)
            found.append(Range(begin + 8 * used, begin + 8 * ENTRIES))
        yield from found
