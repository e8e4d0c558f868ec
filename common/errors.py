"""The one family of errors findleaks shows a user: a line that says what was tried and what to do next."""

from __future__ import annotations

from findleaks.formatting import printable

_LONGEST = 1000
"""Characters of a message."""


class FindleaksError(Exception):
    """Anything that ends a command with one clear line and exit status 2.

    Its text may quote the target (the name of a file or a process), so no control character of it is let through to a terminal.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), _LONGEST)


class UsageError(FindleaksError):
    """The words of a command make no sense: unknown option, malformed address."""


class TargetError(FindleaksError):
    """The core file or process cannot be opened or used."""


class UnreadableMemory(TargetError):
    """`size` bytes at `address` are not all there: outside every region, or absent from the core."""

    def __init__(self, address: int, size: int, why: str = "not in the target") -> None:
        super().__init__(f"cannot read {size} bytes at {address:#x}: {why}")
        self.address = address
        self.size = size


class Interrupted(FindleaksError):
    """The user pressed Ctrl-C; what was computed so far is dropped."""

    def __init__(self) -> None:
        super().__init__("interrupted")
