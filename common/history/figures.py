"""Extract figures from the results of commands: numbers that can be compared with those of another
snapshot.

A figure has a section, a name, a count, and bytes. The name is the same in every snapshot of a
program, so it never contains an address that changes. Figures are taken from the commands' JSON;
nothing is computed again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from findleaks.formatting import again
from findleaks.results.share_sort import ShareSort
from findleaks.target.kernel_references import KernelState, merge_numbered_files

Answer = Mapping[str, Any]
"""The JSON object of a command."""

SEVERAL = "several roots"
"""The name of the row for memory that several roots retain together."""
ARROW = " → "
"""The separator between the steps from a root to a field below it."""

REACHED = "reached through several fields"
"""A phrase in the names of blocks that several fields of a root refer to."""
MAPPINGS = "kind of mapping"
"""The section of the kinds of mappings of a share."""
DESCRIPTORS = "descriptor"
"""The section of open descriptors. A snapshot without figures of this section has no data about
them."""
MAPPING = "anonymous mapping"
"""The beginning of the types of leaked mappings."""
_MANY = re.compile(r"[\d,]+ of (.*)")
_OF_MANY = re.compile(r"(?<= variable )(\S+) of .*")  # "static variable App.cache of 3 classes"
_SHARED = re.compile(r"^[\d,]+ of | at …$")

_ADDRESS = re.compile(r"(?<!\+)\b0x[0-9a-f]{5,16}\b")
_COUNT = re.compile(r"\d[\d,]*( [a-z]|$)")  # "227 pages: 9 live", but not the file "7-zip, data"
# "block of 64 B, offset 0x8"; "block of 64 B+0x8" in snapshots of earlier versions
_PLACE = re.compile(r"block of .*?(?:\+|, offset )(0x[0-9a-f]+)$")
_NAMED_HOLDERS = 2
_UNITS: dict[str, str] = {
    ShareSort.IN_USE: "blocks",
    ShareSort.KEPT: "arenas",
    ShareSort.STACKS: "threads",
    ShareSort.UNJOINED: "threads",
    ShareSort.FILES: "files",
    ShareSort.LEAKED_MAPPINGS: "mappings",
    ShareSort.UNKNOWN: "mappings",
}
"""The unit that the counts of each share of `verdict` have."""


class Figure(NamedTuple):
    """One figure in a command's result.

    `number`: a count; None if the command has none. `bytes`: None if the command has none.
    `within`: the name of the figure that contains this one; "" if there is none."""

    section: str
    name: str
    number: Optional[int]
    bytes: Optional[int]
    within: str = ""
    note: str = ""


def mapping_figures(rows: Iterable[tuple[str, int, int, Optional[int]]]) -> list[Figure]:
    """Return the figures of mappings. `rows`: name, number, mapped and resident bytes."""
    return [Figure("mapping", name, count, mapped if held is None else held) for name, count, mapped, held in rows]


def type_figures(rows: Iterable[tuple[str, str, int, int]]) -> Iterator[Figure]:
    """Yield the figures of blocks in use by type. `rows`: type, kind, number and bytes."""
    return (Figure("type", name, count, held, kind) for name, kind, count, held in rows)


def descriptor_figures(state: Optional[KernelState]) -> list[Figure]:
    """Return the numbers of open descriptors by what they refer to; [] if they are unknown. A core
    that findleaks did not write does not contain them."""
    opened = merge_numbered_files(state.opened) if state is not None else {}
    return [Figure(DESCRIPTORS, name, count, None) for name, count in opened.items()]


def figures(answers: Mapping[str, Answer]) -> list[Figure]:
    """Return the figures in results of commands. `answers`: results by name of the command. Figures
    with the same section and name are added."""
    found: dict[tuple[str, str, str], Figure] = {}
    for word, read in _READERS.items():
        if word in answers:
            for one in read(answers[word]):
                key = one.section, one.within, one.name
                before = found.get(key)
                found[key] = one if before is None else _sum(before, one)
    return list(found.values())


def _sum(one: Figure, other: Figure) -> Figure:
    return one._replace(number=_add(one.number, other.number), bytes=_add(one.bytes, other.bytes))


def _add(one: Optional[int], other: Optional[int]) -> Optional[int]:
    return one if other is None else other if one is None else one + other


def _verdict(answer: Answer) -> Iterator[Figure]:
    total = answer["resident"] if answer["resident"] is not None else answer["mapped"]
    yield Figure("total", "resident" if answer["resident"] is not None else "mapped", None, total)
    for share in answer["shares"]:
        name = share["share"] if share["of"] is None else f"{share['of']}: {share['share']}"
        yield Figure("share", name, share.get("count"), share["bytes"], note=_UNITS.get(share["share"], ""))
        for kind in share.get("kinds", ()):
            yield Figure(MAPPINGS, kind["name"], kind["mappings"], kind["bytes"], name)


def _find(answer: Answer) -> Iterator[Figure]:
    for kind, amount in answer["totals"].items():
        yield Figure("kind", kind, amount["blocks"], amount["bytes"])
    counts = answer.get("reference_counts") or {}
    for group in answer["groups"]:
        blocks, size = group["blocks"] + group["indirect_blocks"], group["bytes"] + group["indirect_bytes"]
        if group.get("garbage"):
            yield Figure("garbage", counts["runtime"], blocks, size, note="disabled" if counts["automatic_collection"] is False else "")
            yield Figure("garbage type", group["type"], group["blocks"], size, counts["runtime"])
            continue
        yield Figure("lost", _group_name(group), blocks, size, group["kind"], group["hint"] or "")


def _group_name(group: Answer) -> str:
    # Sizes and cycles may differ, because all objects of a class are one leak.
    if group.get("runtime"):
        return str(group["type"])
    if group["type"] and group["type"].startswith(MAPPING):
        return str(group["type"])  # the kernel merges mappings, so that their sizes change
    what = f"{group['size']} B" if group["size"] is not None else "several sizes"
    if group["cycle"] > 1:
        what += f", cycle of {group['cycle']}"
    return f"{group['type']} ({what})" if group["type"] else what


def _caches(answer: Answer) -> Iterator[Figure]:
    names = _allocators(answer["totals"])
    for total in answer["totals"]:
        name = names[total["instance"]]
        for state in ("in_use", "cached", "free", "spare"):
            yield Figure("allocator", f"{name}: {state.replace('_', ' ')}", total["blocks"].get(state), total[state])
    for cache in answer["caches"]:
        yield Figure("cache", cache["name"], cache["in_use"], cache["in_use_bytes"], names[cache["instance"]])


def _allocators(totals: Iterable[Answer]) -> dict[int, str]:
    """Return the names of allocators. The key is the allocator's instance, its index among all
    allocators. If several allocators have the same name, such as glibc's in another namespace of
    the linker, they get numbers: "glibc", "glibc (second)"."""
    found: dict[int, str] = {}
    seen: Counter[str] = Counter()
    for one in totals:
        name = str(one["allocator"])
        seen[name] += 1
        found[one["instance"]] = again(name, seen[name])
    return found


def _roots(answer: Answer) -> Iterator[Figure]:
    for root in answer["roots"]:
        name = _stable(root["name"])
        yield Figure("root", name, root["retained_blocks"], root["retained_bytes"])
        if "objects" in root:
            objects = root["objects"]
            yield Figure("objects", name, objects["count"], objects["bytes"], objects["runtime"])
        yield from _parts(root, name, "")
    for heap in answer.get("heaps", ()):
        for root in heap["roots"]:
            yield Figure("heap root", _OF_MANY.sub(r"\1", _stable(root["name"])), root["objects"], root["bytes"], heap["runtime"])
        if "shared_objects" in heap:
            yield Figure("heap root", SEVERAL, heap["shared_objects"], heap["shared_bytes"], heap["runtime"])
    shared = answer["shared"]
    yield Figure("root", SEVERAL, shared["retained_blocks"], shared["retained_bytes"])
    for child in shared["children"]:
        if child.get("holders"):
            many = _MANY.match(child["name"])
            name = _holders(child["holders"]) + (f": {_stable(many[1])}" if many else "")
            yield Figure("field", name, child["retained_blocks"], child["retained_bytes"], SEVERAL)
            yield from _parts(child, SEVERAL, name)


def _parts(node: Answer, root: str, path: str) -> Iterator[Figure]:
    """Yield the container that a node is, and the fields below the node. They are named by their
    paths from the root. Fields without a name (with only an address, or merged with similar fields)
    are left out, because they cannot be found in another snapshot."""
    container = node.get("container")
    if container and container.get("length") is not None:
        least, most = container["node_sizes"] or (0, 1)
        each = f", {least:,} B each" if least == most else ""
        note = f"{container['what']}{each}, {container['unit']}"
        yield Figure("container", path or root, container["length"], node["retained_bytes"], root, note)
    for child in node.get("children", ()):
        if "alike" not in child and not _ADDRESS.search(child["name"]):
            place = _PLACE.match(child["name"])
            name = (path + ARROW if path else "") + (f"+{place[1]}" if place else _stable(child["name"]))
            yield Figure("field", name, child["retained_blocks"], child["retained_bytes"], root)
            yield from _parts(child, root, name)
    for child in node.get("shared_children", ()):
        name = (path + ARROW if path else "") + f"{_SHARED.sub('', _stable(child['name']))} ({REACHED})"
        yield Figure("field", name, child["retained_blocks"], child["retained_bytes"], root)
        yield from _parts(child, root, name)


def _holders(names: Sequence[str]) -> str:
    """Return some of the roots that reach a shared block. Variables are preferred to stacks, which
    change."""
    lasting = [name for name in names if "'s stack" not in name and "'s registers" not in name] or names
    stable = list(dict.fromkeys(_stable(name) for name in lasting))
    return ", ".join(stable[:_NAMED_HOLDERS]) + (" and others" if len(stable) > _NAMED_HOLDERS else "")


def _stable(name: str) -> str:
    """Return the name without the parts that differ between snapshots: addresses, and counts in
    parentheses."""
    name = _ADDRESS.sub("…", name)
    return re.sub(r"\(([^()]*)\)", lambda found: "" if _COUNT.match(found[1]) else found[0], name).strip()


def _runtime(answer: Answer) -> Iterator[Figure]:
    for runtime in answer["runtimes"]:
        name = runtime["name"]
        for counter, value in runtime["counters"].items():
            if isinstance(value, int):
                yield Figure("counter", counter, value, None, name)
        for part in runtime["parts"]:
            yield Figure("heap", part["name"], None, part["bytes"], name)
        for one in runtime["types"]:
            yield Figure("runtime type", one["name"], one["objects"], one["bytes"], name)
            if one["native_bytes"]:
                yield Figure("native", one["name"], one["native_blocks"], one["native_bytes"], name)


def _scopes(answer: Answer) -> Iterator[Figure]:
    for number, isolate in enumerate(answer["isolates"]):
        name = f"isolate {number + 1}"
        yield Figure("handles", name, isolate["handles"], isolate["bytes"])
        for value in isolate["values"]:
            yield Figure("handle value", _stable(value["value"]), value["handles"], None, name)


def _stacks(answer: Answer) -> Iterator[Figure]:
    for stack in answer["stacks"]:
        yield Figure("threads", _stack_name(stack["frames"]), stack["count"], None)
    for stack in answer.get("user_stacks", ()):
        creator = f", created by {stack['creator']['function']}" if stack["creator"] else ""
        name = f"{stack['reason'] or stack['state']}: {_stack_name(stack['frames'])}{creator}"
        yield Figure("user threads", name, stack["count"], stack["stack_bytes"], stack["runtime"], f"{stack['kind']}s")


def _stack_name(frames: Sequence[Answer]) -> str:
    return " ← ".join(frame["function"] or f"{frame['module'] or '?'}" for frame in frames)


_READERS = {
    "verdict": _verdict,
    "find": _find,
    "caches": _caches,
    "roots": _roots,
    "runtime": _runtime,
    "scopes": _scopes,
    "stacks": _stacks,
}
"""The commands whose results a snapshot contains, in this order."""
COMMANDS = tuple(_READERS)
