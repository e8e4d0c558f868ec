"""Report free memory that was not returned to the kernel: in allocators, in thread caches, and in
managed runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from findleaks.allocators.retention import FreeMemory
from findleaks.audit.accounting import Accounting, Store
from findleaks.audit.findings.significance import is_significant
from findleaks.formatting import shorten, size, to_sentence
from findleaks.runtimes.finding import Finding
from findleaks.session import Session
from findleaks.target.ranges import nonzero_pieces

_UNTOUCHED = 1 << 26  # bytes of the shortest run of zeros that counts as untouched


def find_unreturned_memory(session: Session, accounting: Accounting, measure: Callable[[Store], FreeMemory]) -> Iterator[Finding]:
    """Yield a finding for each allocator with much free memory. The finding explains why the memory
    was not returned, and suggests what returns it."""
    for store in accounting.stores:
        if not is_significant(store.kept, accounting) or not (
            accounting.known or is_significant(_count_written(session, store), accounting)
        ):
            continue
        allocator = store.allocator
        name, call = allocator.name, allocator.rename_settings(allocator.release_call)
        one = allocator.retention(measure(store))
        facts: dict[str, object] = {"allocator": name, "kept": store.kept, "returnable": one.returns, "call": call or None}
        facts.update({"causes": list(one.sorts), **one.evidence})
        title = f"Not a leak: {name} has {size(store.kept)} of free memory that it has not returned to the kernel."
        if not accounting.known:
            title = f"Not a leak: {name} has {size(store.kept)} of free memory. It is unknown how much of it is resident."
        elif one.returns is not None and call:
            title += f" {call} would return {size(one.returns)}."
        commands = ("map", "caches --by-arena --sort free --limit 10")
        tries = _prefer_runtime_commands(session, call, tuple(map(allocator.rename_settings, one.tries)))
        yield Finding("kept", store.kept, title, to_sentence(one.cause), tries, commands, facts, store.kept if accounting.known else None)


def _count_written(session: Session, store: Store) -> int:
    """Return an upper bound of the bytes of free memory that have been written to. If residency is
    unknown, very long runs of zeros are probably pages that nobody has touched, such as most pages
    of an arena that mimalloc has reserved."""
    pieces = (piece for part in session.directory.of(store.allocator) for piece in nonzero_pieces(session.target, *part))
    parts = (piece.data[at : at + _UNTOUCHED] for piece in pieces for at in range(0, len(piece.data), _UNTOUCHED))
    written = sum(len(part) for part in parts if len(part) < _UNTOUCHED or bytes(part).strip(b"\0"))
    return max(written - store.in_use, 0)


def _prefer_runtime_commands(session: Session, call: str, tries: tuple[str, ...]) -> tuple[str, ...]:
    """Return the remedies. If a runtime has a command that makes the call `call`, this command
    replaces the call."""
    ways = [way for way in (runtime.release_command(call) for runtime in session.runtimes) if way] if call else []
    return tuple(f"{ways[0]}, which calls {call}" if ways and words.startswith(call) else words for words in tries)


def find_cached_memory(accounting: Accounting) -> Iterator[Finding]:
    """Yield a finding for each allocator with many free blocks in thread caches."""
    for store in accounting.stores:
        if is_significant(store.cached, accounting):
            name = store.allocator.name
            title = f"Not a leak: {size(store.cached)} of freed blocks are in {name}'s thread caches. Each cache serves only one thread."
            setting = store.allocator.rename_settings(store.allocator.cache_setting)
            facts: dict[str, object] = {"allocator": name}
            commands = ("caches --by-thread --sort cached --limit 10",)
            resident = store.cached if accounting.known else None
            yield Finding("thread-caches", store.cached, title, "", (setting,) if setting else (), commands, facts, resident)


def find_memory_freed_by_runtimes(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Yield a finding for each managed heap with much memory that the runtime freed, but did not
    return to the kernel."""
    for runtime in session.runtimes:
        for part in runtime.parts():
            freed = [one for one in part.parts if one.freed and not part.inside]
            ranges = [one for its in freed for one in its.ranges]
            present = [session.target.resident(start, end) if accounting.known else None for start, end in ranges]
            held = sum(end - start if there is None else there for there, (start, end) in zip(present, ranges))
            if is_significant(held, accounting):
                whose = shorten(f"{runtime.name} {part.name}")
                title = f"Not a leak: the runtime freed {size(held)} of {whose}, but did not return this memory to the kernel."
                cause = f"These are {shorten(freed[0].detail)} that belong to no space. The runtime's statistics do not include them."
                facts: dict[str, object] = {"runtime": runtime.name, "mapped_bytes": sum(one.bytes for one in freed)}
                resident = held if accounting.known else None
                yield Finding("freed-by-runtime", held, title, cause, (), ("runtime",), facts, resident)
