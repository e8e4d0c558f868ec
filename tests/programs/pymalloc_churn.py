"""Makes and drops objects and arenas. At the end, prints the allocator's own statistics (not with "quiet"), and "ready"."""

import gc
import os
import sys
import threading
import time


class Plain:
    def __init__(self, number):
        self.number = number
        self.name = str(number)


class Slotted:
    __slots__ = ("__weakref__", "left", "right")


def more(count):
    """Objects of all sorts: with and without a collector's header, too large for pymalloc, with managed dictionaries."""
    made = [Plain(i) for i in range(count)]
    made += [Slotted() for _ in range(count)]
    made += [tuple(range(i, i + i % 90)) for i in range(count)]
    made += [{i: str(i), "key": [i] * (i % 40)} for i in range(count)]
    made += [bytes(i % 700) + b"x" for i in range(count)]
    made += [{i, i + 0.5, (i, str(i))} for i in range(count // 2)]
    made += [lambda x, i=i: x + i for i in range(count // 4)]
    made += [type(f"Class{i}", (Plain,), {"field": i}) for i in range(count // 100)]
    made += [(x for x in [i]) for i in range(count // 4)]
    return made


def rest():
    event.wait()


event = threading.Event()
threads = [threading.Thread(target=rest, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
gone = [more(2000) for _ in range(6)]
kept = more(3000)
del gone[::2]
gone = None
del kept[::7]
gc.collect()
gc.disable()


def end(statistics, write, wait, text):
    statistics()
    write(1, text)
    wait(1000000.0)


quiet = len(sys.argv) > 1
end((lambda: None) if quiet else sys._debugmallocstats, os.write, time.sleep, b"ready\n")
