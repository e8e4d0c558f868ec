"""A block that is in use as long as another block is, although that block does not refer to it."""

from __future__ import annotations

from findleaks.value_classes import NamedTuple


class Dependent(NamedTuple):
    """A block that the runtime frees together with another block.

    Example: a table of GObject refers to the signal handlers of an instance, and the instance frees
    them. The words of this table are not references (Runtime.bookkeeping).

    `owner`: an address in the other block; if it is in no block, the dependent block is always in
    use. `address`: the start of the dependent block. `phrase`: its name ("signal handlers")."""

    owner: int
    address: int
    phrase: str
