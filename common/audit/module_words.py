"""Find a library to which leaked blocks without a type refer, for example to a table of functions
or a constant in it."""

from __future__ import annotations

from collections import Counter
from typing import Optional

from findleaks.audit.leak_groups import Leak
from findleaks.block_types.contents import LINKER_SYMBOLS
from findleaks.engine.terms import Kind
from findleaks.formatting import number, printable
from findleaks.session import Session
from findleaks.target.ranges import region_at

_SAMPLED, _WORDS = 64, 16  # blocks that are read, and words of each
_MOST = 1 << 16  # blocks of the size among which leaked ones are looked for
_SHARE = 0.9  # least fraction of the sampled blocks that have the same word
_LEAST = 16  # blocks that are enough for a sentence
_LIBRARY = (".so", ".node")  # parts of names of libraries, and of addons of Node
_FUNCTION = "function "  # precedes the name of a function in a type
_SYSTEM = ("libc.so", "libc-", "ld-", "ld.so", "libpthread", "[")


def describe_module_word(session: Session, leak: Leak) -> tuple[str, Optional[dict[str, object]]]:
    """Return a sentence and facts about a word that nearly all blocks of a group contain. The word
    refers to a loaded file other than libc. Return ("", None) if there is no such word, or if the
    group is not suitable. In a suitable group, all blocks have the same size, and their type is
    unknown or is the name of a function, which does not show the library."""
    is_function = leak.type.startswith(_FUNCTION)
    if (leak.type and not is_function) or leak.smallest != leak.largest:
        return "", None
    blocks, kinds, memory = session.directory.blocks, session.graph().kinds(), session.types.memory
    definite = int(Kind.DEFINITE)
    found = [index for index in blocks.of_sizes(leak.smallest, leak.largest, _MOST) if kinds[index] == definite]
    sample = found[:: max(len(found) // _SAMPLED, 1)][:_SAMPLED]
    words: Counter[tuple[int, int]] = Counter()
    for index in sample:
        read = memory.words(blocks.address(index), min(leak.smallest // session.target.arch.word, _WORDS)) or ()
        words.update((at, value) for at, value in enumerate(read) if value)
    for (at, value), count in words.most_common(_WORDS):
        module = region_at(session.target.modules(), value)
        name = module.path.rsplit("/", 1)[-1] if module is not None else ""
        if is_function and not any(part in name for part in _LIBRARY):
            continue
        if module is None or count < max(_LEAST, _SHARE * len(sample)) or not name or name.startswith(_SYSTEM):
            continue
        symbol = session.target.symbolize(value)
        if symbol is not None and symbol.name in LINKER_SYMBOLS:
            continue
        where = f"{symbol.name} in {name}" if symbol is not None and symbol.name else f"{name}+{value - module.start:#x}"
        offset = at * session.target.arch.word
        text = f"{number(count)} of {number(len(sample))} sampled blocks of this size refer to {printable(where)} at offset {offset}."
        return text, {"module": name, "symbol": symbol.name if symbol is not None else None, "offset": offset, "value": hex(value)}
    return "", None
