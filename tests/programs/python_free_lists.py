"""Leaks COUNT Python objects whose last holders were tuples, lists and dictionaries that now wait in the interpreter's free lists, with
their former contents; prints "ready".

A Session has a reference too many, as after a missing Py_DECREF. Nothing refers to it.
"""

import gc
import signal
import sys

COUNT = int(sys.argv[1])
try:
    from python_increment import increment  # an extension, for interpreters without ctypes
except ImportError:
    import ctypes

    increment = ctypes.pythonapi.Py_IncRef
    increment.argtypes = [ctypes.py_object]
    increment.restype = None


class Session:
    pass


def leaked():
    made = Session()
    increment(made)
    return made


def leak():
    holders = []
    for number in range(COUNT):
        kind = number % 20
        if kind == 18:
            holders.append({"session": leaked()})
        elif kind == 19:
            holders.append([leaked()])
        else:
            holders.append((leaked(), *range(kind)))
    holders.reverse()
    while holders:
        holders.pop()


leak()
gc.disable()
print("ready", flush=True)
while True:
    signal.pause()
