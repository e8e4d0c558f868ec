"""Read types with pyelftools, entry by entry, without merging equal ones: slow, simple, and
independent of the fast reader, for whose tests it is the reference."""

from __future__ import annotations

from typing import Any, Optional

from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.ranges import BaseAddressEntry
from elftools.elf.elffile import ELFFile

from findleaks.debuginfo.type_table import UNKNOWN, VOID, FieldKind, Flag, Kind, PartKind, TypeTable

_KINDS = {
    "base_type": Kind.BASE,
    "unspecified_type": Kind.VOID,
    "pointer_type": Kind.POINTER,
    "reference_type": Kind.POINTER,
    "rvalue_reference_type": Kind.POINTER,
    "structure_type": Kind.STRUCT,
    "class_type": Kind.STRUCT,
    "interface_type": Kind.STRUCT,
    "union_type": Kind.UNION,
    "array_type": Kind.ARRAY,
    "enumeration_type": Kind.ENUM,
    "typedef": Kind.TYPEDEF,
    "const_type": Kind.QUALIFIED,
    "volatile_type": Kind.QUALIFIED,
    "restrict_type": Kind.QUALIFIED,
    "atomic_type": Kind.QUALIFIED,
    "subroutine_type": Kind.FUNCTION,
    "ptr_to_member_type": Kind.MEMBER_POINTER,
}
_QUALIFIERS = {"const_type": "const", "volatile_type": "volatile", "restrict_type": "restrict", "atomic_type": "_Atomic"}
_C = (0x01, 0x02, 0x0C, 0x1D, 0x2C)
_AGGREGATES = (Kind.STRUCT, Kind.UNION, Kind.ENUM)
_SCOPES = ("namespace", "structure_type", "class_type", "union_type", "interface_type", "module")
DIE = Any


def read_types_slowly(path: str) -> TypeTable:
    """Return the types of the file at `path`. Raises exceptions of pyelftools for damaged files."""
    with open(path, "rb") as file:
        elf = ELFFile(file)
        return _Reader(elf.get_dwarf_info(follow_links=False), elf.elfclass // 8, elf.little_endian).table


class _Reader:
    def __init__(self, info: Any, word: int, little: bool) -> None:
        self._info, self._little = info, little
        self._texts: dict[str, int] = {"": 0}
        self._strings = bytearray(b"\0")
        self.table = TypeTable(word)
        self._numbers: dict[int, int] = {}  # by offset of the entry
        self._entries: list[Optional[DIE]] = []
        self._add(Kind.VOID, None)
        self._add(Kind.UNKNOWN, None)
        units = [*info.iter_CUs(), *(info.iter_TUs() if hasattr(info, "iter_TUs") else ())]
        entries = [die for unit in units for die in unit.iter_DIEs() if die.tag is not None]
        for die in entries:
            self._number(die)
        self._name_typedefs()
        self._definitions = self._find_definitions()
        for number, entry in enumerate(self._entries):
            self._read(number, entry)
        self._resolve_declarations()
        self._read_addresses(entries)
        self.table.strings = bytes(self._strings)
        self.table.keys.extend(sorted(self._numbers))
        self.table.key_types.extend(self._numbers[key] for key in self.table.keys)

    def _text(self, text: str) -> int:
        if text not in self._texts:
            self._texts[text] = len(self._strings)
            self._strings += text.encode() + b"\0"
        return self._texts[text]

    def _add(self, kind: Kind, die: Optional[DIE]) -> int:
        table = self.table
        self._entries.append(die)
        table.kinds.append(kind)
        for column in (table.flags, table.names, table.sizes, table.targets, table.counts):
            column.append(0)
        return len(table.kinds) - 1

    def _number(self, die: DIE) -> None:
        word = _word(die)
        if word == "unspecified_type":
            self._numbers[die.offset] = VOID
        elif word in _KINDS:
            self._numbers[die.offset] = self._add(_KINDS[word], die)
        if word == "array_type":  # an array for each further dimension
            for bound in list(_bounds(die))[1:]:
                self._numbers[bound.offset] = self._add(Kind.ARRAY, bound)

    def _name_typedefs(self) -> None:
        for die in self._entries:
            if die is not None and _word(die) == "typedef":
                target = self._target(die)
                entry = self._entries[target]
                if self.table.kinds[target] in _AGGREGATES and entry is not None and not _qualified(entry) and not self.table.names[target]:
                    self.table.names[target] = self._text(_qualified(die))
                    self.table.flags[target] |= Flag.NAMED_BY_TYPEDEF

    def _find_definitions(self) -> dict[tuple[int, str], list[int]]:
        found: dict[tuple[int, str], list[int]] = {}
        for number, die in enumerate(self._entries):
            if die is not None and self.table.kinds[number] in _AGGREGATES and not _has(die, "declaration") and _qualified(die):
                found.setdefault((self.table.kinds[number], _qualified(die)), []).append(number)
        return found

    def _target(self, die: DIE, attribute: str = "type") -> int:
        if not _has(die, attribute):
            return VOID
        found = die.get_DIE_from_attribute(f"DW_AT_{attribute}")
        return self._numbers.get(found.offset, UNKNOWN)

    def _read(self, number: int, die: Optional[DIE]) -> None:
        table = self.table
        table.first_field.append(len(table.field_kinds))
        table.first_part.append(len(table.part_kinds))
        if die is not None:
            self._read_entry(number, die)
        if number == len(self._entries) - 1:
            table.first_field.append(len(table.field_kinds))
            table.first_part.append(len(table.part_kinds))

    def _read_entry(self, number: int, die: DIE) -> None:
        table, kind, word = self.table, self.table.kinds[number], _word(die)
        if kind == Kind.ARRAY:
            self._read_array(number, die)
            return
        table.names[number] = table.names[number] or self._text(_QUALIFIERS.get(word) or _qualified(die))
        table.sizes[number] = _value(die, "byte_size") or (table.word if kind == Kind.POINTER else 0)
        table.targets[number] = self._target(die)
        table.counts[number] = (_value(die, "encoding") or 0) if kind == Kind.BASE else 0
        c = _value(die.cu.get_top_DIE(), "language") in _C
        flags = (Flag.DECLARATION, _has(die, "declaration")), (Flag.REFERENCE, "reference" in word), (Flag.CLASS, word == "class_type")
        named = table.flags[number] & Flag.NAMED_BY_TYPEDEF
        for flag, isset in (
            *flags,
            (Flag.TAGGED, kind in _AGGREGATES and c and not named),
            (Flag.POLYMORPHIC, kind in _AGGREGATES and _has(die, "containing_type")),
        ):
            table.flags[number] |= flag if isset else 0
        if kind in (Kind.STRUCT, Kind.UNION):
            for child in die.iter_children():
                self._read_child(number, child)

    def _read_array(self, number: int, die: DIE) -> None:
        parent = die if _word(die) == "array_type" else die.get_parent()
        bounds = list(_bounds(parent))
        at = 0 if parent is die else [one.offset for one in bounds].index(die.offset)
        self.table.targets[number] = self._numbers[bounds[at + 1].offset] if at + 1 < len(bounds) else self._target(parent)
        self.table.counts[number] = _elements(bounds[at]) if bounds else 0

    def _read_child(self, number: int, child: DIE) -> None:
        word, name = _word(child), _name(child)
        if word == "member" and not _has(child, "declaration") and not _has(child, "external"):
            if name.startswith("_vptr"):
                self.table.flags[number] |= Flag.POLYMORPHIC
            self._field(FieldKind.MEMBER, child)
        elif word == "inheritance":
            if _has(child, "virtuality") and _value(child, "virtuality"):
                self._part(PartKind.VIRTUAL_BASE, child)
            else:
                self._field(FieldKind.BASE, child)
        elif word == "template_type_param":
            self._part(PartKind.TYPE_ARGUMENT, child)
        elif word == "template_value_param":
            self._part(PartKind.VALUE_ARGUMENT, child)
        elif word == "typedef":
            self._part(PartKind.TYPEDEF, child)
        elif word == "variant_part":
            self._variants(child)

    def _variants(self, part: DIE) -> None:
        for child in part.iter_children():
            if _word(child) == "member":
                self._field(FieldKind.DISCRIMINANT, child)
            elif _word(child) == "variant":
                value = _value(child, "discr_value")
                for member in child.iter_children():
                    if _word(member) == "member":
                        self._field(FieldKind.OTHER_VARIANT if value is None else FieldKind.VARIANT, member, value or 0)

    def _field(self, kind: FieldKind, die: DIE, value: int = 0) -> None:
        table = self.table
        offset, bits = self._place(die)
        table.field_kinds.append(kind)
        table.field_names.append(self._text(_name(die) if kind != FieldKind.BASE else ""))
        table.field_offsets.append(offset)
        table.field_types.append(self._target(die))
        table.field_bits.append(bits)
        table.field_values.append(value % (1 << 64))

    def _place(self, die: DIE) -> tuple[int, int]:
        """Return the offset of a member, and its bits."""
        offset, size = _offset(die), _value(die, "bit_size")
        if size is None:
            return offset, 0
        first = _value(die, "data_bit_offset")
        if first is None:
            storage = _value(die, "byte_size") or self._bytes(self._target(die))
            at = _value(die, "bit_offset") or 0
            first = 8 * offset + (8 * storage - at - size if self._little else at)
        return first // 8, size << 8 | first % 8

    def _bytes(self, number: int) -> int:
        die = self._entries[number]
        if die is None:
            return 0
        return _value(die, "byte_size") or (self._bytes(self._target(die)) if _word(die) in ("typedef", *_QUALIFIERS) else 0)

    def _part(self, kind: PartKind, die: DIE) -> None:
        table = self.table
        table.part_kinds.append(kind)
        table.part_names.append(self._text(_name(die)))
        table.part_types.append(self._numbers[die.offset] if kind == PartKind.TYPEDEF else self._target(die))
        table.part_values.append((_value(die, "const_value") or 0) % (1 << 64))

    def _resolve_declarations(self) -> None:
        """Replace each declaration by the definition with its name, and compute sizes and flags that
        depend on other types."""
        table = self.table
        instead = {}
        for number, die in enumerate(self._entries):
            if die is None or not table.flags[number] & Flag.DECLARATION:
                continue
            key = (table.kinds[number], _qualified(die))
            if "DW_AT_signature" in die.attributes:
                instead[number] = self._target(die, "signature")
            elif self._same(self._definitions.get(key, [])):
                instead[number] = self._definitions[key][0]
        for column in (table.targets, table.field_types, table.part_types):
            for row, number in enumerate(column):
                column[row] = instead.get(number, number)
        self._numbers = {key: instead.get(number, number) for key, number in self._numbers.items()}
        for number in range(len(table)):
            self._size(number, 0)
        for _ in range(8):
            for number in range(len(table)):
                for one in table.fields_of(number):
                    if one.kind == FieldKind.BASE:
                        table.flags[number] |= table.flags[one.type] & Flag.POLYMORPHIC

    def _same(self, numbers: list[int]) -> bool:
        """Whether all these definitions have equal members."""
        shapes = {(self.table.sizes[one], *(field[:3] for field in self.table.fields_of(one))) for one in numbers}
        return len(shapes) == 1

    def _size(self, number: int, level: int) -> int:
        table = self.table
        kind = table.kinds[number]
        if not table.sizes[number] and level < 32:
            if kind in (Kind.TYPEDEF, Kind.QUALIFIED):
                table.sizes[number] = self._size(table.targets[number], level + 1)
            elif kind == Kind.ARRAY:
                table.sizes[number] = table.counts[number] * self._size(table.targets[number], level + 1)
        return table.sizes[number]

    def _read_addresses(self, entries: list[DIE]) -> None:
        table, variables, locals_, functions = self.table, set(), set(), set()
        for die in entries:
            if _word(die) == "variable" and "DW_AT_location" in die.attributes:
                place = self._address(die)
                if place is not None:
                    thread, address = place
                    row = (address, self._declared(die), self._text(_variable_name(die)))
                    (locals_ if thread else variables).add(row)
            elif _word(die) == "subprogram":
                functions.update((low, high, self._declared(die), die.offset) for low, high in self._ranges(die))
        for rows, columns in (
            (variables, (table.variable_addresses, table.variable_types, table.variable_names)),
            (locals_, (table.local_offsets, table.local_types, table.local_names)),
            (functions, (table.function_starts, table.function_ends, table.function_types, table.function_keys)),
        ):
            last = None
            for row in sorted(rows):
                if row[0] == last:
                    continue  # the variable of a template has an entry in each unit
                last = row[0]
                for column, value in zip(columns, row):
                    column.append(value)

    def _declared(self, die: DIE) -> int:
        return next((self._target(one) for one in _origins(die) if _has(one, "type")), VOID)

    def _address(self, die: DIE) -> Optional[tuple[bool, int]]:
        attribute = die.attributes["DW_AT_location"]
        if not isinstance(attribute.value, list):
            return None
        found = DWARFExprParser(die.cu.structs).parse_expr(attribute.value)
        names = [one.op_name for one in found]
        if names == ["DW_OP_addr"]:
            return False, found[0].args[0]
        if names in (["DW_OP_addrx"], ["DW_OP_GNU_addr_index"]):
            return False, self._info.get_addr(die.cu, found[0].args[0])
        if len(names) == 2 and names[1] in ("DW_OP_GNU_push_tls_address", "DW_OP_form_tls_address"):
            return (True, found[0].args[0]) if names[0] in ("DW_OP_const4u", "DW_OP_const8u") else None
        return None

    def _ranges(self, die: DIE) -> list[tuple[int, int]]:
        low, high = die.attributes.get("DW_AT_low_pc"), die.attributes.get("DW_AT_high_pc")
        if low is not None and high is not None:
            pairs = [(low.value, high.value if high.form == "DW_FORM_addr" else low.value + high.value)]
        elif "DW_AT_ranges" in die.attributes:
            top = die.cu.get_top_DIE().attributes
            base = top["DW_AT_low_pc"].value if "DW_AT_low_pc" in top else 0
            pairs = []
            for one in self._info.range_lists().get_range_list_at_offset(die.attributes["DW_AT_ranges"].value, die.cu):
                if isinstance(one, BaseAddressEntry):
                    base = one.base_address
                else:
                    start = 0 if one.is_absolute else base
                    pairs.append((start + one.begin_offset, start + one.end_offset))
        else:
            return []
        return [(start, end) for start, end in pairs if 0 < start < end]


def _word(die: DIE) -> str:
    return str(die.tag)[len("DW_TAG_") :]


def _has(die: DIE, attribute: str) -> bool:
    return f"DW_AT_{attribute}" in die.attributes


def _value(die: DIE, attribute: str) -> Optional[int]:
    found = die.attributes.get(f"DW_AT_{attribute}")
    return found.value if found is not None and isinstance(found.value, int) else None


def _name(die: DIE) -> str:
    found = die.attributes.get("DW_AT_name")
    return found.value.decode("utf-8", "replace") if found is not None and isinstance(found.value, bytes) else ""


def _origins(die: DIE) -> list[DIE]:
    """Return an entry, and the declarations that it completes."""
    found = [die]
    for _ in range(4):
        attribute = next((one for one in ("specification", "abstract_origin") if _has(found[-1], one)), None)
        if attribute is None:
            break
        found.append(found[-1].get_DIE_from_attribute(f"DW_AT_{attribute}"))
    return found


def _scope(die: DIE, functions: bool) -> str:
    words = []
    above = die.get_parent()
    while above is not None:
        word = _word(above)
        if word == "subprogram":
            if functions:
                words += [next((_name(one) for one in _origins(above) if _name(one)), "")]
            break
        if word in _SCOPES:
            nameless = word == "namespace" and not _has(above, "abstract_origin")
            words.append(_name(above) or ("(anonymous namespace)" if nameless else ""))
        above = above.get_parent()
    return "::".join(one for one in reversed(words) if one)


def _qualified(die: DIE) -> str:
    name = _name(die)
    if not name and _has(die, "specification"):
        return _qualified(die.get_DIE_from_attribute("DW_AT_specification"))
    scope = _scope(die, False) if name and _value(die.cu.get_top_DIE(), "language") not in _C else ""
    return f"{scope}::{name}" if scope else name


def _variable_name(die: DIE) -> str:
    origins = _origins(die)
    name = next((_name(one) for one in origins if _name(one)), "")
    scope = next((found for one in reversed(origins) if (found := _scope(one, True))), "")
    return f"{scope}::{name}" if scope and name else name


def _bounds(array: DIE) -> list[DIE]:
    return [one for one in array.iter_children() if _word(one) == "subrange_type"]


def _elements(bound: DIE) -> int:
    count, upper = _value(bound, "count"), _value(bound, "upper_bound")
    if count is not None:
        return count if count < 1 << 62 else 0
    found = (upper - (_value(bound, "lower_bound") or 0) + 1) % (1 << 64) if upper is not None else 0
    return found if found < 1 << 62 and found != 1 << 32 else 0


def _offset(die: DIE) -> int:
    found = die.attributes.get("DW_AT_data_member_location")
    if found is None:
        return 0
    if isinstance(found.value, int):
        return int(found.value)
    parsed = DWARFExprParser(die.cu.structs).parse_expr(found.value)
    return parsed[0].args[0] if len(parsed) == 1 and parsed[0].op_name == "DW_OP_plus_uconst" else 0
