"""The result of `find`: leaked blocks in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from findleaks.results.amounts import Amount, Kind, TypeSource
from findleaks.results.record import ADDRESS, INTERNAL, MERGED, OPTIONAL, Record
from findleaks.value_classes import dataclass, field

if TYPE_CHECKING:
    from findleaks.results.note_parts import ReferenceCounts
    from findleaks.results.notes import Heuristics, InFlight, KernelReferences, UnreadMemory
    from findleaks.results.sites import Recorder, Site


@dataclass(frozen=True, eq=False, repr=False)
class LeakGroup(Record):
    """Leaked blocks that are alike. The figures describe the leak heads. The `indirect` figures
    describe the blocks that are reachable only from these leak heads."""

    kind: Kind
    """"definite" or "possible"."""
    type: Optional[str]
    """The type of all blocks of the group; None if it is unknown or if the blocks have several
    types."""
    runtime: Optional[str]
    """The managed runtime, if the blocks are objects of one: "CPython"."""
    hint: Optional[str]
    """Readable content of the first block."""
    contents: Optional[str]
    """What blocks of unknown type contain: "zlib inflate state", "→ inflate, libz.so.1"."""
    site: Union[int, Site, None]
    """The allocation site; None unless the groups are by site and the site was recorded."""
    size: Optional[int]
    """Usable bytes of each block; None if the blocks differ in size."""
    sizes: Sequence[int]
    """The smallest and the largest usable size, in bytes."""
    cycle: int
    """Number of blocks in the cycle of each leak head; 1 if it is in no cycle; 0 if the numbers
    differ."""
    blocks: int
    """Number of leak heads."""
    bytes: int
    """Usable bytes of the leak heads."""
    estimated: Optional[Amount]
    """Estimated number and bytes of all blocks; None unless the recorder of the site samples."""
    indirect_blocks: int
    """Number of blocks that are reachable only from the leak heads."""
    indirect_bytes: int
    """Usable bytes of the indirect blocks."""
    indirect_range: Sequence[int]
    """The smallest and the largest number of indirect blocks that belong to one leak head."""
    examples: Sequence[int] = field(metadata=ADDRESS)
    """Addresses of some of the leak heads, ascending."""
    garbage: Optional[bool] = field(default=None, metadata=OPTIONAL)
    """Whether the blocks are objects that a garbage collector will free; None if this was not
    examined."""
    type_from: Optional[TypeSource] = field(default=None, metadata=OPTIONAL)
    """How the type is known; None without a type."""
    type_sure: Optional[bool] = field(default=None, metadata=OPTIONAL)
    """Whether the type is certain; None without a type."""


@dataclass(frozen=True, eq=False, repr=False)
class AllocatorInUse(Record):
    """An allocator and its blocks in use."""

    name: str
    """The name of the allocator: "glibc"."""
    version: str
    """The version of the allocator; "" if unknown."""
    where: str
    """The file that contains the allocator."""
    blocks: int
    """Number of blocks in use."""
    bytes: int
    """Usable bytes of these blocks."""
    details: Mapping[str, Any] = field(metadata=MERGED)
    """Counters that only this allocator has. The keys differ between allocators."""


@dataclass(frozen=True, eq=False, repr=False)
class Totals(Record):
    """All blocks in use, in total and by kind."""

    in_use: Amount
    """All blocks in use."""
    reachable: Amount
    """Blocks that are reachable from a root."""
    possible: Amount
    """Blocks that are reachable only through pointers to the inside of a block."""
    definite: Amount
    """Leak heads: blocks that no block refers to, except the blocks of their own cycle."""
    indirect: Amount
    """Blocks that are reachable only from definitely lost blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class Suppressed(Record):
    """The groups that one line of the suppressions file removed."""

    rule: str
    """The line of the suppressions file."""
    groups: int
    """Number of groups that the line matched."""
    blocks: int
    """Number of blocks in these groups, including indirect blocks."""
    bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class Leaks(Record):
    """The result of `find`."""

    trusted: bool
    """Whether all memory that may refer to blocks was read. If not, blocks reported as leaked may
    be referenced from the missing memory."""
    allocators: Sequence[AllocatorInUse]
    """All allocators of the process."""
    totals: Totals
    """Blocks in use by kind."""
    heuristics: Heuristics
    """Interior and disguised pointers that count as references."""
    reference_counts: Optional[ReferenceCounts]
    """Reference counts of leaked objects, compared with the references that exist (CPython)."""
    in_flight: InFlight
    """Blocks that threads inside an allocator were working on."""
    unread: UnreadMemory
    """Memory whose content findleaks does not read."""
    notes: Sequence[str]
    """Sentences about what findleaks knows, or does not know, about runtimes and the kernel."""
    kernel: KernelReferences
    """Pointers that the kernel stores for the process."""
    groups: Sequence[LeakGroup]
    """The groups, largest first."""
    next: Sequence[str]
    """Commands that show more about the groups."""
    suppressed: Sequence[Suppressed]
    """The groups that the suppressions removed, for each line."""
    unused_suppressions: Sequence[str]
    """Lines of the suppressions that matched nothing."""
    recorders: Optional[Sequence[Recorder]] = field(default=None, metadata=OPTIONAL)
    """The recorders of allocation stacks, if the groups are by site."""
    recording_hints: Sequence[str] = field(default=(), metadata=OPTIONAL)
    """How to start the program so that allocation stacks are recorded, one text for each allocator.
    Only if the groups are by site, and no stacks were recorded."""
    mappings: Amount = field(default=Amount(0, 0), metadata=OPTIONAL)
    """Anonymous mappings among the definitely and indirectly lost blocks."""
    possible_mappings: Amount = field(default=Amount(0, 0), metadata=OPTIONAL)
    """Anonymous mappings among the possibly lost blocks, which only the kernel or a device may
    use."""
    garbage: Amount = field(default=Amount(0, 0), metadata=INTERNAL)
    """Leaked blocks that a garbage collector will free."""
    garbage_heads: int = field(default=0, metadata=INTERNAL)
    """Number of leak heads that are in `garbage`."""
    definite: int = field(default=0, metadata=INTERNAL)
    """Bytes of the definitely lost groups that are not suppressed, including their indirect
    blocks."""

    @property
    def leaked(self) -> Amount:
        """Definitely and indirectly lost blocks that are not `garbage`."""
        found = (self.totals.definite, self.totals.indirect)
        blocks, bytes_ = (sum(getattr(one, name) for one in found) for name in ("blocks", "bytes"))
        return Amount(max(0, blocks - self.garbage.blocks), max(0, bytes_ - self.garbage.bytes))
