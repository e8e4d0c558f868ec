"""Find names of thread-local variables of C and C++ by address. Variables of files that were loaded
after the start are in blocks to which the thread's DTV refers."""

from __future__ import annotations

from bisect import bisect_right
from typing import Optional

from findleaks.formatting import shorten
from findleaks.libc.thread_local import Block, thread_local_blocks
from findleaks.session import Session
from findleaks.target.base import Symbol
from findleaks.value_classes import NamedTuple


class ThreadLocal(NamedTuple):
    """A variable, and the offset of the address from its start. `thread`: tid."""

    name: str
    offset: int
    module: str
    thread: int

    @property
    def label(self) -> str:
        """The variable and the offset: "g_cache+0x8"."""
        return f"{self.name}+{self.offset:#x}" if self.offset else self.name


def find_thread_local(session: Session, address: int) -> Optional[ThreadLocal]:
    """Return the thread-local variable at an address; None if no symbol names it."""
    starts, blocks, symbols = session.once(find_thread_local, lambda: _read_storage(session))
    at = bisect_right(starts, address) - 1
    if at < 0 or address >= blocks[at].range.end:
        return None
    block = blocks[at]
    if block.module.path not in symbols:
        symbols[block.module.path] = list(session.target.thread_locals(block.module))
    offset = address - block.range.start
    found = next((one for one in symbols[block.module.path] if one.address <= offset < one.address + one.size), None)
    if found is None:
        return None
    return ThreadLocal(shorten(found.name), offset - found.address, shorten(block.module.path.rsplit("/", 1)[-1]), block.thread)


class _Storage(NamedTuple):
    """The thread-local storage of all threads, ascending by address, and the symbols of each
    file."""

    starts: list[int]
    blocks: list[Block]
    symbols: dict[str, list[Symbol]]


def _read_storage(session: Session) -> _Storage:
    blocks = thread_local_blocks(session.target)
    return _Storage([block.range.start for block in blocks], blocks, {})
