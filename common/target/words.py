"""Words of structures in an untrusted process image."""

from __future__ import annotations

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Target


def word_at(target: Target, address: int) -> int:
    """The word at an address; 0, which is no pointer, where it cannot be read."""
    try:
        return target.word(address)
    except UnreadableMemory:
        return 0
