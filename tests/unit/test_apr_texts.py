"""Test which texts of APR's pools are quoted."""

from __future__ import annotations

from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.runtimes.apr.texts import SAMPLE_BYTES, find_texts

START = 0x10000


def find(parts: list[bytes]) -> list[str]:
    """Return the texts of parts of nodes, which follow each other in memory."""
    memory, spans = b"", []
    for part in parts:
        spans.append((START + len(memory), START + len(memory) + len(part)))
        memory += part
    return list(find_texts(Memory(FakeTarget({START: memory})), spans))


def test_texts_at_the_start_of_a_node() -> None:
    """The first allocation of a pool is at the start of its first part."""
    parts = [f"GET /page/{number}".encode().ljust(SAMPLE_BYTES, b"\0") for number in range(8)]
    assert find(parts) == ['"GET /page/0"']


def test_a_text_that_begins_before_a_sample() -> None:
    """The part is one text, so its samples contain only the middle of the text."""
    assert find([b"line 1 of a long text; " * 20_000 + b"\0"]) == []
