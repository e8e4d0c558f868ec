"""Names of the members of blocks and variables whose type is known."""

from __future__ import annotations

from collections.abc import Callable

from findleaks.audit.address_info import AddressDescription
from findleaks.formatting import printable
from findleaks.session import Session


def name_members(session: Session, answer: AddressDescription, start: int) -> Callable[[int], str]:
    """Return a function from an offset to the name of the member there, "" if unknown. `answer`
    describes the block or variable that begins at `start`."""
    if answer.block is not None:
        return lambda offset: _name_in_object(session, start + offset)
    type_ = session.members.variable(start)
    if type_ is None or (not type_.is_structure and type_.die.tag != "DW_TAG_array_type"):
        return lambda offset: ""
    return lambda offset: printable(type_.at(offset)[0].removeprefix("."), 60)


def _name_in_object(session: Session, address: int) -> str:
    """Return the name that a runtime has for the member of its object at this address."""
    return next(filter(None, (printable(runtime.name_member(address), 60) for runtime in session.runtimes)), "")
