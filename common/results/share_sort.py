"""Sorts of memory in `verdict`, `diff` and their JSON: one share of the memory for each."""

from __future__ import annotations

from enum import Enum


class ShareSort(str, Enum):
    """The kind of memory that a share contains. The value is the word in JSON (`share`)."""

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
    """Stacks of ended threads that libc caches for new ones."""
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
