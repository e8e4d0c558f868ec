"""Memory that a runtime owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Optional

from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class Explanation(NamedTuple):
    """Why a part is large. `sentence`: what most of it consists of. `facts`: the same facts for
    JSON output. `example`: the address of a managed object that retains some of the part; 0 if
    there is none."""

    sentence: str
    facts: Mapping[str, object]
    example: int = 0


class Part(NamedTuple):
    """Memory that the runtime owns: code, metadata, its heap.

    - `name` is used in a sentence ("code cache").
    - `used`: bytes of live objects in `ranges` (sorted, disjoint), None if unknown.
    - `inside`: the part is in blocks of an allocator, whose total includes it.
    - `parts`: known components, within these ranges.
    - `freed`: memory that the runtime freed, but did not return to the kernel.
    - `are_stacks`: the part consists of stacks of threads.
    - `has_objects`: the part has the objects of the program. Memory that these refer to is
      attributed to the part, and not to variables or other parts of the runtime.
    - `own_words`: a function that returns the words of such objects that refer to structures of the
      runtime. None if there are none.
    - `explain`: a function that explains why the part is large, None if there is none."""

    name: str
    ranges: Sequence[Range]
    used: Optional[int]
    inside: bool = False
    detail: str = ""  # "134 pages of 16 KiB: 31,204 slots live, 22,566 free"
    parts: Sequence[Part] = ()
    freed: bool = False
    are_stacks: bool = False
    has_objects: bool = False
    own_words: Optional[Callable[[], Sequence[Range]]] = None
    explain: Optional[Callable[[], Optional[Explanation]]] = None

    @property
    def bytes(self) -> int:
        """Bytes of these ranges, resident or not."""
        return sum(end - start for start, end in self.ranges)
