"""Find the keys that the hashes of a Perl interpreter share.

PL_strtab is the hash of these keys. Each of its entries is a block of malloc with a struct
shared_he: the entry (HE), and then the key (HEK) as {hash, length, characters, NUL, flags}.

Sources: hv.h (struct he, struct hek, struct shared_he), hv.c (S_share_hek_flags) of Perl 5.36 to
5.40, 64-bit."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Target

_ENTRY = 24  # bytes of a struct he
_LONGEST = 1 << 31


def read_buckets(memory: Memory, body: int, buckets: int, size: int) -> array[int]:
    """Return the addresses of the first entries of PL_strtab ("Q", ascending); none if the hash
    with this body and these buckets is another one. `size`: bytes of the block with the buckets."""
    header = memory.words(body, 4)
    data = memory.read(buckets, 8 * (header[3] + 1)) if header is not None and header[3] < size // 8 else b""
    words = memory.arch.words(data)
    entry = next(filter(None, words), 0)
    first = memory.words(entry, 2)
    is_of_keys = first is not None and first[1] == entry + _ENTRY
    return array("Q", sorted(filter(None, words)) if is_of_keys else ())


def list_keys(target: Target, engine: Engine, entries: array[int]) -> Iterator[tuple[int, int]]:
    """Yield the start of each block with a shared key, and the start of the key in it, given the
    first entries of PL_strtab. The key is text, and the rest of the block is unused. Raises
    Interrupted."""
    seen: set[int] = set()  # In damaged memory, a chain of entries may be a ring.
    while entries:
        if target.is_interrupted():
            raise Interrupted
        seen.update(entries)
        data, missing = read_records(target, engine, entries, _ENTRY + 8)
        words, halves = target.arch.words(data), target.arch.words32(data)
        following = array("Q")
        for number, (entry, after, key, length) in enumerate(zip(entries, words[::4], words[1::4], halves[7::8])):
            if number not in missing and key == entry + _ENTRY and length < _LONGEST:
                yield entry, key
                if after:
                    following.append(after)
        entries = array("Q", sorted(set(following) - seen))
