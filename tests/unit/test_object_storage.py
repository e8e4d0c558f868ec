"""In a dump of Python's objects, if memory is certainly the storage of one object, it belongs to no other object."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Sequence
from typing import Any, Optional, cast

import graphs
from word_heaps import HEAP, PROGRAM, Memory

from findleaks.engine.contract import Blocks, Engine
from findleaks.runtimes.cpython.engine import ObjectTally, TypeColumns, count_objects
from findleaks.runtimes.cpython.member_lines import MemberLines
from findleaks.runtimes.cpython.object_lines import ObjectLines
from findleaks.runtimes.heap_dump import BlockReferences
from findleaks.target.arch import X86_64

TYPE = 0x9D8000
STORAGE, OTHER = 2, 3  # offsets in an object, in words: the pointer to its storage, and a pointer to memory that it may own


class Members:
    """A stand-in for the names of members: no member has a name, and only the word STORAGE refers to storage."""

    def of_object(self, number: int, index: int) -> dict[int, str]:
        return {}

    def name(self, number: int, index: int, word: int) -> str:
        return ""

    def is_storage(self, number: int, index: int, word: int) -> Optional[bool]:
        return True if word == STORAGE else None

    def is_chain(self, number: int) -> bool:
        return False

    def names_in(self, *_: Any) -> Optional[Sequence[str]]:
        return None


def build_lines(engine: Engine, memory: Memory, blocks: Blocks) -> ObjectLines:
    piece = graphs.piece(HEAP, bytes(memory.data))
    tally = ObjectTally.of(blocks, [TYPE], TypeColumns(bytes(1), bytes(1), bytes(1), bytes(1)), PROGRAM, 0)
    count_objects(engine, blocks, piece, tally)
    graph = engine.graph(blocks)
    graph.scan_blocks(piece)
    while not (graph.mark(1 << 20) and graph.classify(1 << 20)):
        pass
    # The references are built as if an object dominated each block.
    references = BlockReferences(graph, array("Q", bytes(8 * len(blocks))), array("I", bytes(4 * len(blocks))), {})
    return ObjectLines(engine, blocks, tally, ["thing"], cast(MemberLines, Members()), references, lambda: [piece], ())


def test_a_stale_word_takes_no_storage_of_another_object() -> None:
    engine, memory = graphs.native(X86_64), Memory(X86_64, 64)
    first, second, storage, inner, item = (memory.block(at, words) for at, words in ((0, 4), (8, 4), (16, 8), (32, 6), (48, 4)))
    for at in (0, 8, 48):
        memory.put(at, 1, TYPE)
    memory.put(0 + OTHER, storage)  # stale
    memory.put(8 + STORAGE, storage)
    memory.put(16, item, inner)
    out = io.BytesIO()
    build_lines(engine, memory, memory.built(engine)).write(out, lambda fraction: None)
    found = {int(line["address"], 16): line for line in map(json.loads, out.getvalue().splitlines())}
    assert found.keys() == {first, second, item}
    assert (found[first]["native"], found[first]["references"]) == (0, [])
    assert found[second]["native"] == (8 + 6) * memory.word
    assert found[second]["references"] == [{"to": f"{item:#x}"}]
