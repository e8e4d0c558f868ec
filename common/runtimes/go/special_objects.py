"""Find the objects of special records whose types no word shows: the handles of weak pointers, the
arguments of cleanups (runtime.AddCleanup), and objects with finalizers.

Sources: Go 1.18 to 1.27, src/runtime/mheap.go (specialfinalizer; since 1.23, specialWeakHandle,
getOrAddWeakHandle: a handle contains the address of the object; specialCleanup); since 1.25,
src/runtime/mcleanup.go (cleanupFn: two functions, and the argument, which AddCleanup copies into an
object of its own)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_words
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.go.span_table import ObjectSpans
from findleaks.runtimes.go.spans import FURTHER, SpecialRecords
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.runtimes.go.types import POINTER, Types
from findleaks.target.base import Range
from findleaks.target.ranges import range_at

_ARGUMENT = "argument of a cleanup"
_MOST_ARGUMENT = 512  # larger objects have headers with their type


def find_finalized_objects(records: SpecialRecords, types: Types, names: TypeNames) -> Iterator[tuple[int, int]]:
    """Yield the address and the type value of each object with a finalizer: SetFinalizer stores the
    type of the pointer that it was given."""
    for address, _, words in records:
        pointer = types.at(words[3]) if len(words) > 3 else None
        if pointer is not None and pointer.kind == POINTER:
            yield address, names.value(pointer.elem)


def find_special_objects(
    memory: Memory, engine: Engine, records: SpecialRecords, spans: ObjectSpans, names: TypeNames, code: Sequence[Range]
) -> Iterator[tuple[int, int]]:
    """Yield the address and the type value of each such object. `code`: Go's code, sorted."""
    columns = [array("Q", records.words[at::FURTHER]) for at in range(2)]
    firsts, seconds = (read_words(memory.target, engine, column) for column in columns)
    argument = None
    for (start, _, words), first, second in zip(records, firsts, seconds):
        if first >= start:
            span = spans.at(start)
            if span is not None and first < start + span.size:
                yield words[0], names.handle << 1
        elif first and second and range_at(code, first) is not None and range_at(code, second) is not None:
            span = spans.at(words[2])
            if span is not None and span.size <= _MOST_ARGUMENT and (words[2] - span.start) % span.size == 0:
                argument = names.add_name(_ARGUMENT) if argument is None else argument
                yield words[2], argument << 1
