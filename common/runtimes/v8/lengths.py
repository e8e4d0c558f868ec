"""Describe how many elements, entries or properties a JavaScript object has."""

from __future__ import annotations

from collections.abc import Collection

from findleaks.runtimes.v8.maps import COLLECTIONS, Maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.runtimes.v8.properties import IN_ARRAY, SMI_SHIFT, Properties

_MANY = 100  # properties of an object that is used as a table
_SMI_MASK = (1 << SMI_SHIFT) - 1


def describe_length(maps: Maps, properties: Properties, start: int, kinds: Collection[str]) -> str:
    """Return "50,000 elements" for an array, "50,000 entries" for a map or set, "50,000 properties"
    for an object with a dictionary of many properties; else "".

    `start`: the address of the object. `kinds`: the names of its instance type."""
    place = maps.metadata.offset("JSObject", "internal_fields")  # follows the elements
    word = properties.word(start, place) if place else 1
    if any(one in COLLECTIONS for one in kinds):
        count, noun = _count_in_table(properties, word), "entries"
    elif "js_array" in kinds:
        count, noun = word, "elements"
    elif properties.has_dictionary(properties.word(start, 0)):
        count, noun = _count_in_table(properties, properties.word(start, properties.array_offset)), "properties"
        count = count if count >> SMI_SHIFT >= _MANY else 1
    else:
        return ""
    return f"{count >> SMI_SHIFT:,} {noun}" if not count & _SMI_MASK else ""


def _count_in_table(properties: Properties, table: int) -> int:
    """Return the number of entries, a small integer, with which a table or dictionary begins; 1 if
    there is none."""
    return properties.word(table - TAG, IN_ARRAY) if table & TAG_MASK == TAG else 1
