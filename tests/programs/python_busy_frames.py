"""Executes Python functions of all kinds, in two threads. At SIGUSR1 a thread prints its own traceback.

The signal handler of `faulthandler` runs at the instruction at which the thread was stopped."""

import faulthandler
import functools
import itertools
import signal
import sys
import threading

try:
    import asyncio
except ImportError:  # of an interpreter without sockets
    asyncio = None

faulthandler.register(signal.SIGUSR1, file=sys.stdout, all_threads=False)


class Worker:
    scale = 3

    def run(self, count):
        return sum(self.step(number) for number in range(count))

    def step(self, number):
        return sorted(
            [number, self.scale, 2],
            key=lambda one: (
                -one,
                one % 5,
            ),
        )[0]

    @property
    def sizes(self):
        return [self.step(one) for one in range(3)]

    def __getattr__(self, name):
        return len(name)


def rename(function):
    """Give a function a name that is not ASCII."""
    names = {"co_name": "größe", **({"co_qualname": "Worker.größe"} if sys.version_info >= (3, 11) else {})}
    function.__code__ = function.__code__.replace(**names)


rename(Worker.sizes.fget)


def fibonacci(number):
    if number < 2:
        return number
    return fibonacci(number - 1) + fibonacci(number - 2)


def fails(depth):
    if not depth:
        raise ValueError("the end")
    try:
        fails(depth - 1)
    finally:
        depth = sum(range(depth))


def pairs(items):
    for one in items:
        yield from ((one, other) for other in items)


def outer(count):
    seen = {}

    def inner(key, *rest, more=None):
        seen[key] = (rest, more)
        return functools.reduce(lambda left, right: left + right, rest, 0)

    return [inner(number, 1, 2, more=number) for number in range(count)]


async def reads(count):
    total = 0
    for number in range(count):
        await asyncio.sleep(0)
        total += number
    return total


async def gathers():
    await asyncio.gather(*(reads(3) for _ in range(3)))


def work():
    worker = Worker()
    for number in itertools.count():
        fibonacci(10)
        worker.run(12)
        assert worker.sizes and worker.missing
        try:
            fails(6)
        except ValueError:
            pass
        list(pairs(range(4)))
        outer(5)
        list(map(lambda one: worker.step(one), (1, 2, 3)))  # noqa: C417
        exec(compile("for one in (1, 2): fibonacci(one)", "<made>", "exec"))
        if asyncio and number % 8 == 0:
            asyncio.run(gathers())


threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
work()
