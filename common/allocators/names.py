"""Read short texts that name something."""

from __future__ import annotations

from findleaks.allocators.memory import Memory
from findleaks.formatting import shorten

LONGEST_TEXT = 256  # bytes read of a text


def read_name(memory: Memory, address: int) -> str:
    """Return the printable ASCII text of 1 to LONGEST_TEXT bytes at an address, up to its NUL byte;
    "" if there is none."""
    name = memory.c_string(address, LONGEST_TEXT)
    if not name.isascii() or not (text := name.decode("ascii")).isprintable():
        return ""
    # Without the NUL byte, the text is cut off, or the bytes are not a text.
    return shorten(text) if memory.read(address + len(name), 1) == b"\0" else ""
