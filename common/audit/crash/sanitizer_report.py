"""Read the report with which a sanitizer ended the process (abort_on_error=1).

AddressSanitizer keeps the text of its report in a mapping (AppendToErrorMessageBuffer() of
asan/asan_report.cpp, since LLVM 3.1 and GCC 4.8). UndefinedBehaviorSanitizer only writes it to
stderr. But the program passes the address of constant data to the function that reports the error,
for example __ubsan_handle_out_of_bounds_abort(). This data begins with a SourceLocation {const char
*file; u32 line; u32 column} (ubsan/ubsan_value.h)."""

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


def read_sanitizer_report(session: Session, stack: CrashedStack) -> str:
    """Return the first line of the report: "AddressSanitizer: heap-use-after-free on address
    0x604000000013"; "" if no sanitizer called abort(), or if the report is not in memory. With
    halt_on_error=0, this may be an earlier report, after which the process continued."""
    frames = stack.frames
    if not any(inner.function == "abort" and is_sanitizer(frame) for inner, frame in zip(frames, frames[1:])):
        return ""
    return _describe_undefined(stack) or _find_report(session)


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
    target = session.target
    for region in target.regions():
        if not (region.readable and region.writable) or region.name:
            continue
        for piece in nonzero_pieces(target, region.start, region.end):
            session.report_progress("searching for the report of a sanitizer", 0.0)
            found = next((one for one in _REPORT.finditer(piece.data) if int(one[1]) == target.pid), None)
            if found is not None:
                return _DETAILS.sub("", found[2].decode("ascii"))
    return ""


def _describe_undefined(stack: CrashedStack) -> str:
    """Return "UndefinedBehaviorSanitizer: out of bounds at server.c:12"; "" if the process did not
    end in a function of UndefinedBehaviorSanitizer."""
    level = find_caller(stack.frames)
    if not level or level >= len(stack.trace.frames) or stack.target.arch.name != X86_64.name:
        return ""
    tracer, memory = stack.tracer(0, False), Memory(stack.target)
    try:
        handler = _HANDLER.match(name_called(tracer, level))
        data = tracer.value(level, RDI) if handler is not None else None
    except CapstoneMissing:
        return ""
    if handler is None:
        return ""
    file, line = (memory.word(data), memory.int32(data + memory.size)) if data is not None else (None, None)
    name = read_text(memory, file) if file and line and 0 < line < _MOST_LINES else ""
    return f"UndefinedBehaviorSanitizer: {handler[1].replace('_', ' ')}{f' at {name}:{line}' if name.isprintable() and name else ''}"
