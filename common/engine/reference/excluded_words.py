"""Words of blocks that are not references, in pure Python: see contract.Graph.exclude_words."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.engine import shared
from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.terms import Exclusion


class ExcludedWords:
    """Words that are not references. `patterns` is empty if no words are excluded."""

    def __init__(self, blocks: PureBlocks, patterns: bytearray, exclusions: Sequence[Exclusion]) -> None:
        """Raise ValueError if the patterns do not match the blocks and exclusions; see
        shared.checked_exclusions."""
        self.blocks = blocks
        self.patterns = patterns
        self._exclusions = shared.checked_exclusions(patterns, exclusions, len(blocks)) if patterns or exclusions else ()

    def has(self, source: int, address: int, target: int, value: int) -> bool:
        """Return whether the word at `address`, in a block with a pattern, is excluded. The word
        refers to `value` in block `target`."""
        starts, of = self.blocks.starts, self._exclusions[self.patterns[source]]
        bit = of.bit((address - starts[source]) // self.blocks.arch.word)
        header = self._exclusions[self.patterns[target]].header
        return bool(of.words & bit or (of.links & bit and value - starts[target] & -4 == header))

    def of(self, index: int) -> Exclusion:
        """Return the words of a block that are not references."""
        return self._exclusions[self.patterns[index]] if self.patterns else Exclusion(0)
