"""Find the JavaScript objects to which Node-API references refer, and the blocks that addons
attached to them (napi_wrap).

Sources: Node 12 to 24, src/js_native_api_v8.h: the classes of references (v8impl::Reference,
RefBase, ReferenceWithData, …) have a persistent handle, whose word has the tagged address of the
JavaScript object, and the address of the addon's data. The words are at the same offsets in all
objects of a class, so a sample shows them. A reference that napi_create_reference made has no
data."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from findleaks.allocators.bulk import read_words
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.node.addon_files import MOST_WORDS, REFERENCE, take_sample
from findleaks.runtimes.node.objects import Objects
from findleaks.runtimes.node.verdict_findings import GENERAL, is_constructor
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible

if TYPE_CHECKING:
    from findleaks.runtimes.v8.object_graph import V8Graph

LEAST = 16  # references to objects of one constructor that get a type of their own
_FREQUENT = 0.5  # smallest part of a sample that has a handle, or data, at one offset
_SOME = 1 << 14  # references that are read together


class WrappedObjects(NamedTuple):
    """`objects`: the C++ objects. References to objects of one constructor have a type of their
    own: "Node-API reference to Session (/app/a.node)". `attached`: the address of the live object
    to which an addon attached a block, by block."""

    objects: Objects
    attached: Mapping[int, int]


class _Wrapped(NamedTuple):
    """A live object to which a reference refers. `reference`: the block of the reference. `object`:
    the address of the object. `constructor`: its name. `data`: the block that begins at the address
    in the reference, or NO_BLOCK."""

    reference: int
    object: int
    constructor: str
    data: int


def read_wrapped_objects(target: Target, engine: Engine, directory: Directory, made: Objects, graph: V8Graph) -> WrappedObjects:
    """Find the live objects to which the Node-API references in `made` refer."""
    found = list(_find_wrapped(target, engine, directory, made, graph))
    return WrappedObjects(_divide(made, found, directory.blocks.size), {one.data: one.object for one in found if one.data != NO_BLOCK})


def _find_wrapped(target: Target, engine: Engine, directory: Directory, made: Objects, graph: V8Graph) -> Iterator[_Wrapped]:
    blocks, word = directory.blocks, target.arch.word
    indices = array("I", (index for name in made.names if name.startswith(REFERENCE) for index in made.of_class(name)))
    columns = blocks.columns_of(indices)
    classes: dict[tuple[int, int], list[int]] = {}
    for at, first in enumerate(read_words(target, engine, columns.address)):
        classes.setdefault((first, columns.size[at]), []).append(at)
    for (_, size), its in classes.items():
        count = min(size // word, MOST_WORDS)
        sample = take_sample(its)
        words = read_words(target, engine, [columns.address[at] for at in sample], count)
        handle = _find_column(words, count, lambda values: [one != NO_BLOCK for one in _find_objects(target, engine, graph, values)])
        if handle < 0:
            continue
        data = _find_column(words, count, lambda values: [one != NO_BLOCK for one in _find_data(directory, made, values)])
        for first in interruptible(target, range(0, len(its), _SOME)):
            some = its[first : first + _SOME]
            words = read_words(target, engine, [columns.address[at] for at in some], count)
            objects = _find_objects(target, engine, graph, words[handle::count])
            held = _find_data(directory, made, words[data::count]) if data >= 0 else [NO_BLOCK] * len(some)
            yield from (
                _Wrapped(indices[at], graph.blocks.address(one), graph.type_of(one), its_data)
                for at, one, its_data in zip(some, objects, held)
                if one != NO_BLOCK
            )


def _divide(made: Objects, wrapped: Sequence[_Wrapped], size_of: Callable[[int], int]) -> Objects:
    """Return the C++ objects with divided references. Constructors with fewer than LEAST
    references, and general ones such as Object, are not distinguished. `size_of` returns the size
    of a block."""
    counts = Counter(one.constructor for one in wrapped)
    known = {name for name, count in counts.items() if count >= LEAST and name not in GENERAL and is_constructor(name)}
    if not known:
        return made
    divided = replace(
        made,
        blocks=made.blocks[:],
        numbers=dict(made.numbers),
        counts=made.counts.copy(),
        bytes=made.bytes.copy(),
        addon_types={*made.addon_types},
    )
    names = made.names
    for one in wrapped:
        number = divided.blocks[one.reference]
        if one.constructor in known and number < len(names):
            name, size = names[number], size_of(one.reference)
            divided.counts[name] -= 1
            divided.bytes[name] -= size
            divided.add(name.replace(REFERENCE, f"{REFERENCE} to {one.constructor}", 1), one.reference, size)
            divided.addon_types.add(divided.blocks[one.reference])
    divided.counts = +divided.counts
    return divided


def _find_column(words: Sequence[int], count: int, test: Callable[[Sequence[int]], Sequence[bool]]) -> int:
    """Return the number of the word, in records of `count` words, whose values pass a test most
    often; -1 if less than _FREQUENT of the values pass for each word."""
    passing = [sum(test(words[at::count])) for at in range(count)]
    most = max(passing, default=0)
    return passing.index(most) if most and most >= _FREQUENT * (len(words) // count) else -1


def _find_objects(target: Target, engine: Engine, graph: V8Graph, handles: Sequence[int]) -> Sequence[int]:
    """Return the live object to which each handle refers, or NO_BLOCK. `handles`: addresses of
    words with tagged addresses."""
    word = target.arch.word
    values = read_words(target, engine, [one if one % word == 0 else 0 for one in handles])
    starts = [value - 1 if value & 3 == 1 else 0 for value in values]
    return [one if one != NO_BLOCK and graph.is_live(one) and graph.is_receiver(one) else NO_BLOCK for one in graph.indices_of(starts)]


def _find_data(directory: Directory, made: Objects, addresses: Sequence[int]) -> Sequence[int]:
    """Return the block in use that begins at each address; NO_BLOCK if there is none, or if an
    object of Node or Node-API is there. An address that several references contain is not the data
    of one object."""
    blocks, counts = directory.blocks, Counter(addresses)
    indices, _ = blocks.find_all(addresses)
    columns = blocks.columns_of(indices)
    return [
        index
        if index != NO_BLOCK and start == address and state == State.IN_USE and counts[address] == 1 and made.blocks[index] == NO_ROOT
        else NO_BLOCK
        for index, address, start, state in zip(indices, addresses, columns.address, columns.state)
    ]
