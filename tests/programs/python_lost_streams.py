"""Leaks the states of zlib's inflate streams, because inflateEnd is not called. Prints their number, then "ready"."""

import ctypes
import time

COUNT = 1500
zlib = ctypes.CDLL("libz.so.1")
stream = ctypes.create_string_buffer(112)
for _ in range(COUNT):
    ctypes.memset(stream, 0, 112)
    assert zlib.inflateInit_(stream, b"1.2.11", 112) == 0
ctypes.memset(stream, 0, 112)
print(COUNT)
print("ready", flush=True)
time.sleep(1e6)
