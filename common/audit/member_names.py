"""Find names of the members of blocks and variables whose type is known."""

from __future__ import annotations

from collections.abc import Callable

from findleaks.audit.address_info import AddressDescription, BlockInfo
from findleaks.audit.declared_types import declared_types
from findleaks.audit.thread_local_names import find_thread_local
from findleaks.formatting import shorten
from findleaks.session import Session


def name_members(session: Session, answer: AddressDescription, start: int) -> Callable[[int], str]:
    """Return a function that maps an offset to the name of the member at this offset, or to "" if
    it is unknown. `answer` describes the block or variable that begins at `start`."""
    if answer.object is not None:
        found = answer.object
        return lambda offset: found.member_at(start + offset)
    if answer.block is not None:
        return _name_members_of_block(session, answer.block, start)
    type_ = session.members.variable(start)
    if type_ is None or (not type_.is_structure and type_.die.tag != "DW_TAG_array_type"):
        return lambda offset: ""
    return lambda offset: shorten(type_.at(offset)[0].removeprefix("."), 60)


def _name_members_of_block(session: Session, block: BlockInfo, start: int) -> Callable[[int], str]:
    known = block.type or block.hint or block.state != "in-use"
    type_ = None if known else declared_types(session).find(block.index)
    if type_ is None:
        return lambda offset: name_in_block(session, start + offset)
    size = type_.size
    return lambda offset: shorten(type_.at(offset)[0].removeprefix("."), 60) if offset < size else ""


def name_managed_member(session: Session, address: int, holder: int = 0) -> str:
    """Return the runtime's name for the member at this address, in one of its objects or frames;
    see Runtime.name_member."""
    return next(filter(None, (shorten(runtime.name_member(address, holder), 80) for runtime in session.runtimes)), "")


def name_in_block(session: Session, address: int, holder: int = 0) -> str:
    """Return the name of the member at an address in a block: a member of a managed object, or a
    thread-local variable. The block may contain the thread-local variables of a file that was
    loaded later."""
    member = name_managed_member(session, address, holder)
    named = find_thread_local(session, address) if not member else None
    return named.label if named is not None else member


def name_managed_object(session: Session, index: int) -> str:
    """Return the runtime's phrase for the object in a block; see Runtime.name_object."""
    return next(filter(None, (shorten(runtime.name_object(index), 120) for runtime in session.runtimes)), "")


def is_telling(member: str) -> bool:
    """Whether this name is in the program's source: it is an attribute, a key, or a variable."""
    return member.startswith((".", '["')) or " " in member
