"""Recognise the stacks of coroutines in anonymous mappings."""

from __future__ import annotations

from findleaks.allocators.mapped import TYPE
from findleaks.errors import UnreadableMemory
from findleaks.formatting import shorten
from findleaks.session import Session
from findleaks.session.stack_search import find_stack_frames, supports_stack_search
from findleaks.target.base import Target
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

    See stack_search.py about x86. On other machines, only the upper end of the memory is searched
    for a code address. Their frames contain return addresses, and often saved frame or stack
    pointers into the stack itself."""
    if supports_stack_search(session.target):
        return next(filter(None, (_name_function(session.target, one) for one in find_stack_frames(session, start, end) or ())), "")
    target = session.target
    try:
        words = target.arch.words(bytearray(target.read(max(end - STACK_TOP, start), min(STACK_TOP, end - start))))
    except UnreadableMemory:
        return ""
    has_frames = any(start <= value < end for value in words)
    if in_block and not has_frames:
        return ""
    for value in reversed(words):
        region = region_at(target.regions(), value)
        if region is None or not region.executable or not ((has_frames and not in_block) or is_return_address(target, value)):
            continue
        name = _name_function(target, value)
        if name:
            return name
    return ""


def _name_function(target: Target, returns: int) -> str:
    """Return the function that contains the call before a return address; "" for functions of libc
    that start threads and coroutines, and if the function is unknown."""
    module = region_at(target.modules(), returns)
    if module is None or module.path.rsplit("/", 1)[-1].startswith(_LIBRARIES):
        return ""
    symbol = target.symbolize(returns - 1)
    return shorten(symbol.name, 100) if symbol is not None else ""
