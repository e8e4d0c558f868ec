"""Read pool files (TOML): how pools are found, and how they are divided. docs/pool-files.md
describes the format."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, Optional, Union

from findleaks.errors import UsageError
from findleaks.target.files import read_user_file
from findleaks.value_classes import NamedTuple

LARGEST = 1 << 20  # bytes of a pool file
MOST_POOLS = 1_000  # entries of a pool file
MOST_OFFSET = 1 << 20  # bytes
MOST_SIZE = 1 << 40  # bytes
BASES = ("pool", "slab", "chunk")
STATES = ("free", "used-bits", "free-bits", "used-if", "free-if")
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_POOL = ("name", "symbol", "file", "pointer", "magic", "magic-bytes", "offset", "next", "slab", "chunk")
_SLAB = ("first", "next", "node", "array", "slabs", "header", "size", "limit", "end", "count")
_CHUNK = ("size", "header", "includes-header", "link", *STATES)


class Place(NamedTuple):
    """A number in memory: at `offset` from the start of a pool, slab or chunk (`base`), of `bytes`
    bytes (0: those of a word). Only the bits in `mask` count. `add` is added to the number."""

    base: str
    offset: int
    bytes: int = 0
    mask: int = (1 << 64) - 1
    add: int = 0


Number = Union[int, Place]


def decode_number(place: Place, data: bytes, order: Literal["little", "big"]) -> int:
    """Return the number that a place contains. `data`: the bytes at the place."""
    return (int.from_bytes(data, order) & place.mask) + place.add


class SlabForm(NamedTuple):
    """The slabs of a pool. `first`: offset in the pool of the address of the first slab; None: if
    there is no `array` either, the pool is its only slab. `next`: offset in a slab of the address
    of the next one. `node`: the offset in a slab to which these addresses point. `array`: offset in
    the pool of the address of an array with the addresses of `slabs` slabs. `header`: bytes before
    the first chunk. `size`: bytes of a slab with its header, or, if `is_limit`, the address behind
    the slab. `end`: the address behind the last chunk that was handed out. `chunks`: the number of
    chunks that were handed out."""

    first: Optional[int]
    next: Optional[int]
    node: int
    array: Optional[int]
    slabs: Optional[Number]
    header: int
    size: Number
    is_limit: bool
    end: Optional[Place]
    chunks: Optional[Number]


class ChunkForm(NamedTuple):
    """The chunks of a slab. `header`: bytes before the part that the program uses. `covers_header`:
    whether `size` includes the header. `state`: which of STATES marks free chunks; "" if all chunks
    are in use; `where`: its place. `link`: offset of the next address in a list of free chunks."""

    size: Number
    header: int
    covers_header: bool
    state: str
    where: Optional[Place]
    link: int


class PoolForm(NamedTuple):
    """An entry of a pool file. Either `symbol` or `magic` is set. `pointer`: the variable has the
    address of the pool. `offset`: that of the magic in a pool. `next`: offset of the address of the
    next pool."""

    name: str
    symbol: str
    file: str
    pointer: bool
    magic: Union[bytes, int]
    magic_bytes: int
    offset: int
    next: Optional[int]
    slab: SlabForm
    chunk: ChunkForm


class PoolFile(NamedTuple):
    """A pool file."""

    path: str
    pools: Sequence[PoolForm]

    @property
    def title(self) -> str:
        return os.path.basename(self.path)


def read_pool_file(path: str) -> PoolFile:
    """Read a pool file. Raises UsageError, with the entry and key, if that fails."""
    try:
        toml: Any = import_module("tomllib")
    except ImportError:
        version = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(f"--pools: Python {version} cannot read TOML: use findleaks with Python 3.11 or newer") from None
    data = read_user_file(path, LARGEST, "a pool file")
    try:
        read = toml.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, toml.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    return parse_pools(read, path)


def parse_pools(read: Mapping[str, Any], path: str) -> PoolFile:
    """Check the contents of a pool file. Raises UsageError, with the entry and key."""
    pools = read.get("pool")
    if set(read) != {"pool"} or not isinstance(pools, list) or not all(isinstance(one, dict) for one in pools):
        raise UsageError(f"{path}: expected [[pool]] entries and nothing else")
    if not 0 < len(pools) <= MOST_POOLS:
        raise UsageError(f"{path}: expected 1 to {MOST_POOLS:,} [[pool]] entries, got {len(pools):,}")
    forms = [_pool(one, path, number) for number, one in enumerate(pools, 1)]
    names = [form.name for form in forms]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: several pools are named {name!r}")
    return PoolFile(path, tuple(forms))


class _Table:
    """A table of the file, whose values are checked when they are read."""

    def __init__(self, values: object, keys: Sequence[str], where: str) -> None:
        self.where = where
        if not isinstance(values, dict):
            raise UsageError(f"{where}: expected a table")
        self.values = values
        unknown = [str(key) for key in values if key not in keys]
        if unknown:
            raise UsageError(f"{where}: unknown key {unknown[0][:60]!r}; the keys are: {', '.join(keys)}")

    def fail(self, key: str, expected: str) -> UsageError:
        return UsageError(f"{self.where}: {key}: expected {expected}")

    def number(self, key: str, most: int, usual: Optional[int] = None) -> int:
        value = self.values.get(key, usual)
        if type(value) is not int or not 0 <= value <= most:
            raise self.fail(key, f"a number from 0 to {most:,}")
        return value

    def optional(self, key: str) -> Optional[int]:
        """Return an offset, or None if there is no such key."""
        return self.number(key, MOST_OFFSET) if key in self.values else None

    def text(self, key: str) -> str:
        value = self.values.get(key, "")
        if not isinstance(value, str) or len(value) > 1000:
            raise self.fail(key, "a text")
        return value

    def flag(self, key: str, usual: bool) -> bool:
        value = self.values.get(key, usual)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def place(self, key: str, bases: Sequence[str]) -> Optional[Place]:
        """Return a place relative to one of `bases`; None if there is no such key."""
        if key not in self.values:
            return None
        choices = " or ".join(f"{{ {base} = OFFSET }}" for base in bases)
        if not isinstance(self.values[key], dict):
            raise self.fail(key, choices)
        table = _Table(self.values[key], (*bases, "bytes", "mask", "add"), f"{self.where}: {key}")
        given = [base for base in bases if base in table.values]
        if len(given) != 1:
            raise self.fail(key, choices)
        width = table.number("bytes", 8, 0)
        if "bytes" in table.values and width not in (1, 2, 4, 8):
            raise table.fail("bytes", "1, 2, 4 or 8")
        mask = table.number("mask", (1 << 64) - 1, (1 << 64) - 1)
        return Place(given[0], table.number(given[0], MOST_OFFSET), width, mask, table.number("add", MOST_OFFSET, 0))

    def number_or_place(self, key: str, bases: Sequence[str]) -> Optional[Number]:
        if isinstance(self.values.get(key), dict):
            return self.place(key, bases)
        return self.number(key, MOST_SIZE) if key in self.values else None


def _pool(values: Mapping[str, Any], path: str, number: int) -> PoolForm:
    table = _Table(values, _POOL, f"{path}: pool {number}")
    name = table.text("name")
    if not _NAME.fullmatch(name):
        raise table.fail("name", "1 to 64 letters, digits, or one of _ . + -")
    table.where = f"{path}: pool {name!r}"
    symbol, magic = table.text("symbol"), table.values.get("magic")
    if bool(symbol) == (magic is not None):
        raise UsageError(f"{table.where}: expected either symbol or magic")
    width = table.number("magic-bytes", 8, 0)
    if magic is not None and not ((isinstance(magic, str) and 4 <= len(magic) <= 64) or (type(magic) is int and 0 < magic < 1 << 64)):
        raise table.fail("magic", "a text of 4 to 64 bytes, or a number above 0")
    if width not in (0, 4, 8) or (type(magic) is int and width and magic >> 8 * width):
        raise table.fail("magic-bytes", "4 or 8, enough for the magic")
    for key, needed in (("pointer", "symbol"), ("file", "symbol"), ("offset", "magic"), ("magic-bytes", "magic")):
        if key in table.values and needed not in table.values:
            raise UsageError(f"{table.where}: {key} is only possible with {needed}")
    pattern: Union[bytes, int] = magic.encode() if isinstance(magic, str) else magic or b""
    slab = _slab(_Table(table.values.get("slab"), _SLAB, f"{table.where}: slab"))
    chunk = _chunk(_Table(table.values.get("chunk"), _CHUNK, f"{table.where}: chunk"))
    if isinstance(chunk.size, Place) and chunk.size.base == "chunk" and (slab.chunks is not None or chunk.state.endswith("-bits")):
        raise UsageError(f"{table.where}: chunks of different sizes cannot have slab.count, chunk.used-bits or chunk.free-bits")
    places = (table.flag("pointer", False), pattern, width, table.number("offset", MOST_OFFSET, 0), table.optional("next"))
    return PoolForm(name, symbol, table.text("file"), *places, slab, chunk)


def _slab(table: _Table) -> SlabForm:
    size, limit = table.number_or_place("size", BASES[:2]), table.place("limit", BASES[:2])
    if (size is None) == (limit is None) or size == 0:
        raise table.fail("size", "the bytes of a slab with its header, or their place; or limit instead")
    first, following, array = table.optional("first"), table.optional("next"), table.optional("array")
    for key, needed in (("next", "first"), ("node", "first"), ("slabs", "array"), ("array", "slabs")):
        if key in table.values and needed not in table.values:
            raise UsageError(f"{table.where}: {key} is only possible with {needed}")
    if first is not None and array is not None:
        raise UsageError(f"{table.where}: expected at most one of first and array")
    slabs = table.number_or_place("slabs", BASES[:1])
    end, count = table.place("end", BASES[:2]), table.number_or_place("count", BASES[:2])
    if end is not None and count is not None:
        raise UsageError(f"{table.where}: expected at most one of end and count")
    places = (first, following, table.number("node", MOST_OFFSET, 0), array, slabs, table.number("header", MOST_OFFSET, 0))
    return SlabForm(*places, limit or size or 0, limit is not None, end, count)


def _chunk(table: _Table) -> ChunkForm:
    size = table.number_or_place("size", BASES)
    if size is None or size == 0:
        raise table.fail("size", "the number of bytes of a chunk, or the place of this number")
    states = [key for key in STATES if key in table.values]
    if len(states) > 1:
        raise UsageError(f"{table.where}: expected at most one of {', '.join(STATES)}")
    state = states[0] if states else ""
    bases = ("chunk",) if state.endswith("-if") else BASES[:2]
    where = table.place(state, bases) if state else None
    if "link" in table.values and state != "free":
        raise UsageError(f"{table.where}: link is only possible with free")
    header = table.number("header", MOST_OFFSET, 0)
    return ChunkForm(size, header, table.flag("includes-header", True), state, where, table.number("link", MOST_OFFSET, 0))
