"""Synthetic snapshots with figures of every section. The program's cache of sessions grows, and it leaks blocks. Other figures are
constant, periodic, or grow only at the beginning. `samples(count)` returns the snapshots, `save_samples` writes them to a folder."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from findleaks.history.figures import Figure
from findleaks.history.snapshot import Clock, Identity, Snapshot
from findleaks.history.store import save

START = 1_790_000_000.0
KIB, MIB = 1 << 10, 1 << 20


def samples(count: int, every: float = 60.0, more: int = 0, names: Sequence[str] = ()) -> list[Snapshot]:
    """Return `count` snapshots. `more`: number of further size classes and roots that change at random, but in each call the same; `names`:
    number of further leak groups."""
    noise = random.Random(7)
    flat = [noise.randrange(KIB, 4 * MIB) for _ in range(max(more, 30))]
    return [_sample(at, count, every, more, names, noise, flat) for at in range(count)]


def _sample(at: int, count: int, every: float, more: int, names: Sequence[str], noise: random.Random, flat: Sequence[int]) -> Snapshot:
    part = at / max(1, count - 1)
    figures = list(_figures(part, at, noise, flat))
    for number in range(more):
        size = flat[number] + noise.randrange(KIB)
        figures.append(Figure("cache", f"class {number}", size // 64, size, "glibc 2.36"))
        figures.append(Figure("root", f"g_table_{number}", 7, flat[-number] + noise.randrange(64 * KIB)))
    for number, name in enumerate(names):
        figures.append(Figure("lost", name, at * (number + 2), at * (number + 2) * MIB, "definite", f"e.g. {name}"))
    clock = Clock(START + at * every, 5_000.0 + at * every, "boot")
    identity = Identity("shop", "5e0ba98d71c0ffee", 4711, 123, ("glibc 2.36",))
    return Snapshot(f"shop-4711-{at + 1:04}.snapshot", clock, identity, figures, {}, ())


def _figures(part: float, at: int, noise: random.Random, flat: Sequence[int]) -> Iterator[Figure]:
    sessions = 61_002 + int(743_111 * part)
    cart, lost = sessions * 480, 190 + int(622_228 * part)
    warm = int(24 * MIB * min(1.0, 4 * part))
    kept = 88 * MIB + (at % 5) * 9 * MIB
    rest = 19 * MIB + noise.randrange(64 * KIB)
    threads = 8 + int(40 * part)
    used = cart + lost * 64 + warm + rest
    files, stacks = 11 * MIB, threads * 132 * KIB
    yield Figure("total", "resident", None, used + kept + files + stacks)
    yield Figure("share", "glibc: in-use", sessions + lost, used)
    yield Figure("share", "glibc: kept", None, kept)
    yield Figure("share", "files", 9, files)
    yield Figure("share", "stacks", threads, stacks)
    yield Figure("mapping", "[heap]", 1, used + kept)
    yield Figure("mapping", "[stack]", threads, stacks)
    for number, name in enumerate(("libc.so.6", "libstdc++.so.6", "libm.so.6", "shop", "libssl.so.3", "libcrypto.so.3")):
        yield Figure("mapping", f"/usr/lib/x86_64-linux-gnu/{name}", 5, files * (number + 1) // 21)
    yield Figure("kind", "in_use", sessions + lost, used)
    yield Figure("kind", "reachable", sessions, used - lost * 64)
    yield Figure("kind", "definite", lost, lost * 64)
    yield Figure("lost", "64 B", lost, lost * 64, "definite", '"GET /orders/…"')
    yield Figure("lost", "shop::Order (128 B)", 40, 5_120, "definite")
    yield Figure("allocator", "glibc 2.36: in use", sessions + lost, used)
    yield Figure("allocator", "glibc 2.36: free", None, kept)
    for number, size in enumerate((32, 48, 64, 80, 96, 128, 160, 256, 512, 1024, 4096)):
        blocks = lost if size == 64 else sessions if size == 512 else flat[number] // size + noise.randrange(9)
        yield Figure("cache", f"{size}", blocks, blocks * size, "glibc 2.36")
    yield Figure("root", "g_sessions (shop, data)", sessions, cart)
    yield Figure("field", "Session.cart", sessions, cart - 4096, "g_sessions (shop, data)")
    yield Figure("container", "Session.cart", sessions, cart - 4096, "g_sessions (shop, data)", "std::map, nodes")
    yield Figure("root", "g_cache (shop, bss)", warm // 100, warm)
    yield Figure("root", "main thread's stack", 12, rest)
    yield Figure("root", "shared by several roots", 4, 9_000 + noise.randrange(2_000))
    yield Figure("type", "std::map node", sessions, cart - 4096, "reachable")
    yield Figure("type", "shop::Order", 40, 5_120, "definite")
    yield Figure("counter", "minor_gc_count", 40 + 3 * at, None, "ruby")
    yield Figure("counter", "heap_live_slots", 31_204 + noise.randrange(90), None, "ruby")
    yield Figure("heap", "pages", None, 134 * 65_536, "ruby")
    for number, name in enumerate(("String", "Array", "Hash", "Object")):
        yield Figure("runtime type", name, 900 * (number + 1), 36_000 * (number + 1) + noise.randrange(4_000), "ruby")
    yield Figure("handles", "isolate 1", 2_000 + int(9_000 * part), 16_000 + int(72_000 * part))
    yield Figure("handle value", "undefined", 1_990 + int(9_000 * part), None, "isolate 1")
    yield Figure("threads", "worker ← start_thread", threads - 1, None)
    yield Figure("threads", "main ← _start", 1, None)


def save_samples(snapshots: Sequence[Snapshot], folder: Path) -> Path:
    """Write each snapshot to a file, and return the folder."""
    folder.mkdir(exist_ok=True)
    for one in snapshots:
        save(one, folder / one.name, "test")
    return folder
