"""Find V8's builtins: functions and bytecode handlers that are compiled into the program.

Isolates may execute a copy of this code that is near the code that they generate.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/snapshot/embedded (symbols `Builtins_…`),
src/heap/code-range.cc (RemapEmbeddedBuiltins), src/execution/isolate-data.h (the table of builtins'
addresses is in the first part of an isolate)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Symbol, Target
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple

PREFIX = "Builtins_"
TRAMPOLINE = "Builtins_InterpreterEntryTrampoline"
HANDLER = "Handler"  # suffix of the names of bytecode handlers
# Builtins that interpreted functions return to. Those that enter at a bytecode are the return
# addresses of functions that were deoptimized.
INTERPRETERS = ("Builtins_InterpreterEntryTrampoline", "Builtins_InterpreterEnter", "Builtins_BaselineOrInterpreterEnter")
_ISOLATE_WORDS = 1 << 13  # that may have the table of builtins' addresses
_COMPARED = 64  # bytes of the trampoline


class Builtin(NamedTuple):
    """The builtin at an address: its name, the start and end of its code, and its file.
    `distance`: that of its copy from the original, 0 for the original."""

    name: str
    start: int
    end: int
    module: str
    distance: int


class Builtins:
    """The builtins of a target that contains `isolates`. `anchors`: by address in the isolates, the
    words that refer to copies of builtins."""

    def __init__(self, target: Target, memory: Memory, isolates: Sequence[int]) -> None:
        self.anchors: dict[int, int] = {}
        self._target, self._memory, self._isolates = target, memory, isolates

    @cached_property
    def _symbols(self) -> list[Symbol]:
        return sorted(self._target.symbols_starting(PREFIX), key=lambda one: one.address)

    @cached_property
    def _starts(self) -> list[int]:
        return [one.address for one in self._symbols]

    @cached_property
    def _copies(self) -> Sequence[int]:
        """The distances of copies of the builtins from the originals."""
        original = next((one.address for one in self._symbols if one.name == TRAMPOLINE), None)
        if original is None:
            return ()
        return list(dict.fromkeys([*self._find_mappings(original), *self._find_copies(original)]))

    def _find_mappings(self, original: int) -> Iterator[int]:
        """Yield the distances of other mappings of the same part of the file. A core may lack their
        contents."""
        regions = self._target.regions()
        own = region_at(regions, original)
        offset = original - own.start + own.file_offset if own is not None and own.name.startswith("/") else -1
        for one in regions if own is not None else ():
            at = one.start + offset - one.file_offset
            if one != own and own is not None and one.name == own.name and one.executable and one.start <= at < one.end:
                yield at - original

    def _find_copies(self, original: int) -> Iterator[int]:
        """Yield the distances of code that is equal to the original."""
        code = self._memory.read(original, _COMPARED)
        for isolate in self._isolates if code else ():
            words = self._memory.words(isolate, _ISOLATE_WORDS) or ()
            for word, address in sorted({word: isolate + 8 * at for at, word in enumerate(words)}.items()):
                region = region_at(self._target.regions(), word)
                if region is not None and region.executable and word != original and self._memory.read(word, _COMPARED) == code:
                    self.anchors[address] = word
                    yield word - original

    def find(self, pc: int) -> Optional[Builtin]:
        """Return the builtin at an address."""
        return next(filter(None, (self._find(pc, distance) for distance in (0, *self._copies))), None) if self._starts else None

    def _find(self, pc: int, distance: int) -> Optional[Builtin]:
        at = bisect_right(self._starts, pc - distance) - 1
        if at < 0:
            return None
        symbol = self._symbols[at]
        # The last builtin has no other one behind it.
        most = self._starts[at + 1] if at + 1 < len(self._starts) else symbol.address + symbol.size
        end = most if most - symbol.address < 1 << 16 or not symbol.size else symbol.address + symbol.size
        return Builtin(symbol.name, symbol.address + distance, end + distance, symbol.module, distance) if pc - distance < end else None


def is_interpreter(name: str) -> bool:
    """Whether interpreted functions return to the builtin with this name."""
    return name.startswith(INTERPRETERS)
