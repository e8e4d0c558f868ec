"""Errors that findleaks shows to users. Each is one line: what failed, why, and what to do."""

from __future__ import annotations

from typing import Optional

from findleaks.formatting import printable

_LONGEST = 1000  # maximum number of characters of a message


class FindleaksError(Exception):
    """An error that ends a command with one line of text and exit status 2.
    Control characters in the text are escaped, because it may quote the target (the name of a file
    or a process)."""

    def __str__(self) -> str:
        return printable(super().__str__(), _LONGEST)


class UsageError(FindleaksError):
    """The words of a command are wrong: an unknown option, or a malformed address."""


class TargetError(FindleaksError):
    """The core file or process cannot be opened or used."""


class UnreadableMemory(TargetError):
    """Raised if not all of the `size` bytes at `address` can be read. They are outside every
    region, or not in the core."""

    def __init__(self, address: int, size: int, why: str = "not in the target") -> None:
        super().__init__(address, size, why)
        self.address, self.size, self._why = address, size, why

    def __str__(self) -> str:  # formatted here, because most callers catch this error and go on
        return printable(f"cannot read {self.size} bytes at {self.address:#x}: {self._why}", _LONGEST)


class Interrupted(FindleaksError):
    """The user pressed Ctrl-C. Partial results are dropped."""

    def __init__(self) -> None:
        super().__init__("interrupted")


def is_interruption(error: Optional[BaseException]) -> bool:
    """Whether Ctrl-C caused this error.
    Before Python 3.12, RuntimeError is raised if Ctrl-C interrupts the creation of a class, as in
    an import."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, (KeyboardInterrupt, Interrupted)):
            return True
        seen.append(error)
        error = error.__cause__
    return False
