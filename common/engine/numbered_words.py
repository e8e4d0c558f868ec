"""Number words, and find the number of a word by a hash table that the C engine can search."""

from __future__ import annotations

from array import array

NO_NUMBER = 0xFFFFFFFF
"""Stands for the number of a word that is not known."""

_HASH, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1  # 2**64 divided by the golden ratio
_FEWEST = 1024  # places of the smallest table


def hash_word(word: int) -> int:
    """Return a number of 64 bits whose upper bits depend on all bits of the word."""
    return word * _HASH & _MASK


class NumberedWords:
    """Words by number, from 0 on. `words` has the word of each number.

    `keys` ("Q") and `numbers` ("I") are the hash table, which has 2**n places and is at most half
    full. The search for a word begins at the place given by the upper n bits of its product with
    _HASH, and continues at the following places. A key of 0 is a place without a word. The C engine
    searches this table in common/native/java_objects.c and v8_objects.c."""

    def __init__(self) -> None:
        self.keys, self.numbers = array("Q", bytes(8 * _FEWEST)), array("I", [NO_NUMBER]) * _FEWEST
        self.words: list[int] = []

    def __len__(self) -> int:
        return len(self.words)

    def find(self, word: int) -> int:
        """Return the number of a word, or NO_NUMBER."""
        return self.numbers[self._place(word)]

    def add_word(self, word: int) -> int:
        """Add a word, which is not 0 and not known. Returns its number."""
        if 2 * len(self.words) >= len(self.keys):
            self.keys, self.numbers = array("Q", bytes(16 * len(self.keys))), array("I", [NO_NUMBER]) * (2 * len(self.keys))
            for number, known in enumerate(self.words):
                self._insert(known, number)
        self._insert(word, len(self.words))
        self.words.append(word)
        return len(self.words) - 1

    def _insert(self, word: int, number: int) -> None:
        place = self._place(word)
        self.keys[place], self.numbers[place] = word, number

    def _place(self, word: int) -> int:
        mask = len(self.keys) - 1
        at = hash_word(word) >> (64 - mask.bit_length())
        while self.keys[at] and self.keys[at] != word:
            at = (at + 1) & mask
        return at
