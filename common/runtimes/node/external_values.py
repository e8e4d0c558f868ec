"""Find the native data of the JavaScript objects that napi_create_external made.

Source: Node 20 to 24, src/js_native_api_v8.cc: the External has the address of an
ExternalWrapper after map, properties and elements. An ExternalWrapper is {weak handle of the
External, data of the addon, type tag}. A finalizer of the data is in a Node-API reference, which
also has the address of the data. Earlier versions have no ExternalWrapper."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from findleaks.allocators.bulk import read_words
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.node.addon_files import EXTERNAL, REFERENCE, AddonFiles
from findleaks.runtimes.v8.buffer_memory import list_maps
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible

if TYPE_CHECKING:
    from findleaks.runtimes.node.objects import Objects
    from findleaks.runtimes.v8.object_graph import V8Graph

_EXTERNAL = "js_external_object"
_VALUE, _WORDS = 3, 4  # index of the address of the wrapper, and words read of an External
_DATA = 1  # index of the data in a wrapper
_LARGEST = 64  # bytes of a wrapper's block
_SOME = 1 << 14  # objects that are read together


class Externals(NamedTuple):
    """The live objects that napi_create_external made. `wrappers`: the blocks of the
    ExternalWrappers whose data has no finalizer. `objects`: the addresses of their JavaScript
    objects. `finalized`: the other wrappers; a Node-API reference owns their data. `name`: the type
    of the objects in `objects`."""

    name: str
    wrappers: Sequence[int]
    objects: Sequence[int]
    finalized: Sequence[int]


def find_externals(target: Target, engine: Engine, directory: Directory, made: Objects, graph: V8Graph) -> Optional[Externals]:
    """Return the live objects that napi_create_external made; None if there are none."""
    blocks, found = directory.blocks, list(_find_wrappers(target, engine, directory, graph))
    if not found:
        return None
    files = AddonFiles(target, directory)
    name = f"{EXTERNAL} ({files.addons[0] if len(files.addons) == 1 else 'of an addon'})"
    owned = _select_referenced(target, engine, directory, made, {data for _, _, data in found})
    finalized = [index for index, _, data in found if data in owned]
    others = [(index, start) for index, start, data in found if data not in owned and blocks.lookup(data) is not None]
    return Externals(name, [index for index, _ in others], [start for _, start in others], finalized)


def _find_wrappers(target: Target, engine: Engine, directory: Directory, graph: V8Graph) -> Iterator[tuple[int, int, int]]:
    """Yield the block of each wrapper, the address of its External, and the address of the data."""
    blocks, word = directory.blocks, target.arch.word
    for number in list_maps(graph, [_EXTERNAL]) if graph.graph is not None else ():
        indices = [index for index in graph.of_map(number) if graph.is_live(index)]
        for first in interruptible(target, range(0, len(indices), _SOME)):
            starts = graph.blocks.columns_of(array("I", indices[first : first + _SOME])).address
            values = array("Q", read_words(target, engine, starts, _WORDS)[_VALUE::_WORDS])
            found, _ = blocks.find_all(values)
            its = blocks.columns_of(found)
            wrappers = [
                (index, start, value)
                for index, start, value, address, size, state in zip(found, starts, values, its.address, its.size, its.state)
                if index != NO_BLOCK and address == value and 3 * word <= size <= _LARGEST and state == State.IN_USE
            ]
            words = read_words(target, engine, [value for _, _, value in wrappers], 2)
            handles = read_words(target, engine, words[::2], 1)
            for (index, start, _), data, handle in zip(wrappers, words[_DATA::2], handles):
                if handle == start + 1:
                    yield index, start, data


def _select_referenced(target: Target, engine: Engine, directory: Directory, made: Objects, data: set[int]) -> set[int]:
    """Return those of the addresses `data` that are in Node-API references."""
    blocks, found = directory.blocks, set[int]()
    for name in made.names:
        indices = array("I", made.of_class(name) if name.startswith(REFERENCE) else ())
        addresses, sizes, _ = blocks.columns_of(indices)
        for size in set(sizes):
            some = [address for address, its in zip(addresses, sizes) if its == size]
            for first in interruptible(target, range(0, len(some), _SOME)):
                found.update(data.intersection(read_words(target, engine, some[first : first + _SOME], size // target.arch.word)))
    return found
