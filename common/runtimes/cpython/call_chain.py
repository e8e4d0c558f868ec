"""The chain of Python functions that a thread executes, as findleaks' stubs in a process read it.

A stub finds the state of its thread in the thread-specific data. The interpreter has a key for
PyGILState_Ensure. The value of this key in each thread is the thread's state, also while the thread
does not hold the GIL.

A code object may be freed, and another one may be created at its address. Since 3.12 each code
object has a unique number. Before 3.12, the stub hashes the data of the code object that determine
its names and lines.

Sources, CPython 3.9 to 3.14: pycore_runtime.h (autoTSSkey), pythread.h (Py_tss_t),
code.h (PyCodeObject), pycore_frame.h (_PyInterpreterFrame), pystate.h (_PyCFrame)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.libc.thread_specific import KEYS_OF_BLOCK, place_of_key
from findleaks.runtimes.cpython.thread_states import STATE_WORDS, Runtime, all_states
from findleaks.target.base import Symbol
from findleaks.unwind.managed_frames import DEEPEST
from findleaks.value_classes import NamedTuple

ENTRY_FRAMES, C_FRAMES, PAIRED = 1, 2, 3  # kinds of chains, as in stack_walk.S
_NOT_PYTHON = 3  # least owner of a frame that executes no Python function
_TAGS = 7  # bits of a reference of 3.14 (_PyStackRef)
_VERSION = 92  # offset in a code object of its number
_C_FRAME, _C_PREVIOUS = 8, 16  # offsets in a _PyCFrame of 3.11


class ChainLayout(NamedTuple):
    """How the frames of a thread are found. `state`: offset from the thread pointer to the word
    with the address of the thread's state. `top`: offset in this state of the pointer to the
    innermost frame. With `is_indirect`, the word at `top` is the address of that pointer. `code`,
    `previous`, `instruction` and `owner` are offsets in a frame."""

    kind: int
    state: int
    top: int
    is_indirect: bool
    code: int
    previous: int
    instruction: int
    owner: int


class FrameSpan(NamedTuple):
    """Frames that one native frame executes, innermost first; see ChainPart."""

    anchor: int
    frames: Sequence[int]


def chain_settings(layout: ChainLayout, code_type: int, release: tuple[int, int]) -> Sequence[int]:
    """Return the settings of a stub: the words at CHAIN_KIND of stack_walk.S."""
    version = _VERSION if release >= (3, 12) else 0
    # Offsets in a code object of the first line (not used since 3.12), the name, the file and the
    # table of lines
    line, *texts = (72, 128, 112, 136) if release >= (3, 11) else (40, 112, 104, 120)
    offsets = layout.top, int(layout.is_indirect), layout.code, layout.previous, layout.instruction, layout.owner
    packed = int.from_bytes(bytes(texts), "little")
    return (layout.kind, layout.state, *offsets, code_type, version, line, packed)


def find_state(memory: Memory, symbol: Symbol, runtime: Runtime) -> Optional[int]:
    """Return the offset from the thread pointer to the word with the address of a thread's state;
    None if it is not found. `symbol`: _PyRuntime. A state contains the pthread_t of its thread,
    which is the thread pointer on x86-64."""
    data = memory.read(symbol.address, symbol.size) if symbol.size else b""
    # struct Py_tss_t: whether there is a key, and the key
    places = [place_of_key(key) for key in range(KEYS_OF_BLOCK) if struct.pack("<2i", 1, key) in data]
    for state in all_states(memory, runtime):
        words = [word for word in memory.words(state, STATE_WORDS) or () if word and word % memory.size == 0]
        for place in places:
            if any(memory.word(word + place) == state for word in words):
                return place
    return None


def frame_spans(memory: Memory, layout: ChainLayout, thread_pointer: int) -> Iterator[FrameSpan]:
    """Yield the frames of a thread, innermost first."""
    state = memory.word(thread_pointer + layout.state) or 0
    top = memory.word(state + layout.top) or 0 if state else 0
    if layout.is_indirect:
        top = memory.word(top) or 0 if top else 0
    spans = {ENTRY_FRAMES: _by_entry_frames, C_FRAMES: _by_c_frames, PAIRED: _one_by_one}[layout.kind](memory, layout, top)
    last = 0
    for span in spans:
        if layout.kind != PAIRED and span.anchor <= last:
            return
        last = span.anchor
        yield span


def code_and_instruction(memory: Memory, layout: ChainLayout, frame: int) -> tuple[int, int]:
    """Return the address of a frame's code object, and 32 bits that identify the instruction. Since
    3.11, these are the low bits of its offset from the code object. Before 3.11, these are the low
    bits of its index in the bytecode."""
    code = (memory.word(frame + layout.code) or 0) & ~_TAGS
    place = memory.word(frame + layout.instruction) or 0
    return code, (place if layout.kind == PAIRED else place - code) & 0xFFFFFFFF


def _by_entry_frames(memory: Memory, layout: ChainLayout, frame: int) -> Iterator[FrameSpan]:
    found: list[int] = []
    for _ in range(DEEPEST):
        if not frame:
            return
        owner = memory.read(frame + layout.owner, 1)
        if owner and owner[0] >= _NOT_PYTHON:
            yield FrameSpan(frame, found)
            found = []
        else:
            found.append(frame)
        frame = memory.word(frame + layout.previous) or 0


def _by_c_frames(memory: Memory, layout: ChainLayout, c_frame: int) -> Iterator[FrameSpan]:
    for _ in range(DEEPEST):
        words = memory.words(c_frame, 3) if c_frame else None
        if words is None:
            return
        _, frame, previous = words
        stop = memory.word(previous + _C_FRAME) or 0 if previous else 0
        found: list[int] = []
        while frame and frame != stop and len(found) < DEEPEST:
            found.append(frame)
            frame = memory.word(frame + layout.previous) or 0
        yield FrameSpan(c_frame, found)
        c_frame = previous


def _one_by_one(memory: Memory, layout: ChainLayout, frame: int) -> Iterator[FrameSpan]:
    for _ in range(DEEPEST):
        if not frame:
            return
        yield FrameSpan(0, [frame])
        frame = memory.word(frame + layout.previous) or 0
