"""Python objects that C code keeps by one reference too many ("instance", "str"), or that only a disabled collector would free ("cycle").
Arguments: the kind and the number. Prints "ready"."""

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


gc.disable()
for number in range(count):
    if kind == "cycle":
        Node()
    else:
        made = Session(number) if kind == "instance" else f"string number {number} that C code forgot"
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
made = None
print("ready", flush=True)
time.sleep(3600)
