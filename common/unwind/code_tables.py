"""Tables of a language that describe its machine code, for code without call frame information and
symbols. Go's function table is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional, Protocol

if TYPE_CHECKING:
    from findleaks.unwind.cfi import Row
    from findleaks.unwind.stacks import NamedFrame


class CodeTable(Protocol):
    """Describes the code of a language."""

    def row(self, pc: int) -> Optional[Row]:
        """Return how to unwind the frame of the function at `pc`. None if the code is of another
        language, or if the frame is unwound through its frame pointer. In a caller's frame, `pc`
        must be inside the call instruction."""
        ...

    def names(self, pc: int, call: int) -> Sequence[NamedFrame]:
        """Return the functions inlined at an address, innermost first, and then the function
        itself; () for code of other languages. `call`: the address that selects the function. In a
        caller's frame, it is inside the call instruction."""
        ...
