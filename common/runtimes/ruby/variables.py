"""List Ruby's variables: global variables, constants, variables of classes, modules and threads,
variables that Procs captured, finalizers, blocks of at_exit and trap, and words on stacks of
values. If a variable refers to an object, the variables of the object are listed, too.

Sources: variable.c (rb_global_tbl, struct rb_global_entry, struct rb_global_variable; the entry is
in internal.h in 2.7) of 2.7.4, 3.1.2 and 3.3.8. `rb_global_tbl` is an id table of
entries {variable, ID, …}. It has no exported symbol. It is recognised because the ID in each entry
equals the key of the entry. A variable is {counters, data, getter, …}. If the variable was defined
in Ruby, the data is its value. Otherwise the data may be the address of a C variable that contains
the value. The getter shows which of the two the data is.
Queues: thread_sync.c (struct rb_queue, queue_data_type) of these versions and of 3.4.1.
Finalizers: gc.c (rb_objspace_t, define_final0) of these versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.base import Variable
from findleaks.runtimes.ruby import census as c
from findleaks.runtimes.ruby.block_methods import MANY, UNNAMED, BlockVariables, find_block_methods
from findleaks.runtimes.ruby.closures import Closures
from findleaks.runtimes.ruby.exit_blocks import NAME as EXIT_BLOCKS
from findleaks.runtimes.ruby.exit_blocks import find_exit_blocks
from findleaks.runtimes.ruby.generic_variables import GenericVariables
from findleaks.runtimes.ruby.instruction_sequences import SequenceReader
from findleaks.runtimes.ruby.members import Member, Members, is_object
from findleaks.runtimes.ruby.signal_blocks import find_signal_blocks
from findleaks.runtimes.ruby.symbols import CLASS, GLOBAL, INSTANCE, KIND, SHIFT, Symbols
from findleaks.runtimes.ruby.tables import Item, Tables, elements, hash_length
from findleaks.runtimes.ruby.thread_variables import ThreadVariables
from findleaks.runtimes.ruby.unnamed_classes import UnnamedClasses, is_unnamed
from findleaks.runtimes.ruby.value_stacks import ValueStack, name_frame, name_place
from findleaks.runtimes.ruby.values import Values
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import range_at

MOST = 1 << 17  # maximum number of variables listed
DEEPEST = 3  # maximum depth of objects in objects whose variables are listed
COLLECTED = 1000  # constants or variables of a class that have one name
FEWEST = 8  # minimum number of entries of the table of global variables
SET = "Set"
QUEUES, QUEUED = ("queue", "sized_queue"), 24
"""Data types of queues; offset in a struct rb_queue of the pointer to the Array of its elements."""

_TOP = "TOPLEVEL_BINDING"  # the constant that refers to the local variables of the main program
_HAS_FINALIZERS = 1 << 7  # FL_FINALIZE
_MOST_STACK_WORDS = 1 << 22  # of all stacks of values; words of further ones get no names
_SPACE_WORDS = 256  # words of an object space that are searched for the table of finalizers

NO_VALUES = (c.T_NONE, c.T_CLASS, c.T_MODULE, c.T_ICLASS, c.T_IMEMO, c.T_ZOMBIE, c.T_MOVED, 0x1B)
"""Types of slots that are never listed as values of variables. Classes and modules are among them:
their own variables are listed."""


GETTERS = ("rb_gvar_val_getter", "rb_gvar_var_getter")


class Exported(NamedTuple):
    """The values of exported symbols, 0 if missing: the class Object, and two functions that get a
    global variable. For one, the variable's data is the value; for the other, its address."""

    an_object: int
    of_value: int
    of_address: int


class Found(NamedTuple):
    """The variables. `divided`: objects to which variables refer, and whose own variables are
    listed instead. A divided object itself retains nothing.

    `counts` returns the number of variables of objects with a given shape. `extension`: the offset
    in a class of the pointer to its extension; -1: the extension is in the class's slot. `symbols`
    has names by ID. `capacities` returns the number of variables for which an object with a given
    shape has memory. `members` reads the variables of single objects, `generic` those of objects
    that are not T_OBJECT."""

    variables: Sequence[Variable]
    divided: Sequence[int]
    counts: Callable[[int], int]
    extension: int = -1
    symbols: Optional[Symbols] = None
    capacities: Callable[[int], int] = int
    members: Optional[Members] = None
    generic: Optional[GenericVariables] = None

    def is_complex(self, shape: int) -> bool:
        """Return whether objects with this shape have their variables in an st_table."""
        return self.members is not None and self.members.is_complex(shape)

    def further_buffers(self) -> Iterable[tuple[int, int, int]]:
        """Yield start, size and owner of the buffers to which their owners do not refer."""
        return self.generic.memory() if self.generic is not None else ()


class Starts(NamedTuple):
    """Addresses of objects at which the search begins. `classes`: classes and modules. `singular`:
    objects with singleton methods. `threads`: Thread objects. `methods`: method entries.
    `object_space`: the rb_objspace_t, 0 if unknown. `machines`: the structures of virtual machines
    (rb_vm_t).
    `stacks` returns the stacks of values of threads and fibers. `fibers`: Fiber objects."""

    classes: Iterable[int]
    singular: Iterable[int]
    threads: Sequence[int]
    methods: Sequence[int]
    object_space: int = 0
    machines: Sequence[Range] = ()
    stacks: Callable[[], Sequence[ValueStack]] = tuple
    fibers: Sequence[int] = ()


class Finder:
    """Finds the variables.

    `slot_at` returns start and size of the slot at an address. `data` is memory of the
    interpreter's own variables."""

    def __init__(
        self,
        memory: Memory,
        engine: Engine,
        values: Values,
        slot_at: Callable[[int], Optional[tuple[int, int]]],
        symbols: Exported,
        starts: Starts,
        data: Sequence[Range],
        version: tuple[int, int],
    ) -> None:
        self._memory, self._values, self._slot_at, self._exported = memory, values, slot_at, symbols
        self._starts, self._data, self._version = starts, data, version
        self._symbols = Symbols(memory, values, data)
        self._tables = Tables(memory)
        self._members = Members(memory, self._tables, values, symbols.an_object, data, self._symbols.name)
        is_slot = self._is_slot
        self._generic = GenericVariables(memory, self._tables, self._symbols, self._members, values, is_slot, data)
        readers = memory, self._tables, self._symbols, self._generic
        self._threads = ThreadVariables(*readers, values.long, starts.threads, starts.fibers)
        self._closures = Closures(memory, values, self._symbols, SequenceReader(memory, values, version))
        methods = find_block_methods(memory, engine, self._tables, starts.methods)
        self._blocks = BlockVariables(methods, self._symbols, values, self._closures)
        self._unnamed = UnnamedClasses(memory, engine, values, self._members)
        # Singleton classes of objects. `_of_classes` adds classes without a name.
        self._is_unnamed = {memory.word(value + 8) or 0 for value in starts.singular}
        # Their constants and variables: class, description, address, value.
        self._of_unnamed: list[tuple[int, str, int, int]] = []
        self._taken: dict[int, Variable] = {}
        self._divided: list[int] = []
        self._joint: set[str] = set()  # names of COLLECTED or more variables
        self._main = Range(0, 0)  # memory of the local variables of the main program
        self._of_main_program: dict[str, tuple[int, int]] = {}  # their address and value, by name

    def find(self) -> Found:
        """Return all variables, sorted by the address of the reference.

        If several variables refer to an object, only the first in this order is listed: global
        variables, constants, variables of classes, variables of the program's `main`, fiber-local
        variables and thread variables, variables that the blocks of methods captured, finalizers,
        blocks of at_exit and trap, local variables of the main program, words on stacks of values,
        variables of classes without a name, variables that methods of such classes and singleton
        methods of objects captured, variables of objects that are not T_OBJECT. Words in frames of
        methods in Ruby precede those of methods in C, such as the receiver of `sleep`."""
        if self._symbols.ids is None:
            return Found([], [], self._members.number_of)
        main = (one.value for one in self._members.of_class(self._exported.an_object) if self._symbols.name(one.serial) == _TOP)
        self._main = self._closures.find_locals(next(main, 0))
        for found in (self._globals, self._of_classes, self._of_main, self._threads.find, self._of_methods, self._finalizers):
            for name, address, value in found():
                # Similar objects have a joint name; their variables would have thousands of names.
                self._take(name, address, value, DEEPEST if name in self._joint else 0, is_local=name == _TOP)
        for name, address, value in self._hooks():
            self._take(name, address, value, DEEPEST)
        for name, (address, value) in self._of_main_program.items():
            self._take(name, address, value, 0, is_local=True)
        of_functions: dict[int, tuple[str, int]] = {}
        for name, address, value, has_line in self._of_frames():
            if has_line:
                self._take(name, address, value, DEEPEST, is_local=True)
            elif self._slot_at(value) is not None:
                of_functions.setdefault(value, (name, address))
        for value, (name, address) in of_functions.items():
            self._take(name, address, value, DEEPEST, is_local=True)
        for name, address, value in self._captured_by_frames():
            self._take(name, address, value, DEEPEST - 1, is_local=True)
        for name, address, value in self._of_unnamed_classes():
            self._take(name, address, value, DEEPEST, is_local=True)
        for name, address, value in self._generic.find():
            self._take(name, address, value, DEEPEST, is_local=True)
        extension = self._members.constants[0] if self._members.constants is not None else -1
        variables = sorted(self._taken.values(), key=lambda one: one.address)
        counts, capacities = self._members.number_of, self._members.capacity_of
        return Found(variables, self._divided, counts, extension, self._symbols, capacities, self._members, self._generic)

    def _take(self, name: str, address: int, value: int, depth: int, is_local: bool = False) -> None:
        if len(self._taken) >= MOST or value in self._taken:
            return
        tag, klass = self._kind(value)
        if tag is None:
            return
        what, length, unit = self._contents(value, tag, klass)
        self._taken[value] = Variable(name, address, value, 0, what, length, unit, is_local)
        if tag == c.T_OBJECT and length is None and depth < DEEPEST:
            members = list(self._members.of_object(value, self._values.real(klass) or 0))
            if members:
                self._divided.append(value)
            for one in members:
                self._take(f"{name}.{self._symbols.name(one.serial)}", one.address, one.value, depth + 1)
        parts = list(self._of_data(value)) if tag == c.T_DATA else []
        captures_main = any(range_at([self._main], place) is not None for _, place, _ in parts)
        if captures_main:
            self._divided.append(value)  # its variables are those of the main program
        for part, place, found in parts if captures_main or depth < DEEPEST else ():
            if range_at([self._main], place) is not None:
                self._of_main_program[f"local variable {part} of the main program"] = (place, found)
            else:
                self._take(f"{name}'s {part}", place, found, depth + 1)

    def _of_data(self, value: int) -> Iterator[tuple[str, int, int]]:
        """Yield the elements of the queue at this address, or the variables that the Proc or
        Binding at this address captured."""
        kind, data = self._values.typed_data(value)
        if kind in QUEUES:
            yield "elements", data + QUEUED, self._memory.word(data + QUEUED) or 0
        for name, place, found in self._closures.variables(value):
            yield name if range_at([self._main], place) is not None else f"captured variable {name}", place, found

    def _is_slot(self, value: int) -> bool:
        """Whether an object begins at this address."""
        slot = self._slot_at(value)
        return slot is not None and slot[0] == value

    def _kind(self, value: int) -> tuple[Optional[int], int]:
        """Return the type and class of the object at this address; (None, 0) if it is not a value
        of a variable."""
        slot = self._slot_at(value) if value % 8 == 0 else None
        words = self._memory.words(value, 2) if slot is not None and slot[0] == value else None
        if words is None or words[0] & c.MASK in NO_VALUES:
            return None, 0
        return words[0] & c.MASK, words[1]

    def _contents(self, value: int, tag: int, klass: int) -> tuple[str, Optional[int], str]:
        """Return the class's name and, for a collection, its length and the unit of the length."""
        name = self._values.class_name(klass) if klass else f"T_{c.TYPES.get(tag, hex(tag))}"
        if tag == c.T_ARRAY:
            found = elements(self._memory, value, self._values.long)
            return name, found.length if found is not None else None, "elements"
        if tag == c.T_HASH:
            return name, hash_length(self._memory, value, self._values.long), "entries"
        if tag == c.T_STRING:
            return name, self._values.length(value), "bytes"
        if tag == c.T_OBJECT and name == SET:
            inner = next(self._members.of_object(value, self._values.real(klass) or 0), None)
            return name, hash_length(self._memory, inner.value, self._values.long) if inner is not None else None, "elements"
        return name, None, ""

    def _globals(self) -> Iterator[tuple[str, int, int]]:
        for _, entry, _ in self._table():
            head = self._memory.words(entry, 2) or (0, 0)
            name, words = self._symbols.name(head[1] >> SHIFT), self._memory.words(head[0], 3)
            if not name or words is None:
                continue
            if words[2] == self._exported.of_value:
                yield name, head[0] + 8, words[1]
            elif words[2] == self._exported.of_address and words[1] % 8 == 0:
                yield name, words[1], self._memory.word(words[1]) or 0

    def _table(self) -> Sequence[Item]:
        """Return the entries of the table of global variables."""
        for start, end in self._data:
            for _, words in self._memory.scan(start, end):
                for word in words:
                    found = self._tables.ids(word) if word % 8 == 0 and word else ()
                    if len(found) >= FEWEST and all(map(self._is_global, found)):
                        return found
        return ()

    def _is_global(self, item: Item) -> bool:
        known = self._memory.word(item.value + 8) if item.value % 8 == 0 else None
        return known is not None and known >> SHIFT == item.key and known & KIND == GLOBAL

    def _of_main(self) -> Iterator[tuple[str, int, int]]:
        """Yield instance variables of `main`, the object that runs the program.

        `main` is an object of class Object with singleton methods, to which no variable refers.
        Yields nothing if several such objects have variables."""
        real = self._exported.an_object
        free = [value for value in self._starts.singular if value not in self._taken and self._values.real(self._kind(value)[1]) == real]
        found = [members for members in (list(self._members.of_object(value, real)) for value in free) if members]
        for one in found[0] if len(found) == 1 else ():
            yield self._symbols.name(one.serial), one.address, one.value

    def _of_classes(self) -> Iterator[tuple[str, int, int]]:
        classes = list(self._starts.classes)
        unnamed = {klass for klass in classes if is_unnamed(self._values, klass)}
        self._is_unnamed |= unnamed
        # Singleton methods of a class belong to its singleton class. Most modules have none.
        classes_of_unnamed = {self._memory.word(klass + 8) or 0 for klass in unnamed}
        self._is_unnamed.update(filter(self._values.is_singleton, classes_of_unnamed))
        constants = {klass: list(self._members.of_class(klass)) for klass in classes}
        own = {klass: [one for one in self._members.own(klass) if one.kind in (INSTANCE, CLASS)] for klass in classes}
        for noun, mark, found in (("constants", "::", constants), ("variables", ".", own)):
            of_many = self._find_common(found.values(), COLLECTED)
            of_unnamed = self._find_common((found[klass] for klass in unnamed), MANY)
            for klass, members in found.items():
                prefix = "" if klass == self._exported.an_object and mark == "::" else self._values.class_name(klass) + mark
                common = of_unnamed if klass in unnamed else of_many
                yield from self._name_all(prefix, noun, klass, members, common)

    def _find_common(self, found: Iterable[Sequence[Member]], least: int) -> frozenset[int]:
        """Return the serial numbers of names under which `least` or more classes refer to an
        object."""
        counts = Counter(one.serial for members in found for one in members if is_object(one.value))
        return frozenset(serial for serial, number in counts.items() if number >= least)

    def _name_all(
        self, prefix: str, noun: str, klass: int, members: Sequence[Member], of_many: Collection[int]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the constants or variables of a class. If the values of COLLECTED or more of them
        are objects, the program uses the class as a collection. Then all have one name. Those whose
        names are in `of_many` have one name for all classes, unless the value is a collection of
        COLLECTED elements or more. Those of classes without a name follow later."""
        joint = ""
        if len(members) >= COLLECTED and sum(self._kind(one.value)[0] is not None for one in members) >= COLLECTED:
            joint = f"{noun} of {self._values.class_name(klass)}"
            self._joint.add(joint)
        for one in members:
            if joint or one.serial not in of_many or self._is_long(one.value):
                yield from ([(joint, one.address, one.value)] if joint else self._iterate_named(prefix, one))
                continue
            common = f"{noun} {self._symbols.name(one.serial)}"
            if klass in self._is_unnamed:
                self._of_unnamed.append((klass, common, one.address, one.value))
            else:
                self._joint.add(f"{common} of classes")
                yield f"{common} of classes", one.address, one.value

    def _is_long(self, value: int) -> bool:
        """Whether a value is a collection of COLLECTED elements or more."""
        tag, klass = self._kind(value)
        return tag not in (None, c.T_STRING) and (self._contents(value, tag or 0, klass)[1] or 0) >= COLLECTED

    def _of_methods(self) -> Iterator[tuple[str, int, int]]:
        for name, address, value, is_joint in self._blocks.find(lambda owner: owner not in self._is_unnamed, {}, COLLECTED):
            if is_joint:
                self._joint.add(name)
            yield name, address, value

    def _of_unnamed_classes(self) -> Iterator[tuple[str, int, int]]:
        """Yield the constants and variables of classes without a name, and the variables that their
        methods and singleton methods of objects captured. Call this last: the other variables show
        which collections contain such classes."""
        classes = {klass for klass, *_ in self._of_unnamed} | (self._blocks.owners() & self._is_unnamed)
        places = self._unnamed.find_collections(classes, list(self._taken.values()))
        for klass, name, address, value in self._of_unnamed:
            yield f"{name} of {places.get(klass, UNNAMED)}", address, value
        for name, address, value, _ in self._blocks.find(lambda owner: owner in self._is_unnamed, places):
            yield name, address, value

    def _of_frames(self) -> Iterator[tuple[str, int, int, bool]]:
        """Yield the words on stacks of values, up to the end of the innermost frame, each with
        whether it belongs to a method of Ruby, which has a line. A method of C has none."""
        left = _MOST_STACK_WORDS
        for stack in interruptible(self._memory.target, self._starts.stacks()):
            at = 0
            top = stack.tops[-1] if stack.start < stack.tops[-1] < stack.end else stack.start
            top = min(top, stack.start + 8 * left)
            left -= (top - stack.start) // 8
            for place, word in zip(range(stack.start, top, 8), self._memory.words(stack.start, (top - stack.start) // 8) or ()):
                while at < len(stack.tops) - 1 and stack.tops[at] <= place:
                    at += 1
                frame = stack.frames[at]
                name = name_place(frame)
                if name and word % 8 == 0 and word:
                    yield name, place, word, bool(frame and frame.file)

    def _captured_by_frames(self) -> Iterator[tuple[str, int, int]]:
        """Yield the local variables that blocks captured, so that they are on the heap: those of
        the frames of threads and fibers, and those of the methods and blocks around them. Often no
        word on a stack refers to their values."""
        visited = {self._main.start}
        for stack in interruptible(self._memory.target, self._starts.stacks()):
            for frame, pointer in zip(stack.frames, stack.environments):
                if frame is None or not frame.file:
                    continue
                for is_own, name, address, value in self._closures.variables_of_frame(pointer, visited):
                    yield f"local variable {name}{' of' if is_own else ', captured by'} {name_frame(frame)}", address, value

    def _finalizers(self) -> Iterator[tuple[str, int, int]]:
        """Yield the Arrays of finalizers (ObjectSpace.define_finalizer). The object space points to
        an st_table, which maps each object to its Array."""
        words = self._memory.words(self._starts.object_space, _SPACE_WORDS) if self._starts.object_space else None
        for word in words or ():
            found = self._tables.entries(word, MOST) if word and word % 8 == 0 else ()
            if found and all(map(self._is_finalizer, found)):
                for one in found:
                    yield f"finalizers of objects of {self._values.class_name(self._kind(one.key)[1])}", one.address, one.value
                return

    def _hooks(self) -> Iterator[tuple[str, int, int]]:
        """Yield the Procs of at_exit and trap."""
        for address, value in self._exit_blocks():
            yield EXIT_BLOCKS, address, value
        yield from find_signal_blocks(self._memory, self._values, self._starts.machines, self._is_slot)

    def _exit_blocks(self) -> Iterator[tuple[int, int]]:
        return find_exit_blocks(self._memory, self._values, self._data, self._is_slot, self._version, MOST)

    def _is_finalizer(self, item: Item) -> bool:
        """Whether an entry maps an object with finalizers to an Array."""
        flags = self._memory.word(item.key) or 0 if self._slot_at(item.key) is not None else 0
        return bool(flags & _HAS_FINALIZERS) and self._kind(item.value)[0] == c.T_ARRAY

    def _iterate_named(self, prefix: str, one: Member) -> Iterator[tuple[str, int, int]]:
        name = self._symbols.name(one.serial)
        if name:
            yield prefix + name, one.address, one.value
