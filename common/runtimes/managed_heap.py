"""How a managed runtime's heap is recognised without reading it: by the names of loaded files."""

from __future__ import annotations

from findleaks.value_classes import NamedTuple


class ManagedHeap(NamedTuple):
    """How to recognise, by how names of loaded `files` begin, a runtime whose heap belongs to no
    allocator. `owner`: its name in a sentence. `allocator`: the one that serves as its heap, if it
    can be read (CPython's pymalloc)."""

    files: tuple[str, ...]
    owner: str
    allocator: str = ""
