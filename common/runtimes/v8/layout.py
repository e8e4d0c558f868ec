"""Derive where V8 keeps its handles from the operands of its code; no version needs to be known.

The functions (names of V8 3.14 and later; deps/v8/src/handles.cc, src/api.cc of Node 0.10 to 24):

- `HandleScope::NumberOfHandles` loads the HandleScopeImplementer from the isolate (first far
  offset), and from it the number and the vector of blocks (near offsets). It loads the scope data's
  `next` from the isolate (second far offset), and multiplies by the handles of a block.
- `HandleScope`'s constructor adds 1 to the level.
- `Isolate::GetCurrent` shows how a thread finds its isolate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import NONE, Instruction, is_call_or_jump
from findleaks.disasm.registers import RIP
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Region, Symbol, Target
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces, region_at
from findleaks.value_classes import dataclass

ARCHITECTURES = (X86_64.name, AARCH64.name)

FAR = 0x100  # offsets from here on are in the isolate, smaller ones in the implementer or a vector
LONGEST = 512  # maximum number of bytes read of a function

COUNT = (
    "_ZN2v88internal11HandleScope15NumberOfHandlesEPNS0_7IsolateE",
    "_ZN2v88internal11HandleScope15NumberOfHandlesEv",
    "_ZN2v811HandleScope15NumberOfHandlesEPNS_7IsolateE",
    "_ZN2v811HandleScope15NumberOfHandlesEv",
)
ENTER = ("_ZN2v811HandleScope10InitializeEPNS_7IsolateE", "_ZN2v811HandleScopeC1Ev", "_ZN2v811HandleScopeC2Ev")
OPENERS = (  # constructors of scopes, newer versions first
    (ENTER[0],),
    ("_ZN2v811HandleScopeC1EPNS_7IsolateE", "_ZN2v811HandleScopeC1Ev"),
    ("_ZN2v811HandleScopeC2EPNS_7IsolateE", "_ZN2v811HandleScopeC2Ev"),
    ("_ZN2v824EscapableHandleScopeBaseC2EPNS_7IsolateE", "_ZN2v820EscapableHandleScopeC1EPNS_7IsolateE"),
)

SEAL = ("_ZN2v815SealHandleScopeC1EPNS_7IsolateE", "_ZN2v815SealHandleScopeC2EPNS_7IsolateE")

CURRENT = (
    "_ZN2v87Isolate13TryGetCurrentEv",
    "_ZN2v87Isolate10GetCurrentEv",
    "_ZN2v88internal7Isolate7CurrentEv",
)


SIGN = b"Cannot create a handle without a HandleScope"
"""Message of HandleScope::Extend in every V8 (src/handles.cc, later src/handles/handles.cc): it
shows that a file contains V8."""

OTHER = "unexpected code: this version of V8 is unknown; report it (node -p process.versions.v8)"


@dataclass(frozen=True)
class Layout:
    """Layout of V8's handles.

    Offsets in bytes: `implementer`, `next`, `limit`, `level` in the isolate, `blocks`, `count` in
    the implementer. A thread's isolate is in thread-specific data under the key at address `key`,
    or in thread-local storage at offset `tls` from the thread pointer. The unused one of these two
    is 0."""

    implementer: int
    next: int
    level: int
    blocks: int
    count: int
    count_size: int
    handles: int  # of a block
    key: int
    tls: int
    counts: bool = True  # the level counts all open scopes; in V8 4, a SealHandleScope sets it to 0

    @property
    def limit(self) -> int:
        return self.next + 8


class Underivable(Exception):
    """This V8's code is not understood; the message says what is missing."""


def derive(target: Target) -> Layout:
    """Return the layout of the target's V8. Raises Underivable."""
    if target.arch.name not in ARCHITECTURES:
        raise Underivable(f"V8's handles can be read on {' and '.join(ARCHITECTURES)} only, not on {target.arch.name}")
    symbol = first(target, COUNT)
    if symbol is None:
        raise Underivable(_absent(target))
    try:
        return _derive_layout(target, symbol)
    except CapstoneMissing as error:
        raise Underivable(str(error)) from None


def _derive_layout(target: Target, counter: Symbol) -> Layout:
    """Return the layout; `counter` is NumberOfHandles."""
    fields = _count_fields(_code(target, counter))
    if fields is None:
        raise Underivable(f"v8::HandleScope::NumberOfHandles has {OTHER}")
    implementer, following, blocks, count, size, handles = fields
    level = _level(code_of(target, ENTER), following)
    key, tls = _current(target)
    if not key and not tls:
        raise Underivable(f"v8::Isolate::GetCurrent has {OTHER}")
    if key and target.arch.name == AARCH64.name:
        raise Underivable("isolates cannot be found on AArch64 up to Node 18, where V8 keeps them in thread-specific data")
    resets = (one.name == "mov" and one.immediate is not None and one.displacement == level for one in code_of(target, SEAL))
    return Layout(implementer, following, level, blocks, count, size, handles, key, tls, not any(resets))


def _absent(target: Target) -> str:
    """Return why NumberOfHandles has no symbol: V8 is absent, or stripped. Raises Interrupted."""
    for region in target.regions():
        module = region_at(target.modules(), region.start) if region.readable and not region.writable else None
        if module is not None and _has(target, region, SIGN):
            files = module.build_id and f": install them as /usr/lib/debug/.build-id/{module.build_id[:2]}/{module.build_id[2:]}.debug"
            name = module.path.rsplit("/", 1)[-1]
            return f"v8::HandleScope::NumberOfHandles has no symbol: {name} contains V8, but not its symbols{files}"
    return "no readable loaded file contains V8"


def _has(target: Target, region: Region, text: bytes) -> bool:
    tail = b""
    for piece in interruptible(target, nonzero_pieces(target, region.start, region.end)):
        data = tail + bytes(piece.data)
        if text in data:
            return True
        tail = data[-len(text) :]
    return False


def code_of(target: Target, names: Iterable[str]) -> list[Instruction]:
    """Return the code of the first of these functions that exists; [] if none does."""
    symbol = first(target, names)
    return _code(target, symbol) if symbol is not None else []


def first(target: Target, names: Iterable[str]) -> Optional[Symbol]:
    """Return the first of these symbols that exists. A missing name is the slowest: all string
    tables are searched."""
    return next((symbol for symbol in map(target.symbol, names) if symbol is not None), None)


def _code(target: Target, symbol: Symbol) -> list[Instruction]:
    return list(instructions_at(target, symbol.address, min(symbol.size or LONGEST, LONGEST)))


def _count_fields(code: Sequence[Instruction]) -> Optional[tuple[int, int, int, int, int, int]]:
    """Return (implementer, next, blocks, count, size of count, handles of a block); None if the
    code differs."""
    far: list[int] = []
    near: list[tuple[int, int]] = []  # (offset, size) of loads from the implementer
    holder = NONE
    handles = 0
    for one in code:
        if one.name == "imul" and one.immediate is not None:
            handles = one.immediate
        if not one.loads or one.base in (RIP, NONE) or one.displacement is None:
            continue
        if one.displacement >= FAR:
            if not far:
                holder = one.destination
            far.append(one.displacement)
        elif one.base == holder and one.scaled < 0:
            near.append((one.displacement, 8 if one.wide else 4))
            if one.destination == holder:
                holder = NONE
    vectors = [offset for offset, size in near[1:] if size == 8]
    if len(far) < 2 or not near or not vectors or not 16 <= handles <= 1 << 20:
        return None
    return far[0], far[1], vectors[0], near[0][0], near[0][1], handles


def _level(code: Sequence[Instruction], following: int) -> int:
    """Return the offset to which the constructor adds 1 (addl $1, incl); if unknown, two words
    after `next`."""
    for one in code:
        adds = (one.name == "add" and one.immediate == 1) or one.name == "inc"
        if adds and one.displacement is not None and one.displacement >= following:
            return one.displacement
    return following + 16


def _current(target: Target) -> tuple[int, int]:
    """Return (address of the key, offset in thread-local storage). One of them is 0; both are 0 if
    unknown."""
    memory = Memory(target)
    for name in CURRENT:
        code = code_of(target, (name,))
        slots: dict[int, int] = {}
        for one in code:
            if one.loads and one.fs and one.base == NONE and one.displacement is not None:
                return 0, one.displacement
            if one.loads and one.fs and one.base in slots:
                return 0, decode_signed(memory.word(slots[one.base]) or 0, 64)
            if one.loads and not one.wide and one.base in slots and not one.displacement:
                # A library finds variables through the global offset table.
                return memory.word(slots[one.base]) or 0, 0
            if one.loads and one.base == RIP and one.displacement is not None:
                if one.wide:
                    slots[one.destination] = one.displacement
                elif any(map(is_call_or_jump, code)):
                    return one.displacement, 0
    return 0, 0
