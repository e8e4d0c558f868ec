"""Disguised pointers that count as references: as sentences, as results, and by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.engine.disguises import Disguise, Form
from findleaks.engine.terms import NO_BLOCK
from findleaks.formatting import blocks, counted, number, size, some
from findleaks.graph.disguises import Partly
from findleaks.results.amounts import Amount
from findleaks.results.notes import Disguised, DisguisedConvention, DisguisedPart
from findleaks.session import Session

MAX_SIZES = 3
MAX_PARTLY = 3

_NAMES = {
    Disguise.TAGGED: "tagged pointer",
    Disguise.UNALIGNED: "unaligned pointer",
    Disguise.SHIFTED_LEFT: "shifted pointer",
    Disguise.SHIFTED_RIGHT: "shifted pointer",
    Disguise.COMPRESSED: "compressed pointer",
    Disguise.LINKED: "XOR link",
}


class DisguisedReference(NamedTuple):
    """A disguised pointer at `address` to `value`; `source`: index of its block, -1 in a root."""

    address: int
    value: int
    source: int
    form: Form

    @property
    def name(self) -> str:
        """ "tagged pointer: tags in the top 16 bits" """
        return described(self.form)


def described(form: Form) -> str:
    """One pointer of the form, with what it is made of."""
    return f"{_NAMES[form.kind]}: {_detail(form)}"


def _detail(form: Form) -> str:
    if form.kind == Disguise.SHIFTED_LEFT:
        return f"address << {form.shift}"
    if form.kind == Disguise.SHIFTED_RIGHT:
        return f"address >> {form.shift}"
    if form.kind == Disguise.COMPRESSED:
        return f"32 bits, {form.base:#x} + value × {1 << form.shift}"
    return {
        Disguise.TAGGED: "tags in the top 16 bits",
        Disguise.UNALIGNED: "in a packed structure",
        Disguise.LINKED: "addresses of both neighbours combined",
    }[form.kind]


def _users(form: Form) -> str:
    """What the pointers of a form are, with an example that readers may know."""
    if form.kind == Disguise.SHIFTED_LEFT:
        return f"pointers shifted left by {counted(form.shift, 'bit')}"
    if form.kind == Disguise.SHIFTED_RIGHT:
        return f"pointers shifted right by {counted(form.shift, 'bit')}"
    if form.kind == Disguise.COMPRESSED:
        return f"compressed pointers: 32-bit values, {form.base:#x} + value × {1 << form.shift}"
    return {
        Disguise.TAGGED: "pointers with tags in their top 16 bits (as in boost::lockfree or NaN boxing)",
        Disguise.UNALIGNED: "unaligned pointers (as in packed structures or epoll_event[])",
        Disguise.LINKED: "links of XOR lists (the addresses of both neighbours, combined by XOR)",
    }[form.kind]


def sentences(session: Session) -> Iterator[str]:
    """What counts as reachable by disguised pointers, which groups have some, and what was not
    searched."""
    found = session.disguised
    for one in found.conventions:
        if one.blocks:
            yield (
                f"{blocks(one.blocks)}{_sizes(one.sizes)} {'is' if one.blocks == 1 else 'are'} referenced only by {_users(one.form)}: "
                f"they count as reachable; --heuristics none reports them as leaked"
            )
    if found.held.blocks > sum(one.blocks for one in found.conventions):
        yield f"with what only these blocks refer to, {blocks(found.held.blocks)} ({size(found.held.bytes)}) count as reachable"
    for part in partly(session)[:MAX_PARTLY]:
        count = f"{number(part.blocks)} of {number(part.of)} leaked blocks of {number(part.size)} B"
        yield f"{count} have a disguised pointer from live memory: {_users(part.form)}"
    if found.left_out:
        yield f"disguised pointers to these blocks were searched for in a sample of the memory ({size(found.left_out)})"


def _sizes(sizes: Sequence[int]) -> str:
    if not sizes:
        return ""
    more = len(sizes) - MAX_SIZES
    words = [number(one) for one in sizes[:MAX_SIZES]]
    return f" of {', '.join(words)} B and {number(more)} more sizes" if more > 0 else f" of {some(words)} B"


def partly(session: Session) -> Sequence[Partly]:
    """Groups some of whose leaked blocks have a disguised pointer, the largest first."""
    return sorted(session.disguised.partly, key=lambda one: (-one.blocks * one.size, one.size))


def disguised_pointers(session: Session) -> Disguised:
    """The forms of disguised pointers that count in `session.latest`."""
    found = session.disguised
    return Disguised(
        conventions=[
            DisguisedConvention(*_form(one.form), one.offset, tuple(one.sizes) or None, one.blocks, one.bytes) for one in found.conventions
        ],
        held=Amount.of(found.held),
        partly=[DisguisedPart(*_form(one.form), one.size, one.blocks, one.of) for one in partly(session)],
        left_out=found.left_out,
    )


def _form(form: Form) -> tuple[str, Optional[int], Optional[int]]:
    """A form's name, base and shift."""
    compressed = form.kind == Disguise.COMPRESSED
    return form.kind.name.lower(), form.base if compressed else None, form.shift if compressed or form.shift else None


def referred(session: Session) -> frozenset[int]:
    """Indices of the blocks that a disguised pointer refers to."""
    return session.once(referred, lambda: frozenset(edge & NO_BLOCK for edge in session.disguised.edges))


def disguised_references(session: Session, target: int, source: int = -2) -> Iterator[DisguisedReference]:
    """The disguised pointers to block `target`: from block `source`, -1 for roots, or from all."""
    found = session.disguised
    if target not in referred(session):
        return
    start = session.directory.blocks.address(target)
    wanted = None if source == -2 else (source if source >= 0 else NO_BLOCK)
    for at, edge in enumerate(found.edges):
        if edge & NO_BLOCK == target and wanted in (None, edge >> 32):
            one = found.conventions[found.numbers[at]]
            origin = -1 if edge >> 32 == NO_BLOCK else edge >> 32
            yield DisguisedReference(found.places[at], start + one.offset, origin, one.form)
