"""Read V8's global handles (v8::Persistent, v8::Global, Node-API's references), which are nodes in
separate blocks.

They belong to no scope. Offsets come from V8's code, as in layout.py. `GlobalHandles::RecordStats`
(every version; src/global-handles.cc, later src/handles/) walks the list of blocks in use. Loads
from its first argument lead to the first block. For each node it masks and compares the byte at the
state's offset. A load near the block's end gives the next block.

`GlobalizeReference` loads the GlobalHandles from the isolate just before it calls
`GlobalHandles::Create`. A node's state is 0 if free, 1 if strong, 2 if weak, and larger while the
object is being freed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.disasm.functions import resolve_stub
from findleaks.disasm.instruction import NONE, Instruction, is_call_or_jump
from findleaks.disasm.registers import RDI, RIP
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.runtimes.v8.layout import FAR, code_of
from findleaks.target.base import Target

STATS = ("_ZN2v88internal13GlobalHandles11RecordStatsEPNS0_9HeapStatsE",)
MAKERS = (
    "_ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEm",
    "_ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEPm",
    "_ZN2v82V818GlobalizeReferenceEPNS_8internal7IsolateEPm",
    "_ZN2v82V818GlobalizeReferenceEPNS_8internal7IsolateEPPNS1_6ObjectE",
    "_ZN2v82V818GlobalizeReferenceEPPNS_8internal6ObjectE",
)
CREATE = (
    "_ZN2v88internal13GlobalHandles6CreateEm",
    "_ZN2v88internal13GlobalHandles6CreateENS0_6TaggedINS0_6ObjectEEE",
    "_ZN2v88internal13GlobalHandles6CreateENS0_6ObjectE",
    "_ZN2v88internal13GlobalHandles6CreateEPNS0_6ObjectE",
)
LARGEST = 1 << 16  # maximum size of a block of nodes in bytes (V8: 256 nodes of 24 or 32 bytes)
MAX_BLOCKS = 1 << 22  # blocks in a plausible list
STRONG, WEAK = 1, 2  # states of a node


@dataclass(frozen=True)
class Nodes:
    """Offsets of global handles.

    `holder` is the offset of the GlobalHandles in the isolate; `first` leads from there to the
    first block. In a block, `stride` is the bytes of a node, `state` the offset of its state, a
    byte of which the bits `mask` are valid, and `next` the offset of the next block's address."""

    holder: int
    first: tuple[int, ...]
    stride: int
    state: int
    mask: int
    next: int

    @property
    def count(self) -> int:
        """Number of nodes of a block; `next` is in the few words after them."""
        return self.next // self.stride


@dataclass(frozen=True)
class Globals:
    """An isolate's global handles in use, the number of weak ones, its blocks in use and their
    bytes. `problem` is "" or one line."""

    handles: int
    weak: int
    blocks: int
    bytes: int
    problem: str = ""


def derive(target: Target) -> Optional[Nodes]:
    """Return the offsets of the target's V8; None if its code is not understood. Raises
    CapstoneMissing."""
    holder = _holder(target)
    code = code_of(target, STATS)
    chain, register, rest = _to_first_block(code)
    state = next((at for at, one in enumerate(rest) if one.name == "movzx" and register in (one.base, one.scaled)), None)
    if not holder or not chain or state is None:
        return None
    offset, mask = rest[state].displacement, _state_mask(rest[state + 1 :])
    stride, following = _stride(code), _next_block(rest, register)
    if offset is None or not mask or not 16 <= stride <= 64 or not offset < stride or not 16 * stride <= following < LARGEST:
        return None
    return Nodes(holder, chain, stride, offset, mask, following)


def _to_first_block(code: Sequence[Instruction]) -> tuple[tuple[int, ...], int, Sequence[Instruction]]:
    """Return the offsets from the first argument to the first block, the block's register, and the
    code after these loads."""
    chain: list[int] = []
    register, end = RDI, 0
    for at, one in enumerate(code):
        if one.name == "movzx" and register in (one.base, one.scaled):
            break
        offset = one.displacement or 0
        if one.loads and one.wide and one.scaled < 0 and 0 < offset < FAR and one.base == register and len(chain) < 3:
            chain.append(offset)
            register, end = one.destination, at + 1
    return tuple(chain), register, code[end:]


def _state_mask(code: Sequence[Instruction]) -> int:
    """Return the mask of a node's state byte, which the code applies before it compares the
    byte."""
    masks = ((one.immediate or 0) & 0xFF for one in code if one.name == "and")
    return next((mask for mask in masks if mask), 0)


def _stride(code: Sequence[Instruction]) -> int:
    """Return the bytes of a node: the code shifts its index by their logarithm, or adds them to its
    address."""
    for one in code:
        if one.immediate is not None and one.displacement is None:
            if one.name == "shl":
                return 1 << (one.immediate & 31)
            if one.name == "add" and 16 <= one.immediate <= 64:
                return one.immediate
    return 0


def _next_block(code: Sequence[Instruction], register: int) -> int:
    """Return the offset of the next block's address, which replaces the block's address in the
    register."""
    found = [one.displacement or 0 for one in code if one.loads and one.base == register == one.destination]
    return next((offset for offset in reversed(found) if offset >= FAR), 0)


def _holder(target: Target) -> int:
    """Return the offset of the GlobalHandles in the isolate, which is loaded as first argument for
    the call of Create."""
    loaded = 0
    calls: dict[int, int] = {}
    for one in code_of(target, MAKERS):
        if one.loads and one.wide and one.destination == RDI and one.base not in (RIP, NONE) and one.displacement is not None:
            loaded = one.displacement
        elif is_call_or_jump(one) and one.target is not None and loaded >= FAR:
            calls[resolve_stub(target, one.target)] = loaded
    makers = (target.symbol(name) for name in CREATE) if calls else ()
    return next((calls[symbol.address] for symbol in makers if symbol is not None and symbol.address in calls), 0)


def read(target: Target, nodes: Nodes, isolate: int) -> Globals:
    """Return the global handles of an isolate. Raises Interrupted."""
    busy = _busy(nodes)
    blocks = handles = weak = 0
    problem = ""
    for _, data, why in _blocks(target, nodes, isolate):
        problem = problem or why
        states = data[nodes.state : nodes.count * nodes.stride : nodes.stride].translate(busy)
        blocks += bool(data)
        handles += len(states) - states.count(0)
        weak += states.count(WEAK)
    return Globals(handles, weak, blocks, blocks * nodes.count * nodes.stride, problem)


def strong_handles(target: Target, nodes: Nodes, isolate: int) -> tuple[array[int], array[int]]:
    """Return the addresses of the strong global handles of an isolate, and their values, which are
    tagged addresses (both "Q"). The value is the first word of a node. Raises Interrupted."""
    places, values = array("Q"), array("Q")
    busy, step = _busy(nodes), nodes.stride
    for block, data, _ in _blocks(target, nodes, isolate):
        states = data[nodes.state : nodes.count * step : step].translate(busy)
        for at, state in enumerate(states):
            if state == STRONG:
                places.append(block + at * step)
                values.append(int.from_bytes(data[at * step : at * step + target.arch.word], target.arch.byteorder))
    return places, values


def _busy(nodes: Nodes) -> bytes:
    """Return a table that maps a byte with a node's state to the state."""
    return bytes(state & nodes.mask for state in range(256))


def _blocks(target: Target, nodes: Nodes, isolate: int) -> Iterator[tuple[int, bytes, str]]:
    """Yield address and contents of each block in use of an isolate, and "". If the list is
    damaged, the last address is 0, without contents, and the text says what is wrong."""
    size = nodes.next + target.arch.word
    seen: set[int] = set()
    block, why = isolate, ""
    try:
        for offset in (nodes.holder, *nodes.first):
            block = target.word((block + offset) & target.arch.mask)
        while block:
            if target.is_interrupted():
                raise Interrupted
            if block in seen or block % target.arch.word or len(seen) == MAX_BLOCKS:
                why = "is in the list twice" if block in seen else "is misaligned" if block % target.arch.word else "has no end"
                break
            data = target.read(block, size)
            seen.add(block)
            yield block, data, ""
            block = int.from_bytes(data[nodes.next : nodes.next + target.arch.word], target.arch.byteorder)
    except UnreadableMemory:
        why = "cannot be read"
    if why:
        where = f"global handles of isolate {isolate:#x}: block {len(seen) + 1:,}, {block:#x}"
        yield 0, b"", f"{where}, {why}: only those before it are counted"
