"""Whether a process has code of C++ or Rust. Others need no search for containers of these."""

from __future__ import annotations

from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

MAX_SEARCHED = 1 << 26  # bytes of constants that are searched in all, some 100 ms
PIECE = 1 << 20  # bytes that are searched at a time
LONGEST = 16  # bytes of what is searched for, at most

_CPP = b"N10__cxxabiv1"
"""In the names of C++'s classes of run-time type information, which are in the C++ library, shared
or linked statically."""

_RUST = b"/rustc/", b"library/std/src"
"""In paths of Rust's standard library, which its messages of panics have."""


class Languages(NamedTuple):
    """Which languages' standard libraries are in the process."""

    cpp: bool
    rust: bool


def find_languages(target: Target) -> Languages:
    """The languages that the constants of mapped files show: what is readable only."""
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
