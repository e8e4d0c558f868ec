"""Measure how long files of 100,000 stacks take to write, how large they are, and when a browser has painted the flame graph, compared with
an empty page. The browser's times begin when it starts to load the page, and use its own clock, without virtual time. Fail if the page
takes more than LONGEST milliseconds.

usage: exports.py [STACKS]
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from findleaks.commands.export import render
from findleaks.report.profile import Frame, Measure, Profile, Sample

STACKS, FUNCTIONS, DEEPEST = 100_000, 4000, 60
FORMS = ("flamegraph", "pprof", "speedscope", "folded", "heap")
RUNS, LONGEST = 5, 1000
EMPTY = "<!doctype html><title>empty</title><p>nothing</p></body>"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", "--no-first-run", "--remote-debugging-port=0")
TIMED = """<script>
(async () => {
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const ready = () => !document.getElementById("meta") || document.documentElement.dataset.ready === "yes";
  while (document.readyState !== "complete" || !ready()) await frame();
  await frame();
  const painted = performance.getEntriesByName("first-contentful-paint")[0];
  console.log("painted " + performance.now() + " first " + (painted ? painted.startTime : 0) + " ");
})();
</script></body>"""


def make_stacks(count: int) -> Profile:
    """Return different stacks of up to DEEPEST frames. As in a server, many stacks have the same outer frames."""
    chance = random.Random(7)
    files = ["shop", "libc.so.6", "libssl.so.3", "libstdc++.so.6", "libruby.so.3.1", "libpq.so.5"]
    verbs = ["parse", "read", "handle", "make", "visit", "encode", "std::vector<Item>::push_back", "Session::load"]
    frames = [Frame(f"{chance.choice(verbs)}_{at}::run", 0x400000 + 64 * at, chance.choice(files)) for at in range(FUNCTIONS)]
    grown: list[tuple[Frame, ...]] = [(Frame("_start", 1, "shop"), Frame("main", 2, "shop"))]
    seen: set[tuple[Frame, ...]] = set()
    samples: list[Sample] = []
    while len(samples) < count:
        stack = grown[int(len(grown) * chance.random() ** 2)]
        for _ in range(chance.randrange(1, 5)):
            stack = (*stack, chance.choice(frames[: 40 + 60 * len(stack)]))
        if len(stack) < DEEPEST:
            grown.append(stack)
        if stack not in seen:
            seen.add(stack)
            blocks = int(chance.paretovariate(1.1))
            samples.append(Sample(stack, (blocks, blocks * chance.choice([16, 48, 64, 200, 4096]))))
    measures = (Measure("lost_blocks", "count", "Lost blocks"), Measure("lost_bytes", "bytes", "Lost bytes"))
    return Profile(f"Leaked blocks: {count:,} stacks", measures, samples)


def measure_painting(page: str, folder: Path) -> tuple[float, float]:
    """Return the milliseconds until the page was painted with all its data, and until the first paint."""
    file = folder / "page.html"
    file.write_text(page.replace("</body>", TIMED), encoding="utf-8")
    words = ["chromium", *FLAGS, "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", file.as_uri()]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as browser:
        try:
            assert browser.stderr is not None
            for line in browser.stderr:
                found = re.search(r"painted ([\d.]+) first ([\d.]+)", line)
                if found:
                    return float(found[1]), float(found[2])
        finally:
            browser.terminate()
    raise RuntimeError("Chromium painted nothing")


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else STACKS
    profile = make_stacks(count)
    frames = sum(len(sample.stack) for sample in profile.samples)
    print(f"{count:,} stacks of {frames / count:.0f} frames on average")
    page = b""
    for form in FORMS:
        start = time.process_time()
        data = render(profile, form)
        print(f"  {form:<10} {time.process_time() - start:5.2f} s of CPU  {len(data) / 1e6:6.1f} MB")
        page = page or data
    with tempfile.TemporaryDirectory(prefix="findleaks-", ignore_cleanup_errors=True) as folder:
        for name, text in (("an empty page", EMPTY), ("the flame graph", page.decode())):
            runs = sorted(measure_painting(text, Path(folder)) for _ in range(RUNS))
            middle = runs[RUNS // 2][0]
            print(f"  {name}: painted after {middle:.0f} ms (of {RUNS}: {runs[0][0]:.0f} to {runs[-1][0]:.0f})")
    return 0 if middle <= LONGEST else 1


if __name__ == "__main__":
    sys.exit(main())
