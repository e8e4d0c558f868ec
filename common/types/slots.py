"""Apply the lines of hint files. They give types to void pointers, to types that are only declared,
and to blocks with a known first word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Optional

from findleaks.debuginfo.type_expressions import NamedType, TypeNames
from findleaks.debuginfo.type_table import FieldKind, Flag, Kind, TypeTable
from findleaks.engine.type_spread import DECISION, LEVEL_SHIFT, NO_FEATURE, NOT_ARRAY, Feature, Level, TypeSpread
from findleaks.errors import UsageError
from findleaks.types.embedding import STRUCTURES
from findleaks.types.hint_files import PAYLOAD, HintFile, SlotHint
from findleaks.types.layouts import Layouts
from findleaks.types.path_hints import Member, PathHints, is_path_hint
from findleaks.types.sizes import SizeClasses
from findleaks.types.specs import Spec
from findleaks.value_classes import NamedTuple

FARTHEST = 127  # Maximum number of bytes between a pointer and the member of its condition.

_SORTS = {1: Feature.ONE_BYTE, 2: Feature.TWO_BYTES, 4: Feature.FOUR_BYTES}  # By size in bytes.


class SlotTarget(NamedTuple):
    """The type that a hint gives to a slot. Without a feature, the hint applies to all pointers."""

    types: Sequence[NamedType]
    has_payload: bool
    feature: int
    keys: Sequence[int]


class Slots:
    """The hints of all files of one search for types."""

    def __init__(self, table: TypeTable, layouts: Layouts, spread: TypeSpread, sizes: SizeClasses, read: Callable[[int, int], int]) -> None:
        """`read` returns a number in memory by address and size; 0 if it is missing."""
        self._table, self._layouts, self._spread, self._sizes = table, layouts, spread, sizes
        self._names, self._read = TypeNames(table), read
        self.paths = PathHints(table, self._names.find, self._step)
        self._slots: dict[tuple[int, int], list[SlotTarget]] = {}
        self.seeds: list[tuple[int, NamedType]] = []
        """Words at the start of blocks, and the type of such blocks."""

    def add(self, file: HintFile) -> None:
        """Add the hints of a file. Raises UsageError for the first one that is impossible, unless
        the file is one of findleaks."""
        self._names.explains = not file.is_ready
        for hint in file.hints:
            try:
                self._add(hint)
            except UsageError as error:
                if not file.is_ready:
                    raise UsageError(f"{file.path}:{hint.line}: {error}") from None

    def _add(self, hint: SlotHint) -> None:
        if is_path_hint(hint):
            self.paths.add(hint, self._read_variable)
            return
        has_payload = hint.type.endswith(PAYLOAD)
        types = self._names.find(hint.type[: -len(PAYLOAD)] if has_payload else hint.type)
        if hint.slot.startswith("&"):
            self.seeds += [(address, one) for address in self._addresses(hint.slot) for one in types[:1]]
            return
        if "." not in hint.slot:
            self._add_declared(hint.slot, types)
            return
        for whole, member in list(self._members(hint.slot)):
            if self._table.kinds[self._element_type(member.type)] != Kind.POINTER:
                raise UsageError(f"{hint.slot} is not a pointer")
            feature, keys = self._condition(hint, whole, member, types) if hint.member else (NO_FEATURE, ())
            target = SlotTarget(types, has_payload, feature, keys)
            known = self._slots.setdefault((member.owner, member.inside), [])
            if feature != NO_FEATURE and any(one.feature not in (feature, NO_FEATURE) for one in known):
                raise UsageError(f"all conditions of {hint.slot} must use the same member")
            known.append(target)
            self._layouts.hinted.add((member.owner, member.inside))

    def _add_declared(self, name: str, types: Sequence[NamedType]) -> None:
        table = self._table
        declared = [number for number in table.find(name) if table.flags[number] & Flag.DECLARATION or not table.sizes[number]]
        if not declared:
            raise UsageError(f"{name!r} is neither a member nor an incomplete type; for a member, write {name}.MEMBER")
        self._layouts.definitions.update(dict.fromkeys(declared, types[0].type))

    def _element_type(self, number: int) -> int:
        """Return the element type of an array, else the type itself."""
        table, bare = self._table, self._table.bare(number)
        while table.kinds[bare] == Kind.ARRAY:
            bare = table.bare(table.targets[bare])
        return bare

    def _members(self, path: str) -> Iterator[tuple[int, Member]]:
        """Yield the members that a path such as "dictEntry.v.val" names, each with the type that
        the path begins with; there are several if files define different types of this name."""
        name, *members = path.split(".")
        found = [(kind.type, one) for kind in self._names.find(name) if (one := self._member(kind.type, members)) is not None]
        if not found:
            raise UsageError(f"{name} has no member {'.'.join(members)}")
        yield from found

    def _member(self, number: int, path: Sequence[str]) -> Optional[Member]:
        at: Optional[Member] = Member(number, 0, number, 0, 0, 0)
        for name in path:
            at = self._step(at, name, 0) if at is not None else None
        return at

    def _step(self, at: Member, name: str, depth: int) -> Optional[Member]:
        """Return the member of this name, which may be in an unnamed struct or union."""
        table, bare = self._table, self._table.bare(at.type)
        if table.kinds[bare] not in STRUCTURES or depth > 8:
            return None
        owner, inside = (bare, 0) if table.names[bare] else (at.owner, at.inside)
        for one in table.fields_of(bare):
            if one.kind > FieldKind.BASE:
                continue
            found = Member(one.type, at.offset + one.offset, owner, inside + one.offset, one.bits, one.first_bit)
            if one.name == name and one.kind == FieldKind.MEMBER:
                return found
            below = self._step(found, name, depth + 1) if not one.name or one.kind == FieldKind.BASE else None
            if below is not None:
                return below
        return None

    def _condition(self, hint: SlotHint, whole: int, slot: Member, types: Sequence[NamedType]) -> tuple[int, Sequence[int]]:
        """Return the feature of pointers in a slot that the condition compares, and its values. The
        compared member is in the struct that has the slot, or in `whole`, the struct that contains
        it and with which the path begins; or in the hinted type; or in an owner of the struct."""
        start, near = slot.inside, self._member(slot.owner, hint.member.split("."))
        if near is None:
            start, near = slot.offset, self._member(whole, hint.member.split("."))
        if near is not None:
            size, keys = self._values(near, hint.value)
            distance = near.offset + (near.first_bit // 8 if near.bits else 0) - start
            if abs(distance) > FARTHEST:
                raise UsageError(f"{hint.member} is more than {FARTHEST} bytes from {hint.slot}")
            return _SORTS.get(size, Feature.STATIC_WORD) << 8 | distance + 128, keys
        if "." not in hint.member:
            raise UsageError(f"{hint.slot.rpartition('.')[0]} has no member {hint.member}")
        _, far = next(self._members(hint.member))
        size, keys = self._values(far, hint.value)
        owner = self._names.find(hint.member.partition(".")[0])[0].type
        offset = far.offset + (far.first_bit // 8 if far.bits else 0)
        if owner in [one.type for one in types]:
            sort = {1: Feature.TARGET_BYTE, 4: Feature.TARGET_BYTES}.get(size)
            if sort is None or offset + size > (self._table.word if size == 1 else FARTHEST):
                raise UsageError(
                    f"{hint.member} cannot be compared: use a number of 4 bytes near the start of the type, or its first bytes"
                )
            return sort << 8 | offset + 128, keys
        try:
            return self._owner_words.setdefault(
                (owner, offset, size), self._spread.add_owner_word(self._layouts.number(Spec(owner)), offset, size)
            ), keys
        except ValueError:
            raise UsageError("too many hints have a condition on a member of another type; use fewer such hints") from None

    @cached_property
    def _owner_words(self) -> dict[tuple[int, int, int], int]:
        """The features of owners, by type, offset and size."""
        return {}

    def _values(self, member: Member, value: str) -> tuple[int, Sequence[int]]:
        """Return the number of bytes to compare, and the numbers that these bytes contain if the
        member has the value of a condition."""
        table = self._table
        if value.startswith("&"):
            return table.word, self._addresses(value)
        try:
            number = int(value, 0)
        except ValueError:
            raise UsageError(f"{value!r} is not a number; for the address of a variable, write &NAME") from None
        size = table.size_of(member.type)
        if member.bits:
            first, mask = member.first_bit % 8, (1 << member.bits) - 1
            if first + member.bits > 8:
                raise UsageError("a condition can only use a bit field that is in one byte")
            return 1, [byte for byte in range(256) if byte >> first & mask == number]
        if size not in _SORTS:
            raise UsageError(f"a condition can only use a member of 1, 2 or 4 bytes, not of {size}")
        return size, [number & (1 << 8 * size) - 1]

    def _addresses(self, name: str) -> Sequence[int]:
        found = self._variables.get(name.lstrip("&"))
        if not found:
            raise UsageError(f"debug information has no variable {name.lstrip('&')!r}")
        return found

    @cached_property
    def _variables(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for one in self._table.variables():
            found.setdefault(one.name, []).append(one.address)
        return found

    def _read_variable(self, path: str) -> int:
        """Return the number in a variable, or in the member that a path such as
        "ngx_http_proxy_module.ctx_index" names. Raises UsageError if there is none."""
        name, *members = path.split(".")
        for one in self._table.variables():
            if one.name == name:
                found = self._member(one.type, members)
                size = self._table.size_of(found.type) if found is not None else 0
                if found is not None and not found.bits and size in (1, 2, 4, 8):
                    return self._read(one.address + found.offset, size)
        raise UsageError(f"debug information has no number {path!r}")

    def targets(self, owner: int, offset: int) -> Sequence[SlotTarget]:
        """Return the types to which the pointers of a slot refer, as hints say."""
        return self._slots.get((owner, offset), ())

    def answer(self, owner: int, offset: int, size: int) -> Optional[int]:
        """Return the rule for pointers of a slot to blocks of `size` bytes; None if no hint has
        such a type."""
        options: list[int] = []
        keyed: dict[int, int] = {}
        feature = NO_FEATURE
        for target in self._slots.get((owner, offset), ()):
            for one in target.types:
                if not self._fits(one, target.has_payload, size):
                    continue
                claim = self._layouts.number(Spec(one.type, one.is_array)) | Level.HINT << LEVEL_SHIFT
                if target.feature == NO_FEATURE:
                    options += (claim, NOT_ARRAY, self._table.size_of(one.type))
                feature = target.feature if target.feature != NO_FEATURE else feature
                for key in target.keys:
                    keyed.setdefault(key, claim)
        if not options and not keyed:
            return None
        keys = sorted(keyed)
        return DECISION | self._spread.add_decision(options, feature, keys, [keyed[key] for key in keys])

    def _fits(self, one: NamedType, has_payload: bool, size: int) -> bool:
        own = self._table.size_of(one.type) * max(one.elements, 1)
        is_open = has_payload or one.is_array or self._layouts.flexible(one.type) is not None
        return 0 < own <= size and (is_open or own >= self._sizes.least_request(size))
