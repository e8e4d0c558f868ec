"""Find the functions that wait for a microtask: async functions that continue after the end of the
function that V8 executes now.

V8 executes the continuation of an async function as a microtask. The function's promise has a
reaction for the function that awaits it, and so on.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/promise.tq, js-promise.tq, js-generator.tq,
contexts.h, src/execution/isolate.cc (CaptureAsyncStackTrace)."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.runtimes.v8.frames.bytecode import Bytecode
from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.metadata import TAG
from findleaks.runtimes.v8.strings import SMI_SHIFT
from findleaks.value_classes import NamedTuple

_MOST_WAITING = 256
_ROOT = "current_microtask"
_TASKS = ("promise_fulfill_reaction_job_task", "promise_reject_reaction_job_task")
# Offsets in a task: of the handler and the promise; in a reaction: of the next one, of the handler
# and the promise; and the size of both.
_HANDLER, _TASK_PROMISE, _NEXT, _FULFILL, _REACTION_PROMISE, _SIZE = 24, 32, 8, 24, 32, 40
_EXTENSION, _MOST_SLOTS = 32, 6  # of a context: the extension, and the number of words from it on
_REACTIONS, _FLAGS, _STATUS = 24, 32, 3  # of a promise; the status is 0 if it is pending
# Offsets in a generator: the function, the bytecode at which it waits, and the promise of an async
# function or the first request of an async generator.
_FUNCTION, _POSITION, _PROMISE, _REQUEST_PROMISE = 24, 48, 80, 32


class Waiting(NamedTuple):
    """A function that waits, and the offset of the bytecode at which it goes on; -1 if unknown."""

    function: int
    offset: int


class Promises:
    """Follows promises of a heap."""

    def __init__(self, heap: FrameHeap, bytecode: Bytecode) -> None:
        self._heap, self._bytecode = heap, bytecode

    def waiting(self, isolate: int) -> Iterator[Waiting]:
        """Yield the functions that wait for the microtask that an isolate executes."""
        promise, seen = self._promise_of_task(self._heap.metadata.roots(isolate).get(_ROOT, -TAG) + TAG), set[int]()
        while promise and promise not in seen and len(seen) < _MOST_WAITING:
            seen.add(promise)
            reaction = self._reaction(promise)
            handler = self._field(reaction, _FULFILL) if reaction else 0
            generator = self._generator(handler)
            if generator:
                yield Waiting(self._word(generator, _FUNCTION), self._offset(generator))
                promise = self._promise_of(generator)
            else:
                # Promise.race() calls then(), whose own promise has no reaction.
                promise = self._promise_in_context(handler) if handler else 0
                promise = promise or (self._promise(self._field(reaction, _REACTION_PROMISE)) if reaction else 0)

    def _promise_of_task(self, task: int) -> int:
        """Return the promise that a task resolves; 0 if there is none."""
        if not self._heap.is_a(task, _TASKS):
            return 0
        generator = self._generator(self._field(task, _HANDLER))
        return self._promise_of(generator) if generator else self._promise(self._field(task, _TASK_PROMISE))

    def _reaction(self, promise: int) -> int:
        """Return the only reaction of a pending promise; 0 if there is none, or several."""
        if self._word(promise, _FLAGS) >> SMI_SHIFT & _STATUS:
            return 0
        found = self._word(promise, _REACTIONS)
        return found if self._heap.is_a(found, ("promise_reaction",)) and not self._field(found, _NEXT) & TAG else 0

    def _generator(self, handler: int) -> int:
        """Return the async function or async generator that a handler continues; 0 for others."""
        context = self._context(handler)
        found = self._word(context, _EXTENSION) if context else 0
        # The types have no names before V8 13.
        return found if self._heap.is_function(self._word(found, _FUNCTION)) and self._promise_of(found) else 0

    def _promise_of(self, generator: int) -> int:
        """Return the promise of an async function, or that of the first request to an async
        generator."""
        found = self._word(generator, _PROMISE)
        return self._promise(found) or self._promise(self._word(found, _REQUEST_PROMISE))

    def _promise_in_context(self, handler: int) -> int:
        """Return the promise that a builtin function resolves, such as that of Promise.all()."""
        context = self._context(handler)
        if not context or self._heap.functions.of(handler - TAG).script:
            return 0
        words = self._heap.memory.words(context - TAG + _EXTENSION, _MOST_SLOTS) or ()
        return next(filter(None, map(self._promise, words)), 0)

    def _promise(self, word: int) -> int:
        """Return a promise, also that of a capability; 0 if the word is neither."""
        if self._heap.is_a(word, ("promise_capability",)):
            word = self._word(word, 8)
        return word if self._heap.is_a(word, ("js_promise",)) else 0

    def _context(self, function: int) -> int:
        return self._heap.functions.context_of(function - TAG) if self._heap.is_function(function) else 0

    def _offset(self, generator: int) -> int:
        word = self._word(generator, _POSITION)
        return (word >> SMI_SHIFT) + 1 - self._bytecode.header if not word & 0xFFFFFFFF and not word >> 63 else -1

    def _field(self, struct: int, offset: int) -> int:
        """Return a field of a task or reaction. Since V8 12, a field may precede the others."""
        data = self._heap.maps.data(self._word(struct, 0)) if self._heap.version >= (12, 0) else None
        return self._word(struct, offset + max(0, data.size - _SIZE) if data is not None else offset)

    def _word(self, word: int, offset: int) -> int:
        return self._heap.memory.word(word - TAG + offset) or 0 if word & TAG else 0
