"""Report leaked blocks, possible leaks and uncollected garbage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.audit.conventions import describe_conventions
from findleaks.audit.diagnostics import is_trusted
from findleaks.audit.disguises import describe_disguises as disguise_sentences
from findleaks.audit.findings.figures import LEAKED, BlockFigures, Figures, exclude_figures
from findleaks.audit.findings.leak_sources import describe_calls, describe_sources, list_source_remedies
from findleaks.audit.findings.significance import LEAST, PART
from findleaks.audit.interior_heads import find_largest_head
from findleaks.audit.kernel_pointers import count_unreadable
from findleaks.audit.leak_commands import suggest_about, suggest_track
from findleaks.audit.leak_groups import Leak, describe_leak, is_negligible, list_leaks, merge_leaks, name_contents
from findleaks.audit.module_words import describe_module_word
from findleaks.audit.reference_evidence import (
    describe_missing_decrement,
    describe_uncollectable_cycles,
    explain_uncollected_garbage,
    find_counting_runtime,
    is_garbage,
    list_largest_uncollected,
    list_uncollected_blocks,
    summarise_reference_evidence,
)
from findleaks.audit.site_groups import group_leaks_by_site
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.engine.terms import Kind, State, Totals
from findleaks.formatting import blocks, format_count, join_words, number, shorten, size, some
from findleaks.quoting import shell_quoted
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.kernel_objects import AIO_CONTEXT, URING_NAME

if TYPE_CHECKING:
    from findleaks.audit.managed_holder import LivingOwner

# Fewest bytes of uncollected garbage for a finding; it must also be PART of all memory in use
LEAST_GARBAGE = 1 << 20
# Fewest bytes of possible leaks for a finding; they must also be PART of all memory in use
LEAST_POSSIBLE = 1 << 20
WORTH = 1 << 20  # fewest bytes of blocks with only interior pointers that a finding mentions

# If at least this percentage of the memory was not read, the finding "nothing leaked" reports this
UNREAD = 10


def find_leaked_memory(session: Session, figures: BlockFigures, possible_reported: bool) -> Finding:
    """Return the finding about definite leaks, including the blocks that only they refer to.

    The finding has 0 bytes if almost nothing leaked. Its title includes possible leaks,
    unless another finding reports them."""
    if not session.directory.blocks.totals(State.IN_USE).blocks:
        heaps = [runtime for runtime in session.runtimes if any(part.bytes for part in runtime.parts())]
        title = "No block of a known allocator was found: leaks cannot be determined."
        if heaps:
            what = some([shorten(runtime.name) for runtime in heaps])
            title = f"No block of an allocator of native code was found: the only known heap is that of {what}."
        commands = [f"runtime --only {shell_quoted(runtime.name.lower())}" for runtime in heaps if runtime.lists_objects]
        return Finding("no-blocks", 0, title, commands=(*commands, "roots") if commands else (), resident=0)
    graph, doubtful, leaks = (
        session.graph(),
        exclude_figures(figures.of(Kind.POSSIBLE), figures.of_mappings(Kind.POSSIBLE)),
        _leaks(session, figures),
    )
    facts: dict[str, object] = {
        "blocks": leaks.blocks,
        "leaks": graph.totals(Kind.DEFINITE).blocks - figures.of_mappings(Kind.DEFINITE)[0].blocks,
        "possible_blocks": doubtful.blocks,
        "possible_bytes": doubtful.bytes,
        "trusted": is_trusted(session),
    }
    maybe = f", {number(doubtful.blocks)} possible ({size(doubtful.bytes)})" if doubtful.blocks and not possible_reported else ""
    if not leaks.blocks:
        title = f"{_describe_nothing(session, bool(facts['trusted']))}{maybe}."
        return Finding(
            "nothing-lost", 0, title, _describe_conventions(session), facts=facts, commands=("find",) if maybe else (), resident=0
        )
    is_small = is_negligible(leaks.bytes, _comparison_bytes(session))
    cause, commands, owner = _describe_largest(session, leaks.bytes, facts, is_small)
    if is_small:
        title = f"Almost nothing leaked: {blocks(leaks.blocks)}, {size(leaks.bytes)}{maybe}."
        facts["bytes"] = leaks.bytes
        return Finding(
            "next-to-nothing-lost", 0, title, _describe_conventions(session), facts=facts, commands=tuple(commands[:1]), resident=0
        )
    doubt = "" if facts["trusted"] else " Memory is missing or corrupt: these blocks may be referenced from there."
    doubt += _describe_requests(session)
    cause = " ".join(filter(None, (cause, *_describe_evidence(session), _describe_disguised(session))))
    title = f"Leaked: {leaks.amount} in {blocks(leaks.blocks)} that nothing refers to{maybe}.{doubt}"
    remedies = tuple(f"if such objects owned the blocks: {one}" for one in owner.remedies) if owner is not None else ()
    remedies = remedies or _list_remedies(session, facts) or list_source_remedies(facts)
    return Finding("lost", leaks.bytes, title, cause, remedies, tuple(commands), facts, leaks.resident)


def _describe_requests(session: Session) -> str:
    """Return a sentence if the kernel may have requests whose pointers it does not show."""
    unreadable = count_unreadable(session)
    held = [format_count(unreadable[name], name) for name in (URING_NAME, AIO_CONTEXT) if name in unreadable]
    return f" Requests in flight of {join_words(held)} may refer to them: the kernel does not show these pointers." if held else ""


def _leaks(session: Session, figures: BlockFigures) -> Figures:
    """Return the figures of leaked blocks. Garbage that a collector has not freed yet is left out.
    So are leaked mappings and the blocks that only they refer to, because another finding reports
    them."""
    return exclude_figures(figures.of(*LEAKED), [_garbage(session, figures), *figures.of_mappings(*LEAKED)])


def _garbage(session: Session, figures: BlockFigures) -> Figures:
    counts = session.reference_counts
    return figures.of_blocks([list_uncollected_blocks(counts)] if counts is not None else [], *LEAKED)


def find_uncollected_garbage(session: Session, figures: BlockFigures) -> Iterator[Finding]:
    """Yield one finding if a collector has left much garbage."""
    counts, garbage = session.reference_counts, _garbage(session, figures)
    if counts is None or garbage.bytes < LEAST_GARBAGE or garbage.bytes < PART * session.directory.blocks.totals(State.IN_USE).bytes:
        return
    runtime = find_counting_runtime(session)
    if runtime is None:
        return
    why = explain_uncollected_garbage(runtime.automatic_collection)
    top = some([f"{format_count(one.uncollected, 'object')} of {shorten(one.name)}" for one in list_largest_uncollected(counts)])
    title = f"Garbage, not leaked: {garbage.amount} in {blocks(garbage.blocks)} that {runtime.name}'s collector has not freed: {top}."
    collect, enable = runtime.collect_calls
    remedies = (f"call {collect}, or {enable}",) if runtime.automatic_collection is False else (f"call {collect}",)
    evidence = summarise_reference_evidence(session)
    facts: dict[str, object] = {"blocks": garbage.blocks, "reference_counts": evidence.to_json() if evidence is not None else None}
    yield Finding(
        "uncollected-garbage",
        garbage.bytes,
        title,
        f"{why[0].upper()}{why[1:]}.",
        remedies,
        ("find --kind definite", "runtime"),
        facts,
        garbage.resident,
    )


def _describe_evidence(session: Session) -> Iterator[str]:
    counts = session.reference_counts
    words = describe_missing_decrement(counts) if counts is not None else ""
    if words:
        yield f"{words}."
    cycles = describe_uncollectable_cycles(session, counts) if counts is not None else ""
    if cycles:
        yield f"{cycles}."


def _describe_nothing(session: Session, sure: bool) -> str:
    """Return "Nothing leaked: 0 blocks definitely lost". If much memory was not read, the sentence
    is limited to the memory that was read."""
    unread = find_unread_memory(session)
    if not sure:
        return "Nothing leaked in what could be read"
    if unread.inside is not None and unread.is_inside:
        return f"Nothing leaked outside the heap of {unread.inside.what}: 0 blocks definitely lost"
    if unread.percent >= UNREAD and unread.is_worth_saying:
        return f"Nothing leaked in the other {size(unread.read)}, which findleaks reads: 0 blocks definitely lost"
    return "Nothing leaked: 0 blocks definitely lost"


def _comparison_bytes(session: Session) -> int:
    """Return the number of bytes that the leaked bytes are compared with: the larger of the blocks
    in use and the writable memory.

    In a process with a managed heap, malloc's blocks may be a small part of the writable memory."""
    writable = find_unread_memory(session).total
    return max(session.directory.blocks.totals(State.IN_USE).bytes, writable if writable >= LEAST else 0)


def _describe_largest(
    session: Session, amount: int, facts: dict[str, object], is_small: bool
) -> tuple[str, list[str], Optional[LivingOwner]]:
    """Return a sentence about the largest group, the commands that explain it, and the managed
    objects that may have owned its blocks. Adds entries to `facts`. `is_small`: whether next to
    nothing leaked, so that the finding is brief."""
    groups = merge_leaks(
        [
            leak
            for leak in list_leaks(session, session.graph(), None)
            if leak.kind == Kind.DEFINITE and not leak.is_mapping and not is_garbage(session, leak)
        ]
    )
    facts["groups"] = _first_groups(groups)
    commands = ["find --kind definite"]
    if not groups or not groups[0].examples:
        return "", commands, None
    groups[:1] = name_contents(session, groups[:1])
    cause = _describe_top(groups[0], amount)
    text, module = describe_module_word(session, groups[0])
    if module is not None:
        cause, facts["module"] = f"{cause} {text}", module
    owner = _find_living_owner(session, groups[0])
    if owner is not None:
        cause = f"{cause} {_describe_living_owner(owner)}"
        facts["living_owner"] = {**owner._asdict(), "address": hex(owner.address), "inferred": True}
        cause += describe_calls(session, groups[0], facts)
    elif not is_small:
        cause += describe_sources(session, groups[0], facts)
    sited = _describe_largest_site(session, amount)
    if sited is not None:
        facts["site"], words = sited
        cause, commands = f"{cause} {words}", ["find --by site --kind definite"]
    example = groups[0].examples[0]
    return cause, [*commands, f"whatis {example:#x}", suggest_about(groups[0]), *suggest_track(session, groups[0])], owner


def _list_remedies(session: Session, facts: Mapping[str, object]) -> tuple[str, ...]:
    """Return what a runtime suggests for the largest group of `facts`, if the blocks of the group
    are native structures that this runtime named."""
    groups, types = facts.get("groups"), session.object_types
    first = groups[0] if isinstance(groups, list) and groups else {}
    if types is None or not types.are_native or first.get("type") not in types.names:
        return ()
    named = (runtime for runtime in session.runtimes if runtime.name == types.runtime)
    return tuple(one for runtime in named for one in runtime.remedies(str(first["type"])))


def _find_living_owner(session: Session, leak: Leak) -> Optional[LivingOwner]:
    """Return the managed objects that own blocks of the same size as the leaked ones; None if there
    are none. The objects that owned the leaked blocks are gone."""
    if leak.smallest != leak.largest or not session.runtimes:
        return None
    # Few processes need this module.
    from findleaks.audit.managed_holder import find_attaching_owner, find_living_owner

    return find_attaching_owner(session, leak.smallest, leak.examples) or find_living_owner(session, leak.smallest)


def _describe_living_owner(owner: LivingOwner) -> str:
    sampled = number(owner.sampled) if owner.blocks == owner.sampled else f"{number(owner.sampled)} sampled ones"
    part = f"all {sampled}" if owner.owned == owner.sampled else f"{number(owner.owned)} of {sampled}"
    reached = f" One of these objects is reached by {shorten(owner.path, 400)}." if owner.path else ""
    if owner.call:
        sentence = f"{blocks(owner.blocks)} of this size are attached to live objects by {owner.call}. "
        sentence += f"{part[0].upper()}{part[1:]} have pointers like the leaked ones; their objects are of {shorten(owner.type)}.{reached}"
        return f"{sentence} Inferred: such objects were collected, and nothing freed the blocks that were attached to them."
    sentence = f"{blocks(owner.blocks)} of this size are reachable, and objects of {shorten(owner.type)} refer to {part}.{reached}"
    return f"{sentence} Inferred from the size: such objects may have owned the leaked blocks, too."


def _describe_largest_site(session: Session, amount: int) -> Optional[tuple[dict[str, object], str]]:
    """Return facts and a sentence about the site that allocated most of the leaked blocks.

    Returns None if sites were not recorded. `amount`: leaked bytes."""
    if not len(session.sites):
        return None
    # Few processes have recorded stacks.
    from findleaks.audit.site_stacks import SiteNames, frame_label

    leaks = group_leaks_by_site(session, session.graph())
    top = next((leak for leak in leaks if leak.kind == Kind.DEFINITE and leak.site), None)
    if top is None:
        return None
    names = SiteNames(session)
    facts = {
        "number": top.site,
        "blocks": top.blocks,
        "bytes": top.bytes,
        "stack": [frame_label(frame) for frame in names.callers(top.site)],
    }
    part = _describe_part(top, amount) if top.estimated is None else f"Most of the sampled leaked memory ({size(top.bytes)})"
    return facts, f"{part} was allocated by {names.brief(top.site)} (site {top.site})."


def _describe_part(leak: Leak, amount: int) -> str:
    held = leak.bytes + leak.indirect_bytes
    # `held` includes mappings that leaked with the blocks. `amount` does not: another finding
    # reports these mappings.
    if held > amount:
        return f"The largest group, with {size(held)} in blocks and mappings,"
    return "All of it" if held == amount else f"{100 * held // max(amount, 1)} % of it ({size(held)})"


def _describe_top(leak: Leak, amount: int) -> str:
    part = _describe_part(leak, amount)
    return f"{part} is {number(leak.blocks)} × {describe_leak(leak)}."


def find_possible_leaks(session: Session, figures: BlockFigures) -> Iterator[Finding]:
    """Yield one finding if much of the memory in use is possibly leaked."""
    found = exclude_figures(figures.of(Kind.POSSIBLE), figures.of_mappings(Kind.POSSIBLE))
    in_use = session.directory.blocks.totals(State.IN_USE)
    if found.bytes < LEAST_POSSIBLE or found.bytes < PART * in_use.bytes:
        return
    part = 100 * found.bytes // max(in_use.bytes, 1)
    title = f"Possibly leaked: {found.amount} in {blocks(found.blocks)}, {part} % of what is in use, are reached only through "
    title += "pointers into the middle of a block: stray numbers, or a convention of the program that could not be recognised."
    groups = merge_leaks(
        [leak for leak in list_leaks(session, session.graph(), None) if leak.kind == Kind.POSSIBLE and not leak.is_mapping]
    )
    cause, commands = "", ["find --kind possible"]
    head = find_largest_head(session, session.graph())
    if head is not None and 2 * head.total.bytes >= found.bytes:
        totals = Totals(found.blocks, found.bytes)
        title, cause = head.title(totals, part), head.cause(totals)
        commands += [f"whatis {head.address:#x}", f"refs {head.address:#x}"]
    elif groups and groups[0].examples:
        (top,) = name_contents(session, groups[:1])
        cause = f"The largest group: {number(top.blocks)} × {describe_leak(top)}, {size(top.bytes)}."
        commands += [f"path {top.examples[0]:#x}", f"refs {top.examples[0]:#x}"]
    facts: dict[str, object] = {
        "blocks": found.blocks,
        "in_use_bytes": in_use.bytes,
        "groups": [leak.result().to_json() for leak in groups[:3]],
    }
    if head is not None:
        facts["head"] = head.json()
    yield Finding("possible", found.bytes, title, cause, (), tuple(commands), facts, found.resident)


def _describe_conventions(session: Session) -> str:
    """Return a sentence about blocks that only interior pointers refer to; "" if they have fewer
    than WORTH bytes."""
    learned, disguised = session.learned, _describe_disguised(session)
    if learned.held.bytes < WORTH:
        return disguised
    said = "; ".join(describe_conventions(learned, session.target.arch.word))
    return f"{disguised} Reachable only by interior pointers, which count as references here: {said}.".lstrip() if said else disguised


def _describe_disguised(session: Session) -> str:
    """Return sentences about blocks that disguised pointers refer to; "" if there are no such
    blocks."""
    return " ".join(f"{line[0].upper()}{line[1:]}." for line in disguise_sentences(session))


def _first_groups(groups: Sequence[Leak]) -> list[dict[str, object]]:
    return [leak.result().to_json() for leak in groups[:3]]
