"""The base class of results, and the rules by which a field becomes a key of a JSON object."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, cast

from findleaks.value_classes import MISSING, NamedTuple, fields

SCHEMA = "findleaks/1"
"""The name and version of the JSON format."""

ADDRESS: Mapping[str, Any] = {"address": True}
"""Metadata of a field that contains one or several addresses. They are hexadecimal strings in JSON:
"0x55d0…"."""

OPTIONAL: Mapping[str, Any] = {"optional": True}
"""Metadata of a field whose key is omitted from the JSON object if the field has its default
value."""

MERGED: Mapping[str, Any] = {"merged": True}
"""Metadata of a field that contains a mapping. The mapping's keys become keys of the enclosing JSON
object."""


def beside(field: str) -> Mapping[str, Any]:
    """Return the metadata of a field whose key is omitted if the value of `field` is empty."""
    return {"beside": field}


INTERNAL: Mapping[str, Any] = {"internal": True}
"""Metadata of a field that has no key in JSON."""


def with_key(key: str, *more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of a field whose JSON key differs from its name, for example because the
    key is a keyword of Python ("from")."""
    found = {"key": key}
    for one in more:
        found.update(one)
    return found


class Field(NamedTuple):
    """How a field is written as JSON. `default`: MISSING if the field has no default."""

    name: str
    key: str
    address: bool
    optional: bool
    merged: bool
    beside: str
    default: object


class Record:
    """A result, or a part of a result.

    Subclasses are frozen dataclasses with `eq` and `repr` False. This class implements these
    methods for all of them, because generating them for each class would add 0.4 ms per class to
    every start."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values().items())})"

    def _values(self) -> dict[str, Any]:
        """The values of the fields by name. Names that begin with _ are not fields."""
        return {name: value for name, value in vars(self).items() if name[0] != "_"}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with keys in the order of the fields. Text from the target is not
        escaped; escaping.json_line escapes it when it is printed."""
        made: dict[str, Any] = {}
        for one in json_fields(cast(Hashable, type(self))):
            value = getattr(self, one.name)
            if one.merged:
                made.update(plain(value, False))
            elif one.beside and not getattr(self, one.beside):
                continue
            elif not one.optional or value != one.default:
                made[one.key] = plain(value, one.address)
        return made


_UNCHANGED = frozenset([str, bool, float, type(None)])  # types whose values do not change in JSON


@cache
def json_fields(record: Hashable) -> tuple[Field, ...]:
    """Return those fields of a class of results that appear in JSON, in order."""
    found = []
    for one in fields(cast(Any, record)):
        known = one.metadata
        if not known.get("internal"):
            default = one.default if one.default_factory is MISSING else one.default_factory()
            address, optional, merged = (bool(known.get(flag)) for flag in ("address", "optional", "merged"))
            found.append(Field(one.name, known.get("key", one.name), address, optional, merged, known.get("beside", ""), default))
    return tuple(found)


def plain(value: Any, address: bool = False) -> Any:
    """Return a value as it appears in JSON. `address`: whether integers are addresses."""
    if type(value) in _UNCHANGED:  # most values
        return value
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: plain(one, address) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, address) for one in value]
    if isinstance(value, str):
        return str.__str__(value)  # a member of an Enum
    return hex(value) if address and isinstance(value, int) else value
