"""Remove tags from pointers.

On AArch64 the processor ignores the top byte of an address, where HWASan and the memory tagging
extension (MTE) store a tag. A process must enable tags (prctl PR_SET_TAGGED_ADDR_CTRL) before it
passes such pointers to the kernel. Its core records whether tags are enabled (Linux 6.x,
Documentation/arm64/tagged-address-abi.rst; NT_ARM_TAGGED_ADDR_CTRL).

A word is a tagged pointer if its other unused bits (48 to 55), which are 0 in user addresses,
are 0. Text and most other values have some of them set, and stay unchanged."""

from __future__ import annotations

from findleaks.target.base import Piece

ENABLED = 1  # PR_TAGGED_ADDR_ENABLE

_WORD, _TOP, _UNUSED = 8, 7, 6  # bytes of a word; offsets in it of the tag, and of bits 48 to 55
_KEPT = bytes([0]) + bytes([0xFF]) * 255  # mask of the top byte, by the value of bits 48 to 55


def remove_tags(piece: Piece) -> Piece:
    """Return a piece without tags in its aligned words. If no word has a tag, this is the piece
    itself, otherwise a copy."""
    first = -piece.address % _WORD
    end = first + (len(piece.data) - first) // _WORD * _WORD
    tops = bytes(piece.data[first + _TOP : end : _WORD])
    if tops.count(0) == len(tops):
        return piece
    kept = bytes(piece.data[first + _UNUSED : end : _WORD]).translate(_KEPT)
    data = bytearray(piece.data)
    cleared = int.from_bytes(tops, "little") & int.from_bytes(kept, "little")
    data[first + _TOP : end : _WORD] = cleared.to_bytes(len(tops), "little")
    return Piece(piece.address, memoryview(data))


def remove_tag(word: int) -> int:
    return word & (1 << 56) - 1 if not word >> 48 & 0xFF else word
