"""Twelve holders of objects, each of another kind: a class attribute, a global dictionary, an lru_cache, a closure, a default argument, a
suspended generator, a thread-local variable, a context variable, a partial function, a callback of a weak reference, a logging handler, the
traceback of an exception. They hold COUNT to COUNT + 11 objects. The program prints "ready", and waits."""

import contextvars
import functools
import gc
import logging
import threading
import time
import weakref

COUNT = 3000


class Item:
    __slots__ = ("data",)

    def __init__(self, kind, number):
        self.data = f"{kind} {number}".ljust(1000, "x")


def make(kind, more):
    return [Item(kind, number) for number in range(COUNT + more)]


class Registry:
    items = make("class attribute", 11)


TABLE = dict(enumerate(make("global dictionary", 10)))


@functools.lru_cache(maxsize=100_000)
def load(number):
    return Item("cache", number)


for number in range(COUNT + 9):
    load(number)


def close():
    kept = make("closure", 8)
    return lambda: kept


HANDLER = close()


def search(text, seen=make("default", 7)):  # noqa: B008
    return seen


def generate():
    pending = make("generator", 6)
    yield 1
    yield pending


GENERATOR = generate()
next(GENERATOR)
local, started = threading.local(), threading.Event()


def work():
    local.batch = make("thread", 5)
    started.set()
    time.sleep(3600)


threading.Thread(target=work, daemon=True).start()
started.wait()
VARIABLE = contextvars.ContextVar("request_items")
VARIABLE.set(make("context", 4))
PARTIAL = functools.partial(search, make("partial", 3))


class Target:
    pass


def make_callback(items):
    def callback(reference):
        items.clear()

    return callback


target = Target()
REFERENCE = weakref.ref(target, make_callback(make("callback", 2)))


class Recorder(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


log = logging.getLogger("app")
log.addHandler(Recorder())
log.propagate = False
for item in make("record", 1):
    log.warning("event", extra={"item": item})
del item


def fail():
    working = make("traceback", 0)
    raise ValueError("broken", len(working))


try:
    fail()
except ValueError as error:
    ERROR = error
gc.collect()
print("ready", flush=True)
time.sleep(3600)
