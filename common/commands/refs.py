"""`refs ADDR`: the command that lists every word in the process that points to an address."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

from findleaks.arg_types import address_word
from findleaks.audit.address_info import Answer, Describer
from findleaks.audit.references import Reference, references_to
from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit
from findleaks.commands.result import Plain
from findleaks.formatting import counted, number, table
from findleaks.session import Session


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDR", help="a block (any address inside it), or any other address")
    parser.add_argument("--exact", action="store_true", help="only words equal to ADDR, not those that point elsewhere into its block")
    add_limit(parser, "references", 100, searched=True)


@command(arguments=_arguments, positional="address")
def refs(session: Session, args: argparse.Namespace) -> Plain:
    """List every aligned word of the process that points to ADDR, or into the block that holds it:
    in other blocks, in root memory, in registers, and kept by the kernel (epoll data, timers,
    queued signals). Words in freed blocks, dead stack and dead parts of managed heaps are listed
    too, and marked: they keep nothing alive."""
    address = address_word(args.address)
    describer = Describer(session)
    answer = describer.answer(address)
    low, high = address, address + 1
    if answer.block is not None and not args.exact:
        low, high = answer.block.address, answer.block.address + max(answer.block.size, 1)
    origins: list[tuple[Reference, Answer | None]] = []
    count = live = 0
    # A popular object may have millions of references: those not shown are only counted.
    for reference in references_to(session, low, high):
        count += 1
        live += reference.live
        if args.limit <= 0 or count <= args.limit:
            origins.append((reference, describer.answer(reference.address) if reference.address else None))
    body = {
        "target": answer.json(),
        "count": count,
        "live": live,
        "references": [_json(reference, origin, low) for reference, origin in origins],
    }
    return Plain(session, "refs", body, partial(_text, answer, origins, count, live))


def _json(reference: Reference, origin: Answer | None, low: int) -> dict[str, object]:
    made: dict[str, object] = {
        "value": hex(reference.value),
        "offset": reference.value - low,
        "interior": reference.value != low,
        "live": reference.live,
    }
    if reference.why:
        made["why"] = reference.why
    if reference.disguise:
        made["disguise"] = reference.disguise
    if reference.kernel:
        return {"kernel": reference.kernel, **made}
    if origin is None:
        return {"register": reference.register, "thread": reference.tid, **made}
    return {"address": hex(reference.address), **made, "from": origin.json()}


def _text(
    answer: Answer, origins: list[tuple[Reference, Answer | None]], count: int, live: int, width: int, invocation: Invocation
) -> Iterator[str]:
    yield f"{answer.address:#x}  {answer.phrase}"
    yield ""
    rows = []
    for reference, origin in origins:
        if origin is not None:
            where, what = hex(reference.address), reference.why or origin.phrase
            what = f"{reference.disguise}; {what}" if reference.disguise else what
        elif reference.kernel:
            where, what = "kept by the kernel", reference.kernel
        else:
            where, what = f"{'dead ' if reference.why else ''}register {reference.register}", f"thread {reference.tid}"
        rows.append((where, hex(reference.value), what if reference.live else f"(keeps nothing alive) {what}"))
    if rows:
        yield from table(("WORD AT", "POINTS TO", "IN"), rows, (), width, cut=2)
        yield ""
    more = f", {number(count - len(rows))} more not shown (--limit 0)" if count > len(rows) else ""
    yield f"  {counted(count, 'reference')}, {number(live)} of them in roots or blocks in use{more}"
    if answer.block is not None and answer.block.kind:
        yield from invocation.next(width, f"path {answer.block.address:#x}")
