"""Describe disguised pointers that count as references, as sentences, as typed results, and by
block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.engine.disguises import Disguise, Form
from findleaks.engine.terms import NO_BLOCK
from findleaks.formatting import blocks, number, size, some
from findleaks.results.amounts import Amount
from findleaks.results.notes import Disguised
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.graph.disguises import DisguiseConvention, Partly
    from findleaks.results.note_parts import DisguisedConvention, DisguisedPart
    from findleaks.session import Session

MAX_SIZES = 3
MAX_PARTLY = 3


class _Wording(NamedTuple):
    """Words for the pointers of one kind of disguise."""

    name: str  # of one pointer; "s" makes the plural
    # A description of the pointer's bits, with the placeholders {base}, {shift} and {scale}
    detail: str
    examples: str = ""  # well-known software with such pointers


_WORDING = {
    Disguise.TAGGED: _Wording("tagged pointer", "tags in the top 16 bits", "boost::lockfree or NaN boxing"),
    Disguise.UNALIGNED: _Wording(
        "unaligned pointer", "at an address that is not a multiple of the word size", "packed structures or epoll_event[]"
    ),
    Disguise.SHIFTED_LEFT: _Wording("shifted pointer", "address << {shift}"),
    Disguise.SHIFTED_RIGHT: _Wording("shifted pointer", "address >> {shift}"),
    Disguise.COMPRESSED: _Wording("compressed pointer", "32 bits, {base:#x} + value × {scale}"),
    Disguise.LINKED: _Wording("XOR link", "addresses of both neighbours combined"),
    Disguise.HALVES: _Wording("split pointer", "lower and upper half in separate 32-bit numbers", "arguments of makecontext"),
    Disguise.SIX_BYTES: _Wording("six-byte pointer", "48 bits, at any address"),
    Disguise.BYTE_SWAPPED: _Wording("byte-swapped pointer", "address in the other byte order"),
    Disguise.RELATIVE: _Wording("relative pointer", "distance from the pointer itself", "offset_ptr of Boost"),
    Disguise.RELATIVE_32: _Wording("relative pointer", "32-bit distance from the pointer itself"),
    Disguise.SAFE_LINKED: _Wording("safe-linked pointer", "address XOR own address >> 12", "glibc's free lists"),
    Disguise.MANGLED: _Wording("mangled pointer", "address XOR a random key"),
}


class DisguisedReference(NamedTuple):
    """A disguised pointer at `address` that refers to `value`. `source`: index of the block that
    contains the pointer, -1 for a root."""

    address: int
    value: int
    source: int
    form: Form

    @property
    def name(self) -> str:
        """Description of the disguise: "tagged pointer: tags in the top 16 bits"."""
        return describe_form(self.form)


def describe_form(form: Form) -> str:
    """Describe a form of disguise: "tagged pointer: tags in the top 16 bits"."""
    return f"{_WORDING[form.kind].name}: {_detail(form)}"


def _describe_pointers(form: Form) -> str:
    """Return a phrase for pointers of this form: "tagged pointers (tags in the top 16 bits, as in
    boost::lockfree or NaN boxing)"."""
    words = _WORDING[form.kind]
    examples = f", as in {words.examples}" if words.examples else ""
    return f"{words.name}s ({_detail(form)}{examples})"


def _detail(form: Form) -> str:
    return _WORDING[form.kind].detail.format(base=form.base, shift=form.shift, scale=1 << form.shift)


def describe_disguises(session: Session) -> Iterator[str]:
    """Yield sentences about three subjects: blocks that are reachable only by disguised pointers,
    groups in which some leaked blocks have a disguised pointer, and memory that was not
    searched."""
    found = session.disguised
    for one in found.conventions:
        if one.blocks:
            count = f"{blocks(one.blocks)}{_sizes(one.sizes)} {'is' if one.blocks == 1 else 'are'}"
            why = f"referenced only by {_describe_pointers(one.form)}"
            yield f"{count} {why}: they count as reachable; --heuristics none reports them as leaked"
    if found.held.blocks > sum(one.blocks for one in found.conventions):
        count = f"{blocks(found.held.blocks)} ({size(found.held.bytes)})"
        yield f"together with the blocks that only these refer to, {count} count as reachable"
    for part in list_partly_disguised(session)[:MAX_PARTLY]:
        count = f"{number(part.blocks)} of {number(part.of)} leaked blocks of {number(part.size)} B"
        yield f"{count} have a disguised pointer from live memory: {_describe_pointers(part.form)}"
    if found.left_out:
        yield f"only a sample of the memory ({size(found.left_out)}) was searched for disguised pointers to these blocks"


def _sizes(sizes: Sequence[int]) -> str:
    if not sizes:
        return ""
    more = len(sizes) - MAX_SIZES
    words = [number(one) for one in sizes[:MAX_SIZES]]
    return f" of {', '.join(words)} B and {number(more)} more sizes" if more > 0 else f" of {some(words)} B"


def list_partly_disguised(session: Session) -> Sequence[Partly]:
    """Return the groups in which some leaked blocks have a disguised pointer, the largest first."""
    return sorted(session.disguised.partly, key=lambda one: (-one.blocks * one.size, one.size))


def disguised_pointers(session: Session) -> Disguised:
    """Return the disguised pointers that count as references in `session.graph()`, by form."""
    found = session.disguised
    return Disguised(
        conventions=[_convention(one) for one in found.conventions],
        held=Amount.of(found.held),
        partly=[_part(one) for one in list_partly_disguised(session)],
        left_out=found.left_out,
    )


# Few programs use disguised pointers, so the modules with these results are imported when they are
# needed.


def _convention(one: DisguiseConvention) -> DisguisedConvention:
    from findleaks.results.note_parts import DisguisedConvention

    return DisguisedConvention(*_form(one.form), one.offset, tuple(one.sizes) or None, one.blocks, one.bytes)


def _part(one: Partly) -> DisguisedPart:
    from findleaks.results.note_parts import DisguisedPart

    return DisguisedPart(*_form(one.form), one.size, one.blocks, one.of)


def _form(form: Form) -> tuple[str, Optional[int], Optional[int]]:
    """Return a form's name, base and shift."""
    compressed = form.kind == Disguise.COMPRESSED
    return form.kind.name.lower(), form.base if compressed else None, form.shift if compressed or form.shift else None


def list_disguised_targets(session: Session) -> frozenset[int]:
    """Return the indices of the blocks that a disguised pointer refers to."""
    return session.once(list_disguised_targets, lambda: frozenset(edge & NO_BLOCK for edge in session.disguised.edges))


def disguised_references(session: Session, target: int, source: int = -2) -> Iterator[DisguisedReference]:
    """Yield the disguised pointers to block `target`. `source`: index of the block that must
    contain them, -1 for roots; default: any."""
    found = session.disguised
    if target not in list_disguised_targets(session):
        return
    start = session.directory.blocks.address(target)
    wanted = None if source == -2 else (source if source >= 0 else NO_BLOCK)
    for at, edge in enumerate(found.edges):
        if edge & NO_BLOCK == target and wanted in (None, edge >> 32):
            one = found.conventions[found.numbers[at]]
            origin = -1 if edge >> 32 == NO_BLOCK else edge >> 32
            yield DisguisedReference(found.places[at], start + one.offset, origin, one.form)
