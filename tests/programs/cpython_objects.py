"""Objects of known types and numbers, and what the interpreter itself counts of them at the moment it stops.

Arguments: "trace" turns tracemalloc on. Prints one line of JSON, then "ready", and waits.
"""

import gc
import json
import os
import signal
import sys
import tracemalloc

TRACE = "trace" in sys.argv[1:]
if TRACE:
    tracemalloc.start(5)


class Session:
    def __init__(self, number):
        self.number = number
        self.history = [number] * 20
        self.names = {number: str(number)}


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


class Price(float):
    __slots__ = ()


class Label(str):
    __slots__ = ()


sessions = [Session(number) for number in range(3000)]
points = [Point(number, -number) for number in range(4321)]
prices = [Price(number) for number in range(1234)]
labels = [Label(f"label {number}") for number in range(2345)]
interned = [sys.intern(f"a name of its own {number}") for number in range(int(os.environ.get("INTERNED", "0")))]
pairs = [(session, point) for session, point in zip(sessions, points)]
large = [tuple(range(1000)) for _ in range(50)]
closures = [(lambda value=number: value) for number in range(777)]


def name(kind):
    module = getattr(kind, "__module__", "builtins")
    plain = kind.__name__
    return plain if module == "builtins" else f"{module}.{plain}"


gc.collect()
gc.disable()
count_interned = getattr(sys, "getunicodeinternedsize", None)  # since 3.12
truth = {"untracked": {"__main__.Price": len(prices), "__main__.Label": len(labels)}}
if TRACE:
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__, all_frames=False)])
    statistics = snapshot.statistics("traceback")
    truth["sites"] = [[[f"{frame.filename}:{frame.lineno}" for frame in reversed(s.traceback)], s.count, s.size] for s in statistics[:10]]
    del snapshot, statistics
json.dumps(truth)  # creates the objects of its first use before they are counted
tracked, written = {Session: 0}, {Session: 0}  # tracked by the collector
truth["tracked"] = tracked
truth["stats"] = gc.get_stats()
truth["thresholds"] = gc.get_threshold()
objects = gc.get_objects()
for one in objects:
    kind = type(one)
    tracked[kind] = tracked.get(kind, 0) + 1
del objects, one, kind
written.clear()
for kind, count in tracked.items():
    label = name(kind)
    written[label] = written.get(label, 0) + count
truth["tracked"] = written
truth["interned"] = count_interned() if count_interned else len(interned)
os.write(1, json.dumps(truth).encode() + b"\nready\n")
while True:
    signal.pause()
