"""Loads the library FILE of go_library.go, calls Start(COUNT), and prints "ready"."""

import ctypes
import signal
import sys

ctypes.CDLL(sys.argv[1]).Start(ctypes.c_long(int(sys.argv[2])))
print("ready", flush=True)
signal.pause()
