"""Find the words of goroutines' stacks that Go's collector follows.

A frame at a call has a stack map (stack_maps.py). The following frames have no map: the innermost
frames of a goroutine that was stopped while it ran, frames that a signal handler interrupted, and
frames in which the current call is not a safe point. In these frames, and in frames whose map is
inconsistent, each word counts as a pointer. The number of these frames is reported.

Sources: Go 1.18 to 1.26, src/runtime/mgcmark.go (scanstack, scanframeworker), mgcstack.go;
src/cmd/compile/internal/liveness/plive.go (hasStackMap)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Optional

from findleaks.allocators.bulk import find_pointers, read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.goroutines import COPYING, INJECTED, RUNNING, SYSCALL, CallFrame, Goroutines
from findleaks.runtimes.go.pclntab import TOP_FRAME, find_function
from findleaks.runtimes.go.stack_maps import StackMaps, StackObject
from findleaks.runtimes.go.stack_shape import Shape
from findleaks.runtimes.go.types import Types
from findleaks.target.arch import AARCH64
from findleaks.target.base import Piece, Range, Target, Thread
from findleaks.target.ranges import merge_ranges
from findleaks.value_classes import NamedTuple

_WORD = 8
# Maximum number of frames, and of records of deferred calls, that are read for one goroutine. If a
# stack has more frames, each word of the rest of the stack counts as a pointer.
_MOST_FRAMES, _MOST_RECORDS = 1 << 16, 1 << 12
_MOST_SHAPES = 16  # shapes that are stored for one innermost pc
_CHECKED = 1 << 10  # goroutines between two checks for Ctrl-C
_SIGNAL_STACK = 32 << 10
_RED_ZONE = 128  # bytes below the stack pointer that C code may use (System V ABI)
_FIELDS = ("sched.sp", "sched.ctxt", "syscallsp", "_defer", "_panic")
# A signal handler makes the interrupted function call this function, which never returns to the
# point of the call.
_PANIC = "runtime.sigpanic"
_UNKNOWN = frozenset(INJECTED) - {_PANIC}
_RUNTIME = ("runtime.", "internal/runtime/")
# Calls of these functions are not safe points, so the caller has no stack map for such a call.
_NO_SAFE_POINTS = frozenset(
    (
        *(f"runtime.gcWriteBarrier{number}" for number in ("", *range(1, 9))),
        *("runtime.wbZero", "runtime.wbMove", "runtime.typedmemclr", "runtime.typedmemmove", "runtime.duffzero", "runtime.duffcopy"),
    )
)


class CallPath(NamedTuple):
    """A function on a stack, and its callers. `function`: the address of its code. `pc`: the return
    address in it. `caller`: the number of the path of its caller, 0 if it has none."""

    function: int
    pc: int
    caller: int


class FrameSlot(NamedTuple):
    """A word of the frames of a function. `path`: the number of the function's CallPath. `offset`:
    the distance of the word from the end of the frame."""

    path: int
    offset: int


class _Found(NamedTuple):
    """The pointers on one stack. `places`: addresses of the words that are pointers. `whole`: parts
    in which each word counts as a pointer. `objects`: stack objects by address. `sources`: for
    words that are local variables or arguments, where their frame has them. `frames`: the frames,
    innermost first, and the offsets of these words in each."""

    places: set[int]
    whole: list[Range]
    objects: dict[int, StackObject]
    sources: dict[int, FrameSlot]
    frames: list[tuple[CallFrame, Sequence[int]]]


class _Words(NamedTuple):
    """The pointers on all stacks. `addresses`, `values`: the words that are known to be pointers.
    `sources`: for each, the number of its FrameSlot, or 0 if it is in none.
    `bounds`: by number of the goroutine, the range of indices of the words on its stack. `whole`:
    by number of the goroutine, the parts of its stack in which each word counts as a pointer."""

    addresses: array[int]
    values: array[int]
    sources: array[int]
    bounds: dict[int, tuple[int, int]]
    whole: dict[int, list[Range]]


class StackRoots:
    """The pointers on the stacks of goroutines. `threads` returns all goroutines."""

    def __init__(
        self, memory: Memory, engine: Engine, types: Types, goroutines: Goroutines, threads: Callable[[], Sequence[UserThread]]
    ) -> None:
        self._memory, self._engine, self._types, self._goroutines, self.threads = memory, engine, types, goroutines, threads
        self._maps, self.tables = StackMaps(memory, memory.arch.name == AARCH64.name), goroutines.tables
        self._conservative = 0
        self._running: set[int] = set()
        self._shapes: dict[int, list[Shape]] = {}  # by innermost pc
        self._frame_words: dict[Optional[FrameSlot], int] = {None: 0}  # numbers
        self._paths: dict[Optional[CallPath], int] = {None: 0}  # numbers

    def count_conservative(self) -> int:
        """Return the number of frames without a stack map. If a stack cannot be unwound to its end,
        the rest of the stack counts as one frame."""
        return self._conservative if self._words else 0

    @property
    def structures(self) -> Sequence[int]:
        """The addresses of all g structures, including unused ones."""
        return self._goroutines.addresses

    def frame_words(self) -> tuple[Sequence[Optional[FrameSlot]], Sequence[int], Sequence[int], Sequence[int]]:
        """Return the words of frames that are pointers, by number; and for each pointer the number
        of its word (0: in no frame), its address, and its value."""
        found = self._words
        return list(self._frame_words), found.sources, found.addresses, found.values

    def paths(self) -> Sequence[Optional[CallPath]]:
        """Return the functions on stacks with their callers, by number. A caller has a smaller
        number."""
        return list(self._paths) if self._words else ()

    def words(self, threads: Iterable[UserThread]) -> Iterator[Sequence[int]]:
        """Yield the values of the words of these goroutines' stacks that may be pointers."""
        found, whole = self._words, list[Range]()
        start = end = 0
        for one in threads:
            first, last = found.bounds.get(one.number, (end, end))
            whole += found.whole.get(one.number, ())
            if first != end:
                yield found.values[start:end]
                start = first
            end = last
        yield found.values[start:end]
        for piece in self._pieces(whole):
            yield self._memory.arch.words(piece.data)

    def words_of_program(self, one: UserThread) -> set[int]:
        """Return the same words of one goroutine, without those of functions of Go's runtime."""
        found = self._words
        start, end = found.bounds.get(one.number, (0, 0))
        pairs = zip(found.values[start:end], found.sources[start:end])
        words = {value for value, source in pairs if source not in self._internal_sources}
        for piece in self._pieces(found.whole.get(one.number, ())):
            words.update(self._memory.arch.words(piece.data))
        return words

    @cached_property
    def _internal_sources(self) -> frozenset[int]:
        """The numbers of the words of frames of functions of the package runtime."""
        paths, tables = list(self._paths), self._goroutines.tables
        entries = {path.function for path in paths if path is not None}
        internal = {one for one in entries if (pair := find_function(tables, one)) is not None and pair[1].name.startswith(_RUNTIME)}
        slots = ((number, paths[slot.path]) for slot, number in self._frame_words.items() if slot is not None)
        return frozenset(number for number, path in slots if path is not None and path.function in internal)

    def _pieces(self, ranges: Iterable[Range]) -> Iterator[Piece]:
        for start, end in merge_ranges(ranges):
            if self._memory.target.is_interrupted():
                raise Interrupted
            yield from self._memory.target.pieces(start, end)

    def threads_with_registers(self) -> Sequence[Thread]:
        """Return the threads whose registers may contain pointers. These threads run goroutines. A
        thread in a system call is left out, because its goroutine has saved all pointers on the
        stack. If no goroutine is known, all threads are returned."""
        bounds = self._words.bounds
        return [thread for thread in self._memory.target.threads() if thread.tid in self._running or not bounds]

    def find(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the address and the value of the words with a value in [low, high)."""
        found = self._words
        yield from ((place, value) for place, value in zip(found.addresses, found.values) if low <= value < high)
        for piece in self._pieces(part for parts in found.whole.values() for part in parts):
            yield from zip(*find_pointers(self._engine, piece, low, high))

    @cached_property
    def _words(self) -> _Words:
        found = _Words(array("Q"), array("Q"), array("I"), {}, {})
        threads = self.threads()  # this also finds their structures
        structures, covered = self._structures(), _find_overlaps(threads)
        for number, one in enumerate(threads):
            if number % _CHECKED == 0 and self._memory.target.is_interrupted():
                raise Interrupted
            first, fields = len(found.addresses), structures.get(one.number)
            if _is_running(one, fields):
                self._running.add(one.thread)
            if one.stack.start <= one.sp < one.stack.end:
                whole = self._read(found, one, fields, covered.get(one.number, 0))
                if whole:
                    found.whole.setdefault(one.number, []).extend(whole)
            found.bounds[one.number] = first, len(found.addresses)
        return found

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

    def _read(self, made: _Words, one: UserThread, fields: Optional[Mapping[str, int]], covered: int) -> list[Range]:
        """Add the pointers of a goroutine's stack. Returns the parts in which each word counts as a
        pointer. `covered`: the end of another stack that overlaps this one, or 0."""
        start, end = one.sp & ~(_WORD - 1), one.stack.end
        # If the thread of a running goroutine cannot be unwound, `one.sp` may be stale.
        is_stale = one.state == RUNNING and (fields is None or fields["sched.sp"] == one.sp)
        if fields is None or is_stale or covered or one.state == COPYING:
            self._conservative += 1
            return [Range(max(start, covered), end)] if covered < end else []
        data = next(iter(self._memory.target.pieces(start, end)), None)
        known = self._memory.arch.words(data.data) if data is not None and data.address == start else ()
        limit = start + _WORD * len(known)

        def word(address: int) -> Optional[int]:
            inside = start <= address < limit and address % _WORD == 0
            return known[(address - start) // _WORD] if inside else self._memory.word(address)

        is_alike = not _is_running(one, fields) and not fields["_defer"] and start == one.sp
        shape = next((each for each in self._shapes.get(one.pc, ()) if each.fits(known)), None) if is_alike else None
        if shape is not None:
            pointers = [(start + _WORD * at, known[at], source) for at, source in zip(shape.places, shape.sources) if known[at]]
            further = (fields["sched.ctxt"], fields["_panic"])
            if not any(one.stack.start <= value < one.stack.end for value in (*further, *(value for _, value, _ in pointers))):
                for column, part in zip((made.addresses, made.values, made.sources), zip(*pointers)):
                    column.extend(part)
                return []
        returns: dict[int, int] = {}

        def read_return(address: int) -> Optional[int]:
            value = word(address)
            returns[(address - start) // _WORD] = value or 0
            return value

        found = _Found(set(), [], {}, {}, [])
        frames = self._goroutines.walk(one.pc, one.sp, one.stack, read_return, _MOST_FRAMES)
        reached = self._add_frames(found, frames, _is_running(one, fields), Range(start, end))
        self._number_frames(found)
        if is_alike and shape is None and not (reached or found.whole):
            self._add_shape(one.pc, returns, {(at - start) // _WORD: self._number(found.sources.get(at)) for at in found.places})
        if reached:
            self._conservative += 1
            found.whole.append(Range(reached, end))
        self._add_objects(found, one.stack, fields, word)
        for place in sorted(found.places):
            value = word(place) if start <= place < end else 0
            if value:
                made.addresses.append(place)
                made.values.append(value)
                made.sources.append(self._number(found.sources.get(place)))
        return [*found.whole, *(self._signal_stack(one) if _is_running(one, fields) else ())]

    def _number_frames(self, found: _Found) -> None:
        path = 0
        for frame, offsets in reversed(found.frames):
            path = self._paths.setdefault(CallPath(frame.function.entry, frame.pc, path), len(self._paths))
            found.sources.update((frame.end + at, FrameSlot(path, at)) for at in offsets)

    def _number(self, source: Optional[FrameSlot]) -> int:
        return self._frame_words.setdefault(source, len(self._frame_words))

    def _add_shape(self, pc: int, returns: Mapping[int, int], places: Mapping[int, int]) -> None:
        """Remember where the pointers are on a stack that was read to its end; see Shape.
        `places`: the numbers of the words' sources, by index of the word."""
        shapes, order = self._shapes.setdefault(pc, []), sorted(places)
        if len(shapes) < _MOST_SHAPES and returns and min(*returns, *order, 0) >= 0:
            last, sources = max(*returns, *order, 0), array("I", map(places.__getitem__, order))
            shapes.append(Shape(last + 1, itemgetter(*returns), itemgetter(*returns)(returns), order, sources))

    def _add_frames(self, found: _Found, frames: Iterator[CallFrame], is_running: bool, stack: Range) -> int:
        """Add the pointers of each frame. Returns the address after the last frame, or 0 if the
        last frame is that of the outermost function, which is empty on AArch64 since 1.27.
        `is_running`: whether the goroutine was stopped at an arbitrary instruction."""
        is_unsafe, is_inner, has_panicked = False, is_running, False
        start = stack.start
        for number, frame in enumerate(frames):
            function, end = frame.function, frame.end
            if end > stack.end or frame.sp < start - _WORD or (end <= start and number and not function.flag & TOP_FRAME):
                return start  # damaged
            is_safe = function.name not in _UNKNOWN
            pc = function.entry + function.resumption + 1 if has_panicked else frame.pc
            known = self._maps.find_of(frame, pc) if is_safe and not (is_unsafe or is_inner) else None
            if known is None:
                self._conservative += 1
                after = end + self._maps.arguments + max(function.arguments, 0)
                found.whole.append(Range(frame.sp & ~(_WORD - 1), min(after, stack.end)))
            elif not has_panicked or function.resumption:
                found.places.update([end + at for at in known.pointers])
                for each in known.objects:
                    found.objects[end + each.at] = each
            found.frames.append((frame, known.pointers if known is not None else ()))
            if function.flag & TOP_FRAME:
                return 0
            is_inner = is_inner and function.name.startswith(_RUNTIME)
            is_unsafe = not is_safe or (is_running and function.name in _NO_SAFE_POINTS)
            has_panicked = function.name == _PANIC
            start = end
        return start

    def _add_objects(self, found: _Found, stack: Range, fields: Mapping[str, int], word: Callable[[int], Optional[int]]) -> None:
        """Add the pointers in live stack objects. A stack object is live if a live pointer refers
        to it."""
        queue = [fields["sched.ctxt"], fields["_panic"], *self._iterate_deferred(found, stack, fields["_defer"], word)]
        if not found.objects:
            return
        starts, visited = sorted(found.objects), set[int]()
        queue += [word(place) or 0 for place in found.places]
        for piece in self._pieces(found.whole):
            queue += find_pointers(self._engine, piece, stack.start, stack.end)[1]
        while queue:
            value = queue.pop()
            at = bisect_right(starts, value) - 1
            if at < 0 or starts[at] in visited or value >= starts[at] + found.objects[starts[at]].size:
                continue
            visited.add(starts[at])
            inside = [starts[at] + offset for offset in found.objects[starts[at]].pointers]
            found.places.update(inside)
            queue += [word(place) or 0 for place in inside]

    def _iterate_deferred(self, found: _Found, stack: Range, record: int, word: Callable[[int], Optional[int]]) -> Iterator[int]:
        """Yield the functions of deferred calls. Add the pointers in those records of deferred
        calls (runtime._defer) that are on the stack."""
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

    def _signal_stack(self, one: UserThread) -> Iterator[Range]:
        """Yield the stack on which the thread of a running goroutine executes a signal handler. The
        kernel has saved the registers of the goroutine on this stack."""
        sp = self._stack_pointers.get(one.thread, one.sp) & ~(_WORD - 1)
        if not one.stack.start <= sp < one.stack.end:
            yield Range(sp, sp + _SIGNAL_STACK)

    @cached_property
    def _stack_pointers(self) -> Mapping[int, int]:
        """The stack pointers of threads."""
        return {thread.tid: thread.sp for thread in self._memory.target.threads()}


def _is_running(one: UserThread, fields: Optional[Mapping[str, int]]) -> bool:
    """Return whether a goroutine was stopped at an arbitrary instruction. For a goroutine in a
    system call, this is false if its stack pointer is the one that the runtime saved for the
    call."""
    return one.state == RUNNING or (one.state == SYSCALL and (fields is None or fields["syscallsp"] != one.sp))


def _find_overlaps(threads: Sequence[UserThread]) -> dict[int, int]:
    """Find goroutines whose stack overlaps the stack of another goroutine. Return the end of the
    other stack, by number of each such goroutine. With it, the caller reads each word only once.
    Stacks overlap only in a damaged core."""
    found: dict[int, int] = {}
    end = 0
    for one in sorted((one for one in threads if one.stack.start <= one.sp < one.stack.end), key=lambda one: one.sp):
        if one.sp < end:
            found[one.number] = end
        end = max(end, one.stack.end)
    return found


def live_stacks(threads: Sequence[UserThread]) -> list[Range]:
    """Return the live parts of goroutines' stacks, sorted."""
    return merge_ranges(Range(one.sp & ~7, one.stack.end) for one in threads if one.stack.start <= one.sp < one.stack.end)


def list_used_stacks(target: Target, threads: Sequence[UserThread], span_at: Callable[[int], Optional[Range]]) -> list[Range]:
    """Return the parts of stacks that goroutines and threads use. `span_at`: returns the span of
    stacks that contains an address.

    All of a stack counts if its stack pointer is unknown, or may be stale: the goroutine runs, but
    its thread executes a signal handler, or code of the runtime, on another stack."""
    pointers = {thread.tid: thread.sp for thread in target.threads()}
    stacks = {one.thread: one.stack for one in threads if one.thread}
    used = list[Range]()
    for one in threads:
        sp = pointers.get(one.thread, 0) if one.state == RUNNING else one.sp
        used.append(Range(one.sp & -_WORD, one.stack.end) if one.stack.start <= sp < one.stack.end else one.stack)
    for thread, sp in pointers.items():
        span, stack = span_at(sp), stacks.get(thread)
        if span is not None:
            end = stack.end if stack is not None and stack.start <= sp < stack.end else span.end
            used.append(Range(max(sp - _RED_ZONE, span.start) & -_WORD, end))
    return merge_ranges(used)
