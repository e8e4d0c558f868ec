"""Leaks COUNT Python objects of each of four kinds. Prints each kind's class and the addresses of some, then "ready". Leaks COUNT more
at each SIGUSR1, and then prints "more".

A Session and a tuple have a reference too many, as after a missing Py_DECREF; an Owner and its Parts refer to each other, and the
collector is off; a list holds itself. What belongs to one object is allocated in changing order and differs in size.
"""

import gc
import os
import signal
import sys

COUNT, SHOWN = int(sys.argv[1]), 20
try:
    from python_increment import increment  # an extension, for interpreters without ctypes
except ImportError:
    import ctypes

    increment = ctypes.pythonapi.Py_IncRef
    increment.argtypes = [ctypes.py_object]
    increment.restype = None


class Session:
    def __init__(self, number):
        self.token = f"token of session {number}" * (1 + number % 3)
        self.data = bytearray(100)


class Owner:
    def __init__(self):
        self.parts = []


class Part:
    def __init__(self):
        self.owner = None


def session(number):
    made = Session(number)
    increment(made)
    return id(made)


def owner(number):
    parts = [Part() for _ in range(number % 2)]
    made = Owner()
    parts += [Part() for _ in range(1 + number % 3)]
    made.parts.extend(parts)
    for part in parts:
        part.owner = made
    return id(made)


def numbers(number):
    made = tuple(range(1000 + number, 1001 + number + number % 5))
    increment(made)
    return id(made)


def own(number):
    made = [float(number)] * (number % 40)
    made.append(made)
    return id(made)


KINDS = {"__main__.Session": session, "__main__.Owner": owner, "tuple": numbers, "list": own}


def leak():
    places = {name: [kind(number) for number in range(COUNT)] for name, kind in KINDS.items()}
    return {name: some[COUNT // 2 :][:SHOWN] for name, some in places.items()}


def again(_signal, _frame):
    leak()
    os.write(1, b"more\n")


gc.collect()
gc.disable()
signal.signal(signal.SIGUSR1, again)
for name, places in leak().items():
    print(name, *map(hex, places))
print("ready", flush=True)
while True:
    signal.pause()
