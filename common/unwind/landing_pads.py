"""Read the addresses at which a function continues after an exception.

They are in the function's table of exception handlers, the language-specific data area (LSDA). Its
format is the same for all languages with the Itanium C++ ABI: GCC libstdc++-v3/libsupc++/
eh_personality.cc (parse_lsda_header)."""

from __future__ import annotations

from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.base import MappedMemory
from findleaks.unwind.cfi import ENCODING_OMIT, Bytes, Malformed

_LONGEST_HEAD = 32  # bytes before the call sites, at most
_LARGEST = 64 << 10  # bytes of the call sites that are read


def read_landing_pads(target: MappedMemory, table: int, function: int) -> Optional[frozenset[int]]:
    """Return the addresses, which may be outside the function; None if the table is damaged.
    `function`: the start of the function."""
    try:
        head = _bytes(target, table, _LONGEST_HEAD)
        encoding = head.read_unsigned(1)
        base = head.pointer(encoding) if encoding != ENCODING_OMIT else function
        if head.read_unsigned(1) != ENCODING_OMIT:
            head.uleb()
        encoding, size = head.read_unsigned(1), head.uleb()
        if size > _LARGEST:
            return None
        sites = _bytes(target, table + head.at, size)
        found: set[int] = set()
        while sites.at < size:
            _, _, pad = (sites.pointer(encoding) for _ in range(3))
            sites.uleb()  # the action
            if pad:
                found.add(base + pad & target.arch.mask)
        return frozenset(found)
    except (UnreadableMemory, Malformed):
        return None


def _bytes(target: MappedMemory, address: int, size: int) -> Bytes:
    return Bytes(target.read(address, size), address, target.arch.word, target.arch.byteorder)
