"""Name the frames of stacks that a stub has walked, and explain why a stack is incomplete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import Optional

from findleaks.injection.stub.rule_server import Rules
from findleaks.injection.stub.table import ADDRESS, CHAIN, EXACT, UNPAIRED, VALUE, unpack
from findleaks.injection.stub.unwind_rules import frame_of_key
from findleaks.target.base import Target
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer

_UNPAIRED = "frames of interpreted functions are missing in some stacks: they cannot be matched with native frames"
_MANY = "the program creates many functions: frames of those that were called late are missing"
_DAMAGED = "functions are missing in some stacks: frames of the interpreter are damaged (they refer to memory that is not mapped)"


class StackNames:
    """Names the frames of one process. Hold the lock of `rules` while stacks are followed. `namer`
    creates a Namer."""

    def __init__(self, rules: Rules, namer: Callable[[Target, Unwinder], Namer]) -> None:
        self._rules, self._make = rules, namer
        self._namer: Optional[tuple[Target, Namer]] = None
        self._names: dict[int, tuple[NamedFrame, ...]] = {}
        self._chained: dict[int, Optional[NamedFrame]] = {}
        self._has_unpaired = False

    @property
    def warnings(self) -> Sequence[str]:
        """Return one line for each reason why lines or names are missing."""
        own = self._namer[1].warnings if self._namer is not None else ()
        chained = [(_UNPAIRED, self._has_unpaired), (_MANY, self._rules.has_many_functions), (_DAMAGED, self._rules.pages.unreadable > 0)]
        managed = (text for reader in self._rules.readers for text in reader.warnings)
        return (*own, *managed, *(text for text, applies in chained if applies))

    def follow(self, keys: tuple[int, ...], broken: bool) -> tuple[tuple[int, ...], str]:
        """Return the keys of those frames of a stack that are code, innermost first, and why the
        stack is incomplete ("" if it is complete). `broken`: whether the stack could not be
        followed beyond the last key."""
        at, end = self._generated_end(keys)
        if end:
            return keys[:at], end
        last = next((key for key in reversed(keys) if not _is_chained(key)), keys[-1])
        known = self._rules.steps.get(last)
        if broken:
            # In a paired chain, the number of frames must equal the number of native frames. This
            # cannot be checked if the stack is incomplete.
            return keys if not self._rules.is_paired else tuple(key for key in keys if not _is_chained(key)), self._explain_break(last)
        end, code = (known.end, known.code) if known is not None else ("", True)
        return keys if code or len(keys) == 1 or last != keys[-1] else keys[:-1], end

    def name_frames(self, keys: Sequence[int]) -> tuple[NamedFrame, ...]:
        rules = self._rules
        if self._namer is None or self._namer[0] is not rules.target:
            self._namer = rules.target, self._make(rules.target, rules.unwinder)
        if UNPAIRED in keys:
            self._has_unpaired = True
            keys = [key for key in keys if not _is_chained(key)]
        return tuple(chain.from_iterable(self._names_at(self._namer[1], keys, at) for at in range(len(keys))))

    def _names_at(self, namer: Namer, keys: Sequence[int], at: int) -> Sequence[NamedFrame]:
        """Return the frames of the key at this index."""
        key, generated = keys[at], self._rules.generated.get(keys[at])
        if key & VALUE:
            return ()
        replacement = self._rules.find_replacement(keys[at + 1]) if at + 1 < len(keys) and _is_chained(keys[at + 1]) else ()
        if replacement:
            return replacement
        if generated is None:
            if key not in self._names:
                self._names[key] = namer.names(frame_of_key(key))
            return (*self._iterate_executed(keys, at + 1), *self._names[key])
        if not generated.bytecode:
            return generated.frames
        frame = self._name_interpreted(keys, at)
        return (frame,) if frame is not None else ()

    def _iterate_executed(self, keys: Sequence[int], at: int) -> Iterator[NamedFrame]:
        """Yield the frames of an interpreter's chain that a native frame executes. `at`: the index
        of the first key of these frames."""
        for key in takewhile(_is_chained, islice(keys, at, None)):
            if key not in self._chained:
                self._chained[key] = self._rules.name_chained(key)
            frame = self._chained[key]
            if frame is not None:
                yield frame

    def _name_interpreted(self, keys: Sequence[int], at: int) -> Optional[NamedFrame]:
        """Return the frame of the interpreter whose return address is the key at this index; None
        if it cannot be read."""
        bytecode, function = (*keys[at + 1 : at + 3], 0, 0)[:2]
        return self._rules.name_bytecode(function, bytecode)

    def _generated_end(self, keys: Sequence[int]) -> tuple[int, str]:
        """Return the number of keys up to a frame of generated code that cannot be trusted, and
        why; "" if there is no such frame."""
        rules, at = self._rules, 0
        while at < len(keys):
            key, frame = keys[at] & ADDRESS, rules.generated.get(keys[at])
            if frame is None:
                at += 1
                continue
            size = 3 if frame.bytecode else 1
            if not rules.is_current(keys[at]):
                return at, f"the runtime has replaced its code at {key:#x}"
            if frame.bytecode and self._name_interpreted(keys, at) is None:
                why = (
                    "is of a function that was unloaded" if keys[at + 2 : at + 3] and keys[at + 2] in rules.functions else "cannot be read"
                )
                return at, f"the interpreter's frame at {key:#x} {why}"
            caller = keys[at + size] if at + size < len(keys) else 0
            if caller and not frame.called_by_native and caller not in rules.generated:
                return at, f"the frame of generated code at {key:#x} has no caller in such code"
            at += size
        return at, ""

    def _explain_break(self, key: int) -> str:
        """Explain why a stack could not be followed beyond this address."""
        known = self._rules.steps.get(key)
        if known is None:
            return f"the unwind rule of {key & ADDRESS:#x} did not arrive in time"
        if unpack(known.value).kind == CHAIN:
            return f"no unwind information for {key & ADDRESS:#x}"
        return f"the stack cannot be followed beyond {key & ADDRESS:#x}"


def _is_chained(key: int) -> bool:
    """Return whether a key is that of a frame in an interpreter's chain."""
    return key & UNPAIRED == UNPAIRED and not key & EXACT
