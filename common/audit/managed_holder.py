"""Name the managed objects through which native blocks are reachable."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into
from findleaks.allocators.memory import Memory
from findleaks.arg_types import SizeRange
from findleaks.audit.block_rows import BlockFilters, BlockRows
from findleaks.audit.managed_graph import FoundObject, find_object
from findleaks.audit.references import find_root_references
from findleaks.engine.terms import NO_BLOCK, Kind, State
from findleaks.runtimes.base import Runtime
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges, merge_to_most, region_at

_TRIED = 16  # maximum number of root words that are tried for one block
_SAMPLED, _LEAST = 8, 2  # blocks whose owners are compared: most, and fewest
_SEARCHED, _FEW = 1 << 16, 1 << 10  # blocks that are searched; blocks between checks for Ctrl-C
_REACHED = 64  # blocks of a size that a search must reach
_OWNERS = 4  # last objects of a path that are examined
_MOST_BLOCKS = 1 << 16  # of one size
# Attached blocks whose words are compared with those of leaked blocks: most, and fewest that are
# alike; words of each
_MOST_ATTACHED, _LEAST_ATTACHED, _COMPARED = 256, 8, 16


class ManagedPath(NamedTuple):
    """The path, as text, to the managed object through which a block is reachable. `address`: the
    address of the block. `remedies`: what frees the memory of objects on this path."""

    address: int
    path: str
    remedies: Sequence[str] = ()


class LivingOwner(NamedTuple):
    """A type of managed objects, and one of them: its address, and the path to it, as text ("" if
    it is garbage). `blocks`: the number of reachable blocks of the size that was searched for.
    Objects of the type refer to `owned` of the `sampled` ones. `remedies`: see Runtime.remedies.
    `call`: the function that attached the blocks to the objects, or ""."""

    type: str
    blocks: int
    sampled: int
    owned: int
    address: int
    path: str
    remedies: Sequence[str]
    call: str = ""


def find_managed_path(session: Session, size: int, count: int) -> Optional[ManagedPath]:
    """Choose one of the `count` reachable blocks of this usable size, and return the path to the
    managed object through which the block is reachable. Returns None if the shortest path does not
    begin at a managed object; see `find_longer_path`."""
    if not session.runtimes:
        return None
    index = next(iter(list_blocks_of_size(session, size, count)), -1)
    chain = session.path(index) if index >= 0 else []
    if not chain:
        return None
    blocks = session.directory.blocks
    low = blocks.address(chain[0])
    for found in _find_referrers(session, low, low + blocks.size(chain[0])):
        path = _describe_path(found)
        if path:
            return ManagedPath(blocks.address(index), path, _find_remedies(session, found))
    return None


def list_blocks_of_size(session: Session, size: int, count: int) -> Sequence[int]:
    """Return the indices of some of the `count` reachable blocks of this usable size, the one in
    the middle first."""
    filters = BlockFilters({Kind.REACHABLE}, {State.IN_USE}, SizeRange(size, size), None, None)
    every = max(count // _SAMPLED, 1)
    found = list(islice(BlockRows(session, filters).indices(), every // 2, min(count, _MOST_BLOCKS), every))
    middle = len(found) // 2
    return [*found[middle:], *found[:middle]]


def find_longer_path(session: Session, size: int, count: int) -> Optional[ManagedPath]:
    """Search for blocks of this usable size from all live managed objects at once. Return the path
    to the object from which the search reached the last of several blocks. The first blocks may be
    other memory that has this size by chance.

    Example: a cache of a library is also reachable from a register of a thread that used it. Then
    the shortest path does not begin at a managed object."""
    if not session.runtimes:
        return None
    graph, blocks, places = session.graph(), session.directory.blocks, _list_owned_blocks(session)
    origins, waiting, last, left = {index: index for index in places}, deque(places), -1, min(max(count // 2, 1), _REACHED)
    for _ in interruptible(session.target, range(_SEARCHED), _FEW):
        if not waiting or not left:
            break
        one = waiting.popleft()
        if blocks.size(one) == size:
            last, left = one, left - 1
        for following, _ in graph.references(one):
            if following not in origins:
                origins[following] = origins[one]
                waiting.append(following)
    found = find_object(session, places[origins[last]]) if last >= 0 and not left else None
    path = _describe_path(found) if found is not None else ""
    return ManagedPath(blocks.address(last), path, _find_remedies(session, found)) if found is not None and path else None


def _list_owned_blocks(session: Session) -> dict[int, int]:
    """Return the indices of the blocks to whose start a live managed object refers, each with the
    address of the word that refers to it."""
    heaps = merge_to_most(session.heap_ranges(), MOST_RANGES)
    found: dict[int, int] = {}
    own, internal = _own_words(session), dict[tuple[int, int], bool]()
    for runtime in session.runtimes:
        holders = runtime.holders() if runtime.lists_objects and not runtime.objects_are_native else None
        if holders is None or not holders.addresses:
            continue
        most = holders.garbage or len(holders.names)
        for piece in session.pieces(session.roots, "searching the roots"):
            places, words = find_pointers_into(session.engine, piece, heaps)
            indices = session.directory.blocks.find_all(words)[0]
            starts = session.directory.blocks.columns_of(indices).address
            for place, word, index, start in zip(places, words, indices, starts):
                at = bisect_right(holders.addresses, place) - 1
                if index != NO_BLOCK and word == start and at >= 0 and place < holders.addresses[at] + holders.sizes[at]:
                    key = (holders.types[at], place - holders.addresses[at])
                    if key not in internal:
                        one = find_object(session, place)
                        internal[key] = one is not None and one.graph.is_internal(one.object.block, key[1])
                    if holders.types[at] < most and region_at(own, place) is None and not internal[key]:
                        found.setdefault(index, place)
    return found


def _own_words(session: Session) -> Sequence[Range]:
    """Return the words of managed objects that refer to structures of the runtime. For example, a
    java.lang.Thread refers to the JVM's structure of the thread, and owns nothing below it."""
    parts = (part for runtime in session.runtimes for part in runtime.parts())
    return merge_ranges(word for part in parts if part.own_words is not None for word in part.own_words())


def _find_remedies(session: Session, found: FoundObject) -> Sequence[str]:
    """Return what frees the memory of the last object on the path to a managed object for which
    this is known. For example, a statement of a database belongs to a connection, which is to be
    closed."""
    names = [found.graph.type_of(one) for one in found.graph.path(found.object.block)]
    runtime = _runtime_of(session, found)
    some = (runtime.remedies(name) for name in dict.fromkeys(names[: -_OWNERS - 1 : -1])) if runtime is not None else ()
    return next(filter(None, some), ())


def find_living_owner(session: Session, size: int) -> Optional[LivingOwner]:
    """Return the type of the managed objects that refer to blocks of this usable size, if these
    blocks are reachable, and if for each sampled block an object of this one type refers to its
    start. One sampled block may lack such an object, because the runtime itself may use blocks of
    this size. Objects of the type may have owned leaked blocks of the same size. Returns None if
    there is no such type."""
    if not any(runtime.lists_objects and not runtime.objects_are_native for runtime in session.runtimes):
        return None
    count = dict(session.graph().sizes(Kind.REACHABLE)).get(size, 0)
    if count < _LEAST:
        return None
    filters = BlockFilters({Kind.REACHABLE}, {State.IN_USE}, SizeRange(size, size), None, None)
    every = max(min(count, _MOST_BLOCKS) // _SAMPLED, 1)
    owners: list[FoundObject] = []
    others = 0
    for index in islice(BlockRows(session, filters).indices(), 0, every * _SAMPLED, every):
        owner = _find_owner(session, index)  # searches all roots
        if owner is None:
            others += 1
        else:
            owners.append(owner)
        if others > 1 or (owner is not None and owner.object.type != owners[0].object.type):
            return None
    if len(owners) < _LEAST + others * _LEAST:
        return None
    found = owners[len(owners) // 2]
    one, runtime = found.object, _runtime_of(session, found)
    remedies = runtime.remedies(one.type) if runtime is not None else ()
    return LivingOwner(one.type, count, len(owners) + others, len(owners), one.address, _describe_path(found), remedies)


def find_attaching_owner(session: Session, size: int, examples: Sequence[int]) -> Optional[LivingOwner]:
    """Return the type of managed objects to most of which native code attached blocks that are like
    the leaked ones: they have this usable size, and pointers to the same kinds of memory at the
    same offsets. Blocks without pointers have nothing but their size in common, so they are not
    compared. `examples`: addresses of leaked blocks. Returns None if there is no such type."""
    blocks = session.directory.blocks
    leaked = set(filter(any, (_pointers(session, address, size) for address in examples[:_SAMPLED])))
    for attached in filter(None, (runtime.attached_blocks() for runtime in session.runtimes)):
        same = [index for index in attached.objects if blocks.size(index) == size]
        sample = same[:: max(-(-len(same) // _MOST_ATTACHED), 1)]
        alike = [index for index in sample if _pointers(session, blocks.address(index), size) in leaked]
        objects = [(index, find_object(session, attached.objects[index])) for index in interruptible(session.target, alike)]
        types = Counter(one.object.type for _, one in objects if one is not None)
        name, count = types.most_common(1)[0] if types else ("", 0)
        if count < _LEAST_ATTACHED or 2 * count < len(sample):
            continue
        of_type = [one for _, one in objects if one is not None and one.object.type == name]
        one = of_type[len(of_type) // 2]
        return LivingOwner(name, len(same), len(sample), count, one.object.address, _describe_path(one), (attached.remedy,), attached.call)
    return None


def _pointers(session: Session, address: int, size: int) -> tuple[int, ...]:
    """Return for each of the first words of a block what it points to: the size of a block that
    begins there, -1 for the program's files, and 0 for anything else."""
    word, blocks, modules = session.target.arch.word, session.directory.blocks, session.target.modules()
    words = Memory(session.target).words(address, min(size // word, _COMPARED)) or ()
    found = ((blocks.lookup(one), one) for one in words)
    return tuple(
        block[2] if block is not None and block[1] == one else -1 if region_at(modules, one) is not None else 0 for block, one in found
    )


def _find_owner(session: Session, index: int) -> Optional[FoundObject]:
    """Return a managed object with a word that is the start of a block, live or garbage; None if
    there is none."""
    start = session.directory.blocks.address(index)
    return next(_find_referrers(session, start, start + 1), None)


def _find_referrers(session: Session, start: int, end: int) -> Iterator[FoundObject]:
    """Yield the managed objects with a root word that is an address from `start` on, below `end`.
    Only _TRIED of these words are examined."""
    own = _own_words(session)
    for one in islice(find_root_references(session, start, end), _TRIED):
        found = find_object(session, one.address) if one.address and region_at(own, one.address) is None else None
        if found is not None and not found.graph.is_internal(found.object.block, one.address - found.object.address):
            yield found


def _describe_path(found: FoundObject) -> str:
    """Return the path to a managed object as text; "" if it is unknown. If a root refers to the
    object itself, the root is named."""
    if found.graph.graph is None:
        return ""
    path = found.graph.describe_path(found.object.block)
    return path if " → " in path or not path else f"{found.graph.describe_root(found.object.block)}: {path}"


def _runtime_of(session: Session, found: FoundObject) -> Optional[Runtime]:
    return next((one for one in session.runtimes if one.name == found.runtime), None)
