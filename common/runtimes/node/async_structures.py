"""Find what Node-API allocates for the asynchronous work of addons: asynchronous tasks, thread-safe
functions and asynchronous contexts. They leak if an addon does not delete them.

Sources: Node 12 to 24, src/node_api.cc: Work (uvimpl), ThreadSafeFunction and AsyncContext (v8impl,
or a node::async_context before). An AsyncContext has no vtable; it is {napi_env, the numbers of the
context and of its cause as doubles, address of the global handle of the resource, whether this
handle is lost, …}. libuv 1.34 to
1.50, include/uv.h and include/uv/threadpool.h: a uv_work_t has the loop, two functions, and a
uv__work {function, function that is called after it, loop, next, previous}. libuv resets the first
function once it has returned, and leaves the links when it removes the work from its queue."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.node.addon_files import CONTEXT, FUNCTION, TASK, AddonFiles, read_words, take_sample
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

_TABLES = {"_ZTVN12_GLOBAL__N_16uvimpl4WorkE": TASK, "_ZTVN6v8impl12_GLOBAL__N_118ThreadSafeFunctionE": FUNCTION}
_ENVIRONMENTS = ("_ZTV15node_napi_env__", "_ZTV10napi_env__")
_LEAST_CONTEXT, _MOST_CONTEXT = 40, 72  # bytes of the block of an AsyncContext
_CONTEXT_WORDS = 5  # words of an AsyncContext that every version has
_MOST_NUMBER = 1 << 53
_MOST_LINKED = 1 << 16  # asynchronous tasks whose links are examined
# Words of a uv_work_t after its loop: the function, the loop of the uv__work, and its links.
_FUNCTION, _LOOP, _NEXT = 3, 5, 6


class AsyncStructures(NamedTuple):
    """Structures of Node-API. `types`: the blocks of each type, by its name. `stale`: the blocks of
    asynchronous tasks whose links libuv uses no longer. `link`: the first word of these links."""

    types: Mapping[str, Sequence[int]]
    stale: Sequence[int]
    link: int


def find_async_structures(target: Target, engine: Engine, directory: Directory) -> Optional[AsyncStructures]:
    """Return the structures; None if there are none. Raises Interrupted."""
    memory, files = Memory(target), AddonFiles(target, directory)
    names = {table: name for symbol, name in _TABLES.items() for table in _table(target, symbol)}
    environments = {table for symbol in _ENVIRONMENTS for table in _table(target, symbol)}
    found = list(_find_headed(target, engine, directory, sorted({*names, *environments}))) if names and environments else []
    owners = sorted(address for _, address, _, table in found if table in environments)
    for wanted in names:
        its = [(address, size) for _, address, size, table in found if table == wanted]
        files.learn([read_words(memory, *one) for one in take_sample(its)])
    types: dict[str, list[int]] = {}
    stale: list[int] = []
    link = 0
    for index, address, size, table in interruptible(target, found, 4096):
        words = read_words(memory, address, size) if table in names else ()
        if not words:
            continue
        types.setdefault(f"{names[table]} ({files.find(words) or 'of an addon'})", []).append(index)
        if names[table] == TASK and len(stale) < _MOST_LINKED:
            link = link or _find_links(words)
            if link and _is_unlinked(memory, address, words, link):
                stale.append(index)
    for index, address, size, _ in interruptible(target, _find_headed(target, engine, directory, owners), 4096):
        words = (memory.words(address, _CONTEXT_WORDS) or ()) if _LEAST_CONTEXT <= size <= _MOST_CONTEXT else ()
        if words and _is_context(words):
            types.setdefault(f"{CONTEXT} ({files.find(words) or 'of an addon'})", []).append(index)
    return AsyncStructures(types, stale, link) if types else None


def _table(target: Target, name: str) -> Iterator[int]:
    """Yield the first word of objects of the class with this vtable."""
    symbol = target.symbol(name)
    if symbol is not None:
        yield symbol.address + 2 * target.arch.word


def _find_headed(target: Target, engine: Engine, directory: Directory, values: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield index, address and size of each block in use that begins with one of these values, and
    the value."""
    for owned in directory.heaps if values else ():
        for piece in interruptible(target, nonzero_pieces(target, owned.start, owned.end)):
            places = engine.search_any(piece, values)
            words, _ = engine.gather((piece,), places, target.arch.word)
            indices, _ = directory.blocks.find_all(places)
            columns = directory.blocks.columns_of(indices)
            for place, value, index, *block in zip(places, target.arch.unpack(bytes(words)), indices, *columns):
                start, size, state = block
                if index != NO_BLOCK and start == place and state == State.IN_USE:
                    yield index, place, size, value


def _is_context(words: Sequence[int]) -> bool:
    """Whether an object that begins with a napi_env is an AsyncContext: two doubles that are
    numbers follow, and the number of a context is greater than that of its cause. The global handle
    is 0 if the resource was collected."""
    number, cause = struct.unpack("<2d", struct.pack("<2Q", *words[1:3]))
    return 0 <= cause < number < _MOST_NUMBER and number == int(number) and cause == int(cause) and not words[3] & 7 and words[4] & 0xFF < 2


def _find_links(words: Sequence[int]) -> int:
    """Return the index of the first link in the words of an asynchronous task whose function has
    returned; 0 if it is unknown."""
    for at in range(len(words) - _NEXT - 1):
        if words[at] and words[at] == words[at + _LOOP] and not words[at + _FUNCTION] and words[at + _FUNCTION + 1]:
            return at + _NEXT
    return 0


def _is_unlinked(memory: Memory, address: int, words: Sequence[int], link: int) -> bool:
    """Whether no queue of libuv has the asynchronous task with these words: its function has
    returned, and its neighbours do not refer to it."""
    following, previous = words[link : link + 2]
    own = address + link * memory.size
    is_linked = memory.word(following + memory.size) == own and memory.word(previous) == own
    return not words[link - _NEXT + _FUNCTION] and not is_linked
