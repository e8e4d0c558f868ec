"""The result of `verdict`: who owns the resident memory, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional

from findleaks.results.notes import Heuristics, KernelReferences, UnreadMemory
from findleaks.results.record import ADDRESS, OPTIONAL, Record, with_key
from findleaks.value_classes import dataclass, field

ShareWord = Literal[
    "in-use",
    "cached",
    "kept",
    "metadata",
    "runtime",
    "stacks",
    "unjoined",
    "cached-stacks",
    "shared",
    "kernel",
    "leaked-mappings",
    "unknown",
    "files",
]
"""Kinds of memory: blocks in use; blocks in thread caches; free memory that an allocator has not
returned; allocator metadata; memory of a managed runtime; stacks of threads; stacks of ended
threads that were not joined; stacks that libc caches for new threads; leaked anonymous mappings;
shared memory; kernel mappings; unattributed memory; mapped files."""


@dataclass(frozen=True, eq=False, repr=False)
class SharePart(Record):
    """A mapping or a file in a share."""

    address: Optional[int] = field(default=None, metadata={**ADDRESS, **OPTIONAL})
    """The first address of the mapping."""
    name: Optional[str] = None
    """The name of the file or of the mapping."""
    bytes: int = 0
    """Bytes of the mapping or file."""


@dataclass(frozen=True, eq=False, repr=False)
class ShareKind(Record):
    """Mappings of one kind in a share. The name of a kind stays the same while the process runs."""

    name: str
    """The name of the file, the name of the shared memory, or the access rights and size of the
    anonymous mappings."""
    bytes: int
    """Bytes of these mappings."""
    mappings: int
    """Number of these mappings."""


@dataclass(frozen=True, eq=False, repr=False)
class Share(Record):
    """One share of the memory."""

    share: ShareWord
    """The kind of memory."""
    of: Optional[str]
    """The owner: "glibc 2.36"."""
    bytes: int
    """Resident bytes; mapped bytes if residency is unknown."""
    percent: float
    """The share as a percentage of all memory that is accounted for."""
    count: int = field(default=0, metadata=OPTIONAL)
    """Number of blocks, threads, mappings or files in the share."""
    detail: str = field(default="", metadata=OPTIONAL)
    """More details as text."""
    largest: Sequence[SharePart] = field(default=(), metadata=OPTIONAL)
    """The largest mappings or files of the share."""
    kinds: Sequence[ShareKind] = field(default=(), metadata=OPTIONAL)
    """The mappings of the share by kind, the largest first."""


@dataclass(frozen=True, eq=False, repr=False)
class ReservedMemory(Record):
    """Reserved address space that has no memory."""

    of: Optional[str]
    """The allocator or runtime that reserved the addresses; None if unknown."""
    bytes: int
    """Number of bytes of address space."""


@dataclass(frozen=True, eq=False, repr=False)
class ArenaMemory(Record):
    """The memory of an arena. Figures are resident bytes; mapped bytes if residency is unknown."""

    name: str
    """The name of the arena."""
    in_use: int
    """Bytes of blocks in use."""
    cached: int
    """Bytes of blocks in thread caches."""
    free: int
    """Bytes of free blocks."""
    spare: Mapping[str, int]
    """Bytes that are free but not divided into blocks, by kind."""
    metadata: int
    """Bytes of headers and descriptors."""
    mapped: int
    """Mapped bytes, resident or not."""


@dataclass(frozen=True, eq=False, repr=False)
class AllocatorMemory(Record):
    """The memory of an allocator. Figures are resident bytes; mapped bytes if residency is
    unknown."""

    name: str
    """The name of the allocator."""
    version: str
    """The version of the allocator; "" if unknown."""
    where: str
    """The file that contains the allocator."""
    in_use: int
    """Bytes of blocks in use."""
    cached: int
    """Bytes of blocks in thread caches."""
    kept: int
    """Bytes that are free and not returned to the kernel."""
    metadata: int
    """Bytes of headers and descriptors."""
    not_resident: int
    """Bytes of the heaps that are mapped but not resident."""
    arenas: Sequence[ArenaMemory]
    """The same figures for each arena."""


@dataclass(frozen=True, eq=False, repr=False)
class HoldingType(Record):
    """Managed objects of one type, and the native memory that is reachable only from these
    objects."""

    name: str
    """The name of the type."""
    objects: int
    """Number of live objects."""
    native_blocks: int
    """Number of blocks in use that are reachable only from these objects."""
    native_bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class ManagedMemory(Record):
    """The objects of a managed runtime, and the native memory that is reachable only from them."""

    runtime: str
    """The runtime's name."""
    native_blocks: int
    """Number of blocks in use that are reachable only from these objects."""
    native_bytes: int
    """Usable bytes of these blocks."""
    objects: int
    """Number of live objects."""
    object_bytes: int
    """Bytes of the objects themselves."""
    reported_bytes: Optional[int]
    """Native bytes that were reported to the runtime; None if unknown."""
    unreported_bytes: Optional[int]
    """Native bytes that were not reported to the runtime; None if unknown."""
    types: Sequence[HoldingType]
    """The types that retain the most native memory."""


@dataclass(frozen=True, eq=False, repr=False)
class Finding(Record):
    """A problem of the process's memory, or useful information about it."""

    kind: str = field(metadata=with_key("finding"))
    """The kind of finding, as a word for scripts: "lost"."""
    bytes: int
    """Bytes of the memory that the finding is about."""
    resident_bytes: Optional[int]
    """Resident bytes of this memory; None if unknown."""
    text: str
    """The finding as a sentence."""
    cause: Optional[str]
    """The cause as a sentence."""
    remedies: Sequence[str] = field(metadata=with_key("try"))
    """Changes of settings or code that may help."""
    commands: Sequence[str] = field(metadata=with_key("next"))
    """Commands that show more about the finding."""
    evidence: Mapping[str, Any]
    """The numbers that the finding is based on. The keys depend on `kind`."""


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Record):
    """The result of `verdict`."""

    resident: Optional[int]
    """Resident bytes in total; None if residency is unknown."""
    mapped: Optional[int]
    """Mapped bytes in total; None unless residency is unknown."""
    residency: str
    """The source of the residency of pages; "" if residency is unknown."""
    rss: Optional[int]
    """The resident size that the kernel reports, in bytes."""
    swapped: int
    """Bytes in swap."""
    reserved: Sequence[ReservedMemory]
    """Reserved address space that has no memory."""
    heuristics: Heuristics
    """Interior and disguised pointers that count as references."""
    shares: Sequence[Share]
    """All memory. Each byte is in exactly one share. The largest share is first."""
    allocators: Sequence[AllocatorMemory]
    """The memory of each allocator."""
    unread: UnreadMemory
    """Memory whose content findleaks does not read."""
    notes: Sequence[str]
    """Sentences about what findleaks knows, or does not know, about runtimes and the kernel."""
    kernel: KernelReferences
    """Pointers that the kernel stores for the process."""
    managed: Sequence[ManagedMemory]
    """Managed runtimes whose objects retain native memory."""
    findings: Sequence[Finding]
    """The findings, largest first."""
