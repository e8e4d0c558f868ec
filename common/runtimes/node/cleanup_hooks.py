"""Find the cleanup hooks of addons: functions that Node calls when an environment ends.

Source: Node 12 to 24, src/env.h, later src/cleanup_queue.h: an Environment has the hooks in a
std::unordered_set, whose nodes are {next node, function, its argument, number, hash}. The hash is
the argument (std::hash of a pointer). napi_add_env_cleanup_hook adds one. An addon usually passes
its own memory as the argument, and the hook frees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.node.addon_files import SUFFIX
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces

_WORDS, _FUNCTION, _ARGUMENT, _NUMBER, _HASH = 5, 1, 2, 3, 4
"""Words of a node, and the numbers of these words."""

_LARGEST = 64  # bytes of the block of a node
_MOST_NUMBER = 1 << 40  # hooks that an Environment has ever had


def find_cleanup_hooks(target: Target, engine: Engine, directory: Directory) -> Iterator[tuple[int, str]]:
    """Yield the index of the block of each hook whose function is in an addon, and the addon's
    file. Raises Interrupted."""
    addons = [one for one in target.modules() if one.path.endswith(SUFFIX)]
    code = [
        (module.path, region)
        for module in addons
        for region in target.regions()
        if region.executable and module.start <= region.start < module.end
    ]
    for owned in directory.heaps if code else ():
        for piece in interruptible(target, nonzero_pieces(target, owned.start, owned.end)):
            for file, region in code:
                places = engine.search(piece, region.start, region.end)
                yield from ((index, file) for index in _select_nodes(target, engine, directory, places))


def _select_nodes(target: Target, engine: Engine, directory: Directory, places: Sequence[int]) -> Iterator[int]:
    """Yield the indices of the blocks that are nodes of the set. `places`: the addresses of words
    that may be the function of a node."""
    size = target.arch.word
    indices, _ = directory.blocks.find_all(places)
    starts, sizes, states = directory.blocks.columns_of(indices)
    found = {
        start: index
        for place, index, start, length, state in zip(places, indices, starts, sizes, states)
        if index != NO_BLOCK and place == start + _FUNCTION * size and _WORDS * size <= length <= _LARGEST and state == State.IN_USE
    }
    data, missing = read_records(target, engine, list(found), _WORDS * size)
    words = target.arch.unpack(bytes(data))
    for at, index in enumerate(found.values()):
        node = words[_WORDS * at : _WORDS * (at + 1)]
        if at not in missing and node[_ARGUMENT] == node[_HASH] and node[0] % size == 0 and 0 < node[_NUMBER] < _MOST_NUMBER:
            yield index
