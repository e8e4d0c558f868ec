"""Detection of C++ and Rust code. Processes without it are not searched for containers of these
languages."""

from __future__ import annotations

from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

MAX_SEARCHED = 1 << 26  # most bytes of constants that are searched in total: about 100 ms
PIECE = 1 << 20  # bytes searched at a time
LONGEST = 16  # most bytes of a searched text

_CPP = b"N10__cxxabiv1"
"""Text in the names of C++'s classes of run-time type information.
These are in the C++ library, which may be shared or linked statically."""

_RUST = b"/rustc/", b"library/std/src"
"""Text in paths of Rust's standard library, which its panic messages contain."""


class Languages(NamedTuple):
    """The languages whose standard libraries are in the process."""

    cpp: bool
    rust: bool


def find_languages(target: Target) -> Languages:
    """Return the languages that constants of mapped files show. Only read-only memory is
    searched."""
    cpp = rust = False
    left = MAX_SEARCHED
    for region in target.regions():
        if not region.name.startswith("/") or not region.readable or region.writable or region.executable:
            continue
        for piece in target.pieces(region.start, min(region.end, region.start + left)):
            left -= len(piece.data)
            for begin in range(0, len(piece.data), PIECE):
                data = bytes(piece.data[begin : begin + PIECE + LONGEST])
                cpp = cpp or _CPP in data
                rust = rust or any(mark in data for mark in _RUST)
                if cpp and rust:
                    return Languages(cpp, rust)
    return Languages(cpp, rust)
