"""Report memory that findleaks does not read, and unattributed memory."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.audit.accounting import Accounting
from findleaks.audit.address_info import Describer
from findleaks.audit.diagnostics import managed_heaps
from findleaks.audit.findings.figures import BlockFigures
from findleaks.audit.findings.retainer_sentences import describe_size
from findleaks.audit.findings.significance import is_significant
from findleaks.audit.leak_commands import suggest_mapping_track
from findleaks.audit.mapping_owners import describe_referrers
from findleaks.audit.unread_memory import UnreadMemory, find_unread_memory, list_unattributed
from findleaks.engine.terms import Kind
from findleaks.formatting import format_count, number, size, to_sentence
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.unread_heaps import Holder, list_holders
from findleaks.session import Session
from findleaks.target.ranges import region_at

_SMALLER = 16  # smaller mappings than this part of the largest are left out
NAMED = 3  # maximum number of variables that a finding names


def find_unread_heaps(session: Session, accounting: Accounting, figures: BlockFigures, reported: int) -> Iterator[Finding]:
    """Yield one finding if most of the writable memory is not read.

    `reported`: bytes of this memory that other findings report."""
    unread = find_unread_memory(session)
    if unread.is_inside:
        kept = figures.of(Kind.REACHABLE, Kind.POSSIBLE)
        most, count = figures.most_common_size(Kind.REACHABLE)
        facts = {**unread.result().to_json(), "blocks": kept.blocks, "size": most, "blocks_of_size": count}
        holders = _large_holders(session, unread, kept.bytes)
        facts["holders"] = [one._asdict() for one in holders]
        cause = " ".join([describe_size(most, count), *map(_describe, holders)])
        more = ("roots", f"blocks --size {most} --limit 10")
        yield Finding("unread-memory", kept.bytes, unread.sentences(), cause, (), more, facts, kept.resident)
    elif unread.is_most:
        largest = _largest(accounting)
        looks = [f"whatis {largest:#x}", f"refs {largest:#x}"] if largest else []
        tracked = suggest_mapping_track(session) if largest and not session.runtimes else ()
        commands = [*(["runtime"] if session.runtimes else []), *looks, *tracked] or ["map"]
        left = max(unread.bytes - reported, 0)
        resident = left if accounting.known else None
        cause = " ".join(filter(None, (_describe_code(session, largest), _describe_content(session, largest))))
        yield Finding("unread-memory", left, unread.sentences(), cause, (), tuple(commands), unread.result().to_json(), resident)


def _large_holders(session: Session, unread: UnreadMemory, whole: int) -> list[Holder]:
    """Return the variables of the runtime that refer to the most memory. Each refers to at least a
    tenth of `whole` bytes, or of the bytes to which all variables refer: the smaller of the two."""
    if unread.inside is None:
        return []
    check = lambda: session.report_progress("following variables", 0.0)  # noqa: E731
    found = list_holders(unread.inside.what, session.target, session.directory.blocks, session.heap_ranges(), check)
    least = min(whole, sum(one.bytes for one in found)) / 10
    return [one for one in found if one.bytes >= least][:NAMED]


def _describe(one: Holder) -> str:
    """Return a sentence about a variable of an unread heap."""
    amounts = [format_count(one.objects, "object"), *([f"{format_count(one.blocks, 'block')} of malloc"] if one.blocks else [])]
    return to_sentence(f"{one.name} refers to {'' if one.is_whole else 'at least '}{' and '.join(amounts)}, {size(one.bytes)}")


def _largest(accounting: Accounting) -> int:
    """Return the address of the largest unattributed mapping; 0 if little memory is
    unattributed."""
    share = accounting.share(ShareSort.UNKNOWN)
    return share.parts[0].address if share is not None and share.parts and is_significant(share.bytes, accounting) else 0


def _describe_code(session: Session, address: int) -> str:
    """Return a sentence if the mapping at an address is executable, otherwise ""."""
    region = region_at(session.target.regions(), address)
    if region is None or not region.executable:
        return ""
    return f"The mapping at {address:#x} ({size(region.size)}) is executable, as memory for the code of a JIT compiler is."


def _describe_content(session: Session, address: int) -> str:
    """Return sentences about the content of the mapping at an address, and about the variables or
    blocks that refer to it; "" if neither is known."""
    describer, region = Describer(session), region_at(session.target.regions(), address)
    if region is None:
        return ""
    content = describer.content(describer.answer(address))
    content = "" if content.endswith("with zeros") else content
    sentence = f"The mapping at {address:#x} {content}." if content else ""
    # Objects of a managed heap refer to the heap from everywhere.
    if session.runtimes or region.executable:
        return sentence
    writable = [one for one in session.target.regions() if one.readable and one.writable]
    mappings = [one for one in list_unattributed(session, writable) if one.end - one.start >= region.size // _SMALLER]
    referrers = describe_referrers(session, mappings) if mappings else ""
    which = "this mapping" if len(mappings) == 1 else "these mappings"
    if not sentence:
        which = "the unattributed mapping" if len(mappings) == 1 else "the largest unattributed mappings"
    return " ".join(filter(None, (sentence, f"{referrers} to {which}." if referrers else "")))


def find_unattributed_memory(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if much memory is unattributed."""
    share = accounting.share(ShareSort.UNKNOWN)
    if share is not None and is_significant(share.bytes, accounting) and share.parts:
        most = share.parts[0]
        title = f"{size(share.bytes)} in {number(share.count)} mappings are unattributed: no known allocator or runtime owns them"
        title += f"{managed_heaps(session)}."
        title += "" if accounting.known else " It is unknown how much of it was ever touched."
        described = (_describe_code(session, most.address), _describe_content(session, most.address))
        cause = " ".join(filter(None, (f"The largest, at {most.address:#x}, has {size(most.bytes)}.", *described)))
        facts: dict[str, object] = {"mappings": share.count, "largest": hex(most.address), "largest_bytes": most.bytes}
        more = ("runtime",) if session.runtimes else suggest_mapping_track(session)
        commands = (f"whatis {most.address:#x}", f"refs {most.address:#x}", *more)
        resident = share.bytes if accounting.known else None
        yield Finding("unknown-owner", share.bytes, title, cause, (), commands, facts, resident)
