"""Errors that findleaks shows a user: each is one line on what failed and what to do next."""

from __future__ import annotations

from typing import Optional

from findleaks.formatting import printable

_LONGEST = 1000  # characters of a message, at most


class FindleaksError(Exception):
    """Ends a command with one line and exit status 2. Control characters are escaped, as the text
    may quote the target (the name of a file or a process)."""

    def __str__(self) -> str:
        return printable(super().__str__(), _LONGEST)


class UsageError(FindleaksError):
    """The words of a command are wrong: unknown option, malformed address."""


class TargetError(FindleaksError):
    """The core file or process cannot be opened or used."""


class UnreadableMemory(TargetError):
    """`size` bytes at `address` cannot all be read: outside every region, or not in the core."""

    def __init__(self, address: int, size: int, why: str = "not in the target") -> None:
        super().__init__(f"cannot read {size} bytes at {address:#x}: {why}")
        self.address = address
        self.size = size


class Interrupted(FindleaksError):
    """The user pressed Ctrl-C; what was computed so far is dropped."""

    def __init__(self) -> None:
        super().__init__("interrupted")


def is_interruption(error: Optional[BaseException]) -> bool:
    """Whether Ctrl-C caused this error: Python before 3.12 raises RuntimeError if it comes while a
    class gets its fields, as in an import."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            return True
        seen.append(error)
        error = error.__cause__
    return False
