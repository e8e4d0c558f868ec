"""How many leaked blocks get a type: remove the references to some typed blocks of a core, and compare the types of these leaked blocks
with the types that they had before.

python tests/bench/type_leaks.py CORE [--part 0.1] [--seed 1] [--hints FILE]

The core is copied to a temporary file, in which the words that lead to the blocks are set to zero. Only blocks that are typed in the
core are compared: their types are the reference, so the result does not show whether the types in the core are right."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator

from findleaks.audit.block_type import describe_block_type
from findleaks.audit.owner_tree import build_owner_tree
from findleaks.engine.terms import Kind, State
from findleaks.session import Session
from findleaks.session.known_types import known_types
from findleaks.target.core import open_core
from findleaks.types.hint_files import read_hint_file
from findleaks.types.hints import UserHints

PT_LOAD = 1
LARGEST_PART = 0.05  # No head may retain more than this part of the blocks.


def open_session(path: str, hints: str) -> Session:
    session = Session(open_core(path))
    session.use_debug_types(True, UserHints((), read_hint_file(hints)) if hints else None)
    return session


def types_of(session: Session) -> dict[int, str]:
    """Return the types of blocks by address, without those that content alone suggests."""
    blocks, found = session.directory.blocks, {}
    for index in range(len(blocks)):
        one = describe_block_type(session, index) if blocks.state(index) == State.IN_USE else None
        if one is not None and one.source in ("debug-info", "inferred", "hint", "rtti"):
            found[blocks.address(index)] = one.name
    return found


def choose_heads(session: Session, types: dict[int, str], part: float, seed: int) -> tuple[list[int], set[int]]:
    """Return typed blocks that together retain about `part` of the typed blocks, and all blocks that they retain, as indices."""
    blocks, tree = session.directory.blocks, build_owner_tree(session).tree
    starts = sorted(types)
    random.Random(seed).shuffle(starts)
    heads: list[int] = []
    retained: set[int] = set()
    for start in starts:
        index = blocks.find(start)
        below = tree.sum_retained(index).blocks
        if index in retained or not 1 < below <= LARGEST_PART * len(types):
            continue
        heads.append(index)
        retained.update(tree.members(index, 0, below))
        if len(retained) >= part * len(types):
            break
    return heads, retained


def segments(core: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield address, size in the file, and offset of the segments of a core of a 64-bit process."""
    (offset,), (size, count) = struct.unpack_from("<Q", core, 32), struct.unpack_from("<HH", core, 54)
    for at in range(offset, offset + count * size, size):
        kind, _, place, address, _, length = struct.unpack_from("<IIQQQQ", core, at)
        if kind == PT_LOAD and length:
            yield address, length, place


def cut_references(path: str, session: Session, heads: list[int], retained: set[int]) -> None:
    """Set the words of a core to zero that refer to a head, except those in blocks that the heads retain."""
    blocks, chosen = session.directory.blocks, set(heads)
    with open(path, "r+b") as file:
        core = bytearray(file.read())
        for address, size, place in segments(bytes(core[:65536])):
            first = -address % 8
            words = memoryview(core)[place + first : place + first + (size - first) // 8 * 8].cast("Q")
            for at, word in enumerate(words):
                found = blocks.lookup(word) if word > 4096 else None
                if found is None or found[0] not in chosen:
                    continue
                owner = blocks.lookup(address + first + 8 * at)
                if owner is None or owner[0] not in retained:
                    words[at] = 0
            words.release()
        file.seek(0)
        file.write(core)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("core")
    parser.add_argument("--part", type=float, default=0.1, help="part of the typed blocks that leak")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hints", default="")
    args = parser.parse_args()
    session = open_session(args.core, args.hints)
    known_types(session)
    before = types_of(session)
    heads, retained = choose_heads(session, before, args.part, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        cut = os.path.join(folder, "core")
        shutil.copyfile(args.core, cut)
        cut_references(cut, session, heads, retained)
        leaky = open_session(cut, args.hints)
        kinds, blocks, after = leaky.graph().kinds(), leaky.directory.blocks, types_of(leaky)
        results: Counter[str] = Counter()
        wrong: Counter[tuple[str, str]] = Counter()
        untyped: Counter[str] = Counter()
        for start, name in before.items():
            index = blocks.find(start)
            if kinds[index] == Kind.REACHABLE or index not in retained:
                continue
            now = after.get(start)
            results["untyped" if now is None else "right" if now == name else "wrong"] += 1
            untyped[name] += now is None
            if now not in (None, name):
                wrong[name, str(now)] += 1
    total, typed = sum(results.values()), results["right"] + results["wrong"]
    print(f"{len(heads):,} heads, {len(retained):,} blocks cut off, {total:,} typed ones leaked")
    if typed:
        print(f"{100 * typed / total:.1f} % have a type, {100 * results['right'] / typed:.2f} % of these are right")
    for (name, now), count in wrong.most_common(12):
        print(f"  {count:,} {name} became {now}")
    print("without a type:", ", ".join(f"{count:,} {name}" for name, count in untyped.most_common(12) if count))


if __name__ == "__main__":
    main()
