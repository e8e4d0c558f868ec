"""Leak Python objects. C code adds one reference too many ("instance", "str", "list", "dict"), or only the collector, which is disabled,
would free the objects ("cycle"). Arguments: the kind and the number of objects. Prints "ready"."""

import ctypes
import gc
import sys
import time

kind, count = sys.argv[1], int(sys.argv[2])


class Session:
    def __init__(self, number: int) -> None:
        self.name = f"session {number} of the shop"


class Node:
    def __init__(self) -> None:
        self.itself, self.data = self, bytearray(1000)


def make(number: int) -> object:
    text = f"string number {number} that C code forgot"
    return {"str": text, "list": [text], "dict": {"name": text}}[kind] if kind != "instance" else Session(number)


gc.disable()
for number in range(count):
    if kind == "cycle":
        Node()
    else:
        made = make(number)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
made = None
print("ready", flush=True)
time.sleep(3600)
