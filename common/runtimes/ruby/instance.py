"""A Ruby interpreter in a process."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.disasm.capstone_loader import CAPSTONE_MISSING, load_capstone
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.runtimes.allocation_site import Site
from findleaks.runtimes.base import Count, Exclusions, Holders, Objects, Part, Type, Variable
from findleaks.runtimes.exclusion_table import exclude_whole_blocks
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.heap_dump import DumpableHeap, HeapReferences, ObjectNames, ObjectTable
from findleaks.runtimes.ruby import census as c
from findleaks.runtimes.ruby.counters import Counters
from findleaks.runtimes.ruby.fiber_stacks import build_part, find_fiber_stacks, find_many_fibers
from findleaks.runtimes.ruby.interior import find_interior_offsets
from findleaks.runtimes.ruby.layout import Layout, find_data, find_exported
from findleaks.runtimes.ruby.objects import Slots
from findleaks.runtimes.ruby.pages import Pages
from findleaks.runtimes.ruby.remedies import REMEDIES, SINGLETON
from findleaks.runtimes.ruby.reported import DATA, read_reported, reported_at
from findleaks.runtimes.ruby.shape_tree import find_shape_tree
from findleaks.runtimes.ruby.tables import NEWEST_SHARED, SHARED
from findleaks.runtimes.ruby.traces import TraceReader, Traces
from findleaks.runtimes.ruby.transient_heap import TransientHeap, find_transient_heap
from findleaks.runtimes.ruby.values import Values
from findleaks.runtimes.ruby.variables import GETTERS, NO_VALUES, Exported, Finder, Found, Starts
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges, subtract

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.runtimes.ruby.value_stacks import ValueStack

LOOK = 4096  # objects between two checks for the user's interrupt
NAMED = 1 << 16  # groups of objects that are distinguished; a sound heap has some hundreds
SEARCHED = 2048  # data types whose free functions are analysed; a program has at most some hundreds
OTHER = "(of further classes)"
VM, THREAD, FIBER = "VM", "VM/thread", "fiber"  # data types; the data of the first is the rb_vm_t

_NO_TRANSIENT_HEAP = (3, 3)  # the first version without a transient heap and with a shape tree
_EMPTY = (c.T_FLOAT, c.T_MOVED)  # types that refer to no native memory


class Ruby(DumpableHeap):
    """See base.Runtime."""

    name = "Ruby"
    lists_objects = True
    report_call = "rb_gc_adjust_memory_usage()"

    def __init__(self, target: Target, engine: Engine, directory: Directory, layout: Layout) -> None:
        self.problems: list[Problem] = []
        self.version, self.where = layout.version, layout.module.path.rsplit("/", 1)[-1]
        self._target, self._engine, self._directory, self._layout = target, engine, directory, layout
        self._memory = Memory(target)
        self._counters = Counters(self._memory, layout, self.problems)
        at = layout.objspace
        if not at:
            expected = "rb_gc_count has unexpected code: the heap cannot be read"
            self._problem(layout.module.start, self.note() or expected)
        elif not layout.sorted:
            self._problem(at, f"no array of heap pages in its object space at {at:#x}: this version's heap cannot be read")
        if at and not layout.increase:
            self._problem(at, "rb_gc_adjust_memory_usage has unexpected code: malloc_increase is omitted")
        doing = self._counters.stopped_in()
        if doing:
            self._problem(at, f"stopped in the middle of a garbage collection ({doing}): dead objects may be counted as live")

    def note(self) -> str:
        missing = not self._layout.objspace and load_capstone() is None
        return f"Ruby's heap cannot be read: {CAPSTONE_MISSING}" if missing else ""

    def _problem(self, address: int, what: str) -> None:
        self.problems.append(Problem(address, f"Ruby {self.version}: {what}", False))

    @cached_property
    def pages(self) -> Pages:
        """The pages of the heap."""
        return Pages(self._target, self._layout, self.problems)

    @cached_property
    def _inside(self) -> Sequence[Range]:
        """The pages that are in malloc's blocks. Before 3.1, all pages are."""
        return self.pages.inside(self._directory.blocks)

    @cached_property
    def _object_memory(self) -> Sequence[Range]:
        """The parts of blocks that contain objects and their elements, but no native memory."""
        return sorted([*self._inside, *(self._transient.inside(self._directory.blocks) if self._transient is not None else ())])

    @cached_property
    def _census(self) -> c.Census:
        taken = c.Census(self._engine, self.pages)
        if taken.left:
            self._problem(self._layout.objspace, f"{taken.left} slots are not distinguished by class: there are too many classes")
        return taken

    @cached_property
    def _values(self) -> Values:
        made = Values(self._memory, self._find_exported)
        if made.place is None and self.pages.all:
            self._problem(self._layout.objspace, "names of classes not found: objects are listed by the address of their class")
        return made

    @cached_property
    def _counted(self) -> Mapping[str, Count]:
        return self._counters.read(self.pages.all, self._census.by_type())

    @cached_property
    def _names(self) -> list[str]:
        """The name of each group of slots; "" for groups of free slots."""
        sorts = enumerate(interruptible(self._target, self._census.sorts, 256))
        return [self._name(sort) if number < NAMED else OTHER for number, sort in sorts]

    def counters(self) -> Mapping[str, Count]:
        return self._counted

    def parts(self) -> Sequence[Part]:
        if not self.pages.all:
            return []
        found = [c.describe_pages(self._census, self.pages, self._layout.page, bool(self._inside))]
        if self._transient is not None:
            found.append(self._transient.describe())
        return [*found, *filter(None, [build_part(self._fiber_stacks), self._shape_tree])]

    @cached_property
    def _fiber_stacks(self) -> Sequence[Range]:
        return find_fiber_stacks(self._target, self._memory, self._directory.blocks, self._select_data(FIBER))

    def findings(self) -> Sequence[Finding]:
        return list(find_many_fibers(self._target, self._fiber_stacks, self._value_stacks)) if self._fiber_stacks else []

    def types(self) -> Sequence[Type]:
        objects: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for name, sort, count in zip(self._names, self._census.sorts, self._census.counts):
            if name:
                objects[name] += count
                sizes[name] += count * sort.size
        if self._census.left:
            objects[OTHER] += self._census.left
        return [Type(name, count, sizes[name]) for name, count in objects.items()]

    def holders(self) -> Optional[Holders]:
        """Return objects that may refer to native memory. T_DATA of extensions come first, because
        they free the data that they wrap."""
        if not self.pages.all:
            return None
        sorts, own = self._census.sorts, self._layout.module
        owning = {name for name, sort in zip(self._names, sorts) if sort.data and not own.start <= sort.data < own.end}
        names = sorted({*self._names, OTHER} - {""}, key=lambda name: (name not in owning, name))
        places = {name: number for number, name in enumerate(names)}
        kinds = array("I", [*(places.get(name, NO_ROOT) for name in self._names), places[OTHER]])
        wanted = bytearray(sort.tag not in _EMPTY for sort in sorts) + b"\1"
        addresses, sizes, types = self._census.addresses(wanted, kinds)
        return Holders(addresses, sizes, types, names, owning=len(owning), pages=self._object_memory)

    def reported_bytes(self, name: str) -> Optional[int]:
        return self._reported_totals.get(name)

    @cached_property
    def _reported_totals(self) -> Mapping[str, int]:
        """The bytes that each type's objects reported. Types with unknown bytes are left out."""
        sorts = self._census.sorts
        offsets = [self._report_offsets.get(sort.data) for sort in sorts]
        unknown = {name for name, offset in zip(self._names, offsets) if offset is None}
        totals = dict.fromkeys((name for name in self._names if name not in unknown), 0)
        wanted = bytearray(name in totals for name in self._names) + b"\0"
        slots, _, numbers = self._census.addresses(wanted, array("I", range(len(wanted)))) if any(wanted) else ((), (), ())
        for slot, number in interruptible(self._target, zip(slots, numbers), LOOK):
            totals[self._names[number]] += read_reported(self._memory, slot, offsets[number] or 0)
        return totals

    def remedies(self, type_name: str) -> Sequence[str]:
        return REMEDIES.get(type_name, ())

    def reference_chain(self, type_name: str) -> str:
        # Only `verdict` needs this module.
        from findleaks.runtimes.ruby.class_holders import OF_CLASSES, find_class_holder

        objects = sum(count for name, count in zip(self._names, self._census.counts) if name == type_name)
        return find_class_holder(self._memory, self._values, self.variables(), type_name, objects) if type_name in OF_CLASSES else ""

    def dead(self) -> Sequence[Range]:  # free slots, and stale words in the transient heap
        return [*self._census.free(), *(self._transient.dead if self._transient is not None else ())]

    @cached_property
    def _transient(self) -> Optional[TransientHeap]:
        is_old = self._layout.numbers < _NO_TRANSIENT_HEAP and self.pages.all
        return find_transient_heap(self._target, self._memory, self._data) if is_old else None

    @cached_property
    def _shape_tree(self) -> Optional[Part]:
        return find_shape_tree(self._target, self._memory, self._data) if self._layout.numbers >= _NO_TRANSIENT_HEAP else None

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        threads = (self._memory.word(slot + DATA) or 0 for slot in self._select_data(THREAD))
        return find_interior_offsets(self._memory, self._directory.blocks, interruptible(self._target, self.pages.all, LOOK), threads)

    @property
    def _data(self) -> list[Range]:
        return find_data(self._target, self._layout.module)

    def variables(self) -> Sequence[Variable]:
        """Return variables. Variables of objects to which these variables refer are listed, too."""
        return self._variables.variables

    def object_nodes(self) -> Optional[Objects]:
        return self._objects[0] if self._objects is not None else None

    def words_for_ownership(self) -> Optional[Exclusions]:
        """Exclude all words of blocks in which objects store elements, texts or buffers, and of
        entries in lists of subclasses.

        The elements of Arrays and tables refer only to Ruby objects. Texts and buffers of IO have
        no references. Other words of these blocks may be stale addresses of native memory. A stale
        word that refers to one entry of a list reaches all entries."""
        if self._objects is None:
            return None
        excluded = self._objects[1] + self._io_buffers + self._subclass_entries
        return exclude_whole_blocks(self._target, self._directory.blocks, excluded)

    @cached_property
    def _objects(self) -> Optional[tuple[Objects, array[int]]]:
        """Return the objects, and the addresses of their buffers without native memory."""
        if not self._variables.variables:
            return None
        slots, ranges = self._slots(), subtract(self.pages.ranges(), self.pages.behind(self._inside))
        ranges = merge_ranges([*ranges, *self._object_memory])
        return slots.objects(self._variables.divided, ranges, self._object_memory), slots.plain

    @cached_property
    def _io_buffers(self) -> array[int]:
        """The addresses of the buffers of IO objects (type code "Q")."""
        from findleaks.runtimes.ruby.io_buffers import find_io_buffers

        files = self._select(lambda sort: sort.tag == c.T_FILE)
        return array("Q", find_io_buffers(self._memory, self._directory.blocks, interruptible(self._target, files)))

    @cached_property
    def _subclass_entries(self) -> array[int]:
        """The addresses of the entries in lists of subclasses (type code "Q")."""
        from findleaks.runtimes.ruby.weak_references import find_subclass_entries

        classes = self._select(lambda sort: sort.tag in (c.T_CLASS, c.T_MODULE, c.T_ICLASS))
        found = find_subclass_entries(self._memory, self._directory.blocks, interruptible(self._target, classes), self._variables.extension)
        return array("Q", found)

    def _slots(self) -> Slots:
        long, found, name = self._values.long, self._variables, self._read_struct_name
        return Slots(self._memory, self._engine, self._census, long, self._shared, found.counts, name, found.is_complex)

    @property
    def _shared(self) -> int:
        """The flag of an Array or String whose data belongs to another Array or String."""
        return NEWEST_SHARED if self._layout.numbers >= (3, 4) else SHARED

    @cached_property
    def _by_address(self) -> Mapping[int, Variable]:
        return {one.address: one for one in self.variables()}

    @cached_property
    def _variables(self) -> Found:
        if not self.pages.all or self._values.place is None:
            return Found([], [], lambda shape: 0)
        classes = self._select(lambda sort: sort.tag == c.T_MODULE or sort.flags & (c.MASK | self._values.singleton) == c.T_CLASS)
        singular = self._select(lambda sort: sort.tag not in NO_VALUES and self._values.is_singleton(sort.klass))
        symbols = {name: find_exported(self._target, [self._layout.module], name) for name in GETTERS}
        getters = {name: symbol.address for name, symbol in symbols.items() if symbol is not None}
        words = Exported(self._find_exported("rb_cObject") or 0, *(getters.get(name, 0) for name in GETTERS))
        methods = self._select(lambda sort: sort.flags == c.METHOD_ENTRY)
        named = interruptible(self._target, classes)
        space, machines = self._layout.objspace, self._machines
        threads, fibers = self._select_data(THREAD), self._select_data(FIBER)
        starts = Starts(named, singular, threads, methods, space, machines, lambda: self._value_stacks, fibers)
        return Finder(self._memory, self._engine, self._values, self.pages.slot, words, starts, self._data, self._layout.numbers).find()

    @cached_property
    def _value_stacks(self) -> Sequence[ValueStack]:
        from findleaks.runtimes.ruby.frame_reader import find_frame_reader

        frames = find_frame_reader(self._target, [self._layout.module])
        holders = (self._memory.word(slot + DATA) or 0 for name in (THREAD, FIBER) for slot in self._select_data(name))
        return frames.value_stacks(holders) if frames is not None else ()

    @cached_property
    def _machines(self) -> list[Range]:
        """The structures of virtual machines (rb_vm_t), which begin with their object's address."""
        found = ((slot, self._directory.blocks.lookup(self._memory.word(slot + DATA) or 0)) for slot in self._select_data(VM))
        return [Range(one[1], one[1] + one[2]) for slot, one in found if one is not None and self._memory.word(one[1]) == slot]

    def _select_data(self, name: str) -> array[int]:
        """Return the addresses of the typed T_DATA whose data type has this name."""
        return self._select(lambda sort: self._read_struct_name(sort.data) == name if sort.data else False)

    def _select(self, is_wanted: Callable[[c.Sort], bool]) -> array[int]:
        """Return the addresses of the slots of the wanted groups, ascending (type code "Q")."""
        wanted = bytearray(map(is_wanted, self._census.sorts)) + b"\0"
        return self._census.addresses(wanted, array("I", bytes(4 * len(wanted))))[0] if any(wanted) else array("Q")

    @cached_property
    def _traces(self) -> Traces:
        symbols = self._variables.symbols
        return TraceReader(self._target, self._memory, self._values, symbols).read() if symbols is not None else Traces({}, 0)

    def sites(self) -> Sequence[Site]:
        from findleaks.runtimes.ruby.trace_sites import list_sites  # few programs are traced

        return list_sites(self._traces.by_object, self.pages.slot) if self._traces.by_object else []

    def object_table(self) -> Optional[ObjectTable]:
        if not self.pages.all or self._values.place is None:
            return None
        # Imported here, because most commands need no table of objects.
        from findleaks.runtimes.ruby.object_table import build_object_table

        slots, ranges = self._slots(), subtract(self.pages.ranges(), self.pages.behind(self._inside))
        objects = slots.objects((), ranges, self._inside, True, self._variables.further_buffers())
        names = [*self._names, OTHER if self._census.left else ""]
        # The arena is scanned as a whole: it may have many buffers with small gaps between them.
        arena = [self._transient.arena] if self._transient is not None else []
        return build_object_table(self._census, names, slots, objects, self._opaque(), merge_ranges([*ranges, *arena]))

    def contains(self, address: int) -> bool:
        found = self.pages.slot(address)
        return found is not None and (self._memory.word(found[0]) or 0) & c.MASK != c.T_NONE

    @cached_property
    def object_names(self) -> ObjectNames:
        # Imported here, because only commands that describe single objects need this module.
        from findleaks.runtimes.ruby.object_names import RubyNames

        return RubyNames(self._memory, self._values, self._variables, self._value_stacks)

    def _opaque(self) -> Iterator[int]:
        """For each block whose words keep no object alive, yield an address in the block."""
        from findleaks.runtimes.ruby.weak_references import find_frozen_strings

        yield from (self._layout.objspace, self._traces.entries, *self._io_buffers)
        for start, end in self._machines:
            yield from find_frozen_strings(self._memory, start, end - start)
        yield from self._subclass_entries

    def write_object_lines(self, references: HeapReferences, out: BinaryIO, report: Callable[[float], None]) -> list[str]:
        # Only `runtime -o` needs these modules.
        from findleaks.runtimes.ruby.object_descriptions import ObjectDescriptions
        from findleaks.runtimes.ruby.object_lines import ObjectLines

        about = ObjectDescriptions(
            self._memory, self._engine, self._values, self._read_struct_name, self._variables.capacities, self._layout.numbers, self._shared
        )
        lines = ObjectLines(self._engine, about, self._traces.by_object, references)
        lines.write(out, report)
        return lines.notes()

    def describe(self, address: int) -> str:
        variable = self._by_address.get(address)
        return "; ".join(filter(None, (self._place(address), f"Ruby variable: {variable.name}" if variable is not None else "")))

    def _place(self, address: int) -> str:
        """Return what the heap contains at this address, or ""."""
        found = self.pages.slot(address)
        if found is None:
            return "Ruby's heap: the header of a page" if self.pages.at(address) is not None else ""
        slot, size = found
        words = self._memory.words(slot, 4)
        if words is None:
            return ""
        inside = f", {address - slot} bytes into it" if address != slot else ""
        if words[0] & c.MASK == c.T_NONE:
            return f"free slot of Ruby's heap{inside}"
        mask, offsets = c.SHAPES.get(words[0] & c.MASK, c.PLAIN)
        data = words[2] if words[0] & c.MASK == c.T_DATA and words[3] in (1, 3) else 0
        name = self._name(c.Sort(size, words[0] & mask, words[1] if 8 in offsets else 0, data))
        return f"Ruby {name}{self._values.describe_value(slot, words[0])}{inside}"

    def _name(self, sort: c.Sort) -> str:
        tag = sort.tag
        kind = f"T_{c.TYPES.get(tag, hex(tag))}"
        if tag == c.T_NONE:
            return ""
        if tag == c.T_CLASS:
            return SINGLETON if sort.flags & self._values.singleton else "Class"
        if tag == c.T_MODULE:
            return "Module"
        if tag == c.T_IMEMO:
            number = sort.flags >> c.IMEMO_SHIFT & c.IMEMO_MASK
            return f"imemo_{c.IMEMOS[number]}" if number < len(c.IMEMOS) else f"imemo {number}"
        if 8 not in c.SHAPES.get(tag, c.PLAIN).offsets:
            return kind
        name = self._values.class_name(sort.klass) if sort.klass else f"{kind} (hidden)"
        name = name or f"{kind} of class {sort.klass:#x}"
        wrapped = self._read_struct_name(sort.data) if sort.data else ""
        return f"{name} [{wrapped}]" if wrapped and wrapped != name else name

    def _read_struct_name(self, data_type: int) -> str:
        """Return wrap_struct_name, the first member of a data type."""
        return self._values.characters(where) if (where := self._memory.word(data_type)) else ""

    @cached_property
    def _report_offsets(self) -> Mapping[int, Optional[int]]:
        """Offset of the reported bytes in the wrapped structure, by data type; None if unknown."""
        symbol = find_exported(self._target, [self._layout.module], "rb_gc_adjust_memory_usage")
        adjust = symbol.address if symbol is not None else 0
        data_types = sorted({sort.data for sort in self._census.sorts if sort.data})[:SEARCHED]
        return {data_type: reported_at(self._target, data_type, adjust) for data_type in interruptible(self._target, data_types)}

    def _find_exported(self, name: str) -> Optional[int]:
        symbol = find_exported(self._target, [self._layout.module], name)
        return self._memory.word(symbol.address) if symbol is not None else None
