"""Owners of root memory that no other owner has, one for each mapping. An owner has the names of
the variables that refer to its mapping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from findleaks.audit.address_info import Describer
from findleaks.audit.foreign_words import in_c_library
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.audit.references import is_live
from findleaks.formatting import join_words, shorten, size
from findleaks.session import Session
from findleaks.target.base import Module, Range, Region
from findleaks.target.ranges import intersection, merge_ranges, range_at, subtract
from findleaks.target.runs import Runs

_MOST_NAMED = 16  # mappings whose variables are searched
_LEAST = 64 << 10  # bytes of the smallest such mapping
_SHOWN = 4  # maximum number of places that refer to mappings in a sentence
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
    word, order = session.target.arch.word, session.target.arch.byteorder
    for memory in (subtract(variables, mappings), session.heap_ranges()):
        places: dict[str, None] = {}
        for piece in session.pieces(memory, "searching for pointers to mappings"):
            for place in session.engine.search(piece, mappings[0].start, mappings[-1].end):
                at = place - piece.address
                value = int.from_bytes(piece.data[at : at + word], order)
                if len(places) <= _SHOWN and range_at(mappings, value) is not None and is_live(session, place, value):
                    places[_describe_place(session, place)] = None
        if places:
            shown = [*list(places)[:_SHOWN], *(["others"] if len(places) > _SHOWN else [])]
            return f"{join_words(shown)} {'refers' if len(shown) == 1 else 'refer'}"
    return ""


def _describe_place(session: Session, place: int) -> str:
    """Return "queue (server, data)", or the description of the block that contains a word."""
    found = Describer(session).answer(place)
    return shorten(found.phrase if found.block is None else f"A {found.block.phrase()} at {found.block.address:#x}", 200)


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
