"""Errors that findleaks shows a user: each is one line on what failed and what to do next."""

from __future__ import annotations

from findleaks.formatting import printable

_LONGEST = 1000
"""Characters of a message, at most."""


class FindleaksError(Exception):
    """Error that ends a command with one line and exit status 2.

    The text may quote the target (the name of a file or a process), so its control characters are
    escaped."""

    def __str__(self) -> str:
        return printable(super().__str__(), _LONGEST)


class UsageError(FindleaksError):
    """The words of a command are wrong: unknown option, malformed address."""


class TargetError(FindleaksError):
    """The core file or process cannot be opened or used."""


class UnreadableMemory(TargetError):
    """`size` bytes at `address` cannot be read in full: outside every region, or absent from the
    core."""

    def __init__(self, address: int, size: int, why: str = "not in the target") -> None:
        super().__init__(f"cannot read {size} bytes at {address:#x}: {why}")
        self.address = address
        self.size = size


class Interrupted(FindleaksError):
    """The user pressed Ctrl-C; what was computed so far is dropped."""

    def __init__(self) -> None:
        super().__init__("interrupted")
