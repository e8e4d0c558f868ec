"""Find the monitors of JDK 8 and 11 that no thread uses.

When several threads contend for the lock of an object, or a thread waits, the JVM creates an
ObjectMonitor. In these versions, it contains the address of the object. Monitors are in blocks. The
first monitor of a block contains only the address of the next block.

At each safepoint, and so before each collection, the JVM releases the monitors that no thread owns,
enters or waits for. Such a monitor keeps no object alive. It may exist for a second or longer: the
JVM also creates one for each class loader that loads a class, and may run for a long time without
safepoints. Later versions refer to the object by a weak handle.

Sources: OpenJDK 8 and 11, src/share/vm/runtime and src/hotspot/share/runtime: synchronizer.cpp
(ObjectSynchronizer::omAlloc, deflate_monitor, oops_do), objectMonitor.hpp (ObjectMonitor::is_busy:
a thread that enters is counted in `_count`)."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.errors import Interrupted
from findleaks.runtimes.jvm.tables import Tables

_MOST_BLOCKS = 1 << 14  # blocks that are read
_CHECKED = 1 << 6  # blocks between two checks for Ctrl-C
_MONITORS = 128  # in a block; ObjectSynchronizer::_BLOCKSIZE
_MOST_SIZE = 1 << 10  # bytes of a monitor
_INT = "jint"  # the type of a count of 32 bits; others have the size of a word


def idle_monitors(tables: Tables) -> Iterator[int]:
    """Yield the addresses of the words with which monitors that no thread uses refer to their
    objects. Raises Interrupted."""
    memory = tables.memory
    size = tables.sizes.get("PaddedObjectMonitor") or tables.sizes.get("ObjectMonitor") or 0
    found = [tables.fields.get(("ObjectMonitor", name)) for name in ("_object", "FreeNext", "_owner", "_count", "_waiters")]
    fields = [(one.offset, 4 if tables.text(one.type_name) == _INT else memory.size) for one in found if one is not None]
    if len(fields) < len(found) or not max(map(sum, fields)) <= size <= _MOST_SIZE:
        return
    (place, _), (link, _), *users = fields
    block = tables.word("ObjectSynchronizer", "gBlockList")
    seen: set[int] = set()
    while block and block not in seen and len(seen) < _MOST_BLOCKS:
        if len(seen) % _CHECKED == _CHECKED - 1 and tables.target.is_interrupted():
            raise Interrupted
        seen.add(block)
        data = memory.read(block, _MONITORS * size)
        for at in range(size, len(data), size):
            is_used = any(any(data[at + offset : at + offset + width]) for offset, width in users)
            if not is_used and any(data[at + place : at + place + memory.size]):
                yield block + at + place
        block = int.from_bytes(data[link : link + memory.size], memory.arch.byteorder)
