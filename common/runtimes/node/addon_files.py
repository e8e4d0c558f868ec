"""Find the addon that made an object of Node-API.

Sources: Node 12 to 24, src/js_native_api_v8.h and src/node_api.cc: the classes of namespace v8impl
(references, thread-safe functions) and uvimpl (asynchronous tasks) have the address of the addon's
napi_env among their words. Since Node 14.16, src/node_api_internals.h: the napi_env has the URL of
the addon's file as a std::string. Since Node 16, it has %20 in place of a space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from urllib.parse import unquote_to_bytes

from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.demangle import demangle
from findleaks.engine.terms import State
from findleaks.target.base import Module, Target
from findleaks.target.ranges import region_at

TABLE, PREFIX, SUFFIX = "_ZTV", "vtable for ", ".node"
MOST_WORDS = 96  # words of an object that are searched for its napi_env
_ENVIRONMENTS = ("napi_env__", "node_napi_env__")
_ENVIRONMENT_WORDS = 64  # words of a napi_env that are read
_LEVELS = 2  # levels of blocks between a backing store and what identifies its addon
# Bytes of such a block. Larger ones, such as Node's Environment, reach everything.
_MOST_SMALL = 256
_MOST_MISSES = 1024  # successive searches for one function that find no addon
_URL, _LONGEST = b"file://", 4096
_REFERENCE_CLASSES = ("v8impl::Ref", "v8impl::TrackedFinalizer", "v8impl::(anonymous namespace)::ArrayBufferReference")
REFERENCE, FUNCTION, TASK = "Node-API reference", "Node-API thread-safe function", "Node-API asynchronous task"
EXTERNAL, DEFERRED, CONTEXT = "Node-API external", "Node-API deferred", "Node-API asynchronous context"
_CLASSES = {"v8impl::(anonymous namespace)::ThreadSafeFunction": FUNCTION, "(anonymous namespace)::uvimpl::Work": TASK}


def name_class(title: str) -> str:
    """Return what an addon calls an object of this class of Node-API; "" for other classes."""
    return REFERENCE if title.startswith(_REFERENCE_CLASSES) else _CLASSES.get(title, "")


def plural(owner: str) -> str:
    """Return the plural of a phrase that begins with the name of a class: "Node-API references of
    /app/a.node"."""
    name = next((one for one in (REFERENCE, FUNCTION, TASK, DEFERRED, CONTEXT) if owner.startswith(one)), "")
    return f"{name}s{owner[len(name) :]}" if name else owner


class AddonFiles:
    """Finds the addon to which a C++ object of Node-API belongs. Each addon has a napi_env."""

    def __init__(self, target: Target, directory: Directory) -> None:
        self._target, self._directory, self._memory = target, directory, Memory(target)
        self._files: dict[int, str] = {}
        # successive searches of `find_releasing` without a result, by function
        self._misses: Counter[int] = Counter()
        # index of the word at which `find` found a napi_env, by the first word of the object
        self._offsets: dict[int, int] = {}

    def find(self, words: Sequence[int]) -> str:
        """Return the file of the addon to whose napi_env one of the words of an object refers; if
        there is none, the file of the only addon that is loaded, or "".

        Objects of a class, which have the same first word, have the napi_env at one offset. The
        word at the last known offset is therefore tried first: other words need a search each."""
        last = self._offsets.get(words[0], 0) if words else 0
        file = self._file(words[last]) if 0 < last < len(words) else ""
        if file:
            return file
        for at, word in enumerate(words):
            file = self._file(word)
            if file:
                self._offsets[words[0]] = at
                return file
        return self._only_addon

    def find_releasing(self, words: Sequence[int]) -> str:
        """Return the file of the addon that releases something; "" if it is unknown. `words`: the
        address of the function that releases it, and those of the function's arguments.

        One of these words is an address in the addon, the address of its napi_env, or the address
        of a small block, from which one of these two is reached through at most _LEVELS small
        blocks. For example, Node's own functions have a block of the class CallbackInfo, and those
        of Node-API have a BufferFinalizer. The search takes long if it finds no addon. So after
        _MOST_MISSES successive searches for a function without a result, the function is treated as
        one that releases nothing of addons."""
        if self._misses[words[0]] >= _MOST_MISSES:
            return ""
        some = set(words)
        for level in range(_LEVELS + 1):
            found = {file for word in some for file in (self._module_of(word), self._file(word)) if file}
            if found:
                self._misses[words[0]] = 0
                return found.pop() if len(found) == 1 else ""
            some = {word for address in some for word in self._words_of_small(address)} if level < _LEVELS else set()
        self._misses[words[0]] += 1
        return ""

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
