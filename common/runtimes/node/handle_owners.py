"""Name the owners of V8's global handles: Node-API references of an addon, and C++ objects.

Sources: Node 12 to 24, src/js_native_api_v8.h: an object of v8impl::Reference has, after its
vtable, among its words the napi_env of the addon and the address of its global handle. Since Node
14.16, src/node_api_internals.h: the napi_env has the URL of the addon's file as a std::string."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from findleaks.allocators.directory import Directory
from findleaks.allocators.images import find_images
from findleaks.allocators.memory import Memory
from findleaks.demangle import demangle
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.runtimes.node.addon_variables import AddonVariables, Reached, choose_variables, name_variable
from findleaks.target.base import Module, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces, region_at
from findleaks.value_classes import NamedTuple

MANY = 1000  # strong handles of one owner that are a group
_TABLE, _REFERENCES = "_ZTV", ("N6v8impl", "Ref")
_ENVIRONMENTS = ("napi_env__", "node_napi_env__")
_WORDS, _ENVIRONMENT_WORDS = 16, 64  # words of a reference and of a napi_env that are read
_NAMED = 0.1  # a variable is named if it leads to at least this fraction of a group
_SAMPLE = 256  # handles whose owners are looked up to name a group
_URL, _SUFFIX, _LONGEST = "file://", ".node", 4096
_PREFIX = "vtable for "


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
    addresses of V8's isolates."""

    def __init__(self, target: Target, engine: Engine, directory: Directory, places: Sequence[int], isolates: Sequence[int]) -> None:
        self._target, self._engine, self._directory, self._memory = target, engine, directory, Memory(target)
        self._places, self._isolates = places, isolates
        self._files: dict[int, str] = {}
        self._names: dict[int, str] = {}

    def name(self, place: int) -> str:
        """Return a phrase for the handle at an address: "Node-API reference of /app/a.node in
        variable last". A variable is named only if it contains a pointer to the reference, because
        pointers in other memory may be stale."""
        if place in self._references:
            one = self._references[place]
            variable = self._variables.get(one.block, "")
            return f"Node-API reference{self._of(one.file)}{f' in variable {variable}' if variable else ''}"
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
        others = array("Q", (place for place in self._places if place not in self._references))
        found = [self._group(file, array("Q", its)) for file, its in self._by_file.items() if len(its) >= MANY]
        if len(others) >= MANY:
            sample = others[:: -(-len(others) // _SAMPLE)]
            ((owner, count),) = Counter(self._owners(sample)).most_common(1) or [("", 0)]
            found.append(HandleGroup(f"global handles of {owner}" if 2 * count > len(sample) else "global handles", others))
        return sorted(found, key=lambda one: -len(one.places))

    def _group(self, file: str, places: array[int]) -> HandleGroup:
        chosen = choose_variables(self._reached.get(file, ()))
        variable, count = max(Counter(chosen.values()).items(), key=lambda one: one[1], default=("", 0))
        known = (variable, count) if count >= _NAMED * len(places) else ()
        return HandleGroup(f"Node-API references{self._of(file)}", places, *known)

    @cached_property
    def _by_file(self) -> Mapping[str, Mapping[int, int]]:
        """The blocks of Node-API references by the address of their handle, by the addon's file."""
        found: dict[str, dict[int, int]] = {}
        for place, one in self._references.items():
            found.setdefault(one.file, {})[place] = one.block
        return found

    @cached_property
    def _reached(self) -> Mapping[str, Sequence[Reached]]:
        """The variables that lead to references, by the file of the addon."""
        node = region_at(self._target.modules(), self._tables[0]) if self._tables else None
        if node is None:
            return {}
        variables = AddonVariables(self._target, self._directory.blocks, node, (*self._places, *self._isolates))
        return {file: variables.find(file, its.values()) for file, its in self._by_file.items() if file}

    @cached_property
    def _variables(self) -> Mapping[int, str]:
        """The variable that contains a pointer to a reference, by the index of the reference's
        block."""
        return {index: one.name for found in self._reached.values() for one in found for index in one.own}

    @cached_property
    def _tables(self) -> Sequence[int]:
        """The possible first words of a Node-API reference. Each is the address of the first entry
        for a function in a vtable."""
        symbols = [one for one in self._target.symbols_starting(_TABLE) if all(part in one.name for part in _REFERENCES)]
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
        for index, words in blocks:
            place = words[offsets[words[0]]] if offsets.get(words[0], len(words)) < len(words) else 0
            if place in places:
                found[place] = _Reference(index, next(filter(None, map(self._file, words[1:])), "") or self._only_addon)
        return found

    def _blocks_with(self, tables: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the index and the first words of each block in use whose first word is one of these
        addresses."""
        blocks = self._directory.blocks
        for owned in self._directory.heaps:
            for piece in interruptible(self._target, nonzero_pieces(self._target, owned.start, owned.end)):
                for address in self._engine.search_any(piece, tables):
                    block = blocks.lookup(address)
                    if block is not None and block[1] == address and block[3] == State.IN_USE:
                        words = self._memory.words(address, min(_WORDS, block[2] // self._memory.size))
                        if words:
                            yield block[0], words

    def _file(self, word: int) -> str:
        """Return the file of the addon whose napi_env is at an address; "" if there is none."""
        if word not in self._files:
            block = self._directory.blocks.lookup(word) if word else None
            is_environment = block is not None and block[1] == word and self._class_of(word).endswith(_ENVIRONMENTS)
            self._files[word] = self._file_of_environment(word, block[2]) if is_environment and block is not None else ""
        return self._files[word]

    def _class_of(self, address: int) -> str:
        """Return the class of the C++ object at an address, or ""."""
        table = self._memory.word(address)
        symbol = self._target.symbolize(table) if table else None
        if symbol is None or table != symbol.address + 2 * self._memory.size or not symbol.name.startswith((_TABLE, _PREFIX)):
            return ""
        return demangle(symbol.name).removeprefix(_PREFIX)

    def _file_of_environment(self, address: int, size: int) -> str:
        for word in self._memory.words(address, min(_ENVIRONMENT_WORDS, size // self._memory.size)) or ():
            if word and self._memory.read(word, 1) in (b"f", b"/"):
                text = self._memory.c_string(word, _LONGEST).decode("utf-8", "replace")
                if text.endswith(_SUFFIX) and text.startswith((_URL, "/")):
                    return text.removeprefix(_URL)
        return ""

    @cached_property
    def _only_addon(self) -> str:
        """The file of the only addon that is loaded; "" if there are several."""
        files = {one.path for one in self._target.modules() if one.path.endswith(_SUFFIX)}
        return files.pop() if len(files) == 1 else ""

    def _owners(self, places: Sequence[int]) -> Iterator[str]:
        """Find each word that contains the address of one of these handles. Yield what the word
        belongs to: a variable of a module, or the class of an object. Variables come first, because
        they are rarely stale."""
        blocks, wanted = self._directory.blocks, sorted(places)
        for image in find_images(self._target):
            for piece in image.pieces(self._target):
                yield from (self._variable(image.module, address) for address in self._engine.search_any(piece, wanted))
        for owned in self._directory.heaps:
            for piece in interruptible(self._target, nonzero_pieces(self._target, owned.start, owned.end)):
                for address in self._engine.search_any(piece, wanted):
                    block = blocks.lookup(address)
                    if block is not None and block[3] == State.IN_USE:
                        yield self._class_of(block[1])

    def _variable(self, module: Module, address: int) -> str:
        """Return the name of the variable at an address, and the file if it is an addon; "" if the
        variable is unknown."""
        if module.path.endswith(_SUFFIX):
            return f"variable {name_variable(self._target, module, address)} of {module.path}"
        symbol = self._target.symbolize(address)
        return demangle(symbol.name) if symbol is not None else ""
