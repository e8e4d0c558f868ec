"""Executes Python functions in greenlets that switch to each other, in two threads. At SIGUSR1 a thread prints its own traceback.

The outermost function of each greenlet is `_bootstrap`. A traceback ends there, because the functions of other greenlets have not called
it."""

import faulthandler
import itertools
import signal
import sys
import threading

from greenlet import GreenletExit, getcurrent, greenlet

faulthandler.register(signal.SIGUSR1, file=sys.stdout, all_threads=False)


def compute(count):
    return sum(number * number % 7 for number in range(count))


def nest(depth):
    compute(50)
    if depth:
        inner = greenlet(_bootstrap)
        inner.switch(nest, depth - 1)
        compute(40)
        inner.switch()
    sorted(range(5), key=compute)
    getcurrent().parent.switch(depth)
    return list(map(compute, range(20, 23)))


def generate(count):
    for _ in range(count):
        getcurrent().parent.switch(compute(30))
        yield compute(30)


def consume(count):
    return sorted(generate(count), key=lambda one: compute(one % 9))


def interrupted(count):
    try:
        getcurrent().parent.switch([compute(one) for one in range(count)])
    except GreenletExit:
        compute(30)
        raise
    finally:
        compute(20)


def _bootstrap(function, argument):
    return function(argument)


def work():
    for _ in itertools.count():
        nested = greenlet(_bootstrap)
        nested.switch(nest, 3)
        compute(40)
        nested.switch()
        consumers = [greenlet(_bootstrap) for _ in range(4)]
        for one in consumers:
            one.switch(consume, 4)
        while any(not one.dead for one in consumers):
            for one in consumers:
                if not one.dead:
                    one.switch()
        last = greenlet(_bootstrap)
        last.switch(interrupted, 5)
        last.throw(GreenletExit)


threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
work()
