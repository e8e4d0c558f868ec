"""Read class loaders: their classes, and the objects that they keep alive.

Source: OpenJDK 17, 21 and 25, src/hotspot/share/classfile/classLoaderData.hpp. Each class loader
has a ClassLoaderData with a list of handles (ChunkedHandleList), which refer to mirrors of its
classes and to constants. The tables lack the offset of the list, so the list is recognised by the
form of its chunks: 32 objects, their number, and the address of the next chunk. A hidden class may
have a separate ClassLoaderData."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.errors import Interrupted
from findleaks.runtimes.jvm.classes import list_classes, list_loader_data
from findleaks.runtimes.jvm.java_classes import CLASS, ClassReader, class_of
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range

CHUNK = 32  # objects of a chunk; then their number (32 bits) and the next chunk
_MOSTCHUNKS = 1 << 16
_REFLECTION = ".reflect.DelegatingClassLoader"
_LOOK = 1 << 10  # chunks between two checks for Ctrl-C


class Loader(NamedTuple):
    """A ClassLoaderData. `holder`: the object that keeps it alive, which is the class loader, or
    the mirror of a hidden class; 0 for the JVM's own loader. `klasses`: its classes. `chunks`: the
    addresses of the ClassLoaderData and of the chunks with its handles. `objects`: the objects in
    these chunks. In JDK 8, a ClassLoaderData refers to objects itself."""

    holder: int
    klasses: list[int]
    objects: list[int]
    chunks: list[int]


def read_loaders(tables: Tables, reader: ClassReader, heap: Range) -> Iterator[Loader]:
    """Yield the class loaders. `heap`: the range from the first object to the end of the last
    one."""
    for data in list_loader_data(tables):
        chunks = _chunks(tables, data, heap)
        objects = [word for words in chunks.values() for word in words if word]
        objects += (one for one in map(tables.decode_oop, _words(tables, data)) if heap.start <= one < heap.end)
        yield Loader(_holder(tables, reader, data), list(list_classes(tables, data)), objects, [data, *chunks])


def list_holders(tables: Tables, reader: ClassReader) -> Iterator[int]:
    """Yield the holder of each class loader; see Loader."""
    return (_holder(tables, reader, data) for data in list_loader_data(tables))


def count_loader_types(tables: Tables, layout: ObjectLayout) -> dict[str, int]:
    """Return the number of class loaders of each type, the largest number first. The JVM's own
    class loaders for reflection are last: the JVM creates one for each method that is often called
    by reflection. In JDK 8 and 11, each hidden class has a ClassLoaderData with the class loader of
    another class."""
    reader = ClassReader(tables)
    klasses = (class_of(tables, layout, holder) for holder in dict.fromkeys(list_holders(tables, reader)) if holder)
    names = (reader.name(klass) for klass in klasses if klass)
    found = Counter(name for name in names if name and name != CLASS).most_common()
    return dict(sorted(found, key=lambda one: one[0].endswith(_REFLECTION)))


def _holder(tables: Tables, reader: ClassReader, data: int) -> int:
    flag = tables.int32("ClassLoaderData", "_has_class_mirror_holder", data) or 0
    klass = next(list_classes(tables, data), 0) if flag & 0xFF else 0
    if klass:
        return reader.mirror(klass)
    return tables.oop("ClassLoaderData", "_class_loader", data)


def _words(tables: Tables, data: int) -> Sequence[int]:
    """Return the words of a ClassLoaderData."""
    return tables.memory.words(data, tables.sizes.get("ClassLoaderData", 0) // tables.memory.size) or ()


def _chunks(tables: Tables, data: int, heap: Range) -> dict[int, tuple[int, ...]]:
    """Return the chunks of a ClassLoaderData's handles by address, with the objects in each.
    Another word of the ClassLoaderData refers to the oldest chunk, which has the handle of the
    class loader itself, so the longest list is the right one.

    Since JDK 11, the first word is a weak handle of the holder. It refers to the middle of a block
    of handles, and the words there may have the form of a chunk. So this word is left out."""
    longest: dict[int, tuple[int, ...]] = {}
    for word in _words(tables, data)[_weak_handles(tables) :]:
        if word not in longest:  # a list that begins inside another one is shorter
            found = _follow_chunks(tables, word, heap)
            if len(found) > len(longest) and any(map(any, found.values())):
                longest = found
    return longest


def _weak_handles(tables: Tables) -> int:
    """Return the number of words with weak handles at the start of a ClassLoaderData, before the
    handle of the class loader. JDK 8 has none."""
    loader = tables.fields.get(("ClassLoaderData", "_class_loader"))
    return loader.offset // tables.memory.size if loader is not None and not tables.is_jdk8 else 0


def _follow_chunks(tables: Tables, word: int, heap: Range) -> dict[int, tuple[int, ...]]:
    """Return the chunks of a list that begins at `word`; {} if it is not a list of chunks."""
    found: dict[int, tuple[int, ...]] = {}
    while word and word not in found and len(found) < _MOSTCHUNKS:
        if len(found) % _LOOK == _LOOK - 1 and tables.target.is_interrupted():
            raise Interrupted
        chunk = tables.memory.words(word, CHUNK + 2)
        count = chunk[CHUNK] & 0xFFFFFFFF if chunk else 0
        objects = tuple(map(tables.decode_oop, chunk[:count])) if chunk else ()
        if chunk is None or not 0 < count <= CHUNK or any(one and not heap.start <= one < heap.end for one in objects):
            return {}
        found[word] = objects
        word = chunk[CHUNK + 1]
    return found
