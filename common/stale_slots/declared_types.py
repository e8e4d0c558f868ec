"""Types of words by debug information: in variables, and in blocks that typed words point to.

The type of a block follows from the word that refers to it: a pointer's target, an element of a
vector, a node of a map. The type is accepted only if the block has the size that the type needs,
because memory that was freed and reused for something else rarely has this size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Optional

from findleaks.stale_slots.heap_memory import HeapMemory, wastes_little
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.debuginfo.members import Members, Type

MAX_DEPTH = 24  # maximum number of blocks between a variable and a word whose type is looked up

_MEMBERS = {
    "vector": {"_M_impl", "__begin_"},
    "Vec": {"buf"},
    "VecDeque": {"buf"},
    "unique_ptr": {"_M_t"},
    "shared_ptr": {"_M_ptr"},
}
"""Members that identify types of the standard libraries.
The type or one of its bases has one of these members; other types with the same name do not
(libstdc++ of GCC 12, libc++ of LLVM 16, std of Rust 1.95)."""

_NODES = {"map": 4, "multimap": 4, "set": 4, "multiset": 4, "list": 2, "forward_list": 1}
"""Number of link words at the beginning of a node of libstdc++ (GCC 12 bits/stl_tree.h, stl_list.h,
forward_list.h, hashtable_policy.h)."""
_NODES.update((f"unordered_{name}", 1) for name in ("map", "multimap", "set", "multiset"))
_MEMBERS.update((name, {"_M_impl"} if "list" in name else {"_M_h"} if name[0] == "u" else {"_M_t"}) for name in _NODES)

_PAIRS = {"map": "_M_t", "multimap": "_M_t", "unordered_map": "_M_h", "unordered_multimap": "_M_h"}
"""Name of a member, by container.
The second template argument of the member's type is the pair of key and value."""


def standard_name(part: Type) -> str:
    """Return the name of a container or smart pointer of a standard library without its arguments,
    such as "vector"; "" for other types."""
    name = part.name.split("<")[0]
    return name if name in _MEMBERS and "<" in part.name and part.member_names() & _MEMBERS[name] else ""


class BlockType(NamedTuple):
    """The content of a block: a value of `type` that begins at byte `begin`, or an array of such
    values if `repeated`.

    `links` means that the words before `begin` refer to blocks with the same content. `buckets`
    means that the block contains only references to such blocks."""

    type: Type
    begin: int = 0
    repeated: bool = False
    links: bool = False
    buckets: bool = False


class DeclaredTypes:
    """Types of words in memory.

    `referrers` maps the start of each block that may be looked up to the address of a word that
    refers to it. Debug information of a variable is read only if `is_wanted` returns true for its
    address."""

    def __init__(self, memory: HeapMemory, referrers: Mapping[int, int], is_wanted: Callable[[int], bool] = lambda _: True) -> None:
        self._memory, self._referrers, self._is_wanted = memory, referrers, is_wanted
        self._members: Optional[Members] = None
        self._blocks: dict[int, Optional[BlockType]] = {}

    def around(self, address: int) -> Iterator[tuple[int, Type]]:
        """Yield (start, type) of everything that is declared to contain the word at `address`.
        The whole variable, or the whole content of the block, comes first, and the smallest part
        last. If the type is unknown, nothing is yielded."""
        yield from self._around(address, 0)

    def knows_block(self, start: int, size: int) -> bool:
        """Return whether the content of the block at `start` is declared. If not, `around` yields
        nothing for its words."""
        return self._of_block(start, size, 0) is not None

    def _around(self, address: int, depth: int) -> Iterator[tuple[int, Type]]:
        found = self._memory.blocks.lookup(address)
        if found is None:
            yield from self._in_variable(address)
            return
        block = self._of_block(found[1], found[2], depth)
        offset = address - found[1] - block.begin if block is not None else -1
        if block is None or offset < 0 or block.type.size <= 0 or block.buckets:
            return
        if block.repeated:
            offset %= block.type.size
        for inner, part in block.type.around(offset):
            yield address - inner, part

    def _in_variable(self, address: int) -> Iterator[tuple[int, Type]]:
        if not self._is_wanted(address):
            return
        symbol = self._memory.target.symbolize(address)
        if symbol is None or not symbol.address <= address < symbol.address + max(symbol.size, 1):
            return
        if self._members is None:
            from findleaks.debuginfo.members import Members  # few processes need it

            self._members = Members(self._memory.target)
        declared = self._members.variable(symbol.address)
        for inner, part in declared.around(address - symbol.address) if declared is not None else ():
            yield address - inner, part

    def _of_block(self, start: int, size: int, depth: int) -> Optional[BlockType]:
        """Return the content of the block, derived from the declaration of the word that refers to
        it. None if it is unknown."""
        if start not in self._blocks:
            self._blocks[start] = None  # ends the recursion in a cycle of links
            word = self._referrers.get(start)
            found = self._find_referred(word, depth) if word is not None and depth < MAX_DEPTH else None
            self._blocks[start] = found if found is not None and self._fits(found, size) else None
        return self._blocks[start]

    def _fits(self, found: BlockType, size: int) -> bool:
        """Whether a block of `size` usable bytes can be the result of a request for this
        content."""
        each = found.type.size
        if found.buckets:
            return True
        if found.repeated:
            return 0 < each <= size
        # Up to three more words may follow. For example, a node of an unordered container ends with
        # its hash.
        return each > 0 and wastes_little(size, found.begin + each, self._memory.size)

    def _find_referred(self, word: int, depth: int) -> Optional[BlockType]:
        """Return the content of the block that the word at `word` refers to."""
        holder = self._memory.blocks.lookup(word)
        above = self._of_block(holder[1], holder[2], depth + 1) if holder is not None else None
        if holder is not None and above is None:
            return None
        if holder is not None and above is not None and (above.buckets or (above.links and word - holder[1] < above.begin)):
            return above._replace(buckets=False)
        parts = list(self._around(word, depth + 1))
        # A container's own pointers refer to nodes without a value, so its declaration is tried
        # first.
        for begin, part in reversed(parts):
            name = standard_name(part)
            if name:
                return self._find_content(part, name, word - begin)
        target = parts[-1][1].pointee() if parts else None
        return BlockType(target) if target is not None and target.name and target.size else None

    def _find_content(self, part: Type, name: str, offset: int) -> Optional[BlockType]:
        """Return the content of a block that a container or smart pointer refers to at `offset`."""
        size, element = self._memory.size, part.element()
        if element is None:
            return None
        if name in ("vector", "Vec", "VecDeque"):
            return BlockType(element, repeated=True)
        if name == "unique_ptr" or (name == "shared_ptr" and offset == 0):
            return BlockType(element)
        if name == "shared_ptr":
            # make_shared places the object after a vtable pointer and two 32-bit counters.
            return BlockType(element, begin=size + 8)
        value = self._pair(part, name) or element
        # An unordered container begins with the address of its buckets.
        return BlockType(value, begin=_NODES[name] * size, links=True, buckets=name.startswith("unordered") and offset == 0)

    def _pair(self, part: Type, name: str) -> Optional[Type]:
        """Return the type of a map's elements (pairs of key and value); None for other
        containers."""
        found = part.member(_PAIRS[name]) if name in _PAIRS else None
        return found[1].element(1) if found is not None else None
