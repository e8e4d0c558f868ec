"""Find the types of variables, and the names of their members."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Optional

from findleaks.debuginfo.dwarf import DIE, DebugFile, number, text
from findleaks.debuginfo.files import DebugFiles
from findleaks.debuginfo.variables import Variables
from findleaks.target.base import Module, Target
from findleaks.value_classes import dataclass

# Maximum number of levels of typedefs and qualifiers around a type, and of nested members
MAX_LEVELS = 16

MAX_DECLARATIONS = 4
"""Maximum number of entries that are followed for one variable: its definition, the declaration
that it completes (DW_AT_specification), and the entry that it was inlined from
(DW_AT_abstract_origin)."""

_BARE = {f"DW_TAG_{word}_type" for word in ("const", "volatile", "restrict", "atomic")} | {"DW_TAG_typedef"}
_STRUCTURES = {f"DW_TAG_{word}_type" for word in ("structure", "class", "union")}
_POINTERS = {f"DW_TAG_{word}_type" for word in ("pointer", "reference", "rvalue_reference")}
_SETS = ("map", "set", "multimap", "multiset")
_OTHERS = ("vector", "list", "forward_list", "deque", "basic_string", "queue", "stack", "unique_ptr", "shared_ptr")
_LIBRARY = frozenset((*_SETS, *(f"unordered_{name}" for name in _SETS), *_OTHERS))


@dataclass(frozen=True)
class Type:
    """A type without its qualifiers and typedefs. `alias`: the name of the outermost typedef."""

    file: DebugFile
    die: DIE
    alias: str = ""

    @property
    def name(self) -> str:
        """The name of the type, such as "Profiler". For an unnamed type it is the name of its
        typedef, or ""."""
        return self.file.ask(partial(text, self.die, "DW_AT_name"), "") or self.alias

    @property
    def size(self) -> int:
        """Size in bytes; 0 if unknown."""
        return number(self.die, "DW_AT_byte_size") or (self.die.cu["address_size"] if self.die.tag in _POINTERS else 0)

    @property
    def is_structure(self) -> bool:
        return self.die.tag in _STRUCTURES

    def pointee(self) -> Optional[Type]:
        """The type that a pointer or reference points to; None for other types."""
        return _type_of(self.file, self.die) if self.die.tag in _POINTERS else None

    def member_names(self) -> set[str]:
        """The names of a structure's members, and of the members of its direct bases."""
        found: set[str] = set()
        for child in self.file.children(self.die):
            if child.tag == "DW_TAG_member":
                found.add(text(child, "DW_AT_name"))
            elif child.tag == "DW_TAG_inheritance":
                base = _type_of(self.file, child)
                below = self.file.children(base.die) if base is not None else []
                found.update(text(one, "DW_AT_name") for one in below if one.tag == "DW_TAG_member")
        return found

    def element(self, number: int = 0) -> Optional[Type]:
        """Return a type argument of a template, the first by default, such as the element type of a
        std::vector. Returns None if the template has fewer arguments."""
        arguments = (child for child in self.file.children(self.die) if child.tag == "DW_TAG_template_type_param")
        found = next(itertools.islice(arguments, number, None), None)
        return _type_of(self.file, found) if found is not None else None

    def member(self, name: str) -> Optional[tuple[int, Type]]:
        """Return the offset and the type of the structure's member with this name; None if it has
        no such member."""
        for child in self.file.children(self.die):
            start = _start(child) if child.tag == "DW_TAG_member" and text(child, "DW_AT_name") == name else None
            found = _type_of(self.file, child) if start is not None else None
            if start is not None and found is not None:
                return start, found
        return None

    def around(self, offset: int) -> Iterator[tuple[int, Type]]:
        """Yield (offset, type) of everything that contains the byte at `offset`, from the whole to
        the smallest part. The offset is that of the byte in this part. Unlike `at`, this includes
        parts of standard library types, and the content of a Rust Option that is Some."""
        here: Optional[Type] = self
        for _ in range(MAX_LEVELS):
            if here is None:
                return
            yield offset, here
            step = self.file.ask(partial(here._inside, offset), None)
            if step is None:
                return
            offset, here = step

    def _inside(self, offset: int) -> Optional[tuple[int, Optional[Type]]]:
        """Return the offset in the member or element that contains the byte at `offset`, and its
        type. Returns None if there is none, or if members overlap, as in a C++ union."""
        if self.die.tag == "DW_TAG_array_type":
            step = self._below(offset)
            return step[1:] if step is not None else None
        if self.die.tag == "DW_TAG_union_type" and not self.name.startswith("MaybeUninit<"):
            return None
        children = self.file.children(self.die)
        if self.name.startswith("Option<"):
            children = _some(self.file, children)
        found = [(start, child) for child in children if (start := _start(child)) is not None and start <= offset]
        for start, child in sorted(found, key=lambda one: -one[0]):
            inner = _type_of(self.file, child)
            # An array has no size attribute.
            if inner is not None and (offset < start + inner.size or inner.die.tag == "DW_TAG_array_type"):
                return offset - start, inner
        return None

    def at(self, offset: int) -> tuple[str, Optional[Type]]:
        """Return the member at `offset`, as an expression like ".jobs.next" or "[3]", and its type.
        The expression is "" for the start of a type without members. Members of standard library
        types are not named."""
        path = ""
        here: Optional[Type] = self
        for _ in range(MAX_LEVELS):
            step = self.file.ask(partial(here._below, offset), None) if here is not None else None
            if step is None:
                break
            word, offset, here = step
            path += word
            if here is not None and here.is_structure and offset == 0 and word.startswith("."):
                # A structure begins at the offset, and its name is better than that of its first
                # member
                break
        return path, here

    def _below(self, offset: int) -> Optional[tuple[str, int, Optional[Type]]]:
        """Return the member or element at `offset`, the offset in it, and its type."""
        if self.die.tag == "DW_TAG_array_type":
            element = _type_of(self.file, self.die)
            size = element.size if element is not None else 0
            return (f"[{offset // size}]", offset % size, element) if size else None
        if not self.is_structure or self.name.split("<")[0] in _LIBRARY:
            return None
        found = [(start, child) for child in self.file.children(self.die) if (start := _start(child)) is not None and start <= offset]
        if not found:
            return None
        # the last member that begins at or before this offset
        start, member = max(reversed(found), key=lambda one: one[0])
        name = text(member, "DW_AT_name") if member.tag == "DW_TAG_member" else ""
        return f".{name}" if name else "", offset - start, _type_of(self.file, member)


def _some(file: DebugFile, children: list[DIE]) -> list[DIE]:
    """Return the members of Some, a variant of Rust's Option. They have the same offsets in the
    Option."""
    for part in (child for child in children if child.tag == "DW_TAG_variant_part"):
        for variant in file.children(part):
            found = [child for child in file.children(variant) if text(child, "DW_AT_name") == "Some"]
            if found:
                return found
    return []


def _start(die: DIE) -> Optional[int]:
    """Return the byte offset of a member or base class in its structure. Returns None for other
    entries, for static members, and for members without a fixed offset (of a virtual base)."""
    if die.tag not in ("DW_TAG_member", "DW_TAG_inheritance") or die.attributes.keys() & {"DW_AT_declaration", "DW_AT_external"}:
        return None
    if "DW_AT_data_member_location" in die.attributes:
        return number(die, "DW_AT_data_member_location")
    return (number(die, "DW_AT_data_bit_offset") or 0) // 8


def _type_of(file: DebugFile, die: DIE) -> Optional[Type]:
    """Return an entry's type without typedefs and qualifiers. Returns None if it is missing or in
    another file."""
    alias = ""
    for _ in range(MAX_LEVELS):
        below = file.ask(partial(file.follow, die, "DW_AT_type"), None)
        if below is None:
            return None
        die = below
        if die.tag == "DW_TAG_typedef":
            alias = alias or text(die, "DW_AT_name")
        if die.tag not in _BARE:
            # If the type is in a type unit, this entry is only a declaration.
            whole = file.ask(partial(file.follow, die, "DW_AT_signature"), None)
            return Type(file, whole or die, alias)
    return None


class Members:
    """The types of a target's variables. Data that was read from a file is cached."""

    def __init__(self, target: Target, files: Optional[DebugFiles] = None) -> None:
        self._target = target
        self._files = files or DebugFiles(target)
        self._variables: dict[DebugFile, Variables] = {}

    def has_types(self, module: Module) -> bool:
        """Whether debug information of a module was found and can be read."""
        return bool(self._files.for_members(module))

    def variable(self, address: int) -> Optional[Type]:
        """Return the type of the variable that begins at `address`; None if unknown."""
        for module in self._target.modules():
            if module.start <= address < module.end:
                for file in self._files.for_members(module):
                    if file not in self._variables:
                        self._variables[file] = Variables(file)
                    made = _read_declared_type(file, self._variables[file].at(address - module.bias))
                    if made is not None:
                        return made
                    self._files.record_failure(file, module)
        return None


def _read_declared_type(file: DebugFile, die: Optional[DIE]) -> Optional[Type]:
    """Return the type of a variable, which may be in the entry of its declaration."""
    for _ in range(MAX_DECLARATIONS):
        made = _type_of(file, die) if die is not None else None
        if made is not None or die is None:
            return made
        elsewhere = "DW_AT_specification" if "DW_AT_specification" in die.attributes else "DW_AT_abstract_origin"
        die = file.ask(partial(file.follow, die, elsewhere), None)
    return None
