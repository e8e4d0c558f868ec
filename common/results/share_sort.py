"""The kinds of memory in `verdict`, `diff` and their JSON. Each kind is a share of the memory."""

from __future__ import annotations

from enum import Enum


class ShareSort(str, Enum):
    """The kind of memory that a share contains. The value is the word in JSON (key `share`)."""

    IN_USE = "in-use"
    """Blocks in use."""
    CACHED = "cached"
    """Free blocks in thread caches."""
    KEPT = "kept"
    """Free memory that an allocator has not returned to the kernel."""
    METADATA = "metadata"
    """Allocator metadata."""
    RUNTIME = "runtime"
    """Memory of a managed runtime."""
    STACKS = "stacks"
    """Stacks of threads."""
    UNJOINED = "unjoined"
    """Stacks of threads that ended and were never joined."""
    CACHED_STACKS = "cached-stacks"
    """Stacks of ended threads that libc caches for new threads."""
    SHARED = "shared"
    """Shared memory."""
    KERNEL = "kernel"
    """Mappings of the kernel, such as the vdso."""
    LEAKED_MAPPINGS = "leaked-mappings"
    """Anonymous mappings that leaked."""
    UNKNOWN = "unknown"
    """Unattributed memory."""
    FILES = "files"
    """Mapped files."""

    __str__ = str.__str__
