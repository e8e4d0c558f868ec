"""Types, variables and functions of one file with debug information, as compact arrays.

A type is a number. 0 is `void`, and 1 is an unknown type (a reference that leads nowhere). A column
such as `sizes` has one element for each type; `fields_of(number)` and similar methods return rows.
All text is in `strings`: a name is the offset of a UTF-8 string that ends with a zero byte, and 0
is "". Columns are plain arrays, so that the C engine reads them without a copy."""

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
FLOAT = 4  # DW_ATE_float
# Maximum number of types that are followed from one type, because typedefs may form a cycle
MAX_LEVELS = 64


class Kind(IntEnum):
    """The kind of a type."""

    VOID = 0
    UNKNOWN = 1
    """A missing or unsupported entry of debug information."""
    BASE = 2
    """A number, character or truth value; `counts` has its encoding (DW_ATE_...)."""
    POINTER = 3
    """A pointer or reference to `targets`."""
    STRUCT = 4
    """A struct, or a class of C++, Rust and others."""
    UNION = 5
    ARRAY = 6
    """An array with `counts` elements of the type `targets`; 0 elements if the number is unknown (a
    flexible array)."""
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
    """The type is only declared. No definition, or several different ones, are known."""
    POLYMORPHIC = 2
    """The class, or a base class of it, has a pointer to a vtable."""
    TAGGED = 4
    """A type of C whose name is written with its keyword: `struct request`."""
    NAMED_BY_TYPEDEF = 8
    """The type has no name of its own, and has the name of the first typedef."""
    REFERENCE = 16
    """A pointer that is a reference (`T &` or `T &&`) of C++."""
    CLASS = 32
    """Declared with the keyword `class`."""


class FieldKind(IntEnum):
    """The kind of a row of `fields`."""

    MEMBER = 0
    """A member. It has no name if it is an anonymous struct or union."""
    BASE = 1
    """A base class."""
    DISCRIMINANT = 2
    """The member of a Rust enum that selects the variant."""
    VARIANT = 3
    """A variant of a Rust enum. It is valid if the discriminant equals `value`."""
    OTHER_VARIANT = 4
    """The variant that is valid for all other values of the discriminant."""


class PartKind(IntEnum):
    """The kind of a row of `parts`."""

    TYPE_ARGUMENT = 0
    """An argument of a template, such as T of vector<T>."""
    VALUE_ARGUMENT = 1
    """A constant argument of a template; `value` is its value."""
    TYPEDEF = 2
    """A typedef in the class, such as value_type."""
    VIRTUAL_BASE = 3
    """A virtual base class. Its offset is known only at run time."""


class Field(NamedTuple):
    """A member or base class."""

    kind: FieldKind
    name: str
    offset: int
    """Offset in bytes from the start of the type."""
    type: int
    bits: int
    """Number of bits of a bit field; 0 if the member is not a bit field."""
    first_bit: int
    """For bit fields: number of bits between the byte at `offset` and the lowest bit of the
    field."""
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
    """The name with its scopes: `Class::member`, `function::variable` (without the function's
    class)."""


class Function(NamedTuple):
    """A range of a function's code."""

    start: int
    end: int
    returns: int
    """The type of the result."""
    key: int
    """The key of the function's entry, with which its local variables are found."""


@dataclass
class TypeTable:
    """The columns. Addresses are those in the file: to look up an address of the process, subtract
    the module's bias."""

    word: int
    """Number of bytes of an address."""
    strings: bytes = b"\0"
    kinds: array[int] = field(default_factory=lambda: array("B"))
    """The Kind of each type."""
    flags: array[int] = field(default_factory=lambda: array("B"))
    """Bits of Flag."""
    names: array[int] = field(default_factory=lambda: array("I"))
    """The name with its scopes, as in the debug information; 0 for unnamed types."""
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    """Size in bytes; 0 if unknown."""
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
    """Number of bits << 8 | first bit; 0 if the member is not a bit field."""
    field_values: array[int] = field(default_factory=lambda: array("Q"))
    first_part: array[int] = field(default_factory=lambda: array("I"))
    part_kinds: array[int] = field(default_factory=lambda: array("B"))
    part_names: array[int] = field(default_factory=lambda: array("I"))
    part_types: array[int] = field(default_factory=lambda: array("I"))
    part_values: array[int] = field(default_factory=lambda: array("Q"))
    variable_addresses: array[int] = field(default_factory=lambda: array("Q"))
    """Addresses of the variables, ascending."""
    variable_types: array[int] = field(default_factory=lambda: array("I"))
    variable_names: array[int] = field(default_factory=lambda: array("I"))
    local_offsets: array[int] = field(default_factory=lambda: array("Q"))
    """Offsets of the thread-local variables, ascending."""
    local_types: array[int] = field(default_factory=lambda: array("I"))
    local_names: array[int] = field(default_factory=lambda: array("I"))
    function_starts: array[int] = field(default_factory=lambda: array("Q"))
    """Starts of the functions, ascending. A function with several ranges of code has a row for each
    range."""
    function_ends: array[int] = field(default_factory=lambda: array("Q"))
    function_types: array[int] = field(default_factory=lambda: array("I"))
    function_keys: array[int] = field(default_factory=lambda: array("Q"))
    keys: array[int] = field(default_factory=lambda: array("Q"))
    """Keys of the entries that define or use a type, ascending. A key is an offset in the
    concatenation of all sections that were read."""
    key_types: array[int] = field(default_factory=lambda: array("I"))

    @classmethod
    def of(cls, word: int, columns: Sequence[array[int]]) -> TypeTable:
        """Return a table with these columns, which are in the order in which an engine returns
        them."""
        return cls(word, columns[0].tobytes(), *columns[1:])

    def columns(self) -> list[array[int]]:
        """Return the columns of types, their fields and parts, in the order in which an engine
        takes them."""
        strings = array("B", self.strings)
        own = [self.kinds, self.flags, self.names, self.sizes, self.targets, self.counts]
        fields = [self.first_field, self.field_kinds, self.field_names, self.field_offsets, self.field_types, self.field_bits]
        parts = [self.field_values, self.first_part, self.part_kinds, self.part_names, self.part_types, self.part_values]
        return [strings, *own, *fields, *parts]

    def __len__(self) -> int:
        return len(self.kinds)

    def text(self, name: int) -> str:
        """Return a string; "" for an offset after the end."""
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
        """Return the variable that contains an address of the file. If its size is unknown, return
        the variable that begins at the address."""
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

    def size_of(self, number: int) -> int:
        """Return the size of a type in bytes; 0 if unknown."""
        return self.sizes[self.bare(number)]

    def pointee(self, number: int) -> int:
        """Return the bare type that a pointer (or a typedef of one) points to; UNKNOWN for other
        types."""
        bare = self.bare(number)
        return self.bare(self.targets[bare]) if self.kinds[bare] == Kind.POINTER else UNKNOWN

    def name(self, number: int) -> str:
        """Return the name of a type as GDB prints it, without `struct`: "request", "char *",
        "std::vector<int, std::allocator<int> >", "int [4]"."""
        return self._write_type(number, False, 0)

    def expression(self, number: int) -> str:
        """Return the name of a type as debuggers parse it: "struct request" in C."""
        return self._write_type(number, True, 0)

    def _write_type(self, number: int, tags: bool, level: int) -> str:
        """Return the text of a type in C syntax. `inner` is the inner part of the declarator so
        far, such as "*" or "(*)(void)". It grows from the outermost type to the innermost one."""
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
        """Return the text of a type that is not derived from another type."""
        kind, name = self.kinds[number], self.text(self.names[number])
        if not name:
            return _UNNAMED.get(kind, "")
        keyword = _KEYWORDS.get(kind, "") if tags and self.flags[number] & Flag.TAGGED else ""
        return keyword + shorten_template(name + self._arguments(number, name, level))

    def _arguments(self, number: int, name: str, level: int) -> str:
        """Return the template arguments. Names written by clang's -gsimple-template-names lack
        them."""
        if "<" in name or level >= 8 or self.first_part[number] == self.first_part[number + 1]:
            return ""
        given = [one for one in self.parts_of(number) if one.kind <= PartKind.VALUE_ARGUMENT]
        words = [self._write_type(one.type, False, level + 1) if one.kind == PartKind.TYPE_ARGUMENT else str(one.value) for one in given]
        return f"<{', '.join(words)}{' ' if words[-1].endswith('>') else ''}>" if words else ""

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, name in enumerate(self.names):
            if name and self.kinds[number] not in (Kind.QUALIFIED, Kind.TYPEDEF):
                found.setdefault(self.text(name), []).append(number)
        return found

    def find(self, name: str) -> Sequence[int]:
        """Return the types with this name (as in the debug information), without typedefs. There
        are several if files define different types with the same name."""
        return self._by_name.get(name, ())


_KEYWORDS: dict[int, str] = {Kind.STRUCT: "struct ", Kind.UNION: "union ", Kind.ENUM: "enum "}
_UNNAMED: dict[int, str] = {Kind.VOID: "void", Kind.STRUCT: "struct {...}", Kind.UNION: "union {...}", Kind.ENUM: "enum {...}"}
_DERIVED = (Kind.POINTER, Kind.ARRAY, Kind.FUNCTION, Kind.MEMBER_POINTER)
