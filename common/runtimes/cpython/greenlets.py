"""Find greenlets that are suspended, such as those of gevent and eventlet.

A suspended greenlet owns a reference to its innermost frame. This reference, and since CPython 3.11
the saved fields datastack_chunk, datastack_top and datastack_limit of the thread state, are in the
object that greenlet 2.0 and newer allocates for each greenlet. In older versions, the reference is
in the greenlet itself. A greenlet that is being executed, has ended, or has not been started has no
frame.

When greenlet 3 suspends a greenlet, it links the frames to each other without the entry frames,
which are on the native stack.

Sources: greenlet.h (PyGreenlet) of 0.4.17 and 3.1.1; TGreenlet.hpp and TPythonState.cpp
(PythonState) of 3.1.1; Include/internal/pycore_frame.h (struct _frame) of CPython 3.11 to 3.13."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.cpython.engine import NO_OBJECT, ObjectTally
from findleaks.runtimes.cpython.frame_reader import find_frame_reader
from findleaks.runtimes.cpython.types import Types
from findleaks.target.base import Range, Target
from findleaks.unwind.managed_frames import DEEPEST
from findleaks.value_classes import NamedTuple

GREENLET = "greenlet.greenlet"
KIND = "greenlet"
_STATE = 4  # word of a greenlet with the address of its state, since greenlet 2.0
_FIRST = 2  # word of a greenlet after its reference count and its type
_MOST_WORDS = 64  # words of a greenlet or of its state that are read
# Maximum number of frames that are read for all greenlets together, which takes 10 s. After that,
# only this number of innermost frames is read of each greenlet. In damaged memory, many greenlets
# may have the same long or endless chain of frames.
_MOST_FRAMES, _FEWEST_FRAMES = 1 << 21, 16
_FRAME = 24  # offset in a frame object of its _PyInterpreterFrame, since CPython 3.11


class SuspendedGreenlet(NamedTuple):
    """The addresses of a greenlet and of its innermost frame object. `words` are the words at
    `state`, where the greenlet's saved state is."""

    address: int
    frame: int
    state: int
    words: Sequence[int]


class Greenlet(NamedTuple):
    """A suspended greenlet: the address of its object, the addresses of its state, of the copy of
    its native stack and of its innermost frame, and what `stacks` shows of it."""

    address: int
    parts: Sequence[int]
    thread: UserThread


def iterate_suspended(memory: Memory, blocks: Blocks, known: Types, found: array[int]) -> Iterator[SuspendedGreenlet]:
    """Yield the suspended greenlets. `found`: for each block, the type of its object or
    NO_OBJECT."""
    wanted = set(known.list_derived((GREENLET,)))
    frames = {number for number in range(len(known)) if known.plain_name(number) == "frame"} if wanted else set()

    def is_frame(address: int) -> bool:
        index = blocks.find(address) if address else -1
        return index >= 0 and found[index] in frames and blocks.address(index) + known.offsets[found[index]] == address

    for index, number in enumerate(found if wanted else ()):
        if number not in wanted:
            continue
        address = blocks.address(index) + known.offsets[number]
        words = memory.words(address, _count_words(memory, blocks, index, address)) or ()
        state = words[_STATE] if len(words) > _STATE else 0
        block = blocks.find(state) if state else -1
        if block >= 0 and blocks.address(block) == state and blocks.state(block) == State.IN_USE and found[block] == NO_OBJECT:
            inner = memory.words(state, _count_words(memory, blocks, block, state)) or ()
            frame = next(filter(is_frame, inner), 0)
            if frame:
                yield SuspendedGreenlet(address, frame, state, inner)
                continue
        frame = next(filter(is_frame, words[_FIRST : known.basic_size(number) // memory.size]), 0)
        if frame:
            yield SuspendedGreenlet(address, frame, address, words)


def _count_words(memory: Memory, blocks: Blocks, index: int, address: int) -> int:
    return min(_MOST_WORDS, (blocks.address(index) + blocks.size(index) - address) // memory.size)


def read_greenlets(target: Target, blocks: Blocks, known: Types, tally: ObjectTally) -> Iterator[Greenlet]:
    """Yield the suspended greenlets with the functions that they execute, in the order of
    addresses."""
    frames, memory, left = find_frame_reader(target), Memory(target), _MOST_FRAMES
    for one in iterate_suspended(memory, blocks, known, tally.found) if frames is not None and not known.shift else ():
        if target.is_interrupted():
            return
        assert frames is not None
        frame = memory.word(one.frame + _FRAME) or 0 if frames.has_inner_frames else one.frame
        before = frames.number_read
        named = frames.name_frames(frame, min(max(left, _FEWEST_FRAMES), DEEPEST))
        left -= frames.number_read - before  # also those of a chain that ends in a damaged frame
        if named:
            thread = UserThread(0, "suspended", "", 0, 0, Range(0, 0), named, kind=KIND)
            yield Greenlet(one.address, (one.state, *_copies(memory, blocks, one), one.frame), thread)


def _copies(memory: Memory, blocks: Blocks, one: SuspendedGreenlet) -> Iterator[int]:
    """Yield the address of the copy of a greenlet's native stack. The fields {start, end, copy,
    size} describe it (StackState)."""
    for start, end, copy, size in zip(one.words, one.words[1:], one.words[2:], one.words[3:]):
        index = blocks.find(copy) if 0 < size <= end - start else -1
        if index >= 0 and blocks.address(index) == copy and size <= blocks.size(index):
            yield copy
            return
