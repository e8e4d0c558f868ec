"""Findings of `verdict`: what is wrong with a process's memory and what to try, the largest first.

They are lost blocks, memory held or kept, and unjoined threads. A finding says only what was
measured and which command shows it. A healthy process has the one finding "nothing is lost"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.retention import FreeMemory
from findleaks.audit.accounting import Accounting, Share, Store
from findleaks.audit.conventions import sentences
from findleaks.audit.diagnostics import managed_heaps, trusted
from findleaks.audit.disguises import sentences as disguise_sentences
from findleaks.audit.leak_groups import Leak, lost, merge, track_words, what
from findleaks.audit.owner import Sort
from findleaks.engine.terms import Kind, State
from findleaks.formatting import blocks, number, printable, size, some
from findleaks.quoting import shell_quoted
from findleaks.runtimes import directory as runtimes
from findleaks.runtimes.base import Finding
from findleaks.session import Session

if TYPE_CHECKING:
    from findleaks.audit.top_retainer import TopRetainer

LEAST, PART = 8 << 20, 0.10
"""A finding about kept or unowned memory needs LEAST bytes that are also PART of _denominator."""

LEAST_POSSIBLE = 1 << 20  # fewest bytes of possible leaks for a finding; also PART of those in use
WORTH = 1 << 20  # fewest bytes held by the program's conventions that are mentioned

NEXT_TO_NOTHING = 64 << 10
"""Fewer lost bytes, with 1,000 times as many in use, are called healthy, though they are shown."""

ENDED = 10  # fewest unjoined threads for a finding: fewer may be about to be joined


def findings(session: Session, accounting: Accounting, measure: Callable[[Store], FreeMemory]) -> list[Finding]:
    """All findings, the largest first; what is not wrong but worth saying comes last. If residency
    is unknown, memory of no known owner follows what is known to be there, as its pages may never
    have been touched. `measure` examines an allocator's free memory."""
    found = [*_kept(accounting, measure), *_cached(accounting), *_freed(session, accounting)]
    grown = _top_retainer(session, accounting)
    found += [*_native(accounting, grown), *_held(session, accounting, grown), *_threads(accounting), *runtimes.findings(session.target)]
    possible = list(_possible(session))
    found += possible
    unknown = list(_unknown(session, accounting))
    found += unknown if accounting.known else []
    leaks = _lost(session, bool(possible))
    found += [leaks] if leaks.bytes else []
    found.sort(key=lambda finding: -finding.bytes)
    if not leaks.bytes and leaks.kind == "next-to-nothing-lost":
        found.append(leaks)
    found += unknown if not accounting.known else []
    return found if leaks in found else [*found, leaks]


def _is_significant(amount: int, accounting: Accounting) -> bool:
    return amount >= LEAST and amount >= PART * _denominator(accounting)


def _denominator(accounting: Accounting) -> int:
    """Denominator of fractions: resident bytes; if unknown, mapped bytes without stacks and files,
    most pages of which were never touched."""
    if accounting.known:
        return accounting.total
    return sum(share.bytes for share in accounting.shares if share.sort not in ("stacks", "unjoined", "cached-stacks", "files"))


def _without_files(accounting: Accounting) -> int:
    """`_denominator` without mapped files: cores of a JVM have 120 MiB of its class archive."""
    files = sum(share.bytes for share in accounting.shares if share.sort == "files") if accounting.known else 0
    return _denominator(accounting) - files


# -- lost blocks


def _lost(session: Session, possible_reported: bool) -> Finding:
    """Definite leaks with the blocks that only they hold; 0 bytes if next to nothing is lost. Its
    title has the possible leaks, too, unless another finding reports them."""
    in_use = session.directory.blocks.totals(State.IN_USE)
    if not in_use.blocks:
        return Finding("no-blocks", 0, "No block of a known allocator was found: nothing can be said of leaks.")
    graph = session.latest
    definite, indirect, doubtful = (graph.totals(kind) for kind in (Kind.DEFINITE, Kind.INDIRECT, Kind.POSSIBLE))
    count, amount = definite.blocks + indirect.blocks, definite.bytes + indirect.bytes
    facts: dict[str, object] = {
        "blocks": count,
        "leaks": definite.blocks,
        "possible_blocks": doubtful.blocks,
        "possible_bytes": doubtful.bytes,
        "trusted": trusted(session),
    }
    maybe = f", {number(doubtful.blocks)} possible ({size(doubtful.bytes)})" if doubtful.blocks and not possible_reported else ""
    if not count:
        title = f"Nothing is lost: 0 blocks for sure{maybe}." if facts["trusted"] else f"Nothing is lost in what could be read{maybe}."
        return Finding("nothing-lost", 0, title, _by_convention(session), facts=facts, commands=("find",) if maybe else ())
    groups = merge([leak for leak in lost(session, graph, None) if leak.kind == Kind.DEFINITE])
    top = groups[0] if groups else None
    facts["groups"] = [leak.json() for leak in groups[:3]]
    commands = ["find --kind definite"]
    cause = ""
    if top is not None and top.examples:
        cause = _top(top, amount)
        sited = _largest_site(session, amount)
        if sited is not None:
            facts["site"], words = sited
            cause, commands = f"{cause} {words}", ["find --by site --kind definite"]
        commands += [f"whatis {top.examples[0]:#x}", f"path {top.examples[0]:#x}", *track_words(session, top)]
    if amount < NEXT_TO_NOTHING and amount * 1000 < in_use.bytes:
        title = f"Next to nothing is lost: {blocks(count)}, {size(amount)}{maybe}."
        return Finding(
            "next-to-nothing-lost", 0, title, _by_convention(session), facts={**facts, "bytes": amount}, commands=tuple(commands[:1])
        )
    doubt = "" if facts["trusted"] else " Memory is missing or corrupt: what is called lost may be held there."
    title = f"Lost: {size(amount)} in {blocks(count)} that nothing refers to{maybe}.{doubt}"
    cause = " ".join(filter(None, (cause, _disguised(session))))
    return Finding("lost", amount, title, cause, ("free them where they are made, or keep a pointer to them",), tuple(commands), facts)


def _largest_site(session: Session, amount: int) -> Optional[tuple[dict[str, object], str]]:
    """Who allocated most of what is lost, as facts and as a sentence; None if that was not
    recorded. `amount`: bytes lost."""
    if not len(session.sites):
        return None
    # few processes have recorded stacks
    from findleaks.audit.site_groups import lost_by_site
    from findleaks.audit.site_stacks import SiteNames, label

    leaks = lost_by_site(session, session.latest)
    top = next((leak for leak in leaks if leak.kind == Kind.DEFINITE and leak.site), None)
    if top is None:
        return None
    names = SiteNames(session)
    facts = {"number": top.site, "blocks": top.blocks, "bytes": top.bytes, "stack": [label(frame) for frame in names.callers(top.site)]}
    part = _part(top, amount) if top.estimated is None else f"Of the lost blocks that were sampled, most ({size(top.bytes)})"
    return facts, f"{part} was allocated by {names.brief(top.site)} (site {top.site})."


def _part(leak: Leak, amount: int) -> str:
    held = leak.bytes + leak.indirect_bytes
    return "All of it" if held == amount else f"{100 * held // max(amount, 1)} % of it ({size(held)})"


def _top(leak: Leak, amount: int) -> str:
    part = _part(leak, amount)
    return f"{part} is {number(leak.blocks)} × {what(leak)}."


def _possible(session: Session) -> Iterator[Finding]:
    """One finding, if much of what is in use may be either lost or held."""
    graph = session.latest
    found = graph.totals(Kind.POSSIBLE)
    in_use = session.directory.blocks.totals(State.IN_USE)
    if found.bytes < LEAST_POSSIBLE or found.bytes < PART * in_use.bytes:
        return
    part = 100 * found.bytes // max(in_use.bytes, 1)
    title = f"Perhaps lost: {size(found.bytes)} in {blocks(found.blocks)}, {part} % of what is in use, are reached only by way of "
    title += "pointers into the middle of a block: stray numbers, or a convention of the program that could not be recognised."
    groups = merge([leak for leak in lost(session, graph, None) if leak.kind == Kind.POSSIBLE])
    cause, commands = "", ["find --kind possible"]
    if groups and groups[0].examples:
        top = groups[0]
        cause = f"The largest group: {number(top.blocks)} × {what(top)}, {size(top.bytes)}."
        commands += [f"path {top.examples[0]:#x}", f"refs {top.examples[0]:#x}"]
    facts: dict[str, object] = {"blocks": found.blocks, "in_use_bytes": in_use.bytes, "groups": [leak.json() for leak in groups[:3]]}
    remedies = ("see with `path` what holds them",)
    yield Finding("possible", found.bytes, title, cause, remedies, tuple(commands), facts)


def _by_convention(session: Session) -> str:
    """What the program's conventions hold, as a sentence; "" for less than WORTH."""
    learned = session.learned
    disguised = _disguised(session)
    if learned.held.bytes < WORTH:
        return disguised
    said = "; ".join(sentences(learned, session.target.arch.word))
    return f"{disguised} Held by interior pointers, which count here: {said}.".lstrip()


def _disguised(session: Session) -> str:
    """What disguised pointers refer to, as sentences; "" if the program has none."""
    return " ".join(f"{line[0].upper()}{line[1:]}." for line in disguise_sentences(session))


# -- kept by allocators


def _kept(accounting: Accounting, measure: Callable[[Store], FreeMemory]) -> Iterator[Finding]:
    for store in accounting.stores:
        if not _is_significant(store.kept, accounting):
            continue
        name, call = store.allocator.name, store.allocator.release_call
        one = store.allocator.retention(measure(store))
        facts: dict[str, object] = {"allocator": name, "kept": store.kept, "returnable": one.returns, "call": call or None}
        facts.update({"causes": list(one.sorts), **one.evidence})
        title = f"Not a leak: {name} keeps {size(store.kept)} of free memory."
        if not accounting.known:
            title = f"Not a leak: {name} has {size(store.kept)} of free memory; how much of it is resident is not known."
        elif one.returns is not None and call:
            title += f" {call} would return {size(one.returns)}."
        commands = ("map", "caches --by-arena --sort free --limit 10")
        yield Finding("kept", store.kept, title, _sentence(one.cause), one.tries, commands, facts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _cached(accounting: Accounting) -> Iterator[Finding]:
    for store in accounting.stores:
        if _is_significant(store.cached, accounting):
            name = store.allocator.name
            title = f"Not a leak: {size(store.cached)} of freed blocks are in {name}'s thread caches, each for its own thread."
            setting = store.allocator.cache_setting
            facts: dict[str, object] = {"allocator": name}
            commands = ("caches --by-thread --sort cached --limit 10",)
            yield Finding("thread-caches", store.cached, title, "", (setting,) if setting else (), commands, facts)


# -- freed by a runtime


def _freed(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Resident bytes of managed heaps that their runtime freed and did not return to the kernel."""
    for runtime in session.runtimes:
        for part in runtime.parts():
            freed = [one for one in part.parts if one.freed]
            ranges = [one for its in freed for one in its.ranges]
            present = [session.target.resident(start, end) if accounting.known else None for start, end in ranges]
            held = sum(end - start if there is None else there for there, (start, end) in zip(present, ranges))
            if _is_significant(held, accounting):
                whose = printable(f"{runtime.name} {part.name}")
                title = f"Not a leak: {size(held)} of {whose} belong to no object: they were freed and not given back to the kernel."
                cause = f"These are {printable(freed[0].detail)} in no space any more; the runtime's own figures leave them out."
                facts: dict[str, object] = {"runtime": runtime.name, "mapped_bytes": sum(one.bytes for one in freed)}
                yield Finding("freed-by-runtime", held, title, cause, (), ("runtime",), facts)


# -- held by managed objects


def _native(accounting: Accounting, grown: Optional[TopRetainer]) -> Iterator[Finding]:
    """Managed objects, native memory that they hold, and variables that hold them, if known."""
    for one in accounting.native:
        if one.bytes < HELD or one.bytes < GROWN * _without_files(accounting) or (grown is not None and _is_variable(grown)):
            continue
        remedies = ["let go of these objects, or close them, when they are no longer used"]
        if one.unreported:
            remedies.append(f"have them report what they hold to {one.name}, so that it collects in time")
        title = f"Held, not lost: {one.sentence()}."
        cause, commands, facts = f"{_sentence(one.cause())}", ["runtime"], one.json()
        named = [(owner, held) for owner, held in (grown.variables if grown is not None else ()) if held.bytes >= PART * one.bytes]
        if named:
            cause += f" Of the variables that hold it, {some([f'{owner.name} has {size(held.bytes)}' for owner, held in named])}."
            commands.append(f"roots {shell_quoted(named[0][0].word)} --depth 4")
            facts["variables"] = [{"name": owner.name, "bytes": held.bytes, "blocks": held.blocks} for owner, held in named]
        yield Finding("held-by-managed-objects", one.bytes, title, cause, tuple(remedies), tuple(commands), facts)


# -- held by a root

HELD, GROWN = 8 << 20, 0.25
"""Bytes in use, and fraction of memory without files, from which the top root is looked for."""

GROWTH = 0.5
"""Least fraction of _denominator that is in use, mostly under no single root, for a finding."""


def _top_retainer(session: Session, accounting: Accounting) -> Optional[TopRetainer]:
    """The root that holds most. It takes a dominator tree of all reached blocks, made only where
    that may lead to a finding."""
    used = sum(store.in_use for store in accounting.stores)
    if used < HELD or used < GROWN * _without_files(accounting):
        return None
    from findleaks.audit.top_retainer import find_top_retainer

    return find_top_retainer(session)


def _is_variable(grown: TopRetainer) -> bool:
    """Whether a single variable of a managed language holds most."""
    return grown.is_most and grown.owner.sort == Sort.MANAGED and grown.totals.bytes >= HELD


def _held(session: Session, accounting: Accounting, found: Optional[TopRetainer]) -> Iterator[Finding]:
    """What a single root holds most of. Only its owner can say if that is wrong, so it is named."""
    used = sum(store.in_use for store in accounting.stores)
    if found is None or not found.is_most:
        half = found is not None and used >= GROWTH * _denominator(accounting)
        # Where managed objects hold much, the finding about them says more.
        if half and not any(one.bytes >= HELD for one in accounting.native):
            yield _held_by_many(session)
        return
    if found.totals.bytes < HELD:
        return
    name, retained = found.owner.label, found.totals
    part = 100 * retained.bytes // max(found.reached.bytes, 1)
    facts: dict[str, object] = {"root": found.owner.name, "where": found.owner.where or None, "blocks": retained.blocks}
    absent = _not_resident(retained.bytes, used, accounting)
    if found.owner.managed:
        title = f"Held, not lost: {size(retained.bytes)} of native memory in {blocks(retained.blocks)}, {part} % of what is reached, are "
        title += f"held from a managed heap: {name}."
        most, count = _most_common_size(session)
        cause = f"Of the blocks in use {number(count)} are of {number(most)} B: {size(most * count)}, more than of any other size.{absent}"
        facts.update({"size": most, "blocks_of_size": count})
        commands: tuple[str, ...] = ("runtime", f"roots {shell_quoted(found.owner.word)} --depth 4", f"blocks --size {most} --limit 10")
        remedies: tuple[str, ...] = ("close what holds native memory when it is no longer used, rather than leave it to the collector",)
        yield Finding("held-from-managed-heap", retained.bytes, title, cause, remedies, commands, facts)
        return
    title = f"Held, not lost: {name} alone holds {size(retained.bytes)} in {blocks(retained.blocks)}, {part} % of what is reached."
    cause = ""
    if found.field is not None and found.field.what:
        cause = f"{found.field.name if found.field.place else 'What it is'}: {found.field.what}."
        facts.update({"field": found.field.name, "what": found.field.what, "length": found.length or None})
    variable = _is_variable(found)
    if variable:
        its = [one for one in accounting.native if one.bytes]
        cause = " ".join([cause, *(_sentence(one.cause()) for one in its)]).strip()
        facts["runtimes"] = [one.json() for one in its]
    remedies = ("bound it, or take out what is no longer used",) if found.length or variable else ()
    word = found.owner.word
    commands = (f"roots {shell_quoted(word)} --depth 4", "runtime" if variable else "roots") if word else ("roots",)
    yield Finding("held", retained.bytes, title, f"{cause}{absent}".strip(), remedies, commands, facts)


def _not_resident(held: int, used: int, accounting: Accounting) -> str:
    """A sentence for where more is held than is resident of all blocks in use."""
    if not accounting.known or held <= used:
        return ""
    return f" Of all blocks in use {size(used)} are resident: the rest is swapped out, or was never written to."


def _held_by_many(session: Session) -> Finding:
    """Memory in use that no single root holds (of a structure full of references to itself, or of
    many things), with the size that has most bytes."""
    reached = session.latest.totals(Kind.REACHABLE)
    most, count = _most_common_size(session)
    title = f"In use, not lost: {size(reached.bytes)} in {blocks(reached.blocks)} are reached, and no one root holds half of it."
    cause = f"Of the blocks in use {number(count)} are of {number(most)} B: {size(most * count)}, more than of any other size."
    facts: dict[str, object] = {"blocks": reached.blocks, "size": most, "blocks_of_size": count}
    return Finding("held-by-many", reached.bytes, title, cause, (), ("roots", f"blocks --size {most} --limit 10"), facts)


def _most_common_size(session: Session) -> tuple[int, int]:
    """The usable size with most bytes in use, and the number of its blocks."""
    counts: Counter[int] = Counter()
    for size_, state, count in session.directory.blocks.by_size():
        counts[size_] += count if state == State.IN_USE else 0
    most = max(counts, key=lambda one: one * counts[one], default=0)
    return most, counts[most]


# -- threads


def _threads(accounting: Accounting) -> Iterator[Finding]:
    ended = accounting.unjoined
    if len(ended) >= ENDED:
        held = sum(place.bytes for place in ended)
        stay = f"{size(held)} and {size(accounting.unjoined_mapped)} of addresses" if accounting.known else f"{size(held)} of addresses"
        title = f"{number(len(ended))} threads ended and were never joined: their stacks stay, {stay}."
        started = Counter(place.name for place in ended if place.name).most_common(3)
        cause = f"They were started with {some([f'{name} ({number(count)})' for name, count in started])}." if started else ""
        remedies = ("pthread_join for each thread, or pthread_detach where no thread waits for it",)
        facts: dict[str, object] = {
            "threads": len(ended),
            "mapped": accounting.unjoined_mapped,
            "examples": [hex(place.address) for place in ended[:3]],
        }
        facts["started"] = [{"function": name, "threads": count} for name, count in started]
        yield Finding("unjoined-threads", held, title, cause, remedies, ("stacks",), facts)


# -- of no known owner


def _unknown(session: Session, accounting: Accounting) -> Iterator[Finding]:
    share: Optional[Share] = next((share for share in accounting.shares if share.sort == "unknown"), None)
    if share is not None and _is_significant(share.bytes, accounting) and share.parts:
        most = share.parts[0]
        title = f"{size(share.bytes)} in {number(share.count)} mappings belong to no allocator or runtime that can be read"
        title += f"{managed_heaps(session)}."
        title += "" if accounting.known else " How much of it was ever touched is not known."
        cause = f"The largest, at {most.address:#x}, has {size(most.bytes)}."
        facts: dict[str, object] = {"mappings": share.count, "largest": hex(most.address), "largest_bytes": most.bytes}
        commands = (f"whatis {most.address:#x}", *(["runtime"] if session.runtimes else []))
        yield Finding("unknown-owner", share.bytes, title, cause, (), commands, facts)
