"""Names the frames of stacks that a stub has walked, and says why one is incomplete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Optional

from findleaks.injection.stub.rule_server import Rules
from findleaks.injection.stub.table import ADDRESS, CHAIN
from findleaks.injection.stub.unwind_rules import named
from findleaks.target.base import Target
from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer


class StackNames:
    """Of one process, whose rules these are: hold their lock where stacks are followed. `namer`:
    what makes a Namer."""

    def __init__(self, rules: Rules, namer: Callable[[Target, Unwinder], Namer]) -> None:
        self._rules, self._make = rules, namer
        self._namer: Optional[tuple[Target, Namer]] = None
        self._names: dict[int, tuple[NamedFrame, ...]] = {}

    @property
    def warnings(self) -> Sequence[str]:
        """Why lines or names are missing, a line each."""
        return self._namer[1].warnings if self._namer is not None else ()

    def followed(self, keys: tuple[int, ...], broken: bool) -> tuple[tuple[int, ...], str]:
        """The keys of a stack's frames that are code, innermost first, and why it is incomplete
        (""; it is complete). `broken`: it could not be followed beyond the last."""
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
                self._names[key] = self._namer[1].names(named(key))
        return tuple(chain.from_iterable(self._names[key] for key in keys))

    def _broken(self, key: int) -> str:
        """Why a stack could not be followed beyond this place."""
        known = self._rules.steps.get(key)
        if known is None:
            return f"the unwind rule of {key & ADDRESS:#x} did not arrive in time"
        if known.value & 0xFF == CHAIN:
            return f"nothing says who called {key & ADDRESS:#x}"
        return f"the stack cannot be followed beyond {key & ADDRESS:#x}"
