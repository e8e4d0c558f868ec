"""Blocks in flight: blocks that a thread stopped inside malloc or free refers to.

An allocator takes a block from a list or from the program, and passes it on a few instructions
later. In between, no list contains the block, and the allocator may refer to it only indirectly, by
the address of its header, page or list. Such a block is neither leaked nor free, and the lists that
the thread is changing may be inconsistent.

findleaks collects the words of each thread inside an allocator: its registers, and its stack up to
the first frame outside the allocator. If the frames are unknown, it takes UNKNOWN_FRAMES bytes of
stack. `Allocator.blocks_in_flight` derives the blocks from these words. A thread that a fatal
signal ended is ignored, because the memory that it was reading may be what is corrupt."""

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

UNKNOWN_FRAMES = 512  # bytes of stack that are searched if frames are unknown
# The largest number of bytes of an allocator's frames that are searched. Such frames are large
# because jemalloc flushes a thread cache through an array on the stack.
LARGEST_FRAMES = 64 << 10


# The largest distance in bytes between a file's code and data, because linkers align both to the
# largest page size of x86-64.
GAP = 2 << 20

MAX_FRAMES = 32  # innermost frames among which a frame of the allocator is searched for

FIRST_LOOK = 4 << 10
"""Bytes from the stack pointer upward that are searched for a return address into an allocator. The
thread is unwound only if such an address is found."""

AROUND = 24 << 10
"""Bytes around malloc.o's exported functions that may contain its static functions in a stripped
libc. malloc.o of glibc 2.36 has 20 KiB of code."""

ENTRIES = (
    *("malloc", "free", "calloc", "realloc", "memalign", "posix_memalign", "aligned_alloc", "_Znwm", "_ZdlPv"),
    *("PyObject_Malloc", "PyObject_Free"),
)
# Regular expressions, which `re` compiles when one is first used, because few commands need them.
# Names of files that contain an allocator and nothing else:
OWN_FILE = r"malloc|clang_rt\.scudo"

# Libc's files, which never contain code of the program:
LIBC = r"libc[.-]|ld-musl"

FUNCTION = (
    r"^(__libc_|__)?(malloc|c?free|calloc|realloc|reallocarray|memalign|posix_memalign|aligned_alloc|p?valloc)(_|$|@)|^_int_|malloc|memalign"
    r"|tcache|chunk|systrim|mtrim|^arena_|_arena$|_heap$|^_?mi_|^je_|^_?rjem|^operator (new|delete)|^(__)?(munmap|mremap)$"
    r"|^_ZN?K?5scudo|^scudo::|^_ZN8gwp_asan|^gwp_asan::|partition_alloc|allocator_shim"
    r"|^_?Py(Object|Mem)_(Malloc|Calloc|Realloc|Free|Raw)|pymalloc"
)
"""Names of functions that belong to an allocator. Some versions of free end with a jump to munmap,
which leaves no frame of free on the stack."""


class ThreadInside(NamedTuple):
    """A thread inside an allocator.

    `words` are ascending: the thread's registers, its frames inside the allocator, and addresses
    that the allocator derives from them. `unwound` is true if frames are known. `sure` is false
    if the allocator is linked into the program and its functions have no names."""

    thread: int
    where: str  # "libc.so.6 (_int_free)"
    allocator: Allocator
    words: Sequence[int]
    unwound: bool
    sure: bool


def find_threads_inside(target: Target, allocators: Sequence[Allocator], blocks: Blocks) -> list[ThreadInside]:
    """Return the threads stopped inside one of these allocators, except threads that a fatal signal
    ended. Raises Interrupted."""
    codes = [code for code in (_find_code(target, allocator) for allocator in allocators) if code is not None]
    unwinder: Optional[Unwinder] = None
    found = []
    for thread in target.threads() if codes else ():
        if target.is_interrupted():
            raise Interrupted
        stack = _read_stack(target, thread.sp, FIRST_LOOK)
        for code in codes:
            if thread.tid == target.crashed or not (thread.pc in code.module_range or any(code.low <= word < code.high for word in stack)):
                continue
            unwinder = unwinder or Unwinder(target)
            one = _examine_thread(target, unwinder, thread, code)
            if one is not None:
                found.append(one._replace(words=sorted({*one.words, *code.allocator.blocks_in_flight(one.words, blocks)})))
                break
    return found


def find_blocks_in_flight(inside: Sequence[ThreadInside], blocks: Blocks) -> dict[int, ThreadInside]:
    """Return {address: thread} for the blocks in use that are in flight.

    If frames are unknown, a word may belong to the program. Then only words that point to the start
    of a block count."""
    found: dict[int, ThreadInside] = {}
    for one in inside:
        words = frozenset(one.words)
        for index in {index for index in blocks.find_all(one.words)[0] if index != NO_BLOCK}:
            address = blocks.address(index)
            if blocks.state(index) == State.IN_USE and (one.unwound or address in words):
                found.setdefault(address, one)
    return found


def find_changing_thread(problem: Problem, inside: Sequence[ThreadInside], blocks: Blocks) -> Optional[ThreadInside]:
    """Return the thread that is changing the memory this problem is about, or None."""
    return next((one for one in inside if one.sure and one.allocator.is_changing(problem, one.words, blocks)), None)


class _AllocatorCode(NamedTuple):
    """The address range of an allocator's code.

    `module` is the range of the file that contains the code; a core may lack the file's headers.
    The allocator's functions are between `low` and `high`. `whole` is true if the file contains no
    other functions."""

    allocator: Allocator
    module: Range
    low: int
    high: int
    whole: bool
    named: bool  # false if functions have no names, so that any function may belong to it
    # results by address: thousands of threads wait at the same few addresses
    known: dict[int, bool]

    @property
    def module_range(self) -> range:
        return range(self.module.start, self.module.end)


def _find_code(target: Target, allocator: Allocator) -> Optional[_AllocatorCode]:
    """Determine where the allocator's code is. It is the whole file, or a range around its exported
    functions."""
    module = _find_file(target, allocator.where)
    if module is None:
        return None
    if re.search(OWN_FILE, allocator.where):
        return _AllocatorCode(allocator, module, module.start, module.end, True, True, {})
    symbols = [target.symbol(name, allocator.where) for name in ENTRIES]
    there = [symbol for symbol in symbols if symbol is not None and symbol.address in range(module.start, module.end)]
    if not there:
        return _AllocatorCode(allocator, module, module.start, module.end, False, False, {})
    low = min(symbol.address for symbol in there) - AROUND
    high = max(symbol.address + symbol.size for symbol in there) + AROUND
    return _AllocatorCode(allocator, module, max(low, module.start), min(high, module.end), False, True, {})


def _find_file(target: Target, where: str) -> Optional[Range]:
    """Return the range at which a file is mapped, or None.

    A core may lack the file's first page and code. Then the start of the range is computed from the
    file offset of the first mapping, and extended by up to GAP bytes downward if nothing else is
    mapped there."""
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


def _is_in_code(target: Target, code: _AllocatorCode, address: int) -> bool:
    """Return whether the instruction at `address` belongs to the allocator. If the instruction has
    a symbol, the name of the symbol decides."""
    if address not in code.module_range:
        return False
    if code.whole:
        return True
    found = code.known.get(address)
    if found is None:
        symbol = target.symbolize(address)
        in_code = code.named and code.low <= address < code.high
        found = code.known[address] = in_code if symbol is None else re.search(FUNCTION, symbol.name) is not None
    return found


def _examine_thread(target: Target, unwinder: Unwinder, thread: Thread, code: _AllocatorCode) -> Optional[ThreadInside]:
    """Return the thread with its words if it is inside the allocator; otherwise None. A frame of
    the allocator proves this. If the stack cannot be unwound (musl has no call frame information),
    a thread in the same file counts as inside if it may change a heap, and its stack contains a
    return address into the allocator."""
    trace = unwinder.trace(thread)
    frames = trace.frames
    own = [index for index, frame in enumerate(frames[:MAX_FRAMES]) if _is_in_code(target, code, frame.call)]
    guessed = not own and thread.pc in code.module_range
    if guessed:  # a thread that waits in the kernel is not likely to be inside malloc
        if code.named:
            guessed = bool(trace.end) and _may_change(target, thread) and _returns_into(target, thread, code)
        else:
            guessed = not _waits(target, thread)
    if not own and not guessed:
        return None
    last = own[-1] if own else 0
    unwound = last + 1 < len(frames) and not guessed
    end = frames[last + 1].sp if unwound else frames[last].sp + UNKNOWN_FRAMES
    words = {*thread.registers.values(), *thread.words, *_read_stack(target, thread.sp, min(end - thread.sp, LARGEST_FRAMES))}
    symbol = target.symbolize(frames[own[0]].call if own else thread.pc)
    where = f"{code.allocator.where} ({symbol.name})" if symbol is not None else code.allocator.where
    return ThreadInside(
        thread.tid, where, code.allocator, sorted(words), unwound, code.named or re.match(LIBC, code.allocator.where) is not None
    )


def _waits(target: Target, thread: Thread) -> bool:
    """Return whether the thread waits in the kernel. On x86, orig_rax is -1 in a thread that does
    not wait."""
    return thread.registers.get(target.arch.system_call_number) != target.arch.mask and waits_in_kernel(target, thread.pc)


def _may_change(target: Target, thread: Thread) -> bool:
    """Return whether the thread is running, or the kernel is mapping or unmapping memory for it. A
    thread that waits for anything else, such as a lock, is not changing a heap, even if its stack
    has old return addresses into the allocator."""
    return not _waits(target, thread) or thread.registers.get(target.arch.system_call_number) in target.arch.mapping_calls


def _returns_into(target: Target, thread: Thread, code: _AllocatorCode) -> bool:
    """Whether the top of the stack contains a return address into the allocator. This is for
    stacks that cannot be unwound, because musl has no call frame information."""
    stack = _read_stack(target, thread.sp, UNKNOWN_FRAMES)
    return any(code.low <= word < code.high and _is_in_code(target, code, word) for word in stack)


def _read_stack(target: Target, sp: int, size: int) -> Sequence[int]:
    """Return the readable words from the stack pointer upward, red zone included."""
    start = (sp - target.arch.red_zone) & -target.arch.word
    try:
        return target.arch.unpack(target.read(start, (size + target.arch.red_zone) & -target.arch.word))
    except UnreadableMemory:  # the stack ends earlier
        data = b"".join(bytes(piece.data) for piece in target.pieces(start, sp + size) if piece.address == start)
        return target.arch.unpack(data[: len(data) & -target.arch.word])
