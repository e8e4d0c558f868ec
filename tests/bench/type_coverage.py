"""How many blocks of a process or core have a type: of all blocks, and of those that refer to other blocks.

python tests/bench/type_coverage.py PID|CORE [FILE.hints]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from findleaks.audit.block_type import describe_block_type
from findleaks.audit.untyped_blocks import find_untyped
from findleaks.engine.terms import State
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.target.copied import attach
from findleaks.target.core import open_core
from findleaks.types.hint_files import read_hint_file
from findleaks.types.hints import UserHints


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
    for index in range(len(blocks)):
        if blocks.state(index) != State.IN_USE:
            continue
        refers = any(target != index for target, _ in graph.references(index))
        found = describe_block_type(session, index)
        for name in ("all", *(["with pointers"] if refers else [])):
            counts[name] += 1
            sizes[name] += blocks.size(index)
            if found is not None and found.source != "pattern":
                counts[f"{name}, typed"] += 1
                sizes[f"{name}, typed"] += blocks.size(index)
                sources[f"{name}, {found.source}"] += 1
    for name in ("all", "with pointers"):
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
