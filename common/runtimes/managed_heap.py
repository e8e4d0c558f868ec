"""Recognises a managed runtime's heap without reading it: by the names of loaded files."""

from __future__ import annotations

from findleaks.value_classes import NamedTuple


class ManagedHeap(NamedTuple):
    """A runtime whose heap belongs to no allocator, recognised by prefixes of the names of loaded
    `files`. `owner`: its name in a sentence. `allocator`: the one that serves as its heap, if it
    can be read (CPython's pymalloc)."""

    files: tuple[str, ...]
    owner: str
    allocator: str = ""
