"""Report a thread whose stack takes much memory, and the function whose frames fill the stack."""

from __future__ import annotations

from collections import Counter
from typing import Optional

from findleaks.audit.accounting import Accounting
from findleaks.audit.findings.large_shares import private_bytes
from findleaks.audit.findings.significance import is_large
from findleaks.audit.live_stacks import live_stacks
from findleaks.formatting import format_count, number, shorten, size
from findleaks.runtimes.directory import find_frames
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.base import Thread
from findleaks.unwind.frame_locks import describe_thread
from findleaks.unwind.frames import DEEPEST, FrameRegisters, Unwinder
from findleaks.unwind.managed_frames import NativeStack, place_frames
from findleaks.unwind.stacks import Namer
from findleaks.value_classes import NamedTuple


class _Deep(NamedTuple):
    """The stack of a thread. `end`: its highest address. `used`: the bytes from the stack pointer
    to the end. `resident`: the resident bytes of the whole stack; None if unknown."""

    thread: Thread
    end: int
    used: int
    resident: Optional[int]

    @property
    def bytes(self) -> int:
        """The resident bytes of the stack; if they are unknown, the used bytes."""
        return self.used if self.resident is None else self.resident


class _Frames(NamedTuple):
    """The frames of one function. `frames`: their number. `bytes`: the bytes of the stack that they
    take. `managed`: the managed function that most of them execute; "" if there is none.
    `is_part`: whether only the innermost DEEPEST frames of the stack were examined."""

    function: str
    frames: int
    bytes: int
    managed: str
    is_part: bool


def find_deep_stack(session: Session, accounting: Accounting, total: int) -> Optional[Finding]:
    """Return a finding if the stack of one thread is at least a tenth of the private memory, and,
    if residency is known, at least half of all stacks (`total`, in bytes); otherwise None."""
    deep = _find_largest(session, accounting.known)
    if deep is None or not is_large(deep.bytes, private_bytes(accounting)) or (accounting.known and 2 * deep.bytes < total):
        return None
    who = describe_thread(deep.thread.tid, session.target.thread_names())
    part = min(100 * deep.bytes // max(private_bytes(accounting), 1), 100)
    title = f"The stack of {who} takes {size(deep.bytes)}, {part} % of the private memory."
    facts: dict[str, object] = {"thread": deep.thread.tid, "used": deep.used}
    cause = ""
    if 2 * deep.used < deep.bytes:
        cause = f"Only {size(deep.used)} of it are in use now. Earlier calls used the rest, which stays resident until the thread ends."
    elif (frames := _find_largest_frames(session, deep)) is not None:
        facts.update(
            function=frames.function, frames=frames.frames, frame_bytes=frames.bytes, managed=frames.managed or None, is_part=frames.is_part
        )
        name, verb = shorten(frames.function, 200), "takes" if frames.frames == 1 else "take"
        cause = f"{format_count(frames.frames, 'frame')} of {name} {verb} {size(frames.bytes)} of it."
        if frames.is_part:
            cause = f"Of its innermost {number(DEEPEST)} frames, {number(frames.frames)} are frames of {name}."
        cause += f" Most of them execute {shorten(frames.managed, 200)}." if frames.managed else ""
    return Finding("deep-stack", deep.bytes, title, cause, (), ("stacks",), facts, deep.bytes if accounting.known else None)


def _find_largest(session: Session, known: bool) -> Optional[_Deep]:
    """Return the stack that takes the most memory; see live_stacks.py. `known`: whether residency
    is known."""
    target, stacks = session.target, live_stacks(session)
    found = []
    for thread in target.threads():
        stack = stacks.get(thread.tid)
        if stack is not None and stack.start <= thread.sp < stack.end:
            resident = target.resident(*stack) if known else None
            found.append(_Deep(thread, stack.end, stack.end - thread.sp, resident))
    return max(found, key=lambda one: one.bytes, default=None)


def _find_largest_frames(session: Session, deep: _Deep) -> Optional[_Frames]:
    """Return the frames of the function whose frames take the most bytes; None if they take less
    than half of the frames that were read. Of a very deep stack, only the innermost frames are
    read."""
    target, readers = session.target, find_frames(session.target)
    unwinder = Unwinder(target, (), [reader.step for reader in readers])
    registers: list[FrameRegisters] = []
    trace = unwinder.trace_with_registers(deep.thread, registers)
    placed = place_frames(NativeStack(deep.thread, trace, registers), readers)
    namer = Namer(target, unwinder)
    frames, taken, managed = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    ends = [frame.sp for frame in trace.frames[1:]] + [trace.frames[-1].sp if trace.end else deep.end]
    for at, (frame, end) in enumerate(zip(trace.frames, ends)):
        executed = placed.frames.get(at, ())
        name = executed[0].short_name() if executed and at in placed.replaced else namer.name(frame).short_name()
        frames[name] += 1
        taken[name] += max(end - frame.sp, 0)
        managed.update((name, one.short_name()) for one in executed if at not in placed.replaced)
    name, size_of_all = taken.most_common(1)[0]
    if 2 * size_of_all < trace.frames[-1].sp - trace.frames[0].sp:
        return None
    main = max((one for one in managed if one[0] == name), key=lambda one: managed[one], default=("", ""))
    return _Frames(name, frames[name], size_of_all, main[1] if 2 * managed[main] > frames[name] else "", len(trace.frames) == DEEPEST)
