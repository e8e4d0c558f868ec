"""Call a function of C from Python functions of each kind, a round of calls for each line of the input. Prints the frames of each call as
JSON, innermost first, with the number of calls in all rounds.

Arguments: the library, functions that are made, called and freed in each round."""

import ctypes
import json
import sys
import threading
from collections import Counter

LIBRARY = ctypes.CDLL(sys.argv[1])
CHANGING = int(sys.argv[2])
probed = LIBRARY.probed
probed.argtypes = [ctypes.c_size_t]
probed.restype = None
CALLBACK = ctypes.CFUNCTYPE(None)
calls = Counter()


def note(size):
    """Count the call that the caller makes in the same line."""
    frame, frames = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        frames.append((getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno))
        frame = frame.f_back
    calls[tuple(frames), size] += 1
    return size


class Shape:
    def __init__(self, sides):
        self.sides = sides

    def area(self):
        probed(note(48))
        return self.sides

    def __lt__(self, other):
        probed(note(56))
        return self.sides < other.sides

    @property
    def perimeter(self):
        return sum(self.lengths())

    def lengths(self):
        for side in range(self.sides):
            probed(note(64))
            yield side


class Holder:
    def __init__(self):
        probed(note(176))


def making():
    """Since 3.12, the interpreter executes these calls without a native frame, and with a frame of its own."""
    for _ in range(20):
        Holder()


def deep(levels):
    if levels:
        return 1 + deep(levels - 1)
    probed(note(72))
    return 0


def closure(size):
    def inner():
        probed(note(size))

    return inner


def from_c(function):
    made = CALLBACK(function)
    LIBRARY.call_back(made)


def lambdas():
    return sorted([80, 88], key=lambda size: probed(note(size)) or size)


def comprehension():
    return [probed(note(size)) for size in (96, 104)]


def failing():
    try:
        raise ValueError("no")
    except ValueError:
        probed(note(112))
    finally:
        probed(note(120))


def größe():
    probed(note(160))


def 大小():
    probed(note(168))


async def waiting():
    await nested()


async def nested():
    probed(note(128))


def run(coroutine):
    try:
        coroutine.send(None)
    except StopIteration:
        pass


def changing():
    """Calls functions whose code objects are freed. Later functions get the same addresses."""
    for number in range(CHANGING):
        lines = "\n" * (number % 7)
        names = {"probed": probed, "note": note}
        exec(compile(f"{lines}def made_{number % 50}():\n    probed(note({1000 + number % 50}))\n", f"made{number % 3}.py", "exec"), names)
        names[f"made_{number % 50}"]()
        del names


def round_of_calls():
    Shape(3).area()
    sorted([Shape(1), Shape(2), Shape(3)])
    assert Shape(4).perimeter
    deep(30)
    from_c(closure(136))
    from_c(lambda: from_c(closure(144)))
    lambdas()
    comprehension()
    failing()
    run(waiting())
    making()
    größe()
    大小()
    changing()
    thread = threading.Thread(target=closure(152))
    thread.start()
    thread.join()


print("ready", flush=True)
for _ in sys.stdin:
    round_of_calls()
    print(json.dumps([[count, size, frames] for (frames, size), count in calls.items()]), flush=True)
    print("done", flush=True)
