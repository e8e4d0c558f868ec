"""Main contexts of GLib, and the sources of events that are attached to them.

Source: glib/gmain.c (struct _GMainContext, GSourceCallback; the variables default_main_context and
main_context_list), gmain.h (struct _GSource) of GLib 2.74 and 2.84, 64-bit targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.allocators.names import read_name
from findleaks.engine.contract import Blocks
from findleaks.runtimes.glib.tables import LAYOUTS, Header, read_entries, read_header, read_slots
from findleaks.target.base import Module, Range
from findleaks.value_classes import NamedTuple

REFERENCES, SOURCES, CONTEXT_BYTES = 48, 56, 160  # offsets in GMainContext; at most its bytes
MOST_REFERENCES = 1 << 24
CALLBACK, SOURCE_REFERENCES, CONTEXT, FLAGS, NUMBER = 0, 24, 32, 44, 48  # offsets in GSource
PREVIOUS, NEXT, NAME = 64, 72, 80
ACTIVE = 1  # G_HOOK_FLAG_ACTIVE: the source is not destroyed
SOURCE_LISTS = 80, 88  # offset of the GList of GSourceLists in GMainContext: 2.74, 2.84
OWN_LINK = 24  # bytes of the GList with which a GSourceList begins since 2.64
MOST_LISTS = 1 << 16  # priorities of the sources of a context
FUNCTION = 8  # offset in GSourceCallback
SAMPLE = 4  # entries of a table that are examined
LISTED = 64  # elements of a list of which one must be a context
MOST_CONTEXTS = 1 << 14  # elements of the list of all contexts that are read
MOST_SOURCES = 1 << 20  # sources of a context that are named
LOOP_BYTES = 40  # most bytes of the block of a GMainLoop (16 bytes: context, is_running, ref_count)
CALLBACK_BYTES = 32  # bytes of a GSourceCallback
MOST_UNUSED = 1 << 14  # sources of a context whose callbacks are examined


class MainContext(NamedTuple):
    """A main context. `is_default`: a variable of GLib refers to it. `destroyed` are sources that
    were destroyed and still have references. `unowned` are the words with which the context refers
    to the destroyed sources: `ref_count` of a source does not include them."""

    address: int
    is_default: bool
    sources: Sequence[int]
    destroyed: Sequence[int]
    unowned: Sequence[Range]


class Contexts:
    """The main contexts of a process. `data` is the writable memory of libglib."""

    def __init__(self, memory: Memory, data: Sequence[Range]) -> None:
        self._memory, self._data = memory, data
        self._list_words: list[Range] = []

    @property
    def uncounted_words(self) -> Sequence[Range]:
        """Words that refer to contexts, and that `ref_count` of a context does not include: those
        of the list of all contexts; and of contexts that are not the default one, those of their
        sources, and of the record (GPollRec) of a member of the context. The word of a source is
        left out if the program has a reference to the source, too: it can then call
        g_source_get_context()."""
        others = [one for one in self.all if not one.is_default]
        sources = islice(chain.from_iterable(one.sources for one in others), MOST_UNUSED)
        places = [source + CONTEXT for source in sources if self._memory.int32(source + SOURCE_REFERENCES) == 1]
        places += chain.from_iterable(self._own_records(one.address) for one in others)
        return [*self._list_words, *(Range(place, place + 8) for place in places)]

    @cached_property
    def _found(self) -> tuple[dict[int, bool], list[int]]:
        """The addresses of contexts, and whether each is the default one; and the addresses of the
        variables that refer to them."""
        contexts, variables = dict[int, bool](), list[int]()
        for start, end in self._data:
            for address, words in self._memory.scan(start, end):
                for at, word in enumerate(words):
                    its = list(self._contexts_of(word)) if word and word % 8 == 0 else []
                    if its:
                        variables.append(address + 8 * at)
                        for one in its:
                            contexts[one] = contexts.get(one, False) or one == word
        return contexts, variables

    def _contexts_of(self, word: int) -> Iterator[int]:
        """Yield the context at an address, or the contexts of the list at it."""
        if self._table(word) is not None:
            yield word
            return
        seen, nodes = set[int](), list[Range]()
        is_list = False
        while word and word % 8 == 0 and word not in seen and len(seen) < (MOST_CONTEXTS if is_list else LISTED):
            seen.add(word)
            node = self._memory.words(word, 2)  # of a GSList
            if node is None or not 0 < (self._memory.int32(node[0] + REFERENCES) or 0) < MOST_REFERENCES:
                break
            nodes.append(Range(word, word + 8))
            if self._table(node[0]) is not None:
                is_list = True
                yield node[0]
            word = node[1]
        if is_list:
            self._list_words += nodes

    def _table(self, context: int) -> Optional[Header]:
        """Return the table of the sources of a context; None if there is no context."""
        memory = self._memory
        if not 0 < (memory.int32(context + REFERENCES) or 0) < MOST_REFERENCES:
            return None
        sources = memory.word(context + SOURCES)
        found = next(filter(None, (read_header(memory, sources, layout, 0) for layout in LAYOUTS)), None) if sources else None
        sample = [value for _, value in islice(read_entries(memory, found), SAMPLE)] if found is not None else []
        is_context = all(self._source(value, context) for value in sample) if sample else next(self._own_records(context), 0)
        return found if is_context else None

    def _own_records(self, context: int) -> Iterator[int]:
        """Yield the words of records (GPollRec) that refer to a member of a context. A context
        always has one, for the descriptor that wakes it up."""
        words = self._memory.words(context, CONTEXT_BYTES // 8) or ()
        end = context + CONTEXT_BYTES
        yield from (word for word in words if word and word % 8 == 0 and context < (self._memory.word(word) or 0) < end)

    def _source(self, value: int, context: int) -> int:
        """Return the address of the source to which a table's value refers; 0 if there is none. In
        later versions, the value refers to the number in the source, not to the source's start."""
        places = (value, value - NUMBER)
        return next((place for place in places if self._memory.word(place + CONTEXT) == context), 0)

    @property
    def variables(self) -> Sequence[int]:
        """The addresses of GLib's variables that refer to contexts."""
        return self._found[1]

    @cached_property
    def all(self) -> Sequence[MainContext]:
        """The contexts, also those without sources."""
        made = []
        for address, is_default in self._found[0].items():
            table = self._table(address)
            active, destroyed, words = list[int](), list[int](), list[Range]()
            for _, value, slot in read_slots(self._memory, table) if table is not None else ():
                source = self._source(value, address)
                flags = self._memory.int32(source + FLAGS) if source else None
                if source and (flags is None or flags & ACTIVE):
                    active.append(source)
                elif source and table is not None:
                    destroyed.append(source)
                    words.append(Range(table.values + 8 * slot, table.values + 8 * slot + 8))
            words += self._links(address, set(destroyed)) if destroyed else ()
            made.append(MainContext(address, is_default, active, destroyed, words))
        return made

    def _links(self, context: int, sources: Container[int]) -> Iterator[Range]:
        """Yield the links of a context's lists that refer to these sources."""
        seen = set[int]()  # sources of all lists: damaged lists may have sources in common
        for head in self._lists(context):
            places = [head, head + 8]  # the first and the last source
            at = self._memory.word(head) or 0
            while at and at not in seen and len(seen) < MOST_SOURCES:
                seen.add(at)
                places += [at + PREVIOUS, at + NEXT]
                at = self._memory.word(at + NEXT) or 0
            yield from (Range(place, place + 8) for place in places if self._memory.word(place) in sources)

    def _lists(self, context: int) -> Sequence[int]:
        """Return the addresses of the first and last source in the GSourceLists of a context, one
        list for each priority."""
        memory = self._memory
        for place in SOURCE_LISTS:
            found, at = list[int](), memory.word(context + place) or 0
            while at and len(found) < MOST_LISTS:
                data, following = memory.words(at, 2) or (0, 0)
                head = data + OWN_LINK if data == at else data
                first = memory.word(head)
                if not first or memory.word(first + CONTEXT) != context:
                    break
                found.append(head)
                at = following
            if found:
                return found
        return ()

    def is_loop(self, place: int, size: int) -> bool:
        """Whether a block of `size` bytes at `place`, whose first word is the address of a context,
        is a GMainLoop."""
        running, references = self._memory.halves(self._memory.word(place + 8) or 0)
        return 16 <= size <= LOOP_BYTES and running <= 1 and 0 < references < MOST_REFERENCES

    def name(self, source: int) -> str:
        """Return the name of a source, safe to print; "" if it has none."""
        text = self._memory.word(source + NAME)
        return read_name(self._memory, text) if text else ""

    def function(self, source: int) -> int:
        """Return the address of the function that a source calls; 0 if unknown."""
        callback = self._memory.word(source + CALLBACK)
        return (self._memory.word(callback + FUNCTION) or 0) if callback else 0

    def find_unused_words(self, blocks: Blocks, library: Module) -> Iterator[Range]:
        """Yield the words after the callback of each source in the block of the callback. They may
        be stale. `library`: libglib, which has the functions of callbacks that it allocates."""
        for one in self.all:
            for source in islice(chain(one.sources, one.destroyed), MOST_UNUSED):
                callback, functions = self._memory.words(source, 2) or (0, 0)
                found = blocks.lookup(callback) if callback and library.start <= functions < library.end else None
                if found is not None and found[1] == callback and found[2] > CALLBACK_BYTES:
                    yield Range(callback + CALLBACK_BYTES, callback + (found[2] & -8))

    def most_common_function(self, one: MainContext) -> int:
        """Return the function that most sources of a context call; 0 if unknown."""
        counts = Counter(map(self.function, one.sources[:MOST_SOURCES]))
        return max(counts, key=lambda function: (counts[function], -function), default=0)
