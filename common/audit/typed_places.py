"""Name places in memory whose type is known, and list the members of typed blocks with their
values."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.audit.block_contents import find_hint, is_text
from findleaks.audit.block_type import find_block_type
from findleaks.audit.leak_groups import kind_word
from findleaks.audit.owner import Owner
from findleaks.engine.terms import State
from findleaks.errors import UnreadableMemory
from findleaks.escaping import visible
from findleaks.formatting import shorten
from findleaks.results.addresses import Member
from findleaks.session import Session
from findleaks.session.known_types import known_types, type_table
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.types.known import KnownTypes, TypedPlace
    from findleaks.types.pool_objects import PoolObject
    from findleaks.types.specs import Spec

MOST_MEMBERS = 200  # Maximum number of members that are listed for one block.
MOST_ELEMENTS = 8  # Maximum number of elements of an array whose members are listed.
LONGEST_TYPE = 80  # Maximum number of characters of a variable's type.
TEXT = 64  # Maximum number of bytes that are shown of an array of characters.
DEEPEST = 4  # Levels of nested structs whose members are listed one by one.
_FLOAT, _BOOL, _SIGNED, _CHARACTERS = 4, 2, (5, 6, 13), (6, 8, 16)  # DW_ATE_ codes.
_TAGS = ("struct ", "union ", "enum ")


def name_template(session: Session, owner: Owner) -> str:
    """Return the type of a variable if it is an instance of a C++ template, such as a container;
    otherwise ""."""
    start = owner.ranges[0].start if owner.is_variable and len(owner.ranges) == 1 else 0
    type_ = session.members.variable(start) if start else None
    return shorten(type_.name, LONGEST_TYPE) if type_ is not None and type_.is_structure and "<" in type_.name else ""


class _Leaf(NamedTuple):
    """A member that is listed: its offset in the block, its name and its type."""

    offset: int
    name: str
    type: int
    bits: int = 0
    first_bit: int = 0


def bare_name(name: str) -> str:
    """Return the name of a type without its keyword: "client" for "struct client"."""
    return next((name[len(tag) :] for tag in _TAGS if name.startswith(tag)), name)


def name_place(name: str, path: str) -> str:
    """Return a place in a block as an expression: "client.next"; "record[3].name" for a block of
    type "struct record[6143]"."""
    plain = bare_name(name)
    return f"{plain.rpartition('[')[0] if path.startswith('[') and plain.endswith(']') else plain}{path}"


def field_at(session: Session, address: int) -> str:
    """Return the member that contains an address, as an expression such as "server.jobs.next" or
    "job.link.next"; "" if it is unknown."""
    index = session.directory.blocks.find(address)
    if index >= 0:
        name = name_in_pool(session, address)
        if name:
            return name
        path = block_field(session, index, address - session.directory.blocks.address(index))
        return name_place(find_block_type(session, index), path) if path else ""
    known, table = known_types(session), type_table(session)
    found = table.variable_at(address) if known is not None and table is not None else None
    if found is None or known is None:
        return ""
    return f"{found.name}{known.place_in(found.type, address - found.address).text}"


def find_pool_object(session: Session, address: int) -> Optional[PoolObject]:
    """Return the object in a pool that contains an address; None if it is unknown."""
    known = known_types(session)
    return known.objects.at(address) if known is not None and known.objects else None


def name_in_pool(session: Session, address: int) -> str:
    """Return the place of an address in an object of a pool: "struct ngx_http_request_s" at its
    start, "ngx_http_request_s.pool" elsewhere; "" if it is unknown."""
    known, found = known_types(session), find_pool_object(session, address)
    if known is None or found is None:
        return ""
    name, place = known.object_name(found), known.place_in_object(found, address)
    return name_place(name, place.text) if address != found.address else name


def place_at(session: Session, address: int) -> Optional[TypedPlace]:
    """Return the member or variable at an address of typed memory; None if it is unknown."""
    index, known, table = session.directory.blocks.find(address), known_types(session), type_table(session)
    if known is None or table is None:
        return None
    if index >= 0:
        found_object = known.objects.at(address)
        if found_object is not None:
            return known.place_in_object(found_object, address)
        return known.place(index, address - session.directory.blocks.address(index))
    found = table.variable_at(address)
    return known.place_in(found.type, address - found.address) if found is not None else None


def block_field(session: Session, index: int, offset: int) -> str:
    """Return the member at an offset in a block: ".link.next", "[3].name"; "" if it is unknown."""
    known = known_types(session)
    found = find_pool_object(session, session.directory.blocks.address(index) + offset) if known is not None else None
    if known is not None and found is not None:
        start = found.address - session.directory.blocks.address(index)
        inner = known.place_in_object(found, session.directory.blocks.address(index) + offset)
        return f"[+{start} {known.object_name(found)}]{inner.text}"
    place = known.place(index, offset) if known is not None else None
    return place.text if place is not None and place.path else ""


def list_members(session: Session, index: int, address: Optional[int] = None) -> list[Member]:
    """Return the members of a block whose type is known from debug information, with their values.
    In a block of a pool, these are the members of the object at `address`."""
    known = known_types(session)
    within = find_pool_object(session, address) if address is not None else None
    if known is not None and within is not None:
        return _list_object(session, known, index, within)
    spec = known.spec(index) if known is not None else None
    if known is None or spec is None:
        return []
    header = known.header(index)
    start, size = session.directory.blocks.address(index) + header, session.directory.blocks.size(index) - header
    text = find_characters(session, index)
    if text:
        return [Member(header, "[0]", known.table.expression(spec.type), text, None)]
    leaves: list[_Leaf] = []
    if spec.parts and not spec.many:
        _collect_parts(known, spec, size, leaves)
    else:
        _collect_elements(known, spec.type, spec.many, size, leaves)
    return _describe_members(session, known, leaves, start, header)


def _list_object(session: Session, known: KnownTypes, index: int, one: PoolObject) -> list[Member]:
    """Return the members of an object in a pool. Offsets are those in the block."""
    leaves: list[_Leaf] = []
    _collect_elements(known, one.type, one.many, one.size, leaves)
    return _describe_members(session, known, leaves, one.address, one.address - session.directory.blocks.address(index))


def _collect_elements(known: KnownTypes, number: int, many: bool, size: int, leaves: list[_Leaf]) -> None:
    """Add the members of a value of a type, or of the elements of an array of `size` bytes."""
    own = known.size_of(number)
    for element in range(min(size // own, MOST_ELEMENTS) if many and own else 1):
        _collect(known, number, element * own, f"[{element}]" if many else "", size, leaves, 0)


def _describe_members(session: Session, known: KnownTypes, leaves: Sequence[_Leaf], start: int, offset: int) -> list[Member]:
    """Return members with their values. They are relative to the address `start`, which is at
    `offset` in the block."""
    found = []
    for one in leaves[:MOST_MEMBERS]:
        value, target = _value(session, known, one, start)
        found.append(Member(offset + one.offset, one.name.lstrip("."), known.table.expression(one.type), value, target))
    return found


def find_characters(session: Session, index: int) -> str:
    """Return the text of a block that is an array of characters; "" for other blocks."""
    known = known_types(session)
    spec = known.spec(index) if known is not None else None
    if known is None or spec is None or not spec.many or spec.parts or known.size_of(spec.type) != 1:
        return ""
    header, blocks = known.header(index), session.directory.blocks
    found = find_hint(session, blocks.address(index) + header, blocks.size(index) - header)
    return found if is_text(found) else ""


def _collect_parts(known: KnownTypes, spec: Spec, size: int, leaves: list[_Leaf]) -> None:
    """Add the members of the objects in a block, up to the end of each object."""
    for part in spec.parts:
        first = part.offset - spec.start
        most = max(size - first, 0) // part.size
        for at in range(first, first + min(part.number or most, most, MOST_ELEMENTS) * part.size, part.size):
            name = f"[+{at} {known.table.expression(known.table.bare(part.type))}]" if at else ""
            _collect(known, part.type, at, name, at + part.size, leaves, 0)


def _collect(known: KnownTypes, number: int, offset: int, name: str, size: int, leaves: list[_Leaf], depth: int) -> None:
    from findleaks.debuginfo.type_table import FieldKind, Kind
    from findleaks.types.embedding import STRUCTURES

    table = known.table
    bare = table.bare(number)
    if len(leaves) >= MOST_MEMBERS or offset >= size:
        return
    fields = table.fields_of(bare) if table.kinds[bare] in STRUCTURES and depth < DEEPEST else ()
    if fields:
        for one in fields:
            if one.kind > FieldKind.BASE:
                continue
            at, below = offset + one.offset, f"{name}.{one.name}" if one.name else name
            if one.bits:
                leaves.append(_Leaf(at, below, one.type, one.bits, one.first_bit))
            else:
                _collect(known, one.type, at, below, size, leaves, depth + 1)
        return
    if table.kinds[bare] == Kind.ARRAY and not _is_text(known, bare):
        element = table.bare(table.targets[bare])
        own = known.size_of(element)
        count = table.counts[bare] or (max(size - offset, 0) // own if own else 0)
        for at in range(min(count, MOST_ELEMENTS)):
            _collect(known, element, offset + at * own, f"{name}[{at}]", size, leaves, depth + 1)
        return
    leaves.append(_Leaf(offset, name, number))


def _is_text(known: KnownTypes, array: int) -> bool:
    element = known.table.bare(known.table.targets[array])
    return known.table.sizes[element] == 1


def _value(session: Session, known: KnownTypes, one: _Leaf, start: int) -> tuple[Optional[str], Optional[int]]:
    """Return the value of a member as text, and the address of the block that the value refers to.
    Each is None if there is none."""
    from findleaks.debuginfo.type_table import Kind

    table, bare = known.table, known.table.bare(one.type)
    address = start + one.offset
    if table.kinds[bare] == Kind.ARRAY:
        return find_hint(session, address, min(table.sizes[bare] or TEXT, TEXT)) or None, None
    own = known.size_of(bare)
    try:
        data = session.target.read(address, own) if 0 < own <= 16 else b""
    except UnreadableMemory:
        return None, None
    if not data:
        return None, None
    order = session.target.arch.byteorder
    number = int.from_bytes(data, order)
    if table.kinds[bare] == Kind.POINTER:
        return _pointer(session, number)
    if one.bits:
        return str(number >> one.first_bit & (1 << one.bits) - 1), None
    encoding = table.counts[bare] if table.kinds[bare] == Kind.BASE else 0
    if encoding == _FLOAT and own in (4, 8):
        return f"{struct.unpack(('<' if order == 'little' else '>') + ('f' if own == 4 else 'd'), data)[0]:g}", None
    if encoding == _BOOL:
        return {0: "false", 1: "true"}.get(number, str(number)), None
    if encoding in _SIGNED or table.kinds[bare] == Kind.ENUM:
        number = int.from_bytes(data, order, signed=True)
    if encoding in _CHARACTERS and own == 1 and 0x20 <= number < 0x7F:
        return f"{number} {chr(number)!r}", None
    return f"{number:,}" if abs(number) < 1 << 32 else str(number), None


def _pointer(session: Session, value: int) -> tuple[str, Optional[int]]:
    blocks = session.directory.blocks
    if not value:
        return "0", None
    found = blocks.lookup(value)
    if found is None or found[3] != State.IN_USE:
        symbol = session.target.symbolize(value)
        field = field_at(session, value)
        name = field or (symbol.name if symbol is not None and symbol.address == value else "")
        return f"{value:#x}" + (f" → {name}" if name else ""), None
    index, start, size, _ = found
    name, offset = find_block_type(session, index), value - start
    inside = name_in_pool(session, value)
    if inside:
        return f"{value:#x} → {inside} in {name or f'{size:,} bytes'}", start
    what = find_characters(session, index) or name or find_hint(session, start, size) or f"{size:,} bytes"
    kind = kind_word(session.graph().kind(index))
    if not name and offset and what.startswith(f"+{offset} "):  # A text after a header.
        what, offset = what.removeprefix(f"+{offset} "), 0
    into = f"{offset:,} bytes into " if offset else ""
    return f"{value:#x} → {into}{what} ({kind}, {size:,} bytes)", start


def iterate_lines(members: Sequence[Member]) -> Iterator[str]:
    """Yield a line for each member: offset, name and value, in columns."""
    if not members:
        return
    widest = min(max(len(one.name) for one in members), 40)
    digits = len(str(members[-1].offset)) + 1
    for one in members:
        yield f"  {f'+{one.offset}':<{digits}}  {visible(one.name):<{widest}}  {visible(one.value or '–')}"
