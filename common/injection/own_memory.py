"""Find memory that findleaks has mapped into a process: code for patched functions, and tables.

The memory begins with a page that identifies it, in a private mapping of code without a file.
Addresses of blocks in its tables do not count as references."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from findleaks.target.base import Region
from findleaks.value_classes import NamedTuple

PAGE = 4096
MAGIC = b"findleaks stub\0\2"
HEAD = struct.Struct("<16s4Q")  # MAGIC, bytes of code, bytes in all, the table's address, patches
_MAX_BYTES = 1 << 28

Read = Callable[[int, int], bytes]


class OwnMemory(NamedTuple):
    """`size` bytes at `address`, of which the first `code` bytes are executable. `head`: the first
    page."""

    address: int
    code: int
    size: int
    patches: int
    head: bytes


def own_memory(regions: Iterable[Region], read: Read) -> Iterator[OwnMemory]:
    """Yield findleaks' memory. `read` must return fewer bytes, or b"", if memory is unreadable."""
    for region in regions:
        if not (region.executable and region.private and not region.writable and not region.name and region.size >= 2 * PAGE):
            continue
        head = read(region.start, PAGE)
        if len(head) < PAGE or not head.startswith(MAGIC):
            continue
        _, code, size, table, patches = HEAD.unpack_from(head)
        if table == region.start + code and code == region.size and code < size <= _MAX_BYTES:
            yield OwnMemory(region.start, code, size, patches, head)
