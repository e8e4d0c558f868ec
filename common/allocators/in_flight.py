"""Blocks in flight: those that threads stopped inside malloc or free refer to.

Between taking a block off a list (or from the program) and passing it on, an allocator refers to it
in its own form: by the address of its header, page or list. Such a block is neither lost nor free,
and the lists being changed need not be consistent. So the words of a thread inside an allocator are
passed to that allocator's reader, which knows these forms (Allocator.blocks_in_flight): its
registers, and its stack up to the first frame outside the allocator, or the first UNKNOWN_FRAMES
bytes where frames are unknown. Threads that a fatal signal ended are left out: what they were
reading may be what is corrupt."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.errors import Interrupted, UnreadableMemory
from findleaks.libc.thread_state import waits_in_kernel
from findleaks.target.base import Range, Target, Thread
from findleaks.unwind.frames import Unwinder
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator, Problem

UNKNOWN_FRAMES = 512
# Bytes of an allocator's frames searched at most. jemalloc flushes a cache through a stack array.
LARGEST_FRAMES = 64 << 10


# Bytes at most between a file's code and data: x86-64's largest page, to which linkers align.
GAP = 2 << 20

MAX_FRAMES = 32  # innermost frames searched for an allocator's

FIRST_LOOK = 4 << 10
"""Bytes from the stack pointer up that must hold a return address into an allocator; otherwise the
thread is not unwound."""

AROUND = 24 << 10
"""Bytes around malloc.o's exported functions in which a stripped libc may have its static ones.
malloc.o of glibc 2.36 has 20 KiB of code."""

ENTRIES = (
    *("malloc", "free", "calloc", "realloc", "memalign", "posix_memalign", "aligned_alloc", "_Znwm", "_ZdlPv"),
    *("PyObject_Malloc", "PyObject_Free"),
)
OWN_FILE = re.compile(r"malloc")  # files with an allocator and nothing else

LIBC = re.compile(r"^(libc[.-]|ld-musl)")  # libc's files, whose code is never the program's own

FUNCTION = re.compile(
    r"^(__libc_|__)?(malloc|c?free|calloc|realloc|reallocarray|memalign|posix_memalign|aligned_alloc|p?valloc)(_|$|@)|^_int_|malloc|memalign"
    r"|tcache|chunk|systrim|mtrim|^arena_|_arena$|_heap$|^_?mi_|^je_|^_?rjem|^operator (new|delete)|^(__)?(munmap|mremap)$"
    r"|^_?Py(Object|Mem)_(Malloc|Calloc|Realloc|Free|Raw)|pymalloc"
)
"""An allocator's functions. Some versions of free jump to munmap at their end, without a frame."""


class Inside(NamedTuple):
    """A thread inside an allocator. `words`, ascending: its registers, frames there, and addresses
    that the allocator derives from them. `unwound`: whether frames are known. `sure`: false where
    the allocator is part of the program and its functions have no names."""

    thread: int
    where: str  # "libc.so.6 (_int_free)"
    allocator: Allocator
    words: Sequence[int]
    unwound: bool
    sure: bool


def threads_inside(target: Target, allocators: Sequence[Allocator], blocks: Blocks) -> list[Inside]:
    """The threads stopped inside one of these allocators, but for those a fatal signal ended."""
    codes = [code for code in (_code(target, allocator) for allocator in allocators) if code is not None]
    unwinder: Optional[Unwinder] = None
    found = []
    for thread in target.threads() if codes else ():
        if target.interrupted():
            raise Interrupted
        stack = _stack(target, thread.sp, FIRST_LOOK)
        for code in codes:
            if thread.tid == target.crashed or not (thread.pc in code.module_range or any(code.low <= word < code.high for word in stack)):
                continue
            unwinder = unwinder or Unwinder(target)
            one = _inside(target, unwinder, thread, code)
            if one is not None:
                found.append(one._replace(words=sorted({*one.words, *code.allocator.blocks_in_flight(one.words, blocks)})))
                break
    return found


def held(inside: Sequence[Inside], blocks: Blocks) -> dict[int, Inside]:
    """{address: thread} of blocks in use that are in flight. Where frames are unknown, a word may
    be the program's, so one that points into the middle of a block does not count."""
    found: dict[int, Inside] = {}
    for one in inside:
        words = frozenset(one.words)
        for index in {index for index in blocks.find_all(one.words)[0] if index != NO_BLOCK}:
            address = blocks.address(index)
            if blocks.state(index) == State.IN_USE and (one.unwound or address in words):
                found.setdefault(address, one)
    return found


def half_changed(problem: Problem, inside: Sequence[Inside], blocks: Blocks) -> Optional[Inside]:
    """The thread whose words show that it was just changing what this problem is about, or None."""
    return next((one for one in inside if one.sure and one.allocator.changing(problem, one.words, blocks)), None)


class _Code(NamedTuple):
    """The code of an allocator. `module` is the file that contains it; a core may lack that file's
    headers. Its functions lie from `low` to `high`; `whole`: the file has no others."""

    allocator: Allocator
    module: Range
    low: int
    high: int
    whole: bool
    named: bool  # its functions have names; otherwise any function of the module may belong to it
    known: dict[int, bool]  # places already judged: thousands of threads wait at the same few

    @property
    def module_range(self) -> range:
        return range(self.module.start, self.module.end)


def _code(target: Target, allocator: Allocator) -> Optional[_Code]:
    module = _file(target, allocator.where)
    if module is None:
        return None
    if OWN_FILE.search(allocator.where):
        return _Code(allocator, module, module.start, module.end, True, True, {})
    symbols = [target.symbol(name, allocator.where) for name in ENTRIES]
    there = [symbol for symbol in symbols if symbol is not None and symbol.address in range(module.start, module.end)]
    if not there:
        return _Code(allocator, module, module.start, module.end, False, False, {})
    low = min(symbol.address for symbol in there) - AROUND
    high = max(symbol.address + symbol.size for symbol in there) + AROUND
    return _Code(allocator, module, max(low, module.start), min(high, module.end), False, True, {})


def _file(target: Target, where: str) -> Optional[Range]:
    """The addresses at which a file is mapped. Where a core lacks its first page and code, code
    begins as far before as the file offset says, or up to GAP earlier if nothing else is mapped."""
    end, found = 0, None
    for region in target.regions():
        if where and os.path.basename(region.name) == where:
            first = (
                found.start
                if found is not None
                else max(end, region.start - region.file_offset - GAP if region.file_offset else region.start)
            )
            found = Range(first, region.end)
        end = region.end
    return found


def _belongs(target: Target, code: _Code, address: int) -> bool:
    if address not in code.module_range:
        return False
    if code.whole:
        return True
    found = code.known.get(address)
    if found is None:
        symbol = target.symbolize(address)
        in_code = code.named and code.low <= address < code.high
        found = code.known[address] = in_code if symbol is None else FUNCTION.search(symbol.name) is not None
    return found


def _inside(target: Target, unwinder: Unwinder, thread: Thread, code: _Code) -> Optional[Inside]:
    trace = unwinder.trace(thread)
    frames = trace.frames
    own = [index for index, frame in enumerate(frames[:MAX_FRAMES]) if _belongs(target, code, frame.call)]
    guessed = not own and thread.pc in code.module_range
    if guessed:  # a thread that waits in the kernel is no more likely inside malloc than any caller
        if code.named:
            guessed = bool(trace.end) and _may_change(target, thread) and _returns_into(target, thread, code)
        else:
            guessed = not _waits(target, thread)
    if not own and not guessed:
        return None
    last = own[-1] if own else 0
    unwound = last + 1 < len(frames) and not guessed
    end = frames[last + 1].sp if unwound else frames[last].sp + UNKNOWN_FRAMES
    words = {*thread.registers.values(), *thread.words, *_stack(target, thread.sp, min(end - thread.sp, LARGEST_FRAMES))}
    symbol = target.symbolize(frames[own[0]].call if own else thread.pc)
    where = f"{code.allocator.where} ({symbol.name})" if symbol is not None else code.allocator.where
    return Inside(thread.tid, where, code.allocator, sorted(words), unwound, code.named or LIBC.search(code.allocator.where) is not None)


def _waits(target: Target, thread: Thread) -> bool:
    """Whether it waits in the kernel: on x86, orig_rax is -1 unless it does."""
    return thread.registers.get(target.arch.system_call_number) != target.arch.mask and waits_in_kernel(target, thread.pc)


def _may_change(target: Target, thread: Thread) -> bool:
    """Whether the thread runs, or the kernel maps or unmaps memory for it. One that waits for
    anything else, such as a lock, changes no heap, whatever old return addresses its stack has."""
    return not _waits(target, thread) or thread.registers.get(target.arch.system_call_number) in target.arch.mapping_calls


def _returns_into(target: Target, thread: Thread, code: _Code) -> bool:
    """Whether the stack's top may have a return address into it (musl has no frame data)."""
    stack = _stack(target, thread.sp, UNKNOWN_FRAMES)
    return any(code.low <= word < code.high and _belongs(target, code, word) for word in stack)


def _stack(target: Target, sp: int, size: int) -> Sequence[int]:
    """The readable words from the stack pointer up, red zone included."""
    start = (sp - target.arch.red_zone) & -target.arch.word
    try:
        return target.arch.unpack(target.read(start, (size + target.arch.red_zone) & -target.arch.word))
    except UnreadableMemory:  # the stack ends earlier
        data = b"".join(bytes(piece.data) for piece in target.pieces(start, sp + size) if piece.address == start)
        return target.arch.unpack(data[: len(data) & -target.arch.word])
