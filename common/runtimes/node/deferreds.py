"""Find promises of addons that are not settled: Node-API deferreds.

Source: Node 12 to 24, src/js_native_api_v8.cc: napi_create_promise allocates a v8impl::Persistent
(later v8::Global), a single word with the address of a strong global handle of the promise.
napi_resolve_deferred and napi_reject_deferred free both. Another addon can allocate the same
structure only with V8's GlobalizeReference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK, State
from findleaks.runtimes.node.addon_files import DEFERRED, SUFFIX
from findleaks.runtimes.v8.metadata import TAG, TAG_MASK, Metadata
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

_PROMISE = "type_JSPromise__JS_PROMISE_TYPE"
_LARGEST = 24  # bytes of the smallest block of glibc
# Strings in an addon's file: the prefix of Node-API's functions, the function that makes deferreds,
# and the function of V8 that an addon needs to make the same structure by itself.
_API, _CREATE, _OTHER = b"napi_", b"napi_create_promise", b"GlobalizeReference"
_MOST_CODE = 1 << 26  # bytes of an addon that are searched for these strings


class Deferreds(NamedTuple):
    """Deferreds. `name`: their type. `file`: the addon that makes them, "" if there are several.
    `blocks`: the index of the block of each, by the address of its global handle."""

    name: str
    file: str
    blocks: Mapping[int, int]


def find_deferreds(target: Target, engine: Engine, directory: Directory, handles: Mapping[int, int]) -> Optional[Deferreds]:
    """Return the deferreds; None if there are none, or if they cannot be distinguished from other
    structures. `handles`: the values of strong global handles, by their addresses. Raises
    Interrupted."""
    handles = _select_promises(target, engine, handles)
    file = _find_maker(target) if handles else None
    if file is None:
        return None
    blocks, wanted, found = directory.blocks, sorted(handles), dict[int, int]()
    counts: Counter[int] = Counter()
    for owned in directory.heaps:
        for piece in interruptible(target, nonzero_pieces(target, owned.start, owned.end)):
            places = engine.search_any(piece, wanted)
            words, _ = engine.gather((piece,), places, target.arch.word)
            indices, _ = blocks.find_all(places)
            starts, sizes, states = blocks.columns_of(indices)
            for place, word, index, start, size, state in zip(places, target.arch.unpack(bytes(words)), indices, starts, sizes, states):
                if index != NO_BLOCK and place == start and size <= _LARGEST and state == State.IN_USE:
                    found[word] = index
                    counts[word] += 1
    found = {handle: index for handle, index in found.items() if counts[handle] == 1}
    return Deferreds(f"{DEFERRED} ({file or 'of an addon'})", file, found) if found else None


def _select_promises(target: Target, engine: Engine, handles: Mapping[int, int]) -> Mapping[int, int]:
    """Return the handles whose object is a promise."""
    metadata, memory = Metadata(target), Memory(target)
    number, offset = metadata.constant(_PROMISE), metadata.offset("Map", "instance_type")
    if number is None or offset is None or memory.size != 8:
        return {}
    starts = sorted({value - TAG for value in handles.values() if value & TAG_MASK == TAG})
    data, missing = read_records(target, engine, starts, memory.size)
    maps = {start: word for at, (start, word) in enumerate(zip(starts, target.arch.unpack(bytes(data)))) if at not in missing}
    kinds = {word: memory.read(word - TAG + offset, 2) for word in {*maps.values()} if word & TAG_MASK == TAG}
    wanted = number.to_bytes(2, target.arch.byteorder)
    return {place: value for place, value in handles.items() if kinds.get(maps.get(value - TAG, 0)) == wanted}


def _find_maker(target: Target) -> Optional[str]:
    """Return the file of the addon that makes deferreds; "" if there are several such addons. None
    if there is none, or if another addon may allocate global handles."""
    makers = []
    for module in target.modules():
        if not module.path.endswith(SUFFIX):
            continue
        found = _find_strings(target, module.start, min(module.end, module.start + _MOST_CODE))
        if _API not in found or _OTHER in found:
            return None
        makers += [module.path] if _CREATE in found else []
    return None if not makers else makers[0] if len({*makers}) == 1 else ""


def _find_strings(target: Target, start: int, end: int) -> frozenset[bytes]:
    """Return which of the strings are in this part of an addon."""
    found, rest = set[bytes](), b""
    for piece in target.pieces(start, end):
        data = rest + bytes(piece.data)
        found.update(one for one in (_API, _CREATE, _OTHER) if one in data)
        rest = data[-len(_CREATE) :]
    return frozenset(found)
