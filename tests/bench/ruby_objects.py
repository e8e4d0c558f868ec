"""Measure the whole run of `runtime` on a Ruby with millions of objects: only by type, and with the native bytes that the objects hold.

usage: python tests/bench/ruby_objects.py [MILLIONS]     (by default, 5 million objects)

Needs `ruby` on PATH. FINDLEAKS_PURE=1 measures the Python engine.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

PROGRAM = """
class Held; def initialize; @one = 1; end; end
GC.disable
$kept = Array.new(Integer(ARGV[0])) { |number| [Held.new, number.to_s, {}, [number]] }
puts "ready"
$stdout.flush
$stdin.read
"""
OF_EACH = 5
"""The number of objects that PROGRAM makes for each element of its array."""


def main() -> None:
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    words = ["ruby", "-e", PROGRAM, str(int(millions * 1e6 / OF_EACH))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ruby:
        try:
            assert ruby.stdout is not None
            ruby.stdout.readline()
            for name, more in (("objects by type", ["--no-native"]), ("and what they hold", [])):
                cpu, wall = cost([*more, "--limit", "3", "--pid", str(ruby.pid)])
                print(f"{millions:.1f} M objects, {name}: {cpu:.2f} s CPU, {wall:.2f} s wall")
        finally:
            ruby.kill()


def cost(options: list[str]) -> tuple[float, float]:
    """Return CPU and wall time of a run, in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "findleaks", "runtime", "--only", "ruby", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, time.perf_counter() - began


if __name__ == "__main__":
    main()
