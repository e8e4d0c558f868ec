"""Damage words of the synthetic images that unit tests make for allocators and runtimes: thousands of trials a minute, all in this process.

python tests/fuzz/images.py [--count N] [--seed FIRST] [--only NAME,…]

As in fuzz.py, a seed determines one mutation: some words that findleaks reads in the undamaged image get other values. Then every command
runs.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "unit")]

import googleimage  # noqa: E402
import image_jemalloc  # noqa: E402
import image_partition  # noqa: E402
import jvmimage  # noqa: E402
import test_jvm_spaces  # noqa: E402
import test_mimalloc  # noqa: E402
import test_ruby  # noqa: E402
import v8image  # noqa: E402
from fake import FakeTarget  # noqa: E402
from mutations import EDGES  # noqa: E402
from trials import COMMANDS, NAMED, insert_addresses  # noqa: E402

from findleaks.allocators.mimalloc import layout as mimalloc  # noqa: E402
from findleaks.commands import execute  # noqa: E402
from findleaks.errors import FindleaksError  # noqa: E402
from findleaks.session import Session  # noqa: E402

SECONDS = 20.0
"""Processor seconds that one trial may take; an undamaged image takes less than one."""
LINES = [line for line in COMMANDS if "PAGE" not in line]


def _jemalloc() -> FakeTarget:
    return image_jemalloc.Image().build()


MAKERS: Mapping[str, Callable[[], FakeTarget]] = {
    "google": lambda: googleimage.make_image().target(),
    "mimalloc2": lambda: test_mimalloc.Image(mimalloc.SEGMENTS[0]).target(),
    "mimalloc2.2": lambda: test_mimalloc.Image(mimalloc.SEGMENTS[-1]).target(),
    "mimalloc3": lambda: test_mimalloc.Image(mimalloc.PAGES[0]).target(),
    "mimalloc3.0": lambda: test_mimalloc.Image(mimalloc.PAGES[-1]).target(),
    "partition156": lambda: image_partition.full().build(),
    "partition126": lambda: image_partition.full(image_partition.KINDS[-1]).build(),
    "v8": lambda: v8image.Image(isolates=2).target(),
    "ruby2.7": lambda: test_ruby.make_heap("2.7").target(),
    "ruby3.1": lambda: test_ruby.make_heap("3.1").target(),
    "ruby3.3": lambda: test_ruby.make_heap("3.3").target(),
    "serial": lambda: jvmimage.Image("Serial", test_jvm_spaces.SPACES).target(),
    "g1": lambda: jvmimage.Image("G1", test_jvm_spaces.REGIONS, test_jvm_spaces.BUFFERS, "_is_gc_active").target(),
}


class Image:
    """An undamaged image, and the addresses of the words that findleaks reads in it."""

    def __init__(self, sound: FakeTarget) -> None:
        self.sound = sound
        self.found: dict[int, None] = {}
        target = self.copy({})
        word, read = target.word, target.read

        def noted_word(address: int) -> int:
            self.found[address & -8] = None
            return word(address)

        def noted_read(address: int, size: int) -> bytes:
            self.found.update(dict.fromkeys(range(address & -8, address + min(size, 512), 8)))
            return read(address, size)

        target.word, target.read = noted_word, noted_read  # type: ignore[method-assign]
        ask(Session(target), [line.split() for line in LINES if NAMED not in line])
        self.words = [at for at in self.found if self.there(at)]

    def there(self, address: int) -> bool:
        return any(start <= address and address + 8 <= start + len(data) for start, data in self.sound._memory.items())

    def value(self, address: int) -> int:
        return next(
            int.from_bytes(data[address - start : address - start + 8], "little")
            for start, data in self.sound._memory.items()
            if start <= address and address + 8 <= start + len(data)
        )

    def copy(self, changed: Mapping[int, int]) -> FakeTarget:
        sound = self.sound
        regions = sound.regions()
        made = FakeTarget(
            {start: bytes(data) for start, data in sound._memory.items()},
            names={region.start: region.name for region in regions},
            permissions={
                r.start: ("r" if r.readable else "-") + ("w" if r.writable else "-") + ("x" if r.executable else "-") for r in regions
            },
            threads=sound.threads(),
            modules=sound.modules(),
            symbols=sound._symbols,
        )
        made.auxv = sound.auxv
        for address, value in changed.items():
            made.write_word(address, value)
        return made

    def damage(self, rng: random.Random) -> dict[int, int]:
        """Return new values of words, by address."""
        first = rng.choice(self.words)
        near = [at for at in self.words if abs(at - first) < 64]
        count = rng.choice((1, 1, 1, 2, 3, 8))
        chosen = rng.choices(near, k=count) if rng.random() < 0.4 else [rng.choice(self.words) for _ in range(count)]
        return {at: self.changed(rng, self.value(at)) for at in chosen}

    def changed(self, rng: random.Random, old: int) -> int:
        some = rng.choice(self.words)
        choices = (
            some,
            self.value(some),
            some + rng.choice((1, 4, 7, 16)),
            old ^ 1 << rng.randrange(64),
            old + rng.choice((-4096, -16, -8, -1, 1, 8, 16, 4096)),
            rng.choice(EDGES),
            1 << rng.randrange(64),
            rng.randrange(1 << rng.choice((4, 8, 16, 32))),
            old & 0xFFFFFFFF | rng.randrange(1 << 32) << 32,
            old >> 32 << 32 | rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFF, 0xFFFF0000)),
            old & ~(0xFFFF << (shift := 16 * rng.randrange(4))) | rng.choice((0, 1, 0x7FFF, 0xFFFF)) << shift,
            rng.getrandbits(64),
        )
        return rng.choice(choices) & (1 << 64) - 1


def ask(session: Session, lines: Sequence[Sequence[str]]) -> None:
    """Run each of these commands. Exceptions that a command must not raise are passed on."""
    for words in lines:
        out = io.StringIO()
        try:
            execute(lambda: session, words, out)
        except FindleaksError:
            continue
        except Exception as error:
            raise RuntimeError(" ".join(words)) from error
        for line in out.getvalue().split("\n"):
            if not line.isprintable():
                raise RuntimeError(f"{' '.join(words)} prints {line!r}")
            if "--json" in words and line:
                json.loads(line)


def _slow(number: int, frame: object) -> None:
    raise TimeoutError(f"more than {SECONDS:.0f} s of a processor")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(MAKERS))
    parser.add_argument("--minutes", type=float, default=0.0)
    words = parser.parse_args()
    images = [Image(MAKERS[name]()) for name in words.only.split(",")]
    names = words.only.split(",")
    signal.signal(signal.SIGVTALRM, _slow)
    seen: dict[str, int] = {}
    began = time.monotonic()
    done = 0
    for seed in range(words.seed, words.seed + words.count):
        rng = random.Random(seed)
        image, name = images[seed % len(images)], names[seed % len(images)]
        changed = image.damage(rng)
        lines = [insert_addresses(line, rng, [*changed.values(), *rng.choices(image.words, k=4)]) for line in rng.sample(LINES, k=6)]
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            ask(Session(image.copy(changed)), lines)
        except Exception as error:
            cause = error.__cause__ or error
            frame = traceback.extract_tb(cause.__traceback__)[-1]
            kind = f"{type(cause).__name__} {frame.filename}:{frame.lineno}"
            if kind not in seen:
                print(f"\n{name} {seed}: { ({hex(at): hex(value) for at, value in changed.items()}) }: {error}")
                print("".join(traceback.format_exception(type(cause), cause, cause.__traceback__)[-9:]), flush=True)
            seen[kind] = seen.get(kind, 0) + 1
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        done += 1
        if words.minutes and time.monotonic() - began > 60 * words.minutes:
            break
    for kind, count in seen.items():
        print(f"{count} times: {kind}")
    print(f"{done:,} mutations (from {words.seed} on) in {time.monotonic() - began:,.0f} s: {len(seen)} problems")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
