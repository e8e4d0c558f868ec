"""Find the owner of each word on a stack: the frame that contains the word, or a thread-local
variable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from findleaks.audit.live_stacks import live_stacks
from findleaks.audit.owner import Owner, OwnerSort, ThreadName
from findleaks.libc.thread_local import Block, control_block, thread_local_blocks
from findleaks.runtimes.directory import list_code_tables
from findleaks.session import Session
from findleaks.target.base import Range, Symbol, Thread
from findleaks.target.ranges import merge_ranges, subtract_few
from findleaks.unwind.frames import Frame, Unwinder
from findleaks.unwind.stacks import Namer, without_parameters

CONTROL_NAME, UNNAMED = "control block", "thread-local data"


def find_thread_locals(session: Session, whose: ThreadName) -> Iterator[Owner]:
    """Yield owners of all thread-local storage outside the heap. Storage is divided by variable if
    symbols name the variables."""
    target = session.target
    symbols: dict[str, list[Symbol]] = {}
    heap = session.directory.owner
    for block in thread_local_blocks(target):
        if heap(block.range.start) is not None:
            # If a file was loaded later, its storage is in a block that the thread's DTV refers to.
            continue
        path = block.module.path
        if path not in symbols:
            symbols[path] = list(target.thread_locals(block.module))
        yield from _locals_of_block(block, symbols[path], whose)
    for thread in target.threads():
        if thread.thread_pointer and heap(thread.thread_pointer) is None:
            yield _thread_local(CONTROL_NAME, "libc", thread.tid, whose, control_block(target, thread.thread_pointer))


def _locals_of_block(block: Block, symbols: Iterable[Symbol], whose: ThreadName) -> Iterator[Owner]:
    start, end = block.range
    name = block.module.path.rsplit("/", 1)[-1]
    at = start
    for symbol in symbols:
        low, high = start + symbol.address, min(start + symbol.address + symbol.size, end)
        if at <= low < high:
            if low > at:
                yield _thread_local(UNNAMED, name, block.thread, whose, Range(at, low))
            yield _thread_local(symbol.name, name, block.thread, whose, Range(low, high))
            at = high
    if at < end:
        yield _thread_local(UNNAMED, name, block.thread, whose, Range(at, end))


def _thread_local(name: str, module: str, tid: int, whose: ThreadName, part: Range) -> Owner:
    return Owner(OwnerSort.THREAD_LOCAL, name, f"{module}, thread-local, {whose(tid)}" if module else whose(tid), tid, [part])


def find_frame_owners(session: Session, whose: ThreadName, taken: Iterable[Range]) -> Iterator[Owner]:
    """Yield live stacks without the `taken` ranges. There is one owner for all frames of a
    function; its name is "" if the function is unknown."""
    target = session.target
    stacks = live_stacks(session)
    holes = merge_ranges(taken)
    unwinder = Unwinder(target, list_code_tables(session.runtimes))
    namer = Namer(target, unwinder)
    for thread in target.threads():
        session.report_progress("naming stacks", 0.0)
        stack = stacks.get(thread.tid)
        if stack is None or not stack.start <= thread.sp < stack.end:
            continue
        by_function: dict[str, list[Range]] = {}
        for name, part in _frame_parts(thread, stack, unwinder, namer):
            by_function.setdefault(name, []).append(part)
        for name, parts in by_function.items():
            left = subtract_few(merge_ranges(parts), holes)
            if left:
                yield Owner(OwnerSort.STACK, f"{whose(thread.tid)}'s stack", name, thread.tid, left)


def _frame_parts(thread: Thread, stack: Range, unwinder: Unwinder, namer: Namer) -> Iterator[tuple[str, Range]]:
    trace = unwinder.trace(thread)
    at = thread.sp
    for frame, after in zip(trace.frames, trace.frames[1:]):
        if not at <= after.sp <= stack.end:
            # The stack pointers are equal if a function has no frame and its return address is in a
            # register
            break
        yield _function(namer, frame), Range(at, after.sp)
        at = after.sp
    else:
        if not trace.end and len(trace.frames) > 1:  # arguments and the environment
            yield _function(namer, trace.frames[-1]), Range(at, stack.end)
            return
    if at < stack.end:
        yield "", Range(at, stack.end)


def _function(namer: Namer, frame: Frame) -> str:
    named = namer.name(frame)
    return without_parameters(named.function) if named.function else named.module
