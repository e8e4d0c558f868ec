"""Describe the origin of the value that made a process crash: a member of a block, a variable, an
argument, or the result of a function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.address_info import STATES, BlockInfo, Describer
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.disasm.registers import ARGUMENTS
from findleaks.engine.terms import State
from findleaks.formatting import number, shorten, with_article
from findleaks.session import Session
from findleaks.target.arch import AARCH64
from findleaks.target.base import Symbol
from findleaks.target.ranges import region_at
from findleaks.unwind.stacks import NamedFrame, without_parameters
from findleaks.value_classes import NamedTuple

WIDEST = 300  # characters that are shown of a place or a text
_LONGEST_TEXT = 64  # bytes before and after a word that are searched for text
_SHORTEST_TEXT = 4  # characters
# A function of glibc for processors with certain instructions: __strlen_evex,
# __memmove_avx_unaligned_erms
_VARIANT = re.compile(r"__(\w+?)_(sse|ssse|avx|evex|erms)\w*$")
_FREED = (STATES[State.FREE], STATES[State.CACHED])


class Place(NamedTuple):
    """What is at an address. `phrase`: the description that `whatis` prints. `block`: the block
    that contains the address, or None. `is_freed`: whether this block is free. `sort`:
    "thread-local" for a thread-local variable; else see AddressDescription."""

    address: int
    phrase: str
    block: Optional[BlockInfo]
    member: str
    is_freed: bool
    sort: str


class PointerSource(NamedTuple):
    """Where a value comes from. `sort`: see Origin. `place`: the place from which it was loaded.
    `local_of`: the function that has a local variable at this place, or "". `function`: the
    function that returned the value, or whose argument it is. `register`: the register in which the
    argument was passed. `offset`: the value minus the value that was loaded, returned or passed.
    `is_older`: see Origin."""

    sort: str
    place: Optional[Place] = None
    local_of: str = ""
    function: str = ""
    register: str = ""
    offset: int = 0
    is_older: bool = False


def describe_place(session: Session, address: int) -> Place:
    """Return what is at an address."""
    found = Describer(session).answer(address)
    is_freed = found.block is not None and found.block.state in _FREED
    return Place(address, found.phrase, found.block, found.member, is_freed, "thread-local" if found.is_thread_local else found.sort)


def describe_block(block: BlockInfo) -> str:
    """Return "a free 48-byte block, Order at 0x55d0c2a1b2a0"."""
    return f"{with_article(shorten(block.phrase(), WIDEST))} at {block.address:#x}"


def describe_in_block(place: Place, block: BlockInfo) -> str:
    """Return "Order.name, at offset 8 of a free 48-byte block, Order at 0x55d0c2a1b2a0"."""
    member = f"{shorten(place.member)}, at " if place.member else ""
    return f"{member}offset {number(place.address - block.address)} of {describe_block(block)}"


def is_in_hint(text: str, place: Place) -> bool:
    """Whether the description of the place's block contains the beginning of the text."""
    return place.block is not None and text.startswith(place.block.hint.strip('"…') or "\n")


def block_facts(block: Optional[BlockInfo]) -> Optional[dict[str, object]]:
    """Return the facts about a block for the JSON."""
    return {"address": hex(block.address), "size": block.size, "state": block.state, "type": block.type or None} if block else None


def describe_source(session: Session, tracer: Tracer, frames: Sequence[NamedFrame], origin: Optional[Origin]) -> Optional[PointerSource]:
    """Describe an origin. Return None for a constant, and for the result of a function without a
    name. `frames`: the names of the tracer's frames."""
    if origin is None:
        return None
    if origin.sort == "memory":
        inner, outer = tracer.frames[origin.level].sp - session.target.arch.red_zone, tracer.frames[origin.level + 1 : origin.level + 2]
        is_local = bool(outer) and inner <= origin.address < outer[0].sp
        local_of = frames[origin.level].short_name() if is_local else ""
        return PointerSource("memory", describe_place(session, origin.address), local_of, offset=origin.offset, is_older=origin.is_older)
    if origin.sort == "result":
        symbol = session.target.symbolize(origin.address) if origin.address else None
        name = _public_name(session, symbol) if symbol is not None else ""
        return PointerSource("result", function=name, offset=origin.offset) if name else None
    if origin.sort == "argument":
        name = frames[origin.level].short_name()
        name = "free" if name == "cfree" else name  # an old name of the same function
        variant = _VARIANT.match(name)
        name = variant[1] if variant is not None else name
        register = f"x{origin.number - 1}" if session.target.arch.name == AARCH64.name else ARGUMENTS[origin.number - 1]
        return PointerSource("argument", function=name, register=register, offset=origin.offset)
    return None


def _public_name(session: Session, symbol: Symbol) -> str:
    """Return the exported name of a function, without parameters. The symbol may be glibc's own
    name for it: __libc_calloc for calloc, __mmap for mmap."""
    name = without_parameters(symbol.name)
    public = name.removeprefix("__libc_").lstrip("_")
    exported = session.target.symbol(public) if public != name else None
    return public if exported is not None and exported.address == symbol.address else name.removeprefix("__libc_")


def text_of_value(value: int) -> str:
    """Return the eight bytes of a value as text, for example "GET /ind", without zero bytes at the
    end; "" if they are not text."""
    data = (value & ((1 << 64) - 1)).to_bytes(8, "little").rstrip(b"\0")
    return data.decode("latin-1") if len(data) >= _SHORTEST_TEXT and all(map(_is_text, data)) else ""


def text_around(session: Session, address: int) -> str:
    """Return the text around the word at an address; "" if the word is not text. Text outside the
    block is not included, nor are words that are mapped addresses: their bytes are text only by
    chance."""
    memory, blocks = Memory(session.target), session.directory.blocks
    word = memory.word(address)
    if word is None or not text_of_value(word):
        return ""
    low, high = address - _LONGEST_TEXT, address + memory.size + _LONGEST_TEXT
    index = blocks.find(address)
    if index >= 0:
        low, high = max(low, blocks.address(index)), min(high, blocks.address(index) + blocks.size(index))
    words = [one for one in range(address - _LONGEST_TEXT, high, memory.size) if _is_pointer(session, memory, one)]
    low = max([low, *(one + memory.size for one in words if one < address)])
    high = min([high, *(one for one in words if one > address)])
    before, after = memory.read(low, address - low), memory.read(address, high - address)
    start = next((at for at in range(len(before), 0, -1) if not _is_text(before[at - 1])), 0)
    end = next((at for at, one in enumerate(after) if not _is_text(one)), len(after))
    return (before[start:] + after[:end]).decode("latin-1")


def _is_pointer(session: Session, memory: Memory, address: int) -> bool:
    word = memory.word(address)
    return word is not None and region_at(session.target.regions(), word) is not None


def _is_text(byte: int) -> bool:
    return 0x20 <= byte < 0x7F
