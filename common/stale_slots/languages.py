"""Detection of C++ and Rust code. Processes without it are not searched for containers of these
languages."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from findleaks.stale_slots.heap_memory import HeapPointers
from findleaks.target.base import Region, Target
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple

# Maximum number of bytes of constants that are searched in total: about 100 ms
MAX_SEARCHED = 1 << 26
PIECE = 1 << 20  # bytes searched at a time
LONGEST = 16  # maximum length of a searched text in bytes

_CPP = b"N10__cxxabiv1"
"""Text in the names of C++'s classes of run-time type information.
These are in the C++ library, which may be shared or linked statically."""

_RUST = b"/rustc/", b"library/std/src"
"""Text in paths of Rust's standard library, which its panic messages contain."""


class Languages(NamedTuple):
    """The languages whose standard libraries are in the process."""

    cpp: bool
    rust: bool


class RustFiles:
    """The mapped files with code of Rust's standard library."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[str, bool] = {}

    def contain(self, address: int) -> bool:
        """Return whether `address` is in such a file. Also return True for memory of no file.

        The variables of other files contain no containers of Rust. They must be excluded because
        CPython has a thousand variables that look like vectors, whose debug information takes
        seconds to read."""
        region = region_at(self._target.regions(), address)
        return self._is_rust((region.name if region is not None else "") or self._module_name(address))

    def select_words(self, words: HeapPointers) -> HeapPointers:
        """Return those words that are in files with code of Rust, or in memory of no file."""
        addresses, values, first = array("Q"), array("Q"), 0
        while first < len(words.addresses):
            region = region_at(self._target.regions(), words.addresses[first])
            last = bisect_left(words.addresses, region.end) if region is not None else first + 1
            if self.contain(words.addresses[first]):
                addresses += words.addresses[first:last]
                values += array("Q", words.values[first:last])
            first = last
        return HeapPointers(words.piece, addresses, values)

    def _is_rust(self, name: str) -> bool:
        if not name.startswith("/"):
            return True
        if name not in self._known:
            regions = [one for one in self._target.regions() if one.name == name]
            self._known[name] = any(map(_has_rust, _read_constants(self._target, regions)))
        return self._known[name]

    def _module_name(self, address: int) -> str:
        """Return the path of the module that contains this address, including its anonymous part
        (.bss). "" if there is none."""
        module = region_at(self._target.modules(), address)
        return module.path if module is not None else ""


def find_languages(target: Target) -> Languages:
    """Find the languages by strings in the constants of mapped files."""
    cpp = rust = False
    for data in _read_constants(target, target.regions()):
        cpp = cpp or _CPP in data
        rust = rust or _has_rust(data)
        if cpp and rust:
            break
    return Languages(cpp, rust)


def _has_rust(data: bytes) -> bool:
    return any(mark in data for mark in _RUST)


def _read_constants(target: Target, regions: Iterable[Region]) -> Iterator[bytes]:
    """Yield the read-only memory of mapped files in parts, up to MAX_SEARCHED bytes in total. The
    parts overlap by the length of the longest searched text."""
    left = MAX_SEARCHED
    for region in regions:
        if not region.name.startswith("/") or not region.readable or region.writable or region.executable:
            continue
        for piece in target.pieces(region.start, min(region.end, region.start + left)):
            left -= len(piece.data)
            for begin in range(0, len(piece.data), PIECE):
                yield bytes(piece.data[begin : begin + PIECE + LONGEST])
