"""Determine which Java objects are reachable.

The map of each class has the offsets of references. These references keep objects alive, with the
following rules:

- A soft reference, and the java.lang.ref.Finalizer of an object, keep their referent alive. Weak
  and phantom references do not.
- An object keeps its class alive, the class keeps the class loader alive, and the class loader
  keeps all of its classes alive.
- A Cleaner waits until its referent is garbage, and then releases other objects. These objects are
  kept alive by the referent, not by the Cleaner, because a static list refers to all Cleaners. A
  Cleaner without a referent waits for its thread, and keeps them alive itself. So does a Cleaner
  whose cleaning action refers to the referent: the referent never becomes garbage.

Sources: OpenJDK 8, src/share/vm/oops/instanceRefKlass.cpp; OpenJDK 17, 21 and 25,
src/hotspot/share/oops/instanceRefKlass.hpp (the map of a reference class lacks the referent, whose
field precedes that of the queue); src/java.base: jdk/internal/ref/Cleaner.java,
jdk/internal/ref/PhantomCleanable.java."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Engine, Graph
from findleaks.engine.terms import NO_BLOCK, Kind, Totals
from findleaks.runtimes.garbage import mark_objects
from findleaks.runtimes.jvm.engine import FIXED, MIRROR, ClassTable, ObjectWalk, ReferenceSearch
from findleaks.runtimes.jvm.java_classes import JavaClass
from findleaks.runtimes.jvm.loaders import CHUNK, Loader, read_loaders
from findleaks.runtimes.jvm.named_paths import NamedPaths
from findleaks.runtimes.jvm.native_roots import NativeRoots, RootKind
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.spaces import region_structures
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.object_graph import GARBAGE, LIVE, ObjectWord
from findleaks.target.interruptible import interruptible

_REFERENCE = "java.lang.ref.Reference"
_STRONG = ("java.lang.ref.SoftReference", "java.lang.ref.FinalReference")
_CLEANERS = ("jdk.internal.ref.Cleaner", "jdk.internal.ref.PhantomCleanable", "sun.misc.Cleaner")
_LISTS = "jdk.internal.ref."  # the package of the lists of cleaners
_PERMANENT = (
    *("jdk.internal.loader.ClassLoaders$AppClassLoader", "jdk.internal.loader.ClassLoaders$PlatformClassLoader"),
    *("sun.misc.Launcher$AppClassLoader", "sun.misc.Launcher$ExtClassLoader"),  # JDK 8
)
_NAMED = ("java.lang.Thread", "java.lang.ClassLoader")
_FIELDS_JDK8 = 3  # `queue`, `next` and `discovered`, which links references that are to be enqueued
_SOME = 1 << 14  # cleaners that are read together
_TRIED, _NEAR = 64, 64  # cleaners that are examined; objects to which an action leads


class ClassReach(NamedTuple):
    """The live objects of one class, and its garbage."""

    java_class: JavaClass
    live: Totals
    garbage: Totals


class _Cleaner(NamedTuple):
    """The class of cleaners, or a subclass: the offset of the referent, and the offsets of
    references that java.lang.ref.Reference does not have."""

    referent: int
    offsets: Sequence[int]


class Reachability:
    """The graph of the Java objects. Live objects are marked in it."""

    def __init__(self, tables: Tables, engine: Engine, objects: JavaObjects, roots: NativeRoots) -> None:
        self._tables, self._engine, self._objects, self._roots = tables, engine, objects, roots
        self._supers = [objects.reader.supers(one.klass) if one.kind == FIXED else [] for one in objects.classes]
        # Chunks of handles of class loaders, and structures that refer to the first object of a
        # region
        self._excluded: list[int] = [*region_structures(tables)]
        self._permanent: list[Loader] = []  # class loaders that live as long as the JVM
        # The objects that roots refer to, by address. Roots of the first kind are certain: class
        # loaders, handles and static variables of the JVM. Other words may be stale.
        self.certain_roots: list[Sequence[int]] = []
        self.possible_roots: list[Sequence[int]] = []
        self.cleaned: dict[str, bool] = {}  # results of cleaning.is_cleaned
        # The references of cleaners (source << 32 | target) to their actions; the referents
        self._actions, self._referents = array("Q"), array("I")
        self.own_actions = 0  # live objects whose own cleaning action keeps them alive
        self.graph = self._build()

    def _build(self) -> Graph:
        mirrors, extra = self._search()
        graph = self._mark(mirrors, extra)
        own = array("Q", self._find_own_actions(graph))
        self.own_actions = len(own)
        return self._mark(mirrors, extra + own) if own else graph

    def _mark(self, mirrors: array[int], extra: array[int]) -> Graph:
        """Return the graph, with live objects marked. `extra`: references (source << 32 | target)
        that the maps of classes do not contain."""
        objects, engine = self._objects, self._engine
        search = ReferenceSearch(self._walk(), objects.numbers, mirrors, array("Q", sorted(extra)))
        graph = engine.graph(objects.blocks)
        graph.set_labels(objects.numbers, array("I", [1]) * len(objects.classes))
        for piece in objects.pieces():
            search.run(engine, graph, piece)
        for addresses in (*self.certain_roots, *self.possible_roots):
            graph.root_words(addresses)
        return mark_objects(graph, self._tables.target)

    def _find_own_actions(self, graph: Graph) -> Iterator[int]:
        """Yield the reference (source << 32 | target) of each live Cleaner to an action from which
        a few references lead back to the referent, if the referent counts as garbage. Of the
        Cleaners with the same classes of referent and action, the first ones decide whether the
        others are examined."""
        kinds, numbers = graph.kinds(), self._objects.numbers
        tried = Counter[tuple[int, int]]()
        for one, referent in interruptible(self._tables.target, zip(self._actions, self._referents), _SOME):
            cleaner, action = one >> 32, one & 0xFFFFFFFF
            pair = numbers[referent], numbers[action]
            if kinds[referent] in GARBAGE and kinds[cleaner] in LIVE and tried[pair] < _TRIED:
                if _reaches(graph, action, referent):
                    tried[pair] = -len(self._actions)
                    yield one
                tried[pair] += 1

    def _search(self) -> tuple[array[int], array[int]]:
        """Collect the roots, and the references that the maps of classes do not contain. Return the
        mirrors of classes, and these references."""
        objects = self._objects
        by_klass = {one.klass: number for number, one in enumerate(objects.classes)}
        mirrors, extra = array("I", [NO_BLOCK]) * len(objects.classes), array("Q")
        excluded = self._excluded
        # Without this option, no class is ever unloaded. ZGC of JDK 11 clears it.
        keeps_classes = self._tables.is_set("ClassUnloading") is False
        for loader in interruptible(self._tables.target, read_loaders(self._tables, objects.reader, objects.bounds)):
            excluded += loader.chunks
            own_mirrors = [objects.reader.mirror(klass) for klass in loader.klasses]
            own = [*loader.objects, *own_mirrors]
            holder = objects.index_of(loader.holder)
            if holder == NO_BLOCK or keeps_classes or objects.classes[objects.numbers[holder]].name in _PERMANENT:
                self.certain_roots.append(self._roots.starts(own))
                self._permanent.append(loader)
                continue
            extra.extend(holder << 32 | index for index in map(objects.index_of, own) if index != NO_BLOCK)
            for klass, mirror in zip(loader.klasses, own_mirrors):
                if klass in by_klass:
                    mirrors[by_klass[klass]] = objects.index_of(mirror)
        extra.extend(self._cleaner_references())
        for found in self._roots.find_by_kind(excluded, objects.unread_ranges):
            is_certain = found.kind in (RootKind.JNI_GLOBAL, RootKind.HANDLE)
            (self.certain_roots if is_certain else self.possible_roots).append(found.addresses)
        return mirrors, extra

    def _walk(self) -> ObjectWalk:
        """Return a table of the classes whose maps have only references that keep objects alive."""
        objects = self._objects
        cleaners = self._cleaners
        referent = self.referent
        table = ClassTable()
        for number, one in enumerate(objects.classes):
            maps = one.maps
            if number in cleaners:
                maps = self._reference_maps
            elif referent is not None and _REFERENCE in self._supers[number]:
                maps = self._reference_maps + maps[2:]
                if any(name in _STRONG for name in (one.name, *self._supers[number])):
                    maps = array("I", [referent, 1]) + maps
            table.add(objects.table.words[number], one.row, maps)
        return ObjectWalk(objects.layout.header, objects.layout.references, table)

    @cached_property
    def _reference_maps(self) -> array[int]:
        """The map of java.lang.ref.Reference. The maps of its subclasses begin with it. In JDK 8,
        it has only the queue, because the collector handles the other fields itself."""
        found = (one.maps for one, supers in zip(self._objects.classes, self._supers) if _REFERENCE in supers)
        maps = next(found, array("I"))[:2]
        return array("I", [maps[0], _FIELDS_JDK8]) if len(maps) == 2 and maps[1] == 1 else maps

    @cached_property
    def referent(self) -> Optional[int]:
        """The offset of the referent in a java.lang.ref.Reference. The fields `queue` and `next`
        follow."""
        maps, size = self._reference_maps, self._objects.layout.references.size
        return maps[0] - size if len(maps) == 2 and maps[1] >= 2 else None

    @cached_property
    def _cleaners(self) -> dict[int, _Cleaner]:
        """The classes of cleaners, by number."""
        found: dict[int, _Cleaner] = {}
        referent, size = self.referent, self._objects.layout.references.size
        if referent is None:
            return found
        for number, one in enumerate(self._objects.classes):
            if any(name in _CLEANERS for name in (one.name, *self._supers[number])):
                offsets = [offset for offset in one.reference_offsets(size) if not referent <= offset <= referent + 3 * size]
                found[number] = _Cleaner(referent, offsets)
        return found

    def _cleaner_references(self) -> Iterator[int]:
        """Yield the references (source << 32 | target) that replace those of cleaners.

        References to other cleaners, which form a list, are kept. Other objects are kept alive by
        the referent, so it is the source of the references to them. If the collector has cleared
        the referent, the cleaner waits in a queue, and keeps these objects alive until its thread
        has released them."""
        objects, cleaners = self._objects, self._cleaners
        indices = objects.of_classes(cleaners)
        for first in interruptible(self._tables.target, range(0, len(indices), _SOME)):
            some = indices[first : first + _SOME]
            starts = objects.blocks.columns_of(some).address.tolist()
            size = max(objects.classes[objects.numbers[index]].size for index in some)
            data, _ = read_records(self._tables.target, self._engine, starts, size)
            for at, index in enumerate(some):
                yield from self._references_of(index, cleaners[objects.numbers[index]], data[at * size : (at + 1) * size], cleaners)

    def _references_of(self, index: int, one: _Cleaner, data: bytearray, cleaners: dict[int, _Cleaner]) -> Iterator[int]:
        objects, references = self._objects, self._objects.layout.references
        order = self._tables.memory.arch.byteorder
        referent = objects.index_of(references.decode_at(data, one.referent, order))
        for offset in one.offsets:
            target = objects.index_of(references.decode_at(data, offset, order))
            if target == NO_BLOCK:
                continue
            number = objects.numbers[target]
            if number in cleaners or objects.classes[number].name.startswith(_LISTS):
                yield index << 32 | target
            else:
                yield (index if referent == NO_BLOCK else referent) << 32 | target
                if referent != NO_BLOCK:
                    self._actions.append(index << 32 | target)
                    self._referents.append(referent)

    def by_class(self) -> Iterator[ClassReach]:
        """Yield the objects of each class."""
        yield from map(ClassReach, self._objects.classes, *map(self.graph.label_totals, (LIVE, GARBAGE)))

    def roots_to(self, start: int, name_thread: Callable[[int], str]) -> Iterator[ObjectWord]:
        """Yield the roots that refer to the object at `start`; see NativeRoots.words_to."""
        objects, memory, decode = self._objects, self._tables.memory, self._tables.decode_oop
        for loader in interruptible(self._tables.target, self._permanent):
            holder = objects.index_of(loader.holder)
            name = objects.name_of(holder) if holder != NO_BLOCK else "the boot class loader"
            handles = {objects.reader.mirror_place(klass): "class" for klass in loader.klasses}
            for chunk in loader.chunks:
                handles.update(dict.fromkeys(range(chunk, chunk + 8 * CHUNK, 8), "handle"))
            places = (place for place in handles if place and decode(memory.word(place) or 0) == start)
            yield from (ObjectWord(place, start, f"{handles[place]} of {name}") for place in places)
        yield from self._roots.words_to(start, self._excluded, name_thread)

    def path_to(self, index: int) -> Sequence[int]:
        """Return the objects on a path from a root to a live object. A path from a certain root is
        preferred. If possible, the path begins at an object that the author of a program can
        identify; see NamedPaths. A path through a soft reference or a finalizer is returned only if
        no other path from a certain root exists: dropping a soft reference, for example, does not
        free an object to which a variable also refers."""
        starts, avoided = self._certain_starts, self._weaker_classes
        path = self.graph.path(index, starts, avoided) or self.graph.path(index, starts) if starts else ()
        return self._named_paths.extend(path or self.graph.path(index))

    @cached_property
    def _weaker_classes(self) -> bytes:
        """A byte for each class: 1 if its objects are soft references or finalizers."""
        names = ((one.name, *supers) for one, supers in zip(self._objects.classes, self._supers))
        return bytes(any(name in _STRONG for name in some) for some in names)

    def path_from_possible_roots(self, index: int) -> Sequence[int]:
        """Return the objects on a shortest path from a word that may be stale, such as one of a
        stack; () if there is none."""
        return self.graph.path(index, self._possible_starts) if self._possible_starts else ()

    def is_certain(self, index: int) -> bool:
        """Return whether a certain root refers to an object."""
        starts = self._certain_starts
        at = bisect_left(starts, index)
        return at < len(starts) and starts[at] == index

    @cached_property
    def _certain_starts(self) -> Sequence[int]:
        """The indices of the objects to which certain roots refer, ascending."""
        return sorted({self._objects.index_of(address) for some in self.certain_roots for address in some} - {NO_BLOCK})

    @cached_property
    def _possible_starts(self) -> Sequence[int]:
        return sorted({self._objects.index_of(address) for some in self.possible_roots for address in some} - {NO_BLOCK})

    @cached_property
    def _named_paths(self) -> NamedPaths:
        kinds, numbers, classes = self.graph.kinds(), self._objects.numbers, self._objects.classes
        named = [one.kind == MIRROR or any(name in _NAMED for name in (one.name, *found)) for one, found in zip(classes, self._supers)]
        return NamedPaths(self._tables.target, self.graph, numbers, named, lambda index: kinds[index] == Kind.REACHABLE)


def _reaches(graph: Graph, start: int, goal: int) -> bool:
    """Whether a path of references leads from one object to another, among the first _NEAR objects
    of a search."""
    found = [start]
    for one in found:
        for following, _ in graph.references(one):
            if following == goal:
                return True
            if following not in found and len(found) < _NEAR:
                found.append(following)
    return False
