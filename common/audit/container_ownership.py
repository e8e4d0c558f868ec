"""Find the owners of intact containers. A container belongs to its head, even if a stale pointer
refers to one of its nodes.

A stale pointer (in a structure that was not cleared, in a buffer, in a reused block) may refer to
one node of a std::map. Nodes point to their parents, so the whole map is reachable from that
pointer. Without this module, the map would count as shared by the pointer and the map's head. The
head is the only owner if the links of the map are intact, and if as many nodes are found as the
head counts. An array of pointers to the nodes is not stale. It may be the buckets of a hash table
whose nodes are also in a list. Then the head of the list is not the only owner."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from findleaks.allocators.bulk import find_pointers
from findleaks.audit.containers import Container
from findleaks.audit.containers.btrees import HIGHEST, recognise_btree
from findleaks.audit.containers.glib import recognise_glib_head
from findleaks.audit.containers.hashes import recognise_unordered_map
from findleaks.audit.containers.lists import recognise_counted_list, recognise_ring
from findleaks.audit.containers.reader import BlockPlace, ContainerReader
from findleaks.audit.containers.recognise import first_recognised
from findleaks.audit.containers.trees import recognise_gnu_tree, recognise_llvm_tree
from findleaks.audit.owner import OwnerSort
from findleaks.audit.owners import Owners
from findleaks.engine.dominators import NO_ROOT, root_node
from findleaks.errors import UnreadableMemory
from findleaks.session import Session
from findleaks.target.base import Piece
from findleaks.target.ranges import range_at

LEAST = 16  # fewest nodes of a container for which an owner is set
# Blocks that variables point to are searched for heads up to this number of bytes
MAX_BYTES = 1 << 26
MAX_POINTERS = 50_000  # words of variables are examined up to this number: about a second
# Maximum number of bytes of a structure that may contain heads; larger blocks are arrays and
# buffers.
MAX_BLOCK = 1 << 14

_STRUCTURE = 64  # a block with more pointers is an array
_SAMPLED = 2048  # words of an array that are examined
_MOST_READ = 8192  # blocks that are examined as arrays: 0.2 s

_SURE = (
    recognise_glib_head,
    recognise_gnu_tree,
    recognise_unordered_map,
    recognise_ring,
    recognise_llvm_tree,
    recognise_btree,
    recognise_counted_list,
)


def find_container_owners(session: Session, reader: ContainerReader, named: Owners) -> tuple[array[int], list[int]]:
    """Find the owners of containers whose heads are in variables, or in blocks that variables point
    to.
    Returns the arguments of Dominators.set_owners; the first is empty if no container has an
    owner."""
    parts = array("I")
    container_owners: list[int] = []
    for number, owner in enumerate(named.all):
        if owner.sort != OwnerSort.MANAGED:  # owners are sorted, and managed variables come first
            break
        parts = parts or array("I", [NO_ROOT]) * len(reader.blocks)
        for one in owner.members or [owner]:
            block = reader.blocks.find(one.words[0][1]) if not one.apart else -1
            for index, holder in ((block, root_node(number)), (reader.blocks.find(one.table) if one.table else -1, block)):
                # The value belongs to the variable, not to the module's dictionary or to a stale
                # pointer.
                if index >= 0 and parts[index] == NO_ROOT:
                    parts[index] = len(container_owners)
                    container_owners.append(holder)
    pointers = _Pointers(reader)
    heads = ((node, found.nodes, number) for node, found, number in _find_heads(session, reader, named, pointers))
    managed = ((node, nodes, -1) for runtime in session.runtimes for node, nodes in runtime.containers())
    claims: dict[int, tuple[Sequence[int], int]] = {}
    for node, nodes, number in chain(heads, managed):
        session.report_progress("finding containers", 0.0)
        # 4 bytes for each block, so it is allocated only if a container exists.
        parts = parts or array("I", [NO_ROOT]) * len(reader.blocks)
        blocks, _ = reader.blocks.find_all(nodes)
        if reader.blocks.claim(parts, blocks, len(container_owners)):
            if number >= 0:
                claims[len(container_owners)] = nodes, number
            container_owners.append(node)
    for number in _find_shared(reader, parts, claims, pointers):
        for index in reader.blocks.find_all(claims[number][0])[0]:
            if parts[index] == number:
                parts[index] = NO_ROOT
    return parts, container_owners


class _Pointers:
    """The pointers to the heap in variables, and in arrays to which variables refer directly or
    through one structure: for each, the number of the variable, and the value."""

    def __init__(self, reader: ContainerReader) -> None:
        self.owners, self.values = array("I"), array("Q")
        self._reader, self._seen = reader, set[int]()
        self._left = _MOST_READ

    def add(self, owner: int, value: int) -> None:
        self.owners.append(owner)
        self.values.append(value)

    def add_arrays(self, owner: int, place: BlockPlace) -> None:
        """If a block is an array, add its pointers. Otherwise, add the pointers of the arrays to
        which it refers."""
        values = self._read(place)
        if len(values) > _STRUCTURE:
            self._add_array(owner, values)
            return
        for value in values if self._left > 0 else ():
            self._left -= 1
            one = self._reader.place(value)
            if one is not None and not one.offset and one.size >= LEAST * self._reader.size and one.block not in self._seen:
                self._seen.add(one.block)
                self._add_array(owner, self._read(one))

    def _read(self, place: BlockPlace) -> Sequence[int]:
        size = min(place.size, _SAMPLED * self._reader.size)
        self._left -= 1
        if self._left < 0:
            return ()
        try:
            data = self._reader.target.read(place.start, size)
        except UnreadableMemory:
            return ()
        return find_pointers(self._reader.engine, Piece(place.start, memoryview(data)), self._reader.low, self._reader.high)[1]

    def _add_array(self, owner: int, values: Sequence[int]) -> None:
        if len(values) >= LEAST and len(self.values) < MAX_POINTERS:
            for value in values:
                self.add(owner, value)


def _find_shared(
    reader: ContainerReader, parts: array[int], claims: Mapping[int, tuple[Sequence[int], int]], pointers: _Pointers
) -> list[int]:
    """Return the claims on containers to whose nodes an array in another variable refers.
    `claims`: the nodes of each container, and the variable that owns it."""
    if not claims:
        return []
    every = Counter(pointers.owners)
    held: dict[tuple[int, int], set[int]] = {}
    for owner, value in zip(pointers.owners, pointers.values):
        if every[owner] < LEAST:
            continue
        index = reader.blocks.find(value)
        claim = parts[index] if index >= 0 else NO_ROOT
        if claim in claims and claims[claim][1] != owner:
            held.setdefault((claim, owner), set()).add(index)
    # Nine in ten, so that the variable is an array of nodes
    return sorted({claim for (claim, owner), nodes in held.items() if len(nodes) >= max(LEAST, every[owner] * 9 // 10)})


def _find_heads(session: Session, reader: ContainerReader, named: Owners, found: _Pointers) -> Iterator[tuple[int, Container, int]]:
    """Yield (node of the owner, container, number of the variable); each container once. Add the
    pointers of variables to `found`."""
    heaps = session.heap_ranges()
    if not heaps:
        return
    seen: set[int] = set()
    looked = pointers = 0
    for number, owner in enumerate(named.all):
        if owner.sort > OwnerSort.THREAD_LOCAL:
            break
        for piece in session.pieces(owner.ranges, "finding containers"):
            addresses, values = find_pointers(session.engine, piece, heaps[0].start, heaps[-1].end)
            for address, value in zip(addresses[: max(MAX_POINTERS - pointers, 0)], values):
                pointers += 1
                if range_at(heaps, value) is None:
                    continue
                found.add(number, value)
                if _has_plausible_count(reader, address):
                    yield from ((root_node(number), made, number) for made in _intact_container_at(reader, address))
                place = reader.place(value)
                if place is None or place.block in seen or place.offset:
                    continue
                seen.add(place.block)
                if len(seen) % 256 == 0:
                    session.report_progress("finding containers", 0.0)
                found.add_arrays(number, place)
                if place.size > MAX_BLOCK or looked > MAX_BYTES:
                    continue
                looked += place.size
                yield from ((place.block, made, number) for made in _find_in_block(reader, place.start, place.size))


def _find_in_block(reader: ContainerReader, start: int, size: int) -> Iterator[Container]:
    """Yield the containers whose heads are in a block.
    The number of nodes is 2 or 3 words after the first word of a head. Therefore only words at this
    distance before a plausible number are tried as a head. The last word before the number is a
    pointer, too, or the height of a tree."""
    try:
        data = reader.target.read(start, size // reader.size * reader.size)
    except UnreadableMemory:
        return
    counts = reader.engine.search(Piece(start, memoryview(data)), LEAST, reader.most + 1)
    words = reader.target.arch.unpack(data) if counts else ()
    low, high = reader.low, reader.high
    reached = -1
    for count in [(address - start) // reader.size for address in counts]:
        for number in (count - 3, count - 2):
            last = words[count - 1]
            if number > reached and low <= words[number] < high and (low <= last < high or 0 < last <= HIGHEST):
                for made in _intact_container_at(reader, start + number * reader.size):
                    reached = (made.end - start) // reader.size - 1
                    yield made


def _intact_container_at(reader: ContainerReader, address: int) -> Iterator[Container]:
    """Yield the container with its head at this address, if it is intact."""
    made = first_recognised(reader, address, _SURE)
    if made is not None:
        reader.recognised["head", address] = made
        if made.recorded == made.length and made.length >= LEAST and not made.problem:
            yield made


def _has_plausible_count(reader: ContainerReader, address: int) -> bool:
    """Whether the head at this address may be intact: one of the words where a head stores its
    number of nodes contains a plausible number."""
    words = reader.words(address + 2 * reader.size, 2)
    return words is not None and any(LEAST <= word <= reader.most for word in words)
