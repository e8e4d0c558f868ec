"""The contents of anonymous mappings: text, zeros, or the stack of a coroutine."""

from __future__ import annotations

from findleaks.allocators.mapped import TYPE
from findleaks.errors import UnreadableMemory
from findleaks.formatting import shortened
from findleaks.session import Session
from findleaks.target.arch import I386, X86_64
from findleaks.target.ranges import region_at

TOP = 2048  # bytes at the upper end in which the outermost frames of a stack are looked for
HINT = 64  # bytes at the lower end in which a readable string is looked for
_LIBRARIES = ("libc.so", "libc-", "ld-", "libpthread", "libboost_context")


def name_mapping(session: Session, start: int) -> str:
    """Return the type of the leaked mapping that starts here: "anonymous mapping", or "anonymous
    mapping with a stack of serve"."""
    index = session.directory.blocks.find(start)
    name = find_stack_function(session, start, start + session.directory.blocks.size(index))
    return f"{TYPE} with a stack of {name}" if name else TYPE


def find_stack_function(session: Session, start: int, end: int) -> str:
    """Return the outermost function on the stack in this mapping; "" if its upper end
    does not look like a stack, or the function is unknown.

    Frames contain return addresses, and often saved frame or stack pointers into the stack
    itself."""
    target = session.target
    try:
        words = target.arch.words(bytearray(target.read(max(end - TOP, start), min(TOP, end - start))))
    except UnreadableMemory:
        return ""
    has_frames = any(start <= value < end for value in words)
    modules = target.modules()
    for value in reversed(words):
        region = region_at(target.regions(), value)
        module = region_at(modules, value) if region is not None and region.executable else None
        if module is None or module.path.rsplit("/", 1)[-1].startswith(_LIBRARIES):
            continue
        if not (has_frames or _is_return_address(session, value)):
            continue
        symbol = target.symbolize(value - 1)
        if symbol is not None:
            return shortened(symbol.name, 100)
    return ""


def _is_return_address(session: Session, address: int) -> bool:
    """Whether a call ends at this address: on x86, E8 with 32 bits, or FF /2 of two to seven
    bytes."""
    if session.target.arch.name not in (X86_64.name, I386.name):
        return False
    try:
        code = session.target.read(address - 7, 7)
    except UnreadableMemory:
        return False
    return code[2] == 0xE8 or any(code[at] == 0xFF and code[at + 1] >> 3 & 7 == 2 for at in range(6))


def describe_beginning(session: Session, start: int, end: int) -> str:
    """Return what the first bytes of a mapping look like, as Types.hint does; "" for nothing
    readable."""
    try:
        return session.types.hint(session.target.read(start, min(HINT, end - start)))
    except UnreadableMemory:
        return ""
