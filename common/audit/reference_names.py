"""Name references to managed objects, also if an object has several referrers."""

from __future__ import annotations

from findleaks.audit.block_type import is_managed
from findleaks.audit.member_names import is_telling, name_managed_member, name_managed_object
from findleaks.session import Session

NAMED_WORDS = 256  # words of a managed object that are searched for a reference
# Maximum number of objects that refer to a shared object, for one of them to be named
NAMED_REFERRERS = 8


def name_reference(session: Session, source: int, target: int) -> str:
    """Return the name of a word in the managed object `source` that refers to the block `target`.
    Only names that the program's author knows count; the first of them is returned, or "" if there
    is none. `source` and `target` are indices of blocks. `source` is below 0 if there is no
    source."""
    if source < 0 or not is_managed(session, source):
        return ""
    blocks, word = session.directory.blocks, session.target.arch.word
    low, first, end = blocks.address(source), blocks.address(target), blocks.address(target) + blocks.size(target)
    words = session.types.memory.words(low, min(blocks.size(source) // word, NAMED_WORDS)) or ()
    places = (low + at * word for at, value in enumerate(words) if first <= value < end)
    return next(filter(is_telling, (name_managed_member(session, place) for place in places)), "")


def name_any_reference(session: Session, target: int) -> str:
    """Return the name of a reference to a managed object. The name of a local variable includes the
    object that contains the reference: "local variable queue of coroutine main". Attributes and
    keys are preferred to local variables. Among several of them, the reference in the object
    nearest to a root is preferred. Return "" if no reference has a name that the program's author
    knows, or if many objects refer to the block."""
    graph = session.graph()
    referrers = graph.referrers(target) if is_managed(session, target) else []
    found = []
    for one in referrers if len(referrers) <= NAMED_REFERRERS else ():
        member = name_reference(session, one, target)
        if member:
            is_local = not member.startswith((".", "["))
            holder = name_managed_object(session, one) if is_local else ""
            found.append((is_local, len(graph.path(one)), f"{member} of {holder}" if holder else member))
    return min(found)[2] if found else ""
