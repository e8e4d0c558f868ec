"""What a command uses of a session, for the warnings that concern it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Uses:
    """The names of what was computed for a command, or was computed before and is used again.

    A session in a debugger outlives a command. A warning on debug information, for example, must
    be in the result of a command that uses it, whether an earlier one has read it or not; and in no
    other."""

    def __init__(self) -> None:
        self.names: set[str] = set()  # since the command began
        self._of: dict[Hashable, frozenset[str]] = {}

    def begin(self) -> None:
        """A command begins."""
        self.names = set()

    @contextmanager
    def recorded(self, key: Hashable) -> Iterator[None]:
        """Record what is used in the `with` block as what `key` needs. A key that is a string is a
        name itself."""
        outer, self.names = self.names, {key} if isinstance(key, str) else set()
        try:
            yield
        finally:
            self._of[key] = frozenset(self.names)
            self.names |= outer

    def repeat(self, key: Hashable) -> None:
        """What was recorded for `key` is used again."""
        self.names |= self._of.get(key, frozenset())
