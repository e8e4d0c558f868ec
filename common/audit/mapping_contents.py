"""Recognise the stacks of coroutines in anonymous mappings."""

from __future__ import annotations

from findleaks.allocators.mapped import TYPE
from findleaks.errors import UnreadableMemory
from findleaks.formatting import shorten
from findleaks.session import Session
from findleaks.target.ranges import region_at
from findleaks.unwind.frames import STACK_TOP, is_return_address

STACK, HUGE_PAGES = f"{TYPE} with a stack of", f"{TYPE} with huge pages"
_LIBRARIES = ("libc.so", "libc-", "ld-", "libpthread", "libboost_context")


def name_mapping(session: Session, start: int) -> str:
    """Return the type of the leaked mapping that starts here: "anonymous mapping", "anonymous
    mapping with a stack of serve", or "anonymous mapping with huge pages"."""
    index = session.directory.blocks.find(start)
    name = find_stack_function(session, start, start + session.directory.blocks.size(index))
    region = region_at(session.target.regions(), start)
    if name:
        return f"{STACK} {name}"
    return HUGE_PAGES if region is not None and region.has_huge_pages else TYPE


def find_stack_function(session: Session, start: int, end: int, in_block: bool = False) -> str:
    """Return the outermost function on the stack in this mapping; "" if the upper end of the
    mapping does not look like a stack, or the function is unknown. `in_block`: the memory is a
    block of malloc. Because such a block usually contains other data, more evidence is needed.

    Frames contain return addresses, and often saved frame or stack pointers into the stack
    itself."""
    target = session.target
    try:
        words = target.arch.words(bytearray(target.read(max(end - STACK_TOP, start), min(STACK_TOP, end - start))))
    except UnreadableMemory:
        return ""
    has_frames = any(start <= value < end for value in words)
    if in_block and not has_frames:
        return ""
    modules = target.modules()
    for value in reversed(words):
        region = region_at(target.regions(), value)
        module = region_at(modules, value) if region is not None and region.executable else None
        if module is None or module.path.rsplit("/", 1)[-1].startswith(_LIBRARIES):
            continue
        if not ((has_frames and not in_block) or is_return_address(target, value)):
            continue
        symbol = target.symbolize(value - 1)
        if symbol is not None:
            return shorten(symbol.name, 100)
    return ""
