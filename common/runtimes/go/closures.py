"""Name closures by their functions."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.engine.contract import Engine
from findleaks.runtimes.go.engine import TypeSearch, find_places, widen
from findleaks.runtimes.go.pclntab import FunctionTable, find_function
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.target.base import Piece


def name_functions(
    engine: Engine, tables: Sequence[FunctionTable], names: TypeNames, search: TypeSearch, pieces: Sequence[Piece]
) -> array[int]:
    """Give closures a type for each function. Return the type values of all objects, with elements
    of 4 bytes if there are too many types for 2. `tables`: the functions of all modules."""
    value = names.function << 1
    indices = list(find_places(search.types, value))
    data, _ = engine.gather(pieces, [search.blocks.address(index) for index in indices], 8)
    numbers: dict[int, int] = {}
    codes = array("Q", bytes(data))
    for code in dict.fromkeys(codes):
        found = find_function(tables, code)
        is_start = found is not None and found[1].entry == code
        numbers[code] = names.add_name(f"func {found[1].name}") << 1 if found is not None and is_start else value
    types = widen(search.types, len(names.names))
    for index, code in zip(indices, codes):
        types[index] = numbers[code]
    return types
