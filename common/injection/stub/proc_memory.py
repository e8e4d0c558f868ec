"""Read and write the memory of a local process through /proc/PID/mem, without a cache."""

from __future__ import annotations

import os

from findleaks.errors import TargetError


class ProcMemory:
    """The memory of one process. Call `open` first."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/mem"
        self._descriptor = -1

    def open(self, writable: bool = False) -> None:
        """Open the memory. Raises OSError if reading, or writing, is not permitted."""
        self._descriptor = os.open(self._path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def read(self, address: int, size: int) -> bytes:
        """Read up to `size` bytes. Fewer bytes, or b"", are returned if memory is not mapped."""
        try:
            return os.pread(self._descriptor, size, address)
        except (OSError, OverflowError):
            return b""

    def write(self, address: int, data: bytes) -> None:
        """Write bytes. Raises TargetError on failure."""
        try:
            written = os.pwrite(self._descriptor, data, address)
        except (OSError, OverflowError):
            written = -1
        if written != len(data):
            raise TargetError(f"{len(data)} bytes at {address:#x} cannot be written")

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> bool:
        """Close the memory. Returns whether it was open."""
        if self._descriptor < 0:
            return False
        os.close(self._descriptor)
        self._descriptor = -1
        return True


def writable_memory(pid: int) -> ProcMemory:
    """Open a process's memory for reading and writing. Raises TargetError if this is not
    permitted."""
    memory = ProcMemory(pid)
    try:
        memory.open(writable=True)
    except OSError as error:
        raise TargetError(f"pid {pid}: its memory cannot be written: {os.strerror(error.errno or 0).lower()}") from None
    return memory
