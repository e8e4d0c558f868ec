"""Report memory of ArrayBuffers that V8 takes from the kernel: that of WebAssembly, and of buffers
that can grow. Source: src/objects/backing-store.cc of V8 10 to 13
(TryAllocateAndPartiallyCommitMemory)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.formatting import format_count, shorten, size
from findleaks.runtimes.finding import Finding
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.runtimes.v8.object_graph import V8Graph

MAPPED = "memory of ArrayBuffers"
"""The name of this part of the memory."""
LEAST = 8 << 20  # bytes that are reported
_REMEDY = "drop each WebAssembly.Memory, instance and buffer that is no longer needed: a reference to one of them keeps the whole memory"


def find_mapped_buffers(graph: Optional[V8Graph], mapped: Sequence[Range]) -> Iterator[Finding]:
    """Yield a finding if the memory of ArrayBuffers in these mappings is large. `mapped`: the
    memory of each ArrayBuffer."""
    total = sum(end - start for start, end in mapped)
    if total < LEAST:
        return
    # `find` needs no objects.
    from findleaks.runtimes.v8.buffer_memory import find_buffer

    example = find_buffer(graph, [one.start for one in mapped]) if graph is not None else None
    path = graph.describe_example(example) if graph is not None and example is not None else ""
    verb, it = ("has", "It") if len(mapped) == 1 else ("have", "One of them")
    title = f"{format_count(len(mapped), 'ArrayBuffer')} of Node, such as memory of WebAssembly, {verb} {size(total)} outside the heaps."
    cause = f"{it} is reached by {shorten(path, 400)}." if path else ""
    commands = (*((f"path {example:#x}",) if example is not None else ()), "runtime --only node")
    yield Finding("mapped-array-buffers", total, title, cause, (_REMEDY,), commands, {"bytes": total, "buffers": len(mapped)})
