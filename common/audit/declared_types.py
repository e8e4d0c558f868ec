"""Find types of blocks with debug information: the type that a pointer to a block is declared to
point to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Optional

from findleaks.debuginfo.members import Type
from findleaks.errors import UnreadableMemory
from findleaks.session import Session
from findleaks.target.ranges import region_at

DEPTH = 3  # maximum number of steps from a variable to a block
REFERRERS = 64  # blocks of one step whose types are examined
WIDEST = 1 << 16  # bytes of a referring block that are read
# Blocks of a session whose types are looked up; each takes a search of all root memory
LOOKUPS = 24
_LIBC = ("libc.", "libc-", "ld-linux", "ld-musl", "libpthread")


class DeclaredTypes:
    """Finds the declared types of blocks. A declared type is used only if a pointer of this type
    points to the block's start, and if the block is large enough for it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, Optional[Type]] = {}
        self._left = LOOKUPS

    @cached_property
    def _is_possible(self) -> bool:
        """Whether a file other than libc has debug information. Without it, a search would find
        nothing, and it takes much time in a large heap."""
        modules = self._session.target.modules()
        own = (one for one in modules if not one.path.rsplit("/", 1)[-1].startswith(_LIBC))
        return any(self._session.members.has_types(one) for one in own)

    def find(self, index: int) -> Optional[Type]:
        """Return the type of a block; None if it is unknown, or if LOOKUPS blocks were looked up
        before."""
        if index not in self._known and self._left > 0 and self._is_possible:
            self._left -= 1
            self._search(index)
        found = self._known.get(index)
        return found if found is not None and found.is_structure and found.name else None

    def _search(self, index: int) -> None:
        """Find the types of the blocks on the way from variables to this block. Variables declare
        the types of the first blocks, and the members of each block declare the types of the next
        ones."""
        levels = [[index]]
        while len(levels) < DEPTH:
            graph, last = self._session.references, [one for one in levels[-1] if one not in self._known]
            seen = {one for level in levels for one in level}
            above = dict.fromkeys(source for one in last[:REFERRERS] for source in graph.referrers(one) if source not in seen)
            levels.append(list(above)[:REFERRERS])
        wanted = {one for level in levels for one in level if one not in self._known}
        self._known.update(self._types_from_variables(wanted))
        for level in reversed(levels[:-1]):
            for one in level:
                if self._known.get(one) is None:
                    self._known[one] = next(self._types_from_blocks(one), None)

    def _types_from_variables(self, wanted: Iterable[int]) -> dict[int, Optional[Type]]:
        """Return the types of blocks that are declared by variables with a pointer to the start of
        the block."""
        session, blocks = self._session, self._session.directory.blocks
        by_start = {blocks.address(one): one for one in wanted}
        found: dict[int, Optional[Type]] = {}
        modules = session.target.modules()
        for piece in session.pieces(session.roots, "searching the roots"):
            if region_at(modules, piece.address) is None:
                continue
            for address in session.engine.search_any(piece, sorted(by_start)):
                index = by_start.get(session.target.word(address))
                symbol = session.target.symbolize(address) if index is not None else None
                whole = session.members.variable(symbol.address) if symbol is not None else None
                if index is None or whole is None or symbol is None:
                    continue
                type_ = self._pointee(whole, address - symbol.address, index)
                if type_ is not None:
                    found.setdefault(index, type_)
        return found

    def _types_from_blocks(self, index: int) -> Iterator[Type]:
        """Yield the types of a block that the types of referring blocks declare."""
        session, blocks = self._session, self._session.directory.blocks
        start, word = blocks.address(index), session.target.arch.word
        for source in session.references.referrers(index)[:REFERRERS]:
            owner = self._known.get(source)
            if owner is None or source == index:
                continue
            try:
                data = session.target.read(blocks.address(source), min(blocks.size(source), WIDEST))
            except UnreadableMemory:
                continue
            for offset in range(0, len(data) - word + 1, word):
                if int.from_bytes(data[offset : offset + word], session.target.arch.byteorder) == start:
                    type_ = self._pointee(owner, offset, index)
                    if type_ is not None:
                        yield type_

    def _pointee(self, whole: Type, offset: int, index: int) -> Optional[Type]:
        """Return the type that the pointer at this offset is declared to point to: a structure, or
        a pointer (for an array of pointers). Returns None for other types, and for a type that is
        larger than the block."""
        _, member = whole.at(offset % whole.size if whole.size else offset)
        type_ = member.pointee() if member is not None else None
        if type_ is None or not (type_.is_structure or type_.pointee() is not None):
            return None
        return type_ if 0 < type_.size <= self._session.directory.blocks.size(index) else None


def declared_types(session: Session) -> DeclaredTypes:
    """Return the session's instance, which caches its results."""
    return session.once(declared_types, lambda: DeclaredTypes(session))
