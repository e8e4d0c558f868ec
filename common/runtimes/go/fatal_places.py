"""Find the function of the program with which Go's runtime ended the process.

Sources: Go 1.18 to 1.26, src/runtime: panic.go (gopanic, whose argument is an interface), proc.go
(checkdead, which runs on no goroutine), abi-internal.md in src/cmd/compile (arguments in registers
have spill space in the frame of the caller)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.goroutines import CallFrame
from findleaks.target.arch import AARCH64
from findleaks.target.base import Thread
from findleaks.unwind.stacks import NamedFrame

_DEADLOCK = "fatal error: all goroutines are asleep"
_MAIN = 1  # number of the main goroutine
_PANICS = "runtime.gopanic"
_GENERATED = "_cgo_gotypes.go"  # file of the functions that call C
_STANDARD = re.compile(
    r"(archive|bufio|bytes|cmp|compress|container|context|crypto|database|debug|embed|encoding|errors|expvar|flag|fmt|go|hash|html|"
    r"image|index|internal|io|iter|log|maps|math|mime|net|os|path|plugin|reflect|regexp|runtime|slices|sort|strconv|strings|structs|"
    r"sync|syscall|testing|text|time|unicode|unique|unsafe|vendor|weak)[/.]"
)
"""Matches functions and types of Go's standard library, by the first element of the import path."""


def find_failed(threads: Iterable[UserThread], thread: Thread, message: str = "") -> Optional[UserThread]:
    """Return the goroutine that the thread executed when the runtime ended the process, or None. In
    a deadlock no thread executes a goroutine, so the main goroutine is returned."""
    number = _MAIN if message.startswith(_DEADLOCK) else 0
    return next((one for one in threads if one.thread == thread.tid or (number and one.number == number)), None)


def find_program_frame(frames: Sequence[NamedFrame]) -> Optional[NamedFrame]:
    """Return the innermost frame outside Go's standard library; None if there is none."""
    own = (one for one in frames if not _STANDARD.match(one.function) and os.path.basename(one.file) != _GENERATED)
    found = next(own, None)
    return found._replace(kind="Go") if found is not None else None


def find_value_type(memory: Memory, frames: Iterable[CallFrame], name_type: Callable[[int], str]) -> str:
    """Return the type of the value of the innermost panic, unless it is a type of the language or
    of Go's standard library; "" if unknown. preprintpanics replaces an error in _panic by its text,
    so the type is read from the spill space of gopanic's argument."""
    frame = next((one for one in frames if one.function.name == _PANICS), None)
    if frame is None:
        return ""
    word = memory.word(frame.end + (memory.size if memory.arch.name == AARCH64.name else 0))
    name = name_type(word) if word else ""
    return "" if "." not in name or _STANDARD.match(name.lstrip("*")) else name
