"""A CPython interpreter in a process."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import BinaryIO, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.pymalloc.instance import Pymalloc, version_of
from findleaks.allocators.pymalloc.types import Interpreter
from findleaks.allocators.pymalloc.types import types as find_types
from findleaks.allocators.sites import Recording
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import Heuristic, State
from findleaks.errors import Interrupted
from findleaks.runtimes.base import Count, Exclusions, Holders, ObjectTypes, Part, ReferenceCounts, Site, Type, UserThread, Variable
from findleaks.runtimes.cpython import collector, strings, tracing
from findleaks.runtimes.cpython.borrowed import Borrowed
from findleaks.runtimes.cpython.counts import compare_counts
from findleaks.runtimes.cpython.deques import list_deque_blocks
from findleaks.runtimes.cpython.engine import LEAF, NO_OBJECT, SUMS, ObjectTally, TypeColumns, count_objects, immortal_objects
from findleaks.runtimes.cpython.fatal_error import find_fatal_error
from findleaks.runtimes.cpython.interpreter_memory import InterpreterMemory, read_interpreter_memory
from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.cpython.python_frames import list_frames
from findleaks.runtimes.cpython.ranks import type_ranks
from findleaks.runtimes.cpython.remains import find_layouts, object_remains
from findleaks.runtimes.cpython.storage import find_storage, unused_storage
from findleaks.runtimes.cpython.types import SUBCLASSES, Types
from findleaks.runtimes.cpython.variables import of_module, variable
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.heap_dump import BlockReferences, DumpableBlocks
from findleaks.runtimes.managed_frame import Frame
from findleaks.target.base import Piece, Range, Target, Thread
from findleaks.target.ranges import blank_out, merge_ranges

_EXIT = "list of atexit callbacks"
HEAD = 160  # bytes of a block read to recognise its object, which begins in them


def _rank(made: Variable) -> tuple[bool, int, str, int]:
    """Return a sort key of an object's names. The name with the smallest key is used: within a
    module, the name that was bound first."""
    module = made.name.rpartition(".")[0]
    return module == "__main__", len(module), module, made.address


class CPython(DumpableBlocks):
    """A CPython interpreter; see runtimes.base.Runtime."""

    name = "CPython"
    lists_objects = True
    collect_calls = "gc.collect()", "gc.enable()"

    def __init__(self, target: Target, engine: Engine, directory: Directory, interpreter: Interpreter) -> None:
        self._target, self._engine, self._directory = target, engine, directory
        self._image, self._metatype, self._shift = interpreter
        self.version = version_of(target, self._image) + " (free-threaded)" * bool(self._shift)
        self.where = self._image.name
        self.problems: list[Problem] = []
        self._pymalloc = [one for one in directory.allocators if isinstance(one, Pymalloc)]

    def counters(self) -> Mapping[str, Count]:
        """Return the collector's counters, named as in gc.get_stats() and related functions, then
        counts computed here."""
        found = {name: Count(value) for name, value in self._collector.items()}
        sums = self.tally.sums
        found["objects tracked by the collector"] = Count(sum(sums[2::SUMS]))
        found["objects in free lists"] = Count(sum(sums[3::SUMS]))
        # interned strings in blocks, without those in the interpreter's own data
        found["interned strings"] = Count(sum(sums[4::SUMS]))
        found["bytes of interned strings"] = Count(sum(sums[5::SUMS]), "bytes")
        traced = self.traced
        if traced is not None:
            found["traced blocks"], found["traced memory"] = Count(traced.blocks), Count(traced.bytes, "bytes")
        return found

    @cached_property
    def _collector(self) -> Mapping[str, int]:
        found = collector.counters(self._target, self._engine, self._image, self._directory, self._lists.heads)
        if found.get(collector.COLLECTING):
            what = "Python was stopped in the middle of a collection: objects that it was about to free are counted"
            self.problems.append(Problem(self._metatype, what, False))
        return found

    def parts(self) -> Sequence[Part]:
        """Return pymalloc's arenas, which are also heaps of an allocator."""
        parts = []
        for one in self._pymalloc:
            ranges = self._directory.of(one)
            used = sum(self._directory.blocks.totals(State.IN_USE, *part).bytes for part in ranges)
            pools = f"{len(one.arena_objects):,} arenas of {one.arena_size >> 10:,} KiB, {len(one.pools):,} pools in use"
            parts.append(Part("pymalloc's arenas", ranges, used, True, pools))
        return parts

    @cached_property
    def known(self) -> Types:
        """All types. The first access searches every heap for them."""
        heaps = self._directory.ranges()
        main = next((one for one in self._pymalloc if not one.number), None)
        if main is not None:
            return Types(self._target, self._engine, main.types_in(heaps))
        data = [part for image in find_images(self._target) for part in image.data]
        addresses = find_types(self._target, self._engine, self._metatype, data, heaps, self._shift)
        return Types(self._target, self._engine, addresses, self._shift)

    @cached_property
    def borrowed(self) -> Borrowed:
        """Words of objects that are not references, as patterns by type."""
        return Borrowed(self.known, self._target.arch.word, self.version)

    @cached_property
    def tally(self) -> ObjectTally:
        """The objects of all heaps."""
        blocks, known = self._directory.blocks, self.known
        program = Range(self._image.module.start, self._image.module.end)
        marks, leaves = strings.marks(known, self._target.arch.word), strings.leaves(known, self.version)
        columns = TypeColumns(known.offsets, marks, leaves, bytes(self.borrowed.lives))
        tally = ObjectTally.of(blocks, known.addresses, columns, program, self._shift)
        for owned in self._directory.heaps:
            cut: array[int] = array("Q")
            for piece in self._target.pieces(owned.start, owned.end):
                if self._target.is_interrupted():
                    raise Interrupted
                cut += count_objects(self._engine, blocks, piece, tally)
            for address in cut:
                whole = self._whole_block(address, HEAD)
                if whole is not None:
                    count_objects(self._engine, blocks, whole, tally)
        return tally

    @cached_property
    def _names(self) -> list[str]:
        return [self.known.name(number) for number in range(len(self.known))]

    def release_command(self, call: str) -> str:
        """Return a Python statement that calls a function of the C library."""
        return "ctypes.CDLL(None).malloc_trim(0) in Python" if call == "malloc_trim(0)" else ""

    def types(self) -> Sequence[Type]:
        """Return live objects by type.

        `bytes` are the sizes of the objects' blocks, including the collector's headers. Types with
        the same name are summed."""
        sums = self.tally.sums
        found: dict[str, Type] = {}
        for number, name in enumerate(self._names):
            objects, size, tracked, kept = sums[SUMS * number : SUMS * number + 4]
            if objects or kept:
                before = found.get(name)
                own = {"tracked": tracked, "free": kept}
                if before is not None:
                    objects, size = objects + before.objects, size + before.bytes
                    own = {key: value + before.own[key] for key, value in own.items()}
                found[name] = Type(name, objects, size, own)
        return list(found.values())

    def holders(self) -> Optional[Holders]:
        """Return the type of the object in each block."""
        return Holders(array("Q"), array("I"), array("I"), self._names, self.tally.merged, self.known.foreign)

    def excluded_words(self) -> Optional[Exclusions]:
        """Exclude words of objects that are not references, and the addresses of blocks that
        tracemalloc traces. Strings and numbers have no pointers."""
        return self._excluded

    @cached_property
    def _excluded(self) -> Exclusions:
        patterns = self.tally.patterns
        if self.traced is not None:
            blocks, key_end = self._directory.blocks, tracing.KEY_END * self._target.arch.word
            for entry, index in zip(self.traced.entries, blocks.find_all(self.traced.entries)[0]):
                if index < len(patterns):  # the block may begin with a header of debug hooks
                    patterns[index] = self.borrowed.pair(entry - blocks.address(index) + key_end)
        for index in self._lists.stale_tables:
            patterns[index] = LEAF
        _ = self._unused_items
        for index, number in self._lists.free_objects:
            patterns[index] = self.borrowed.kept[number]
        for index, offset in self._lists.chained:
            patterns[index] = self.borrowed.all_but(offset)
        for index, offset in self._lists.ends:
            patterns[index] = self.borrowed.with_end(patterns[index], offset)
        return Exclusions(patterns, self.borrowed.exclusions)

    def bookkeeping(self) -> Sequence[Range]:
        """Return the heads of the collector's lists, the unused part of frame stacks, and the
        unused entries of free lists, deques, long lists and long frames."""
        word = self._target.arch.word
        _ = self._excluded  # computed first, because both set patterns
        return [*(Range(head, head + 2 * word) for head in self._lists.heads), *self._lists.unused, *self._unused_items]

    @cached_property
    def _unused_items(self) -> Sequence[Range]:
        """Unused parts of lists, deques and frames for which there are no patterns; computing them
        sets the other patterns."""
        of = self.known, self.version, self._target.arch.word
        found = unused_storage(self._engine, self._directory.blocks, self._pieces, self.tally, find_storage(*of), self.borrowed.all_of)
        layouts, add = find_layouts(*of), self.borrowed.with_words
        return found + object_remains(self._engine, self._directory.blocks, self._pieces(), self.tally, layouts, add)

    def _pieces(self) -> Iterator[Piece]:
        """Yield the memory of all heaps."""
        for owned in self._directory.heaps:
            for piece in self._target.pieces(owned.start, owned.end):
                if self._target.is_interrupted():
                    raise Interrupted
                yield piece

    @property
    def automatic_collection(self) -> Optional[bool]:
        enabled = self._collector.get(collector.ENABLED)
        return None if enabled is None else bool(enabled)

    def reference_counts(self, graph: Graph, pieces: Iterable[Piece]) -> Optional[ReferenceCounts]:
        """Compare reference counts; see Runtime."""
        return compare_counts(self._engine, graph, pieces, self._whole_block, self.tally, self._live_names)

    def _whole_block(self, address: int, most: int = 1 << 30) -> Optional[Piece]:
        """Return the memory of the block at `address`, at most `most` bytes, or None if it cannot
        be read."""
        blocks = self._directory.blocks
        size = min(most, blocks.size(blocks.find(address)))
        data, missing = self._engine.gather(tuple(self._target.pieces(address, address + size)), [address], size)
        return None if missing else Piece(address, memoryview(data))

    @cached_property
    def _lists(self) -> InterpreterMemory:
        return read_interpreter_memory(
            self._target, self._engine, self._image, self.version, self._directory.blocks, self.known, self.tally.found
        )

    @cached_property
    def _live_names(self) -> list[str]:
        """Names of the types that have live objects, by number; "" for the others."""
        names = []
        for number, objects in enumerate(self.tally.sums[::SUMS]):
            if self._target.is_interrupted():
                raise Interrupted
            names.append(self.known.name(number) if objects else "")
        return names

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the type of every live object, by its block. The names of types that have no live
        objects are not read."""
        names = self._live_names
        return ObjectTypes(self.tally.found, names, type_ranks(self.known, names), self.name, "Python object")

    def heuristics(self) -> tuple[Heuristic, Sequence[int]]:
        """Return pymalloc's rules for interior pointers. They are needed in a process whose objects
        are in blocks of other allocators."""
        if self._pymalloc:
            return Heuristic.NONE, ()
        # Objects/listobject.c, _PyListArray: a free-threaded list points to the word after a number
        return Heuristic.OBJECTS | (Heuristic.ITEMS if self._shift else Heuristic.NONE), self.known.addresses

    def permanent_blocks(self) -> Sequence[int]:
        """Return objects that 3.13 made immortal.

        When the first thread starts, 3.13 makes functions, code, types and modules immortal,
        garbage among them (Python/gc_free_threading.c: immortalize_visitor)."""
        found: array[int] = array("Q")
        for owned in self._directory.heaps if self._shift else ():
            for piece in self._target.pieces(owned.start, owned.end):
                if self._target.is_interrupted():
                    raise Interrupted
                found += immortal_objects(self._engine, self._directory.blocks, piece, self.tally)
        return found

    def variables(self) -> Sequence[Variable]:
        """Return variables of modules, except those whose values are modules themselves.

        An object with several names gets the name in a module other than __main__, if there is one:
        __main__ imported it from there."""
        return self._variables

    @cached_property
    def _variables(self) -> Sequence[Variable]:
        memory, blocks, found = Memory(self._target), self._directory.blocks, self.tally.found
        modules = {number for number in range(len(self.known)) if self.known.plain_name(number) == "module"}

        def left(address: int) -> int:
            at = blocks.lookup(address)
            return at[1] + at[2] - address if at is not None and at[3] == State.IN_USE else 0

        best: dict[int, Variable] = {}
        for index, number in enumerate(found):
            if number not in modules:
                continue
            if self._target.is_interrupted():
                raise Interrupted
            for made in of_module(memory, self.known, blocks.address(index) + self.known.offsets[number], left):
                value = blocks.find(made.value)
                if found[value] not in modules and (value not in best or _rank(made) < _rank(best[value])):
                    best[value] = made
        named = (made._replace(table=self._table(memory, value, made.value)) for value, made in best.items())
        return sorted(named, key=lambda made: made.address)

    def _table(self, memory: Memory, block: int, address: int) -> int:
        """Return the storage that only the collection in a block uses; 0 if there is none."""
        number = self.tally.found[block]
        flags = self.known.flags[number] if number != NO_OBJECT else 0
        words = memory.words(address + self._shift, 6)
        if words is None:
            return 0
        made = words[4] if flags & SUBCLASSES["dict"] and not words[5] else words[3] if flags & SUBCLASSES["list"] else 0
        at = self._directory.blocks.lookup(made) if made else None
        own = at is not None and at[3] == State.IN_USE and self.tally.found[at[0]] == NO_OBJECT
        return made if own else 0

    @cached_property
    def traced(self) -> Optional[tracing.Traced]:
        """tracemalloc's traces, or None if tracemalloc is off."""
        return tracing.read(self._target, self._engine, self._directory, self._image, lambda: self.known)

    def sites(self) -> Sequence[Site]:
        """Return tracemalloc's allocation sites, by whole traceback."""
        return self.traced.sites if self.traced is not None else []

    @property
    def recorded(self) -> bool:
        return self.traced is not None

    def recordings(self) -> Sequence[Recording]:
        """Return tracemalloc's recorded stacks."""
        return [self.traced.recording(self._target, self._directory.blocks)] if self.traced is not None else []

    @cached_property
    def _object_names(self) -> ObjectNames:
        return ObjectNames(self._target, self._directory.blocks, self.known, self.tally.found, self.version)

    def write_object_lines(self, references: BlockReferences, out: BinaryIO, report: Callable[[float], None]) -> list[str]:
        # Only `runtime -o` needs these modules.
        from findleaks.runtimes.cpython.member_lines import MemberLines
        from findleaks.runtimes.cpython.object_lines import ObjectLines

        blocks = self._directory.blocks
        members = MemberLines(Memory(self._target), blocks, self.known, self.tally, self._object_names)
        unused = merge_ranges(self.bookkeeping())

        def pieces() -> Iterator[Piece]:
            return (blank_out(piece, unused) for piece in self._pieces())

        lines = ObjectLines(self._engine, blocks, self.tally, self._live_names, members, references, pieces, self.containers())
        lines.write(out, report)
        return [f"{lines.written:,} objects, leaked ones included"]

    def containers(self) -> Iterable[tuple[int, Sequence[int]]]:
        blocks, memory = self._directory.blocks, Memory(self._target)
        return list_deque_blocks(memory, blocks, self.known, self.tally, self._target.is_interrupted)

    def callbacks(self) -> Sequence[Variable]:
        """Return two variables for each interpreter: the list of the callbacks of `atexit`, and the
        variable that refers to this list."""
        made, blocks = list[Variable](), self._directory.blocks
        for place, start, length, functions in self._lists.exit_callbacks:
            indices = (blocks.find(function) for function in functions)
            names = Counter(self.name_object(index) if index >= 0 else "" for index in indices)
            name, most = names.most_common(1)[0]
            what = f"calling {name}" if name and 2 * most > len(functions) else ""
            made += [Variable(_EXIT, 0, start, 0, what, length, "callbacks"), Variable("atexit callbacks", place, start, 0, self.name)]
        return made

    user_thread = "asyncio task"

    def user_threads(self) -> Sequence[UserThread]:
        """Return asyncio's tasks that have not ended, and suspended greenlets. Objects are read."""
        from findleaks.runtimes.cpython import greenlets, tasks  # few commands need them

        parts = self._target, self._directory.blocks, self.known, self.tally
        return [one.thread for found in (tasks.read_tasks(*parts, self._object_names), greenlets.read_greenlets(*parts)) for one in found]

    def findings(self) -> Sequence[Finding]:
        from findleaks.runtimes.cpython import pending_tasks, repeated_functions

        parts = self._target, self._directory.blocks, self.known, self.tally, lambda: self._object_names
        return [*pending_tasks.find_pending_tasks(*parts), *repeated_functions.find_repeated_functions(*parts)]

    def fatal_message(self, thread: Thread, frames: Sequence[tuple[int, str, str]]) -> str:
        text = find_fatal_error(Memory(self._target), frames)
        return f"Fatal Python error: {text}" if text else ""

    def name_object(self, index: int) -> str:
        return self._object_names.name_object(index)

    def name_member(self, address: int, holder: int = 0) -> str:
        at = bisect_right(self._frame_starts, address) - 1
        if at >= 0 and address < self._frames[at].range.end:
            return self._object_names.name_in_frame(self._frame_starts[at], address)
        return self._object_names.name_member(address, holder)

    def frames(self) -> Sequence[Frame]:
        """Return the frames in the threads' chunks; see interpreter_memory.py. There are none
        before 3.11, where frames are objects."""
        return self._frames

    @cached_property
    def _frame_starts(self) -> Sequence[int]:
        return [frame.range.start for frame in self._frames]

    @cached_property
    def _frames(self) -> Sequence[Frame]:
        return list_frames(self._target, self._object_names, self._lists.threads, self._lists.greenlets)

    def describe(self, address: int) -> str:
        blocks = self._directory.blocks
        index = blocks.find(address)
        number = self.tally.found[index] if index >= 0 else NO_OBJECT
        if number != NO_OBJECT:
            return f"Python object: {self.known.name(number)}"
        if index < 0 or blocks.state(index) != State.IN_USE:
            return ""
        return variable(Memory(self._target), self.known, blocks.address(index), blocks.size(index), address)
