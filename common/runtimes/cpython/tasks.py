"""Read asyncio's tasks: the chain of coroutines that a task executes, and what the innermost one
waits for.

A coroutine that waits has the awaited object on top of its stack of values. A task refers to its
coroutine; the words before and after are the future that it waits for, and its name.

Sources: Modules/_asynciomodule.c (TaskObj, futureiterobject), Include/cpython/genobject.h and
Include/internal/pycore_interpframe_structs.h of 3.14 (PyGenObject), Objects/genobject.c
(PyCoroWrapper, PyAsyncGenASend, _PyGen_yf), Include/cpython/frameobject.h (PyFrameObject) of 3.9
and 3.10, Include/internal/pycore_frame.h (_PyInterpreterFrame) of 3.11 to 3.13."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.frame_reader import FrameReader, find_frame_reader
from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.cpython.types import Types
from findleaks.target.base import Range, Target
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

TASK = "_asyncio.Task"
_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow")
"""Types whose first member is the coroutine or the generator that they drive."""
_FUTURE_ITERATOR = "_asyncio.FutureIter"
_WORDS = 32  # words of a task in which its coroutine is looked for
_DEEPEST = 1 << 10  # coroutines of a task
# Maximum number of coroutines that are read for all tasks together. After that, only this number of
# outermost coroutines is read of each task: in damaged memory, many tasks may refer to the same
# long chain.
_MOST_COROUTINES, _FEWEST = 1 << 19, 16
_TOP, _TAGS = 64, 7  # offset in a frame of the top of its stack; bits of a reference of 3.14
_STATE = -5  # offset from a frame of the state of its coroutine, since 3.11
_EXECUTING = 0  # FRAME_EXECUTING; waiting coroutines have lower numbers, ended ones higher ones
_CREATED, _OLD_CREATED = 253, 254  # FRAME_CREATED as an unsigned byte, since and before 3.13
_OLD_FRAME, _OLD_VALUES = 16, 64  # offsets of gi_frame and f_valuestack before 3.11


class _Suspended(NamedTuple):
    """A coroutine that has not ended: its frame, and what it waits for (0: nothing). `is_running`:
    a thread executes it. `is_new`: it has not been started, so that its stack of values is
    empty."""

    frame: int
    awaited: int
    is_running: bool
    is_new: bool = False


class Task(NamedTuple):
    """A task that has not ended: the address of its object, the addresses of its coroutines, and
    what `stacks` shows of it."""

    address: int
    coroutines: Sequence[int]
    thread: UserThread


def read_tasks(target: Target, blocks: Blocks, known: Types, tally: ObjectTally, names: ObjectNames) -> Iterator[Task]:
    """Yield the tasks that have not ended; see TaskReader.list."""
    frames = find_frame_reader(target)
    if frames is not None:
        yield from TaskReader(Memory(target), blocks, known, tally, names, frames).list(target.is_interrupted)


class TaskReader:
    """Reads the tasks of one interpreter."""

    def __init__(self, memory: Memory, blocks: Blocks, known: Types, tally: ObjectTally, names: ObjectNames, frames: FrameReader) -> None:
        self._memory, self._blocks, self._known, self._tally = memory, blocks, known, tally
        self._names, self._frames = names, frames
        self._left = _MOST_COROUTINES
        self._is_old = not names.layout.has_frames
        # The word of a task with its coroutine, by the number of the task's type.
        self._places: dict[int, int] = {}

    def list(self, stop: Callable[[], bool]) -> Iterator[Task]:
        """Yield the tasks that have not ended, in the order of addresses. Ends early if `stop`
        returns True."""
        wanted = set(self._known.list_derived((TASK,))) if self._names.is_supported else set()
        for index, number in enumerate(self._tally.found):
            if number in wanted:
                if stop():
                    return
                task = self._read(self._blocks.address(index) + self._known.offsets[number], index)
                if task is not None:
                    yield task

    def _read(self, address: int, index: int) -> Optional[Task]:
        size = self._blocks.address(index) + self._blocks.size(index) - address
        words = self._memory.words(address, min(_WORDS, size // self._memory.size)) or ()
        # All tasks of a type have the coroutine in the same word.
        at = self._places.get(self._tally.found[index], 0)
        if not (at < len(words) and self._names.is_suspended(words[at])):
            at = next((at for at, word in enumerate(words) if self._names.is_suspended(word)), 0)
            if at:
                self._places.setdefault(self._tally.found[index], at)
        frames, innermost, coroutines = self._read_chain(words[at]) if at else ((), None, ())
        if innermost is None:
            return None
        name = self._known.text(words[at + 1]) if at + 1 < len(words) else ""
        digits = re.search(r"\d+$", name)
        state = "running" if innermost.is_running else "pending"
        reason = "waits to be started" if innermost.is_new else self._describe(innermost.awaited)
        thread = UserThread(int(digits[0]) if digits else 0, state, reason, 0, 0, Range(0, 0), frames)
        return Task(address, coroutines, thread)

    def _read_chain(self, coroutine: int) -> tuple[Sequence[NamedFrame], Optional[_Suspended], Sequence[int]]:
        """Return the frames of a chain of coroutines, the innermost first, the innermost coroutine
        (None if there are no frames), and the addresses of the coroutines."""
        frames: list[NamedFrame] = []
        seen: dict[int, None] = {}
        innermost: Optional[_Suspended] = None
        most = min(_DEEPEST, max(self._left, _FEWEST))
        while coroutine and coroutine not in seen and len(seen) < most:
            seen[coroutine] = None
            one = self._find_suspended(coroutine)
            named = self._frames.name_frame(one.frame) if one is not None else None
            if one is None or named is None:
                break
            frames.append(named)
            innermost = one
            coroutine = self._driven_by(one.awaited)
        self._left -= len(seen)
        return tuple(reversed(frames)), innermost, tuple(seen)

    def _find_suspended(self, coroutine: int) -> Optional[_Suspended]:
        if self._is_old:
            return self._suspended_in_object(coroutine)
        frame = self._names.frame_of(coroutine)
        state = self._memory.read(frame + _STATE, 1) if frame else b""
        if not state or _EXECUTING < state[0] < 128:
            return None
        if state[0] == _EXECUTING:
            return _Suspended(frame, 0, True)
        if state[0] == (_OLD_CREATED if self._names.release < (3, 13) else _CREATED):
            return _Suspended(frame, 0, False, True)
        top = self._memory.word(frame + _TOP) or 0
        if self._names.release < (3, 14):
            top = frame + self._names.layout.variables + self._memory.size * (top & 0xFFFF)
        awaited = self._memory.word(top - self._memory.size) if top > frame + self._names.layout.variables else 0
        return _Suspended(frame, (awaited or 0) & ~_TAGS, False)

    def _suspended_in_object(self, coroutine: int) -> Optional[_Suspended]:
        """Return the same as `_find_suspended` for 3.9 and 3.10, where frames are objects. In 3.9,
        the word after f_valuestack is the top of the stack; it is 0 while the frame is executed. In
        3.10, the depth of the stack follows f_trace; it is -1 while the frame is executed."""
        frame = self._memory.word(coroutine + _OLD_FRAME)
        words = self._memory.words(frame + _OLD_VALUES, 3) if frame else None
        if not frame or words is None:
            return None
        values, top, _ = words
        if self._names.release == (3, 10):
            depth = self._memory.int32(frame + _OLD_VALUES + 2 * self._memory.size)
            top = values + self._memory.size * depth if depth is not None and depth < 1 << 16 else 0
        awaited = self._memory.word(top - self._memory.size) if top > values else 0
        return _Suspended(frame, awaited or 0, not top, top == values)

    def _driven_by(self, awaited: int) -> int:
        """Return the coroutine or generator that runs while an object is awaited.
        This is the object itself, or the coroutine or generator that the object wraps. Returns 0 if
        there is none."""
        if self._names.is_suspended(awaited):
            return awaited
        driven = self._memory.word(awaited + 16) or 0 if self._names.type_name(awaited) in _WRAPPERS else 0
        return driven if self._names.is_suspended(driven) else 0

    def _describe(self, awaited: int) -> str:
        """Return "waits for _asyncio.Future", or ""."""
        name = self._names.type_name(awaited)
        if name == _FUTURE_ITERATOR:
            name = self._names.type_name(self._memory.word(awaited + 16) or 0)
        return f"waits for {name}" if name else ""
