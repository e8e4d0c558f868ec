"""Ownership of containers: intact ones are found in advance, so that stale pointers to nodes are
ignored.

A stale pointer (in a structure not cleared, a buffer, a reused block) to one node of a std::map
would make its holder an owner of the whole map, as nodes point to their parents. But a map whose
links are all intact, and whose head counts as many nodes as are found, belongs to that head."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from findleaks.allocators.bulk import find_pointers
from findleaks.audit.containers import Container
from findleaks.audit.containers.hashes import standard
from findleaks.audit.containers.lists import ring
from findleaks.audit.containers.reader import Reader
from findleaks.audit.containers.recognise import first_recognised
from findleaks.audit.containers.trees import gnu_tree, llvm_tree
from findleaks.audit.owner import Sort
from findleaks.audit.owners import Owners
from findleaks.engine.dominators import NO_ROOT, root_node
from findleaks.errors import UnreadableMemory
from findleaks.session import Session
from findleaks.target.base import Piece
from findleaks.target.ranges import merge_ranges, range_at

LEAST = 16  # fewest nodes of a container that is considered
MAX_BYTES = 1 << 26  # most bytes of blocks behind variables that are searched for heads
MAX_POINTERS = 50_000  # most words of variables examined: about a second
MAX_BLOCK = 1 << 14  # most bytes of a structure with heads in it; longer are arrays and buffers

_SURE = (gnu_tree, standard, ring, llvm_tree)


def find_container_owners(session: Session, reader: Reader, named: Owners) -> tuple[array[int], list[int]]:
    """Arguments of Dominators.set_owners for containers with heads in variables or in blocks that
    variables point to. The first is empty where no container has an owner."""
    parts = array("I")
    container_owners: list[int] = []
    for number, owner in enumerate(named.all):
        if owner.sort != Sort.MANAGED:  # these are the first
            break
        parts = parts or array("I", [NO_ROOT]) * len(reader.blocks)
        block = reader.blocks.find(owner.words[0][1]) if not owner.apart else -1
        for index, holder in ((block, root_node(number)), (reader.blocks.find(owner.table) if owner.table else -1, block)):
            # Neither the module's dictionary of variables nor a stale pointer owns it.
            if index >= 0 and parts[index] == NO_ROOT:
                parts[index] = len(container_owners)
                container_owners.append(holder)
    for node, container in _heads(session, reader, named):
        session.report_progress("finding containers", 0.0)
        # 4 bytes a block: made only if there is a container.
        parts = parts or array("I", [NO_ROOT]) * len(reader.blocks)
        blocks, _ = reader.blocks.find_all(container.nodes)
        if reader.blocks.claim(parts, blocks, len(container_owners)):
            container_owners.append(node)
    return parts, container_owners


def _heads(session: Session, reader: Reader, named: Owners) -> Iterator[tuple[int, Container]]:
    """Yields (node of the owner, container), each container once."""
    heaps = merge_ranges(session.heap_ranges())
    if not heaps:
        return
    seen: set[int] = set()
    looked = pointers = 0
    for number, owner in enumerate(named.all):
        if owner.sort > Sort.THREAD_LOCAL:
            break
        for piece in session.pieces(owner.ranges, "finding containers"):
            addresses, values = find_pointers(session.engine, piece, heaps[0].start, heaps[-1].end)
            for address, value in zip(addresses[: max(MAX_POINTERS - pointers, 0)], values):
                pointers += 1
                if range_at(heaps, value) is None:
                    continue
                if _counts(reader, address):
                    yield from ((root_node(number), made) for made in _at(reader, address))
                place = reader.place(value)
                if place is None or place.block in seen or place.offset or place.size > MAX_BLOCK or looked > MAX_BYTES:
                    continue
                seen.add(place.block)
                looked += place.size
                if len(seen) % 256 == 0:
                    session.report_progress("finding containers", 0.0)
                yield from ((place.block, made) for made in _in_block(reader, place.start, place.size))


def _in_block(reader: Reader, start: int, size: int) -> Iterator[Container]:
    """Containers with heads in a block. A head's node count is 2 or 3 words after its first one."""
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
            if number > reached and low <= words[number] < high and low <= words[number + (2 if number == count - 3 else 1)] < high:
                for made in _at(reader, start + number * reader.size):
                    reached = (made.end - start) // reader.size - 1
                    yield made


def _at(reader: Reader, address: int) -> Iterator[Container]:
    """The container with its head at this address, if intact."""
    made = first_recognised(reader, address, _SURE)
    if made is not None:
        reader.recognised["head", address] = made
        if made.recorded == made.length and made.length >= LEAST and not made.problem:
            yield made


def _counts(reader: Reader, address: int) -> bool:
    """Whether there is a plausible node count where heads have it."""
    words = reader.words(address + 2 * reader.size, 2)
    return words is not None and any(LEAST <= word <= reader.most for word in words)
