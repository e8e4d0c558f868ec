"""Report reachable memory that is retained by one root, by managed objects, or by many roots.

At most one of these findings is reported, because all of them describe the same blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Optional

from findleaks.audit.accounting import Accounting
from findleaks.audit.findings.figures import BlockFigures, Figures, exclude_figures
from findleaks.audit.findings.retainer_sentences import describe_callbacks, describe_field, describe_shared_part, describe_size
from findleaks.audit.findings.root_groups import describe_root_groups, describe_streams, is_most_of, list_variable_remedies
from findleaks.audit.findings.significance import PART, denominator_without_files
from findleaks.audit.leaked_objects import exclude_leaked
from findleaks.audit.managed import RuntimeHoldings
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.engine.terms import Kind, Totals
from findleaks.formatting import blocks, format_amount, format_count, join_words, number, shorten, size, some, to_sentence
from findleaks.quoting import shell_quoted
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.retained_findings import RETAINED, find_path_remedies
from findleaks.session import Session

if TYPE_CHECKING:
    from findleaks.audit.top_retainer import TopRetainer

HELD, GROWN = 4 << 20, 0.25
"""The top retainer is computed if at least HELD bytes are in use, and if they are at least the
fraction GROWN of the memory without files."""

SPREAD = 6 << 20
"""A finding about memory that no single root retains needs at least this many resident bytes, or
twice as many mapped bytes if residency is unknown. An idle JVM has 9 MiB, of which 4 MiB are
resident."""

EXPLAINED = 0.25
"""Managed objects explain reachable memory if they retain at least this fraction of its bytes. What
objects of several types retain only together does not count."""

SHOWN = 0.05
"""A variable is named if it retains at least this fraction of the memory of managed objects."""

MOST = 0.5
"""Memory that no single root retains is reported if it is reachable, resident, and at least this
fraction of the memory in use."""

TYPES = 3  # maximum number of types of objects that a finding names
NAMED, LISTED = 6, 30
"""Maximum number of variables that a finding names; number of roots that include all of them,
because each variable retains at least the fraction SHOWN."""

CONCENTRATED, MUCH = 0.5, 256 << 20
"""Managed objects are reported if they have at least MUCH bytes, or if one of these is true: one
type has at least the fraction CONCENTRATED of their bytes; one object that several roots refer to
retains this fraction; one variable or frame retains half of this fraction. Otherwise the objects
may be the modules that an interpreter has loaded. Modules have objects of many types, and no single
object retains them."""


def find_retained_memory(
    session: Session, accounting: Accounting, figures: BlockFigures, scopes: Sequence[Finding], explained: Sequence[Finding] = ()
) -> Iterator[Finding]:
    """Yield at most one finding.

    `scopes`: other findings about reachable blocks. To avoid that the same blocks are reported
    twice, a finding needs more than four times the bytes of these other findings, or twice those of
    findings about pools, because these do not include what the pools refer to. `explained`:
    findings of runtimes. If one of them already explains most of a runtime's objects, this function
    does not report these objects again."""
    grown = _top_retainer(session, accounting)
    reported = sum((2 if one.of_blocks else 4) * one.bytes for one in scopes)
    retained = {str(one.facts.get("runtime")): one.bytes for one in explained if one.kind == RETAINED}
    found = chain(
        _find_managed_objects(session, accounting, figures, grown, retained),
        _find_one_root(session, accounting, figures, grown),
        _find_many_roots(session, accounting, figures, grown),
    )
    yield from islice((one for one in found if reported < one.bytes), 1)


def _top_retainer(session: Session, accounting: Accounting) -> Optional[TopRetainer]:
    """Return the root that retains the most. The dominator tree of all reachable blocks, which this
    needs, is computed only if a finding is possible."""
    used = sum(store.in_use for store in accounting.stores)
    if used < HELD or used < GROWN * denominator_without_files(accounting):
        # Objects outside of blocks, if it is known what retains them
        used += sum(one.object_bytes for one in accounting.native if one.bytes >= HELD and one.runtime.object_nodes() is not None)
    if used < HELD or used < GROWN * denominator_without_files(accounting):
        return None
    from findleaks.audit.top_retainer import find_top_retainer

    return find_top_retainer(session)


def _is_variable(grown: TopRetainer) -> bool:
    """Whether a single variable of a managed language retains most of the reachable memory."""
    return grown.is_most and grown.owner.sort == OwnerSort.MANAGED and grown.totals.bytes >= HELD


def _find_managed_objects(
    session: Session, accounting: Accounting, figures: BlockFigures, grown: Optional[TopRetainer], retained: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield findings about managed objects: the native memory that they retain, and, if known, the
    variables that retain the objects. `retained`: by runtime, the bytes of its objects that another
    finding explains."""
    for given in accounting.native:
        one = _select_large(session, given, accounting, grown, retained)
        if one is None:
            continue
        holders = ((owner, _add_objects(one, owner, held)) for owner, held in (grown.variables if grown is not None else ()))
        named = [(owner, held) for owner, held in holders if held.bytes >= SHOWN * one.bytes]
        if one.unreported or one.bytes >= MUCH or _is_concentrated(one, named) or _has_shared_retainer(session, one, grown):
            yield _describe_managed_objects(session, one, grown, named, _resident_upper_bound(one, accounting, figures))


def _select_large(
    session: Session, given: RuntimeHoldings, accounting: Accounting, grown: Optional[TopRetainer], retained: Mapping[str, int]
) -> Optional[RuntimeHoldings]:
    """Return the memory that a runtime's objects retain, without its uncertain and leaked parts.
    Return None if it is small, or if another finding explains it. `retained`: see
    _find_managed_objects."""
    if given.runtime.objects_are_native:
        return None
    one = _exclude_uncertain(given)
    is_small = one.bytes < GROWN * denominator_without_files(accounting) and not one.is_leaked_garbage
    if one.bytes < HELD or is_small or (grown is not None and _is_variable(grown)):
        return None
    one = exclude_leaked(session, one)
    if one.bytes < HELD:
        return None
    if grown is not None and not grown.owner.managed and grown.is_most and grown.totals.bytes >= 2 * one.bytes:
        return None
    return None if one.object_bytes > one.held.bytes and 2 * retained.get(one.name, 0) >= one.bytes else one


def _describe_managed_objects(
    session: Session, one: RuntimeHoldings, grown: Optional[TopRetainer], named: list[tuple[Owner, Totals]], resident: Optional[int]
) -> Finding:
    """Return the finding about managed objects. `named`: the variables that retain them."""
    is_garbage = one.is_native_garbage and 2 * (one.garbage_native + one.freed_native) > one.held.bytes
    title = f"{'Garbage, not collected yet' if is_garbage else 'In use, not leaked'}: {one.sentence()}."
    example = one.example()
    cause, commands, facts = to_sentence(one.cause(example)), ["runtime"], one.result().to_json()
    if one.held.bytes >= one.object_bytes:
        remedies = list(one.runtime.remedies(one.by_native[0].type.name))
    else:
        remedies = list(find_path_remedies(one.runtime, cause))
    if example is not None:
        commands.append(f"path {example:#x}")
    retainers = _describe_retainers(session, one, grown, named)
    if retainers is not None:
        text, command, fact = retainers
        cause, facts = cause + text, {**facts, **fact}
        commands.append(command)
    if one.unreported:
        call = f" by {one.runtime.report_call}" if one.runtime.report_call else ""
        remedies.append(f"report the native memory of these objects to {one.name}{call}, so that it collects in time")
    if one.is_leaked_garbage:
        title = f"Probably leaked: garbage of {one.name} retains {size(one.garbage_native)} of native memory"
        used = one.held.bytes - one.garbage_native
        title += f"; objects in use retain {size(used)}." if used else "."
        remedies.append(one.runtime.garbage_remedy)
    return Finding("held-by-managed-objects", one.bytes, title, cause, tuple(remedies), tuple(commands), facts, resident)


def _describe_retainers(
    session: Session, one: RuntimeHoldings, grown: Optional[TopRetainer], named: list[tuple[Owner, Totals]]
) -> Optional[tuple[str, str, dict[str, Any]]]:
    """Return what retains managed objects: text, a command and facts for the JSON; None if it is
    not known."""
    if named:
        # If one variable retains most of the objects, it explains them. Otherwise all holders are
        # named.
        first, held = named[0]
        every = "roots" if len(named) <= NAMED else f"roots --limit {LISTED}"
        command = f"roots {shell_quoted(first.word)} --depth 4" if held.bytes >= CONCENTRATED * one.bytes else every
        variables = [{"name": _name_holder(owner), "bytes": held.bytes, "blocks": held.blocks} for owner, held in named]
        from findleaks.audit.top_retainer import find_variable_field

        below = find_variable_field(session, first) if 4 * held.bytes >= one.bytes else None
        text = f" {describe_field(below)}" if below is not None else ""
        return _describe_holders(named) + text, command, {"variables": variables}
    if grown is not None and grown.is_most and not grown.owner.managed and session.object_types is not None:
        owner, totals = grown.owner, grown.totals
        field = f" {describe_field(grown.field)}" if grown.field is not None and grown.field.what else ""
        field = f" {describe_callbacks(owner)}" if owner.sort == OwnerSort.CALLBACKS else field
        command = f"roots {shell_quoted(owner.word)} --depth 4" if owner.word else "roots"
        root = {"name": owner.name, "bytes": totals.bytes, "blocks": totals.blocks}
        return f" {owner.label} {owner.retains} {size(totals.bytes)}.{field}", command, {"root": root}
    if grown is not None and (session.object_types is not None or not one.runtime.lists_objects):
        shared, part = describe_shared_part(session)
        if part is not None:
            return shared, "roots", {"shared": part}
    return None


def _add_objects(one: RuntimeHoldings, owner: Owner, held: Totals) -> Totals:
    """Return the memory that a variable retains, with its objects if the finding is about the
    memory that objects occupy."""
    occupied = owner.objects.bytes if one.object_bytes > one.held.bytes else 0
    return Totals(held.blocks, held.bytes + occupied)


def _name_holder(owner: Owner) -> str:
    """Return the name of a variable, or the name of a frame with that of its thread."""
    return owner.label if owner.is_managed_frame else owner.name


def _describe_holders(named: Sequence[tuple[Owner, Totals]]) -> str:
    frames = sum(owner.is_managed_frame for owner, _ in named)
    what = "Frames" if frames == len(named) else "Variables and frames" if frames else "Variables"
    return f" {what} that retain it: {some([f'{_name_holder(owner)} ({size(held.bytes)})' for owner, held in named], NAMED)}."


def _is_concentrated(one: RuntimeHoldings, named: Sequence[tuple[Owner, Totals]]) -> bool:
    parts = [*(row.bytes for row in one.types), *(2 * held.bytes for _, held in named if held.bytes >= PART * one.bytes)]
    return max(parts, default=0) >= CONCENTRATED * one.bytes


def _has_shared_retainer(session: Session, one: RuntimeHoldings, grown: Optional[TopRetainer]) -> bool:
    """Return whether one object that several roots refer to retains most of the managed objects.
    For example, a variable and the stacks of the workers refer to the queue of an executor."""
    if grown is None or grown.is_most or session.object_types is None:
        return False
    from findleaks.audit.top_retainer import find_shared_part

    part = find_shared_part(session, CONCENTRATED)
    return part is not None and part.is_one_block and part.row.totals.bytes >= CONCENTRATED * one.bytes


def _resident_upper_bound(one: RuntimeHoldings, accounting: Accounting, figures: BlockFigures) -> Optional[int]:
    """Return an upper bound on the resident bytes of the objects and of the memory that they
    retain. It is the sum of the resident bytes of all reachable blocks and of the runtime's
    heap."""
    reachable = figures.of(Kind.REACHABLE).resident
    if reachable is None:
        return None
    heaps = sum(share.bytes for share in accounting.shares if share.sort == ShareSort.RUNTIME and share.of.startswith(f"{one.name} "))
    return min(one.bytes, reachable + heaps)


def _exclude_uncertain(one: RuntimeHoldings) -> RuntimeHoldings:
    """Return the holdings without the bytes of the objects if these bytes include garbage, or if
    the runtime reports its objects in findings of its own."""
    if not one.runtime.counts_garbage and not one.runtime.reports_objects:
        return one
    return one._replace(types=[row._replace(type=row.type._replace(bytes=0)) for row in one.types])


def _find_one_root(session: Session, accounting: Accounting, figures: BlockFigures, found: Optional[TopRetainer]) -> Iterator[Finding]:
    """Yield a finding if a single root retains most of the reachable memory.

    The finding names the root, because only the developers can decide whether it should retain so
    much."""
    if found is None or not found.is_most or found.totals.bytes < HELD:
        return
    retained = figures.of_blocks(found.members(), Kind.REACHABLE)
    if retained.bytes < HELD:
        return
    facts: dict[str, object] = {"root": found.owner.name, "where": found.owner.where or None, "blocks": retained.blocks}
    part = 100 * retained.bytes // max(figures.of(Kind.REACHABLE).bytes, 1)
    if found.owner.managed:
        yield _retained_by_managed_heap(session, accounting, found, retained, part, facts)
        return
    title = f"In use, not leaked: {found.owner.label} {found.owner.retains} {retained.amount} in {blocks(retained.blocks)}, "
    title += f"{part} % of the reachable memory."
    cause = ""
    if found.field is not None and (found.field.what or found.field.sort == "block"):
        cause = describe_field(found.field) + describe_streams(found.owner)
        facts.update({"field": found.field.name, "what": found.field.what, "length": found.length or None})
    if found.type:
        cause = f"Its type is {found.type}{'' if found.type.endswith('…') else '.'} {cause}".strip()
        facts["type"] = found.type
    variable = _is_variable(found)
    known = session.object_types
    if found.ways:
        facts["fields"] = list(found.ways)
        cause = f"{cause} Most of it is reached through {'both' if len(found.ways) == 2 else 'several of'} {join_words(found.ways)}."
    if found.owner.sort == OwnerSort.CALLBACKS:
        cause = describe_callbacks(found.owner)
    if variable or (known is not None and known.are_native):
        types = found.object_types(session)[:TYPES]
        if types:
            what = [f"{name} ({format_count(total.blocks, 'object')}, {size(total.bytes)})" for name, total in types]
            cause += f" The largest types below it are {some(what, TYPES)}."
            facts["types"] = [{"type": name, "objects": total.blocks, "bytes": total.bytes} for name, total in types]
        its = [one for one in accounting.native if one.bytes and not one.runtime.objects_are_native]
        if not types:
            cause = " ".join([cause, *(to_sentence(one.cause(one.example())) for one in its)]).strip()
        facts["runtimes"] = [one.result().to_json() for one in its]
    word = found.owner.word
    other = "runtime" if variable else "roots"
    last = found.owner.name.rpartition(" ")[2]
    if found.owner.sort == OwnerSort.CALLBACKS and last.startswith("0x"):
        other = f"roots {last}"  # what retains the object that calls the functions
    commands = (f"roots {shell_quoted(word)} --depth {max(found.level + 1, 4)}", other) if word else ("roots",)
    remedies = list_variable_remedies(session, found.owner)
    yield Finding("held", retained.bytes, title, cause.strip(), remedies, commands, facts, retained.resident)


def _retained_by_managed_heap(
    session: Session, accounting: Accounting, found: TopRetainer, retained: Figures, part: int, facts: dict[str, object]
) -> Finding:
    title = f"In use, not leaked: {found.owner.label}, a managed heap, retains {retained.amount} of native memory in "
    title += f"{blocks(retained.blocks)}, {part} % of the reachable memory."
    most, count = found.most_common_size()
    facts.update({"size": most, "blocks_of_size": count})
    sentence, path, remedies = _describe_managed_path(session, most, count, facts)
    types, by_types = _describe_types(accounting, retained.bytes)
    cause, remedies = describe_size(most, count) + sentence + types, tuple(dict.fromkeys((*remedies, *by_types)))
    commands = ("runtime", *path, f"roots {shell_quoted(found.owner.word)} --depth 4", f"blocks --size {most} --limit 10")
    return Finding("held-from-managed-heap", retained.bytes, title, cause, remedies, commands, facts, retained.resident)


def _describe_types(accounting: Accounting, retained: int) -> tuple[str, tuple[str, ...]]:
    """Return a sentence on the types whose objects retain at least the fraction PART of `retained`
    bytes of native memory, and what frees the memory of one of them; ("", ()) if there are none.
    This is the first type for which a chain of references is known, or the first one."""
    rows = ((one.runtime, row) for one in accounting.native if not one.runtime.objects_are_native for row in one.types)
    named = sorted((pair for pair in rows if pair[1].held.bytes >= PART * retained), key=lambda pair: -pair[1].held.bytes)
    if not named:
        return "", ()
    shown = [f"{number(row.type.objects)} {shorten(row.type.name)}: {size(row.held.bytes)}" for _, row in named[:TYPES]]
    sentence = f" Objects that retain a tenth of it or more: {'; '.join(shown)}."
    for runtime, row in named[:TYPES]:
        # With an object graph, the finding has a path already.
        chain = runtime.reference_chain(row.type.name) if runtime.object_graph() is None else ""
        if chain:
            sentence += f" One of the {shorten(row.type.name)} objects is reached by {shorten(chain, 400)}."
            return sentence, tuple(runtime.remedies(row.type.name))
    runtime, row = named[0]
    return sentence, tuple(runtime.remedies(row.type.name))


def _describe_managed_path(session: Session, most: int, count: int, facts: dict[str, object]) -> tuple[str, list[str], tuple[str, ...]]:
    """Return a sentence with the path through managed objects to one of `count` blocks of size
    `most`, the command that prints the whole path, and remedies. Returns ("", [], ()) if no path is
    found. Adds the path to the facts."""
    from findleaks.audit.managed_holder import find_longer_path, find_managed_path

    found = find_managed_path(session, most, count)
    if found is None:
        native = _describe_native_path(session, most, count, facts)
        if native is not None:
            return native
        found = find_longer_path(session, most, count)
    if found is None:
        return "", [], ()
    facts["path"] = found.path
    return f" One of them is reached by {shorten(found.path, 400)}.", [f"path {found.address:#x}"], tuple(found.remedies)


def _describe_native_path(
    session: Session, most: int, count: int, facts: dict[str, object]
) -> Optional[tuple[str, list[str], tuple[str, ...]]]:
    """Return what `_describe_managed_path` returns, if a managed object that was collected may have
    owned the blocks: the path to one of them leads through a native structure, and a class with a
    similar name has no live objects. Return None otherwise. Longer paths from live objects may lead
    through stale words of such structures."""
    from findleaks.audit.block_type import find_block_type
    from findleaks.audit.findings.leak_sources import describe_collected_owners, list_source_remedies
    from findleaks.audit.managed_holder import list_blocks_of_size

    blocks, seen = session.directory.blocks, set[tuple[str, int]]()
    for index in list_blocks_of_size(session, most, count) if session.runtimes else ():
        for one in session.path(index)[:-1]:
            name, length = find_block_type(session, one), blocks.size(one)
            sentence = describe_collected_owners(session, name, length, facts) if name and (name, length) not in seen else ""
            seen.add((name, length))
            if sentence:
                reached = f" One of them is reached through {shorten(name)}, to which no live object refers."
                return reached + sentence, [f"path {blocks.address(index):#x}"], list_source_remedies(facts)
    return None


def _find_many_roots(session: Session, accounting: Accounting, figures: BlockFigures, found: Optional[TopRetainer]) -> Iterator[Finding]:
    """Yield a finding about reachable memory that no single root retains. It names the size whose
    blocks have the most bytes. The memory may be one structure with references from several roots,
    or many structures."""
    used = sum(store.in_use for store in accounting.stores)
    reached = figures.of(Kind.REACHABLE) if found is not None and not found.is_most else Figures(0, 0, 0)
    temporary = [runtime.temporary_blocks() for runtime in session.runtimes] if reached.bytes >= SPREAD else []
    reached = exclude_figures(reached, [figures.of_blocks(temporary, Kind.REACHABLE)])
    # If managed objects retain much memory, their types explain it better.
    managed = any(_exclude_uncertain(one).bytes >= max(HELD, EXPLAINED * reached.bytes) for one in accounting.native)
    resident, least = (reached.bytes, 2 * SPREAD) if reached.resident is None else (reached.resident, SPREAD)
    groups = found.groups if found is not None and not found.owner.managed else ()
    if found is not None and groups and is_most_of(groups[0], found.reached):
        least = HELD
    if managed or resident < max(least, MOST * used) or used < GROWN * denominator_without_files(accounting):
        return
    most, count = figures.most_common_size(Kind.REACHABLE, temporary)
    amount = format_amount(reached.bytes, reached.resident)
    title = f"In use, not leaked: {amount} in {blocks(reached.blocks)} are reachable, and no single root retains half of it."
    facts: dict[str, object] = {"blocks": reached.blocks, "size": most, "blocks_of_size": count}
    cause = describe_size(most, count)
    if found is not None and groups:
        roots = describe_root_groups(groups, found.reached, describe_field(found.field) if found.field is not None else "")
        facts["largest_roots"] = roots.facts
        if roots.title:
            own = groups[0].totals.bytes
            upper = None if reached.resident is None else min(reached.resident, own)
            yield Finding("held-by-many", own, roots.title, roots.cause, (), (*roots.commands, "roots"), facts, upper)
            return
        cause = f"{roots.cause} {cause}"
    sentence, path, remedies = _describe_managed_path(session, most, count, facts)
    shared, part = describe_shared_part(session)
    cause += sentence + shared
    if part is not None:
        facts["shared"] = part
    commands = (*path, *(roots.commands if groups else ()), "roots", f"blocks --size {most} --kind reachable --limit 10")
    yield Finding("held-by-many", reached.bytes, title, cause, remedies, commands, facts, reached.resident)
