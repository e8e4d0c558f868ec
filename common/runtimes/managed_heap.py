"""Recognise a managed runtime's heap by the names of loaded files, without reading the heap."""

from __future__ import annotations

from findleaks.value_classes import NamedTuple


class ManagedHeap(NamedTuple):
    """A runtime whose heap belongs to no allocator.

    `files`: prefixes of the names of its loaded files. `owner`: its name in a sentence.
    `allocator`: the allocator that serves as its heap, if findleaks can read it (CPython's
    pymalloc)."""

    files: tuple[str, ...]
    owner: str
    allocator: str = ""
