"""Find the objects to which values refer that goroutines wait to send to a channel. The values are
on the goroutines' stacks, and the channel has their type.

Sources: Go 1.18 to 1.27, src/runtime/chan.go (hchan.sendq, recvq: normally one of them is empty),
runtime2.go (sudog.elem; since 1.26 it is a pointer that may be 0, and its address)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

from findleaks.allocators.bulk import read_words
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.type_table import TypeNames
from findleaks.runtimes.go.types import INTERFACE, Type, Types
from findleaks.target.interruptible import interruptible

_WORD = 8
_MOST_SENT = 1 << 17  # values that are read
_MOST_SIZE = 1 << 10  # bytes of a value that is read
_LOOK = 1 << 8  # values between two checks for Ctrl-C


def find_sent_objects(
    memory: Memory, engine: Engine, types: Types, names: TypeNames, waits: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield addresses and type values of objects. `waits`: the addresses of the record (sudog) and
    of the channel of each wait."""
    record, channel = types.find("runtime.sudog"), types.find("runtime.hchan")
    if record is None or channel is None:
        return
    elem = types.offset(record, "elem")
    places = [types.offset(channel, name) for name in ("sendq.first", "recvq.first", "elemtype")]
    if elem is None or None in places:
        return
    known: dict[int, Optional[Type]] = {}
    found: list[tuple[int, Type]] = []
    pairs = list(waits)[:_MOST_SENT]
    fields = [[one + (offset or 0) for _, one in pairs] for offset in places]
    fields += [[one + elem + at for one, _ in pairs] for at in (0, _WORD)]
    for senders, receivers, type_, first, second in zip(*(read_words(memory.target, engine, one) for one in fields)):
        if type_ not in known:
            known[type_] = types.at(type_)
        one = known[type_]
        if senders and not receivers and one is not None and one.pointers and one.size <= _MOST_SIZE:
            found += [(place, one) for place in (first, second) if place][:1]
    for place, one in interruptible(memory.target, found, _LOOK):
        words = memory.words(place, one.size // _WORD) or ()
        for at, word in enumerate(words):
            value = _target(memory, types, names, one, words, at) if word else NONE
            if value != NONE:
                yield word, value


def _target(memory: Memory, types: Types, names: TypeNames, one: Type, words: tuple[int, ...], at: int) -> int:
    """Return the type value of the object to which a word of a value refers, or NONE."""
    if one.kind == INTERFACE:
        if at != 1:
            return NONE
        dynamic = words[0] if types.at(words[0]) is not None else memory.word(words[0] + _WORD) or 0
        return names.pointee(dynamic)
    return names.target(names.value(one.address), _WORD * at)
