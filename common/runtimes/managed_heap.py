"""Recognises a managed runtime's heap by the names of loaded files, without reading the heap."""

from __future__ import annotations

from findleaks.value_classes import NamedTuple


class ManagedHeap(NamedTuple):
    """A runtime whose heap belongs to no allocator.

    `files` are prefixes of the names of its loaded files, `owner` is its name in a sentence.
    `allocator` is the allocator that serves as its heap, if it can be read (CPython's pymalloc)."""

    files: tuple[str, ...]
    owner: str
    allocator: str = ""
