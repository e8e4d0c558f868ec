"""Name the frames of stacks that a stub has walked, and explain why a stack is incomplete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Optional

from findleaks.injection.stub.rule_server import Rules
from findleaks.injection.stub.table import ADDRESS, CHAIN
from findleaks.injection.stub.unwind_rules import frame_of_key
from findleaks.target.base import Target
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer


class StackNames:
    """Names the frames of one process. Hold the lock of `rules` while stacks are followed. `namer`
    creates a Namer."""

    def __init__(self, rules: Rules, namer: Callable[[Target, Unwinder], Namer]) -> None:
        self._rules, self._make = rules, namer
        self._namer: Optional[tuple[Target, Namer]] = None
        self._names: dict[int, tuple[NamedFrame, ...]] = {}

    @property
    def warnings(self) -> Sequence[str]:
        """Return one line for each reason why lines or names are missing."""
        return self._namer[1].warnings if self._namer is not None else ()

    def followed(self, keys: tuple[int, ...], broken: bool) -> tuple[tuple[int, ...], str]:
        """Return the keys of those frames of a stack that are code, innermost first, and why the
        stack is incomplete ("" if it is complete). `broken`: whether the stack could not be
        followed beyond the last key."""
        known = self._rules.steps.get(keys[-1])
        if broken:
            return keys, self._broken(keys[-1])
        end, code = (known.end, known.code) if known is not None else ("", True)
        return keys if code or len(keys) == 1 else keys[:-1], end

    def named(self, keys: Sequence[int]) -> tuple[NamedFrame, ...]:
        rules = self._rules
        if self._namer is None or self._namer[0] is not rules.target:
            self._namer = rules.target, self._make(rules.target, rules.unwinder)
        for key in keys:
            if key not in self._names:
                self._names[key] = self._namer[1].names(frame_of_key(key))
        return tuple(chain.from_iterable(self._names[key] for key in keys))

    def _broken(self, key: int) -> str:
        """Explain why a stack could not be followed beyond this address."""
        known = self._rules.steps.get(key)
        if known is None:
            return f"the unwind rule of {key & ADDRESS:#x} did not arrive in time"
        if known.value & 0xFF == CHAIN:
            return f"no unwind information for {key & ADDRESS:#x}"
        return f"the stack cannot be followed beyond {key & ADDRESS:#x}"
