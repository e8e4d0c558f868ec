"""Read the report with which a sanitizer ended the process (abort_on_error=1).

AddressSanitizer keeps the text of its report in a mapping (AppendToErrorMessageBuffer() of
asan/asan_report.cpp, since LLVM 3.1 and GCC 4.8). UndefinedBehaviorSanitizer only writes it to
stderr. But the program passes the address of constant data to the function that reports the error,
for example __ubsan_handle_out_of_bounds_abort(). This data begins with a SourceLocation {const char
*file; u32 line; u32 column} (ubsan/ubsan_value.h).

ThreadSanitizer and MemorySanitizer keep no text either. The compiler inserts calls of
__tsan_read4(address) before accesses (tsan/rtl/tsan_interface.h), and of __msan_warning() and
similar functions where an uninitialized value is used (msan/msan_interface_internal.h). The frames
show which of these functions reported the error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.abort_message import read_text
from findleaks.audit.crash.crashed_stack import CrashedStack
from findleaks.audit.crash.imported_calls import name_called
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.registers import RDI
from findleaks.session import Session
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece
from findleaks.target.ranges import nonzero_pieces
from findleaks.unwind.stacks import NamedFrame

LIBRARIES = ("libasan.", "libubsan.", "libtsan.", "liblsan.", "libhwasan.", "libclang_rt.")
"""Beginnings of the names of the sanitizers' libraries."""

FUNCTIONS = ("__sanitizer::", "__asan", "__ubsan", "__tsan", "__lsan", "__hwasan", "__msan", "__interceptor_", "___interceptor_")
"""Beginnings of the names of the sanitizers' functions, which may be part of the program."""

_REPORT = re.compile(rb"==(\d{1,10})==ERROR: (\w{1,20}Sanitizer: [ -~]{4,600})\n")
# The end of the line, which is left out
_DETAILS = re.compile(r"(?: at pc 0x| \(pc 0x| in thread T\d).*|:$")
_ADDRESS = re.compile(r" 0x([0-9a-f]+)")
_HANDLER = re.compile(r"__ubsan_handle_(\w+?)(?:_v\d)?(?:_minimal)?(?:_abort)?$")
_MOST_LINES = 1 << 24
_LONGEST = 700  # bytes of the longest line of _REPORT
# __tsan_unaligned_write8, __tsan_read4_pc, and __tsan_read_range, whose size is an argument
_ACCESS = re.compile(r"__tsan_(?:unaligned_)?(?:volatile_)?(read|write)(\d{1,2}|_range)(?:_pc)?$")
_UNINITIALIZED = re.compile(r"__msan_(?:maybe_)?warning")
_INTERCEPTOR = re.compile(r"^_{2,3}interceptor_(?:trampoline_)?")


def read_sanitizer_report(session: Session, stack: CrashedStack) -> str:
    """Return the first line of the report: "AddressSanitizer: heap-use-after-free on address
    0x604000000013"; for ThreadSanitizer and MemorySanitizer, what the frames show of it. "" if no
    sanitizer called abort(), or if the report is not known. With halt_on_error=0, this may be an
    earlier report, after which the process continued."""
    frames = stack.frames
    if not any(inner.function == "abort" and is_sanitizer(frame) for inner, frame in zip(frames, frames[1:])):
        return ""
    return _describe_undefined(stack) or _find_report(session) or _describe_frames(stack)


def is_sanitizer(frame: NamedFrame) -> bool:
    """Whether a frame is that of a sanitizer's function."""
    return frame.module.startswith(LIBRARIES) or frame.function.startswith(FUNCTIONS)


def find_caller(frames: Sequence[NamedFrame]) -> int:
    """Return the index of the frame that called the innermost functions of a sanitizer; 0 if there
    are none. The outermost function of a thread may also be one of the sanitizer's."""
    first = next((at for at, frame in enumerate(frames) if is_sanitizer(frame)), len(frames))
    return next((at for at in range(first, len(frames)) if not is_sanitizer(frames[at])), 0)


def find_reported_address(message: str) -> Optional[int]:
    """Return the address that a report of a sanitizer names; None if it names none."""
    found = _ADDRESS.search(message) if "Sanitizer: " in message else None
    return int(found[1], 16) if found is not None else None


def _find_report(session: Session) -> str:
    """Search anonymous memory for the first line of the report. Return "" if it is not found."""
    target, before = session.target, Piece(0, memoryview(b""))
    for region in target.regions():
        if not (region.readable and region.writable) or region.name:
            continue
        for piece in nonzero_pieces(target, region.start, region.end):
            session.report_progress("searching for the report of a sanitizer", 0.0)
            parts = [piece.data]
            if before.address + len(before.data) == piece.address:
                # The line may begin in the previous piece.
                parts.insert(0, memoryview(bytes(before.data[-_LONGEST:]) + bytes(piece.data[:_LONGEST])))
            before = piece
            for data in parts:
                found = next((one for one in _REPORT.finditer(data) if int(one[1]) == target.pid), None)
                if found is not None:
                    return _DETAILS.sub("", found[2].decode("ascii"))
    return ""


def _describe_frames(stack: CrashedStack) -> str:
    """Return "ThreadSanitizer: data race or use after free, read of 4 bytes at 0x55d0a3c2406c", or
    "MemorySanitizer: use-of-uninitialized-value"; "" if the frames do not show this."""
    level = find_caller(stack.frames)
    if not level or level >= len(stack.trace.frames):
        return ""
    names = [frame.function for frame in stack.frames[:level]]
    if any(map(_UNINITIALIZED.match, names)):
        return "MemorySanitizer: use-of-uninitialized-value"
    if not any(frame.module.startswith("libtsan.") or frame.function.startswith("__tsan") for frame in stack.frames[:level]):
        return ""
    called, address = _find_call(stack, level)
    # The function that the program called may have jumped to the one that reports the error.
    entry = _INTERCEPTOR.sub("", called if "::" in names[-1] else names[-1])
    access = _ACCESS.match(entry)
    if access is None:
        # abort() of the program is intercepted, too.
        return f"ThreadSanitizer: report about {entry}()" if entry and entry != "abort" else ""
    size = f" of {access[2]} byte{'s' if access[2] != '1' else ''}" if access[2].isdigit() else ""
    place = f" at {address:#x}" if address is not None else ""
    return f"ThreadSanitizer: data race or use after free, {access[1]}{size}{place}"


def _find_call(stack: CrashedStack, level: int) -> tuple[str, Optional[int]]:
    """Return the name of the function that a frame called, and its first argument; "" and None if
    they are unknown."""
    if stack.target.arch.name != X86_64.name:
        return "", None
    tracer = stack.tracer(0, False)
    try:
        return name_called(tracer, level), tracer.value(level, RDI)
    except CapstoneMissing:
        return "", None


def _describe_undefined(stack: CrashedStack) -> str:
    """Return "UndefinedBehaviorSanitizer: out of bounds at server.c:12"; "" if the process did not
    end in a function of UndefinedBehaviorSanitizer."""
    level = find_caller(stack.frames)
    if not level or level >= len(stack.trace.frames):
        return ""
    (called, data), memory = _find_call(stack, level), Memory(stack.target)
    handler = _HANDLER.match(called)
    if handler is None:
        return ""
    file, line = (memory.word(data), memory.int32(data + memory.size)) if data is not None else (None, None)
    name = read_text(memory, file) if file and line and 0 < line < _MOST_LINES else ""
    return f"UndefinedBehaviorSanitizer: {handler[1].replace('_', ' ')}{f' at {name}:{line}' if name.isprintable() and name else ''}"
