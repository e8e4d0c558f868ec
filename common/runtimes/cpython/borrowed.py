"""Find words of CPython's objects that contain the address of an object, but are not references.
The ob_refcnt of the object at this address does not count them.

These words are the collector's links, the list of an object's weak references, a weak reference's
referent, the remaining contents of objects that are kept for reuse, words after the end of an
object in its block, hashes in the table of a small set (see storage.py), words that the interpreter
does not write, and bytecode. Since 3.11, bytecode contains caches (LOAD_METHOD) with addresses of
functions. These functions may have been freed.

Sources, CPython 3.9 to 3.14: Include/internal/pycore_gc.h (PyGC_Head, two words before an
object), Include/internal/pycore_object.h (_PyType_PreHeaderSize; since 3.12 the first of the
words before an object is the list of weak references; struct _dictvalues, of whose first word
only four bytes are written, follows an object since 3.13), Include/cpython/object.h
(tp_weaklistoffset), Include/cpython/weakrefobject.h (struct _PyWeakReference: wr_object,
wr_callback, hash, wr_prev, wr_next after the object's head), Include/internal/pycore_code.h
(_PyLoadMethodCache: "descr" is borrowed), Include/cpython/code.h (_co_unique_id, since 3.14),
Include/cpython/genobject.h (gi_running up to 3.9, gi_origin_or_finalizer),
Include/internal/pycore_interpframe_structs.h (owner in struct _PyInterpreterFrame),
Include/cpython/frameobject.h (f_blockstack, up to 3.10), Include/memoryobject.h (ob_array),
Include/cpython/unicodeobject.h (_PyUnicodeWriter; for strings, see strings.py),
Modules/_decimal/_decimal.c (PyDecObject), Modules/_sre/sre.h (PatternObject, MatchObject),
Modules/zlibmodule.c (compobject), Modules/posixmodule.c (ScandirIterator), Modules/_io/stringio.c
(stringio: writer, 3.12 and 3.13), Modules/_threadmodule.c (lockobject: locked, up to 3.12).
Since 3.11, tp_basicsize of the type "code" is the offset of an object's bytecode."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.engine.terms import EVERY_WORD, LAST_WORD, NO_HEADER, Exclusion
from findleaks.runtimes.cpython.interpreter_memory import CHAIN
from findleaks.runtimes.cpython.remains import ENTRIES, ENTRY_WORDS
from findleaks.runtimes.cpython.strings import layout_of_text
from findleaks.runtimes.cpython.types import HAVE_GC, INLINE_VALUES, MANAGED_WEAKREF, SUBCLASSES, Types, release_of
from findleaks.runtimes.exclusion_table import ExclusionTable

WEAK = frozenset(("weakref", "weakref.ReferenceType", "weakproxy", "weakref.ProxyType", "weakcallableproxy", "weakref.CallableProxyType"))
"""Names of the types whose objects are weak references. Objects of subclasses are weak references,
too."""

CODE = "code"
_WEAK_WORDS = (2, 5, 6)  # wr_object, wr_prev, wr_next, in words from the object
# Offsets of the hashes in a set's table, in words from the start of the set.
_SET_HASHES = range(ENTRIES + 1, ENTRIES + ENTRY_WORDS, 2)
# The words of a Decimal with its flags and with digits. The flags are one byte.
_DECIMAL = (3, *range(9, 13))
# f_blockstack is before the variables of a frame; f_trace_lines and the next byte are in one word.
_FRAMES, _BLOCK_STACK = {"3.9": (11,), "3.10": ()}, 30
# Of this word of the frame in a generator, only `owner` is written: one byte (3.14).
_OWNER = 18
# gi_running is one byte; only coroutines have gi_origin_or_finalizer; only a free-threaded
# interpreter writes _co_unique_id.
_UNWRITTEN = {
    **dict.fromkeys(((name, "3.9") for name in ("generator", "coroutine", "async_generator")), (3,)),
    ("generator", "3.11"): (8,),
    **dict.fromkeys((("generator", release) for release in ("3.12", "3.13")), (7,)),
    **dict.fromkeys(((name, "3.14") for name in ("coroutine", "async_generator")), (_OWNER,)),
    ("generator", "3.14"): (7, _OWNER),
    (CODE, "3.14"): (23,),
}
# In all releases: flags, the code and its size in a regular expression; positions in a match; the
# input and the output of z_stream, which are set during a call only, and fields that zlib does not
# use; a file descriptor.
_TO_END = 1 << 32  # also the words of a block for which a mask has no bits
_NUMBERS = {
    "re.Pattern": (7, *range(9, LAST_WORD), _TO_END),
    "re.Match": (*range(6, LAST_WORD), _TO_END),
    **dict.fromkeys(("zlib.Compress", "zlib.Decompress"), (2, 5, 6, 13, 15)),
}
_LOCKED = ("3.9", "3.10", "3.11", "3.12")  # releases in which `locked` is one byte of a word
# Releases in which a StringIO contains a _PyUnicodeWriter. Its word 8 points into a str that the
# word before refers to, or that has been freed.
_WITH_WRITER, _WRITER_WORDS = ("3.12", "3.13"), 21
_SCANDIR = "posix.ScandirIterator"
# Maximum number of patterns, of 255 possible; for further types only the collector's links are
# excluded
_MOST = 250


class Borrowed:
    """The words that are not references, by type, as patterns of Graph.exclude_words.

    `lives` and `kept` have a byte for each type: the pattern of its live objects, and of its
    objects kept for reuse."""

    def __init__(self, known: Types, word: int, version: str) -> None:
        self._word = word
        # The second exclusion is engine.LEAF.
        self._table = ExclusionTable((Exclusion(0), Exclusion(EVERY_WORD)), _MOST)
        self.lives, self.kept = bytearray(), bytearray()
        weak = {number for number in range(len(known)) if known.plain_name(number) in WEAK}
        sets = {*known.list_derived(("set", "frozenset"))}
        unwritten = _list_unwritten(known, word, version)
        for number, (start, flags) in enumerate(zip(known.offsets, known.flags)):
            is_weak = number in weak or not weak.isdisjoint(known.bases(number))
            links, header = (0, NO_HEADER) if known.shift else _links(start, flags, word)
            is_code = known.plain_name(number) == CODE
            size = known.basic_size(number) - known.shift if is_code else known.sizes[number]
            rest = _whole_rest if known.shift or is_code else _rest
            own = _WEAK_WORDS if is_weak else _SET_HASHES if number in sets else unwritten.get(number, ())
            if flags & INLINE_VALUES and not known.shift:
                own = (*own, known.basic_size(number) // word)
            words = _mask_borrowed(start, flags, known.weak_lists[number], own, word) | rest(start, size, word)
            plain = self._pattern(Exclusion(0, links, header))
            self.lives.append(self._pattern(Exclusion(words & ~links, links, header), plain))
            self.kept.append(self._pattern(Exclusion(_remains(start, flags, word), links, header), plain))

    @property
    def exclusions(self) -> Sequence[Exclusion]:
        """The exclusions. The index of an exclusion is the number of its pattern."""
        return self._table.exclusions

    def pair(self, end: int) -> int:
        """Return the pattern that excludes the two words before offset `end` of a block. Returns 0,
        which excludes no word, if there are too many patterns or if a mask has no bits for these
        words."""
        first = end // self._word - 2
        return self._pattern(Exclusion(3 << first)) if 0 <= first < LAST_WORD - 1 else 0

    def all_but(self, offset: int) -> int:
        """Return the pattern that excludes all words except the one at `offset` of a block."""
        return self._pattern(Exclusion(EVERY_WORD & ~(1 << offset // self._word)))

    def all_of(self, words: int) -> int:
        """Return the pattern that excludes a mask of words; 0 if there are too many patterns."""
        return self._pattern(Exclusion(words))

    def with_words(self, number: int, words: int) -> int:
        """Return a pattern that excludes the words of pattern `number` and a mask of words; 0 if
        there are too many patterns."""
        plain = self.exclusions[number]
        return self._pattern(Exclusion(plain.words | words & ~plain.links, plain.links, plain.header))

    def with_end(self, number: int, offset: int) -> int:
        """Return a pattern that excludes the words of pattern `number`, and the link at `offset`
        wherever it leads. In the first or last object of a list, this link refers to the list's
        head, which is not an object. Returns `number` if there are too many patterns, or if a mask
        has no bit for this word."""
        if not 0 <= offset < LAST_WORD * self._word:
            return number
        plain, link = self.exclusions[number], 1 << offset // self._word
        return self._pattern(Exclusion(plain.words | link, plain.links & ~link, plain.header), number)

    def _pattern(self, exclusion: Exclusion, fallback: int = 0) -> int:
        """Return the number of this pattern. It is added if it does not exist; `fallback` is
        returned if there are too many."""
        number = self._table.add(exclusion)
        return fallback if number is None else number


def _list_unwritten(known: Types, word: int, version: str) -> dict[int, Sequence[int]]:
    """Return words of objects that the interpreter never writes, or in which it writes only
    numbers, by the number of the type. Words are numbered from the start of an object."""
    release = release_of(version)
    found: dict[int, Sequence[int]] = dict.fromkeys(known.list_derived(("decimal.Decimal",)), _DECIMAL)
    for name, words in _NUMBERS.items():
        found.update(dict.fromkeys(known.list_derived((name,)), words))
    for number in known.list_derived(("_io.StringIO",)) if release in _WITH_WRITER else ():
        if known.basic_size(number) // word == _WRITER_WORDS:
            found[number] = (8,)
    if release in _LOCKED:
        found.update(dict.fromkeys(known.list_derived(("_thread.lock",)), (4,)))
    for number in known.list_derived((_SCANDIR,)):
        found[number] = ((known.basic_size(number) - known.shift) // word - 1,)
    text = layout_of_text(version)
    found.update(dict.fromkeys(known.list_derived(("str",)), text.numbers))
    for number in range(len(known)):
        name, end = known.plain_name(number), (known.basic_size(number) - known.shift) // word
        if name == "str":
            found[number] = (*text.numbers, *range(text.characters, LAST_WORD), _TO_END)
        elif name == "memoryview":
            found[number] = range(end, LAST_WORD)
        elif name == "frame" and release in _FRAMES:
            found[number] = (*_FRAMES[release], *range(end - 1 - _BLOCK_STACK, end - 1))
        elif (name, release) in _UNWRITTEN:
            found[number] = _UNWRITTEN[name, release]
    return found


def _links(start: int, flags: int, word: int) -> tuple[int, int]:
    """Return the mask of the collector's links in a block whose object begins at `start`, and their
    offset in bytes."""
    first = start // word
    return (3 << first - 2, start - 2 * word) if flags & HAVE_GC and first >= 2 else (0, NO_HEADER)


def _mask_borrowed(start: int, flags: int, weak_list: int, own: Sequence[int], word: int) -> int:
    """Return the mask of the words of a live object that are not references, without the
    collector's links: the list of weak references, and the words in `own`, which are numbered from
    the start of the object. `weak_list`: tp_weaklistoffset of the type."""
    first = start // word
    words = {first + at for at in own}
    if flags & MANAGED_WEAKREF and first:
        words.add(0)
    elif weak_list > 0 and weak_list % word == 0:
        words.add(first + weak_list // word)
    return sum(1 << at for at in words if at < LAST_WORD) | (1 << LAST_WORD if _TO_END in own else 0)


def _rest(start: int, size: int, word: int) -> int:
    """Return the mask of the word between the end of an object and the end of its block.

    pymalloc rounds sizes up to multiples of two words, so this word may still contain a word of an
    earlier object. `size` is 0 if unknown."""
    end = start + size
    return 1 << end // word if end % (2 * word) == word and end // word < LAST_WORD else 0


def _whole_rest(start: int, size: int, word: int) -> int:
    """Return the mask of all words of the block from offset `start` + `size` on. They are the
    bytecode of a code object, or do not belong to the object, because blocks of mimalloc are up to
    a fifth larger than the requested size."""
    first = -(-(start + size) // word)
    return EVERY_WORD & -(1 << first) if size and first < LAST_WORD else 0


def _remains(start: int, flags: int, word: int) -> int:
    """Return the mask of all words of an object in a free list, except words that may chain it
    there: word 3 of tuples and frames, words 2 to 4 of objects of unknown types."""
    first = start // word
    chains = (CHAIN,) if flags & SUBCLASSES["tuple"] else (2, 3, 4)
    return EVERY_WORD & ~sum(1 << first + at for at in chains if first + at < LAST_WORD)
