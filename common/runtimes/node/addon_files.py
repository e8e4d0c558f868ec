"""Find the addon that made an object of Node-API.

Sources: Node 12 to 24, src/js_native_api_v8.h and src/node_api.cc: the classes of namespace v8impl
(references, thread-safe functions) and uvimpl (asynchronous tasks) have the address of the addon's
napi_env among their words. Since Node 14.16, src/node_api_internals.h: the napi_env has the URL of
the addon's file as a std::string. Since Node 16, it has %20 in place of a space."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.demangle import demangle
from findleaks.engine.terms import State
from findleaks.target.base import Module, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import region_at

TABLE, PREFIX, SUFFIX = "_ZTV", "vtable for ", ".node"
MOST_WORDS = 96  # words of an object that are searched for its napi_env
_ENVIRONMENTS = ("napi_env__", "node_napi_env__")
_ENVIRONMENT_WORDS = 64  # words of a napi_env that are read
_LEVELS = 2  # levels of blocks between a backing store and what identifies its addon
# Bytes of such a block. Larger ones, such as Node's Environment, reach everything.
_MOST_SMALL = 256
_SAMPLE = 512  # objects that are examined to find where objects of their class refer to an addon
_FREQUENT = 0.1  # least part of a sample in which a path to an addon is not stale
_URL, _LONGEST = b"file://", 4096
_REFERENCE_CLASSES = ("v8impl::Ref", "v8impl::TrackedFinalizer", "v8impl::(anonymous namespace)::ArrayBufferReference")
REFERENCE, FUNCTION, TASK = "Node-API reference", "Node-API thread-safe function", "Node-API asynchronous task"
EXTERNAL, DEFERRED, CONTEXT = "Node-API external", "Node-API deferred", "Node-API asynchronous context"
HOOK = "Node-API cleanup hook"
_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "[")
_ALLOCATORS = re.compile(r"/lib(jemalloc|mimalloc|tcmalloc)[^/]*$")
_CLASSES = {"v8impl::(anonymous namespace)::ThreadSafeFunction": FUNCTION, "(anonymous namespace)::uvimpl::Work": TASK}


def list_libraries(target: Target) -> list[str]:
    """Return the files of addons, and of other libraries outside the folders of the system; [] if
    there is no addon. Allocators are left out."""
    paths = [module.path for module in target.modules()]
    if not any(path.endswith(SUFFIX) for path in paths):
        return []
    others = (one for one in paths if ".so" in os.path.basename(one) and not one.startswith(_SYSTEM))
    return [one for one in dict.fromkeys([*(one for one in paths if one.endswith(SUFFIX)), *others]) if _ALLOCATORS.search(one) is None]


def name_class(title: str) -> str:
    """Return what an addon calls an object of this class of Node-API; "" for other classes."""
    return REFERENCE if title.startswith(_REFERENCE_CLASSES) else _CLASSES.get(title, "")


def plural(owner: str) -> str:
    """Return the plural of a phrase that begins with the name of a class: "Node-API references of
    /app/a.node"."""
    name = next((one for one in (REFERENCE, FUNCTION, TASK, DEFERRED, CONTEXT, HOOK) if owner.startswith(one)), "")
    return f"{name}s{owner[len(name) :]}" if name else owner


_T = TypeVar("_T")


def read_words(memory: Memory, address: int, size: int) -> Sequence[int]:
    """Return the words of an object in a block of `size` bytes, in which its napi_env may be; () if
    they cannot be read."""
    return memory.words(address, min(MOST_WORDS, size // memory.size)) or ()


def take_sample(many: Sequence[_T]) -> Sequence[_T]:
    """Return at most _SAMPLE elements, evenly spread."""
    return many[:: max(1, -(-len(many) // _SAMPLE))]


class AddonFiles:
    """Finds the addon to which a C++ object of Node-API belongs. Each addon has a napi_env."""

    def __init__(self, target: Target, directory: Directory) -> None:
        self._target, self._directory, self._memory = target, directory, Memory(target)
        self._files: dict[int, str] = {}
        # The number of the word with the napi_env, or -1, by the first word of the objects
        self._offsets: dict[int, int] = {}

    def learn(self, objects: Sequence[Sequence[int]]) -> None:
        """Find out at which offset objects have their napi_env. `objects`: the words of objects of
        any classes (see `take_sample`). Objects of a class have the same first word.

        The offset is that at which most objects have one. All objects may have a stale one at
        another offset. Then functions of the same addon, to which other words of the object refer,
        show the right offset."""
        by_class: dict[int, list[Sequence[int]]] = {}
        for words in objects:
            by_class.setdefault(words[0] if words else 0, []).append(words)
        for first, its in by_class.items():
            counts, agreeing = Counter[int](), Counter[int]()
            for words in its:
                modules = {self._module_of(word) for word in words}
                found = [(at, file) for at, word in enumerate(words) if (file := self._file(word))]
                counts.update(at for at, _ in found)
                agreeing.update(at for at, file in found if file in modules)
            at = max(counts, key=lambda one: (counts[one], agreeing[one], -one), default=0)
            self._offsets[first] = at if 2 * counts[at] > len(its) else -1

    def find(self, words: Sequence[int]) -> str:
        """Return the file of the addon to whose napi_env one of the words of an object refers; if
        there is none, the file of the only addon that is loaded, or "".

        Other words may be stale, and refer to the napi_env of another addon. If `learn` had objects
        of the class, only the word counts at which most of them have a napi_env. Otherwise, all
        words must agree."""
        at = self._offsets.get(words[0]) if words else None
        if at is not None:
            words = words[at : at + 1] if at >= 0 else ()
        found = {file for word in words for file in (self._file(word),) if file}
        return found.pop() if len(found) == 1 else "" if found else self._only_addon

    def find_releasing(self, releases: Sequence[Sequence[int]]) -> Sequence[str]:
        """Return the files of the addons that release things; "" for those that are unknown. Each
        of `releases` has the address of the function that releases a thing, and those of the
        function's arguments.

        One of these words is an address in the addon, the address of its napi_env, or the address
        of a small block, from which one of these two is reached through at most _LEVELS small
        blocks. For example, Node's own functions have a block of the class CallbackInfo, and those
        of Node-API have a BufferFinalizer. Other words of such blocks may be stale. A path is given
        by the numbers of the words. Only those count that lead to an addon in a tenth of a
        function's releases, and of several the most frequent one."""
        by_function: dict[int, list[int]] = {}
        for number, words in enumerate(releases):
            by_function.setdefault(words[0], []).append(number)
        found = [""] * len(releases)
        for numbers in by_function.values():
            sample = take_sample(numbers)
            counts = Counter(path for number in sample for path in self._paths(releases[number], _LEVELS))
            paths = [path for path, count in counts.items() if count >= _FREQUENT * len(sample)]
            paths.sort(key=lambda path: (-counts[path], path))
            for number in interruptible(self._target, numbers, 256):
                files = (self._follow(releases[number], path) for path in paths)
                found[number] = next(filter(None, files), "")
        return found

    def _paths(self, words: Sequence[int], levels: int) -> Iterator[tuple[int, ...]]:
        """Yield the paths from these words to addons, through at most `levels` blocks."""
        for at, word in enumerate(words):
            if self._module_of(word) or self._file(word):
                yield (at,)
            elif levels:
                yield from ((at, *path) for path in self._paths(self._words_of_small(word), levels - 1))

    def _follow(self, words: Sequence[int], path: Sequence[int]) -> str:
        """Return the file of the addon to which a path leads, or ""."""
        for at in path[:-1]:
            words = self._words_of_small(words[at]) if at < len(words) else ()
        word = words[path[-1]] if path[-1] < len(words) else 0
        return self._module_of(word) or self._file(word)

    def _module_of(self, word: int) -> str:
        """Return the file of the addon that is loaded at an address, or ""."""
        module = region_at(self._modules, word)
        return module.path if module is not None else ""

    def _words_of_small(self, address: int) -> Sequence[int]:
        """Return the words of a small block that begins at an address; () if there is none."""
        block = self._directory.blocks.lookup(address) if address else None
        if block is None or block[1] != address or block[2] > _MOST_SMALL or block[3] != State.IN_USE:
            return ()
        return self._memory.words(address, block[2] // self._memory.size) or ()

    def class_of(self, address: int) -> str:
        """Return the class of the C++ object at an address, or ""."""
        return self.title_of(self._memory.word(address) or 0)

    def title_of(self, table: int) -> str:
        """Return the class of the objects whose first word is `table`, or ""."""
        symbol = self._target.symbolize(table) if table else None
        if symbol is None or table != symbol.address + 2 * self._memory.size or not symbol.name.startswith((TABLE, PREFIX)):
            return ""
        return demangle(symbol.name).removeprefix(PREFIX)

    def _file(self, word: int) -> str:
        """If the napi_env of an addon is at this address, return the addon's file; otherwise ""."""
        if word not in self._files:
            block = self._directory.blocks.lookup(word) if word else None
            is_environment = block is not None and block[1] == word and self.class_of(word).endswith(_ENVIRONMENTS)
            self._files[word] = self._file_of_environment(word, block[2]) if is_environment and block is not None else ""
        return self._files[word]

    def _file_of_environment(self, address: int, size: int) -> str:
        for word in self._memory.words(address, min(_ENVIRONMENT_WORDS, size // self._memory.size)) or ():
            if word and self._memory.read(word, 1) in (b"f", b"/"):
                data = self._memory.c_string(word, _LONGEST)
                path = data[len(_URL) :] if data.startswith(_URL) else data
                if path.startswith(b"/") and path.endswith(SUFFIX.encode()):
                    return self._decode(path)
        return ""

    def _decode(self, path: bytes) -> str:
        """Return the path in a URL. It is escaped unless it is the path of a loaded file."""
        names = [one.decode("utf-8", "surrogateescape") for one in (path, unquote_to_bytes(path))]
        known = next((one for one in names if one in self.addons), "")
        return known or unquote_to_bytes(path).decode("utf-8", "replace")

    @cached_property
    def _modules(self) -> Sequence[Module]:
        return [one for one in self._target.modules() if one.path.endswith(SUFFIX)]

    @cached_property
    def addons(self) -> Sequence[str]:
        """The loaded files of addons, sorted."""
        return sorted({one.path for one in self._modules})

    @cached_property
    def _only_addon(self) -> str:
        return self.addons[0] if len(self.addons) == 1 else ""
