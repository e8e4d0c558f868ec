"""GLib in a process: instances of GObject by type, variants, and handlers of signals.

An instance is a block, or follows its private data in a block, so that pointers to it refer to the
interior of the block. An instance counts the references to it."""

from __future__ import annotations

import re
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.gtypes import GTypeNames
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.type_nodes import InstanceType, TypeNodes, find_types
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import EVERY_WORD, LAST_WORD, Exclusion, State
from findleaks.runtimes.base import NO_OBJECT, Dependent, Exclusions, ObjectTypes, ReferenceCounts, Runtime, Type, Variable
from findleaks.runtimes.compared_counts import CountedValues, Style, compare_counts
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.runtimes.glib import engine as kinds
from findleaks.runtimes.glib import mini_objects, variants
from findleaks.runtimes.glib.atomic_arrays import find_arrays
from findleaks.runtimes.glib.bindings import NAME as BINDING
from findleaks.runtimes.glib.bindings import Binding, find_bindings
from findleaks.runtimes.glib.contexts import Contexts
from findleaks.runtimes.glib.quarks import find_earlier_tables
from findleaks.runtimes.glib.signals import CALLBACK, CLOSURE_HEADER, Handler, Signals
from findleaks.runtimes.glib.structures import Structures
from findleaks.runtimes.glib.weak import find_handler_words, find_record_words, find_tagged_sizes
from findleaks.target.base import Piece, Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges, region_at

LIBRARY, OBJECTS = "libglib-2.0", "libgobject-2.0"  # beginnings of the names of files
OBJECT = 80  # number of the fundamental type of GObject
REFERENCES = 8  # offset of `ref_count` in a GObject
MOST_REFERENCES = 1 << 30
MANY = 16  # fewest handlers of one signal of one instance that are a root with a name
MOST_NAMED = 1000  # most such roots
HANDLER, CLOSURE, SOURCE, DESTROYED = "signal handler", "GClosure", "GSource", "GSource (destroyed)"
LOOP = "GMainLoop"
HANDLERS = "signal handlers"
EARLIER_QUARKS = "earlier table of quarks"
ARRAYS = "interfaces"
MOST_WEAK = 1 << 17  # most words that refer to instances and that `ref_count` does not include
MOST_NAMES = 1 << 12  # most names of closures and sources
_VERSION = re.compile(r"\.so\.0\.(\d+)(\d\d)\.(\d+)$")  # libglib-2.0.so.0.7400.6: 2.74.6


class GLib(Runtime):
    """GLib in a process. See base.Runtime."""

    name = "GLib"
    objects_are_native = True
    cycle_remedy = "so break each cycle in dispose(), or use a weak reference"

    def __init__(self, target: Target, engine: Engine, directory: Directory) -> None:
        self.problems: list[Problem] = []
        self._target, self._engine, self._directory = target, engine, directory
        self._memory = Memory(target)
        images = {prefix: image for image in find_images(target) for prefix in (LIBRARY, OBJECTS) if image.name.startswith(prefix)}
        self._images = images
        self.where = images[LIBRARY].name if LIBRARY in images else ""
        version = _VERSION.search(self.where)
        self.version = f"2.{int(version[1])}.{version[3]}" if version else ""

    def _data(self, library: str) -> Sequence[Range]:
        return self._images[library].data if library in self._images else []

    @cached_property
    def _types(self) -> Mapping[int, InstanceType]:
        """The types with instances, by the addresses of their classes."""
        return self._nodes.read(self._memory)

    @cached_property
    def _nodes(self) -> TypeNodes:
        return find_types(self._memory)

    @cached_property
    def _variants(self) -> Mapping[int, str]:
        image = self._images.get(LIBRARY)
        return variants.read_types(self._memory, image.module, image.data) if image is not None else {}

    @cached_property
    def signals(self) -> Signals:
        """The handlers of signals."""
        return Signals(self._memory, self._engine, self._data(OBJECTS), self._types)

    @cached_property
    def contexts(self) -> Contexts:
        """The main contexts."""
        return Contexts(self._memory, self._data(LIBRARY))

    @cached_property
    def _type_names(self) -> GTypeNames:
        return GTypeNames(self._target, self._nodes.layout)

    @cached_property
    def _earlier_tables(self) -> Sequence[int]:
        """The earlier tables of quarks."""
        return list(find_earlier_tables(self._memory, self._directory.blocks, self._type_names.table))

    @cached_property
    def _found(self) -> tuple[Mapping[int, int], list[str], int]:
        """The number of the type of each block, by index; the names; how many of them are types of
        instances, which come first."""
        type_names = self._type_names
        numbers = {address: type_names.name(one.node) for address, one in self._types.items()}
        self._instance_types = [one for address, one in self._types.items() if numbers[address]]
        names = list(dict.fromkeys(filter(None, numbers.values())))
        own = len(names)
        self._mini_objects = mini_objects.read_types(self._memory, self._nodes, type_names)
        self._loops = dict.fromkeys((one.address for one in self.contexts.all), LOOP)
        variant_names = {address: f"GVariant {text}" for address, text in self._variants.items()}
        texts = {**variant_names, **self._mini_objects, **self._loops}
        names += dict.fromkeys(texts.values())
        by_name = {name: number for number, name in enumerate(names)}
        by_word = {address: by_name[name] for address, name in (*numbers.items(), *texts.items()) if name}
        found: dict[int, int] = {}
        for index, word in self._instances(sorted(by_word)):
            found[index] = by_word[word]
        self._add_callbacks(found, names)
        library = self._images.get(OBJECTS)
        objects = Range(library.module.start, library.module.end) if library is not None else Range(0, 0)
        naming = {kinds.SOURCE: self._source_name, **dict.fromkeys((kinds.CLOSURE, kinds.PLAIN_CLOSURE), self._closure_name)}
        structures = Structures(self._memory, self._engine, self._directory, type_names, naming, objects)
        known = {name: number for number, name in enumerate(names)}
        builders = ((index, variants.BUILDER) for index in variants.find_builders(self._memory, self._engine, self._directory.blocks))
        for index, name in chain(structures.find(), builders):
            if index in found or (name not in known and len(names) >= MOST_NAMES):
                continue
            if name not in known:
                known[name] = len(names)
                names.append(name)
            found[index] = known[name]
        return found, names, own

    def _instances(self, words: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the index of each block in use with an instance, a variant, an object of GStreamer
        or a GMainLoop, and its first word. `words`: addresses of classes, of types of variants and
        of GStreamer, and of main contexts."""
        blocks, form = self._directory.blocks, struct.Struct(self._memory.arch.word_format[0] + "QI4x")
        for start, end in self._directory.ranges() if words else ():
            for piece in self._target.pieces(start, end):
                places = self._engine.search_any(piece, words)
                indices, _ = blocks.find_all(places)
                columns = blocks.columns_of(indices)
                records, _ = self._engine.gather((piece,), places, form.size)
                rows = zip(indices, places, columns.address, columns.size, columns.state, form.iter_unpack(records))
                for index, place, first, size, state, (word, count) in rows:
                    if state == State.IN_USE and size and self._is_instance(word, place - first, size, place, count):
                        yield index, word

    def _is_instance(self, word: int, offset: int, size: int, place: int, count: int) -> bool:
        """Whether an instance, a variant, an object of GStreamer or a GMainLoop begins at `offset`
        of a block of `size` bytes. `word`: the word there. `count`: the reference count of a
        GObject, which is 0 if it was freed."""
        one = self._types.get(word)
        if one is not None:
            fits = offset == one.private and size >= one.private + one.size
            return fits and (one.fundamental != OBJECT or 0 < count < MOST_REFERENCES)
        if word in self._mini_objects:
            return not offset and 0 < count < MOST_REFERENCES and mini_objects.is_mini_object(self._memory, self._code, place, size)
        if word in self._loops:
            return not offset and self.contexts.is_loop(place, size)
        return word != 0 and not offset and 0 < variants.read_count(self._memory, place, size) < MOST_REFERENCES

    @cached_property
    def _code(self) -> Sequence[Range]:
        return merge_ranges(Range(one.start, one.end) for one in self._target.regions() if one.executable)

    def _add_callbacks(self, found: dict[int, int], names: list[str]) -> None:
        """Add handlers of signals with their closures, and main contexts with their sources.

        Closures and sources are named after the functions that they call."""
        numbers = dict[str, int]()

        def add(address: int, name: str) -> None:
            index = self._directory.blocks.find(address)
            if index < 0 or self._directory.blocks.address(index) != address:
                return
            if name not in numbers:
                if len(numbers) >= MOST_NAMES:
                    name = name.partition(" ")[0]
                numbers.setdefault(name, len(names))
                names[numbers[name] :] = [name]
            found.setdefault(index, numbers[name])

        for one in self.signals.handlers:
            number = found.get(self._directory.blocks.find(one.instance))
            emitter = names[number] if number is not None else "instance"
            add(one.address, f"{HANDLER} of {emitter}::{self._signal_name(one.signal)}")
            add(one.closure - CLOSURE_HEADER, " of ".join(filter(None, (CLOSURE, self._function_name(self._function(one))))))
        for instance, address in self.signals.lists.items():
            number = found.get(self._directory.blocks.find(instance))
            add(address, f"list of {HANDLERS} of {names[number] if number is not None else 'instance'}")
        for context in self.contexts.all:
            add(context.address, "GMainContext")
            for source in context.sources:
                add(source, " of ".join(filter(None, (SOURCE, self._source_name(source)))))
            for source in context.destroyed:
                add(source, " of ".join(filter(None, (DESTROYED, self._source_name(source)))))
        for table in self._earlier_tables:
            add(table, EARLIER_QUARKS)

    def _closure_name(self, block: int) -> str:
        """Return the name of the function that a closure calls; "" for a closure of a class, and if
        it is unknown. `block`: the address of the block of the closure."""
        meta = self._memory.word(block)
        return self._function_name(self._memory.word(block + CLOSURE_HEADER + CALLBACK) or 0) if meta == 0 else ""

    def _source_name(self, source: int) -> str:
        return self.contexts.name(source) or self._function_name(self.contexts.function(source))

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of types; empty if the process has no instances and no variants."""
        found, names, _ = self._found
        return names if found else []

    @cached_property
    def _sizes(self) -> Sequence[int]:
        """The sizes of the blocks, in the order of `_found`."""
        return self._directory.blocks.columns_of(array("I", self._found[0])).size

    def types(self) -> Sequence[Type]:
        """Return instances by type, variants by type string, handlers of signals and closures."""
        found, names, _ = self._found
        counts, sizes = Counter(found.values()), Counter[int]()
        for number, size in zip(found.values(), self._sizes):
            sizes[number] += size
        return [Type(names[number], count, sizes[number]) for number, count in counts.items()]

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the type of each block with an instance, a variant, a handler or a closure. A
        cycle is named after an instance."""
        found, names, own = self._found
        types = array("I", [NO_OBJECT]) * len(self._directory.blocks)
        for index, number in found.items():
            types[index] = number
        ranks = array("I", [3 if number < own else 2 if name.startswith("GVariant") else 1 for number, name in enumerate(names)])
        return ObjectTypes(types, names, ranks, self.name, "GLib object", True)

    def excluded_words(self) -> Optional[Exclusions]:
        """Exclude the words after each GObject in its block. The allocator rounds the size up, so
        these words may be stale: they contain addresses of earlier objects."""
        found, _, own = self._found
        used = [-(-(one.private + one.size) // 8) if one.fundamental == OBJECT else 0 for one in self._instance_types[:own]]
        patterns = bytearray(len(self._directory.blocks))
        for (index, number), size in zip(found.items(), self._sizes):
            if number < own and 0 < used[number] < min(size // 8, LAST_WORD):
                patterns[index] = used[number]
        unused = (Exclusion(EVERY_WORD << words & EVERY_WORD) for words in range(1, LAST_WORD))
        return Exclusions(patterns, (Exclusion(0), *unused)) if patterns.count(0) < len(patterns) else None

    def bookkeeping(self) -> Sequence[Range]:
        """Return the words that refer to instances or sources and that `ref_count` does not
        include. They are in blocks of handlers, closures, records, tables, contexts and sources."""
        return self._weak_words

    @cached_property
    def _objects(self) -> Sequence[int]:
        """The addresses of the GObjects, ascending."""
        found, _, own = self._found
        counted = ((index, self._instance_types[number]) for index, number in found.items() if number < own)
        return sorted(self._directory.blocks.address(index) + one.private for index, one in counted if one.fundamental == OBJECT)

    @cached_property
    def _weak_words(self) -> Sequence[Range]:
        blocks = self._directory.blocks
        image = self._images.get(OBJECTS)
        found_words: Iterator[Range] = iter(())
        if image is not None:
            quark = self._type_names.quark
            records = find_record_words(self._memory, self._engine, blocks, self._objects, image.module, quark)
            found_words = chain(find_handler_words(self._memory, blocks, self.signals, image.module), records)
        bindings = chain.from_iterable(one.weak for one in self._bindings)
        words = list(islice(chain(found_words, bindings), MOST_WEAK + 1))
        if len(words) > MOST_WEAK:
            what = f"more than {MOST_WEAK:,} words of signal handlers and weak references: further ones count as references"
            self.problems.append(Problem(words.pop().start, what, False))
        words += chain(self.contexts.uncounted_words, *(one.unowned for one in self.contexts.all))
        words += self.contexts.find_unused_words(blocks, self._images[LIBRARY].module) if LIBRARY in self._images else ()
        return [*words, *self.signals.table_words]

    def dependents(self) -> Sequence[Dependent]:
        """Return the lists of handlers, each with the instance that frees it, the bindings of
        properties, the earlier tables of quarks, which GLib keeps like the last one, and arrays
        that only interior pointers refer to."""
        handlers = (Dependent(instance, address, HANDLERS) for instance, address in self.signals.lists.items())
        tables = (Dependent(self._type_names.table, address, EARLIER_QUARKS) for address in self._earlier_tables)
        arrays = find_arrays(self._memory, self._directory.blocks, self._nodes, self._data(OBJECTS))
        return [*handlers, *(one.dependent for one in self._bindings), *tables, *(Dependent(*one, ARRAYS) for one in arrays)]

    @cached_property
    def _bindings(self) -> Sequence[Binding]:
        """The bindings of properties."""
        found, names, own = self._found
        number = names.index(BINDING) if BINDING in names[:own] else NO_OBJECT
        addresses = (self._directory.blocks.address(index) for index, one in found.items() if one == number)
        is_instance = lambda address: found.get(self._directory.blocks.find(address), NO_OBJECT) < own  # noqa: E731
        return list(interruptible(self._target, find_bindings(self._memory, addresses, is_instance)))

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return the offsets of instances behind private data, of closures, of the TypeNodes of
        fundamental types, and the flags in pointers to the data of instances."""
        found, names, own = self._found
        offsets = [one.private for one in self._instance_types[:own]]
        offsets += [CLOSURE_HEADER if name.startswith(CLOSURE) else 0 for name in names[own:]]
        rules = {(size, offsets[number]) for number, size in set(zip(found.values(), self._sizes)) if offsets[number]}
        for node in self._nodes.nodes:
            within = self._directory.blocks.lookup(node)
            if within is not None and node > within[1]:
                rules.add((within[2], node - within[1]))
        rules |= find_tagged_sizes(self._memory, self._engine, self._directory.blocks, self._objects)
        return sorted(rules)

    def reference_counts(self, graph: Graph, pieces: Iterable[Piece]) -> Optional[ReferenceCounts]:
        """Compare reference counts; see base.Runtime. GLib has no collector of cycles."""
        found, names, own = self._found
        types = array("I", [NO_OBJECT]) * len(self._directory.blocks)
        for index, number in found.items():
            types[index] = number

        def offset(index: int) -> int:
            return self._instance_types[types[index]].private if types[index] < own else 0

        others = [number for number, name in enumerate(names) if number >= own and not name.startswith("GVariant")]
        style = Style("g_object_unref", CountVerdict.UNTRACKED_CYCLE, others, 0)
        bound = {self._directory.blocks.find(one.dependent.address) for one in self._bindings}
        values = CountedValues(types, names, lambda index: self._count(index) - (index in bound), offset)
        counts = compare_counts(pieces, self._target.arch, graph, self._directory.blocks, values, style)
        calls = {"g_variant_unref" if one.name.startswith("GVariant") else "g_object_unref" for one in counts.types if one.objects}
        return counts._replace(decrement=" or ".join(sorted(calls))) if calls else counts

    def _count(self, index: int) -> int:
        """Return the reference count of the instance or variant in a block; 0 for others."""
        found, names, own = self._found
        number, start = found.get(index, NO_OBJECT), self._directory.blocks.address(index)
        if number == NO_OBJECT:
            return 0
        if number >= own:
            is_variant = names[number].startswith("GVariant")
            return variants.read_count(self._memory, start, self._directory.blocks.size(index)) if is_variant else 0
        its = self._instance_types[number]
        return (self._memory.int32(start + its.private + REFERENCES) or 0) if its.fundamental == OBJECT else 0

    def callbacks(self) -> Sequence[Variable]:
        """Return signals of instances with many handlers, main contexts with many sources, and the
        tables of all handlers and contexts."""
        handlers = self.signals.handlers
        counts = Counter((one.instance, one.signal) for one in handlers)
        firsts = {(one.instance, one.signal): one for one in handlers if one.first}
        made = []
        for (instance, signal), count in counts.most_common(MOST_NAMED):
            first = firsts.get((instance, signal))
            if count >= MANY and first is not None:
                name = f"{self._name_at(instance)}::{self._signal_name(signal)} of {instance:#x}"
                made.append(Variable(name, 0, first.address, 0, self._calling(self._function(first)), count, "handlers"))
        for one in self.contexts.all[:MOST_NAMED]:
            if len(one.sources) >= MANY:
                name = f"{'default ' if one.is_default else ''}main context {one.address:#x}"
                what = self._calling(self.contexts.most_common_function(one))
                made.append(Variable(name, 0, one.address, 0, what, len(one.sources), "sources"))
        word = self._memory.word
        made += [Variable(HANDLERS, address, word(address) or 0) for address in self.signals.variables]
        return [*made, *(Variable("main contexts", address, word(address) or 0) for address in self.contexts.variables)]

    def _calling(self, function: int) -> str:
        name = self._function_name(function)
        return f"calling {name}" if name else ""

    def _function(self, one: Handler) -> int:
        return self._memory.word(one.closure + CALLBACK) or 0

    def _function_name(self, function: int) -> str:
        """Return the name of the function at an address, or "function of FILE"; "" if it is no
        code."""
        symbol = self._target.symbolize(function) if function else None
        if symbol is not None and symbol.address == function:
            return symbol.name
        module = region_at(self._target.modules(), function) if function else None
        return f"{module.path.rpartition('/')[2]}+{function - module.bias:#x}" if module is not None else ""

    def _signal_name(self, signal: int) -> str:
        return self.signals.name(signal) or str(signal)

    def _name_at(self, instance: int) -> str:
        """Return the name of an instance's type; "instance" if unknown."""
        found, names, _ = self._found
        number = found.get(self._directory.blocks.find(instance))
        return names[number] if number is not None else "instance"

    def describe(self, address: int) -> str:
        found, names, _ = self._found
        index = self._directory.blocks.find(address)
        if index not in found:
            return ""
        count = self._count(index)
        return f"{names[found[index]]}{f', ref_count {count}' if count else ''}"
