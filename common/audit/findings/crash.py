"""Report how a process ended, as a finding."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.audit.crash import Crash, is_library, read_crash
from findleaks.audit.crash.cpp_exception import CppException
from findleaks.audit.crash.sanitizer_report import find_reported_address
from findleaks.audit.findings.crash_causes import cause_facts, describe_causes, describe_reason
from findleaks.audit.findings.damaged_heap import damage_facts, describe_damage
from findleaks.formatting import number, shorten
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.ranges import region_at

_WIDEST = 300  # characters that are shown of a message of the process


def find_crash(session: Session) -> Iterator[Finding]:
    """Yield one finding. Yields none if the process ended with SIGABRT, and there is no message, no
    exception, no damage, and no function of a managed language that called abort()."""
    found = read_crash(session)
    if found is None or (found.signal == "SIGABRT" and not _is_explained(found)):
        return
    title = f"The process ended with {found.signal}{_place(found)}{_caller(found)}{_reason(found, session.target)}"
    title += "" if title.endswith(("!", "…")) else "."
    reported = find_reported_address(found.message)
    is_mapped = reported is not None and region_at(session.target.regions(), reported) is not None
    commands = ("verify", "stacks") if found.damage is not None else ("stacks",)
    commands = (f"whatis {reported:#x}", *commands) if is_mapped else commands
    yield Finding("crash", 0, title, _cause(found), (), commands, _facts(found), 0)


def _is_explained(found: Crash) -> bool:
    return bool(_has_message(found) or found.exception or found.damage or (found.is_abort and found.managed))


def _has_message(found: Crash) -> bool:
    return bool(found.message or found.runtime_message or found.panic)


def _place(found: Crash) -> str:
    frame = found.frame
    is_outside = frame is not None and (not frame.function or is_library(frame.module))
    if found.runtime_message or (found.panic is not None and is_outside):
        return ""  # the frame is the runtime's own function, which is the same for every such end
    if frame is None or not (frame.function or frame.module):
        return ""
    module = f" ({shorten(frame.module, 60)})" if frame.function and frame.module else ""
    called = f", which called {shorten(found.called, 200)}" if found.called else ""
    return f" in {shorten(frame.short_name(), 200)}{module}{called}"


def _caller(found: Crash) -> str:
    """Return the phrase about the innermost managed function: ", called by …" or " in …"; "" if
    there is none."""
    frame = found.managed
    if frame is None:
        return ""
    at = f" at {shorten(frame.place(), 200)}" if frame.place() else ""
    return f"{', called by' if _place(found) else ' in'} {frame.kind} function {shorten(frame.function, 200)}{at}"


def _reason(found: Crash, target: Target) -> str:
    """Return the end of the title: an exception, a message, or a description of the address."""
    if found.exception is not None:
        what = f": {shorten(found.exception.what, _WIDEST)}" if found.exception.what else ""
        return f", for an exception that nothing caught, {shorten(found.exception.type, 200)}{what}"
    if found.panic is not None:
        text = f": {shorten(found.panic.message, _WIDEST).rstrip('.')}" if found.panic.message else ""
        return f", after a panic at {shorten(found.panic.place, _WIDEST)}{text}"
    if found.message or found.runtime_message:
        return f": {shorten(found.message or found.runtime_message, _WIDEST).rstrip('.')}"
    reason = describe_reason(found, target)
    if reason:
        return f": {reason}"
    if found.signal == "SIGSEGV" and found.address is None and target.arch.word == 8 and not found.is_raised and found.fault_code > 0:
        # The kernel reports no address for these two faults. The instruction is unknown.
        return ": it used a pointer that is not a valid address, or one that is not aligned"
    if found.signal == "SIGSYS" and found.refused_call >= 0:
        function = found.innermost.lstrip("_")
        by = f" in {shorten(function, 60)}()" if function and function != "syscall" else ""
        return f": it made system call {number(found.refused_call)}{by}, which a seccomp filter refused"
    if found.is_sent and found.signal != "SIGABRT":
        return ": it sent the signal to itself, as raise() does"
    if found.signal not in ("SIGSEGV", "SIGBUS") or found.address is None:
        return ""
    if found.address == 0:
        return f": it {_access(found) if found.is_jump else 'used'} a null pointer"
    return f": it {_access(found)} address {found.address:#x}, {_describe(found, found.address, target)}"


def _access(found: Crash) -> str:
    """Return what the thread did with the address. A jump is a call if the caller is known."""
    if found.fault is not None and found.fault.kind == "return":
        return "returned to"
    return "accessed" if not found.is_jump else "called" if found.frame is not None else "jumped to"


def _describe(found: Crash, address: int, target: Target) -> str:
    if address < target.arch.page:
        # Only an instruction that adds an offset to a null pointer is certain. Without one, the
        # small address may also be a random value, or that of an element before a mapped array.
        is_sure = found.fault is not None and found.fault.kind == "pointer" and not found.fault.value
        return f"{'' if is_sure else 'probably '}an offset from a null pointer"
    if found.below_stack:
        return "just below its stack pointer: the stack overflowed"
    region = next((one for one in target.regions() if address in one), None)
    if found.above_stack:
        return "just past the end of its stack"
    if region is None:
        return "which is not mapped"
    if not region.readable:
        return "which may not be accessed"
    if found.signal == "SIGBUS":
        return f"where the kernel has no page{f' of {shorten(region.name, _WIDEST)}' if region.name else ''}"
    if found.is_jump:
        return "which is not executable"
    return "which is mapped" if region.writable else "which is read-only"


def _cause(found: Crash) -> str:
    """Return sentences about the cause: the pointer, the heap, and how the process ended."""
    value = f"The value of the panic has the type {shorten(found.value_type)}." if found.value_type else ""
    earlier = [f'"{shorten(one, _WIDEST)}"' for one in found.panic.earlier] if found.panic is not None else []
    value += f"It occurred while the stack was unwound after the panic {' and the panic '.join(earlier)}." if earlier else ""
    nested = f"It contains {_describe_nested(found.exception)}." if found.exception is not None and found.exception.nested else ""
    handled = f"The handler of {found.signal} ended the process with abort()." if found.is_handled else ""
    handled = f"The handler of {found.signal} sent the signal again." if found.is_sent_again else handled
    handled = f"The handler of {found.signal} sent {found.sent_signal}." if found.sent_signal else handled
    causes = [describe_causes(found), _describe_freed(found), describe_damage(found.damage, found.damages)]
    if found.released is not None:
        causes.reverse()  # free() only detected the damage: describe the damage first
    return " ".join(filter(None, (value, nested, *causes, handled)))


def _describe_nested(found: CppException) -> str:
    """Return the exceptions inside an exception: "std::out_of_range: at, which
    contains std::bad_alloc"."""
    return ", which contains ".join(
        f"{shorten(one.type, 200)}{f': {shorten(one.what, _WIDEST)}' if one.what else ''}" for one in found.nested
    )


def _describe_freed(found: Crash) -> str:
    one = found.freed
    if one is None:
        return ""
    word = "the first word" if one.word == 0 else "the second word"
    origin = f"{number(one.distance)} more than {word}" if one.distance else word
    return (
        f"Probable cause: an object was used after it was freed. The address is {origin} of the free block of {number(one.size)} B "
        f"at {one.address:#x}, to which {one.register} points; glibc wrote this word when the block was freed."
    )


def _facts(found: Crash) -> dict[str, object]:
    exception, panic, managed = found.exception, found.panic, found.managed
    # The runtime's own function is the same for every such end.
    frame = found.frame if not (found.runtime_message and managed) else None
    return {
        "signal": found.signal,
        "handler_aborted": found.is_handled,
        "handler_sent_again": found.is_sent_again,
        "system_call": found.refused_call if found.refused_call >= 0 else None,
        "thread": found.thread,
        "address": hex(found.address) if found.address is not None else None,
        "jumped": found.is_jump,
        "raised": found.is_sent,
        "function": frame.function or None if frame is not None else None,
        "module": frame.module or None if frame is not None else None,
        "called": found.called or None,
        "managed_frame": {"kind": managed.kind, "function": managed.function, "file": managed.file, "line": managed.line or None}
        if managed
        else None,
        "message": found.message or found.runtime_message or None,
        "value_type": found.value_type or None,
        "exception": {"type": exception.type, "what": exception.what} if exception else None,
        "nested_exceptions": [{"type": one.type, "what": one.what} for one in exception.nested] if exception else [],
        "panic": {"message": panic.message or None, "place": panic.place, "earlier": list(panic.earlier)} if panic else None,
        "freed_object": {"address": hex(found.freed.address), "size": found.freed.size, "register": found.freed.register}
        if found.freed
        else None,
        **cause_facts(found),
        **damage_facts(found.damage, found.damages),
    }
