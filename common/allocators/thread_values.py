"""Read the thread-specific values of a process (pthread_setspecific), in which libraries keep their
data of each thread."""

from __future__ import annotations

from findleaks.target.base import Target

_WORDS = 320
"""Words from the thread pointer on that are read. On x86-64, struct pthread of glibc begins there.
It contains the first 32 thread-specific values in words 98 to 161."""


def read_thread_values(target: Target) -> set[int]:
    """Return the words of all threads that may be thread-specific values.

    struct pthread may be the end of a mapping. Therefore, fewer words are read if the rest is not
    readable."""
    found, size = set[int](), _WORDS * target.arch.word
    for pointer in {thread.thread_pointer for thread in target.threads() if thread.thread_pointer}:
        for piece in target.pieces(pointer, pointer + size):
            found.update(target.arch.words(piece.data))
    found.discard(0)
    return found
