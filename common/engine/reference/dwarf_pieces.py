"""Read locations of variables that consist of pieces, in pure Python. The C engine has the same
code in common/native/dwarf_addresses.c."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.engine.reference.dwarf_data import Data, Malformed

ADDRESS, ADDRESS_INDEX, GNU_ADDRESS_INDEX, PIECE = 0x03, 0xA1, 0xFB, 0x93  # DW_OP_...
MOST_PIECE = 1 << 32  # Maximum number of bytes of a piece.


def address_of_pieces(block: Data, word: int, read_indexed: Callable[[int], Optional[int]]) -> Optional[tuple[int, int]]:
    """Return the address of a variable whose pieces are at their offsets from this address, and the
    most bytes that its type may have; None if they are not. clang splits static structs into their
    members, but usually keeps them together. A piece that was removed must be smaller than a word,
    because another variable may be in its place. clang does not mention removed members after the
    last piece. `read_indexed` returns the address with an index."""
    found: Optional[int] = None
    at, offset, end = 0, 0, len(block.data)
    while at < end:
        operation, at, start = block.data[at], at + 1, 0
        try:
            if operation == ADDRESS:
                if end - at < word:
                    return None
                start, at = block.number(at, word), at + word
            elif operation in (ADDRESS_INDEX, GNU_ADDRESS_INDEX):
                index, at = block.uleb(at, end)
                start = read_indexed(index) or 0
            is_removed = operation == PIECE
            if not is_removed:
                if at == end or block.data[at] != PIECE:
                    return None
                at += 1
            size, at = block.uleb(at, end)
        except Malformed:
            return None
        if size > MOST_PIECE or (is_removed and size >= word):
            return None
        if not is_removed:
            if start <= offset or found not in (None, start - offset):
                return None
            found = start - offset
        offset += size
    return None if found is None else (found, offset + word - 1)
