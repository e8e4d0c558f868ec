"""List the classes of a program whose objects own native memory until close() is called, such as
org.rocksdb.RocksIterator. After the objects have been collected, only the classes are left.

Such a class implements AutoCloseable. It, or a superclass outside the JDK, has native methods, and
an object has a field of type long for the address of the native memory.

Source: OpenJDK 17, src/hotspot/share/oops/instanceKlass.hpp (ClassState), and
src/java.base/share/native/include/classfile_constants.h (JVM_ACC_NATIVE, JVM_ACC_ABSTRACT)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Optional

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.runtimes.jvm.classes import list_classes, list_loader_data
from findleaks.runtimes.jvm.fields import FieldReader
from findleaks.runtimes.jvm.java_classes import ClassReader
from findleaks.runtimes.jvm.objects import JavaObjects
from findleaks.runtimes.jvm.remedies import is_closeable
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.object_graph import GARBAGE
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

_JDK = re.compile(r"(?:java|javax|jdk|sun|com\.sun)\.(?!jna\.)")
_NATIVE, _ABSTRACT = 0x100, 0x400
_LONG = "J"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]+")  # ArenaWrappedDBIter -> Arena, Wrapped, DB, Iter
_LONG_WORDS = {"Txn": "Transaction", "Iter": "Iterator", "Opts": "Options", "Ctx": "Context", "Mgr": "Manager", "Buf": "Buffer"}
_UNIMPORTANT = ("Impl", "Jni", "JNI", "Base")  # words at the end of names
_UNLIKE = (False, False, 0)  # see _compare_names
_MOST_CLASSES, _MOST_METHODS, _MOST_SUPERS = 1 << 16, 1 << 16, 64
_LOOK = 256  # classes between two checks for Ctrl-C
_SAMPLED = 64  # live objects of a class whose blocks are examined
_LEAST_WORD = 4  # letters of a part of a package's name that is looked for in the name of a library


class _Class(NamedTuple):
    """A class, its Klass, and the number of its live objects."""

    name: str
    klass: int
    live: int


class NativeClasses:
    """The classes of a program whose objects own native memory. `kinds`: those of the objects, or
    None if they are unknown. `live`: the numbers of live objects by the name of the class."""

    def __init__(
        self, tables: Tables, objects: Optional[JavaObjects], kinds: Optional[Sequence[int]], blocks: Blocks, live: Mapping[str, int]
    ) -> None:
        self._tables, self._objects, self._kinds, self._blocks, self._live = tables, objects, kinds, blocks, live
        self._fields = FieldReader(tables)

    def _list_classes(self) -> Sequence[_Class]:
        """All such classes. Raises Interrupted."""
        tables, reader, found = self._tables, ClassReader(self._tables), list[_Class]()
        klasses = (klass for data in list_loader_data(tables) for klass in list_classes(tables, data))
        for klass in interruptible(tables.target, islice(klasses, _MOST_CLASSES), _LOOK):
            name = reader.name(klass)
            if not name or name.startswith("[") or _JDK.match(name) or "." not in name or not _is_initialized(tables, klass):
                continue
            if is_closeable(tables, reader, klass) and _has_address(tables, reader, self._fields, klass):
                found.append(_Class(name, klass, self._live.get(name, 0)))
        return found

    def find(self, native: str, about: str, size: int, is_alike: bool) -> list[tuple[str, int, int]]:
        """Return names of such classes, the numbers of their live objects, the fewest first, and
        how many of these own a block of `size` bytes. `native`: the type of blocks in C++, or "".
        `about`: names of libraries or native types.

        If parts of the packages of some classes are in `about` ("rocksdb"), only these classes are
        returned; of these, if possible, only those with the name most like `native` (RocksIterator
        is like rocksdb::ArenaWrappedDBIter). `is_alike`: return only classes for which both is
        true. Raises Interrupted."""
        text = about.lower()
        classes = self._list_classes()
        found = [one for one in classes if any(word in text for word in _words_of(one.name))] or ([] if is_alike else classes)
        likeness = [_compare_names(one.name, native) for one in found]
        best = max(likeness, default=_UNLIKE)
        if best == _UNLIKE and is_alike:
            return []
        found = [one for one, like in zip(found, likeness) if like == best]
        rows = ((one.name, one.live, self._count_owners(one, size) if one.live and size else 0) for one in found)
        return sorted(dict.fromkeys(rows), key=lambda one: (one[1], one[0]))

    def _count_owners(self, one: _Class, size: int) -> int:
        """Return how many objects of a class contain the start of a block in use of `size` bytes,
        of the first _SAMPLED live ones.

        The size of the native structure tells classes of one library apart: an
        org.rocksdb.ReadOptions owns a block of 168 bytes, an org.rocksdb.Slice does not."""
        objects, kinds = self._objects, self._kinds
        if objects is None or kinds is None:
            return 0
        offsets = [field.offset for field in self._fields.instance(one.klass) if field.signature == _LONG]
        indices = objects.of_classes([number for number, each in enumerate(objects.classes) if each.name == one.name])
        starts = (objects.blocks.address(index) for index in indices if kinds[index] not in GARBAGE)
        return sum(any(self._is_start(start + offset, size) for offset in offsets) for start in islice(starts, _SAMPLED))

    def _is_start(self, place: int, size: int) -> bool:
        word = self._tables.memory.word(place)
        found = self._blocks.lookup(word) if word else None
        return found is not None and found[1:] == (word, size, State.IN_USE)


def _is_initialized(tables: Tables, klass: int) -> bool:
    """Whether the program has used a class, and not only loaded it. A class is initialized before
    its first object is created."""
    place, wanted = tables.place("InstanceKlass", "_init_state", klass), tables.constants.get("InstanceKlass::fully_initialized")
    return not place or wanted is None or tables.memory.read(place, 1) == bytes([wanted & 0xFF])


def _compare_names(name: str, native: str) -> tuple[bool, bool, int]:
    """Return how much the names of a Java class and of a type of C++ are alike; _UNLIKE if not.

    The last word states what an object is. Therefore this word of the Java class must be in the
    other name: Transaction is like WriteCommittedTxn, and WriteOptions is not. Equal names are most
    alike, then names with the same last word, then names with more common words."""
    ours, theirs = _split_name(name.rpartition(".")[2]), _split_name(native.partition("<")[0].rpartition("::")[2])
    if not ours or ours[-1] not in theirs:
        return _UNLIKE
    return ours == theirs, ours[-1] == theirs[-1], len({*ours} & {*theirs})


def _split_name(name: str) -> list[str]:
    """Return the words of a name. The last one is none of _UNIMPORTANT."""
    words = [_LONG_WORDS.get(word, word) for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1] in _UNIMPORTANT:
        words.pop()
    return words


def _words_of(name: str) -> Iterator[str]:
    """Yield the parts of a class's package that may also be in the name of a library."""
    yield from (word for word in name.lower().split(".")[1:-1] if len(word) >= _LEAST_WORD and word != "github")


def _has_address(tables: Tables, reader: ClassReader, fields: FieldReader, klass: int) -> bool:
    """Whether objects of a class can contain an address for native methods."""
    access = tables.int32("Klass", "_access_flags", klass) or 0
    if access & _ABSTRACT or not any(one.signature == _LONG for one in fields.instance(klass)):
        return False
    for _ in range(_MOST_SUPERS):
        if not klass or _JDK.match(reader.name(klass)):
            return False
        if any((tables.int32("Method", "_access_flags", one) or 0) & _NATIVE for one in _methods(tables, klass)):
            return True
        klass = tables.word("Klass", "_super", klass) or 0
    return False


def _methods(tables: Tables, klass: int) -> Sequence[int]:
    table = tables.word("InstanceKlass", "_methods", klass) or 0
    count, data = tables.int32("Array<int>", "_length", table) or 0, tables.place("Array<Method*>", "_data", table)
    return tables.memory.words(data, count) or () if data and 0 < count <= _MOST_METHODS else ()
