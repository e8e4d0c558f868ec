"""List the frames of Python functions that threads execute. They are in the chunks of the threads'
data stacks (CPython 3.11 and newer; see interpreter_memory.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.errors import Interrupted
from findleaks.runtimes.cpython.interpreter_memory import BEFORE_TRIPLE, CHUNK_HEAD, LARGEST_CHUNK, MOST_CHUNKS
from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.managed_frame import Frame
from findleaks.target.base import Range, Target

MOST = 1 << 16  # frames of all threads
LONGEST = 1 << 20  # bytes of a chunk that are read
_GREENLETS = "suspended greenlets"
_AROUND = 1 << 10  # bytes of a thread state behind datastack_chunk that may have its pthread_t


def list_frames(target: Target, names: ObjectNames, threads: Sequence[int], greenlets: Sequence[int]) -> list[Frame]:
    """Return the frames, ascending. `threads`: addresses of the field datastack_chunk in thread
    states. `greenlets`: addresses of this field in the saved states of suspended greenlets. Raises
    Interrupted."""
    if not (names.is_supported and names.layout.has_frames):
        return []
    memory = Memory(target)
    pointers = {thread.thread_pointer: thread.tid for thread in target.threads() if thread.thread_pointer}
    found: list[Frame] = []
    owners = [(at, _tid(memory, at, pointers), "") for at in threads] + [(at, 0, _GREENLETS) for at in greenlets]
    for at, tid, owner in owners:
        for start, top in _chunks(memory, at):
            if target.is_interrupted():
                raise Interrupted
            if len(found) < MOST:
                found += _frames(memory, names, start, top, tid, owner)
    return sorted(found, key=lambda frame: frame.range)


def _tid(memory: Memory, at: int, pointers: dict[int, int]) -> int:
    """Return the tid of the thread with this state; 0 if unknown."""
    around = range(at - BEFORE_TRIPLE & -memory.size, at + _AROUND, memory.size)
    words = (memory.word(address) for address in around)
    return next((pointers[word] for word in words if word in pointers), 0)


def _chunks(memory: Memory, at: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of the used part of each chunk of a thread, the newest first."""
    words = memory.words(at, 2)
    chunk, top = words if words is not None else (0, 0)
    for _ in range(MOST_CHUNKS):
        head = memory.words(chunk, CHUNK_HEAD) if chunk else None
        if head is None or not 0 < head[1] <= LARGEST_CHUNK:
            return
        yield chunk + CHUNK_HEAD * memory.size, min(top, chunk + LONGEST)
        chunk = head[0]
        head = memory.words(chunk, CHUNK_HEAD) if chunk else None
        top = chunk + (CHUNK_HEAD + head[2]) * memory.size if head is not None else 0


def _frames(memory: Memory, names: ObjectNames, start: int, top: int, tid: int, owner: str) -> Iterator[Frame]:
    """Yield the frames in a part of a chunk. Each begins where the preceding one ends."""
    layout = names.layout
    starts = []
    at = start
    while at < top - layout.variables:
        if names.is_frame(at):
            starts.append(at)
            at += layout.variables
        else:
            at += memory.size
    for at, end in zip(starts, [*starts[1:], top]):
        yield Frame(names.code_name(memory.word(at + layout.code) or 0), tid, Range(at, end), owner)
