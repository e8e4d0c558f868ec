"""Records which data of a session a command uses, to select the warnings that concern it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Uses:
    """The names of the data that was computed for a command, or was computed before and used again.

    A session in a debugger outlives a command. A warning about debug information, for example, must
    be in the result of each command that uses it, even if an earlier command read it. It must not
    be in the results of other commands."""

    def __init__(self) -> None:
        self.names: set[str] = set()  # Names used since the command began.
        self._of: dict[Hashable, frozenset[str]] = {}

    def begin(self) -> None:
        """A command begins."""
        self.names = set()

    @contextmanager
    def recorded(self, key: Hashable) -> Iterator[None]:
        """Record the names used in the `with` block as the names that `key` needs. A key that is a
        string is also a name."""
        outer, self.names = self.names, {key} if isinstance(key, str) else set()
        try:
            yield
        finally:
            self._of[key] = frozenset(self.names)
            self.names |= outer

    def repeat(self, key: Hashable) -> None:
        """Use again the names recorded for `key`."""
        self.names |= self._of.get(key, frozenset())
