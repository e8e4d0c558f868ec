"""The note of findleaks in the cores that it writes, with data for which a core has no other place.

A note of the owner "findleaks" and type 0x464c4b53 (notes.NT_SNAPSHOT), all of it little-endian.
Version 1:

    u32     version
    u32     page size, in bytes
    f64     time of the stop, in seconds since 1970 (IEEE 754)
    u64     start time of the process, field 22 of /proc/PID/stat: clock ticks after the boot
    u64     resident bytes by the kernel's count; 2^64 - 1: not known
    5 u64   numbers of ranges: known, resident, swapped, unsure, unread
    3 u64   numbers of bytes: maps, names, version of findleaks
    ranges  start and end of each, u64, in the order above; of each kind ascending and disjoint,
            of whole pages (known, resident, swapped, unsure: `residency.presence.Presence`;
            unread: memory of the process that could not be read, or that it excluded from dumps
            by madvise(MADV_DONTDUMP) though it has pages)
    maps    the text of /proc/PID/maps at the stop
    names   of each thread: its id in decimal, a space, its name, a NUL
    version of findleaks, as text
    u64     number of bytes of the next field; 2^64 - 1: not known, and the field is missing
    pointers that only the kernel keeps, as text: see kernel_references.encode_state

Notes of findleaks before 0.1.0 end with the version.

A later version may append fields; a reader ignores what follows the fields that it knows.
Everything may be hostile: sizes are checked before they are used, and nothing is decompressed."""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from findleaks.target import kernel_references
from findleaks.target.base import Range, Region
from findleaks.target.kernel_references import KernelState
from findleaks.target.layout import Load
from findleaks.target.maps import regions_of
from findleaks.target.ranges import merge_ranges
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs

VERSION = 1
SOURCE = "note of the core"  # source of the residency, as named in JSON

_HEAD = struct.Struct("<2Id2Q5Q3Q")
_UNKNOWN = (1 << 64) - 1
_LATEST = 1e11  # seconds since 1970: some three thousand years


class Damaged(Exception):
    """The note is invalid; the text explains why."""


class SnapshotNote(NamedTuple):
    """Contents of the note. `taken_at` is in seconds since 1970, `start_time` in clock ticks after
    boot."""

    taken_at: float
    start_time: int
    presence: Presence
    unread: Sequence[Range]
    maps: bytes
    names: Mapping[int, str]
    version: str  # version of findleaks that wrote the note
    kernel: Optional[KernelState] = None  # None: not known


def encode_note(note: SnapshotNote, page: int) -> bytes:
    """Encode the contents of the note."""
    found = note.presence
    lists = [
        found.known.words,
        found.resident.words,
        found.swapped.words,
        _flat(merge_ranges(found.unsure)),
        _flat(merge_ranges(note.unread)),
    ]
    texts = [note.maps, b"".join(_name(*one) for one in note.names.items()), note.version.encode()]
    rss = _UNKNOWN if found.rss is None else found.rss
    counts = (*(len(words) // 2 for words in lists), *map(len, texts))
    head = _HEAD.pack(VERSION, page, note.taken_at, note.start_time, rss, *counts)
    kept = b"" if note.kernel is None else kernel_references.encode_state(note.kernel)
    texts += [struct.pack("<Q", _UNKNOWN if note.kernel is None else len(kept)), kept]
    return b"".join([head, *(_little_endian(words).tobytes() for words in lists), *texts])


def decode_note(desc: memoryview, page: int) -> SnapshotNote:
    """Decode the contents of the note.
    Raises Damaged if they are invalid."""
    if len(desc) < 4:
        raise Damaged("it is cut off")
    (version,) = struct.unpack_from("<I", desc)
    if version != VERSION:
        raise Damaged(f"it has version {version}, expected {VERSION}")
    if len(desc) < _HEAD.size:
        raise Damaged("it is cut off")
    _, size, taken, start_time, rss, *counts = _HEAD.unpack_from(desc)
    if size != page:
        raise Damaged(f"its pages have {size} bytes instead of {page}")
    if not 0 <= taken < _LATEST:
        raise Damaged("its time is invalid")
    needed = _HEAD.size + 16 * sum(counts[:5]) + sum(counts[5:])
    if needed > len(desc):
        raise Damaged(f"it has {len(desc):,} bytes instead of {needed:,}")
    at = _HEAD.size
    lists: list[Runs] = []
    for count in counts[:5]:
        words = _little_endian(array("Q", desc[at : at + 16 * count].tobytes()))
        if not all(map(operator.lt, words, words[1:])) or any(word % page for word in words):
            raise Damaged("its ranges do not ascend")
        lists.append(Runs(words))
        at += 16 * count
    texts: list[bytes] = []
    for count in counts[5:]:
        texts.append(desc[at : at + count].tobytes())
        at += count
    known, resident, swapped, unsure, unread = lists
    presence = Presence(SOURCE, known, resident, swapped, None if rss == _UNKNOWN else rss, tuple(unsure))
    said = texts[2].decode("utf-8", "replace")
    return SnapshotNote(taken, start_time, presence, tuple(unread), texts[0], dict(_names(texts[1])), said, _kernel_state(desc[at:]))


def _kernel_state(rest: memoryview) -> Optional[KernelState]:
    """Decode the part after the version of findleaks. None if it is missing."""
    if not rest:
        return None
    if len(rest) < 8:
        raise Damaged("it is cut off")
    size = int.from_bytes(rest[:8], "little")
    if size == _UNKNOWN:
        return None
    if size > len(rest) - 8:
        raise Damaged(f"it has {len(rest) - 8:,} bytes instead of {size:,} at its end")
    return kernel_references.decode_state(rest[8 : 8 + size].tobytes())


def damage_warning(name: str, why: str) -> str:
    """Format the warning about a core whose note cannot be used."""
    return (
        f"{name}: findleaks' own note in the core is damaged ({why}) and ignored. Thread names are missing, "
        "and resident pages may be unknown."
    )


def regions(note: SnapshotNote, loads: Sequence[Load], top: int) -> Optional[list[Region]]:
    """Return the mappings from the note, which has the names of anonymous mappings and shows which
    are shared. None if they do not match the segments of the core. Mappings beyond `top` are
    dropped."""
    found = [region for region in regions_of(note.maps) if region.end <= top]
    if len(found) != len(loads):
        return None
    for region, load in zip(found, loads):
        flags = 4 * region.readable | 2 * region.writable | region.executable
        if (region.start, region.end, flags) != (load.start, load.end, load.flags & 7):
            return None
    return found


def _flat(ranges: Sequence[Range]) -> array[int]:
    return array("Q", (word for part in ranges for word in part))


def _little_endian(words: array[int]) -> array[int]:
    """Convert words between this machine's byte order and little-endian."""
    if sys.byteorder != "little":
        words = words[:]
        words.byteswap()
    return words


def _name(tid: int, name: str) -> bytes:
    return b"%d %s\0" % (tid, name.encode("utf-8", "surrogateescape"))


def _names(text: bytes) -> Iterator[tuple[int, str]]:
    for row in text.split(b"\0"):
        tid, space, name = row.partition(b" ")
        if space and tid.isdigit() and len(tid) <= 10:
            yield int(tid), name[:64].decode("utf-8", "surrogateescape")
