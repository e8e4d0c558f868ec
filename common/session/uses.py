"""Record which data of a session a command uses. This selects the warnings that concern the
command."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Uses:
    """The names of the data that a command uses. The data may have been computed for an earlier
    command.

    A session in a debugger outlives a command. For example, a warning about debug information must
    be in the result of each command that uses debug information, even if an earlier command read
    it. The warning must not be in the results of other commands."""

    def __init__(self) -> None:
        self.names: set[str] = set()  # names that were used since the command began
        self._of: dict[Hashable, frozenset[str]] = {}

    def begin(self) -> None:
        """Start a command, which has used no data yet."""
        self.names = set()

    @contextmanager
    def record(self, key: Hashable) -> Iterator[None]:
        """Record the names that are used in the `with` block as the names that `key` needs. If the
        key is a string, it is a name, too."""
        outer, self.names = self.names, {key} if isinstance(key, str) else set()
        try:
            yield
        finally:
            self._of[key] = frozenset(self.names)
            self.names |= outer

    def repeat(self, key: Hashable) -> None:
        """Mark the names that were recorded for `key` as used."""
        self.names |= self._of.get(key, frozenset())
