"""The results of `refs` and `path`: references to an address, and chains of references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.addresses import AddressInfo
from findleaks.results.record import ADDRESS, OPTIONAL, Record, with_key
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Reference(Record):
    """A word that refers to a block: in memory, in a register, or in the kernel."""

    kernel: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The kernel object that stores the word: "epoll descriptor 5, target 7"."""
    register: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The register that contains the word. "vector" means a vector register whose name is
    unknown."""
    thread: Optional[int] = field(default=None, metadata=OPTIONAL)
    """The kernel's number (tid) of the thread that has this register."""
    address: Optional[int] = field(default=None, metadata={**ADDRESS, **OPTIONAL})
    """The address of the word. None if the word is in a register, or if a Java object keeps another
    object alive without a field."""
    value: int = field(default=0, metadata=ADDRESS)
    """The value of the word."""
    offset: int = 0
    """Offset in bytes from the start of the block or object to the address that the word refers
    to."""
    interior: bool = False
    """Whether the word refers to the inside of the block."""
    live: bool = True
    """Whether the word keeps the block reachable. Words in free memory and dead registers do
    not."""
    why: Optional[str] = field(default=None, metadata=OPTIONAL)
    """Why the reference is not live."""
    disguise: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The form of a disguised pointer; None for a plain address."""
    origin: Optional[AddressInfo] = field(default=None, metadata=with_key("from", OPTIONAL))
    """The memory that contains the word."""


@dataclass(frozen=True, eq=False, repr=False)
class References(Record):
    """The result of `refs`."""

    target: AddressInfo
    """A description of the address that the user passed."""
    count: int
    """Number of references."""
    live: int
    """Number of references that keep the block reachable."""
    references: Sequence[Reference]
    """The references. If there are more than the limit, only the first are listed."""


@dataclass(frozen=True, eq=False, repr=False)
class Step(Record):
    """One reference of a chain. It refers to the next block."""

    origin: str = field(metadata=with_key("from"))
    """A description of the memory or register that contains the reference."""
    address: Optional[int] = field(metadata=ADDRESS)
    """The address of the word; None if the word is not in memory."""
    value: int = field(metadata=ADDRESS)
    """The value of the word."""
    offset: int
    """Offset in bytes from the start of the next block or object to the address that the word
    refers to."""
    interior: bool
    """Whether the word refers to the inside of the block."""
    disguise: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The form of a disguised pointer; None for a plain address."""
    place: Optional[AddressInfo] = field(default=None, metadata=with_key("in", OPTIONAL))
    """The memory that contains the word."""


@dataclass(frozen=True, eq=False, repr=False)
class Skipped(Record):
    """Steps of a chain that are not listed."""

    steps: int
    """Number of steps that are not listed."""
    after: int
    """Number of listed steps that precede them."""


@dataclass(frozen=True, eq=False, repr=False)
class Path(Record):
    """The result of `path`: a shortest chain of references to a block or a managed object."""

    target: AddressInfo
    """A description of the address that the user passed."""
    steps: Sequence[Step] = field(metadata=with_key("path"))
    """The references, starting at a root or at a leak head. The list is empty if no root reaches
    the block and the block is itself a leak head."""
    blocks: int
    """Number of blocks or objects in the whole chain."""
    skipped: Optional[Skipped]
    """The steps that are omitted in the middle of a long chain."""
    leak_head: Optional[int] = field(metadata=ADDRESS)
    """The address of the leak head at which the chain begins; None if the chain begins at a
    root."""
