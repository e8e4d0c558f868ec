"""Compute the names of a leak: its signature, and its description."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from findleaks.formatting import number
from findleaks.triage.clusters import describe_word
from findleaks.triage.shapes import DATA, HELD, LOST, UNCLEAR, ZERO, ZEROS_LABEL


def signature_of(program: str, label: str, size: int, words: Sequence[str]) -> str:
    """Return the signature: 12 hexadecimal digits of a digest of the program's name and of the
    properties of the leaked blocks. Only words that identify a leak are included."""
    meant = ["" if describe_word(word) == DATA else describe_word(word) for word in words]
    key = "\n".join([program, label, str(size), "\t".join(meant).rstrip("\t")])
    return blake2b(key.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


_WORDS = {HELD: "live blocks"}
"""Words of signatures, and what a description has in their place."""


def describe_signature(label: str, size: int, ring: bool, words: Sequence[str]) -> str:
    """Describe the blocks with a signature: "48 B → text, 48 B", "cycle of 64 B", "Foo"."""
    sized = f"{number(size)} B" if size else ""
    if label == ZEROS_LABEL:
        text = f"{sized or 'blocks'} of zeros"
    elif label:
        text = f"{label} ({sized})" if sized else label
    else:
        text = sized or "blocks of varying size"
    targets = list(dict.fromkeys(word[len(LOST) :] for word in words if word.startswith(LOST)))
    others = list(dict.fromkeys(word for word in words if word not in (DATA, ZERO, UNCLEAR) and not word.startswith(LOST)))
    if targets:
        text += f" → {', '.join(targets)}"
    if others:
        text += f"; refers to {', '.join(_WORDS.get(word, word) for word in others)}"
    return f"cycle of {text}" if ring else text
