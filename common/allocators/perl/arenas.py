"""Read the values in Perl's arenas as columns, and the sizes of bodies.

Sources: sv.h (struct sv), sv.c (Perl_more_bodies) of Perl 5.36 to 5.40."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from findleaks.allocators.bulk import read_records
from findleaks.allocators.perl.layout import HASH, HEAD, NAMED_HASHES, SIZES, BodyArena, ValueArena
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

BATCH = 1 << 10  # arenas that are read at once
FEW = 3  # minimum number of known bodies that decide about a size
HAS_AUX = 0x02000000  # SVf_OOK: in a hash, its body has a struct xpvhv_aux


class Values(NamedTuple):
    """Values, free ones included, ascending by address. The columns are the members of struct sv:
    the address of the body, the reference count, the flags, and the union."""

    addresses: array[int]  # "Q"
    bodies: Sequence[int]  # "Q"
    counts: array[int]  # "I"
    flags: array[int]  # "I"
    unions: Sequence[int]  # "Q"


def read_values(target: Target, engine: Engine, arenas: Sequence[ValueArena]) -> Iterator[Values]:
    """Yield the values of arenas, which must ascend. Arenas that cannot be read are left out.
    Raises Interrupted."""
    at = 0
    while at < len(arenas):
        if target.is_interrupted():
            raise Interrupted
        slots = arenas[at].slots
        some = [one.start for one in islice(arenas, at, at + BATCH) if one.slots == slots]
        different = next((number for number, one in enumerate(islice(arenas, at, at + BATCH)) if one.slots != slots), len(some))
        some = some[:different]
        at += len(some)
        data, missing = read_records(target, engine, some, slots * HEAD)
        for number in sorted(missing, reverse=True):
            del data[number * slots * HEAD : (number + 1) * slots * HEAD], some[number]
        yield _columns(target, some, slots, data)


def _columns(target: Target, starts: Sequence[int], slots: int, data: bytearray) -> Values:
    """Return the values in arenas of `slots` slots each, whose bytes are `data`."""
    words, halves = array("Q", target.arch.words(data)), array("I", target.arch.words32(data))
    addresses = array("Q")
    for start in starts:
        addresses.extend(range(start + HEAD, start + slots * HEAD, HEAD))
    columns = words[::3], halves[2::6], halves[3::6], words[2::3]
    for column in columns:
        del column[::slots]  # the headers of the arenas
    return Values(addresses, *columns)


def size_of_bodies(arenas: Sequence[BodyArena], free: Sequence[int], known: Sequence[int], kind: int) -> int:
    """Return the size of the bodies in the arenas of one type; 0 if it is unknown.

    `free` and `known` are addresses of free bodies and of bodies in use. A size is right if the
    distance of each of these bodies from the start of its arena is a multiple of the size."""
    offsets = [offset for offset in (_offset(arenas, address) for address in (*free, *known)) if offset]
    usual = SIZES.get(kind, 0)
    if usual and all(offset % usual == 0 for offset in offsets):
        return usual
    found = math.gcd(*offsets) if len(offsets) >= FEW else 0
    return found if found >= 16 else 0


def _offset(arenas: Sequence[BodyArena], address: int) -> int:
    """Return the distance of an address from the start of its arena; 0 if it is in none."""
    low, high = 0, len(arenas)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if arenas[middle].start <= address else (low, middle)
    one = arenas[low - 1] if low else None
    return address - one.start if one is not None and address < one.start + one.size else 0


def arena_type(kind: int, flags: int) -> int:
    """Return the type of the arena that has the body of a value. `kind` is the value's type."""
    return NAMED_HASHES if kind == HASH and flags & HAS_AUX else kind
