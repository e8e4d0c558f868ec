"""The objects of the Java heap as a graph, which commands use to answer questions about single
objects."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Optional

from findleaks.engine.contract import Engine
from findleaks.engine.dominators import Dominators
from findleaks.graph.joint_roots import LEAST, join_names
from findleaks.runtimes.joint_members import JointMembers, JointRetainer, find_joint_members
from findleaks.runtimes.jvm.engine import FIXED, MIRROR, OBJECTS
from findleaks.runtimes.jvm.fields import SIZES, FieldReader, JavaField
from findleaks.runtimes.jvm.holders import find_holders, list_referrers
from findleaks.runtimes.jvm.java_classes import JavaClass
from findleaks.runtimes.jvm.native_roots import is_stack_word
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.reachability import Reachability
from findleaks.runtimes.jvm.remedies import find_mapping_remedies, find_retainer_remedies
from findleaks.runtimes.jvm.static_holders import describe_static_holder
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.threads import thread_object
from findleaks.runtimes.object_graph import ObjectField, ObjectGraph, ObjectWord
from findleaks.runtimes.referrers import Referrers
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.frames.locks import JavaLocks

_FORMATS = {"Z": "?", "B": "b", "C": "H", "S": "h", "I": "i", "F": "f", "J": "q", "D": "d"}
_ELEMENTS = {"boolean": "Z", "byte": "B", "char": "C", "short": "S", "int": "I", "float": "F", "long": "J", "double": "D"}
_STRING, _THREAD, _ENTRY = "java.lang.String", "java.lang.Thread", "java.lang.ThreadLocal$ThreadLocalMap$Entry"
_MOST_OWNERS = 64  # referrers of a ThreadLocal that are searched for its variable
_MOST_FIELDS, _MOST_REFERRERS = 4, 1 << 12  # fields in one name; referrers of one object
_LIBRARIES = ("jdk.internal.loader.NativeLibraries$NativeLibraryImpl", "java.lang.ClassLoader$NativeLibrary")
_MOST_MAPPINGS = 4  # of one file, on average
_UNNAMED_FIELDS = (".parkBlocker", ".this$0")
_MOST_TEXT = 200  # bytes of a String that are shown
_SLICE = 1 << 20  # bytes of an array that are read together


class JavaGraph(ObjectGraph):
    """See ObjectGraph. A reference always has the address of an object's start."""

    noun = "Java object"
    plain_types = ("java.", "javax.", "jdk.", "sun.", "com.sun.")
    # What a static variable, a handle or a class loader reaches does not belong to a stack, too.
    root_count = 2

    def __init__(self, tables: Tables, engine: Engine, objects: JavaObjects, reach: Optional[Reachability]) -> None:
        super().__init__(tables.target, engine, objects.blocks, reach.graph if reach is not None else None)
        self._tables, self._objects, self._reach = tables, objects, reach
        self._fields = FieldReader(tables)
        self._references = objects.layout.references
        # Results of `root_of`, by the first object of a path
        self._roots_found: dict[int, Optional[ObjectWord]] = {}
        self._order = "<" if tables.memory.arch.byteorder == "little" else ">"

    def type_of(self, index: int) -> str:
        return self._objects.name_of(index)

    def labels(self) -> tuple[array[int], Sequence[str]]:
        return self._objects.numbers, [one.name for one in self._objects.classes]

    def _class_of(self, index: int) -> JavaClass:
        return self._objects.classes[self._objects.numbers[index]]

    def _java_fields(self, index: int) -> list[JavaField]:
        """Return the fields, by offset, of an object that is not an array. Those of a mirror begin
        with the static fields of its class."""
        one = self._class_of(index)
        found = list(self._fields.instance(one.klass))
        if one.kind == MIRROR:
            offset = self._tables.int32("java_lang_Class", "_klass_offset") or 0
            klass = self._tables.memory.word(self.blocks.address(index) + offset) if offset else None
            # The program's own fields come first, as commands show a limited number.
            found = [*(field._replace(name=f"static {field.name}") for field in self._fields.statics(klass or 0)), *found]
        return found

    def _length(self, index: int) -> int:
        """Return the number of elements of an array. If the length is damaged, it is limited by the
        size of the object."""
        one, start = self._class_of(index), self.blocks.address(index)
        length = self._tables.memory.int32(start + self._objects.layout.header.length_at) or 0
        return min(length, max(self.blocks.size(index) - one.size, 0) >> one.row[2])

    def fields_of(self, index: int, most: int) -> Sequence[ObjectField]:
        one, start = self._class_of(index), self.blocks.address(index)
        data = self._tables.memory.read(start, min(self.blocks.size(index), _SLICE))
        if one.kind in (FIXED, MIRROR):
            known = self._java_fields(index)
            return [self._field(data, each) for each in (known[:most] if most else known)]
        length = self._length(index)
        if one.name == "byte[]":
            text = data[one.size : one.size + min(length, _MOST_TEXT)]
            return [ObjectField(one.size, length, "", length, False, _quote(text.decode("latin-1")))] if length else []
        signature = "L" if one.kind == OBJECTS else _ELEMENTS.get(one.name.removesuffix("[]"), "B")
        shown = range(min(length, most) if most else length)
        elements = (JavaField(f"[{at}]", signature, one.size + (at << one.row[2]), False) for at in shown)
        return [self._field(data, each) for each in elements if each.offset < len(data)]

    def _field(self, data: bytes, one: JavaField) -> ObjectField:
        size = self._size(one)
        part = data[one.offset : one.offset + size]
        name = one.name if one.name.startswith("[") else f"static .{one.name[7:]}" if one.name.startswith("static ") else f".{one.name}"
        value = int.from_bytes(part, self._tables.memory.arch.byteorder)
        if len(part) < size:
            return ObjectField(one.offset, size, name, 0, False, "unreadable")
        if one.is_reference:
            address = self._decode(value)
            return ObjectField(
                one.offset, size, name, address, True, self._string(address) if one.signature == "Ljava/lang/String;" else ""
            )
        (number,) = struct.unpack(self._order + _FORMATS[one.signature], part)
        text = str(number).lower() if one.signature == "Z" else _quote(chr(number)) if one.signature == "C" else f"{number:,}"
        return ObjectField(one.offset, size, name, value, False, text)

    def _size(self, one: JavaField) -> int:
        return SIZES.get(one.signature, self._references.size)

    def _decode(self, value: int) -> int:
        return self._references.decode(value)

    def _string(self, address: int) -> str:
        """Return the contents of a String, quoted; "" if there is none."""
        index = self.blocks.find(address) if address else -1
        if index < 0 or self._class_of(index).name != _STRING:
            return ""
        fields = {one.name: one for one in self._java_fields(index)}
        if "value" not in fields:
            return ""
        data = self._tables.memory.read(address, self.blocks.size(index))
        value = self._field(data, fields["value"]).value
        # In JDK 8, a String has an array of characters, and no field that tells how they are coded.
        coder = self._field(data, fields["coder"]).value if "coder" in fields else 1
        text = self.blocks.find(value) if value else -1
        if text < 0:
            return ""
        start, length = self.blocks.address(text) + self._class_of(text).size, self._length(text) << self._class_of(text).row[2]
        content = self._tables.memory.read(start, min(length, _MOST_TEXT))
        form = ("latin-1", f"utf-16-{'le' if self._order == '<' else 'be'}")[coder & 1]
        return _quote(content.decode(form, "replace") + ("…" if length > _MOST_TEXT else ""))

    def name_member(self, index: int, offset: int) -> str:
        one = self._class_of(index)
        if one.kind in (FIXED, MIRROR):
            found = next((each for each in self._java_fields(index) if each.offset <= offset < each.offset + self._size(each)), None)
            return self._field(b"", found).name if found is not None else ""
        return f"[{offset - one.size >> one.row[2]}]" if one.size <= offset < one.size + (self._length(index) << one.row[2]) else ""

    @property
    def own_actions(self) -> int:
        """The number of objects that live only because their own cleaning action refers to them."""
        return self._reach.own_actions if self._reach is not None else 0

    def describe_chain(self, path: Sequence[int]) -> str:
        """See ObjectGraph. If the path contains a thread-local variable, its name is appended, and
        otherwise the name of the thread at which the path begins."""
        text = super().describe_chain(path)
        entry = next((one for one in path if self.type_of(one) == _ENTRY), -1)
        if entry >= 0:
            return f"{text} ({self._name_variable(self.reference(entry, 'referent'))})"
        name = self.text_field(path[0], "name") if len(path) > 1 and self._is_thread(path[0]) else ""
        return f'{text} (Java thread "{name}")' if name else text

    def path_remedies(self, path: str) -> Sequence[str]:
        return list(find_retainer_remedies(path, self._list_supers))

    def _list_supers(self, name: str) -> Sequence[str]:
        """Return the names of the superclasses of a class of objects, nearest first."""
        klass = next((one.klass for one in self._objects.classes if one.name == name), 0)
        return self._objects.reader.supers(klass) if klass else ()

    def _name_variable(self, key: int) -> str:
        """Return a phrase for a thread-local variable, given the index of its ThreadLocal."""
        if key < 0 or not self.is_live(key):
            return "a thread-local variable whose ThreadLocal is garbage"
        name = self.name_thread_local(key)
        return f"thread-local variable {name}" if name else "a thread-local variable without a name"

    def name_thread_local(self, key: int) -> str:
        """Return the name of the static variable or field that refers to a ThreadLocal, or "". The
        map of each thread refers to it, too: there may be thousands of entries."""
        owners = (owner for owner in self.referrers(key) if self.type_of(owner) != _ENTRY)
        return next(filter(None, (self._variable_with(owner, key) for owner in islice(owners, _MOST_OWNERS))), "")

    def _variable_with(self, owner: int, value: int) -> str:
        """Return the name of the static variable or field of `owner` that refers to the object
        `value`; "" if there is none."""
        if self._class_of(owner).kind == MIRROR:
            return next((name for name, one in self.static_references(owner) if one == value), "")
        name = self.link(owner, value).name if self.type_of(owner) != _ENTRY else ""
        return f"{self.type_of(owner)}{name}" if name.startswith(".") else ""

    def name_variable(self, index: int) -> str:
        """See ReferrerSearch. A field follows the variable that refers to the field's object:
        "App.QUEUE → java.util.concurrent.LinkedBlockingQueue.notEmpty"."""
        names: list[str] = []
        seen = {index}  # two objects may refer to each other
        for _ in range(_MOST_FIELDS):
            referrers = islice(self.referrers(index), _MOST_REFERRERS)
            owners = [one for one in referrers if one not in seen and self.is_live(one)]
            # Ignore fields that every thread (.parkBlocker) or inner object (.this$0) has.
            named = [(one, name) for one in owners if (name := self._variable_with(one, index)) and not name.endswith(_UNNAMED_FIELDS)]
            best = next((pair for pair in named if self._class_of(pair[0]).kind == MIRROR), next(iter(named), None))
            if best is None:
                break
            index, name = best
            seen.add(index)
            names.insert(0, name)
            if self._class_of(index).kind == MIRROR:
                break
        return " → ".join(names)

    def path(self, index: int) -> Sequence[int]:
        return self._reach.path_to(index) if self._reach is not None else ()

    def path_from_threads(self, index: int) -> Sequence[int]:
        """Return the objects on a path from a stack, a register or native memory; () if none."""
        return self._reach.path_from_possible_roots(index) if self._reach is not None else ()

    def find_joint_retainer(self) -> Optional[JointRetainer]:
        if not self.joint_statics:
            return None
        one = self.joint_statics[0]
        return JointRetainer(f"static variables {join_names(one.names)}", one.holder, one.retained)

    @cached_property
    def joint_statics(self) -> Sequence[JointMembers]:
        """The static variables of one class that retain much memory only together, those that
        retain most first."""
        tree = self.dominators
        if tree is None or self.graph is None:
            return ()
        least = LEAST * tree.total().bytes
        found: list[JointMembers] = []
        for mirror in (one for one in self.mirrors() if tree.sum_retained(one).bytes >= least):
            statics = {index: name for name, index in self.static_references(mirror)}
            found += find_joint_members(self.graph, tree, mirror, [(name, index) for index, name in statics.items()], self.target)
        return sorted(found, key=lambda one: -one.retained.bytes)

    def describe_holder(self, index: int) -> str:
        path = self.path(index)
        if variable := describe_static_holder(self, path, self.static_references):
            return variable
        thread = self.text_field(path[0], "name") if path and self._is_thread(path[0]) else ""
        entry = next((one for one in path if self.type_of(one) == _ENTRY), -1)
        value = self.reference(entry, "value") if entry >= 0 else -1
        if value not in path:
            return f'Java thread "{thread}"' if thread else super().describe_holder(index)
        key = self.reference(entry, "referent")
        entries = (one for one in self.referrers(value) if self.type_of(one) == _ENTRY and self.is_live(one))
        # A thread has one entry for each variable, and may have the value in several variables.
        threads = sum(self.reference(one, "referent") == key for one in entries) if key >= 0 else 0
        whose = f" of {threads:,} threads" if threads > 1 else f" of thread {thread}" if thread else ""
        return f"{self._name_variable(key)}{whose}"

    def _is_thread(self, index: int) -> bool:
        return _THREAD in (self.type_of(index), *self._objects.reader.supers(self._class_of(index).klass))

    def root_of(self, index: int) -> Optional[ObjectWord]:
        """Return the root at which a shortest path to an object begins; see ObjectGraph. Certain
        roots are preferred, then roots with names. Other words that refer to the same object may be
        in memory that the JVM uses temporarily, such as the handles of a thread."""
        path = self.path(index)
        if not path:
            return None
        if path[0] not in self._roots_found:  # all of malloc's memory is searched
            low = self.blocks.address(path[0])
            best: Optional[ObjectWord] = None
            is_certain = self._reach is not None and self._reach.is_certain(path[0])
            for word in self.roots_to(low, low + 1):
                if is_certain and is_stack_word(word):
                    continue
                if best is None or (not word.name, not word.address) < (not best.name, not best.address):
                    best = word
                if best.name:
                    break
            self._roots_found[path[0]] = best
        return self._roots_found[path[0]]

    def list_referrers(self, memory: Sequence[Range]) -> Sequence[Referrers]:
        kinds = self.graph.kinds() if self.graph is not None else None
        found = find_holders(self._objects, self.engine, self.target, memory, kinds, ())
        return list_referrers(found, self._objects, self.engine, self._tables.memory, memory)

    def mapping_remedies(self, type_name: str, path: Sequence[int], objects: int) -> Sequence[str]:
        if objects and not path:
            return ()
        # An object that keeps many mappings, such as a service with a cache, is not a file.
        classes = self._reach.by_class() if self._reach is not None else ()
        klasses = {one.java_class.name: one.java_class.klass for one in classes if one.live.blocks * _MOST_MAPPINGS >= objects}
        return list(find_mapping_remedies(self._tables, self._objects.reader, klasses, type_name, [self.type_of(one) for one in path]))

    def is_internal(self, index: int, offset: int) -> bool:
        """See ReferrerSearch. The JVM adds fields to some classes, such as ClassLoader. The handle
        of a native library leads to the structures of the linker."""
        if self.type_of(index) in _LIBRARIES:
            return True
        declared = self._java_fields(index) if self._class_of(index).kind in (FIXED, MIRROR) else None
        return declared is not None and not any(one.offset <= offset < one.offset + self._size(one) for one in declared)

    def name_implicit(self, source: int, target: int) -> str:
        if self._class_of(target).kind == MIRROR:
            return "its class" if self.type_of(target).endswith(f" of {self.type_of(source)}") else "a class that it loaded"
        one = self._class_of(source)
        is_loader = one.kind == MIRROR or "java.lang.ClassLoader" in self._objects.reader.supers(one.klass)
        return "an object of the class loader" if is_loader else "released by its Cleaner"

    def references_of(self, index: int, low: int, high: int) -> Iterator[ObjectWord]:
        start = self.blocks.address(index)
        for offset in self._offsets(index, low, high):
            value = self._decode(self._word(start + offset))
            if low <= value < high:
                yield ObjectWord(start + offset, value, self.name_member(index, offset))

    def _offsets(self, index: int, low: int, high: int) -> Iterator[int]:
        """Yield the offsets of an object's references. For an array, only elements with a value in
        [low, high) are included."""
        one = self._class_of(index)
        if one.kind == OBJECTS:
            yield from self._elements(index, one.size, low, high)
        elif one.kind in (FIXED, MIRROR):
            known = {each.offset for each in self._java_fields(index) if each.is_reference}
            yield from sorted(known.union(one.reference_offsets(self._references.size)))

    def _elements(self, index: int, first: int, low: int, high: int) -> Iterator[int]:
        memory, size = self._tables.memory, self._references.size
        start, end = self.blocks.address(index) + first, self.blocks.address(index) + first + self._length(index) * size
        for place in range(start, end, _SLICE):
            data = memory.read(place, min(_SLICE, end - place))
            words = memory.arch.words32(data) if size == 4 else memory.arch.words(data)
            yield from (place - start + first + at * size for at, value in enumerate(words) if low <= self._decode(value) < high)

    def _word(self, place: int) -> int:
        return int.from_bytes(self._tables.memory.read(place, self._references.size), self._tables.memory.arch.byteorder)

    def roots_to(self, low: int, high: int) -> Iterator[ObjectWord]:
        found = self.blocks.lookup(low)
        # A root has the address of an object's start.
        if self._reach is not None and found is not None and found[1] == low:
            yield from self._reach.roots_to(low, self._name_thread)

    def _name_thread(self, thread: int) -> str:
        """Return the name of a Java thread, or its JavaThread's address."""
        index = self._find(thread_object(self._tables, thread))
        field = next((one for one in self._java_fields(index) if one.name == "name"), None) if index >= 0 else None
        name = self._string(self._decode(self._word(self.blocks.address(index) + field.offset))) if field is not None else ""
        return name or f"at {thread:#x}"

    @cached_property
    def locks(self) -> JavaLocks:
        """The locks of Java threads that have a thread of the kernel."""
        from findleaks.runtimes.jvm.frames.locks import JavaLocks  # seldom needed

        return JavaLocks(self._tables, self._objects.layout)

    def mirrors(self) -> Sequence[int]:
        """Return the objects of java.lang.Class."""
        return self._objects.of_classes(number for number, one in enumerate(self._objects.classes) if one.kind == MIRROR)

    def instances(self, name: str) -> Sequence[int]:
        """Return the objects of a class and of its subclasses."""
        reader = self._objects.reader
        fixed = ((number, one) for number, one in enumerate(self._objects.classes) if one.kind == FIXED)
        return self._objects.of_classes(number for number, one in fixed if name in (one.name, *reader.supers(one.klass)))

    def static_references(self, mirror: int) -> Iterator[tuple[str, int]]:
        """Yield the static variables of a class that refer to objects, with their objects."""
        start = self.blocks.address(mirror)
        klass = self._tables.memory.word(start + (self._tables.int32("java_lang_Class", "_klass_offset") or 0)) or 0
        for field in self._fields.statics(klass) if klass else ():
            index = self._find(self._decode(self._word(start + field.offset))) if field.is_reference else -1
            if index >= 0:
                yield f"{self._objects.reader.name(klass)}.{field.name}", index

    def reference(self, index: int, name: str) -> int:
        """Return the object to which a field of an object refers, -1 if there is none."""
        known = self._fields.instance(self._class_of(index).klass) if index >= 0 and self._class_of(index).kind == FIXED else ()
        field = next((one for one in known if one.name == name and one.is_reference), None)
        return self._find(self._decode(self._word(self.blocks.address(index) + field.offset))) if field is not None else -1

    def refers_to_nothing(self, address: int) -> bool:
        """Return whether all references in the fields of an object are null."""
        index = self.blocks.find(address)
        return index >= 0 and not any(one.value for one in self.fields_of(index, 0) if one.is_reference)

    def text_field(self, index: int, name: str) -> str:
        """Return the text of a field of an object that is a String, or ""."""
        text = self.reference(index, name)
        quoted = self._string(self.blocks.address(text)) if text >= 0 else ""
        return str(json.loads(quoted)) if quoted.endswith('"') else ""

    def elements(self, index: int) -> Iterator[int]:
        """Yield the objects to which the elements of an array refer."""
        if index >= 0 and self._class_of(index).kind == OBJECTS:
            start = self.blocks.address(index)
            for offset in self._elements(index, self._class_of(index).size, 1, 1 << 64):
                yield self._find(self._decode(self._word(start + offset)))

    def _find(self, address: int) -> int:
        return self.blocks.find(address) if address else -1

    def add_roots(self, tree: Dominators, root: int) -> None:
        if self._reach is not None:
            for number, some in enumerate((self._reach.certain_roots, self._reach.possible_roots), root):
                for addresses in some:
                    tree.root_words(addresses, number)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
