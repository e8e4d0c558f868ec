"""Find the types of receivers of methods by the names of the methods: the receiver of
main.(*Tree).insert is a *main.Tree, which the first argument register contains when the code of the
method begins.

Sources: Go 1.18 to 1.27, src/cmd/internal/objabi/path.go (PathToPrefix: a dot after the last slash
of a package's path is %2e in names of functions); src/internal/abi/type.go (UncommonType)."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from urllib.parse import unquote

from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.runtimes.go.types import Type, Types

# Methods of generic types and closures are left out.
_METHOD = re.compile(r"(?P<path>.+)\.\(\*(?P<type>\w+)\)\.\w+")

# Bytes of type descriptors that are searched, for all types together. In a program of usual size,
# this is enough for about 100 types.
_MOST_SEARCHED = 256 << 20
_MOST_LARGER = 8  # examined types whose first field or element has the type


class Receivers:
    """The types of receivers. `names`: see TypeNames. `sizes`: the sizes of all slots for objects,
    in bytes."""

    def __init__(self, types: Types, names: TypeNames, sizes: Iterable[int]) -> None:
        self._types, self._names, self._sizes = types, names, sorted(set(sizes))
        self._known: dict[tuple[str, str], int] = {}
        self._left = _MOST_SEARCHED // max(sum(end - start for start, end in types.sections), 1)

    def find(self, function: str) -> int:
        """Return the type value of the object to which the receiver of a method refers. Return NONE
        for functions, and if the type is not certain.

        Functions may declare local types of the same name. A pointer to the first field of a
        structure is also a pointer to the structure, which may be in a slot of the same size."""
        match = _METHOD.fullmatch(function)
        if match is None:
            return NONE
        key = match["path"], match["type"]
        if key not in self._known and self._left > 0:
            self._left -= 1
            path = unquote(match["path"])
            named = self._types.list_named(f"{path.rpartition('/')[2]}.{match['type']}")
            found = [one for one in named if self._types.read_package(one) == path]
            is_certain = len(found) == 1 and not self._may_be_part(found[0])
            self._known[key] = self._names.value(found[0].address) if is_certain else NONE
        return self._known.get(key, NONE)

    def _may_be_part(self, one: Type) -> bool:
        """Whether an object in a slot for this type may have a larger type that begins with it."""
        self._left -= 1
        for number, larger in enumerate(self._types.iterate_larger(one)):
            self._left -= 1
            if number == _MOST_LARGER or self._slot(larger.size) == self._slot(one.size):
                return True
        return False

    def _slot(self, size: int) -> int:
        return bisect_left(self._sizes, size)
