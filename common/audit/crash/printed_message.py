"""Read the message that a library printed before it ended the process.

GLib copies the message of g_assert() to memory that `__glib_assert_msg` refers to, for debuggers
(glib/gtestutils.c). g_error(), and g_critical() if it is fatal, pass an array of `struct _GLogField
{const char *key; const void *value; ssize_t length;}` to the functions that print it
(glib/gmessages.c from 2.50 on). They end the process with the instruction int3, or with abort().
Allocators format their messages in a local array:

- gperftools: Log() in src/internal_logging.cc, which also calls abort(), or from 2.16 on executes
  ud2
- jemalloc: malloc_vprintf() in src/malloc_io.c; its frame is gone, but only the innermost frames
  were written over it
- mimalloc: mi_vfprintf() in src/options.c (secure and debug builds)"""

from __future__ import annotations

import re
import signal

from findleaks.allocators.memory import Memory
from findleaks.audit.crash.abort_message import read_text
from findleaks.audit.crash.crashed_stack import CrashedStack

TRAPS = (signal.SIGTRAP, signal.SIGILL)
"""Signals of instructions with which libraries end a process."""

_VARIABLE, _GLIB, _LOG = "__glib_assert_msg", "libglib-2.0", "g_log"
_KEY, _MOST_KEYS = b"MESSAGE", 4096
_MOST_BYTES = 64 << 10  # bytes in which GLib's array is searched
_BELOW = 8 << 10  # bytes below the stack pointer that are searched
_CALLERS = 8  # frames that are searched, from the one that ended the process
# Libraries and functions of these allocators. Other programs may print similar lines, for example
# "src/server.cc:120] client connected".
_LIBRARIES = ("libtcmalloc", "libjemalloc", "libmimalloc")
_FUNCTIONS = re.compile(r"tcmalloc|InvalidFree|je_|_?mi_|(free|cfree|malloc|calloc|realloc)$|operator (new|delete)")
_MESSAGE = re.compile(rb"(?:src/\w[\w/]*\.cc:\d+\] |<jemalloc>: |mimalloc: (?:error|assertion failed): )[ -~]{4,300}(?=\n)")


def read_printed_message(stack: CrashedStack) -> str:
    """Return the message without the line end, unescaped; "" if there is none, or if the process
    ended neither with abort() nor with an instruction that traps."""
    frames, target = stack.frames, stack.target
    aborts = [at for at, frame in enumerate(frames) if frame.function == "abort"]
    caller = aborts[0] + 1 if aborts else 0
    if not (aborts or target.signal in TRAPS) or caller >= len(frames):
        return ""
    if frames[caller].module.startswith(_GLIB):
        memory, symbol = Memory(target), target.symbol(_VARIABLE)
        pointer = memory.word(symbol.address) if symbol is not None else None
        text = read_text(memory, pointer) if pointer else ""
        return (text or _read_log_message(stack, memory, caller)).strip()
    callers = frames[caller : caller + _CALLERS]
    is_allocator = any(one.module.startswith(_LIBRARIES) or _FUNCTIONS.match(one.function) for one in callers)
    end = stack.places[min(caller + _CALLERS, len(frames) - 1)][0]
    pieces = target.pieces(stack.places[0][0] - _BELOW, end) if is_allocator else ()
    found = [match.group() for piece in pieces for match in _MESSAGE.finditer(piece.data)]
    return found[-1].decode("ascii").strip() if found else ""


def _read_log_message(stack: CrashedStack, memory: Memory, caller: int) -> str:
    """Return the message of the array of GLogField that a function of GLib passed to the functions
    that print it; "" if the frame `caller` is not one of GLib's functions for messages.

    The array is in a frame of GLib, or in the last frame that they called, which is gone. Arrays at
    lower addresses are those of earlier messages, and their texts may have been freed."""
    frames, first = stack.frames, caller
    while caller < len(frames) and frames[caller].module.startswith(_GLIB):
        caller += 1
    if caller >= len(frames) or not any(one.function.startswith(_LOG) for one in frames[first:caller]):
        return ""
    word, at, end = memory.size, stack.places[0][0] - _BELOW, stack.places[caller][0]
    words = memory.words(at, min(end - at, _MOST_BYTES) // word) or ()
    keys: dict[int, bool] = {}  # whether the key at an address is _KEY
    for key, value in zip(reversed(words[:-1]), reversed(words)):
        if key not in keys and len(keys) < _MOST_KEYS:
            keys[key] = memory.c_string(key, len(_KEY) + 1) == _KEY
        text = read_text(memory, value) if keys.get(key) else ""
        if text:
            return text
    return ""
