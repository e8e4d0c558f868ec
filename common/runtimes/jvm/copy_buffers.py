"""Recognize the buffers into which collectors copy objects (PLABs).

The structure of a PLAB begins with 32 bytes that are not used. In JDK 11, the address of its
functions comes first. Then follow the size in words, the bounds (bottom, top, end, and the end with
a reserve), and three numbers of words.

Source: OpenJDK 11, 17, 21 and 25, src/hotspot/share/gc/shared/plab.hpp."""

from __future__ import annotations

from findleaks.runtimes.jvm.tables import NMT_HEADER, Tables

PLAB_SIZES = range(128, 184)
"""Usable bytes of a block of malloc that contains a PLAB."""
_PLACES, _WORDS = (32, 40), 8  # offset of the size, and the words from there on


def is_copy_buffer(tables: Tables, start: int, low: int, high: int) -> bool:
    """Return whether a block of malloc is a PLAB. Its bounds may be addresses of objects, but keep
    no object alive. `low`, `high`: the addresses of the objects are in [low, high)."""
    for place in (header + offset for header in (0, NMT_HEADER) for offset in _PLACES):
        words = tables.memory.words(start + place, _WORDS) or (0,) * _WORDS
        bottom, top, end, last = words[1:5]
        are_bounds = low <= bottom <= top <= end <= last <= bottom + words[0] * tables.memory.size
        if are_bounds and words[0] < low and not any(low <= one < high for one in words[5:]):
            return True
    return False
