"""Find the types of receivers of methods by the names of the methods: the receiver of
main.(*Tree).insert is a *main.Tree, which the first argument register contains when the code of the
method begins.

Sources: Go 1.18 to 1.27, src/cmd/internal/objabi/path.go (PathToPrefix: a dot after the last slash
of a package's path is %2e in names of functions); src/internal/abi/type.go (UncommonType)."""

from __future__ import annotations

import re
from urllib.parse import unquote

from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.runtimes.go.types import Types

# Methods of generic types and closures are left out.
_METHOD = re.compile(r"(?P<path>.+)\.\(\*(?P<type>\w+)\)\.\w+")

# Bytes of type descriptors that are searched, for all types together. In a program of usual size,
# this is enough for about 100 types.
_MOST_SEARCHED = 128 << 20


class Receivers:
    """The types of receivers. `names`: see TypeNames."""

    def __init__(self, types: Types, names: TypeNames) -> None:
        self._types, self._names = types, names
        self._known: dict[tuple[str, str], int] = {}
        self._left = _MOST_SEARCHED // max(sum(end - start for start, end in types.sections), 1)

    def find(self, function: str) -> int:
        """Return the type value of the object to which the receiver of a method refers. Return NONE
        for functions, and if there is no such type or more than one: functions may declare local
        types of the same name."""
        match = _METHOD.fullmatch(function)
        if match is None:
            return NONE
        key = match["path"], match["type"]
        if key not in self._known and self._left:
            self._left -= 1
            path = unquote(match["path"])
            named = self._types.list_named(f"{path.rpartition('/')[2]}.{match['type']}")
            found = [one.address for one in named if self._types.read_package(one) == path]
            self._known[key] = self._names.value(found[0]) if len(found) == 1 else NONE
        return self._known.get(key, NONE)
