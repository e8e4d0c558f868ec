"""Read the message of a failed assert() from the arguments of __assert_fail().

glibc keeps this message in __abort_msg. musl only writes it to stderr."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.abort_message import read_text
from findleaks.audit.crash.imported_calls import name_called
from findleaks.audit.crash.value_origin import Tracer
from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.registers import RCX, RDI, RDX, RSI
from findleaks.target.arch import X86_64
from findleaks.unwind.stacks import NamedFrame

_NEAR = 12  # innermost frames among which that of the caller is


def read_assertion(tracer: Tracer, frames: Sequence[NamedFrame]) -> str:
    """Return the message in the form that musl prints: "Assertion failed: n > 0 (list.c: pop: 21)";
    "" if the thread is not in __assert_fail(), or if its arguments are unknown. `frames`: the
    frames of the tracer, the innermost first."""
    if tracer.target.arch.name != X86_64.name or not any(frame.function == "abort" for frame in frames[:_NEAR]):
        return ""
    memory = Memory(tracer.target)
    try:
        levels = range(1, min(len(frames), len(tracer.frames), _NEAR))
        level = next((at for at in levels if name_called(tracer, at) == "__assert_fail"), 0)
        values = [tracer.value(level, register) for register in (RDI, RSI, RDX, RCX)] if level else [None]
    except CapstoneMissing:
        return ""
    if None in values:
        return ""
    expression, file, line, function = (value or 0 for value in values)
    texts = [read_text(memory, address) for address in (expression, file, function)]
    return f"Assertion failed: {texts[0]} ({texts[1]}: {texts[2]}: {line & 0xFFFFFFFF})" if all(texts) else ""
