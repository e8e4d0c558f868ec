"""Name the owners of V8's global handles: Node-API references of an addon, and C++ objects.

Source: Node 12 to 24, src/js_native_api_v8.h: an object of v8impl::Reference has, after its vtable,
among its words the napi_env of the addon and the address of its global handle."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.demangle import demangle
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.node.addon_files import DEFERRED, SUFFIX, TABLE, AddonFiles, name_class, plural, read_words, take_sample
from findleaks.runtimes.node.addon_variables import AddonVariables, Reached, choose_variables, name_variable
from findleaks.runtimes.node.deferreds import Deferreds
from findleaks.target.base import Module, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces, region_at
from findleaks.value_classes import NamedTuple

MANY = 1000  # strong handles of one owner that are a group
_REFERENCES = ("N6v8impl", "Ref")
_WORDS = 16  # words of a reference that are read
# The variable of node.h's macros. Its handle of dlopen leads to structures of the dynamic loader.
_REGISTRATION = "_module"
_NAMED = 0.1  # a variable is named if it leads to at least this fraction of a group
_SAMPLE = 256  # handles whose owners are looked up to name a group


class HandleGroup(NamedTuple):
    """Strong global handles of one owner. `name`: a phrase in the plural. `places`: the addresses
    of the handles ("Q"). `variable`: the addon's variable that leads to the most handles, or "".
    `in_variable`: the number of handles that it leads to."""

    name: str
    places: array[int]
    variable: str = ""
    in_variable: int = 0


class _Reference(NamedTuple):
    """A Node-API reference: the index of its block, and the file of its addon ("" if unknown)."""

    block: int
    file: str


class HandleOwners:
    """The owners of global handles. `places`: the addresses of all strong handles. `isolates`: the
    addresses of V8's isolates. `deferreds`: see find_deferreds."""

    def __init__(
        self,
        target: Target,
        engine: Engine,
        directory: Directory,
        places: Sequence[int],
        isolates: Sequence[int],
        deferreds: Optional[Deferreds] = None,
    ) -> None:
        self._target, self._engine, self._directory, self._memory = target, engine, directory, Memory(target)
        self._places, self._isolates = places, isolates
        self._deferreds = deferreds or Deferreds("", "", {})
        self._files = AddonFiles(target, directory)
        self._names: dict[int, str] = {}

    def name(self, place: int) -> str:
        """Return a phrase for the handle at an address: "Node-API reference of /app/a.node in
        variable last". A variable is named only if it contains a pointer to the reference, because
        pointers in other memory may be stale."""
        if place in self._references:
            one = self._references[place]
            variable = self._variables.get(one.block, "")
            return f"Node-API reference{self._of(one.file)}{f' in variable {variable}' if variable else ''}"
        if place in self._deferreds.blocks:
            return f"{DEFERRED}{self._of(self._deferreds.file)}"
        if place not in self._names:
            owner = next(self._owners([place]), "")
            self._names[place] = f"global handle of {owner}" if owner else "global handle"
        return self._names[place]

    def _of(self, file: str) -> str:
        return f" of {file}" if file else " of an addon"

    @cached_property
    def groups(self) -> Sequence[HandleGroup]:
        """The groups of MANY handles or more, largest first."""
        if len(self._places) < MANY:
            return []
        deferreds = self._deferreds.blocks
        others = array("Q", (place for place in self._places if place not in self._references and place not in deferreds))
        found = [self._group(file, array("Q", its)) for file, its in self._by_file.items() if len(its) >= MANY]
        if len(deferreds) >= MANY:
            found.append(HandleGroup(plural(f"{DEFERRED}{self._of(self._deferreds.file)}"), array("Q", sorted(deferreds))))
        while len(others) >= MANY:
            found.append(self._class_group(others) or self._variable_group(others) or self._addon_group(others))
            grouped = {*found[-1].places}
            others = array("Q", (place for place in others if place not in grouped))
        return sorted(found, key=lambda one: -len(one.places))

    def _group(self, file: str, places: array[int]) -> HandleGroup:
        chosen = choose_variables(self._reached.get(file, ()))
        variable, count = max(Counter(chosen.values()).items(), key=lambda one: one[1], default=("", 0))
        known = (variable, count) if count >= _NAMED * len(places) else ()
        return HandleGroup(f"Node-API references{self._of(file)}", places, *known)

    def _addon_group(self, places: array[int]) -> HandleGroup:
        """Return the handles that the variables of one addon lead to, if there are MANY or more.
        Otherwise return a group of all handles `places`. The variable is named if only one leads to
        them."""
        known = self._handles_by_block(places) if self._files.addons else {}
        holders = {index: its for index, (table, its) in known.items() if not self._is_of_node(table)}
        found: list[tuple[str, str, set[int]]] = []
        variables_of_addons = self._variables_of_addons
        for file in self._files.addons if variables_of_addons is not None and holders else ():
            assert variables_of_addons is not None
            for one in variables_of_addons.find(file, holders, linked=True):
                handles = set[int]().union(*map(holders.__getitem__, one.references))
                if len(handles) >= MANY:
                    found.append((file, one.name, handles))
        if not found:
            return HandleGroup("global handles", places)
        file = max(found, key=lambda one: len(one[2]))[0]
        found = [one for one in found if one[0] == file]
        variables = [one for one in found if one[1] != _REGISTRATION] or found
        handles = set[int]().union(*(one[2] for one in variables))
        named = (variables[0][1], len(handles)) if len(variables) == 1 else ()
        return HandleGroup(f"global handles of {file}", array("Q", sorted(handles)), *named)

    def _class_group(self, places: array[int]) -> Optional[HandleGroup]:
        """Return the handles of objects of one class, and of one addon if Node-API made the
        objects; None if there are fewer than MANY."""
        holders = self._handles_by_block(places)
        titles = {table: self._files.title_of(table) for table, _ in holders.values()}
        blocks, handles = dict[str, list[int]](), dict[str, set[int]]()
        for index, (table, its) in holders.items():
            if titles[table]:
                blocks.setdefault(titles[table], []).append(index)
                handles.setdefault(titles[table], set()).update(its)
        all_blocks = self._directory.blocks
        for title in sorted(handles, key=lambda one: -len(handles[one])):
            if len(handles[title]) < MANY:
                break
            by_owner: dict[str, set[int]] = {}
            # If there is only one addon, it is the owner of all objects of a class of Node-API.
            is_one = len(self._files.addons) < 2
            for index in blocks[title][: 1 if is_one else None]:
                owner = self._owner(all_blocks.address(index), all_blocks.size(index)) or title
                by_owner.setdefault(owner, set()).update(handles[title] if is_one else holders[index][1])
            owner, its = max(by_owner.items(), key=lambda pair: len(pair[1]))
            if len(its) >= MANY:
                return HandleGroup(f"global handles of {plural(owner)}", array("Q", sorted(its)))
        return None

    def _variable_group(self, places: array[int]) -> Optional[HandleGroup]:
        """Return a group of the handles `places` if most of them are in one variable."""
        sample = places[:: -(-len(places) // _SAMPLE)]
        known = Counter(filter(None, self._owners_in_images(sample)))
        owner, count = max(known.items(), key=lambda one: one[1], default=("", 0))
        return HandleGroup(f"global handles of {owner}", places) if 2 * count > len(sample) else None

    def _handles_by_block(self, places: Sequence[int]) -> Mapping[int, tuple[int, set[int]]]:
        """Find the blocks in use that contain pointers to these handles. The result maps the
        index of a block to its first word and to the addresses of its handles. The blocks of V8
        that contain the handles themselves are left out. A pointer counts if at least half of the
        blocks of its kind have a pointer at the same offset; others are stale. Blocks of one kind
        have the same class of Node, or else the same size."""
        blocks, wanted = self._directory.blocks, sorted(places)
        own = {*blocks.find_all(wanted)[0], NO_BLOCK}
        found: dict[int, dict[int, int]] = {}
        for owned in self._directory.heaps:
            for piece in interruptible(self._target, nonzero_pieces(self._target, owned.start, owned.end)):
                at = self._engine.search_any(piece, wanted)
                words, _ = self._engine.gather((piece,), at, self._memory.size)
                indices, _ = blocks.find_all(at)
                starts, _, states = blocks.columns_of(indices)
                for place, index, start, word, state in zip(at, indices, starts, self._memory.arch.words(words), states):
                    if index not in own and state == State.IN_USE:
                        found.setdefault(index, {})[place - start] = word
        data, missing = read_records(self._target, self._engine, blocks.columns_of(array("I", found)).address, self._memory.size)
        read = self._memory.arch.unpack(bytes(data))
        tables = {index: 0 if at in missing else read[at] for at, index in enumerate(found)}
        kinds = {index: table if self._is_of_node(table) else -blocks.size(index) for index, table in tables.items()}
        counts, votes = Counter(kinds.values()), Counter((kinds[index], offset) for index, its in found.items() for offset in its)
        return {
            index: (tables[index], {word for offset, word in its.items() if 2 * votes[kinds[index], offset] >= counts[kinds[index]]})
            for index, its in found.items()
        }

    def _is_of_node(self, table: int) -> bool:
        return self._node is not None and self._node.start <= table < self._node.end

    @cached_property
    def _by_file(self) -> Mapping[str, Mapping[int, int]]:
        """The blocks of Node-API references by the address of their handle, by the addon's file."""
        found: dict[str, dict[int, int]] = {}
        for place, one in self._references.items():
            found.setdefault(one.file, {})[place] = one.block
        return found

    @cached_property
    def _node(self) -> Optional[Module]:
        """The loaded file with the classes of Node-API."""
        return region_at(self._target.modules(), self._tables[0]) if self._tables else None

    @cached_property
    def _variables_of_addons(self) -> Optional[AddonVariables]:
        closed = (*self._places, *self._isolates)
        return AddonVariables(self._target, self._directory.blocks, self._node, closed) if self._node is not None else None

    @cached_property
    def _reached(self) -> Mapping[str, Sequence[Reached]]:
        """The variables that lead to references, by the file of the addon."""
        variables = self._variables_of_addons
        return {} if variables is None else {file: variables.find(file, its.values()) for file, its in self._by_file.items() if file}

    @cached_property
    def _variables(self) -> Mapping[int, str]:
        """The variable that contains a pointer to a reference, by the index of the reference's
        block."""
        return {index: one.name for found in self._reached.values() for one in found for index in one.own}

    @cached_property
    def _tables(self) -> Sequence[int]:
        """The possible first words of a Node-API reference. Each is the address of the first entry
        for a function in a vtable."""
        symbols = [one for one in self._target.symbols_starting(TABLE) if all(part in one.name for part in _REFERENCES)]
        return sorted(one.address + 2 * self._memory.size for one in symbols)

    @cached_property
    def _references(self) -> Mapping[int, _Reference]:
        """The Node-API references, by the address of their strong handle."""
        places, found = set(self._places), {}
        blocks = list(self._blocks_with(self._tables)) if self._tables and places else []
        # Other words of a block may be stale: a class has the handle at one offset.
        votes = Counter((words[0], at) for _, words in blocks for at, word in enumerate(words) if word in places)
        offsets: dict[int, int] = {}
        for (table, at), _ in votes.most_common():
            offsets.setdefault(table, at)
        self._files.learn([words for _, words in take_sample(blocks)])
        for index, words in blocks:
            place = words[offsets[words[0]]] if offsets.get(words[0], len(words)) < len(words) else 0
            if place in places:
                found[place] = _Reference(index, self._files.find(words))
        return found

    def _blocks_with(self, tables: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the index and the first words of each block in use whose first word is one of
        `tables`."""
        blocks = self._directory.blocks
        for owned in self._directory.heaps:
            for piece in interruptible(self._target, nonzero_pieces(self._target, owned.start, owned.end)):
                for address in self._engine.search_any(piece, tables):
                    block = blocks.lookup(address)
                    if block is not None and block[1] == address and block[3] == State.IN_USE:
                        words = self._memory.words(address, min(_WORDS, block[2] // self._memory.size))
                        if words:
                            yield block[0], words

    def _owners(self, places: Sequence[int]) -> Iterator[str]:
        """Find each word that contains the address of one of these handles. Yield what the word
        belongs to: a variable of a module, or the class of an object. Variables come first, because
        they are rarely stale."""
        yield from self._owners_in_images(places)
        blocks, wanted = self._directory.blocks, sorted(places)
        for owned in self._directory.heaps:
            for piece in interruptible(self._target, nonzero_pieces(self._target, owned.start, owned.end)):
                for address in self._engine.search_any(piece, wanted):
                    block = blocks.lookup(address)
                    if block is not None and block[3] == State.IN_USE:
                        yield self._owner(block[1], block[2])

    def _owners_in_images(self, places: Sequence[int]) -> Iterator[str]:
        wanted = sorted(places)
        for image in find_images(self._target):
            for piece in image.pieces(self._target):
                yield from (self._variable(image.module, address) for address in self._engine.search_any(piece, wanted))

    def _owner(self, address: int, size: int) -> str:
        """Return the class of the C++ object in a block of `size` bytes, with the file of its addon
        if Node-API made it; "" if the class is unknown."""
        title = self._files.class_of(address)
        name = name_class(title)
        return f"{name}{self._of(self._files.find(read_words(self._memory, address, size)))}" if name else title

    def _variable(self, module: Module, address: int) -> str:
        """Return the name of the variable at an address, and the file if it is an addon; "" if the
        variable is unknown."""
        if module.path.endswith(SUFFIX):
            return f"variable {name_variable(self._target, module, address)} of {module.path}"
        symbol = self._target.symbolize(address)
        return demangle(symbol.name) if symbol is not None else ""
