"""Report mappings that nothing refers to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.mapped import TYPE
from findleaks.audit.accounting import Accounting
from findleaks.audit.block_type import find_block_type
from findleaks.audit.findings.figures import LEAKED, BlockFigures
from findleaks.audit.findings.significance import is_significant
from findleaks.audit.leak_commands import suggest_mapping_track
from findleaks.audit.leak_groups import Leak, list_leaks, merge_leaks
from findleaks.audit.mapping_contents import HUGE_PAGES, STACK
from findleaks.audit.reference_evidence import list_mapping_blocks
from findleaks.engine.terms import Kind
from findleaks.formatting import blocks, format_count, number, size, some
from findleaks.runtimes.finding import Finding
from findleaks.session import Session

_GROUPS = 3  # groups that are named


def find_leaked_mappings(session: Session, accounting: Accounting, figures: BlockFigures) -> Iterator[Finding]:
    """Yield a finding about leaked mappings and one about possibly leaked mappings. Each is yielded
    only if these mappings are at least a tenth of the memory."""
    for kinds, word in ((LEAKED, "Leaked"), ((Kind.POSSIBLE,), "Possibly leaked")):
        own, below = figures.of_mappings(*kinds)
        if not own.blocks or (kinds != LEAKED and not is_significant(own.bytes if own.resident is None else own.resident, accounting)):
            continue
        groups = [leak for leak in merge_leaks(list_leaks(session, session.graph(), None)) if leak.kind in kinds and leak.is_mapping]
        title = f"{word}: {own.amount} in {format_count(own.blocks, 'anonymous mapping')} that no word in live memory refers to"
        title += f": {some([_describe(one) for one in groups], _GROUPS)}." if groups else "."
        below_blocks = figures.mappings_below_blocks() if kinds == LEAKED else []
        kind = groups[0].type if groups else find_block_type(session, below_blocks[0]) if below_blocks else TYPE
        cause = _explain(kinds, kind, session.target.live)
        if below_blocks:
            cause += f" Leaked blocks refer to {number(len(below_blocks))} of these mappings: find how these blocks leak."
        cause += (
            f" Only the leaked mappings refer to {blocks(below.blocks)} ({below.amount}), which leaked with them." if below.blocks else ""
        )
        example = groups[0].examples[0] if groups else _find_example(session, kinds)
        commands = (f"whatis {example:#x}", *suggest_mapping_track(session), "find")
        resident = own.resident if own.resident is None or below.resident is None else own.resident + below.resident
        yield Finding(
            "leaked-mappings" if kinds == LEAKED else "possibly-leaked-mappings",
            own.bytes + below.bytes,
            title,
            cause,
            (),
            commands,
            _facts(own.blocks, groups, below.blocks, below.bytes),
            resident,
        )


def _find_example(session: Session, kinds: Sequence[Kind]) -> int:
    """Return the start of the first mapping of these kinds."""
    return session.directory.blocks.address(list_mapping_blocks(session, *kinds)[0])


def _describe(leak: Leak) -> str:
    """Describe a group of mappings: '87 of 640 KiB that begin with "FRAME 990 of the camera"'."""
    sizes = size(leak.smallest) if leak.smallest == leak.largest else f"{size(leak.smallest)}–{size(leak.largest)}"
    function = leak.type.removeprefix(TYPE).strip()
    begins = f" that begin{'s' if leak.blocks == 1 else ''} with {leak.hint}" if leak.hint and not function else ""
    return f"{number(leak.blocks)} of {sizes}{f' {function}' if function else ''}{begins}"


def _explain(kinds: Sequence[Kind], kind: str, live: bool) -> str:
    """Explain the mappings. `kind`: the type of the largest group; if there is no group, the type
    of a mapping whose leak head is a block."""
    if Kind.POSSIBLE in kinds:
        if kind == HUGE_PAGES and not live:
            return "No word in this process refers to them, but the core does not show whether other processes share these huge pages."
        return (
            "They may be in use without an address in memory: as parts of a reservation whose base the program has, as signal stacks, "
            "as registered buffers, or by page numbers."
        )
    if kind.startswith(STACK):
        return "These are stacks of coroutines whose handles were lost before the coroutines ended."
    if kind == HUGE_PAGES:
        return "Memory from mmap was not unmapped."
    return "Memory from mmap was not unmapped. The kernel merges neighbouring mappings, so one mapping may come from several calls of mmap."


def _facts(mappings: int, groups: Sequence[Leak], held: int, held_bytes: int) -> dict[str, object]:
    return {
        "mappings": mappings,
        "sizes": [
            {"size": leak.smallest, "mappings": leak.blocks, "type": leak.type, "content": leak.hint or None} for leak in groups[:20]
        ],
        "examples": [hex(start) for leak in groups[:1] for start in leak.examples],
        "indirect_blocks": held,
        "indirect_bytes": held_bytes,
    }
