"""The `whatis ADDR…` command: describe what is at each address."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from findleaks.answers.addresses import Identified, identify
from findleaks.arg_types import parse_address, parse_count
from findleaks.audit.address_info import BlockInfo
from findleaks.audit.block_words import WORDS
from findleaks.audit.typed_places import iterate_lines
from findleaks.commands import Invocation, command
from findleaks.commands.options import add_debug_types
from findleaks.commands.result import Plain
from findleaks.escaping import visible
from findleaks.formatting import hanging, shorten
from findleaks.results.addresses import Addresses, Word
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("addresses", metavar="ADDR", nargs="+", help="an address: 0x55d0c0a012a0, or a decimal number")
    what = f"words of each block or variable to print ({WORDS}; 0: all): what they contain, or point to"
    parser.add_argument("--words", metavar="N", type=parse_count, default=WORDS, help=what)
    add_debug_types(parser)


@command(arguments=_arguments, positional="addresses", heapless=True)
def whatis(session: Session, args: argparse.Namespace) -> Plain:
    """Describe what is at each address: a block (with state, kind, type and owner), a place on a
    thread's stack, a module's symbol, allocator metadata, or a mapping. Any address inside a block
    identifies the block. The call stack that allocated the block is printed if a heap profiler
    recorded it.

    The words of a block or variable follow: offset, name of the member if it is known, value, and
    what the value is or points to. For an object of Go, Java, Node or Ruby, the type, whether it is
    live or garbage, and its words or fields are printed."""
    answers = identify(session, [parse_address(word) for word in args.addresses], words=args.words)
    return Plain(session, "whatis", Addresses([one.result for one in answers]), partial(_text, session, answers))


def _text(session: Session, answers: Sequence[Identified], width: int, invocation: Invocation) -> Iterator[str]:
    for answer, result in answers:
        yield from hanging(f"{answer.address:#x}  ", answer.phrase, width)
        if result.contents:
            yield f"  contains {result.contents}" if not result.contents.startswith("→") else f"  {result.contents}"
        yield from iterate_lines(result.members or ())
        for site in answer.sites:
            from findleaks.commands.site_text import site_lines

            yield from site_lines(session, site, width)
        yield from _word_lines(result.words or (), 0 if answer.extent is None else answer.extent[1], width)
        if answer.object is not None and answer.object.graph.graph is not None:
            yield from invocation.next(f"path {answer.address:#x}", f"refs {answer.address:#x}")
        if answer.block is not None and answer.block.kind:
            yield from invocation.next(*_next(session, answer.block))


def _next(session: Session, block: BlockInfo) -> list[str]:
    """Return suggested commands. `path` is not suggested for a leak head, because no root reaches
    it."""
    refs = f"refs {block.address:#x}"
    if block.kind != "definite":
        return [f"path {block.address:#x}", refs]
    return [*([f"roots {block.address:#x}"] if session.graph().indirect_totals(block.index).blocks else []), refs]


def _word_lines(words: Sequence[Word], size: int, width: int) -> Iterator[str]:
    """Yield a line for each row of words, in columns. `size`: bytes of the block; 0 for a
    variable."""
    rows = [(f"+{word.offset}", visible(word.member or ""), *_value(word)) for word in words]
    wide = [max(map(len, column)) for column in zip(*rows)]
    for offset, member, value, what in rows:
        cells = [offset.ljust(wide[0]), *([member.ljust(wide[1])] if wide[1] else []), value.ljust(min(wide[2], 18)), visible(what)]
        line = ("  " + "  ".join(cells)).rstrip()
        yield shorten(line, width)
    if words and words[-1].offset + words[-1].bytes + 8 <= size:
        yield f"  … {size:,} bytes in all (--words 0 shows all)"


def _value(word: Word) -> tuple[str, str]:
    """Return the cells VALUE and WHAT of a row."""
    if word.sort == "pointer":
        return f"{word.value:#x}", f"→ {word.text}"
    if word.sort == "zeros":
        return "0", f"up to +{word.offset + word.bytes - 1}"
    if word.sort == "text" or word.value is None:
        return word.text or "", ""
    is_decimal = word.text is not None and word.text.lstrip("-").replace(",", "").isdigit()
    until = f"up to +{word.offset + word.bytes - 1}" if word.bytes > 8 else ""
    return (word.text or "", until) if is_decimal else (f"{word.value:#x}", until or word.text or "")
