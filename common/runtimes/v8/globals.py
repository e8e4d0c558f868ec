"""Global handles: what v8::Persistent, v8::Global and Node-API's references hold. They lie in nodes of blocks, apart from any scope.

Offsets come from V8's code, as in layout.py. `GlobalHandles::RecordStats` (every version; src/global-handles.cc, later src/handles/) walks
the list of blocks in use: loads from its first argument lead to the first block, a byte at the state's offset is masked and compared for
each node, and a load from the block's far end gives the next. `GlobalizeReference` loads the GlobalHandles from the isolate just before it
calls `GlobalHandles::Create`. A node's state is 0 where it is free, 1 where it is strong, 2 where it is weak, more while it is dying.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.runtimes.v8.decode import CALL, JUMP, RIP
from findleaks.runtimes.v8.layout import FAR, code_of, through
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
ARGUMENT = 7
"""The register of a function's first argument, rdi (System V ABI, AMD64 supplement 1.0, figure 3.36)."""

LARGEST = 1 << 16
"""Bytes of a block of nodes, at most (V8: 256 nodes of 24 or 32)."""

MOST_BLOCKS = 1 << 22
WEAK = 2


@dataclass(frozen=True)
class Nodes:
    """`holder` is the offset of the GlobalHandles in the isolate, `first` leads from there to the first block. Of each block: `stride`
    bytes a node, the state's byte at `state` under `mask`, and the address of the next block at `next`."""

    holder: int
    first: tuple[int, ...]
    stride: int
    state: int
    mask: int
    next: int

    @property
    def count(self) -> int:
        """Nodes of a block: behind them stand few words, `next` among them."""
        return self.next // self.stride


@dataclass(frozen=True)
class Globals:
    """Global handles of an isolate that are in use, how many of them are weak, and the blocks in use. `problem` is "" or one line."""

    handles: int
    weak: int
    blocks: int
    bytes: int
    problem: str = ""


def derive(target: Target) -> Optional[Nodes]:
    """None where this V8's code could not be understood."""
    holder = _holder(target)
    code = code_of(target, STATS)
    if not holder or not code:
        return None
    chain: list[int] = []
    register, stride, following = ARGUMENT, 0, 0
    state: Optional[int] = None
    mask = 0
    for one in code:
        near = one.loads and one.wide and one.scaled < 0 and one.displacement is not None and 0 < one.displacement < FAR
        if near and state is None and one.base == register and len(chain) < 3 and one.displacement is not None:
            chain.append(one.displacement)
            register = one.reg
        elif one.opcode == 0x0FB6 and one.displacement is not None and state is None and register in (one.base, one.scaled):
            state = one.displacement
        elif one.opcode == 0x83 and one.reg & 7 == 4 and state is not None and not mask:
            mask = (one.immediate or 0) & 0xFF
        elif one.opcode == 0xC1 and one.reg & 7 == 4 and not stride and one.immediate is not None:
            stride = 1 << (one.immediate & 31)
        elif one.opcode == 0x83 and one.reg & 7 == 0 and one.displacement is None and not stride and (one.immediate or 0) >= 16:
            stride = one.immediate or 0
        elif one.loads and one.base == register == one.reg and one.displacement is not None and one.displacement >= FAR:
            following = one.displacement
    if not chain or state is None or not mask or not 16 <= stride <= 64 or not state < stride or not 16 * stride <= following < LARGEST:
        return None
    return Nodes(holder, tuple(chain), stride, state, mask, following)


def _holder(target: Target) -> int:
    """Where the isolate has its GlobalHandles: what was loaded as first argument of the call to Create."""
    loaded = 0
    calls: dict[int, int] = {}
    for one in code_of(target, MAKERS) or ():
        if one.loads and one.wide and one.reg == ARGUMENT and one.base not in (RIP, -1) and one.displacement is not None:
            loaded = one.displacement
        elif one.opcode in (CALL, JUMP) and one.target is not None and loaded >= FAR:
            calls[through(target, one.target)] = loaded
    makers = (target.symbol(name) for name in CREATE) if calls else ()
    return next((calls[symbol.address] for symbol in makers if symbol is not None and symbol.address in calls), 0)


def read(target: Target, nodes: Nodes, isolate: int) -> Globals:
    """The global handles of an isolate. Interrupted when the user asked to stop."""
    size = nodes.next + target.arch.word
    busy = bytes(state & nodes.mask for state in range(256))
    seen: set[int] = set()
    handles = weak = 0
    problem = ""
    block, name = isolate, f"global handles of isolate {isolate:#x}"
    try:
        for offset in (nodes.holder, *nodes.first):
            block = target.word((block + offset) & target.arch.mask)
        while block:
            if target.interrupted():
                raise Interrupted
            if block in seen or block % target.arch.word or len(seen) == MOST_BLOCKS:
                why = "comes twice in the list" if block in seen else "is misaligned" if block % target.arch.word else "has no end"
                problem = f"{name}: block {len(seen) + 1:,}, {block:#x}, {why}: those before it are counted"
                break
            data = target.read(block, size)
            seen.add(block)
            states = data[nodes.state : nodes.count * nodes.stride : nodes.stride].translate(busy)
            handles += len(states) - states.count(0)
            weak += states.count(WEAK)
            block = int.from_bytes(data[nodes.next : nodes.next + target.arch.word], target.arch.byteorder)
    except UnreadableMemory:
        problem = f"{name}: block {len(seen) + 1:,}, {block:#x}, cannot be read: those before it are counted"
    return Globals(handles, weak, len(seen), len(seen) * nodes.count * nodes.stride, problem)


__all__ = ["Globals", "Nodes", "derive", "read"]
