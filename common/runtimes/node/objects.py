"""Finds C++ objects that belong to JavaScript objects, and the backing stores of ArrayBuffers.

Sources: Node 18 to 24, src/base_object.h. After its vtable pointer, a BaseObject has a persistent
handle to its JavaScript object. The JavaScript object has the address of the BaseObject in an
internal field, after map, properties and elements. V8 of the same versions,
src/objects/backing-store.h: a BackingStore begins with the start of its memory and the length in
bytes. Its shared control block (std::shared_ptr, libstdc++'s bits/shared_ptr_base.h) is {vtable
pointer, two counts, pointer to the BackingStore}."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.demangle import demangle
from findleaks.engine.contract import Engine
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.engine.terms import State
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces

TABLE = "_ZTV"
PREFIX = "vtable for "
FIELDS = 8  # words read of a JavaScript object; the first are map, properties and elements

SHARED = (
    "_Sp_counted_deleter<v8::BackingStore",
    "_Sp_counted_deleter<v8::internal::BackingStore",
    "_Sp_counted_ptr<v8::internal::BackingStore",
)
STORE = "ArrayBuffer (its memory)"


@dataclass
class Objects:
    """C++ objects by class.

    `blocks` has the number of each block's class, or NO_ROOT. `numbers` are the numbers of the
    classes by name, ascending; 0 is the backing stores. `counts` are the numbers of objects,
    `bytes` the sizes of their blocks. `stored` is the bytes of the stores' memory, whose blocks are
    `memory`."""

    blocks: array[int]
    numbers: dict[str, int] = field(default_factory=lambda: {STORE: 0})
    counts: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    memory: array[int] = field(default_factory=lambda: array("I"))

    @property
    def names(self) -> list[str]:
        """Names of the classes, by number."""
        return list(self.numbers)

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
    found = dict(_headed(target, engine, directory, names))
    addresses = sorted(found)
    data, missing = read_records(target, engine, addresses, 4 * word)
    words = target.arch.unpack(bytes(data))
    stores: dict[int, int] = {}  # address of a store: address of its shared control block
    belonging = _belonging(target, engine, addresses, words[1::4])
    classes: list[tuple[str, int]] = []
    for at, address in enumerate(addresses):
        name = "" if at in missing else demangle(names[found[address]]).removeprefix(PREFIX)
        if any(sign in name for sign in SHARED):
            stores[words[4 * at + 2]] = address
        elif address in belonging:
            classes.append((name, address))
    _stores(target, engine, directory, made, stores)
    for name, address in classes:
        index = blocks.find(address)
        made.add(name, index, blocks.size(index))
    return made


def _headed(target: Target, engine: Engine, directory: Directory, tables: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """Yield (address, table) of blocks in use that begin with the address of one of these
    tables."""
    blocks = directory.blocks
    values = sorted(tables)
    for owned in directory.heaps if values else ():
        for piece in interruptible(target, nonzero_pieces(target, owned.start, owned.end)):
            places = engine.search_any(piece, values)
            tops, _ = engine.gather((piece,), places, target.arch.word)
            for address, table in zip(places, target.arch.unpack(bytes(tops))):
                index = blocks.find(address)
                if index >= 0 and blocks.address(index) == address and blocks.state(index) == State.IN_USE:
                    yield address, table


def _belonging(target: Target, engine: Engine, addresses: Sequence[int], handles: Sequence[int]) -> set[int]:
    """Return the addresses whose second word is a handle of a JavaScript object that contains the
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
    blocks, word = directory.blocks, target.arch.word
    places = sorted(stores)
    data, missing = read_records(target, engine, places, 2 * word)
    words = target.arch.unpack(bytes(data))
    for at, place in enumerate(places):
        index = blocks.find(place)
        if at in missing or index < 0 or blocks.address(index) != place:
            continue
        shared = blocks.find(stores[place])
        made.add(STORE, index, blocks.size(index) + blocks.size(shared))
        # Ignore the block's references: a store refers to its allocator, through which everything
        # is reachable.
        made.blocks[index] = made.blocks[shared] = IGNORED
        made.stored += words[2 * at + 1]
        memory = blocks.find(words[2 * at])
        # Otherwise another owner frees the memory.
        if memory >= 0 and blocks.address(memory) == words[2 * at]:
            made.memory.append(memory)
