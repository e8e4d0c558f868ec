"""V8's spaces in cores with damaged pointers and counters: the damage is reported, and all other spaces have exact figures."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import debuggers
import nodes
import pytest
from nodespaces import RUNTIME, make_program, parse_spaces

from findleaks.runtimes.node import heap as heaps
from findleaks.runtimes.node import shape, spaces
from findleaks.runtimes.node.instance import Node
from findleaks.runtimes.v8.isolates import isolates
from findleaks.runtimes.v8.layout import derive
from findleaks.session import Session
from findleaks.target.core import open_core

GARBAGE = 0x4141_4141_4141_4140


class Words:
    """Words of a core file that can be read and changed. `restore` writes the original words back, which is faster than a copy of the
    core of several hundred megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before: list[tuple[int, int]] = []
        with open(path, "rb") as file:
            head = file.read(64)
            file.seek(struct.unpack_from("<Q", head, 32)[0])
            table = [struct.unpack("<IIQQQQQQ", file.read(56)) for _ in range(struct.unpack_from("<H", head, 56)[0])]
        self._loaded = [(start, start + size, offset) for kind, _, offset, start, _, size, _, _ in table if kind == 1]

    def _place(self, address: int) -> int:
        return next(address - start + offset for start, end, offset in self._loaded if start <= address < end)

    def read(self, address: int, count: int = 1) -> tuple[int, ...]:
        with open(self.path, "rb") as file:
            file.seek(self._place(address))
            return struct.unpack(f"<{count}Q", file.read(8 * count))

    def put(self, address: int, word: int) -> None:
        self._before.append((address, *self.read(address)))
        self._write(address, word)

    def restore(self) -> None:
        while self._before:
            self._write(*self._before.pop())

    def _write(self, address: int, word: int) -> None:
        with open(self.path, "r+b") as file:
            file.seek(self._place(address))
            file.write(struct.pack("<Q", word))


class Picture(NamedTuple):
    """A core, the figures of V8 for its one isolate, and the addresses of V8's structures in it."""

    core: Path
    figures: dict[str, list[int]]
    shape: shape.Shape
    isolate: int
    spaces: dict[str, spaces.Space]


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Picture]:
    folder = tmp_path_factory.mktemp("spaces")
    with make_program(folder, nodes.NEWEST, 0) as running:
        core = running.kernel_core()
    (truth,) = parse_spaces(running.output).values()
    target = open_core(str(core))
    try:
        heap = heaps.derive(target)
        (isolate,) = (isolate.address for isolate in isolates(target, derive(target)))
        assert heap is not None
        found = shape.derive(target, heap.heap, [isolate])
        assert found is not None
        read = spaces.read(target, found, [isolate], heaps.chunks(target, frozenset([isolate + heap.heap])))
        yield Picture(core, truth["spaces"], found, isolate, {space.name: space for space in read.spaces})
    finally:
        target.close()
        core.unlink()


def header(words: Words, chunk: int) -> int:
    """Return the address of the metadata of a chunk. In V8 13, the second word of the chunk's header refers to it."""
    return words.read(chunk + 8)[0]


def slot(words: Words, picture: Picture, name: str, number: int) -> int:
    """Return the address of the word in a chunk of this space that refers to the space."""
    space = picture.spaces[name]
    at = header(words, space.chunks[number].start)
    return at + 8 * words.read(at, 32).index(space.address)


def set_wild_pointer(words: Words, picture: Picture) -> tuple[str, ...]:
    words.put(slot(words, picture, "old_space", 3), GARBAGE)
    return ("old_space",)


def set_wild_pointers(words: Words, picture: Picture) -> tuple[str, ...]:
    for number in range(1, 6):
        words.put(slot(words, picture, "old_space", number), GARBAGE + 8 * number)
    return ("old_space",)


def swap_links(words: Words, picture: Picture) -> tuple[str, ...]:
    words.put(slot(words, picture, "old_space", 3), picture.spaces["trusted_space"].address)
    return "old_space", "trusted_space"


def make_circle(words: Words, picture: Picture) -> tuple[str, ...]:
    """Make a chunk in the middle of a list its own next and previous chunk, so that the list has no end."""
    chunks = picture.spaces["old_space"].chunks
    known = {header(words, chunk.start) for chunk in chunks}
    at = header(words, chunks[3].start)
    for number, word in enumerate(words.read(at, 80)):
        if word in known:
            words.put(at + 8 * number, at)
    return ()


def damage_entry(words: Words, picture: Picture) -> tuple[str, ...]:
    number = picture.spaces["trusted_space"].number
    words.put(picture.isolate + picture.shape.array + 8 * number, GARBAGE)
    return ("trusted_space",)


def change_numbers(words: Words, picture: Picture) -> tuple[str, ...]:
    words.put(picture.spaces["trusted_space"].address + picture.shape.identity, 7)
    return ("trusted_space",)


def damage_counter(words: Words, picture: Picture) -> tuple[str, ...]:
    """Overwrite two words that count committed bytes. The chunks are listed, and a warning is printed."""
    address, (size, _) = picture.spaces["old_space"].address, picture.figures["old_space"]
    for number, word in enumerate(words.read(address, 16)):
        if word == size:
            words.put(address + 8 * number, 4096)
    return ()


def imitate_chunk(words: Words, picture: Picture) -> tuple[str, ...]:
    """Make a block of malloc look like a chunk, with a chunk's header at an address where a chunk could begin."""
    target = open_core(str(words.path))
    try:
        directory = Session(target).directory
        starts = (at for owned in directory.heaps for at in range(-(-owned.start // heaps.CHUNK) * heaps.CHUNK, owned.end, heaps.CHUNK))
        at = next(at for at in starts if directory.blocks.find(at) >= 0 and directory.blocks.find(at) == directory.blocks.find(at + 15))
    finally:
        target.close()
    words.put(at + 8, header(words, picture.spaces["old_space"].chunks[3].start))
    return ()


CASES = {
    imitate_chunk: "",
    set_wild_pointer: "the chunk at 0x",
    set_wild_pointers: ", which does not exist: it belongs to no space (and 4 more chunks)",
    swap_links: "bytes as committed, and its chunks have",
    make_circle: "",
    damage_entry: "is not a space, at 0x4141414141414140: it is ignored",
    change_numbers: "is not a space, at",
    damage_counter: "counts 4,096 bytes as committed, and its chunks have",
}


def pages(core: Path) -> tuple[dict[str, Any], list[str]]:
    output = debuggers.findleaks(*RUNTIME, "--json", str(core))
    assert "mistake" not in output
    (line,) = debuggers.objects(output)
    answer = json.loads(line)
    return answer["runtimes"][0], [line for line in answer["warnings"] if line.startswith("node:")]


SOME = (set_wild_pointers, make_circle, damage_entry, damage_counter)
"""The cases that are always tested."""


@pytest.mark.parametrize(
    "spoil", [pytest.param(spoil, id=spoil.__name__, marks=() if spoil in SOME else pytest.mark.matrix) for spoil in CASES]
)
def test_damage_is_reported(picture: Picture, spoil: Callable[[Words, Picture], tuple[str, ...]]) -> None:
    """Undamaged spaces have the figures of V8. All chunks are still in some row."""
    words = Words(picture.core)
    try:
        concerned = spoil(words, picture)
        found, warnings = pages(picture.core)
    finally:
        words.restore()
    heap = next(part for part in found["parts"] if part["name"] == "V8's heap")
    isolate = next(part for part in heap["parts"] if part["name"].startswith("isolate"))
    reported = {part["name"]: [part["bytes"], part["used"]] for part in isolate["parts"]}
    expected = {name: sizes for name, sizes in picture.figures.items() if sizes[0] and name not in concerned}
    assert {name: sizes for name, sizes in reported.items() if name in expected} == expected
    assert all(reported.get(name) != picture.figures[name] for name in concerned)
    assert sum(part["bytes"] for part in heap["parts"]) == heap["bytes"]
    if spoil is imitate_chunk:
        assert heap["bytes"] == pages(picture.core)[0]["parts"][0]["bytes"]
    assert any(CASES[spoil] in warning for warning in warnings) if CASES[spoil] else not warnings


class Without:
    """A target without one symbol, as in a version that no longer has the function."""

    def __init__(self, target: Any, name: str) -> None:
        self._target, self._name = target, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def symbol(self, name: str, module: str = "") -> Any:
        return None if name == self._name else self._target.symbol(name, module)


@pytest.mark.parametrize(
    ("absent", "problem"),
    [
        (shape.SPACES, "GetHeapSpaceStatistics has unexpected code: V8's spaces are not distinguished"),
        (shape.VALID, "GetHeapSpaceStatistics has unexpected code: V8's spaces are not distinguished"),
        (spaces.READ_ONLY[0], "the read-only space was not found"),
    ],
)
def test_missing_function_is_reported(picture: Picture, absent: str, problem: str) -> None:
    """Without a function's code, the figures derived from it are missing, and a warning says so."""
    target = open_core(str(picture.core))
    try:
        session = Session(Without(target, absent))
        (module,) = (module for module in target.modules() if module.path.endswith("/node"))
        node = Node(session.target, session.engine, session.directory, module)
        heap = next(part for part in node.parts() if part.name == "V8's heap")
        assert any(problem in one.what for one in node.problems)
        assert sum(end - start for start, end in heap.ranges) >= sum(size for size, _ in picture.figures.values())
        assert bool(heap.parts) == (absent == spaces.READ_ONLY[0])
        assert heap.parts or heap.used is None
        assert node.counters()["external"].value > 0
        assert node.describe(heap.ranges[0].start).startswith("V8's heap")
    finally:
        target.close()
