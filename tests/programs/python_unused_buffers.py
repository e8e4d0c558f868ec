"""Leaks COUNT Python objects of each of several classes, and writes their addresses to words that the interpreter does not use; prints
each class and the number of its leaked objects, then "ready".

An object has a reference too many, as after a missing Py_DECREF. Nothing refers to it.
"""

import array
import csv
import ctypes
import datetime
import gc
import io
import signal
import struct
import sys
import threading
import types
from xml.etree import ElementTree

COUNT = int(sys.argv[1])
WORD = 8
HAS_LOCKS = sys.version_info < (3, 13)  # in blocks of their own
increment = ctypes.pythonapi.Py_IncRef
increment.argtypes, increment.restype = [ctypes.py_object], None
kept, unused = [], []


class Text(str):
    pass


def read(address, word):
    return ctypes.c_size_t.from_address(address + word * WORD).value


def numbers(number):
    """The array has room for one more item than it has."""
    one = array.array("q", range(20 + number % 60))
    one.pop()
    return one, one.buffer_info()[0] + len(one) * WORD


def octets(number):
    one = bytearray(b"x" * 40)
    del one[24:]
    return one, read(id(one), 4) + 32


def characters(number):
    one = io.StringIO()
    one.write("x" * 20)
    one.seek(0)
    one.truncate(14)
    return one, read(id(one), 2) + 14 * 4


def rows(number):
    one = csv.reader(["a,b"])
    next(one)
    return one, read(id(one), 6) + 800


def written(number):
    one = csv.writer(io.StringIO())
    one.writerow([number])
    return one, read(id(one), 4) + 800


def codes(number):
    """17 codes of 32 bytes are in a block of malloc, which is one word larger."""
    one = struct.Struct("bh" * 8)
    return one, read(id(one), 4) + 17 * 32


def lock(number):
    one = threading.Lock()
    return one, read(id(one), 2) + 2 * WORD


def wide(number):
    one = chr(0x400 + number) * 7
    return one, id(one) + sys.getsizeof(one)


def behind_text(number):
    one = Text(number)
    return one, id(one) + Text.__basicsize__


def in_text(number):
    one = Text(number)
    return one, read(id(one), 7 if sys.version_info >= (3, 12) else 9) + WORD


def dated(number):
    one = datetime.datetime(2020, 1, 1 + number % 28)
    return one, id(one) + 5 * WORD


def named(number):
    one = types.SimpleNamespace(number=number)
    return one, id(one) + types.SimpleNamespace.__basicsize__


def element(number):
    one = ElementTree.fromstring("<a><b/></a>")
    return one, id(one) + ElementTree.Element.__basicsize__


def children(number):
    one = ElementTree.fromstring("<a>" + "<b/>" * (1 + number % 3) + "</a>")
    return one, read(id(one), 5) + 7 * WORD


def keys(number):
    """Python 3.9: the keys that the objects of a class share have room for an odd number of words."""
    one = type("One", (), {})
    one().first = None
    return one, read(id(one), 108) + 21 * WORD


KINDS = [numbers, octets, characters, rows, written, codes, wide, in_text, dated, named, element, children]
KINDS += [behind_text] * (Text.__basicsize__ % (2 * WORD) == WORD)
KINDS += [lock] * HAS_LOCKS
KINDS += [keys] * (sys.version_info < (3, 10))

gc.collect()
gc.disable()
for new in KINDS:
    kind = type(new.__name__.title(), (), {})
    for number in range(COUNT):
        holder, address = new(number)
        kept.append(holder)
        made = kind()
        increment(made)
        unused.append((address, id(made)))
        del made
    print(f"{kind.__module__}.{kind.__name__}", COUNT)
for address, value in unused:
    ctypes.c_size_t.from_address(address).value = value
print("ready", flush=True)
while True:
    signal.pause()
