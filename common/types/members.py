"""Names of variables' members, from debug information where there is some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from findleaks.errors import TargetError
from findleaks.target import dwarf
from findleaks.target.base import Module, Target
from findleaks.target.dwarf import Dwarf, Entry, Malformed, Unit

_BARE = (dwarf.TYPEDEF, dwarf.CONST, dwarf.VOLATILE, dwarf.RESTRICT, dwarf.ATOMIC)
_STRUCTURES = (dwarf.STRUCTURE, dwarf.CLASS, dwarf.UNION)


@dataclass(frozen=True)
class Type:
    """A type, its qualifiers and typedefs taken off."""

    unit: Unit
    entry: Entry
    alias: str = ""

    @property
    def name(self) -> str:
        """ "Profiler"; of one without a name its typedef's, or ""."""
        try:
            return self.unit.name(self.entry) or self.alias
        except (Malformed, IndexError):
            return self.alias

    @property
    def size(self) -> int:
        """In bytes; 0 where that is not told."""
        told = self.unit.number(self.entry, dwarf.AT_SIZE)
        return told or (self.unit.address if self.entry.tag in (dwarf.POINTER, dwarf.REFERENCE) else 0)

    @property
    def is_structure(self) -> bool:
        return self.entry.tag in _STRUCTURES

    def pointee(self) -> Optional[Type]:
        """What a pointer or reference points to."""
        try:
            return _below(self.unit, self.entry) if self.entry.tag in (dwarf.POINTER, dwarf.REFERENCE) else None
        except (Malformed, IndexError):
            return None

    def at(self, offset: int) -> tuple[str, Optional[Type]]:
        """The member at `offset` as an expression (".jobs.next", "[3]"; "" for the beginning of a plain type) and its type. Does not look
        into the standard library's types."""
        path = ""
        here: Optional[Type] = self
        try:
            for _ in range(dwarf.DEEPEST):
                if here is None:
                    break
                step = here._element(offset) if here.entry.tag == dwarf.ARRAY else here._member(offset)
                if step is None:
                    break
                word, offset, here = step
                path += word
                if here is not None and here.is_structure and offset == 0 and word.startswith("."):
                    break  # a structure begins here: it is what is meant
        except (Malformed, IndexError):
            pass
        return path, here

    def _member(self, offset: int) -> Optional[tuple[str, int, Optional[Type]]]:
        if not self.is_structure or (self.name.split("<")[0] in _LIBRARY):
            return None
        best: Optional[tuple[int, Entry]] = None
        for child in self.unit.children(self.entry):
            if child.tag in (dwarf.MEMBER, dwarf.INHERITANCE) and not child.attributes.keys() & {dwarf.AT_DECLARATION, dwarf.AT_EXTERNAL}:
                start = self.unit.number(child, dwarf.AT_MEMBER) or 0
                if start <= offset and (best is None or start >= best[0]):
                    best = start, child
        if best is None:
            return None
        start, child = best
        below = _below(self.unit, child)
        name = self.unit.name(child)
        return f".{name}" if child.tag == dwarf.MEMBER and name else "", offset - start, below

    def _element(self, offset: int) -> Optional[tuple[str, int, Optional[Type]]]:
        below = _below(self.unit, self.entry)
        size = below.size if below is not None else 0
        return (f"[{offset // size}]", offset % size, below) if size else None


_SETS = ("map", "set", "multimap", "multiset")
_LIBRARY = frozenset(
    (
        *_SETS,
        *(f"unordered_{name}" for name in _SETS),
        "vector",
        "list",
        "forward_list",
        "deque",
        "basic_string",
        "queue",
        "stack",
        "unique_ptr",
        "shared_ptr",
    )
)


def _below(unit: Unit, entry: Entry) -> Optional[Type]:
    """The type that an entry has, through typedefs and qualifiers."""
    alias = ""
    for _ in range(dwarf.DEEPEST):
        where = unit.reference(entry, dwarf.AT_TYPE)
        if where is None:
            return None
        found = unit if unit.start <= where < unit.end else unit.dwarf.unit(where)
        below = found.entry(where) if found is not None else None
        if found is None or below is None:
            return None
        unit, entry = found, below
        if entry.tag == dwarf.TYPEDEF:
            alias = alias or unit.name(entry)
        if entry.tag not in _BARE:
            return Type(unit, entry, alias)
    return None


class Members:
    """The types of a target's variables. Files are read when first needed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._files: dict[int, list[Dwarf]] = {}

    def variable(self, address: int) -> Optional[Type]:
        """The type of the variable that begins at `address`; None where nothing tells."""
        for module in self._target.modules():
            if module.start <= address < module.end:
                for file in self._of(module.start, module):
                    try:
                        found = file.variable(address - module.bias)
                        made = _declared(*found) if found is not None else None
                    except (Malformed, IndexError):
                        made = None
                    if made is not None:
                        return made
        return None

    def _of(self, key: int, module: Module) -> list[Dwarf]:
        if key not in self._files:
            made = []
            for data in self._target.debug_data(module):
                try:
                    made.append(Dwarf(data))
                except TargetError:
                    continue
            self._files[key] = [file for file in made if file.info]
        return self._files[key]


def _declared(unit: Unit, entry: Entry) -> Optional[Type]:
    """The type of a variable, which its declaration elsewhere may tell."""
    for _ in range(4):
        made = _below(unit, entry)
        if made is not None:
            return made
        where = unit.reference(entry, dwarf.AT_SPECIFICATION) or unit.reference(entry, dwarf.AT_ORIGIN)
        found = unit.dwarf.unit(where) if where is not None else None
        after = found.entry(where) if found is not None and where is not None else None
        if found is None or after is None:
            return None
        unit, entry = found, after
    return None
