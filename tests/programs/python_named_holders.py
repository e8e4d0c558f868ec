"""Twelve kinds of holder, each with its own number of byte arrays of 64 KiB. Prints "ready" and waits."""

import asyncio
import contextvars
import functools
import os
import queue
import threading
import time


def arrays(n):
    return [bytearray(65536) for _ in range(n)]


LISTS = {}  # emptied before the program waits
MODULE_LIST = arrays(20)


class Config:
    cache = arrays(19)


def make_handler():
    kept = arrays(18)
    return lambda: kept


HANDLER = make_handler()


def search(word, seen=[]):  # noqa: B006
    return seen


search.__defaults__[0].extend(arrays(17))


@functools.cache
def load(number):
    return bytearray(65536)


for number in range(16):
    load(number)
local = threading.local()


def keep_thread_local():
    local.buffer = LISTS["buffer"] = arrays(15)
    time.sleep(1e6)


def keep_frame_local():
    results = LISTS["results"] = arrays(14)
    time.sleep(1e6)
    print(results)


for target in keep_thread_local, keep_frame_local:
    threading.Thread(target=target, daemon=True).start()
variable = contextvars.ContextVar("variable")
variable.set(arrays(13))


def read_rows():
    rows = LISTS["rows"] = arrays(12)
    yield 1
    print(rows)


GENERATOR = read_rows()
next(GENERATOR)


class Registry:
    def __init__(self):
        self.by_name = {}


REGISTRY = Registry()
REGISTRY.by_name.update({f"name{i}": array for i, array in enumerate(arrays(11))})
QUEUE = queue.Queue()
for array in arrays(10):
    QUEUE.put(array)
del array


async def wait_for_ever():
    part = LISTS["part"] = arrays(9)
    await asyncio.sleep(1e6)
    print(part)


async def main():
    task = asyncio.create_task(wait_for_ever())
    await asyncio.sleep(0.5)
    held = (
        MODULE_LIST,
        Config.cache,
        HANDLER(),
        search(""),
        LISTS["buffer"],
        LISTS["results"],
        LISTS["rows"],
        REGISTRY.by_name,
        LISTS["part"],
    )
    lines = [" ".join(str(id(one)) for one in some) for some in (held, (HANDLER, search, REGISTRY))]
    os.write(1, ("\n".join(lines) + "\nready\n").encode())
    LISTS.clear()
    del held, lines
    await asyncio.sleep(1e6)
    print(task)


asyncio.run(main())
