"""Find the types that a user names: "struct client", "client", "record[12]", "item *[]",
"std::vector<int>"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Optional

from findleaks.catalogue import suggest_word
from findleaks.debuginfo.type_names import shorten_template
from findleaks.debuginfo.type_table import UNKNOWN, VOID, Flag, Kind, TypeTable
from findleaks.errors import UsageError
from findleaks.value_classes import NamedTuple

LONGEST = 1000  # Maximum number of characters of a type.
MOST_SUGGESTED = 50_000  # Maximum number of names of types that are compared with a misspelt one.
_ARRAY = re.compile(r"\s*\[\s*([0-9]{0,12})\s*\]$")
_WORDS = re.compile(r"\b(?:struct|union|enum|class|const|volatile)\b\s*")
_TYPES = (Kind.STRUCT, Kind.UNION, Kind.BASE, Kind.ENUM)


class NamedType(NamedTuple):
    """A type that a user names. `is_array`: whether it is an array of values; `elements`: how many;
    0 if the user gives no number."""

    type: int
    is_array: bool = False
    elements: int = 0


class TypeNames:
    """The types of one table by name."""

    def __init__(self, table: TypeTable) -> None:
        self._table = table
        self.explains = True
        """Whether messages suggest other names. This takes time for each name that is missing."""

    def find(self, text: str) -> Sequence[NamedType]:
        """Return the complete types of this name: several if files define different ones. Raises
        UsageError if there is none; the message says why."""
        if len(text) > LONGEST:
            raise UsageError(f"the name of a type has at most {LONGEST:,} characters")
        array = _ARRAY.search(text)
        rest = text[: array.start()] if array else text
        name = _WORDS.sub("", rest).strip()
        stars = len(name) - len(bare := name.rstrip("* "))
        stars -= name[len(bare) :].count(" ")
        found = [VOID] if bare == "void" and stars else self._plain(bare)
        for _ in range(stars):
            found = [pointer for one in found for pointer in self._pointers.get(one, ())[:1]]
        if not found:
            raise UsageError(self._why_not(bare, stars) if self.explains else f"no type {bare!r}")
        return [NamedType(one, array is not None, int(array[1] or 0) if array else 0) for one in dict.fromkeys(found)]

    def _plain(self, name: str) -> list[int]:
        """Return the complete types of a name without pointers and arrays."""
        table = self._table
        found = [*table.find(name), *map(table.bare, self._typedefs.get(name, ()))]
        if not found and "<" in name:
            wanted = _compact(name)
            before = wanted.partition("<")[0]
            found = [one for one in self._templates if self._text(one).startswith(before) and _compact(table.name(one)) == wanted]
        return [one for one in found if table.kinds[one] == Kind.POINTER or (table.kinds[one] in _TYPES and table.sizes[one])]

    def _text(self, number: int) -> str:
        return self._table.text(self._table.names[number])

    @cached_property
    def _typedefs(self) -> dict[str, list[int]]:
        table, found = self._table, {}  # type: ignore[var-annotated]
        for number, kind in enumerate(table.kinds):
            if kind == Kind.TYPEDEF and table.names[number]:
                found.setdefault(table.text(table.names[number]), []).append(number)
        return found

    @cached_property
    def _templates(self) -> Sequence[int]:
        """The classes that may have template arguments. clang can leave these arguments out of
        names."""
        table = self._table
        return [number for number, kind in enumerate(table.kinds) if kind == Kind.STRUCT and table.sizes[number] and table.names[number]]

    @cached_property
    def _pointers(self) -> dict[int, list[int]]:
        """Map a bare type to the pointers to it."""
        table, found = self._table, {}  # type: ignore[var-annotated]
        for number, kind in enumerate(table.kinds):
            if kind == Kind.POINTER and not table.flags[number] & Flag.REFERENCE:
                found.setdefault(table.bare(table.targets[number]), []).append(number)
        return found

    def _why_not(self, name: str, stars: int) -> str:
        table = self._table
        if not name:
            return "the name of a type is missing; quote a name with spaces: 'p=struct client'"
        declared = [one for one in table.find(name) if table.kinds[one] in _TYPES]
        if declared and stars:
            return f"debug information has no pointer to {name!r}"
        if declared:
            return f"debug information only declares {name!r}, without its members"
        names = [text for number in range(UNKNOWN + 1, min(len(table), MOST_SUGGESTED)) if (text := self._name(number))]
        return f"debug information has no type {name[:200]!r}" + suggest_word(name[:200], names)

    def _name(self, number: int) -> str:
        is_usable = self._table.kinds[number] in (Kind.STRUCT, Kind.UNION) and self._table.sizes[number]
        return self._text(number) if is_usable else ""


def _compact(name: str) -> str:
    return shorten_template(name).replace(" ", "")


def closest(found: Iterable[NamedType], table: TypeTable, size: int) -> Optional[NamedType]:
    """Return the only one of the types of one name that memory of `size` bytes can contain; None if
    none or several of different sizes can."""
    fitting = [one for one in found if 0 < table.size_of(one.type) * max(one.elements, 1) <= size]
    return fitting[0] if fitting and len({table.size_of(one.type) for one in fitting}) == 1 else None
