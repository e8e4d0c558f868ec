"""Reads short texts that name something."""

from __future__ import annotations

from findleaks.allocators.memory import Memory
from findleaks.formatting import shortened

LONGEST_TEXT = 256  # bytes read of a text


def read_name(memory: Memory, address: int) -> str:
    """Return the printable ASCII text of 1 to LONGEST_TEXT bytes at an address, up to its NUL byte;
    "" if there is none."""
    text = b""
    while len(text) < LONGEST_TEXT and b"\0" not in text:
        # Up to the next multiple of 64: the next page may be missing.
        part = memory.read(address + len(text), 64 - (address + len(text)) % 64)
        if not part:
            return ""
        text += part
    name, end, _ = text.partition(b"\0")
    return shortened(name.decode("ascii")) if end and name.isascii() and name.decode("ascii").isprintable() else ""
