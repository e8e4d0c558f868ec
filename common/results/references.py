"""The results of `refs` and `path`: references to an address, and chains of references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.results.addresses import AddressInfo
from findleaks.results.record import ADDRESS, OPTIONAL, Record, named
from findleaks.value_classes import dataclass, field


@dataclass(frozen=True, eq=False, repr=False)
class Reference(Record):
    """A word that refers to a block: in memory, in a register, or kept by the kernel."""

    kernel: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The kernel object that keeps the word: "epoll descriptor 5, target 7"."""
    register: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The register that contains it; "vector": a vector register whose name is not known."""
    thread: Optional[int] = field(default=None, metadata=OPTIONAL)
    """The kernel's number of the thread of this register."""
    address: Optional[int] = field(default=None, metadata={**ADDRESS, **OPTIONAL})
    """Where the word is in memory."""
    value: int = field(default=0, metadata=ADDRESS)
    """The value of the word."""
    offset: int = 0
    """Bytes from the block's start to the address that it refers to."""
    interior: bool = False
    """Whether it refers to the inside of the block."""
    live: bool = True
    """Whether it keeps the block reachable. Words in free memory and dead registers do not."""
    why: Optional[str] = field(default=None, metadata=OPTIONAL)
    """Why it is not live."""
    disguise: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The form of a disguised pointer; None: a plain address."""
    origin: Optional[AddressInfo] = field(default=None, metadata=named("from", OPTIONAL))
    """The memory that contains the word."""


@dataclass(frozen=True, eq=False, repr=False)
class References(Record):
    """The result of `refs`."""

    target: AddressInfo
    """The address that the user passed."""
    count: int
    """Number of references."""
    live: int
    """Number of references that keep the block reachable."""
    references: Sequence[Reference]
    """The references, or the first of them."""


@dataclass(frozen=True, eq=False, repr=False)
class Step(Record):
    """One reference of a chain, to the next block."""

    origin: str = field(metadata=named("from"))
    """The memory or register that contains the reference, in words."""
    address: Optional[int] = field(metadata=ADDRESS)
    """The address of the word; None: it is not in memory."""
    value: int = field(metadata=ADDRESS)
    """The value of the word."""
    offset: int
    """Bytes from the next block's start to the address that it refers to."""
    interior: bool
    """Whether it refers to the inside of the block."""
    disguise: Optional[str] = field(default=None, metadata=OPTIONAL)
    """The form of a disguised pointer; None: a plain address."""
    place: Optional[AddressInfo] = field(default=None, metadata=named("in", OPTIONAL))
    """The memory that contains the word."""


@dataclass(frozen=True, eq=False, repr=False)
class Skipped(Record):
    """Steps of a chain that are omitted."""

    steps: int
    """Number of these steps."""
    after: int
    """Number of steps before them."""


@dataclass(frozen=True, eq=False, repr=False)
class Path(Record):
    """The result of `path`: a shortest chain of references to a block."""

    target: AddressInfo
    """The address that the user passed."""
    steps: Sequence[Step] = field(metadata=named("path"))
    """The references, starting at a root or at a leak head. Empty: no root reaches the block, and
    it is itself a leak head."""
    blocks: int
    """Number of blocks in the whole chain."""
    skipped: Optional[Skipped]
    """The omitted steps in the middle of a long chain."""
    leader: Optional[int] = field(metadata=ADDRESS)
    """The leak head at which the chain begins; None: it begins at a root."""
