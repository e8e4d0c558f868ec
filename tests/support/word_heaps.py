"""Heaps that tests fill word by word, for each of the four variants of the engine."""

from __future__ import annotations

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.arch import Arch
from findleaks.target.base import Range

HEAP, PROGRAM = 0x10000000, Range(0x9D0000, 0x9DF000)


class Memory:
    """A heap at HEAP: its blocks, and its memory as bytes. Indices are in words."""

    def __init__(self, arch: Arch, words: int) -> None:
        self.arch, self.word = arch, arch.word
        self.data = bytearray(words * arch.word)
        self.blocks: list[tuple[int, int, State]] = []

    def block(self, at: int, words: int, state: State = State.IN_USE) -> int:
        self.blocks.append((HEAP + at * self.word, words * self.word, state))
        return self.blocks[-1][0]

    def put(self, at: int, *values: int) -> None:
        for number, value in enumerate(values):
            place = (at + number) * self.word
            self.data[place : place + self.word] = (value & self.arch.mask).to_bytes(self.word, self.arch.byteorder)

    def built(self, engine: Engine) -> Blocks:
        blocks = engine.blocks(self.arch, 2 * self.word)
        blocks.append(*map(list, zip(*self.blocks)))  # type: ignore[arg-type]
        blocks.seal()
        return blocks
