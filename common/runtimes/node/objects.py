"""Find C++ objects that belong to JavaScript objects, and the backing stores of ArrayBuffers.

Sources: Node 18 to 24, src/base_object.h. After its vtable pointer, a BaseObject has a persistent
handle to its JavaScript object. The JavaScript object has the address of the BaseObject in an
internal field, after map, properties and elements. src/node_object_wrap.h: an ObjectWrap of an
addon has an int after its vtable pointer, then such a handle. V8 of the same versions,
src/objects/backing-store.h: a BackingStore begins with the start of its memory, and two or three
lengths in bytes. A union follows, since V8 10 after a number: the address of the allocator of the
memory, or the address of the function with which an embedder frees its own memory. The shared
control block of a store (std::shared_ptr, libstdc++'s bits/shared_ptr_base.h) is {vtable pointer,
two counts, pointer to the BackingStore}."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.demangle import demangle
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.node.addon_files import HOOK, PREFIX, SUFFIX, TABLE, AddonFiles, name_class, read_words, take_sample
from findleaks.runtimes.node.cleanup_hooks import find_cleanup_hooks
from findleaks.runtimes.v8.array_bytes import STORE, name_store
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges, nonzero_pieces, region_at

if TYPE_CHECKING:
    from findleaks.runtimes.object_graph import ObjectGraph

_EXAMPLES = 64  # objects of Node-API that are examined for a live JavaScript object
FIELDS = 8  # words read of a JavaScript object; the first are map, properties and elements
STORE_WORDS = 8  # words read of a store
_MOST_LENGTHS = 3  # lengths in a store
_UNIONS = (3, 4, 5)  # numbers of the word at which the union may begin

SHARED = (
    "_Sp_counted_deleter<v8::BackingStore",
    "_Sp_counted_deleter<v8::internal::BackingStore",
    "_Sp_counted_ptr<v8::internal::BackingStore",
)


@dataclass
class Objects:
    """C++ objects by class.

    `blocks` has the number of each block's class, or NO_ROOT. `numbers` are the numbers of the
    classes by name, ascending; the first are backing stores: 0 is those of V8 and Node, and there
    is one number for each addon that frees the memory of stores. `counts` are the numbers of
    objects, `bytes` the sizes of their blocks. `stored` is the bytes of the stores' memory by
    class. Its blocks are `memory` if V8 allocated them: they contain data of the program. They are
    `foreign`, by number of the class, if an embedder frees them: they may contain its structures.
    Memory outside all blocks, such as that of WebAssembly, is in `mapped`, sorted by address.
    `unused` are the parts of the blocks in `memory` that malloc added to the size that V8
    requested. `addon_types` are the numbers of the classes of addons, and of their
    Node-API objects. Cleanup hooks refer to no JavaScript object."""

    blocks: array[int]
    numbers: dict[str, int] = field(default_factory=lambda: {STORE: 0})
    counts: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    memory: array[int] = field(default_factory=lambda: array("I"))
    foreign: dict[int, array[int]] = field(default_factory=lambda: {0: array("I")})
    mapped: list[Range] = field(default_factory=list)
    unused: list[Range] = field(default_factory=list)
    addon_types: set[int] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        """Names of the classes, by number."""
        return list(self.numbers)

    def of_class(self, name: str) -> Sequence[int]:
        """Return the indices of the blocks of a class's objects, ascending."""
        wanted = self.numbers.get(name, NO_ROOT)
        return [index for index, number in enumerate(self.blocks) if number == wanted]

    def add(self, name: str, index: int, size: int) -> None:
        """Add the object in the block with this index."""
        self.blocks[index] = self.numbers.setdefault(name, len(self.numbers))
        self.counts[name] += 1
        self.bytes[name] += size


def objects(target: Target, engine: Engine, directory: Directory) -> Objects:
    """Return all objects. Searches every heap once for addresses of vtables."""
    blocks = directory.blocks
    made = Objects(array("I", [NO_ROOT]) * len(blocks))
    word = target.arch.word
    names = {symbol.address + 2 * word: symbol.name for symbol in target.symbols_starting(TABLE)}
    files = _find_files_of_addons(target, names)
    found = dict(_find_headed(target, engine, directory, names))
    addresses = sorted(found)
    data, missing = read_records(target, engine, addresses, 4 * word)
    words = target.arch.unpack(bytes(data))
    titles = {table: demangle(names[table]).removeprefix(PREFIX) for table in set(found.values())}
    control = {table for table, title in titles.items() if any(sign in title for sign in SHARED)}
    stores: dict[int, int] = {}  # address of a store: address of its shared control block
    others: dict[int, int] = {}  # address of another object: the word that may be its handle
    for at, address in enumerate(addresses):
        if at in missing:
            continue
        if found[address] in control:
            stores[words[4 * at + 2]] = address
        else:
            others[address] = words[4 * at + (2 if found[address] in files else 1)]
    _stores(target, engine, directory, made, stores)
    _add_addon_objects(target, directory, made, {one: titles[table] for one, table in found.items()})
    for index, file in find_cleanup_hooks(target, engine, directory):
        made.add(f"{HOOK} ({file})", index, blocks.size(index))
    for address in sorted(_belonging(target, engine, list(others), list(others.values()))):
        index, table = blocks.find(address), found[address]
        file = files.get(table, "")
        made.add(f"{titles[table]} ({file})" if file else titles[table], index, blocks.size(index))
        if file:
            made.addon_types.add(made.blocks[index])
    return made


def _find_files_of_addons(target: Target, tables: Iterable[int]) -> Mapping[int, str]:
    """Return the file of the addon that contains each of these tables; tables of other files are
    left out."""
    addons = sorted((one for one in target.modules() if one.path.endswith(SUFFIX)), key=lambda one: one.start)
    found = ((table, region_at(addons, table)) for table in tables) if addons else ()
    return {table: module.path for table, module in found if module is not None}


def _add_addon_objects(target: Target, directory: Directory, made: Objects, titles: Mapping[int, str]) -> None:
    """Add the objects that Node-API made for addons: "Node-API reference (/app/a.node)". `titles`:
    the class of each object by its address."""
    blocks, memory, files = directory.blocks, Memory(target), AddonFiles(target, directory)
    by_class: dict[str, list[int]] = {}
    for address, title in interruptible(target, sorted(titles.items()), 4096):
        if name_class(title):
            by_class.setdefault(title, []).append(blocks.find(address))
    for title, indices in by_class.items():
        files.learn([read_words(memory, blocks.address(index), blocks.size(index)) for index in take_sample(indices)])
        for index in interruptible(target, indices, 4096):
            file = files.find(read_words(memory, blocks.address(index), blocks.size(index)))
            made.add(f"{name_class(title)} ({file or 'of an addon'})", index, blocks.size(index))
            made.addon_types.add(made.blocks[index])


def find_object_of_handle(target: Target, directory: Directory, indices: Sequence[int], graph: ObjectGraph) -> Optional[int]:
    """Return the address of a live JavaScript object to which a handle of one of these objects of
    an addon refers. The first ones after the middle are examined. Returns None if there is none."""
    memory, middle = Memory(target), len(indices) // 2
    for index in indices[middle : middle + _EXAMPLES]:
        for word in read_words(memory, directory.blocks.address(index), directory.blocks.size(index)):
            value = memory.word(word) if word and word % memory.size == 0 else None
            start = value - 1 if value is not None and value & 3 == 1 else 0
            found = graph.find(start) if start else None
            if found is not None and found.address == start and found.is_live:
                return start
    return None


def _find_headed(target: Target, engine: Engine, directory: Directory, tables: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """Yield (address, table) of blocks in use that begin with the address of one of these
    tables."""
    blocks = directory.blocks
    values = sorted(tables)
    for owned in directory.heaps if values else ():
        for piece in interruptible(target, nonzero_pieces(target, owned.start, owned.end)):
            places = engine.search_any(piece, values)
            tops, _ = engine.gather((piece,), places, target.arch.word)
            indices, _ = blocks.find_all(places)
            starts, _, states = blocks.columns_of(indices)
            for address, table, start, state in zip(places, target.arch.unpack(bytes(tops)), starts, states):
                if address == start and state == State.IN_USE:
                    yield address, table


def _belonging(target: Target, engine: Engine, addresses: Sequence[int], handles: Sequence[int]) -> set[int]:
    """Return those of `addresses` whose handle refers to a JavaScript object that contains this
    address."""
    word = target.arch.word
    wanted = sorted({handle for handle in handles if handle and handle % word == 0})
    held, absent = read_records(target, engine, wanted, word)
    values = {handle: value for at, (handle, value) in enumerate(zip(wanted, target.arch.unpack(bytes(held)))) if at not in absent}
    tagged = sorted({value - 1 for value in values.values() if value & 3 == 1})
    inside: dict[int, Sequence[int]] = {}
    for count in range(FIELDS, 3, -1):  # the last object of a chunk may end where memory ends
        fields, absent = read_records(target, engine, tagged, count * word)
        words = target.arch.unpack(bytes(fields))
        inside.update((at, words[count * n + 3 : count * (n + 1)]) for n, at in enumerate(tagged) if n not in absent)
        tagged = [tagged[n] for n in sorted(absent)]
    return {address for address, handle in zip(addresses, handles) if address in inside.get(values.get(handle, 0) - 1, ())}


def _stores(target: Target, engine: Engine, directory: Directory, made: Objects, stores: Mapping[int, int]) -> None:
    """Add the stores. Each counts once, with its block and its shared control block."""
    blocks, word, files = directory.blocks, target.arch.word, AddonFiles(target, directory)
    places = sorted(stores)
    data, missing = read_records(target, engine, places, STORE_WORDS * word)
    words = target.arch.unpack(bytes(data))
    memories = array("Q", words[::STORE_WORDS])
    indices, _ = blocks.find_all(places)
    shared, shared_sizes = blocks.find_all([stores[place] for place in places])
    held, _ = blocks.find_all(memories)
    own, its = blocks.columns_of(indices), blocks.columns_of(held)
    union = _find_union(target, words)
    releases = {
        at: _release(target, words[STORE_WORDS * at : STORE_WORDS * (at + 1)], union)
        for at in interruptible(target, range(len(places)), 256)
        if at not in missing
    }
    foreign = {at: its for at, its in releases.items() if its} if files.addons else {}
    names = dict(zip(foreign, files.find_releasing(list(foreign.values()))))
    for at, place in interruptible(target, enumerate(places), 256):
        if at in missing or indices[at] == NO_BLOCK or own.address[at] != place:
            continue
        store = words[STORE_WORDS * at : STORE_WORDS * (at + 1)]
        name = name_store(names.get(at, ""))
        made.add(name, indices[at], own.size[at] + shared_sizes[at])
        # Ignore the block's references: a store refers to its allocator, through which everything
        # is reachable.
        made.blocks[indices[at]] = made.blocks[shared[at]] = IGNORED
        made.stored[name] += store[1]
        if held[at] == NO_BLOCK and memories[at] and store[1]:
            made.mapped.append(Range(memories[at], memories[at] + store[1]))
        # If the memory does not begin at the start of a block, another owner frees it.
        if memories[at] and its.address[at] == memories[at]:
            if releases[at]:
                made.foreign.setdefault(made.numbers[name], array("I")).append(held[at])
            else:
                made.memory.append(held[at])
                made.unused += _iterate_unused(target, store[:union], its.size[at])
    made.mapped = merge_ranges(made.mapped)


def _find_union(target: Target, words: Sequence[int]) -> int:
    """Return the number of the word at which the union of each store begins: the most stores have
    the address of the same allocator there. `words`: STORE_WORDS words of each store."""
    counts = Counter((value, place) for place in _UNIONS for value in words[place::STORE_WORDS])
    return next((place for (value, place), _ in counts.most_common() if _is_data(target, value)), _UNIONS[-1])


def _is_data(target: Target, address: int) -> bool:
    region = region_at(target.regions(), address)
    return region is not None and not region.executable


def _release(target: Target, store: Sequence[int], union: int) -> Sequence[int]:
    """If a store has the address of a function that frees its memory, return this address and that
    of the function's data; else (). `union`: the word at which the union begins.

    If the union is an allocator's address, the words after it are unused, and may contain the
    address of a function by chance. An embedder may give the first part of a structure to a store.
    In that case, the whole block is in use."""
    if _is_data(target, store[union]):
        return ()
    regions = ((at, region_at(target.regions(), store[at])) for at in range(union, union + 2))
    first = next((at for at, region in regions if region is not None and region.executable), len(store))
    return store[first : first + 2]


def _iterate_unused(target: Target, store: Sequence[int], size: int) -> Iterator[Range]:
    """Yield the end of a store's block of `size` bytes, after the memory that the store uses.
    `store`: the words before the union."""
    length = max(store[1 : 1 + _MOST_LENGTHS])
    first = store[0] + length + -length % target.arch.word
    if first < store[0] + size:
        yield Range(first, store[0] + size)
