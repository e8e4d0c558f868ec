"""Findings about free memory not returned to the kernel: by allocators, in thread caches, and by
managed runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from findleaks.allocators.retention import FreeMemory
from findleaks.audit.accounting import Accounting, Store
from findleaks.audit.findings.significance import is_significant
from findleaks.formatting import printable, size
from findleaks.runtimes.base import Finding
from findleaks.session import Session


def unreturned_memory(session: Session, accounting: Accounting, measure: Callable[[Store], FreeMemory]) -> Iterator[Finding]:
    """Allocators with much free memory, why it stays, and what returns it."""
    for store in accounting.stores:
        if not is_significant(store.kept, accounting):
            continue
        allocator = store.allocator
        name, call = allocator.name, allocator.rename_settings(allocator.release_call)
        one = allocator.retention(measure(store))
        facts: dict[str, object] = {"allocator": name, "kept": store.kept, "returnable": one.returns, "call": call or None}
        facts.update({"causes": list(one.sorts), **one.evidence})
        title = f"Not a leak: {name} has {size(store.kept)} of free memory that it has not returned to the kernel."
        if not accounting.known:
            title = f"Not a leak: {name} has {size(store.kept)} of free memory; how much of it is resident is not known."
        elif one.returns is not None and call:
            title += f" {call} would return {size(one.returns)}."
        commands = ("map", "caches --by-arena --sort free --limit 10")
        tries = _by_runtime(session, call, tuple(map(allocator.rename_settings, one.tries)))
        yield Finding("kept", store.kept, title, sentence(one.cause), tries, commands, facts, store.kept if accounting.known else None)


def _by_runtime(session: Session, call: str, tries: tuple[str, ...]) -> tuple[str, ...]:
    """What to try, with the runtime's own way to make the call instead of the call itself."""
    ways = [way for way in (runtime.release_command(call) for runtime in session.runtimes) if way] if call else []
    return tuple(f"{ways[0]}, which calls {call}" if ways and words.startswith(call) else words for words in tries)


def sentence(text: str) -> str:
    """`text` with a capital letter and a full stop, "" if it is empty."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def cached_memory(accounting: Accounting) -> Iterator[Finding]:
    """Allocators with many freed blocks in thread caches."""
    for store in accounting.stores:
        if is_significant(store.cached, accounting):
            name = store.allocator.name
            title = f"Not a leak: {size(store.cached)} of freed blocks are in {name}'s thread caches, each for its own thread."
            setting = store.allocator.rename_settings(store.allocator.cache_setting)
            facts: dict[str, object] = {"allocator": name}
            commands = ("caches --by-thread --sort cached --limit 10",)
            resident = store.cached if accounting.known else None
            yield Finding("thread-caches", store.cached, title, "", (setting,) if setting else (), commands, facts, resident)


def freed_by_runtimes(session: Session, accounting: Accounting) -> Iterator[Finding]:
    """Resident bytes of managed heaps that their runtime freed and did not return to the kernel."""
    for runtime in session.runtimes:
        for part in runtime.parts():
            freed = [one for one in part.parts if one.freed and not part.inside]
            ranges = [one for its in freed for one in its.ranges]
            present = [session.target.resident(start, end) if accounting.known else None for start, end in ranges]
            held = sum(end - start if there is None else there for there, (start, end) in zip(present, ranges))
            if is_significant(held, accounting):
                whose = printable(f"{runtime.name} {part.name}")
                title = f"Not a leak: {size(held)} of {whose} belong to no object: they were freed and not returned to the kernel."
                cause = f"These are {printable(freed[0].detail)} in no space any more; the runtime's own figures leave them out."
                facts: dict[str, object] = {"runtime": runtime.name, "mapped_bytes": sum(one.bytes for one in freed)}
                resident = held if accounting.known else None
                yield Finding("freed-by-runtime", held, title, cause, (), ("runtime",), facts, resident)
