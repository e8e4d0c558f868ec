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
    """Leaked blocks that are alike. The figures are those of the leak heads; `indirect` figures are
    of blocks reachable only from them."""

    kind: Kind
    """"definite" or "possible"."""
    type: Optional[str]
    """The type of all blocks of the group; None: unknown, or several types."""
    runtime: Optional[str]
    """The managed runtime whose objects the blocks are: "CPython"."""
    hint: Optional[str]
    """Readable content of the first block."""
    contents: Optional[str]
    """What blocks of unknown type contain: "zlib inflate state", "→ inflate, libz.so.1"."""
    site: Union[int, Site, None]
    """The allocation site, if the groups are by site and it was recorded."""
    size: Optional[int]
    """Usable bytes of each block, if all have the same size."""
    sizes: Sequence[int]
    """The smallest and the largest usable size, in bytes."""
    cycle: int
    """Number of blocks in the cycle of each leak head; 1: no cycle; 0: the numbers differ."""
    blocks: int
    """Number of leak heads."""
    bytes: int
    """Usable bytes of the leak heads."""
    estimated: Optional[Amount]
    """Estimate for all blocks, if the recorder of the site samples."""
    indirect_blocks: int
    """Number of blocks reachable from the leak heads only."""
    indirect_bytes: int
    """Their usable bytes."""
    indirect_range: Sequence[int]
    """The fewest and the most indirect blocks of one leak head."""
    examples: Sequence[int] = field(metadata=ADDRESS)
    """Addresses of some of the leak heads, ascending."""
    garbage: Optional[bool] = field(default=None, metadata=OPTIONAL)
    """Whether the blocks are objects that a garbage collector will free; None: not examined."""
    type_from: Optional[TypeSource] = field(default=None, metadata=OPTIONAL)
    """How the type is known; None without a type."""
    type_sure: Optional[bool] = field(default=None, metadata=OPTIONAL)
    """Whether the type is known without doubt; None without a type."""


@dataclass(frozen=True, eq=False, repr=False)
class AllocatorInUse(Record):
    """An allocator and its blocks in use."""

    name: str
    """Its name: "glibc"."""
    version: str
    """Its version; "" if it is not known."""
    where: str
    """The file that contains the allocator."""
    blocks: int
    """Number of blocks in use."""
    bytes: int
    """Their usable bytes."""
    details: Mapping[str, Any] = field(metadata=MERGED)
    """Counters that this allocator keeps; the keys differ between allocators."""


@dataclass(frozen=True, eq=False, repr=False)
class Totals(Record):
    """All blocks in use, in total and by kind."""

    in_use: Amount
    """All blocks in use."""
    reachable: Amount
    """Blocks that a root reaches."""
    possible: Amount
    """Blocks reachable only through pointers to the inside of a block."""
    definite: Amount
    """Leak heads: blocks that no block refers to, except the blocks of their own cycle."""
    indirect: Amount
    """Blocks reachable only from definitely lost ones."""


@dataclass(frozen=True, eq=False, repr=False)
class Suppressed(Record):
    """The groups that one line of the suppressions removed."""

    rule: str
    """The line."""
    groups: int
    """Number of groups that it matched."""
    blocks: int
    """Blocks in these groups, indirect ones included."""
    bytes: int
    """Usable bytes of these blocks."""


@dataclass(frozen=True, eq=False, repr=False)
class Leaks(Record):
    """The result of `find`."""

    trusted: bool
    """Whether all memory that may refer to blocks was read; else leaked blocks may be referenced
    from what is missing."""
    allocators: Sequence[AllocatorInUse]
    """Every allocator of the process."""
    totals: Totals
    """Blocks in use by kind."""
    heuristics: Heuristics
    """Interior and disguised pointers that count as references."""
    reference_counts: Optional[ReferenceCounts]
    """Reference counts of leaked objects, and the references that exist (CPython)."""
    in_flight: InFlight
    """Blocks that threads inside an allocator were working on."""
    unread: UnreadMemory
    """Memory whose content findleaks does not read."""
    notes: Sequence[str]
    """Sentences on what findleaks knows, or does not know, of runtimes and of the kernel."""
    kernel: KernelReferences
    """Pointers that the kernel keeps."""
    groups: Sequence[LeakGroup]
    """The groups, largest first."""
    next: Sequence[str]
    """Commands that show more."""
    suppressed: Sequence[Suppressed]
    """The groups that the suppressions removed, by line."""
    unused_suppressions: Sequence[str]
    """Lines of the suppressions that matched nothing."""
    recorders: Optional[Sequence[Recorder]] = field(default=None, metadata=OPTIONAL)
    """The recorders of allocation stacks, if the groups are by site."""
    mappings: Amount = field(default=Amount(0, 0), metadata=OPTIONAL)
    """Anonymous mappings among the definitely and indirectly lost blocks."""
    possible_mappings: Amount = field(default=Amount(0, 0), metadata=OPTIONAL)
    """Anonymous mappings that only the kernel or a device may use; among the possible blocks."""
    garbage: Amount = field(default=Amount(0, 0), metadata=INTERNAL)
    """Leaked blocks that a garbage collector will free."""
    garbage_heads: int = field(default=0, metadata=INTERNAL)
    """Number of leak heads in `garbage`."""
    definite: int = field(default=0, metadata=INTERNAL)
    """Bytes of the definitely lost groups that no line suppressed, with their indirect blocks."""

    @property
    def leaked(self) -> Amount:
        """Definitely and indirectly lost blocks, without `garbage`."""
        found = (self.totals.definite, self.totals.indirect)
        blocks, bytes_ = (sum(getattr(one, name) for one in found) for name in ("blocks", "bytes"))
        return Amount(max(0, blocks - self.garbage.blocks), max(0, bytes_ - self.garbage.bytes))
