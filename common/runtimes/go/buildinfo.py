"""Read the version of Go that built a program. It is in the linker's build information in the
program's data.

Source: Go 1.18 to 1.26, src/debug/buildinfo/buildinfo.go: 14 bytes of magic at a multiple of 16,
the size of a pointer, flags. With flag 2 the version is at byte 32: its length as a varint, then
the text. (Before 1.18 the data had pointers to the version, which are not followed.)"""

from __future__ import annotations

import re

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces

MAGIC = b"\xff Go buildinf:"
_INLINE = 2
_VERSION = re.compile(rb"go\d[0-9A-Za-z.+-]{0,40}|devel [ -~]{0,60}")


def version(target: Target, data: Range) -> str:
    """Return the version ("1.26.8"), or "" if this data has none."""
    for piece in nonzero_pieces(target, *data):
        content = bytes(piece.data)
        at = content.find(MAGIC)
        while at >= 0:
            found = _at(target, piece.address + at) if (piece.address + at) % 16 == 0 else ""
            if found:
                return found
            at = content.find(MAGIC, at + 1)
    return ""


def _at(target: Target, address: int) -> str:
    try:
        head = target.read(address, 33)
        text = target.read(address + 33, head[32]) if head[15] & _INLINE and 0 < head[32] < 0x80 else b""
    except UnreadableMemory:
        return ""
    match = _VERSION.match(text)
    return match[0].decode("ascii").removeprefix("go") if match is not None else ""
