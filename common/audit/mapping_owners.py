"""Owners of root memory that no other owner has, one for each mapping. An owner has the names of
the variables that refer to its mapping."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from findleaks.audit.address_info import BlockInfo, Describer
from findleaks.audit.foreign_words import in_c_library
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.audit.references import CHUNK, is_live
from findleaks.errors import Interrupted
from findleaks.formatting import join_words, shorten, size
from findleaks.session import Session
from findleaks.target.base import Module, Range, Region
from findleaks.target.ranges import intersection, merge_ranges, range_at, subtract
from findleaks.target.runs import Runs

_MOST_NAMED = 16  # mappings whose variables are searched
_LEAST = 64 << 10  # bytes of the smallest such mapping
_SHOWN = 4  # maximum number of places that refer to mappings in a sentence
_MOST_EXAMINED = 100_000  # words that are examined
_MOST_SPANS = 8  # spans of mappings to which pointers are searched
_MOST_WORDS = 2  # words that refer to a mapping; if there are more, none of them owns it


def find_mapping_owners(session: Session, taken: Iterable[Range]) -> Iterator[Owner]:
    """Yield an owner for each mapping with root memory outside `taken`. If one or two words in the
    data of modules refer to an anonymous mapping, the owner has the names of their variables."""
    left = Runs.of(subtract(session.roots, taken))
    found = [(region, list(left.within(region.start, region.end))) for region in session.target.regions()]
    found = [(region, ranges) for region, ranges in found if ranges]
    anonymous = [region for region, _ in found if not region.name and region.size >= _LEAST]
    variables = _find_variables(session, sorted(anonymous, key=lambda region: -region.size)[:_MOST_NAMED])
    for region, ranges in found:
        name = region.name.rsplit("/", 1)[-1] if region.name.startswith("/") else region.name
        what = f"{name} mapping" if name and not name.startswith("[") else name or "anonymous mapping"
        named = variables.get(region.start, ())
        verb = "refers" if len(named) == 1 else "refer"
        where = f"{size(region.size)}; {join_words(named)} {verb} to it" if named else size(region.size)
        yield Owner(OwnerSort.MAPPING, f"{what} at {region.start:#x}", where, 0, ranges)


def describe_referrers(session: Session, mappings: Sequence[Range]) -> str:
    """Return "pool.full (server, data) and queue (server, data) refer": the variables of modules
    that refer to these mappings, or else the blocks in use that do; "" if there are none.
    `mappings`: ascending."""
    # The C library and the dynamic linker keep addresses of memory that they unmapped.
    modules = [Range(module.start, module.end) for module in session.target.modules() if not in_c_library(module)]
    variables = intersection(session.roots, merge_ranges(modules))
    blocks, describer = session.directory.blocks, Describer(session)
    for memory in (subtract(variables, mappings), session.heap_ranges()):
        places: dict[BlockInfo | str, None] = {}
        described = set[int]()  # blocks; an array in one block may have thousands of pointers
        for place in _find_pointers(session, memory, mappings):
            index = blocks.find(place)
            if index in described:
                continue
            if index >= 0:
                described.add(index)
            found = describer.answer(place)
            places[found.block or shorten(found.phrase)] = None
            if len(places) > _SHOWN:
                break
        if places:
            shown = [_name_place(one, not at) for at, one in enumerate(islice(places, _SHOWN))]
            shown += ["others"] if len(places) > _SHOWN else []
            return f"{join_words(shown)} {'refers' if len(shown) == 1 else 'refer'}"
    return ""


def _find_pointers(session: Session, memory: Sequence[Range], mappings: Sequence[Range]) -> Iterator[int]:
    """Yield the addresses of live words in `memory` that refer to mappings. On 32-bit machines, any
    number may be an address in a mapping; only addresses of its start are certain."""
    starts = {one.start for one in mappings}
    word, order = session.target.arch.word, session.target.arch.byteorder
    spans, count = _join_neighbours(session, mappings), 0
    for piece in session.pieces(memory, "searching for pointers to mappings"):
        for span in spans:
            for place in session.engine.search(piece, span.start, span.end):
                count += 1
                if count % CHUNK == 0 and session.target.is_interrupted():
                    raise Interrupted
                if count > _MOST_EXAMINED:
                    return
                at = place - piece.address
                value = int.from_bytes(piece.data[at : at + word], order)
                is_inside = value in starts if word == 4 else range_at(mappings, value) is not None
                if is_inside and is_live(session, place, value):
                    yield place


def _join_neighbours(session: Session, mappings: Sequence[Range]) -> list[Range]:
    """Return the largest spans of mappings between which no other memory is mapped: memory is
    searched once for each span, and words that refer to other memory are not found."""
    others = subtract([Range(one.start, one.end) for one in session.target.regions()], mappings)
    starts, spans = [one.start for one in others], list[Range]()
    for one in mappings:
        if spans and bisect_left(starts, spans[-1].end) == bisect_left(starts, one.start):
            spans[-1] = Range(spans[-1].start, one.end)
        else:
            spans.append(one)
    return sorted(spans, key=lambda one: one.start - one.end)[:_MOST_SPANS]


def _name_place(place: BlockInfo | str, is_first: bool) -> str:
    """Return the name of a variable, or the description of a block. `is_first`: whether a sentence
    begins with it."""
    if isinstance(place, str):
        return place
    return shorten(f"{'A' if is_first else 'a'} {place.phrase()} at {place.address:#x}")


def _find_variables(session: Session, regions: Sequence[Region]) -> dict[int, Sequence[str]]:
    """Return, by start of a mapping, the names of the variables that refer to it."""
    modules = session.target.modules() if regions else ()
    data = intersection(session.roots, merge_ranges(Range(module.start, module.end) for module in modules))
    words: dict[int, list[int]] = {region.start: [] for region in regions}
    for piece in session.pieces(data, "searching for pointers to mappings"):
        regions = [region for region in regions if len(words[region.start]) <= _MOST_WORDS]
        for region in regions:
            words[region.start] += session.engine.search(piece, region.start, region.end)[: _MOST_WORDS + 1]
    few = {start: places for start, places in words.items() if 0 < len(places) <= _MOST_WORDS}
    return {start: [_name(session, modules, place) for place in places] for start, places in few.items()}


def _name(session: Session, modules: Sequence[Module], place: int) -> str:
    """Return the name of the variable that contains the word at `place`, which is in a module's
    data. Without a symbol, return the module's file and the offset in the module."""
    module = next(one for one in modules if one.start <= place < one.end)
    file = module.path.rsplit("/", 1)[-1] or "module"
    symbol = session.target.symbolize(place)
    if symbol is None or not symbol.address <= place < symbol.address + max(symbol.size, 1):
        return f"{file}+{place - module.start:#x}"
    offset = place - symbol.address
    return f"{symbol.name}{f'+{offset:#x}' if offset else ''} of {file}"
