"""Find the text of the panic or fatal error with which Go's runtime ended the process.

Sources: Go 1.18 to 1.26, src/runtime: runtime2.go (g, m, _panic; since 1.26 the argument is the
first field of _panic, before that the second), panic.go (gopanic, preprintpanics, which replaces an
error by its text, throw, fatal), asm_amd64.s (the word below the thread pointer is g), asm_arm64.s
(x28 is g); src/internal/abi/type.go (Type).

Words of g: stack {lo, hi}, stackguard0, stackguard1, _panic, _defer, m. The first word of m is its
g0; another one is curg."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, Thread
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.ranges import range_at

PANIC = "panic: "
LONGEST = 4096  # bytes of a text that are read
_G_WORDS = 7
_PANIC, _M = 4, 6  # words of g
_M_WORDS = 64  # words of m in which its goroutines are looked for
_TLS = range(8, 136, 8)  # bytes below the thread pointer that may be g
_REGISTER = "x28"  # that is g on AArch64
_LARGEST_STACK = 1 << 30
_SEARCHED = 128 << 10  # bytes of a stack that are searched
_KIND = 23  # offset of the kind in abi.Type
_STRING = 24  # the kind of strings
# Formats by kind, for bool, int to int64, uint to uint64, uintptr, float32 and float64.
_FORMATS = dict(enumerate(["<?", "<q", "<b", "<h", "<i", "<q", "<Q", "<B", "<H", "<I", "<Q", "<Q", "<f", "<d"], 1))
_CODE = 320  # bytes of a function that are searched for references
_MARK = b"fatal error: "
_THROWS = ("runtime.throw", "runtime.fatal")  # functions that end the process with a fatal error
_PRINTS_PANICS = "runtime.fatalpanic"  # function that ends the process with a panic
_CLOSURES = ("runtime.throw.func", "runtime.fatal.func")  # closures that print "fatal error: "


def find_fatal_message(
    memory: Memory,
    code: Sequence[Range],
    thread: Thread,
    frames: Sequence[tuple[int, str, str]],
    name_type: Callable[[int], str],
    name_function: Callable[[int], str],
) -> str:
    """Return the text "panic: …" or "fatal error: …" of the thread that ended the process; "" if
    there is none. If the argument of a panic is neither a string, a number nor a bool, the text
    contains its type: "panic: (main.Order)".

    `code`: the program's code, sorted. `frames`: stack pointer, function and module of the frames
    of the thread and of its goroutine, innermost first. `name_type`: returns the name of the type
    at an address, or "". `name_function`: returns the name of the function that begins at an
    address, or ""."""
    found, functions = list(_goroutines(memory, thread)), {function for _, function, _ in frames}
    panics = (f"{PANIC}{text}" for text in (_panic(memory, g, name_type) for g in found) if text)
    texts = (_fatal(memory, code, g, name_function) for g in found) if memory.arch.name == X86_64.name else _iterate_thrown(memory, frames)
    errors = (f"fatal error: {text}" for text in texts if text)
    # A deferred function that runs after a panic may cause a fatal error.
    messages = chain(errors, panics) if functions.intersection(_THROWS) else chain(panics, errors)
    is_nil = _PRINTS_PANICS in functions and any(_is_nil(memory, g) for g in found)
    return next(messages, f"{PANIC}nil" if is_nil else "")


def _iterate_thrown(memory: Memory, frames: Sequence[tuple[int, str, str]]) -> Iterator[str]:
    """Yield the arguments of runtime.throw and runtime.fatal. On AArch64, these functions store
    their arguments in the frame of their caller, above the return address."""
    for (_, function, _), (sp, _, _) in zip(frames, frames[1:]):
        words = memory.words(sp + 8, 2) if function in _THROWS else None
        if words is not None and 0 < words[1] <= LONGEST:
            yield _text(memory, *words)


def _goroutines(memory: Memory, thread: Thread) -> Iterator[tuple[int, ...]]:
    """Yield the words of the goroutines of the thread's m. The goroutine in g is the first."""
    candidates = [memory.word(thread.thread_pointer - below) or 0 for below in _TLS]
    own = next(filter(None, (_g(memory, one) for one in (thread.registers.get(_REGISTER, 0), *candidates))), None)
    m = own[_M] if own is not None else 0
    if own is None or not m:
        return
    yield own
    for address in dict.fromkeys(memory.words(m, _M_WORDS) or ()):
        g = _g(memory, address, m)
        if g is not None and g != own:
            yield g


def _g(memory: Memory, address: int, m: int = 0) -> Optional[tuple[int, ...]]:
    """Return the words of the g at `address`; None if there is none, or if it has another m."""
    words = memory.words(address, _G_WORDS) if address % 8 == 0 and address > 0xFFFF else None
    if words is None or not words[0] < words[1] < words[0] + _LARGEST_STACK:
        return None
    first = memory.words(words[_M], 1)
    head = memory.words(first[0], _G_WORDS) if first is not None else None
    if head is None or head[_M] != words[_M] or (m and words[_M] != m):
        return None
    return words


def _panic_words(memory: Memory, g: Sequence[int]) -> Optional[Sequence[int]]:
    """Return the first words of a goroutine's innermost _panic; None if there is none."""
    return memory.words(g[_PANIC], 3) if g[_PANIC] else None


def _panic(memory: Memory, g: Sequence[int], name_type: Callable[[int], str]) -> str:
    """Return the argument of a goroutine's innermost panic as text. If it is not a readable string,
    number or bool, return the name of its type in parentheses, or "" if the type is unknown."""
    words = _panic_words(memory, g)
    if words is None:
        return ""
    name = name_type(words[0]) or name_type(words[1])
    return _value(memory, *words[:2]) or _value(memory, *words[1:]) or (f"({name})" if name else "")


def _is_nil(memory: Memory, g: Sequence[int]) -> bool:
    """Whether the argument of a goroutine's innermost panic is nil: {type, data} begins a _panic
    since Go 1.18, and follows its first word before."""
    words = _panic_words(memory, g)
    return words is not None and not words[1] and 0 in (words[0], words[2])


def _value(memory: Memory, type_: int, data: int) -> str:
    """Return a string, a number or a bool in an interface as text; "" for other values."""
    head = memory.read(type_, _KIND + 1) if type_ > 0xFFFF else b""
    if not head:
        return ""
    kind, size = head[_KIND] & 31, int.from_bytes(head[:8], "little")
    if kind == _STRING and size == 16:
        words = memory.words(data, 2)
        return _text(memory, *words) if words is not None else ""
    form = _FORMATS.get(kind, "")
    value = memory.read(data, size) if form and size == struct.calcsize(form) else b""
    return _number(*struct.unpack(form, value)) if value else ""


def _number(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fatal(memory: Memory, code: Sequence[Range], g: Sequence[int], name_function: Callable[[int], str]) -> str:
    """Return the argument of runtime.throw or runtime.fatal. It is a string above the return
    address of a call to a function that prints "fatal error: ", or above the address of the closure
    that prints it."""
    low, high = g[0], g[1]
    for _, words in memory.scan(max(low, high - _SEARCHED), high):
        for at in range(len(words) - 2):
            if not 0 < words[at + 2] <= LONGEST or range_at(code, words[at]) is None:
                continue
            if name_function(words[at]).startswith(_CLOSURES) or _calls_throw(memory, code, words[at]):
                text = _text(memory, words[at + 1], words[at + 2])
                if text:
                    return text
    return ""


def _calls_throw(memory: Memory, code: Sequence[Range], address: int) -> bool:
    """Whether the call before a return address calls a function that prints "fatal error: ", either
    itself or in a closure."""
    call = memory.read(address - 5, 5)
    if call[:1] != b"\xe8":
        return False
    function = address + decode_signed(int.from_bytes(call[1:], "little"), 32)
    if range_at(code, function) is None:
        return False
    references = list(_references(memory, function))
    return any(_is_mark(memory, one) for one in references) or any(
        _is_mark(memory, inner) for one in references if range_at(code, one) is not None for inner in _references(memory, one)
    )


def _references(memory: Memory, function: int) -> Iterator[int]:
    """Yield addresses that `lea` instructions relative to the program counter may compute."""
    data = memory.read(function, _CODE)
    at = data.find(b"\x8d")
    while 0 <= at < len(data) - 6:
        if data[at + 1] & 0xC7 == 5:
            yield function + at + 6 + decode_signed(int.from_bytes(data[at + 2 : at + 6], "little"), 32)
        at = data.find(b"\x8d", at + 1)


def _is_mark(memory: Memory, address: int) -> bool:
    return memory.read(address, len(_MARK)) == _MARK if 0 < address < memory.arch.mask - 64 else False


def _text(memory: Memory, address: int, length: int) -> str:
    """Return the UTF-8 text at an address, at most LONGEST bytes; "" if the bytes are not text."""
    data = memory.read(address, min(length, LONGEST)) if address and length else b""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return ""
