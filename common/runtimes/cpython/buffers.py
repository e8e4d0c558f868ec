"""Find the buffers of CPython's objects: memory that an object owns, and that contains characters,
numbers or room for further items.

The interpreter writes a buffer only as far as it uses it. The unused part still contains words of
earlier blocks. They are not references, and neither are characters, the numbers of a lock, and the
codes of a struct.Struct.

The items of an array and the bytes of a bytearray remain references: programs with ctypes store
addresses there.

Sources, CPython 3.9 to 3.14, in words from the reference count: Modules/arraymodule.c (arrayobject:
ob_size, ob_item, allocated follow the type), Include/cpython/bytearrayobject.h (ob_size, ob_alloc,
ob_bytes, ob_start), Modules/_io/stringio.c (buf), Modules/_csv.c (ReaderObj: input_iter, dialect,
fields, state, field; WriterObj: write, dialect, rec), Modules/_struct.c (PyStructObject: s_size,
s_len, s_codes), Modules/_pickle.c (Pdata: ob_size, data), Modules/itertoolsmodule.c
(productobject, combinationsobject, permutationsobject: indices, cycles), Modules/_elementtree.c
(ElementObject: tag, text, tail, extra; ElementObjectExtra: attrib, length, allocated, children,
_children), the lock of Modules/_io/bufferedio.c (buffered), Modules/zlibmodule.c (compobject) and
Modules/_bz2module.c (BZ2Decompressor); up to 3.12 Modules/_threadmodule.c (lock_lock, rlock_lock)
and Modules/_queuemodule.c (lock); up to 3.10 Include/cpython/code.h (co_cell2arg). For strings, see
strings.py."""

from __future__ import annotations

from array import array

from findleaks.runtimes.cpython.strings import layout_of_text
from findleaks.runtimes.cpython.types import HEAP_TYPE, SUBCLASSES, Types, release_of

BUFFERS = 2  # numbers of a type
NO_POINTERS, ARRAY, BYTES, POINTERS, CHILDREN = range(5)
"""Contents of a buffer; see claim_buffer in cpython_storage.c."""

_OLD, _WITH_LOCKS = ("3.9", "3.10"), ("3.9", "3.10", "3.11", "3.12")
_LOCKS = ("_thread.lock", "_thread.RLock", "_queue.SimpleQueue")
_BY_NAME: dict[str, tuple[tuple[int, int], ...]] = {
    "array.array": ((3, ARRAY),),
    "bytearray": ((4, BYTES),),
    "_io.StringIO": ((2, NO_POINTERS),),
    **dict.fromkeys(("_io.BufferedReader", "_io.BufferedWriter", "_io.BufferedRandom"), ((13, NO_POINTERS),)),
    **dict.fromkeys(("zlib.Compress", "zlib.Decompress"), ((20, NO_POINTERS),)),
    "_bz2.BZ2Decompressor": ((18, NO_POINTERS),),
    "xml.etree.ElementTree.Element": ((5, CHILDREN),),
    "_csv.reader": ((6, NO_POINTERS),),
    "_csv.writer": ((4, NO_POINTERS),),
    "_struct.Struct": ((4, NO_POINTERS),),
    "_pickle.Pdata": ((3, POINTERS),),
    "itertools.product": ((3, NO_POINTERS),),
    "itertools.combinations": ((3, NO_POINTERS),),
    "itertools.combinations_with_replacement": ((3, NO_POINTERS),),
    "itertools.permutations": ((3, NO_POINTERS), (4, NO_POINTERS)),
}
"""By tp_name: the word that points to the buffer, and the buffer's contents."""


def find_buffers(known: Types, version: str, word: int) -> array[int]:
    """Return BUFFERS numbers for each type: the word with the address of a buffer, and from bit 8
    on the contents of the buffer; 0 if there is none. `word`: bytes of a word."""
    found, release = array("I", bytes(4 * BUFFERS * len(known))), release_of(version)
    if word != 8 or known.shift:
        return found
    wanted = dict(_BY_NAME)
    if release in _WITH_LOCKS:
        wanted.update((name, ((2, NO_POINTERS),)) for name in _LOCKS)
    if release in _OLD:
        wanted["code"] = ((12, NO_POINTERS),)
    owners = {number: wanted[name] for number, name in known.name_derived(wanted).items()}
    characters = tuple((place, NO_POINTERS) for place in layout_of_text(version).pointers)
    for number in range(known.foreign, len(known)):
        if known.flags[number] & SUBCLASSES["str"] and known.flags[number] & HEAP_TYPE:
            owners[number] = characters  # a class that Python code defines; see strings.py
    for number, buffers in owners.items():
        for at, (place, contents) in enumerate(buffers):
            found[BUFFERS * number + at] = place | contents << 8
    return found
