"""Find the words of goroutines' stacks that Go's collector follows.

A frame at a call has a stack map (stack_maps.py). These frames have none, so each of their words
counts as a pointer: the innermost frames of a goroutine that was stopped while it ran, frames that
a signal handler has interrupted, callers of functions that are no safe points, and frames whose map
is inconsistent. These frames are counted.

Sources: Go 1.18 to 1.26, src/runtime/mgcmark.go (scanstack, scanframeworker), mgcstack.go;
src/cmd/compile/internal/liveness/plive.go (hasStackMap)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.goroutines import COPYING, INJECTED, RUNNING, SYSCALL, CallFrame, Goroutines
from findleaks.runtimes.go.pclntab import TOP_FRAME
from findleaks.runtimes.go.stack_maps import NOTHING, StackMaps, StackObject
from findleaks.runtimes.go.types import Types
from findleaks.target.arch import AARCH64
from findleaks.target.base import Range, Thread
from findleaks.target.ranges import merge_ranges
from findleaks.value_classes import NamedTuple

_WORD = 8
# Of one goroutine. Each word of the rest of its stack counts as a pointer.
_MOST_FRAMES, _MOST_RECORDS = 1 << 16, 1 << 12
_CHECKED = 1 << 10  # goroutines between two checks for Ctrl-C
_SIGNAL_STACK = 32 << 10
_FIELDS = ("sched.sp", "sched.ctxt", "syscallsp", "_defer", "_panic")
# Their arguments have no map in advance: it depends on the function that reflect makes.
_STUBS = ("reflect.makeFuncStub", "reflect.methodValueCall")
# A signal handler makes the interrupted function call this. It never returns there.
_PANIC = "runtime.sigpanic"
_UNKNOWN = frozenset((*_STUBS, *INJECTED)) - {_PANIC}
_RUNTIME = ("runtime.", "internal/runtime/")
# Calls of these are no safe points, so the caller has no map for them.
_NO_SAFE_POINTS = frozenset(
    (
        *(f"runtime.gcWriteBarrier{number}" for number in ("", *range(1, 9))),
        *("runtime.wbZero", "runtime.wbMove", "runtime.typedmemclr", "runtime.typedmemmove", "runtime.duffzero", "runtime.duffcopy"),
    )
)


class _Found(NamedTuple):
    """The pointers on one stack: addresses of words, and stack objects by address."""

    places: set[int]
    objects: dict[int, StackObject]


class StackRoots:
    """The pointers on the stacks of goroutines. `threads` returns all goroutines."""

    def __init__(
        self, memory: Memory, engine: Engine, types: Types, goroutines: Goroutines, threads: Callable[[], Sequence[UserThread]]
    ) -> None:
        self._memory, self._engine, self._types, self._goroutines, self.threads = memory, engine, types, goroutines, threads
        self._maps = StackMaps(memory, memory.arch.name == AARCH64.name)
        self._conservative = 0
        self._running: set[int] = set()

    def count_conservative(self) -> int:
        """Return the number of frames without a stack map. A stack that cannot be unwound counts as
        one frame from there on."""
        return self._conservative if self._words else 0

    @property
    def structures(self) -> Sequence[int]:
        """The addresses of all g structures, including unused ones."""
        return self._goroutines.addresses

    def words(self, threads: Iterable[UserThread]) -> Iterator[Sequence[int]]:
        """Yield the values of the words of these goroutines' stacks that may be pointers."""
        _, values, bounds = self._words
        start = end = 0
        for one in threads:
            first, last = bounds.get(one.number, (end, end))
            if first != end:
                yield values[start:end]
                start = first
            end = last
        yield values[start:end]

    def threads_with_registers(self) -> Sequence[Thread]:
        """Return the threads whose registers may contain pointers. They run goroutines: at a system
        call, a goroutine has saved its pointers on its stack."""
        _, _, bounds = self._words
        return [thread for thread in self._memory.target.threads() if thread.tid in self._running or not bounds]

    def find(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the address and the value of the words with a value in [low, high)."""
        addresses, values, _ = self._words
        yield from ((place, value) for place, value in zip(addresses, values) if low <= value < high)

    @cached_property
    def _words(self) -> tuple[array[int], array[int], Mapping[int, tuple[int, int]]]:
        """The addresses and the values of all words, and by number of the goroutine, which of these
        are on its stack."""
        addresses, values, bounds = array("Q"), array("Q"), dict[int, tuple[int, int]]()
        threads = self.threads()  # this also finds their structures
        structures = self._structures()
        for number, one in enumerate(threads):
            if number % _CHECKED == 0 and self._memory.target.interrupted():
                raise Interrupted
            first = len(addresses)
            for place, value in self._read(one, structures.get(one.number)):
                addresses.append(place)
                values.append(value)
            bounds[one.number] = first, len(addresses)
        return addresses, values, bounds

    def _structures(self) -> dict[int, Mapping[str, int]]:
        """Return some fields of each goroutine's structure, by number of the goroutine."""
        structure = self._types.find("runtime.g")
        one = self._types.at(structure) if structure is not None else None
        offsets = {name: self._types.offset(structure, name) for name in _FIELDS} if structure is not None else {}
        places = {name: offset for name, offset in offsets.items() if offset is not None}
        if one is None or len(places) < len(_FIELDS):
            return {}
        order = sorted((address, number) for number, address in self._goroutines.structures.items())
        data, missing = read_records(self._memory.target, self._engine, array("Q", [address for address, _ in order]), one.size)
        words = self._memory.arch.words(data)
        return {
            number: {name: words[(at * one.size + offset) // _WORD] for name, offset in places.items()}
            for at, (_, number) in enumerate(order)
            if at not in missing
        }

    def _read(self, one: UserThread, fields: Optional[Mapping[str, int]]) -> Iterator[tuple[int, int]]:
        """Yield the addresses and the values of pointers on a goroutine's stack, ascending."""
        start, end = one.sp & ~(_WORD - 1), one.stack.end
        if _is_running(one, fields):
            self._running.add(one.thread)
        if not one.stack.start <= one.sp < end:
            return
        words = self._memory.words(start, (end - start) // _WORD)
        if words is None:
            self._conservative += 1
            pairs = ((at, list(part)) for at, part in self._memory.scan(start, end))
            yield from ((at + _WORD * place, value) for at, part in pairs for place, value in enumerate(part) if value)
            return

        def word(address: int) -> Optional[int]:
            inside = start <= address < end and address % _WORD == 0
            return words[(address - start) // _WORD] if inside else self._memory.word(address)

        places = self._places(one, fields, word)
        for place in sorted(places):
            if start <= place < end and words[(place - start) // _WORD]:
                yield place, words[(place - start) // _WORD]
        if _is_running(one, fields):
            yield from self._interrupted(one)

    def _places(self, one: UserThread, fields: Optional[Mapping[str, int]], word: Callable[[int], Optional[int]]) -> set[int]:
        """Return the addresses of pointers on a goroutine's stack."""
        start, end = one.sp & ~(_WORD - 1), one.stack.end
        found = _Found(set(), {})
        # A goroutine that runs, but whose thread cannot be unwound, has a stack pointer that may be
        # stale.
        is_stale = one.state == RUNNING and (fields is None or fields["sched.sp"] == one.sp)
        if fields is None or is_stale or one.state == COPYING:
            self._conservative += 1
            return set(range(start, end, _WORD))
        frames = self._goroutines.walk(one.pc, one.sp, one.stack, word, _MOST_FRAMES)
        reached = self._add_frames(found, frames, _is_running(one, fields), start)
        if reached:
            self._conservative += 1
            found.places.update(range(reached, end, _WORD))
        self._add_objects(found, one.stack, fields, word)
        return found.places

    def _add_frames(self, found: _Found, frames: Iterator[CallFrame], is_running: bool, start: int) -> int:
        """Add the pointers of each frame. Returns the address after the last frame, or 0 if this is
        the outermost function. `is_running`: the goroutine was stopped at any instruction."""
        is_unsafe, is_inner, has_panicked, top = False, is_running, False, False
        for frame in frames:
            function = frame.function
            is_safe = function.name not in _UNKNOWN
            pc = function.entry + function.resumption + 1 if has_panicked else frame.pc
            known = self._maps.find(frame.table, function, pc, frame.depth) if is_safe and not (is_unsafe or is_inner) else None
            if known is None:
                self._conservative += 1
                after = frame.end + self._maps.arguments + max(function.arguments, 0)
                found.places.update(range(frame.sp & ~(_WORD - 1), after, _WORD))
            else:
                known = known if not has_panicked or function.resumption else NOTHING
                found.places.update(frame.end + at for at in known.pointers)
                found.objects.update((frame.end + each.at, each) for each in known.objects)
            is_inner = is_inner and function.name.startswith(_RUNTIME)
            is_unsafe = not is_safe or (is_running and function.name in _NO_SAFE_POINTS)
            has_panicked = function.name == _PANIC
            start, top = frame.end, bool(function.flag & TOP_FRAME)
        return 0 if top else start

    def _add_objects(self, found: _Found, stack: Range, fields: Mapping[str, int], word: Callable[[int], Optional[int]]) -> None:
        """Add the pointers of stack objects that are alive: other pointers lead to them."""
        queue = [fields["sched.ctxt"], fields["_panic"], *self._deferred(found, stack, fields["_defer"], word)]
        starts, visited = sorted(found.objects), set[int]()
        if not starts:
            return
        queue += [word(place) or 0 for place in found.places]
        while queue:
            value = queue.pop()
            at = bisect_right(starts, value) - 1
            if at < 0 or starts[at] in visited or value >= starts[at] + found.objects[starts[at]].size:
                continue
            visited.add(starts[at])
            inside = [starts[at] + offset for offset in found.objects[starts[at]].pointers]
            found.places.update(inside)
            queue += [word(place) or 0 for place in inside]

    def _deferred(self, found: _Found, stack: Range, record: int, word: Callable[[int], Optional[int]]) -> Iterator[int]:
        """Yield the functions of deferred calls. Add the pointers of records on the stack."""
        function, following = self._deferral
        for _ in range(_MOST_RECORDS):
            if not record:
                return
            if stack.start <= record < stack.end:
                found.places.update((record + function, record + following))
            yield word(record + function) or 0
            record = word(record + following) or 0

    @cached_property
    def _deferral(self) -> tuple[int, int]:
        """The offsets of the function and of the next record in runtime._defer."""
        structure = self._types.find("runtime._defer")
        offsets = [self._types.offset(structure, name) for name in ("fn", "link")] if structure is not None else []
        return offsets[0] or 0, offsets[1] or 0

    def _interrupted(self, one: UserThread) -> Iterator[tuple[int, int]]:
        """Yield the words of the stack on which the thread of a running goroutine executes a signal
        handler: there, the kernel has saved the registers of the goroutine."""
        sp = self._stack_pointers.get(one.thread, one.sp)
        for address, words in self._memory.scan(sp, sp + _SIGNAL_STACK) if not one.stack.start <= sp < one.stack.end else ():
            yield from ((address + _WORD * at, value) for at, value in enumerate(words) if value)

    @cached_property
    def _stack_pointers(self) -> Mapping[int, int]:
        """The stack pointers of threads."""
        return {thread.tid: thread.sp for thread in self._memory.target.threads()}


def _is_running(one: UserThread, fields: Optional[Mapping[str, int]]) -> bool:
    """Return whether a goroutine was stopped at any instruction. In a system call, it has left its
    stack by itself."""
    return one.state == RUNNING or (one.state == SYSCALL and (fields is None or fields["syscallsp"] != one.sp))


def live_stacks(threads: Sequence[UserThread]) -> list[Range]:
    """Return the live parts of goroutines' stacks, sorted."""
    return merge_ranges(Range(one.sp & ~7, one.stack.end) for one in threads if one.stack.start <= one.sp < one.stack.end)
