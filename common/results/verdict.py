"""The result of `verdict`: who owns the resident memory, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional

from findleaks.results.notes import Heuristics, KernelReferences, UnreadMemory
from findleaks.results.record import ADDRESS, OPTIONAL, Record, named
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
returned; allocator metadata; a managed runtime's memory; stacks of threads, of ended threads that
were not joined, and stacks cached for new threads; leaked anonymous mappings; shared memory;
kernel mappings; unattributed memory; mapped files."""


@dataclass(frozen=True, eq=False, repr=False)
class SharePart(Record):
    """One mapping or file of a share."""

    address: Optional[int] = field(default=None, metadata={**ADDRESS, **OPTIONAL})
    """Where the mapping begins."""
    name: Optional[str] = None
    """The name of the file or of the mapping."""
    bytes: int = 0
    """Its bytes."""


@dataclass(frozen=True, eq=False, repr=False)
class ShareKind(Record):
    """Mappings of one kind in a share. Names are the same at every moment of a process."""

    name: str
    """The file, the name of shared memory, or the access and size of anonymous mappings."""
    bytes: int
    """Their bytes."""
    mappings: int
    """Their number."""


@dataclass(frozen=True, eq=False, repr=False)
class Share(Record):
    """One share of the memory."""

    share: ShareWord
    """The kind of memory."""
    of: Optional[str]
    """The owner: "glibc 2.36"."""
    bytes: int
    """Resident bytes; mapped bytes if residency is not known."""
    percent: float
    """Percentage of all memory that is accounted for."""
    count: int = field(default=0, metadata=OPTIONAL)
    """Number of blocks, threads, mappings or files in it."""
    detail: str = field(default="", metadata=OPTIONAL)
    """More details in words."""
    largest: Sequence[SharePart] = field(default=(), metadata=OPTIONAL)
    """Its largest mappings or files."""
    kinds: Sequence[ShareKind] = field(default=(), metadata=OPTIONAL)
    """Its mappings by kind, the largest first."""


@dataclass(frozen=True, eq=False, repr=False)
class ReservedMemory(Record):
    """Reserved address space without memory."""

    of: Optional[str]
    """The allocator or runtime that reserved them; None: unknown."""
    bytes: int
    """Bytes of addresses."""


@dataclass(frozen=True, eq=False, repr=False)
class ArenaMemory(Record):
    """The memory of an arena: resident bytes; mapped bytes if residency is not known."""

    name: str
    """Its name."""
    in_use: int
    """Bytes of blocks in use."""
    cached: int
    """Bytes of blocks in thread caches."""
    free: int
    """Bytes of free blocks."""
    spare: Mapping[str, int]
    """Bytes that are not cut into blocks."""
    metadata: int
    """Bytes of headers and descriptors."""
    mapped: int
    """Mapped bytes, resident or not."""


@dataclass(frozen=True, eq=False, repr=False)
class AllocatorMemory(Record):
    """The memory of an allocator: resident bytes; mapped bytes if residency is not known."""

    name: str
    """Its name."""
    version: str
    """Its version; "" if it is not known."""
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
    """Bytes of its heaps that are mapped but not resident."""
    arenas: Sequence[ArenaMemory]
    """The same figures by arena."""


@dataclass(frozen=True, eq=False, repr=False)
class HoldingType(Record):
    """Managed objects of one type, and the native memory reachable only from them."""

    name: str
    """The type."""
    objects: int
    """Number of live objects."""
    native_blocks: int
    """Blocks in use reachable only from these objects."""
    native_bytes: int
    """Their usable bytes."""


@dataclass(frozen=True, eq=False, repr=False)
class ManagedMemory(Record):
    """A managed runtime's objects, and the native memory reachable only from them."""

    runtime: str
    """The runtime's name."""
    native_blocks: int
    """Blocks in use reachable only from objects."""
    native_bytes: int
    """Their usable bytes."""
    objects: int
    """Number of live objects."""
    object_bytes: int
    """Bytes of the objects themselves."""
    reported_bytes: Optional[int]
    """Native bytes that the runtime knows of; None: not known."""
    unreported_bytes: Optional[int]
    """Native bytes that the runtime does not know of; None: not known."""
    types: Sequence[HoldingType]
    """The types with most native memory."""


@dataclass(frozen=True, eq=False, repr=False)
class Finding(Record):
    """A problem of the process's memory, or useful information about it."""

    kind: str = field(metadata=named("finding"))
    """The kind of finding, as a word for scripts: "lost"."""
    bytes: int
    """The memory concerned, in bytes."""
    resident_bytes: Optional[int]
    """Resident bytes of this memory; None: not known."""
    text: str
    """The finding in a sentence."""
    cause: Optional[str]
    """The cause, in a sentence."""
    remedies: Sequence[str] = field(metadata=named("try"))
    """Changes of settings or code that may help."""
    commands: Sequence[str] = field(metadata=named("next"))
    """Commands that show more."""
    evidence: Mapping[str, Any]
    """The numbers behind the finding; the keys depend on `kind`."""


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Record):
    """The result of `verdict`."""

    resident: Optional[int]
    """Resident bytes in all; None: residency is not known."""
    mapped: Optional[int]
    """Mapped bytes in all, if residency is not known."""
    residency: str
    """The source of the residency of pages; "" if it is not known."""
    rss: Optional[int]
    """The resident size that the kernel reports, in bytes."""
    swapped: int
    """Bytes in swap."""
    reserved: Sequence[ReservedMemory]
    """Reserved address space without memory."""
    heuristics: Heuristics
    """Interior and disguised pointers that count as references."""
    shares: Sequence[Share]
    """All memory, each byte once, largest share first."""
    allocators: Sequence[AllocatorMemory]
    """By allocator."""
    unread: UnreadMemory
    """Memory whose content findleaks does not read."""
    notes: Sequence[str]
    """Sentences on what findleaks knows, or does not know, of runtimes and of the kernel."""
    kernel: KernelReferences
    """Pointers that the kernel keeps."""
    managed: Sequence[ManagedMemory]
    """Managed runtimes whose objects hold native memory."""
    findings: Sequence[Finding]
    """The findings, largest first."""
