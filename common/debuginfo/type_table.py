"""Types, variables and functions of one file with debug information, as compact arrays.

A type is a number. 0 is `void`, 1 an unknown type (a reference that leads nowhere). A column such
as `sizes` has one element for each type; `fields_of(number)` and the like return rows. All text is
in `strings`: a name is the offset of a UTF-8 string that ends with a zero byte, and 0 is "".
Columns are plain arrays, so that the C engine reads them without a copy."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Optional

from findleaks.debuginfo.type_names import shorten_template
from findleaks.value_classes import NamedTuple, dataclass, field

VOID, UNKNOWN = 0, 1
MAX_LEVELS = 64  # most types that are followed from one type: typedefs may form a cycle


class Kind(IntEnum):
    """What a type is."""

    VOID = 0
    UNKNOWN = 1
    """No, or an unsupported, entry of debug information."""
    BASE = 2
    """A number, character or truth value; `counts` has its encoding (DW_ATE_...)."""
    POINTER = 3
    """A pointer or reference to `targets`."""
    STRUCT = 4
    """A struct, or a class of C++, Rust and others."""
    UNION = 5
    ARRAY = 6
    """`counts` elements of the type `targets`; 0 if the number is not known (a flexible array)."""
    ENUM = 7
    TYPEDEF = 8
    """Another name of `targets`."""
    QUALIFIED = 9
    """`targets` with const, volatile, restrict or _Atomic."""
    FUNCTION = 10
    """A function that returns `targets`."""
    MEMBER_POINTER = 11
    """A pointer to a member of a C++ class; never an address of a block."""


class Flag(IntEnum):
    """Bits of `flags`."""

    DECLARATION = 1
    """Declared only: no definition, or several different ones, are known."""
    POLYMORPHIC = 2
    """The class, or a base class of it, has a pointer to a vtable."""
    TAGGED = 4
    """A type of C that is written with its keyword: `struct request`."""
    NAMED_BY_TYPEDEF = 8
    """Unnamed; the name is that of the first typedef."""
    REFERENCE = 16
    """A pointer that is a reference (`T &` or `T &&`) of C++."""
    CLASS = 32
    """Declared with the keyword `class`."""


class FieldKind(IntEnum):
    """What a row of `fields` is."""

    MEMBER = 0
    """A member; without a name if it is an anonymous struct or union."""
    BASE = 1
    """A base class."""
    DISCRIMINANT = 2
    """The member of a Rust enum that selects the variant."""
    VARIANT = 3
    """A variant of a Rust enum: valid if the discriminant equals `value`."""
    OTHER_VARIANT = 4
    """The variant that is valid for all other values."""


class PartKind(IntEnum):
    """What a row of `parts` is."""

    TYPE_ARGUMENT = 0
    """An argument of a template, such as T of vector<T>."""
    VALUE_ARGUMENT = 1
    """A constant argument of a template; `value` is its value."""
    TYPEDEF = 2
    """A typedef in the class, such as value_type."""
    VIRTUAL_BASE = 3
    """A virtual base class; its offset is known at run time only."""


class Field(NamedTuple):
    """A member or base class."""

    kind: FieldKind
    name: str
    offset: int
    """Bytes from the start of the type."""
    type: int
    bits: int
    """Bits of a bit field; 0: not a bit field."""
    first_bit: int
    """For bit fields: bits between the byte at `offset` and the lowest bit of the field."""
    value: int
    """For variants: the value of the discriminant, as an unsigned number of 64 bits."""


class Part(NamedTuple):
    """A template argument, an inner typedef or a virtual base class."""

    kind: PartKind
    name: str
    type: int
    value: int


class Variable(NamedTuple):
    """A global, static or thread-local variable."""

    address: int
    """Address in the file, or offset in the module's thread-local block."""
    type: int
    name: str
    """With its scopes: `Class::member`, `function::variable` (without the function's class)."""


class Function(NamedTuple):
    """A range of a function's code."""

    start: int
    end: int
    returns: int
    """Type of the result."""
    key: int
    """Key of its entry, for the local variables."""


@dataclass
class TypeTable:
    """The columns. Addresses are those of the file: subtract a module's bias from the process's."""

    word: int
    """Bytes of an address."""
    strings: bytes = b"\0"
    kinds: array[int] = field(default_factory=lambda: array("B"))
    """Kind of each type."""
    flags: array[int] = field(default_factory=lambda: array("B"))
    """Bits of Flag."""
    names: array[int] = field(default_factory=lambda: array("I"))
    """Name with its scopes, as in the debug information; 0 for unnamed types."""
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    """Bytes; 0 if unknown."""
    targets: array[int] = field(default_factory=lambda: array("I"))
    counts: array[int] = field(default_factory=lambda: array("Q"))
    first_field: array[int] = field(default_factory=lambda: array("I"))
    """The fields of type t are the rows first_field[t] to first_field[t + 1] - 1, in the order of
    the source."""
    field_kinds: array[int] = field(default_factory=lambda: array("B"))
    field_names: array[int] = field(default_factory=lambda: array("I"))
    field_offsets: array[int] = field(default_factory=lambda: array("Q"))
    field_types: array[int] = field(default_factory=lambda: array("I"))
    field_bits: array[int] = field(default_factory=lambda: array("I"))
    """Number of bits << 8 | first bit; 0: not a bit field."""
    field_values: array[int] = field(default_factory=lambda: array("Q"))
    first_part: array[int] = field(default_factory=lambda: array("I"))
    part_kinds: array[int] = field(default_factory=lambda: array("B"))
    part_names: array[int] = field(default_factory=lambda: array("I"))
    part_types: array[int] = field(default_factory=lambda: array("I"))
    part_values: array[int] = field(default_factory=lambda: array("Q"))
    variable_addresses: array[int] = field(default_factory=lambda: array("Q"))
    """Ascending."""
    variable_types: array[int] = field(default_factory=lambda: array("I"))
    variable_names: array[int] = field(default_factory=lambda: array("I"))
    local_offsets: array[int] = field(default_factory=lambda: array("Q"))
    """Of thread-local variables, ascending."""
    local_types: array[int] = field(default_factory=lambda: array("I"))
    local_names: array[int] = field(default_factory=lambda: array("I"))
    function_starts: array[int] = field(default_factory=lambda: array("Q"))
    """Ascending; a function with several ranges of code has a row for each."""
    function_ends: array[int] = field(default_factory=lambda: array("Q"))
    function_types: array[int] = field(default_factory=lambda: array("I"))
    function_keys: array[int] = field(default_factory=lambda: array("Q"))
    keys: array[int] = field(default_factory=lambda: array("Q"))
    """Keys of the entries that define or use a type, ascending: offsets in the concatenation of all
    sections that were read."""
    key_types: array[int] = field(default_factory=lambda: array("I"))

    @classmethod
    def of(cls, word: int, columns: Sequence[array[int]]) -> TypeTable:
        """Return the table with these columns, as an engine returns them."""
        return cls(word, columns[0].tobytes(), *columns[1:])

    def columns(self) -> list[array[int]]:
        """Return the columns of types, their fields and parts, as an engine takes them."""
        strings = array("B", self.strings)
        own = [self.kinds, self.flags, self.names, self.sizes, self.targets, self.counts]
        fields = [self.first_field, self.field_kinds, self.field_names, self.field_offsets, self.field_types, self.field_bits]
        parts = [self.field_values, self.first_part, self.part_kinds, self.part_names, self.part_types, self.part_values]
        return [strings, *own, *fields, *parts]

    def __len__(self) -> int:
        return len(self.kinds)

    def text(self, name: int) -> str:
        """Return a string; "" beyond the end."""
        end = self.strings.find(b"\0", name)
        return self.strings[name:end].decode("utf-8", "replace") if end >= 0 else ""

    def fields_of(self, number: int) -> Sequence[Field]:
        """Return the fields of a struct or union; () for other types."""
        return [self._field(row) for row in range(self.first_field[number], self.first_field[number + 1])]

    def _field(self, row: int) -> Field:
        bits = self.field_bits[row]
        kind, name = FieldKind(self.field_kinds[row]), self.text(self.field_names[row])
        return Field(kind, name, self.field_offsets[row], self.field_types[row], bits >> 8, bits & 255, self.field_values[row])

    def parts_of(self, number: int) -> Sequence[Part]:
        """Return template arguments, inner typedefs and virtual bases of a class."""
        rows = range(self.first_part[number], self.first_part[number + 1])
        kinds, names = self.part_kinds, self.part_names
        return [Part(PartKind(kinds[row]), self.text(names[row]), self.part_types[row], self.part_values[row]) for row in rows]

    def part(self, number: int, name: str, kind: PartKind = PartKind.TYPEDEF) -> int:
        """Return the type of an inner typedef or template argument, such as value_type; UNKNOWN if
        the class has none."""
        return next((one.type for one in self.parts_of(number) if one.kind == kind and one.name == name), UNKNOWN)

    def variable_at(self, address: int) -> Optional[Variable]:
        """Return the variable that contains an address of the file, or begins at it if its size is
        not known."""
        row = bisect_right(self.variable_addresses, address) - 1
        if row < 0 or address >= self.variable_addresses[row] + max(self.sizes[self.variable_types[row]], 1):
            return None
        return self._variable(row)

    def _variable(self, row: int) -> Variable:
        return Variable(self.variable_addresses[row], self.variable_types[row], self.text(self.variable_names[row]))

    def variables(self) -> Iterator[Variable]:
        """Yield the global and static variables by ascending address."""
        return map(self._variable, range(len(self.variable_addresses)))

    def thread_locals(self) -> Iterator[Variable]:
        """Yield the thread-local variables by ascending offset in the module's block."""
        columns = zip(self.local_offsets, self.local_types, self.local_names)
        return (Variable(offset, kind, self.text(name)) for offset, kind, name in columns)

    def function_at(self, address: int) -> Optional[Function]:
        """Return the function whose code contains an address of the file."""
        row = bisect_right(self.function_starts, address) - 1
        if row < 0 or address >= self.function_ends[row]:
            return None
        return Function(self.function_starts[row], self.function_ends[row], self.function_types[row], self.function_keys[row])

    def type_of_key(self, key: int) -> int:
        """Return the type that an entry of debug information defines; UNKNOWN if none."""
        row = bisect_left(self.keys, key)
        return self.key_types[row] if row < len(self.keys) and self.keys[row] == key else UNKNOWN

    def bare(self, number: int) -> int:
        """Return a type without its typedefs and qualifiers; UNKNOWN for a cycle of them."""
        for _ in range(MAX_LEVELS):
            if self.kinds[number] not in (Kind.TYPEDEF, Kind.QUALIFIED):
                return number
            number = self.targets[number]
        return UNKNOWN

    def pointee(self, number: int) -> int:
        """Return the bare type that a pointer (or a typedef of one) points to; UNKNOWN for other
        types."""
        bare = self.bare(number)
        return self.bare(self.targets[bare]) if self.kinds[bare] == Kind.POINTER else UNKNOWN

    def name(self, number: int) -> str:
        """Return the name of a type as GDB prints it, without `struct`: "request", "char *",
        "std::vector<int, std::allocator<int> >", "int [4]"."""
        return self._written(number, False, 0)

    def expression(self, number: int) -> str:
        """Return a type as debuggers parse it: "struct request" in C."""
        return self._written(number, True, 0)

    def _written(self, number: int, tags: bool, level: int) -> str:
        """Write the type around the `inner` part of its declarator, which grows from the outermost
        type to the innermost one, as in C: "*", "(*)(void)"."""
        inner, words = "", []
        for _ in range(MAX_LEVELS):
            kind, name, target = self.kinds[number], self.text(self.names[number]), self.targets[number]
            if kind == Kind.QUALIFIED:
                if self.kinds[target] == Kind.POINTER:
                    inner = f"{name} {inner}" if inner else name
                elif name not in words:
                    words.append(name)
            elif name or kind not in _DERIVED:
                break
            elif kind == Kind.ARRAY:
                inner += f"[{self.counts[number] or ''}]"
            elif kind == Kind.FUNCTION:
                inner += "(void)"
            else:
                inner = ("&" if self.flags[number] & Flag.REFERENCE else "*") + inner
                if self.kinds[target] in (Kind.ARRAY, Kind.FUNCTION):
                    inner = f"({inner})"
            number = target
        return " ".join(filter(None, (*words, self._plain(number, tags, level), inner)))

    def _plain(self, number: int, tags: bool, level: int) -> str:
        """Write a type that is not derived from another one."""
        kind, name = self.kinds[number], self.text(self.names[number])
        if not name:
            return _UNNAMED.get(kind, "")
        keyword = _KEYWORDS.get(kind, "") if tags and self.flags[number] & Flag.TAGGED else ""
        return keyword + shorten_template(name + self._arguments(number, name, level))

    def _arguments(self, number: int, name: str, level: int) -> str:
        """Return the template arguments that clang's -gsimple-template-names omits from names."""
        if "<" in name or level >= 8 or self.first_part[number] == self.first_part[number + 1]:
            return ""
        given = [one for one in self.parts_of(number) if one.kind <= PartKind.VALUE_ARGUMENT]
        words = [self._written(one.type, False, level + 1) if one.kind == PartKind.TYPE_ARGUMENT else str(one.value) for one in given]
        return f"<{', '.join(words)}{' ' if words[-1].endswith('>') else ''}>" if words else ""

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, name in enumerate(self.names):
            if name and self.kinds[number] not in (Kind.QUALIFIED, Kind.TYPEDEF):
                found.setdefault(self.text(name), []).append(number)
        return found

    def find(self, name: str) -> Sequence[int]:
        """Return the types of this name (as in the debug information), without typedefs; several if
        files define different ones."""
        return self._by_name.get(name, ())


_KEYWORDS: dict[int, str] = {Kind.STRUCT: "struct ", Kind.UNION: "union ", Kind.ENUM: "enum "}
_UNNAMED: dict[int, str] = {Kind.VOID: "void", Kind.STRUCT: "struct {...}", Kind.UNION: "union {...}", Kind.ENUM: "enum {...}"}
_DERIVED = (Kind.POINTER, Kind.ARRAY, Kind.FUNCTION, Kind.MEMBER_POINTER)
