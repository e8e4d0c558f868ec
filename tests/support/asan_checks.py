"""Compare every block and every stack in a process or core under AddressSanitizer with what the runtime itself reports (asan.py)."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import asan
from debuggers import run_cli


class Stopped(NamedTuple):
    """A program or its core: the command-line arguments that name it, the blocks that it printed, and LeakSanitizer's report."""

    words: tuple[str, ...]
    blocks: dict[int, asan.Block]
    leaks: list[asan.Leak]

    def ask(self, *words: str) -> dict[str, Any]:
        done = run_cli(*words, "--json", *self.words)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        done = run_cli("blocks", *words, "--limit", "0", "--json", *self.words)
        return [row for row in map(json.loads, done.stdout.splitlines()) if "address" in row]


def every_block(stopped: Stopped) -> None:
    rows = {int(row["address"], 16): row for row in stopped.rows("--state", "all")}
    wrong = []
    for block in stopped.blocks.values():
        row = rows.get(block.address, {"size": None, "state": None, "kind": None})
        kind = {"used": "reachable", "lost": "definite", "freed": None}[block.state]
        said = row["size"], row["state"], row["kind"]
        if said != (block.size, "free" if block.state == "freed" else "in-use", kind):
            wrong.append((block, said))
    assert len(stopped.blocks) > 600 and not wrong, wrong[:5]


def every_stack(stopped: Stopped) -> None:
    """Check the allocation stack of every block, and for freed blocks the stack of the free."""
    freed = [block for block in stopped.blocks.values() if block.state == "freed"]
    rows = {int(row["address"], 16): row for row in stopped.rows()}
    assert "find --by site" in stopped.ask("find")["next"]
    groups = stopped.ask("find", "--by", "site", "--limit", "0")["groups"]
    sites = {group["site"]["number"]: group["site"]["frames"] for group in groups}
    lost = [block for block in stopped.blocks.values() if block.state == "lost"]
    for block in lost:
        frames = sites[rows[block.address]["site"]]
        assert tuple(int(frame["address"], 16) for frame in frames) == block.allocated, block
        assert block.function in [frame["function"] for frame in frames]
    held = [block for block in stopped.blocks.values() if block.state == "used"]
    some = held[:: len(held) // 60] + freed[:: len(freed) // 60]
    answers = stopped.ask("whatis", *(hex(block.address) for block in some))["answers"]
    for block, answer in zip(some, answers):
        stacks = [tuple(int(frame["address"], 16) for frame in site["frames"]) for site in answer["sites"]]
        assert stacks == [block.allocated, *([block.freed] if block.size >= 8 and block.freed else [])], block
    assert any(block.freed for block in some)


def stacks_of_each_class(stopped: Stopped) -> None:
    """Check that each size class in use has stacks for all its blocks and bytes."""
    classes = {row["name"]: (row["in_use"], row["in_use_bytes"]) for row in stopped.ask("caches")["caches"] if row["in_use"]}
    found: dict[str, list[int]] = {}
    for row in stopped.ask("caches", "--sites", "--limit", "0")["sites"]:
        sums = found.setdefault(row["name"], [0, 0])
        sums[0], sums[1] = sums[0] + row["blocks"], sums[1] + row["bytes"]
    assert len(classes) > 3 and {name: tuple(sums) for name, sums in found.items()} == classes


def lost_as_leaksanitizer_says(stopped: Stopped) -> None:
    groups = stopped.ask("find", "--by", "site", "--limit", "0")["groups"]
    ours = sorted(
        (tuple(int(frame["address"], 16) for frame in group["site"]["frames"]), group["blocks"], group["bytes"]) for group in groups
    )
    assert stopped.leaks and ours == sorted((leak.frames, leak.blocks, leak.bytes) for leak in stopped.leaks)
    lost = {int(row["address"], 16) for row in stopped.rows("--kind", "lost")}
    assert lost == frozenset().union(*(leak.addresses for leak in stopped.leaks))
