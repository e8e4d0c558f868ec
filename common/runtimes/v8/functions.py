"""Name functions of JavaScript by script and line, and the variables of contexts.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/shared-function-info.h, script.h,
scope-info.tq, contexts.h. A context has a ScopeInfo, the outer context, up to two further words,
and the variables."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK
from findleaks.runtimes.v8.properties import IN_ARRAY, SMI_SHIFT
from findleaks.runtimes.v8.strings import MOST_INLINED, NO_NAME, Scope, Strings
from findleaks.target.encoded_numbers import decode_signed
from findleaks.value_classes import NamedTuple

_MOST_SOURCE = 64 << 20  # bytes of a script that are searched for line ends
_MOST_SOURCES = 1 << 30  # bytes of all scripts
_LEAST_HEADER, _OLD_HEADER = 2, 4  # words of a context before its variables
_MOST_TABLE = 1 << 14  # words of a table of names
_MOST_BOUND, _BOUND = 8, "js_bound_function"  # functions of which each is bound to the next one
_URL = "file://"
# Line ends in strings of one-byte and two-byte characters. No line end begins with the second byte
# of another one, so a match at an odd offset hides none.
_LINE_ENDS = {1: re.compile(rb"\n|\r(?!\n)"), 2: re.compile(rb"\n\0|\r\0(?!\n\0)|[\x28\x29]\x20")}


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
        # A script's number follows the word with its line ends. V8 7.8 has a constant for this.
        line_ends = offset("Script", "line_ends")
        self.script_number = offset("Script", "id") or (line_ends + 8 if line_ends is not None else None)
        self._start = offset("UncompiledData", "start_position")
        self._known: dict[int, JavaScriptFunction] = {}
        self._line_ends: dict[int, array[int]] = {}
        self._left = _MOST_SOURCES
        self._variables: dict[tuple[int, int], Mapping[int, str]] = {}

    def shared_of(self, address: int) -> int:
        """Return the tagged address of the SharedFunctionInfo of the function at an address, or
        0."""
        return (self._memory.word(address + self._shared) or 0) if self._shared else 0

    def of(self, address: int) -> JavaScriptFunction:
        """Return the function at an address."""
        return self.of_shared(self.shared_of(address))

    def called_by(self, address: int) -> JavaScriptFunction:
        """Return the function at an address. For a bound function, and for a generator, return the
        function that it calls. The address of this function follows the words that every object
        has."""
        elements, found = self._maps.metadata.offset("JSObject", "elements"), self.of(address)
        for _ in range(_MOST_BOUND):
            inner = self._word(address + TAG, elements + 8) if elements and not found.script else 0
            data = self._maps.data(self._word(inner, 0))
            if data is None or not (self._maps.is_function(self._word(inner, 0), data.instance_type) or _BOUND in self._type(inner)):
                break
            address, found = inner - TAG, self.of(inner - TAG)
        return found

    def of_shared(self, shared: int) -> JavaScriptFunction:
        """Return the function with the SharedFunctionInfo at a tagged address."""
        if shared not in self._known:
            script = self._script_of(shared)
            name = self._strings.read(self._word(script, self._script_name)) or ""
            positions = self.positions(shared)
            line = self.line_at(shared, positions[0]) if positions is not None else 0
            self._known[shared] = JavaScriptFunction(self._strings.shared_name(shared), name.removeprefix(_URL), line)
        return self._known[shared]

    def identity(self, shared: int) -> tuple[Hashable, ...]:
        """Return what distinguishes a function from all others of its isolate, also after V8 has
        moved objects: the name and the positions of the function; the number and the name of its
        script, and the hash and the length of the script's source."""
        script = self._script_of(shared)
        name = self._strings.read(self._word(script, self._script_name)) or ""
        number, source = self._word(script, self.script_number), self._word(self._word(script, self._source), 8)
        return self._strings.shared_name(shared), self.positions(shared), number, name, source

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

    def has_computed_name(self, shared: int) -> bool:
        """Whether the program computes the names of the functions that have the SharedFunctionInfo
        at a tagged address. Such names are only in the function objects."""
        name = self._word(shared, self._name)
        scope = self._strings.scope(name - TAG) if "scope_info" in self._type(name) else None
        return scope is not None and tuple(scope.after[:2]) == NO_NAME

    def positions(self, shared: int) -> Optional[tuple[int, int]]:
        """Return the first position of a function in its source, and the last one; None if they are
        unknown.

        A function that was compiled has a ScopeInfo with start and end: before the names of its
        locals, or in older versions after its name. Other functions have data with the start only,
        which is then returned as the end, too."""
        name = self._word(shared, self._name)
        scope = self._strings.scope(name - TAG) if "scope_info" in self._type(name) else None
        if scope is not None:
            found = scope.before if len(scope.before) >= 2 else scope.after
            for start, end in zip(found, found[1:]):
                if not (start | end) & 0xFFFFFFFF and start < end < NO_NAME[1]:
                    return start >> SMI_SHIFT, end >> SMI_SHIFT
        for data in self._memory.words(shared - TAG, (self._name or 0) // 8) or ():
            if self._start is not None and any(one.startswith("uncompiled_data") for one in self._type(data)):
                first = self._memory.int32(data - TAG + self._start)
                return (first, first) if first is not None else None
        return None

    def line_at(self, shared: int, position: int) -> int:
        """Return the line of a position in the source of a function's script; 0 if it is unknown.

        The word after the name of a script is the number of lines that precede its source, which
        programs pass to vm.Script. It is negative if V8 added lines."""
        script = self._script_of(shared)
        found = self._strings.characters(self._word(script, self._source)) if script else None
        if found is None or not 0 <= position <= found.length or found.length * found.width > _MOST_SOURCE:
            return 0
        if script not in self._line_ends:
            self._left -= found.length * found.width
            if self._left < 0:
                return 0
            data = self._memory.read(found.address, found.length * found.width) if found.length else b""
            if found.length and not data:
                return 0
            matches = _LINE_ENDS[found.width].finditer(data)
            places = (one.start() for one in matches)
            self._line_ends[script] = array("Q", [place // found.width for place in places if place % found.width == 0])
        preceding = decode_signed(self._word(script, self._script_name + 8), 64) >> SMI_SHIFT if self._script_name is not None else 0
        line = bisect_left(self._line_ends[script], position) + 1
        return line + preceding if 0 < line + preceding < _MOST_SOURCE else line

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
