"""Memory whose allocation tracemalloc records, also of blocks that are lost (python_lose.c).

Prints one line of JSON, then "ready", and waits: of each lost block its address, hidden, its size and its stack, innermost first; of
objects their identity and stack, as tracemalloc returns it; and the largest of its statistics.
"""

import gc
import json
import os
import signal
import sys
import tracemalloc

import python_lose

FRAMES = 6
tracemalloc.start(FRAMES)
lost = []


def note(hidden, size):
    frame, stack = sys._getframe(1), []
    while frame is not None and len(stack) < FRAMES:
        stack.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    lost.append((hidden, size, stack))


def small():
    note(python_lose.lose("object", 100), 100)


def also_small():
    note(python_lose.lose("raw", 100), 100)


def large():
    note(python_lose.lose("raw", 5000), 5000)


def reported():
    note(python_lose.lose("7", 300), 300)
    note(python_lose.lose("389047", 300), 300)


def deeper(levels, call):
    if levels:
        deeper(levels - 1, call)
    else:
        call()


for number in range(1000):
    deeper(number % 3, small)
    deeper(1, also_small)
    if number % 2:
        deeper(8, large)
    if number % 10 == 0:
        reported()

held = [bytes(1000 + number) for number in range(700)]
lists = [[number] * 5 for number in range(700)]


def frames(traceback):
    return [f"{frame.filename}:{frame.lineno}" for frame in reversed(traceback)]


gc.collect()
gc.disable()
truth = {"held": [(id(one), frames(tracemalloc.get_object_traceback(one))) for one in held]}
truth["lists"] = [(id(one) - 16, frames(tracemalloc.get_object_traceback(one))) for one in lists]  # behind the collector's header
snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__, all_frames=False)])
truth["sites"] = [(frames(one.traceback), one.count, one.size) for one in snapshot.statistics("traceback") if one.count > 90]
truth["lost"] = lost
del snapshot
text = json.dumps(truth)
os.write(1, text.encode() + b"\n")
del text
os.write(1, b"ready\n")
while True:
    signal.pause()
