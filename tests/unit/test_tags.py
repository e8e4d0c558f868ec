"""Tags in pointers are removed from the words that are pointers of a process, and from no other words."""

from __future__ import annotations

import struct

import pytest

from findleaks.target.base import Piece
from findleaks.target.tags import remove_tag, remove_tags

POINTER = 0x0000FFFF9809B010
WORDS = [
    (0x5A << 56 | POINTER, POINTER),
    (0xFF << 56 | POINTER, POINTER),
    (POINTER, POINTER),
    (0, 0),
    (0xFFFFFFFFFFFFFFF0, 0xFFFFFFFFFFFFFFF0),  # a small negative number
    (int.from_bytes(b"a string", "little"), int.from_bytes(b"a string", "little")),
    (0x4059000000000000, 0x4059000000000000),  # 100.0
]


@pytest.mark.parametrize("shift", range(8))
def test_aligned_words_of_a_piece(shift: int) -> None:
    """The piece may begin anywhere, and its last word may be incomplete."""
    edge = bytes([0xEE]) * shift
    data = edge + struct.pack(f"<{len(WORDS)}Q", *(word for word, _ in WORDS)) + b"\0\0\0\0\0\0\x07"
    piece = Piece(0x1000 - shift, memoryview(bytearray(data)))
    made = remove_tags(piece)
    assert made.address == piece.address
    assert bytes(made.data[:shift]) == edge
    assert struct.unpack(f"<{len(WORDS)}Q", made.data[shift:-7]) == tuple(plain for _, plain in WORDS)
    assert bytes(made.data[-7:]) == data[-7:]
    assert bytes(piece.data) == data, "the target's own bytes do not change"


def test_a_piece_without_tags_is_not_copied() -> None:
    piece = Piece(0x1000, memoryview(bytearray(struct.pack("<2Q", POINTER, 0))))
    assert remove_tags(piece) is piece


def test_single_words() -> None:
    assert [remove_tag(word) for word, _ in WORDS] == [plain for _, plain in WORDS]
