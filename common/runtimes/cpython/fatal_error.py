"""Find the text of Python's fatal error on the stack of the thread that called Py_FatalError.

Py_FatalError and _Py_FatalErrorFunc (Python/pylifecycle.c of CPython 3.9 to 3.14) call fatal_error,
which prints "Fatal Python error: ", the name of a function, and the message, and then calls
abort(). Its frame contains both texts. If the compiler no longer needs them, the frame does not
contain them, and no text is found."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.memory import Memory

_FUNCTIONS = ("Py_FatalError", "_Py_FatalErrorFunc")
_LIBC = ("libc.", "libc-", "ld-musl")
_MOST = 4096  # bytes of a frame that are searched
_LONGEST = 600  # bytes of a message that are read


def find_fatal_error(memory: Memory, frames: Sequence[tuple[int, str, str]]) -> str:
    """Return the message, with the function that reported it; "" if it is not found. `frames`:
    stack pointer, function and module of each, innermost first."""
    at = next((at for at, (_, function, _) in enumerate(frames) if function in _FUNCTIONS), 0)
    first = next((sp for sp, _, module in frames[:at] if not module.startswith(_LIBC)), 0)
    if not at or not first < frames[at][0] < first + _MOST:
        return ""
    words = memory.words(first, (frames[at][0] - first) // memory.size) or ()
    texts = list(dict.fromkeys(filter(None, (_text(memory, word) for word in words))))
    messages = [text for text in texts if " " in text and "%" not in text]
    names = [text for text in texts if text.isidentifier()]
    if len(messages) != 1 or len(names) > 1:
        return ""
    return f"{names[0]}: {messages[0]}" if names else messages[0]


def _text(memory: Memory, address: int) -> str:
    """Return the printable text of four characters or more at an address; "" if there is none."""
    data = b""
    while address > 0xFFFF and len(data) < _LONGEST and b"\0" not in data:
        part = memory.read(address + len(data), 64 - (address + len(data)) % 64)
        if not part:
            return ""
        data += part
    try:
        text = data.split(b"\0", 1)[0].decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return text if len(text) >= 4 and text.isprintable() and b"\0" in data else ""
