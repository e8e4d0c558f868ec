"""Measure how many blocks of a process or core have a type: of all blocks; of the blocks that refer to other blocks; and of the blocks that
do so and are neither text nor buffers. The unused rest of a text or buffer may still contain pointers of the block's former content.

python tests/bench/type_coverage.py PID|CORE [FILE.hints]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from findleaks.audit.block_contents import find_hint, is_text
from findleaks.audit.block_type import describe_block_type
from findleaks.audit.untyped_blocks import find_untyped
from findleaks.debuginfo.type_table import Kind
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.target.copied import attach
from findleaks.target.core import open_core
from findleaks.types.hint_files import read_hint_file
from findleaks.types.hints import UserHints

NOT_PLAIN = "with pointers, without text and buffers"


def find_plain(session: Session) -> set[int]:
    """Return the untyped blocks that are text, or that a typed pointer to characters or numbers refers to."""
    known, blocks, graph = known_types(session), session.directory.blocks, session.graph()
    assert known is not None
    table, arch, found = known.table, session.target.arch, set()
    for index in range(len(blocks)):
        if blocks.state(index) != State.IN_USE or known.spec(index) is not None:
            targets = {target for target, _ in graph.references(index) if target != index and known.spec(target) is None}
            start, header = blocks.address(index), known.header(index)
            for offset in range(header, blocks.size(index) - arch.word + 1, arch.word) if targets else ():
                value = arch.unpack(session.target.read(start + offset, arch.word))[0]
                place = known.place(index, offset)
                target = blocks.lookup(value) if place is not None and table.kinds[place.type] == Kind.POINTER else None
                if target is not None and target[0] in targets and place is not None:
                    pointee = table.bare(table.targets[place.type])
                    if table.kinds[pointee] in (Kind.BASE, Kind.ENUM) and value - target[1] == known.header(target[0]):
                        found.add(target[0])
        elif is_text(find_hint(session, blocks.address(index) + known.header(index), blocks.size(index) - known.header(index))):
            found.add(index)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("process")
    parser.add_argument("hints", nargs="?")
    args = parser.parse_args()
    session = Session(attach(int(args.process)) if args.process.isdigit() else open_core(args.process))
    session.use_debug_types(True, UserHints((), read_hint_file(args.hints)) if args.hints else None)
    graph, blocks = session.graph(), session.directory.blocks
    began = time.process_time()
    known_types(session)
    print(f"{time.process_time() - began:.2f} s CPU for types")
    counts: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    plain = find_plain(session)
    for index in range(len(blocks)):
        if blocks.state(index) != State.IN_USE:
            continue
        refers = any(target != index for target, _ in graph.references(index))
        found = describe_block_type(session, index)
        names = [*(["with pointers"] if refers else []), *([NOT_PLAIN] if refers and index not in plain else [])]
        for name in ("all", *names):
            counts[name] += 1
            sizes[name] += blocks.size(index)
            if found is not None and found.source != "pattern":
                counts[f"{name}, typed"] += 1
                sizes[f"{name}, typed"] += blocks.size(index)
                sources[f"{name}, {found.source}"] += 1
    for name in ("all", "with pointers", NOT_PLAIN):
        typed = f"{name}, typed"
        print(
            f"{name}: {counts[name]:,} blocks, {sizes[name]:,} bytes; typed {100 * counts[typed] / counts[name]:.1f} % of blocks, "
            f"{100 * sizes[typed] / sizes[name]:.1f} % of bytes"
        )
    print(dict(sources))
    for one in find_untyped(session, 12).sources:
        print(
            f"  {one.reached.bytes:12,} bytes {one.reached.blocks:8,} blocks from {one.blocks:8,} {one.sizes} {one.origin} {one.example:#x}"
        )


if __name__ == "__main__":
    main()
