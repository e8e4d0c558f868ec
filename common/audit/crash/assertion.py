"""Read the message of a failed assertion from the arguments of the function that reports it.

glibc keeps the message of assert() in __abort_msg. musl, libstdc++ and libc++ only write it to
stderr."""

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

_MUSL = "Assertion failed: {0} ({1}: {3}: {2})"
# The printed message has the function, which may be a long text, before the condition.
_LIBSTDCXX = "{0}:{1}: Assertion '{3}' failed in {2}"
_FORMATS = {
    "__assert_fail": _MUSL,  # (expression, file, line, function)
    "_ZSt21__glibcxx_assert_failPKciS0_S0_": _LIBSTDCXX,  # (file, line, function, condition)
    "std::__glibcxx_assert_fail(char const*, int, char const*, char const*)": _LIBSTDCXX,
    "_ZSt20__replacement_assertPKciS0_S0_": _LIBSTDCXX,
    "std::__replacement_assert(char const*, int, char const*, char const*)": _LIBSTDCXX,
    "_ZNSt3__122__libcpp_verbose_abortEPKcz": "{0}",  # (format, …), LLVM 15
    "std::__1::__libcpp_verbose_abort(char const*, ...)": "{0}",
}
"""The message that a function prints, by its name. The numbers are those of its arguments.
Releases: __glibcxx_assert_fail GCC 12 and newer, __replacement_assert GCC 6 to 11,
__libcpp_verbose_abort LLVM 15 and newer (libcxx/include/__verbose_abort)."""

_LINES = {_MUSL: 2, _LIBSTDCXX: 1}  # the argument that is the number of the line


def read_assertion(tracer: Tracer, frames: Sequence[NamedFrame]) -> str:
    """Return the message of the library: "Assertion failed: n > 0 (list.c: pop: 21)"; ""
    if the thread is not in one of these functions, or if its arguments are unknown. `frames`: the
    frames of the tracer, the innermost first."""
    if tracer.target.arch.name != X86_64.name or not any(frame.function == "abort" for frame in frames[:_NEAR]):
        return ""
    try:
        for level in range(1, min(len(frames), len(tracer.frames), _NEAR)):
            message = _FORMATS.get(name_called(tracer, level), "")
            if message:
                return _fill(tracer, level, message)
    except CapstoneMissing:
        pass
    return ""


def _fill(tracer: Tracer, level: int, message: str) -> str:
    """Return the message with the arguments that a frame passed; "" if one of them is unknown."""
    memory, texts = Memory(tracer.target), []
    for at, register in enumerate((RDI, RSI, RDX, RCX)):
        if f"{{{at}}}" not in message:
            break
        value = tracer.value(level, register)
        if value is None:
            return ""
        texts.append(str(value & 0xFFFFFFFF) if _LINES.get(message) == at else read_text(memory, value))
    if texts == ["%s"]:  # LLVM 17 and newer pass the whole message, which may contain "%"
        value = tracer.value(level, RSI)
        return read_text(memory, value).strip() if value is not None else ""
    is_format = message == "{0}" and "%" in texts[0]
    return message.format(*texts).strip() if all(texts) and not is_format else ""
