"""Pool files: their syntax, and how they divide blocks, in handmade memory."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path
from typing import Any

import documented
import pytest
from fake import FakeTarget

from findleaks.allocators.described.file import Place, parse_pools, read_pool_file
from findleaks.allocators.described.instance import read_pools
from findleaks.allocators.directory import Directory, build_directory
from findleaks.engine import load
from findleaks.engine.terms import State
from findleaks.errors import UsageError
from findleaks.target.arch import X86_64
from findleaks.target.base import Symbol

BASE = 0x7F0000000000
needs_tomllib = pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs Python 3.11")
GOOD: dict[str, Any] = {"name": "p", "symbol": "p", "slab": {"size": 256, "header": 16}, "chunk": {"size": 32}}


def change_entry(where: str = "", **more: Any) -> dict[str, Any]:
    """Return the valid entry with changed values in a table ("" is the entry). The value None removes a key."""
    made: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in GOOD.items()}
    table = made[where] if where else made
    for key, value in more.items():
        table[key.replace("_", "-")] = value
        if value is None:
            del table[key.replace("_", "-")]
    return made


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (change_entry(title="x"), "unknown key 'title'"),
        (change_entry(name=None), "name: expected 1 to 64 letters"),
        (change_entry(name="a b"), "name: expected 1 to 64 letters"),
        (change_entry(symbol=None), "expected either symbol or magic"),
        (change_entry(magic=1), "expected either symbol or magic"),
        (change_entry(symbol=None, magic="ab"), "magic: expected a text of 4 to 64 bytes, or a number above 0"),
        (change_entry(symbol=None, magic=1 << 40, magic_bytes=4), "magic-bytes: expected 4 or 8"),
        (change_entry(offset=8), "offset is only possible with magic"),
        (change_entry(symbol=None, magic=7, pointer=True), "pointer is only possible with symbol"),
        (change_entry(pointer=1), "pointer: expected true or false"),
        (change_entry(next=-8), "next: expected a number from 0"),
        (change_entry(slab=None), "slab: expected a table"),
        (change_entry("slab", size=None), "slab: size: expected the bytes of a slab"),
        (change_entry("slab", size={"chunk": 0}), "unknown key 'chunk'"),
        (change_entry("slab", next=0), "next is only possible with first"),
        (change_entry("slab", limit={"pool": 0}), "size: expected"),
        (change_entry("slab", array=0), "array is only possible with slabs"),
        (change_entry("slab", array=0, slabs=1, first=0), "at most one of first and array"),
        (change_entry("slab", end={"pool": 0}, count=3), "at most one of end and count"),
        (change_entry("chunk", size=True), "size: expected a number"),
        (change_entry("chunk", size={}), "size: expected { pool = OFFSET } or { slab = OFFSET } or { chunk = OFFSET }"),
        (change_entry("chunk", size={"pool": 0, "bytes": 3}), "bytes: expected 1, 2, 4 or 8"),
        (change_entry("chunk", free={"pool": 0}, used_if={"chunk": 0}), "at most one of free"),
        (change_entry("chunk", free={"chunk": 0}), "unknown key 'chunk'"),
        (change_entry("chunk", link=8), "link is only possible with free"),
        (change_entry("chunk", size={"chunk": 0}, used_bits={"slab": 0}), "chunks of different sizes cannot have"),
    ],
)
def test_wrong_entries(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        parse_pools({"pool": [entry]}, "pools.toml")
    assert str(error.value).startswith("pools.toml: pool ") and "\n" not in str(error.value)


@pytest.mark.parametrize("read", [{}, {"pool": {}}, {"pool": []}, {"pool": [3]}, {"pool": [GOOD], "x": 1}, {"pool": [GOOD, GOOD]}])
def test_wrong_files(read: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^pools.toml: "):
        parse_pools(read, "pools.toml")


@needs_tomllib
def test_reading_files(tmp_path: Path) -> None:
    path = tmp_path / "pools.toml"
    for data, said in ((b"[[pool]\n", "not TOML"), (b"\xff", "not TOML"), (b"#" * (1 << 20) + b"#", "at most 1 MiB")):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=said):
            read_pool_file(str(path))
    for name, said in (("missing", "no such file"), (".", "directory|not a regular file")):
        with pytest.raises(UsageError, match=said):
            read_pool_file(str(tmp_path / name))
    path.write_text(documented.pool_file())
    sessions, messages = read_pool_file(str(path)).pools
    assert (sessions.symbol, sessions.slab.first, sessions.chunk.where) == ("session_pool", 0, Place("pool", 8))
    assert (messages.magic, messages.slab.first, messages.chunk.state) == (b"ARENAv1", None, "used-if")


def test_older_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)
    with pytest.raises(UsageError, match=r"cannot read TOML: use findleaks with Python 3\.11 or newer"):
        read_pool_file("pools.toml")


def divide(memory: bytes, entry: dict[str, Any], symbol: int = 0) -> Directory:
    """Divide memory at BASE, which belongs to no allocator, with the pool at BASE + `symbol`."""
    target = FakeTarget({BASE: memory}, symbols=[Symbol("p", BASE + symbol, 0)])
    engine = load.load(X86_64)
    file = parse_pools({"pool": [entry]}, "/x/pools.toml")
    outer = build_directory(target, engine)
    return build_directory(target, engine, (), read_pools(target, outer.blocks, file))


def list_blocks(directory: Directory) -> list[tuple[int, int, str]]:
    """Return the offset, size and state of each block."""
    blocks = directory.blocks
    return [(blocks.address(one) - BASE, blocks.size(one), State(blocks.state(one)).name) for one in range(len(blocks))]


def pack_words(*values: int, size: int = 4096) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values).ljust(size, b"\0")


def test_one_slab_with_all_chunks_in_use() -> None:
    assert list_blocks(divide(pack_words(0), GOOD)) == [(16 + 32 * at, 32, "IN_USE") for at in range(7)]
    assert list_blocks(divide(pack_words(0), change_entry("slab", count=2))) == [(16, 32, "IN_USE"), (48, 32, "IN_USE")]
    assert list_blocks(divide(pack_words(BASE + 48), change_entry("slab", end={"pool": 0}))) == [(16, 32, "IN_USE")]
    assert list_blocks(divide(pack_words(BASE + 100), change_entry("slab", end={"pool": 0}))) == [(16, 32, "IN_USE"), (48, 32, "IN_USE")]
    tagged = change_entry("slab", end={"pool": 0})
    tagged["chunk"] |= {"header": 8, "used-if": {"chunk": 0}}
    assert list_blocks(divide(pack_words(BASE + 100, 0, 1), tagged)) == [(24, 24, "IN_USE"), (56, 24, "FREE")]
    assert list_blocks(divide(pack_words(0), change_entry("chunk", header=8)))[0] == (24, 24, "IN_USE")
    assert list_blocks(divide(pack_words(0), change_entry("chunk", header=8, includes_header=False)))[:2] == [
        (24, 32, "IN_USE"),
        (64, 32, "IN_USE"),
    ]


def test_bitmaps() -> None:
    used = list_blocks(divide(pack_words(0b101), change_entry("chunk", used_bits={"slab": 0})))
    free = list_blocks(divide(pack_words(0b101), change_entry("chunk", free_bits={"pool": 0})))
    assert [state for _, _, state in used] == ["IN_USE", "FREE", "IN_USE", *["FREE"] * 4]
    assert [state for _, _, state in free] == ["FREE", "IN_USE", "FREE", *["IN_USE"] * 4]


def test_states_in_chunks() -> None:
    data = pack_words(0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    assert [state for _, _, state in list_blocks(divide(data, change_entry("chunk", used_if={"chunk": 0})))] == ["IN_USE", *["FREE"] * 6]
    assert [state for _, _, state in list_blocks(divide(data, change_entry("chunk", free_if={"chunk": 0, "bytes": 1})))][:2] == [
        "FREE",
        "IN_USE",
    ]


def test_lists_of_pools_slabs_and_free_chunks() -> None:
    """Two pools, of which the first has two slabs. The free lists have their link after the first word."""
    memory = bytearray(4096)
    struct.pack_into("<3Q", memory, 0, BASE + 64, BASE + 1024, BASE + 1024 + 48)  # pool: next, first slab, free
    struct.pack_into("<3Q", memory, 64, 0, BASE + 3072, 0)
    struct.pack_into("<Q", memory, 1024, BASE + 2048)
    struct.pack_into("<Q", memory, 1024 + 48 + 8, BASE + 2048 + 16)
    entry = change_entry("slab", first=8, next=0)
    entry["next"] = 0
    entry["chunk"] |= {"free": {"pool": 16}, "link": 8}
    found = divide(bytes(memory), entry)
    assert found.problems == []
    assert [at for at, _, state in list_blocks(found) if state == "FREE"] == [1024 + 48, 2048 + 16]
    assert len(list_blocks(found)) == 21 and found.allocators[-1].summary() == {"pools": 2, "slabs": 3}


def test_arrays_rings_and_limits() -> None:
    """Three cases: an array of two slabs; a ring of two slabs, whose links lead to nodes in the slabs; slabs that end
    at a given address."""
    memory = bytearray(4096)
    struct.pack_into("<2Q", memory, 0, BASE + 32, 3)
    struct.pack_into("<3Q", memory, 32, BASE + 1024, 0, BASE + 2048)
    found = divide(bytes(memory), change_entry("slab", array=0, slabs={"pool": 8}))
    assert found.problems == [] and [at for at, _, _ in list_blocks(found)][::7] == [1040, 2064]
    struct.pack_into("<Q", memory, 16, BASE + 1024 + 8)
    struct.pack_into("<2Q", memory, 1024, BASE + 1024 + 256, BASE + 2048 + 8)
    struct.pack_into("<2Q", memory, 2048, BASE + 2048 + 128, BASE + 1024 + 8)
    ring = divide(bytes(memory), change_entry("slab", first=16, next=8, node=8, size=None, limit={"slab": 0}))
    assert ring.problems == [] and [at for at, _, _ in list_blocks(ring)] == [*range(1040, 1250, 32), 2064, 2096, 2128]


def test_chunks_of_different_sizes() -> None:
    memory = bytearray(4096)
    for at, size in ((16, 32 | 1), (48, 64), (112, 144 | 1)):
        struct.pack_into("<Q", memory, at, size)
    entry = change_entry("chunk", size={"chunk": 0, "mask": ~7 & (1 << 64) - 1}, header=8, used_if={"chunk": 0, "mask": 1})
    assert list_blocks(divide(bytes(memory), entry)) == [(24, 24, "IN_USE"), (56, 56, "FREE"), (120, 136, "IN_USE")]
    sizes = memory[:]
    for at in (16, 48, 112):
        sizes[at] -= 8  # the numbers do not include the headers
    assert list_blocks(divide(bytes(sizes), {**entry, "chunk": {**entry["chunk"], "size": {**entry["chunk"]["size"], "add": 8}}})) == [
        (24, 24, "IN_USE"),
        (56, 56, "FREE"),
        (120, 136, "IN_USE"),
    ]
    struct.pack_into("<Q", memory, 48, 1 << 40)  # the rest of the slab is not divided
    found = divide(bytes(memory), entry)
    assert list_blocks(found) == [(24, 24, "IN_USE"), (48, 208, "IN_USE")]
    assert [one.what for one in found.problems] == [
        f"pools.toml: p: the chunk at {BASE + 48:#x} would have {1 << 40:,} bytes: the rest of the slab at {BASE:#x} is not divided"
    ]


def test_a_last_chunk_without_room_for_its_header() -> None:
    memory = bytearray(4096)
    struct.pack_into("<Q", memory, 16, 232)
    entry = change_entry("chunk", size={"chunk": 0}, header=16)
    assert list_blocks(divide(bytes(memory), entry)) == [(32, 216, "IN_USE"), (248, 8, "IN_USE")]


@pytest.mark.parametrize(
    ("memory", "entry", "said"),
    [
        (pack_words(0), change_entry(symbol="q"), "no variable q in any loaded file"),
        (pack_words(0), change_entry(symbol=None, magic="nowhere"), "no block in use and no variable contains the magic"),
        (pack_words(0), change_entry(pointer=True), ""),
        (pack_words(0), change_entry("slab", size={"pool": 0}), "would have 0 bytes"),
        (pack_words(1 << 50), change_entry("slab", size={"pool": 0}), "bytes: it and the further slabs are not read"),
        (pack_words(1 << 30), change_entry("slab", size={"pool": 0}), "neither in one block in use nor mapped outside heaps"),
        (pack_words(0), change_entry("slab", first=0), ""),
        (pack_words(8), change_entry("slab", first=0), "the slab at 0x8 (256 bytes) is neither"),
        (
            pack_words(BASE, 0, BASE + 256, size=256) + pack_words(BASE),
            change_entry("slab", first=16, next=0, size=128),
            "twice: further slabs",
        ),
        (pack_words(8, 1), change_entry("slab", array=0, slabs={"pool": 8}), "array of slabs of the pool"),
        (pack_words(BASE, 1 << 40), change_entry("slab", array=0, slabs={"pool": 8}), "array of slabs of the pool"),
        (pack_words(BASE - 8), change_entry("slab", size=None, limit={"pool": 0}), "would have 0 bytes"),
        (pack_words(12), change_entry("chunk", size={"pool": 0}), "chunks of 12 bytes"),
        (pack_words(0), change_entry("chunk", size={"pool": 0}), "chunks of 0 bytes"),
        (pack_words(1 << 63), change_entry("slab", count={"pool": 0}), "the end of the chunks"),
        (pack_words(8), change_entry("slab", end={"slab": 0}), "the end of the chunks"),
        (pack_words(0, 0, 0, 0), change_entry("slab", header=12), "are not aligned to 8 bytes"),
        (pack_words(8), change_entry("chunk", free={"pool": 0}), "leads to 0x8, which is in no chunk"),
        (pack_words(BASE + 16, 0, BASE + 16), change_entry("chunk", free={"pool": 0}), "is free twice"),
    ],
)
def test_contradictory_memory(memory: bytes, entry: dict[str, Any], said: str) -> None:
    """Memory that contradicts the description is not divided into blocks. The reason is reported once."""
    found = divide(memory, entry)
    assert all(problem.what.startswith("pools.toml: p: ") and not problem.corrupt for problem in found.problems)
    assert len(found.problems) == bool(said) and all(said in problem.what for problem in found.problems)
    assert all(0 <= at < len(memory) for at, _, _ in list_blocks(found))


def test_a_magic_in_two_places() -> None:
    data = bytearray(4096)
    for at in (512, 1024):
        struct.pack_into("<2Q", data, at, 5, 0xFEEDFACE12345678)
    entry = change_entry(symbol=None, magic=0xFEEDFACE12345678, offset=8)
    assert [at for at, _, _ in list_blocks(divide(bytes(data), entry))][::7] == [528, 1040]
