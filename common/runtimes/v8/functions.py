"""Name functions of JavaScript by script and line, and the variables of contexts.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/shared-function-info.h, script.h,
scope-info.tq, contexts.h. A context has a ScopeInfo, the outer context, up to two further words,
and the variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.runtimes.v8.properties import IN_ARRAY, SMI_SHIFT
from findleaks.runtimes.v8.strings import MOST_INLINED, Scope, Strings
from findleaks.value_classes import NamedTuple

_MOST_SOURCE = 64 << 20  # bytes of a script that are searched for line ends
_LEAST_HEADER, _OLD_HEADER = 2, 4  # words of a context before its variables
_OUTER = 1  # the word of a context that has the outer one
_MOST_TABLE = 1 << 14  # words of a table of names
_URL = "file://"


class JavaScriptFunction(NamedTuple):
    """A function: its name ("" if it has none), the name of its script, and the line, from 1 on (0:
    unknown)."""

    name: str
    script: str
    line: int

    def place(self) -> str:
        """Return "/app/server.js:12", or ""."""
        return f"{self.script}:{self.line}" if self.script and self.line else self.script

    def label(self) -> str:
        """Return "onData (/app/server.js:12)"."""
        place = self.place()
        return f"{self.name or 'anonymous'}{f' ({place})' if place else ''}"


class Functions:
    """The functions of the heap that has these maps."""

    def __init__(self, memory: Memory, maps: Maps, strings: Strings) -> None:
        self._memory, self._maps, self._strings = memory, maps, strings
        offset = maps.metadata.offset
        self._shared, self._context = offset("JSFunction", "shared"), offset("JSFunction", "context")
        self._script = offset("SharedFunctionInfo", "script", "raw_script", "script_or_debug_info")
        self._name = offset("SharedFunctionInfo", "name_or_scope_info")
        self._script_name, self._source = offset("Script", "name"), offset("Script", "source")
        if self._source is None and self._script_name is not None:
            # V8 9.4 has no constant; the source precedes the name.
            self._source = self._script_name - 8
        self._start = offset("UncompiledData", "start_position")
        self._known: dict[int, JavaScriptFunction] = {}
        self._variables: dict[tuple[int, int], Mapping[int, str]] = {}

    def shared_of(self, address: int) -> int:
        """Return the tagged address of the SharedFunctionInfo of the function at an address, or
        0."""
        return (self._memory.word(address + self._shared) or 0) if self._shared else 0

    def of(self, address: int) -> JavaScriptFunction:
        """Return the function at an address."""
        return self.of_shared(self.shared_of(address))

    def of_shared(self, shared: int) -> JavaScriptFunction:
        """Return the function with the SharedFunctionInfo at a tagged address."""
        if shared not in self._known:
            script = self._script_of(shared)
            name = self._strings.read(self._word(script, self._script_name)) or ""
            position = self._position(shared)
            line = self._line(script, position) if script and position is not None else 0
            self._known[shared] = JavaScriptFunction(self._strings.shared_name(shared), name.removeprefix(_URL), line)
        return self._known[shared]

    def _word(self, word: int, offset: Optional[int]) -> int:
        """Return the word of an object at a tagged address; 0 if it is unknown."""
        return (self._memory.word(word - TAG + offset) or 0) if word & TAG_MASK == TAG and offset is not None else 0

    def _type(self, word: int) -> Sequence[str]:
        data = self._maps.data(self._word(word, 0))
        return self._maps.names_of(data.instance_type) if data is not None else ()

    def _script_of(self, shared: int) -> int:
        """Return the tagged address of the script of a SharedFunctionInfo, or 0. If the function
        has a DebugInfo, this refers to the script."""
        found = self._word(shared, self._script)
        return found if "script" in self._type(found) else 0

    def _position(self, shared: int) -> Optional[int]:
        """Return the position of a function in its source; None if it is unknown.

        A function that was compiled has a ScopeInfo with start and end: before the names of its
        locals, or in older versions after its name. Others have data with the start."""
        name = self._word(shared, self._name)
        scope = self._strings.scope(name - TAG) if "scope_info" in self._type(name) else None
        if scope is not None:
            found = scope.before if len(scope.before) >= 2 else scope.after
            for start, end in zip(found, found[1:]):
                if not (start | end) & 0xFFFFFFFF and start < end:
                    return start >> SMI_SHIFT
        for data in self._memory.words(shared - TAG, (self._name or 0) // 8) or ():
            if self._start is not None and any(one.startswith("uncompiled_data") for one in self._type(data)):
                return self._memory.int32(data - TAG + self._start)
        return None

    def _line(self, script: int, position: int) -> int:
        found = self._strings.characters(self._word(script, self._source))
        size = position * found.width if found is not None else 0
        if found is None or not 0 <= position <= found.length or size > _MOST_SOURCE:
            return 0
        data = self._memory.read(found.address, size) if size else b""
        if size and not data:
            return 0
        ends = data.count(b"\n") if found.width == 1 else sum(data[at : at + 2] == b"\n\0" for at in range(0, size, 2))
        return ends + 1

    def variables(self, address: int, size: int) -> Mapping[int, str]:
        """Return the names of the variables of the context at an address, by offset. `size` is that
        of the context in bytes."""
        info, count = self._memory.word(address + IN_ARRAY) or 0, size // 8 - IN_ARRAY // 8
        if (info, count) not in self._variables:
            scope = self._strings.scope(info - TAG) if info & TAG_MASK == TAG else None
            self._variables[info, count] = self._name_variables(scope, count) if scope is not None else {}
        return self._variables[info, count]

    def _name_variables(self, scope: Scope, count: int) -> Mapping[int, str]:
        """Name the words after the header of a context of `count` words. The name of a function
        expression may be the last variable: the ScopeInfo has the number of its word."""
        header = count - scope.variables
        if any(word == count - 1 << SMI_SHIFT for word in scope.after[1:3]) and header > _LEAST_HEADER:
            header -= 1
        if not _LEAST_HEADER <= header <= _OLD_HEADER:
            return {}
        if scope.variables < MOST_INLINED:
            names = {at: self._strings.read(word) for at, word in enumerate(scope.names)}
        else:
            names = self._read_table(scope.names[0] if scope.names else 0)
        return {IN_ARRAY + 8 * (header + at): name for at, name in names.items() if name and at < scope.variables}

    def _read_table(self, table: int) -> dict[int, Optional[str]]:
        """Return the names of a hash table from names to numbers, by number."""
        length = self._word(table, 8) >> SMI_SHIFT
        words = self._memory.words(table - TAG + IN_ARRAY, length) if table & TAG_MASK == TAG and length < _MOST_TABLE else None
        pairs = zip(words or (), (words or ())[1:])
        return {value >> SMI_SHIFT: self._strings.read(key) for key, value in pairs if self._strings.is_string(key) and not value & TAG}

    def context_of(self, address: int) -> int:
        """Return the tagged address of the context of the function at an address, or 0."""
        return (self._memory.word(address + self._context) or 0) if self._context else 0
